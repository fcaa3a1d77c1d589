//! Prints the flows among the packets that a sink of kind `app` delivers: addresses, ports, protocol,
//! packets, bytes.
//!
//! `cargo run -p steerd-client --example flows -- /run/steerd/app.sock [SECONDS]`: a table every second,
//! until it is interrupted or the given time is over.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use packet::{FlowKey, IpProtocol, Layers};
use steerd_client::{Options, PacketBatch, SinkClient};

/// The most flows that are kept apart; further ones are counted together.
const FLOWS_MAX: usize = 100_000;
/// Lines of the table.
const LINES: usize = 20;
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Default)]
struct Traffic {
    packets: u64,
    bytes: u64,
}

#[derive(Default)]
struct Flows {
    by_name: HashMap<String, Traffic>,
    others: Traffic,
}

impl Flows {
    fn add(&mut self, packet: &[u8]) {
        let name = name(&FlowKey::of(packet));
        let is_new = !self.by_name.contains_key(&name);
        let traffic = if is_new && self.by_name.len() >= FLOWS_MAX {
            &mut self.others
        } else {
            self.by_name.entry(name).or_default()
        };
        traffic.packets += 1;
        traffic.bytes += packet.len() as u64;
    }

    fn print(&self, client: &SinkClient) {
        let mut flows: Vec<_> = self.by_name.iter().collect();
        flows.sort_by(|a, b| b.1.bytes.cmp(&a.1.bytes).then(a.0.cmp(b.0)));
        let counts = client.counts();
        let state = if client.is_connected() { "connected" } else { "not connected" };
        println!("{} flows, {} packets, {state}", flows.len(), counts.received);
        println!("{:>12} {:>14}  flow", "packets", "bytes");
        for (name, traffic) in flows.iter().take(LINES) {
            println!("{:>12} {:>14}  {name}", traffic.packets, traffic.bytes);
        }
        if self.others.packets > 0 {
            println!("{:>12} {:>14}  others", self.others.packets, self.others.bytes);
        }
    }
}

fn name(key: &FlowKey) -> String {
    let Some((src, dst)) = addresses(key) else {
        return format!("{} -> {} type {:#06x}", key.src_mac, key.dst_mac, key.ether_type);
    };
    if key.layers.intersects(Layers::TCP | Layers::UDP | Layers::SCTP) {
        let protocol = IpProtocol(key.protocol);
        format!("{protocol} {src} port {} -> {dst} port {}", key.src_port, key.dst_port)
    } else {
        format!("protocol {} {src} -> {dst}", key.protocol)
    }
}

fn addresses(key: &FlowKey) -> Option<(std::net::IpAddr, std::net::IpAddr)> {
    Some((key.src_addr()?, key.dst_addr()?))
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Some(path) = arguments.next().map(PathBuf::from) else {
        eprintln!("usage: flows SOCKET [SECONDS]");
        return ExitCode::FAILURE;
    };
    let seconds = arguments.next().and_then(|text| text.to_str().and_then(|text| text.parse().ok()));
    let options = Options { name: "flows".to_owned(), ..Options::default() };
    let mut client = match SinkClient::new(&path, options) {
        Ok(client) => client,
        Err(error) => {
            let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
            eprintln!("{error}{}", source.unwrap_or_default());
            return ExitCode::FAILURE;
        }
    };
    let mut flows = Flows::default();
    let mut batch = PacketBatch::new(256);
    let begun = Instant::now();
    let mut printed = begun;
    loop {
        client.receive(&mut batch, Duration::from_millis(100));
        batch.iter().for_each(|packet| flows.add(packet));
        if printed.elapsed() >= INTERVAL {
            printed = Instant::now();
            flows.print(&client);
        }
        if seconds.is_some_and(|seconds: u64| begun.elapsed().as_secs() >= seconds) {
            flows.print(&client);
            client.close("done");
            return ExitCode::SUCCESS;
        }
    }
}
