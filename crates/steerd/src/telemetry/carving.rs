//! The report of a daemon that carves queues: how many filters are in force, and whether they are.
//!
//! A NIC counts neither the packets of a filter nor those that it drops, so there is no counter of packets.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use prometheus::proto::{self, MetricFamily, MetricType};
use prometheus::{TextEncoder, proto::LabelPair};
use serde::Serialize;

use crate::telemetry::http::Probes;
use crate::telemetry::metrics::open_metrics;
use crate::telemetry::pages::Page;
use crate::terminal::output::Versioned;

/// The time without a tick after which a call to the driver is taken to hang. A tick is every 5 seconds, and
/// a change of a full table takes seconds.
const STALL_LIMIT: Duration = Duration::from_secs(60);

/// The figures.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct CarvingFigures {
    pub(crate) filters: usize,
    pub(crate) contexts: usize,
    pub(crate) foreign_filters: usize,
    /// Filters that somebody has removed, and that were inserted again.
    pub(crate) lost_filters: u64,
    pub(crate) reloads: u64,
    pub(crate) is_last_reload_successful: bool,
}

/// The state of the daemon, for requests.
#[derive(Debug)]
pub(crate) struct CarvingStatus {
    interface: String,
    driver: String,
    figures: Mutex<CarvingFigures>,
    /// The reason why the filters are not in place.
    fault: Mutex<Option<String>>,
    /// The time of the last change or comparison of filters.
    ticked: Mutex<Instant>,
}

/// The state as JSON.
#[derive(Serialize)]
struct CarvingState<'s> {
    interface: &'s str,
    driver: &'s str,
    #[serde(flatten)]
    figures: CarvingFigures,
    fault: Option<String>,
}

/// A metric and its value. docs/reference/policy/queues.md lists the same rows.
type Row = (&'static str, MetricType, &'static str, fn(&CarvingFigures) -> f64);

const METRICS: [Row; 6] = [
    ("steerd_filters", MetricType::GAUGE, "Filters of the policy on the interface.", |figures| {
        figures.filters as f64
    }),
    ("steerd_rss_contexts", MetricType::GAUGE, "RSS contexts of the policy.", |figures| {
        figures.contexts as f64
    }),
    (
        "steerd_foreign_filters",
        MetricType::GAUGE,
        "Filters of other programs on the interface, after the last change.",
        |figures| figures.foreign_filters as f64,
    ),
    (
        "steerd_lost_filters_total",
        MetricType::COUNTER,
        "Filters that were gone and were inserted again.",
        |figures| figures.lost_filters as f64,
    ),
    ("steerd_filter_reloads_total", MetricType::COUNTER, "Reloads of the policy.", |figures| {
        figures.reloads as f64
    }),
    (
        "steerd_last_filter_reload_successful",
        MetricType::GAUGE,
        "Whether the last reload put its policy in force.",
        |figures| f64::from(u8::from(figures.is_last_reload_successful)),
    ),
];

impl CarvingStatus {
    /// The state before the first filter is inserted: not ready.
    pub(crate) fn new(interface: &str, driver: &str) -> Self {
        let figures = CarvingFigures {
            filters: 0,
            contexts: 0,
            foreign_filters: 0,
            lost_filters: 0,
            reloads: 0,
            is_last_reload_successful: true,
        };
        Self {
            interface: interface.to_owned(),
            driver: driver.to_owned(),
            figures: Mutex::new(figures),
            fault: Mutex::new(Some("starting".to_owned())),
            ticked: Mutex::new(Instant::now()),
        }
    }

    fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
        of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn figures(&self) -> CarvingFigures {
        *Self::lock(&self.figures)
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut CarvingFigures)) {
        change(&mut Self::lock(&self.figures));
    }

    /// Notes why the filters are not in place; returns whether it is another fault than before.
    pub(crate) fn set_fault(&self, fault: Option<String>) -> bool {
        let mut known = Self::lock(&self.fault);
        let is_new = *known != fault;
        *known = fault;
        is_new
    }

    pub(crate) fn fault(&self) -> Option<String> {
        Self::lock(&self.fault).clone()
    }

    /// Notes that the daemon makes progress.
    pub(crate) fn tick(&self) {
        *Self::lock(&self.ticked) = Instant::now();
    }

    /// Checks that the last tick was not too long before this time.
    fn alive_at(&self, now: Instant) -> Result<(), String> {
        let passed = now.saturating_duration_since(*Self::lock(&self.ticked));
        if passed <= STALL_LIMIT {
            return Ok(());
        }
        Err(format!(
            "the filters were not compared for {} s: a call to the driver may hang",
            passed.as_secs()
        ))
    }

    /// A page.
    ///
    /// # Errors
    /// There is no such page, or it cannot be written.
    pub(crate) fn page(&self, page: Page) -> Result<Bytes, String> {
        match page {
            Page::Metrics => TextEncoder::new()
                .encode_to_string(&self.metrics())
                .map(Bytes::from)
                .map_err(|error| error.to_string()),
            Page::OpenMetrics => Ok(open_metrics::encode(&self.metrics()).into()),
            Page::State => {
                let (figures, fault) = (self.figures(), self.fault());
                let state = CarvingState { interface: &self.interface, driver: &self.driver, figures, fault };
                serde_json::to_vec(&Versioned::new(&state))
                    .map(Bytes::from)
                    .map_err(|error| error.to_string())
            }
            Page::Top | Page::Live | Page::Policy | Page::PolicyTexts | Page::History => {
                Err("filters count no packets".to_owned())
            }
        }
    }

    fn metrics(&self) -> Vec<MetricFamily> {
        let figures = self.figures();
        let family = |(name, kind, help, value): Row| {
            let mut label = LabelPair::default();
            label.set_name("interface".to_owned());
            label.set_value(self.interface.clone());
            let mut metric = proto::Metric::from_label(vec![label]);
            match kind {
                MetricType::COUNTER => {
                    let mut counter = proto::Counter::default();
                    counter.set_value(value(&figures));
                    metric.set_counter(counter);
                }
                _ => {
                    let mut gauge = proto::Gauge::default();
                    gauge.set_value(value(&figures));
                    metric.set_gauge(gauge);
                }
            }
            let mut family = MetricFamily::default();
            family.set_name(name.to_owned());
            family.set_help(help.to_owned());
            family.set_field_type(kind);
            family.set_metric(vec![metric]);
            family
        };
        METRICS.map(family).into()
    }
}

impl Probes for CarvingStatus {
    fn ready(&self) -> Result<(), String> {
        self.fault().map_or(Ok(()), Err)
    }

    fn alive(&self) -> Result<(), String> {
        self.alive_at(Instant::now())
    }

    fn degraded(&self) -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_show_the_filters() {
        let status = CarvingStatus::new("eth0", "mlx5_core");
        status.update(|figures| figures.filters = 3);
        let page = |page| String::from_utf8(status.page(page).expect("a page").to_vec()).expect("text");
        let (metrics, open) = (page(Page::Metrics), page(Page::OpenMetrics));
        assert!(metrics.contains("steerd_filters{interface=\"eth0\"} 3"), "{metrics}");
        assert!(open.contains("\nsteerd_lost_filters_total{interface=\"eth0\"} 0\n"), "{open}");
        assert!(open.contains("# TYPE steerd_lost_filters counter") && open.ends_with("\n# EOF\n"), "{open}");
        assert!(metrics.contains("# TYPE steerd_lost_filters_total counter"), "{metrics}");
        let state = page(Page::State);
        assert!(state.contains("\"filters\":3") && state.contains("\"driver\":\"mlx5_core\""), "{state}");
    }

    #[test]
    fn a_fault_is_new_once() {
        let status = CarvingStatus::new("eth0", "mlx5_core");
        assert!(status.set_fault(Some("gone".to_owned())) && !status.set_fault(Some("gone".to_owned())));
        assert_eq!(status.ready(), Err("gone".to_owned()));
        assert!(status.set_fault(None));
    }

    #[test]
    fn the_daemon_is_not_alive_if_ticks_fail_to_come() {
        let status = CarvingStatus::new("eth0", "mlx5_core");
        assert_eq!(status.ready(), Err("starting".to_owned()));
        assert_eq!(status.alive(), Ok(()));
        let later = Instant::now() + STALL_LIMIT + Duration::from_secs(1);
        assert!(status.alive_at(later).is_err());
    }

    #[test]
    fn the_reference_lists_every_metric() {
        let page = include_str!("../../../../docs/reference/policy/queues.md");
        for (name, _, help, _) in METRICS {
            assert!(page.contains(&format!("`{name}`")), "{name}: {help}");
        }
    }
}
