//! Imports of nft rule sets against the evaluator: in no [`World`] does a policy drop a packet that the rule
//! set accepts. The rule sets are those of `listings/nft`, as nft printed them, and those in the folder
//! `STEERD_NFT_DUMPS`.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use packet::build::FrameBuilder;
use packet::{DeepKey, EtherType, IpProtocol, MacAddr};
use policy::import::{self, NftOptions};
use policy::policy::Action;
use policy::{NoFiles, Source};
use program::Predicate;
use serde_json::Value;

use crate::nft_evaluator::{NftPacket, NftRules, World};

/// A generator of numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 33) as usize % end
    }

    fn one<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// Values that a rule set names, and others.
struct Values {
    v4: Vec<u32>,
    v6: Vec<u128>,
    numbers: Vec<u16>,
    interfaces: Vec<String>,
}

impl Values {
    fn of(listing: &Value) -> Self {
        let mut values = Self {
            v4: vec![0xc612_0001, 0x0a01_0203],
            v6: vec![0x2001_0db8 << 96 | 7, 0xfe80 << 112 | 1],
            numbers: vec![22, 53, 80, 40_000, 65_535],
            interfaces: ["eth0", "eth1", "other0"].map(str::to_owned).to_vec(),
        };
        values.collect(listing);
        values
    }

    fn add_own(&mut self, addresses: &[IpAddr]) {
        for address in addresses {
            // Often, as rules of the hook input are about packets to these.
            match address {
                IpAddr::V4(address) => self.v4.extend(vec![u32::from(*address); self.v4.len()]),
                IpAddr::V6(address) => self.v6.extend(vec![u128::from(*address); self.v6.len()]),
            }
        }
    }

    fn add_interfaces(&mut self, named: &Value) {
        let list =
            named.get("set").and_then(Value::as_array).map_or(std::slice::from_ref(named), Vec::as_slice);
        let names = list.iter().filter_map(Value::as_str).filter(|name| !name.starts_with('@'));
        self.interfaces.extend(names.map(|name| name.replace('*', "0")).filter(|name| name != "lo"));
    }

    fn collect(&mut self, value: &Value) {
        match value {
            Value::String(text) => {
                if let Ok(address) = text.parse::<Ipv4Addr>() {
                    let number = u32::from(address);
                    self.v4.extend([number, number.wrapping_add(1), number.wrapping_sub(1), number | 0xff]);
                } else if let Ok(address) = text.parse::<Ipv6Addr>() {
                    let number = u128::from(address);
                    self.v6.extend([number, number.wrapping_add(1), number.wrapping_sub(1)]);
                }
            }
            Value::Number(number) => {
                if let Some(number) = number.as_u64().and_then(|number| u16::try_from(number).ok()) {
                    self.numbers.extend([number, number.saturating_add(1), number.saturating_sub(1)]);
                }
            }
            Value::Array(list) => list.iter().for_each(|one| self.collect(one)),
            Value::Object(object) => {
                let key = value.pointer("/left/meta/key").and_then(Value::as_str);
                if matches!(key, Some("iif" | "iifname")) {
                    self.add_interfaces(&object["right"]);
                }
                for (key, one) in object {
                    if !matches!(key.as_str(), "handle" | "prio" | "metainfo" | "packets" | "bytes") {
                        self.collect(one);
                    }
                }
            }
            _ => {}
        }
    }

    /// A packet for the evaluator, and its frame.
    fn packet(&self, random: &mut Random) -> (NftPacket, Vec<u8>) {
        let mut packet = NftPacket {
            src_mac: random.one(&[0x0200_0000_0066, 0x0200_0000_0001]),
            dst_mac: 0x0200_0000_0002,
            ..NftPacket::default()
        };
        let mac = |number: u64| {
            let [_, _, octets @ ..] = number.to_be_bytes();
            MacAddr(octets)
        };
        let mut frame = FrameBuilder::new().ethernet(mac(packet.dst_mac), mac(packet.src_mac));
        let kind = random.below(20);
        if kind == 0 {
            packet.ether_type = 0x806;
            return (packet, frame.ether_type(EtherType::ARP).build());
        }
        if kind < 12 {
            (packet.version, packet.ether_type) = (4, 0x800);
            let (src, dst) = (random.one(&self.v4), random.one(&self.v4));
            (packet.src, packet.dst) = (src.into(), dst.into());
            frame = frame.ip(IpAddr::V4(src.into()), IpAddr::V4(dst.into()));
        } else {
            (packet.version, packet.ether_type) = (6, 0x86dd);
            (packet.src, packet.dst) = (random.one(&self.v6), random.one(&self.v6));
            frame = frame.ip(IpAddr::V6(packet.src.into()), IpAddr::V6(packet.dst.into()));
        }
        packet.ttl = random.one(&[1, 2, 64, 255]);
        packet.dscp = random.one(&[0, 8, 46, 48, 63]);
        frame = frame.ttl(packet.ttl).tos(packet.dscp << 2);
        let is_v6 = packet.version == 6;
        packet.protocol = random.one(&[6, 6, 6, 17, 17, if is_v6 { 58 } else { 1 }, 47, 50, 2, 132]);
        packet.next_header = packet.protocol;
        if is_v6 && random.below(5) == 0 {
            packet.next_header = IpProtocol::HOP_BY_HOP.0;
            frame = frame.extension(IpProtocol::HOP_BY_HOP);
        }
        if !is_v6 && random.below(12) == 0 {
            packet.is_later_fragment = true;
            frame = frame.fragment(100, false);
        }
        packet.src_port = random.one(&self.numbers);
        packet.dst_port = random.one(&self.numbers);
        packet.tcp_flags = random.one(&[2, 2, 0xc2, 0x22, 16, 18, 1, 3, 4, 0x29, 0, 0xff]);
        packet.icmp_type = random.one(&[0, 1, 3, 8, 9, 11, 128, 129, 130, 133, 134, 135, 136, 137, 141, 143]);
        packet.icmp_code = random.one(&[0, 0, 1, 3]);
        frame = match packet.protocol {
            6 => frame.tcp(packet.src_port, packet.dst_port, packet.tcp_flags),
            17 => frame.udp(packet.src_port, packet.dst_port),
            132 => frame.sctp(packet.src_port, packet.dst_port),
            1 | 58 => frame.icmp(packet.icmp_type, packet.icmp_code),
            // The evaluator sees ports where there is no header that has them.
            other => frame.protocol(IpProtocol(other)),
        };
        (packet, frame.build())
    }
}

/// The result for one rule set.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    packets: usize,
    dropped: usize,
    /// Packets that the policy keeps although no world that was tried accepts them.
    kept: usize,
}

/// Compares a rule set with its import for some packets.
fn compare(name: &str, text: &str, options: &NftOptions, packets: usize) -> Figures {
    let listing: Value = serde_json::from_str(text).expect("JSON");
    let interface = options.interface.as_deref();
    let imported = import::nft(text, options).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
    let source = Source::new("imported.toml", imported.policy_toml.clone());
    let (policy, _) = policy::parse(&source, &NoFiles)
        .unwrap_or_else(|bad| panic!("{name}: {bad}\n{}", imported.policy_toml));
    let rules: Vec<Predicate> = policy.rules.iter().map(|rule| Predicate::of(&rule.matches)).collect();
    let (mut values, nft) = (Values::of(&listing), NftRules::read(&listing));
    values.add_own(&options.addresses);
    let device = listing["nftables"]
        .as_array()
        .expect("a list")
        .iter()
        .find_map(|one| one.pointer("/chain/dev")?.as_str());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut figures = Figures { packets, ..Figures::default() };
    for _ in 0..packets {
        let (packet, frame) = values.packet(&mut random);
        let key = DeepKey::of(&frame);
        let first = rules.iter().position(|rule| rule.matches_deep(&key));
        let action = first.map_or(policy.default, |rule| policy.rules[rule].action);
        let drops = action == Action::Drop;
        figures.dropped += usize::from(drops);
        let mut is_accepted = false;
        for _ in 0..12 {
            let state = random.one(&nft.states(&packet, options.is_syn_new));
            let is_connected = matches!(state, "established" | "related");
            let is_own = options.addresses.iter().any(|own| packet.is_to(*own));
            let is_certain = is_own && !(is_connected && nft.translates());
            let world = World {
                seed: random.next(),
                state,
                is_own,
                interface: interface.or(device).map_or_else(
                    || values.interfaces[random.below(values.interfaces.len())].clone(),
                    str::to_owned,
                ),
                is_local: match options.addresses.is_empty() {
                    true => !nft.forwards() || random.below(2) == 0,
                    false => is_certain || random.below(2) == 0,
                },
                // A flow table has TCP, UDP and GRE (net/netfilter/nf_flow_table_ip.c). An entry ends with
                // its connection, so a request is none of its packets.
                is_in_flow_table: nft.has("flow")
                    && matches!(packet.protocol, 6 | 17 | 47)
                    && (is_connected || state == "invalid")
                    && (!is_own || nft.translates())
                    && random.below(2) == 0,
                inner: (is_connected && nft.translates() && random.below(2) == 0).then(|| {
                    let dst = if packet.version == 4 {
                        random.one(&values.v4).into()
                    } else {
                        random.one(&values.v6)
                    };
                    (dst, random.one(&values.numbers))
                }),
            };
            let accepts = nft.accepts(&packet, &world);
            is_accepted |= accepts;
            assert!(
                !(drops && accepts),
                "{name} ({options:?}): rule {:?} drops {packet:x?}, which is accepted if {world:?}\n{}",
                first.map(|rule| &policy.rules[rule].name),
                imported.policy_toml
            );
        }
        figures.kept += usize::from(!drops && !is_accepted);
    }
    figures
}

fn listings(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|own| own == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn own_listings() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/listings/nft");
    let named = |path: PathBuf| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).expect("a listing"))
    };
    listings(&folder, "json").into_iter().map(named).collect()
}

/// The base chains of hook prerouting and input, by name.
fn chains_to_choose(text: &str) -> Vec<String> {
    let listing: Value = serde_json::from_str(text).expect("JSON");
    let objects = listing["nftables"].as_array().expect("a list").iter();
    let bases = objects.filter_map(|one| one.get("chain")).filter(|chain| {
        chain["family"] != "bridge" && ["prerouting", "input"].iter().any(|hook| chain["hook"] == *hook)
    });
    let word = |chain: &Value, key: &str| chain[key].as_str().expect("a word").to_owned();
    let name = |chain: &Value| ["family", "table", "name"].map(|key| word(chain, key)).join("/");
    bases.map(name).collect()
}

/// The choices about connections and addresses.
fn choices() -> [NftOptions; 3] {
    let addresses = ["198.18.0.1", "2001:db8::7"].map(|own| own.parse().expect("an address"));
    let syn_is_new = NftOptions { is_syn_new: true, ..NftOptions::default() };
    let with_addresses = NftOptions { addresses: addresses.to_vec(), ..syn_is_new.clone() };
    [NftOptions::default(), syn_is_new, with_addresses]
}

#[test]
fn imports_drop_nothing_that_their_rule_sets_accept() {
    let listings = own_listings();
    assert!(listings.len() >= 17, "{}", listings.len());
    let mut dropping = [BTreeSet::new(), BTreeSet::new(), BTreeSet::new()];
    for (name, text) in &listings {
        for interface in [None, Some("eth0"), Some("wan0")] {
            for (choice, dropping) in choices().into_iter().zip(&mut dropping) {
                let options = NftOptions { interface: interface.map(str::to_owned), ..choice };
                let figures = compare(name, text, &options, 1000);
                println!("{name} {options:?}: {figures:?}");
                if figures.dropped > 0 {
                    dropping.insert(name.as_str());
                }
            }
        }
    }
    for (name, text) in &listings {
        for chain in chains_to_choose(text) {
            for choice in choices() {
                let interface = Some("eth0".to_owned());
                compare(name, text, &NftOptions { chain: Some(chain.clone()), interface, ..choice }, 300);
            }
        }
    }
    let counts = dropping.each_ref().map(BTreeSet::len);
    println!("{counts:?} of {} rule sets drop packets", listings.len());
    // The others translate addresses of any packet, or are about other hooks.
    assert!(counts[0] >= 13 && counts[1] >= 15 && counts[2] >= 17, "{dropping:?}");
}

#[test]
fn imports_of_other_rule_sets_drop_nothing_that_these_accept() {
    let Some(folder) = std::env::var_os("STEERD_NFT_DUMPS") else {
        eprintln!("STEERD_NFT_DUMPS names no folder with dumps of nft (*.json-nft)");
        return;
    };
    let (mut all, mut sets, mut active) = (Figures::default(), 0, 0);
    for path in listings(Path::new(&folder), "json-nft") {
        let text = std::fs::read_to_string(&path).expect("a dump");
        let name = path.display().to_string();
        if import::nft(&text, &NftOptions::default()).is_err() {
            println!("{name}: refused");
            continue;
        }
        sets += 1;
        // Most of these sets accept everything, or are about other hooks.
        let strict = text.replace("\"policy\": \"accept\"", "\"policy\": \"drop\"");
        let input = ["forward", "output", "postrouting"].iter().fold(strict.clone(), |text, hook| {
            text.replace(&format!("\"hook\": \"{hook}\""), "\"hook\": \"input\"")
        });
        for text in [text, strict, input] {
            let listing: Value = serde_json::from_str(&text).expect("JSON");
            for interface in [None, Values::of(&listing).interfaces.pop()] {
                for options in choices() {
                    let options = NftOptions { interface: interface.clone(), ..options };
                    let figures = compare(&name, &text, &options, 300);
                    active += usize::from(figures.dropped > 0);
                    all.packets += figures.packets;
                    all.dropped += figures.dropped;
                    all.kept += figures.kept;
                }
            }
        }
    }
    println!(
        "{sets} rule sets, each in three forms and with six choices, {active} of whose policies drop packets: {all:?}"
    );
    assert!(sets > 0);
}
