//! perftest's raw_ethernet_bw and raw_ethernet_lat, between two processes joined by a link: on this crate's
//! provider, and on rdma-core's own mlx5 provider.
//!
//! perftest has no control connection here: the server has to be ready before the client sends, and in the
//! modes that count packets instead of time every one has to arrive. Both ends are given the same addresses
//! but for the MACs; the server puts the whole tuple into its flow as it is.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::method::{MLX5, Method, PLUGIN};
use crate::process::{Running, tail};
use crate::{Case, Outcome};

/// The most time that a row may take: a few seconds of traffic, on a machine that may be busy with something
/// else.
const LIMIT: Duration = Duration::from_secs(60);
/// Between the server's last line before it polls, and its polling.
const SETTLE: Duration = Duration::from_millis(300);
/// The last line that both tools print before they set up their flows.
const READY: &str = "Data ex. method";

const A: &str = "02:00:00:00:00:0a";
const B: &str = "02:00:00:00:00:0b";

const IPV4: &[&str] = &["-J", "10.0.0.2", "-j", "10.0.0.1"];
const IPV6: &[&str] = &["--raw_ipv6", "-J", "fe80::2", "-j", "fe80::1"];
const PORTS: &[&str] = &["-K", "2000", "-k", "1000"];
const DURATION: &[&str] = &["-D", "2"];
/// The arguments for as many frames as the server has buffers posted when it begins, so that none is lost
/// however busy the machine is.
const COUNTED: &[&str] = &["-n", "500"];
/// Round trips.
const PINGS: &[&str] = &["-n", "100"];

/// The arguments and wires of the two ends.
struct Setup {
    method: Method,
    tool: &'static str,
    both: Vec<&'static str>,
    server: Vec<&'static str>,
}

/// A row: its name, the arguments of both ends, those of the server alone.
type Line = (&'static str, &'static [&'static [&'static str]], &'static [&'static str]);

pub(crate) fn cases() -> Vec<Case> {
    let bandwidth: [Line; 13] = [
        ("MAC, counted", &[&["-s", "64"], COUNTED], &[]),
        ("MAC, duration", &[&["-s", "64"], DURATION], &[]),
        ("IPv4", &[&["-s", "128"], IPV4, DURATION], &[]),
        ("IPv6", &[&["-s", "128"], IPV6, DURATION], &[]),
        ("UDP", &[&["-s", "128"], IPV4, PORTS, DURATION], &[]),
        ("UDP over IPv6", &[&["-s", "128"], IPV6, PORTS, DURATION], &[]),
        ("TCP", &[&["-s", "128", "--tcp"], IPV4, PORTS, DURATION], &[]),
        ("VLAN", &[&["-s", "128", "--vlan_en"], DURATION], &[]),
        ("4 queue pairs", &[&["-s", "128", "-q", "4"], DURATION], &[]),
        ("promiscuous", &[&["-s", "128"], DURATION], &["--promiscuous"]),
        ("sniffer", &[&["-s", "128"], DURATION], &["--sniffer"]),
        ("9000-byte frames", &[&["-s", "8900", "-m", "9000"], DURATION], &[]),
        ("both ways", &[&["-s", "128", "-b"], DURATION], &[]),
    ];
    let latency: [Line; 6] = [
        ("MAC", &[&["-s", "64"], PINGS], &[]),
        ("MAC, duration", &[&["-s", "64"], DURATION], &[]),
        ("UDP", &[&["-s", "128"], IPV4, PORTS, PINGS], &[]),
        ("IPv6", &[&["-s", "128"], IPV6, PINGS], &[]),
        ("VLAN", &[&["-s", "128", "--vlan_en"], PINGS], &[]),
        ("9000-byte frames", &[&["-s", "8900", "-m", "9000"], PINGS], &[]),
    ];
    let tools = [("raw_ethernet_bw", bandwidth.to_vec()), ("raw_ethernet_lat", latency.to_vec())];
    let rows = tools.into_iter().flat_map(|(tool, rows)| rows.into_iter().map(move |row| (tool, row)));
    let rows: Vec<_> = rows.collect();
    let case = |method: Method, (tool, (name, both, server)): (&'static str, Line)| {
        let setup = Setup { method, tool, both: both.concat(), server: server.to_vec() };
        Case::new(format!("{tool}: {name} ({})", method.name), move |launcher| measure(launcher, &setup))
    };
    [PLUGIN, MLX5].into_iter().flat_map(|method| rows.iter().map(move |row| case(method, *row))).collect()
}

fn measure(launcher: &Path, setup: &Setup) -> Outcome {
    static LINKS: AtomicU32 = AtomicU32::new(0);
    let link = format!("conformance.{}.{}", std::process::id(), LINKS.fetch_add(1, Ordering::Relaxed));
    let start = |end: char, role: &str, macs: [&str; 2], extra: &[&str]| {
        let mut command = setup.method.exec(launcher, &format!("link:{link}:{end}"));
        // Without it nothing is seen of a tool before it ends.
        command.args([
            "stdbuf",
            "-oL",
            setup.tool,
            role,
            "-d",
            setup.method.device,
            "-B",
            macs[0],
            "-E",
            macs[1],
        ]);
        Running::start(command.args(&setup.both).args(extra), &format!("{} {role}", setup.tool))
    };
    let mut server = start('a', "--server", [A, B], &setup.server)?;
    server.wait_for(READY, LIMIT)?;
    std::thread::sleep(SETTLE);
    let client = start('b', "--client", [B, A], &[])?.finish(LIMIT)?.success()?;
    let server = server.finish(LIMIT)?.success()?;
    let (sent, received) = (figures(&client)?, figures(&server)?);
    if let Some(complaint) = [&client, &server].into_iter().find_map(|text| complaint(text)) {
        return Err(complaint);
    }
    let bytes: f64 = sent.first().copied().unwrap_or_default();
    let count = |figures: &[f64]| figures.get(1).copied().unwrap_or_default();
    if count(&sent) < 1.0 || count(&received) < 1.0 {
        return Err(format!("nothing moved\n{}\n{}", tail(&client), tail(&server)));
    }
    if setup.tool.ends_with("lat") {
        // Counted: min, max, typical, average. With a duration only the average.
        let average = if sent.len() > 5 { sent.get(5) } else { sent.get(2) };
        let average = average.copied().unwrap_or_default();
        return Ok(format!("{} round trips of {bytes} bytes, {average:.1} us on average", count(&sent)));
    }
    let rate = received.get(4).copied().unwrap_or_default();
    Ok(format!("{} of {} packets of {bytes} bytes, {rate:.3} Mpps", count(&received), count(&sent)))
}

/// The row of numbers under the heading: bytes, iterations, and what else the mode prints.
fn figures(text: &str) -> Result<Vec<f64>, String> {
    let mut lines = text.lines().skip_while(|line| !line.trim_start().starts_with("#bytes")).skip(1);
    let row = lines.next().unwrap_or_default();
    let numbers: Vec<f64> = row.split_whitespace().map_while(|word| word.parse().ok()).collect();
    if numbers.len() >= 3 { Ok(numbers) } else { Err(format!("no figures in\n{}", tail(text))) }
}

/// The line by which the tools report a failed flow, after which they go on.
fn complaint(text: &str) -> Option<String> {
    text.lines().find(|line| line.contains("Couldn't") || line.starts_with("error")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_under_the_heading() {
        let text = " RX depth : 512\n #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                    64         500              0.00               2.20   \t\t   0.036066\n----\n";
        assert_eq!(figures(text).unwrap(), [64.0, 500.0, 0.0, 2.2, 0.036_066]);
        assert!(figures(" #bytes #iterations\n----\n").is_err());
        assert!(figures("").is_err());
    }
}
