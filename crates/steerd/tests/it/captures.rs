//! Real captures through pcap wire, engine, libibverbs, flows and workers. The workers' counts are compared
//! with those of tshark and libpcap; the worker of each packet with `explain` and with independently computed
//! RSS hashes.

mod chain;
pub(crate) mod corpus;
pub(crate) mod expressions;

use std::fmt::Write as _;

use chain::{Chain, compile};
use expressions::{TUNNELS, expression};
use packet::{FlowKey, Layers};
use program::{ClassId, Verdict, WorkerId};
use worker::Disposition;

const WORKERS: u32 = 8;

/// A policy of one rule; unmatched packets are left to the kernel.
fn single(expression: &str, action: &str) -> String {
    format!(
        "version = 1\ndefault = 'kernel'\n[groups.every]\nworkers = 'all'\nkey = 'microsoft'\ntable_size = 128\n\
         [[rules]]\nname = 'rule'\nmatch = {{ {expression} }}\naction = {action}\n"
    )
}

/// All rules that the language can express, in the order of RULES.tsv but the catch-all last. They overlap
/// much.
fn composite(rules: &[String]) -> String {
    let mut text = "version = 1\ndefault = 'drop'\n[groups.spread]\nworkers = 'all'\nkey = 'microsoft'\n\
         [groups.few]\nworkers = [1, 2, 5]\nsymmetric = true\n[groups.alone]\nworkers = [7]\nhash = 'none'\n"
        .to_owned();
    let specific = rules.iter().filter(|rule| *rule != "all" && expression(rule).is_ok());
    for (index, rule) in specific.rev().enumerate() {
        let action =
            ["{ steer = 'spread' }", "'drop'", "{ steer = 'few' }", "{ steer = 'alone' }"][index % 4];
        let matches = expression(rule).expect("filtered");
        writeln!(text, "[[rules]]\nname = '{rule}'\nmatch = {{ {matches} }}\naction = {action}")
            .expect("a String");
    }
    text
}

#[test]
fn every_rule_counts_what_independent_tools_counted() {
    let Some(folder) = corpus::folder() else { return };
    let (captures, expected) = (corpus::captures(&folder), corpus::expected(&folder));
    let mut unsaid = Vec::new();
    for rule in corpus::rules(&folder) {
        let matches = match expression(&rule) {
            Ok(matches) => matches,
            Err(reason) => {
                println!("not expressible: {rule}: {reason}");
                unsaid.push(rule);
                continue;
            }
        };
        let steer = compile(&single(matches, "{ steer = 'every' }"), 2);
        for capture in &captures {
            let file = corpus::name(capture);
            let (tshark, libpcap) = expected.get(&(file.into(), rule.clone())).copied().unwrap_or_default();
            let mut chain = Chain::new(capture, &steer, 2);
            chain.all();
            let delivered =
                |worker: &worker::WorkerSnapshot| worker.rule("rule", Disposition::Delivered).packets;
            let counted: u64 = chain.snapshots().iter().map(delivered).sum();
            assert_eq!(counted, tshark, "{rule} in {file}, as tshark counts");
            // The two tools differ only on malformed headers, where steerd parses as strictly as tshark.
            let malformed = ["tcpdump__ipv4_invalid_hdr_length.pcap", "tcpdump__ipv6-bad-version.pcap"];
            assert!(tshark == libpcap || malformed.contains(&file), "{rule} in {file}: {tshark}, {libpcap}");
        }
    }
    assert_eq!(unsaid, TUNNELS, "what the language cannot say is known");
}

#[test]
fn a_dropping_rule_counts_the_same_in_the_device() {
    let Some(folder) = corpus::folder() else { return };
    let expected = corpus::expected(&folder);
    for rule in ["et_ipv4", "v4_udp", "v4_tcp_dp_1024plus", "v6_nh_tcp", "vlan_ipv4", "v4_frag_later"] {
        let program = compile(&single(expression(rule).expect("it can be said"), "'drop'"), 2);
        for capture in corpus::captures(&folder) {
            let file = corpus::name(&capture);
            let (tshark, _) = expected.get(&(file.into(), rule.into())).copied().unwrap_or_default();
            let mut chain = Chain::new(&capture, &program, 2);
            chain.all();
            let dropped = |worker: &worker::WorkerSnapshot| worker.rule("rule", Disposition::Dropped).packets;
            let in_software: u64 = chain.snapshots().iter().map(dropped).sum();
            assert_eq!(chain.dropped("rule") + in_software, tshark, "{rule} in {file}");
        }
    }
}

#[test]
fn explain_names_the_worker_of_every_packet() {
    let Some(folder) = corpus::folder() else { return };
    let program = compile(&composite(&corpus::rules(&folder)), WORKERS as usize);
    let mut delivered = 0;
    for capture in corpus::captures(&folder) {
        let file = corpus::name(&capture);
        let mut chain = Chain::new(&capture, &program, WORKERS);
        for (number, packet) in corpus::packets(&capture).iter().enumerate() {
            let place = format!("packet {} of {file}", number + 1);
            let explained = program.explain(&FlowKey::of(packet));
            let seen = chain.one();
            assert_eq!(seen.as_ref().map(|seen| seen.worker), explained.worker, "{place}: {explained:?}");
            let Some(seen) = seen else {
                assert_ne!(explained.outcome.verdict, Verdict::Kernel, "{place}: the default drops");
                continue;
            };
            delivered += 1;
            assert_eq!(ClassId::of_tag(seen.tag), explained.class, "{place}");
            assert_eq!(seen.outcome, explained.outcome, "{place}");
            assert_eq!(&seen.bytes, packet, "{place}: the bytes themselves");
            let queue = &program.queues[explained.queue.expect("it was delivered").index()];
            let entry = explained.table_index.expect("it was delivered");
            assert_eq!(queue.table[entry], seen.worker, "{place}: by its queue's table");
        }
        chain.check_accounting();
        assert_eq!(chain.port().unmatched, 0, "{file}: nothing is left to the kernel under default = 'drop'");
    }
    assert!(delivered > 500, "only {delivered} packets were delivered");
}

#[test]
fn queues_agree_with_independent_hashes() {
    let Some(folder) = corpus::folder() else { return };
    let program = compile(&single("any = true", "{ steer = 'every' }"), WORKERS as usize);
    let flows = corpus::flows(&folder);
    let mut agreed = vec![0; flows.len()];
    for capture in corpus::captures(&folder) {
        let file = corpus::name(&capture);
        let mut chain = Chain::new(&capture, &program, WORKERS);
        for packet in corpus::packets(&capture) {
            let key = FlowKey::of(&packet);
            let seen = chain.one().expect("every packet is steered");
            // Fragments and packets with IPv4 options are hashed by addresses only, and listed without ports.
            let portless = Layers::FRAGMENT | Layers::IP_OPTIONS;
            let transport =
                key.layers.intersects(Layers::TCP | Layers::UDP) && !key.layers.intersects(portless);
            let ports = transport.then_some((key.src_port, key.dst_port));
            let matching = flows.iter().position(|flow| {
                flow.file == file
                    && !key.layers.contains(Layers::VLAN)
                    && key.src_addr() == Some(flow.src)
                    && key.dst_addr() == Some(flow.dst)
                    && key.protocol == flow.protocol
                    && flow.ports == ports
            });
            let Some(index) = matching else { continue };
            // A table of 128 entries over eight workers, filled i % 8.
            assert_eq!(seen.worker, WorkerId(flows[index].hash % WORKERS), "{file}: {key:?}");
            agreed[index] += 1;
        }
    }
    let met = agreed.iter().filter(|&&packets| packets > 0).count();
    println!("{met} of {} flows met, {} packets", flows.len(), agreed.iter().sum::<u32>());
    assert!(met * 10 >= flows.len() * 9, "only {met} of {} flows were found in the captures", flows.len());
}
