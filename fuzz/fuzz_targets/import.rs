//! Importing any text as ClassBench, ethtool or nftables listing gives a policy that parses, within a bounded
//! time.
#![no_main]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use policy::import::{self, NftOptions};
use policy::{NoFiles, Source};

/// The time limit for a text of the fuzzer's size, with sanitizers and on a busy machine.
const TEXT_TIME: Duration = Duration::from_secs(5);

fuzz_target!(|text: &str| {
    let started = Instant::now();
    let addresses = vec![IpAddr::from([192, 0, 2, 1]), IpAddr::from(1_u128.to_be_bytes())];
    let choices = NftOptions { addresses, is_syn_new: true, ..NftOptions::default() };
    let nft = [NftOptions::default(), choices].map(|options| import::nft(text, &options));
    for imported in [import::ethtool(text), import::classbench(text)].into_iter().chain(nft).flatten() {
        let source = Source::new("imported.toml", imported.policy_toml);
        assert!(policy::parse(&source, &NoFiles).is_ok(), "{source:?}");
    }
    assert!(started.elapsed() < TEXT_TIME, "{:?}", started.elapsed());
});
