//! The steps of a packet's path, measured separately: parsing, hashing, resolving a class in software.
#![forbid(unsafe_code)]

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use device_model::DeviceModel;
use packet::build::FrameBuilder;
use packet::{EtherType, Field, FlowKey, HashFields, RssKey, Toeplitz};
use policy::{NoFiles, Source};
use program::{Addresses, Class, Decide, Match, Outcome, Predicate, RangeSet, RuleId, Step, Verdict};

fn frames() -> [(&'static str, Vec<u8>); 2] {
    let v4 = FrameBuilder::new()
        .ipv4([10, 0, 0, 1].into(), [192, 0, 2, 53].into())
        .udp(40_000, 53)
        .frame_bytes(64);
    let v6 = FrameBuilder::new()
        .vlan(EtherType::VLAN, 42)
        .ipv6("2001:db8::1".parse().expect("v6"), "2001:db8::53".parse().expect("v6"))
        .tcp(40_000, 443, 2)
        .frame_bytes(128);
    [("IPv4 UDP", v4.build()), ("VLAN IPv6 TCP", v6.build())]
}

fn parse(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parse");
    for (name, frame) in frames() {
        group.bench_function(name, |bencher| bencher.iter(|| packet::parse(black_box(&frame))));
    }
}

fn toeplitz(criterion: &mut Criterion) {
    let toeplitz = Toeplitz::new(&RssKey::MICROSOFT);
    let mut group = criterion.benchmark_group("toeplitz");
    for (name, frame) in frames() {
        let key = FlowKey::of(&frame);
        group.bench_function(name, |bencher| {
            bencher.iter(|| toeplitz.hash_key(black_box(&key), HashFields::all()));
        });
    }
}

fn resolve(criterion: &mut Criterion) {
    let text = "version = 1\n[groups.every]\nworkers = 'all'\n\
        [[rules]]\nname = 'syn'\nmatch = { protocol = 'tcp', dst_port = 443, tcp_flags = 'syn,!ack' }\naction = { steer = 'every' }\n\
        [[rules]]\nname = 'web'\nmatch = { protocol = 'tcp', dst_port = 443 }\naction = { steer = 'every' }\n";
    let (policy, _) = policy::parse(&Source::new("bench.toml", text), &NoFiles).expect("a policy");
    let program = compiler::compile(&policy, &DeviceModel::ideal(), 2).expect("a program");
    let class = program.classes.iter().flatten().find(|class| !class.is_exact()).expect("a hybrid class");
    let [_, (_, frame)] = frames();
    let key = FlowKey::of(&frame);
    criterion
        .bench_function("resolve a hybrid class", |bencher| bencher.iter(|| class.resolve(black_box(&key))));
}

/// A class of many rules behind one flow, each with one of three fields, and packets that match one of the
/// last, or none.
fn resolve_many(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("resolve a class of rules");
    for count in [10u32, 100, 1000, 10_000] {
        let class = many(count);
        let key = |port: u32, source: u32| {
            let frame =
                FrameBuilder::new().ipv4(source.into(), [192, 0, 2, 53].into()).tcp(40_000, port as u16, 2);
            FlowKey::of(&frame.frame_bytes(64).build())
        };
        let last = count - 1 - (count - 1) % 3;
        let keys = [("the last", key(1000 + last, 1)), ("none", key(9, 1))];
        for (which, key) in keys {
            group.bench_function(format!("{count}, {which} matches, in turn"), |bencher| {
                bencher.iter(|| class.resolve(black_box(&key)));
            });
            group.bench_function(format!("{count}, {which} matches, by the index"), |bencher| {
                bencher.iter(|| class.resolve_by_index(black_box(&key)));
            });
        }
        group.bench_function(format!("{count}, making the index"), |bencher| {
            // A new list each time: an index is made once for each list.
            bencher.iter_batched(
                || many(count),
                |class| black_box(&class).make_index(),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

fn many(count: u32) -> Class {
    let outcome = |number| Outcome { rule: RuleId(number), verdict: Verdict::Drop };
    let step = |number: u32| {
        let mut matches = Match::default();
        matches.set(Field::TcpFlags, RangeSet::single(2));
        match number % 3 {
            0 => matches.set(Field::DstPort, RangeSet::single(1000 + number)),
            1 => {
                let network = RangeSet::of(vec![(number << 8, (number << 8) + 255)]);
                matches.src = Some(Addresses { v4: network, ..Addresses::default() });
            }
            _ => {
                matches.set(Field::DstPort, RangeSet::of(vec![(1000, 2000)]));
                matches.dst = Some(Addresses { v4: RangeSet::single(number << 8), ..Addresses::default() });
            }
        }
        Step { rule: RuleId(number), predicate: Predicate::of(&matches), outcome: outcome(number) }
    };
    Class {
        rule: RuleId(0),
        decide: Decide::Software((0..count).map(step).collect::<Vec<Step>>().into(), outcome(count)),
    }
}

criterion_group!(blocks, parse, toeplitz, resolve, resolve_many);
criterion_main!(blocks);
