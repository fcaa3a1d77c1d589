//! The time of reading a policy in relation to its size. The limits allow for an unoptimised build on a busy
//! machine; a release build (`cargo test --release -p policy --test it -- speed:: --nocapture`) prints its
//! times.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use policy::{NoFiles, SetLoader, Source};

/// The shortest time of a few runs, to exclude other load of the machine.
fn best(mut run: impl FnMut()) -> Duration {
    (0..5)
        .map(|_| {
            let started = test_support::CpuTime::now();
            run();
            started.elapsed()
        })
        .min()
        .expect("five runs")
}

fn parse(text: &str, files: &dyn SetLoader) -> policy::Policy {
    match policy::parse(&Source::new("speed.toml", text), files) {
        Ok((policy, _)) => policy,
        Err(problems) => panic!("{problems}"),
    }
}

fn rules(count: usize) -> String {
    let mut text = "version = 1\n[groups.g]\nworkers = \"all\"\n".to_owned();
    for index in 0..count {
        let (a, b) = (index / 256 % 256, index % 256);
        write!(
            text,
            "[[rules]]\nname = \"r{index}\"\nmatch = {{ family = \"ipv4\", src = \"10.{a}.{b}.0/24\", dst = \"192.0.2.{b}\", \
             protocol = \"tcp\", src_port = \"1024-65535\", dst_port = {} }}\naction = {{ steer = \"g\" }}\n",
            index % 65536,
        )
        .expect("strings take text");
    }
    text
}

/// Ten times the rules take about ten times as long.
#[test]
fn loading_time_is_linear_in_rules() {
    let time = |count: usize| {
        let text = rules(count);
        best(|| assert_eq!(parse(&text, &NoFiles).rules.len(), count))
    };
    let (few, many) = (time(1000), time(10_000));
    println!("parse: 1000 rules {few:?}, 10000 rules {many:?}");
    assert!(many < 30 * few + Duration::from_millis(100), "1000 rules {few:?}, 10000 rules {many:?}");
    assert!(many < Duration::from_secs(5), "{many:?}");
}

#[test]
fn a_large_set_file_is_read_at_once() {
    let mut blocked = String::new();
    for index in 0..100_000u32 {
        // Odd addresses, so that no two of them merge.
        let address = std::net::Ipv4Addr::from(0x0a00_0000 | index.wrapping_mul(0x9e37) << 1 & 0xff_ffff);
        writeln!(blocked, "{address}").expect("strings take text");
    }
    let files = BTreeMap::from([("blocked.txt".to_owned(), blocked)]);
    let text = "version = 1\n[sets]\nblocked = { file = \"blocked.txt\" }\n[[rules]]\nname = \"x\"\nmatch = { src = \"blocked\" }\naction = \"drop\"\n";
    let mut kept = 0;
    let time = best(|| {
        let policy = parse(text, &files);
        kept = policy.rules[0].matches.src.as_ref().map_or(0, |set| set.v4.ranges().len());
    });
    println!("parse: a set file of 100000 entries, {kept} ranges: {time:?}");
    assert!(kept > 50_000, "{kept}");
    assert!(time < Duration::from_secs(3), "{time:?}");
}
