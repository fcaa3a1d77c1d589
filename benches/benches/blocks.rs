//! The steps of a packet's path, measured separately: parsing, hashing, resolving a class in software.
#![forbid(unsafe_code)]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use device_model::DeviceProfile;
use packet::build::FrameBuilder;
use packet::{EtherType, FlowKey, HashFields, RssKey, Toeplitz};
use policy::{NoFiles, Source};

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
    let program = compiler::compile(&policy, &DeviceProfile::ideal(), 2).expect("a program");
    let class = program.classes.iter().flatten().find(|class| !class.is_exact()).expect("a hybrid class");
    let [_, (_, frame)] = frames();
    let key = FlowKey::of(&frame);
    criterion
        .bench_function("resolve a hybrid class", |bencher| bencher.iter(|| class.resolve(black_box(&key))));
}

criterion_group!(blocks, parse, toeplitz, resolve);
criterion_main!(blocks);
