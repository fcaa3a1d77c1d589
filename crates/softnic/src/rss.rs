//! Receive-side scaling: which receive queue of an RSS queue pair a frame goes to.
//!
//! A front end makes one [`Rss`] per RSS queue pair; the engine asks it once per delivery. It holds a copy
//! of the indirection table, which can only be created and destroyed, so a selection follows no pointer but
//! its own. It never looks at frame bytes and does not depend on the state of the queues.

use packet::{DeepKey, FlowKey, HashFields, RssKey, Toeplitz, TunnelKey};

/// The most entries of an indirection table.
pub(crate) const MAX_INDIRECTION_ENTRIES: usize = 1 << 11;

/// Why an RSS queue pair cannot be made: all of it is `EINVAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RssError {
    /// The table's length is not a power of two in range.
    #[error("an indirection table has a power of two of up to {MAX_INDIRECTION_ENTRIES} entries, not {0}")]
    TableLength(usize),
    /// There is nothing to spread the frames by.
    #[error("a table of {0} entries needs at least one hash field")]
    NoFields(usize),
}

/// The hash and the indirection table of one RSS queue pair. `Q` names a receive queue.
#[derive(Clone)]
pub(crate) struct Rss<Q> {
    toeplitz: Toeplitz,
    fields: HashFields,
    /// Whether some of them need a look into tunnels.
    deep: bool,
    /// The indirection table. The length is a power of two.
    table: Box<[Q]>,
    /// The queue of all entries, if they are of one: then no frame needs a hash.
    only: Option<Q>,
}

impl<Q: Copy + PartialEq> Rss<Q> {
    /// Prepares the hash for a table of queues.
    ///
    /// # Errors
    /// A table whose length is not a power of two in range, or one of several entries without hash fields.
    pub(crate) fn new(key: &RssKey, fields: HashFields, table: &[Q]) -> Result<Self, RssError> {
        let entries = table.len();
        if !entries.is_power_of_two() || entries > MAX_INDIRECTION_ENTRIES {
            return Err(RssError::TableLength(entries));
        }
        // INNER selects the packet of the other fields.
        if (fields - HashFields::INNER).is_empty() && entries > 1 {
            return Err(RssError::NoFields(entries));
        }
        let deep = fields.intersects(HashFields::DEEP);
        let only = table.first().copied().filter(|first| table.iter().all(|queue| queue == first));
        Ok(Self { toeplitz: Toeplitz::new(key), fields, deep, table: table.into(), only })
    }

    /// The queue of all frames, if they go to one.
    #[inline]
    pub(crate) fn only(&self) -> Option<Q> {
        self.only
    }

    /// The queue of a frame. `tunnel` parses the frame's tunnel, and is asked only if some field needs that.
    #[inline]
    pub(crate) fn queue(&self, key: &FlowKey, tunnel: impl FnOnce() -> TunnelKey) -> Q {
        self.only.unwrap_or_else(|| self.select(key, tunnel).1)
    }

    /// The hash of a frame, 0 if it has none of the fields, and the queue that the hash points to.
    fn select(&self, key: &FlowKey, tunnel: impl FnOnce() -> TunnelKey) -> (u32, Q) {
        let hash = if self.deep {
            self.toeplitz.hash_deep(&DeepKey { outer: *key, tunnel: tunnel() }, self.fields)
        } else {
            self.toeplitz.hash_key(key, self.fields)
        };
        (hash, self.table[hash as usize & (self.table.len() - 1)])
    }

    /// The indirection table.
    #[cfg(test)]
    pub(crate) fn table(&self) -> &[Q] {
        &self.table
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::IpAddr;

    use packet::build::FrameBuilder;

    use super::*;

    fn frame(src: IpAddr, dst: IpAddr, src_port: u16, dst_port: u16) -> FlowKey {
        FlowKey::of(&FrameBuilder::new().ip(src, dst).tcp(src_port, dst_port, 2).build())
    }

    #[test]
    fn a_table_has_a_power_of_two_of_entries_and_fields_to_spread_by() {
        let make = |entries: usize, fields| {
            Rss::new(&RssKey::MICROSOFT, fields, &vec![0u32; entries]).map(|rss| rss.table().len())
        };
        for entries in [0, 3, MAX_INDIRECTION_ENTRIES - 1, 2 * MAX_INDIRECTION_ENTRIES] {
            assert_eq!(make(entries, HashFields::L3L4), Err(RssError::TableLength(entries)));
        }
        assert_eq!(make(MAX_INDIRECTION_ENTRIES, HashFields::L3), Ok(MAX_INDIRECTION_ENTRIES));
        assert_eq!(make(2, HashFields::empty()), Err(RssError::NoFields(2)));
        assert_eq!(make(1, HashFields::empty()), Ok(1));
    }

    #[test]
    fn a_table_of_one_queue_leads_to_it_without_a_hash() {
        let key = frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 1, 2);
        let same = Rss::new(&RssKey::MICROSOFT, HashFields::L3L4, &[7, 7, 7, 7]).unwrap();
        assert_eq!((same.only, same.queue(&key, TunnelKey::default)), (Some(7), 7));
        let other = Rss::new(&RssKey::MICROSOFT, HashFields::L3L4, &[7, 7, 8, 7]).unwrap();
        assert_eq!(other.only, None);
        assert_eq!(other.queue(&key, TunnelKey::default), other.select(&key, TunnelKey::default).1);
    }

    #[test]
    fn frames_without_the_fields_have_hash_0_and_the_first_entry() {
        let rss = Rss::new(&RssKey::MICROSOFT, HashFields::IPV6, &[7, 8, 9, 10]).unwrap();
        let v4 = frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 1, 2);
        assert_eq!(rss.select(&v4, TunnelKey::default), (0, 7));
        assert_eq!(rss.select(&FlowKey::default(), TunnelKey::default), (0, 7));
    }

    #[test]
    fn fields_inside_tunnels_and_indices_need_a_look_and_get_it() {
        let hash = Toeplitz::new(&RssKey::MICROSOFT);
        let outer = FrameBuilder::new().ipv4([198, 51, 100, 1].into(), [198, 51, 100, 2].into());
        let inside =
            FrameBuilder::new().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).tcp(5, 80, 2).build();
        for (frame, fields) in [
            (outer.clone().vxlan(7, &inside).build(), HashFields::L3L4 | HashFields::INNER),
            (outer.esp(0x0102_0304, 0, &[]).build(), HashFields::L3 | HashFields::IPSEC_SPI),
        ] {
            let rss = Rss::new(&RssKey::MICROSOFT, fields, &[0, 1, 2, 3]).unwrap();
            let deep = DeepKey::of(&frame);
            let (found, _) = rss.select(&deep.outer, || deep.tunnel);
            assert_eq!(found, hash.hash_deep(&deep, fields));
            assert_ne!(found, hash.hash_key(&deep.outer, fields));
        }
        let only = Rss::new(&RssKey::MICROSOFT, HashFields::INNER, &[0, 1]).map(|rss| rss.table().len());
        assert_eq!(only, Err(RssError::NoFields(2)));
    }

    #[test]
    fn many_flows_spread_over_the_table_and_a_flow_stays() {
        let table: Vec<u32> = (0..16).collect();
        let rss = Rss::new(&RssKey::MICROSOFT, HashFields::L3L4, &table).unwrap();
        let mut counts = HashMap::new();
        for port in 1024..5120 {
            let key = frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), port, 80);
            assert_eq!(rss.select(&key, TunnelKey::default), rss.select(&key, TunnelKey::default));
            *counts.entry(rss.select(&key, TunnelKey::default).1).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 16);
        assert!(counts.values().all(|count| (192..=320).contains(count)), "{counts:?}");
    }

    /// The known answers of Microsoft's verification suite, and those of the symmetric key.
    #[test]
    fn the_hash_points_where_the_known_answers_say() {
        let Some(folder) = test_support::corpora("rss") else { return };
        let text = std::fs::read_to_string(folder.join("toeplitz_kat.json")).unwrap();
        let answers: serde_json::Value = serde_json::from_str(&text).unwrap();
        let table: Vec<u32> = (0..128).collect();
        let vectors = answers["vectors"].as_array().unwrap();
        assert!(vectors.len() >= 8);
        for vector in vectors {
            let port = |name: &str| u16::try_from(vector[name].as_u64().unwrap()).unwrap();
            let address = |name: &str| vector[name].as_str().unwrap().parse().unwrap();
            let key = frame(address("src"), address("dst"), port("sport"), port("dport"));
            for (rss_key, prefix) in [(RssKey::MICROSOFT, "ms"), (RssKey::SYMMETRIC, "sym6d5a")] {
                for (fields, suffix) in [(HashFields::L3, "l3"), (HashFields::L3L4, "l3l4")] {
                    let answer = vector[format!("{prefix}_{suffix}")].as_str().unwrap();
                    let hash = u32::from_str_radix(answer.trim_start_matches("0x"), 16).unwrap();
                    let rss = Rss::new(&rss_key, fields, &table).unwrap();
                    assert_eq!(rss.select(&key, TunnelKey::default), (hash, hash % 128), "{vector}");
                }
            }
        }
    }
}
