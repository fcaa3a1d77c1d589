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

#[test]
fn a_rule_with_a_limit_is_like_no_other_rule() {
    let policy = |first: &str, second: &str| {
        let text = format!(
            "version = 1\n[groups.g]\nworkers = \"all\"\n\
             [[rules]]\nname = \"dns\"\nmatch = {{ protocol = \"udp\", dst_port = 53 }}\naction = \"steer g\"\n{first}\n\
             [[rules]]\nname = \"udp\"\nmatch = {{ protocol = \"udp\" }}\naction = \"steer g\"\n{second}\n"
        );
        policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy").0
    };
    let limit = "limit = \"1k/s\"";
    for (first, second, is_redundant) in
        [("", "", true), (limit, "", false), ("", limit, false), (limit, limit, false)]
    {
        let found = analyse(&policy(first, second), &mut |_| {});
        assert_eq!(matches!(found.rules[0].need, Need::Redundant), is_redundant, "{first}; {second}");
    }
}

#[test]
fn packets_that_leave_a_limited_rule_are_a_difference() {
    let policy = |name: &str, keys: &str| {
        let text = format!(
            "version = 1\n[groups.g]\nworkers = \"all\"\n[groups.h]\nworkers = \"all\"\nhash = \"l3\"\n\
             [[rules]]\nname = \"{name}\"\nmatch = {{ protocol = \"udp\" }}\n{keys}\n"
        );
        policy::parse(&Source::new("p.toml", text), &NoFiles).expect("a policy").0
    };
    let differs = |(one, one_keys), (other, other_keys)| {
        !analysis::diff(&policy(one, one_keys), &policy(other, other_keys), &mut |_| {}).is_empty()
    };
    let (free, sampled) = ("action = \"steer g\"", "action = \"steer g\"\nsample = 9");
    assert!(!differs(("a", free), ("b", free)), "another name alone");
    assert!(differs(("a", sampled), ("b", free)) && differs(("a", free), ("b", sampled)));
    assert!(differs(("a", sampled), ("b", sampled)), "the counts are those of a rule");
    assert!(!differs(("a", sampled), ("a", free)), "a change of the rule, not of where packets go");
    assert!(differs(("a", sampled), ("a", "action = \"steer h\"\nsample = 9")), "another group");
}
