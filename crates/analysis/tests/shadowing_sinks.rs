//! Rules of one group with other sinks do different things.

use analysis::{Need, Reach, analyse};
use policy::{NoFiles, Source};

#[test]
fn a_rule_with_sinks_of_its_own_is_not_redundant() {
    let policy = |sinks: &str| {
        let text = format!(
            "version = 1\n[sinks.a]\nkind = \"count\"\n[sinks.b]\nkind = \"count\"\n[groups.g]\nworkers = \"all\"\nsinks = [\"a\"]\n\
             [[rules]]\nname = \"dns\"\nmatch = {{ protocol = \"udp\", dst_port = 53 }}\naction = \"steer g\"\n{sinks}\n\
             [[rules]]\nname = \"udp\"\nmatch = {{ protocol = \"udp\" }}\naction = \"steer g\"\n"
        );
        policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy").0
    };
    let need = |sinks: &str| {
        let found = analyse(&policy(sinks), &mut |_| {});
        assert!(matches!(found.rules[0].reach, Reach::Reached(_)));
        found.rules[0].need.clone()
    };
    assert!(matches!(need(""), Need::Redundant));
    assert!(matches!(need("sinks = [\"a\"]"), Need::Redundant), "the same as the group's");
    assert!(matches!(need("sinks = [\"b\"]"), Need::Needed(_)));
}
