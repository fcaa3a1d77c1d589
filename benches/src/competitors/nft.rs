//! `nft -f` with the same rules: as a chain, or as a verdict map of concatenated intervals with the other
//! rules in a chain after it.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::namespace;
use crate::rules::{Filter, Ports, Rule, Verdict};

use super::{TIMEOUT_S, run};

/// A network namespace, kept by a process that sleeps in it.
pub struct Namespace {
    holder: Child,
}

impl Namespace {
    /// Creates a namespace.
    ///
    /// # Errors
    /// `unshare` or `nft` is missing, or the user may not create namespaces.
    pub fn new() -> Result<Self, String> {
        let mut unshare = Command::new("unshare");
        let holder = unshare.args(["--net", "sleep", "infinity"]).stdin(Stdio::null()).stderr(Stdio::null());
        let holder = holder.spawn().map_err(|error| format!("unshare: {error}"))?;
        let namespace = Self { holder };
        let own = std::fs::read_link("/proc/self/ns/net").map_err(|error| error.to_string())?;
        let theirs = format!("/proc/{}/ns/net", namespace.holder.id());
        // `unshare` enters the namespace before it executes `sleep`; without the permission it ends.
        for _ in 0..200 {
            match std::fs::read_link(&theirs) {
                Ok(link) if link != own => {
                    return run(&mut namespace.nft(&["--version"])).map(|_| namespace);
                }
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        Err("no permission to create a network namespace".to_owned())
    }

    /// The time to load a file into an empty ruleset.
    ///
    /// # Errors
    /// The message of `nft`.
    pub fn load(&self, file: &Path) -> Result<Duration, String> {
        run(&mut self.nft(&["flush", "ruleset"]))?;
        let started = Instant::now();
        run(self.nft(&["-f"]).arg(file))?;
        Ok(started.elapsed())
    }

    /// The time to change the ruleset by a file.
    ///
    /// # Errors
    /// As [`Namespace::load`].
    pub fn change(&self, file: &Path) -> Result<Duration, String> {
        let started = Instant::now();
        run(self.nft(&["-f"]).arg(file))?;
        Ok(started.elapsed())
    }

    fn nft(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        let holder = self.holder.id().to_string();
        command.args(["--net", "--target", &holder, "timeout", TIMEOUT_S, "nft"]).args(arguments);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        _ = self.holder.kill();
        _ = self.holder.wait();
    }
}

const HEAD: &str = "table ip bench {\n";
const CHAIN: &str = "chain classify {\ntype filter hook prerouting priority 0; policy accept;\n";

/// One rule per filter, in their order.
#[must_use]
pub fn linear(rules: &[Rule]) -> String {
    let mut text = format!("{HEAD}{CHAIN}");
    for rule in rules {
        line(&mut text, rule);
    }
    text + "}\n}\n"
}

/// One rule per filter, in their order, for the packets of an interface before the kernel's network stack.
#[must_use]
pub fn ingress(rules: &[Rule], interface: &str) -> String {
    let mut text = format!(
        "flush ruleset\ntable netdev bench {{\nchain classify {{\n\
         type filter hook ingress device \"{interface}\" priority 0; policy accept;\n"
    );
    for rule in rules {
        line(&mut text, rule);
    }
    text + "}\n}\n"
}

/// Loads a file into the namespace of this process, which must have one of its own.
///
/// # Errors
/// The message of `nft`, or that this is the machine's namespace.
pub fn load_here(file: &Path) -> Result<(), String> {
    namespace::entered()?;
    run(Command::new("nft").arg("-f").arg(file)).map(|_| ())
}

/// A verdict map of the filters that share no packet with an earlier one and may therefore be evaluated
/// first, and the others as rules after it. Returns how many are in the map, too.
#[must_use]
pub fn mapped(rules: &[Rule]) -> (String, usize) {
    let (mut elements, mut rest) = (Vec::new(), String::new());
    for (index, rule) in rules.iter().enumerate() {
        let filter = &rule.filter;
        let fits = filter.tcp_flags().is_none() && filter.protocol.is_some();
        if fits && !rules[..index].iter().any(|earlier| earlier.filter.overlaps(filter)) {
            elements.push(element(rule));
        } else {
            line(&mut rest, rule);
        }
    }
    let mut text = HEAD.to_owned();
    if !elements.is_empty() {
        text.push_str("map verdicts {\ntype ipv4_addr . ipv4_addr . inet_proto . inet_service . inet_service : verdict\nflags interval\nelements = {\n");
        text.push_str(&elements.join(",\n"));
        text.push_str("}\n}\n");
    }
    text.push_str("chain a { meta mark set 1 accept\n}\nchain b { meta mark set 2 accept\n}\n");
    text.push_str(CHAIN);
    if !elements.is_empty() {
        text.push_str("ip saddr . ip daddr . meta l4proto . th sport . th dport vmap @verdicts\n");
    }
    (text + &rest + "}\n}\n", elements.len())
}

fn element(Rule { filter, verdict }: &Rule) -> String {
    let ports = |(low, high): Ports| if low == high { low.to_string() } else { format!("{low}-{high}") };
    let verdict = match verdict {
        Verdict::Drop => "drop",
        Verdict::Steer(0) => "goto a",
        Verdict::Steer(_) => "goto b",
    };
    let Filter { src, dst, src_port, dst_port, .. } = *filter;
    let protocol = filter.protocol.unwrap_or_default();
    let (src, dst) = (prefix(src), prefix(dst));
    format!("{src} . {dst} . {protocol} . {} . {} : {verdict}", ports(src_port), ports(dst_port))
}

fn line(text: &mut String, Rule { filter, verdict }: &Rule) {
    let mut word = |word: std::fmt::Arguments<'_>| text.write_fmt(word).expect("writing to a String");
    for (key, of) in [("saddr", filter.src), ("daddr", filter.dst)] {
        if of.1 > 0 {
            word(format_args!("ip {key} {} ", prefix(of)));
        }
    }
    let ports = filter.required_ports();
    match filter.protocol {
        Some(protocol) => word(format_args!("meta l4proto {protocol} ")),
        None if ports.iter().any(Option::is_some) => word(format_args!("meta l4proto {{ tcp, udp }} ")),
        None => {}
    }
    for (key, ports) in ["sport", "dport"].into_iter().zip(ports) {
        match ports {
            Some((low, high)) if low == high => word(format_args!("th {key} {low} ")),
            Some((low, high)) => word(format_args!("th {key} {low}-{high} ")),
            None => {}
        }
    }
    if let Some((value, mask)) = filter.tcp_flags() {
        word(format_args!("tcp flags & {mask:#04x} == {value:#04x} "));
    }
    match verdict {
        Verdict::Drop => word(format_args!("drop\n")),
        Verdict::Steer(group) => word(format_args!("meta mark set {} accept\n", group + 1)),
    }
}

fn prefix((address, length): (u32, u32)) -> String {
    format!("{}/{length}", Ipv4Addr::from(address))
}
