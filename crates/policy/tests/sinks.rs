//! `[sinks]`: which sinks a group and a rule have, and what is refused.

use policy::{NoFiles, Policy, Source};

fn read(text: &str) -> Result<Policy, String> {
    let text = format!("version = 1\n{text}");
    policy::parse(&Source::new("p.toml", text), &NoFiles)
        .map(|(policy, _)| policy)
        .map_err(|errors| errors.to_string())
}

const COUNT: &str = "[sinks.a]\nkind = \"count\"\n[sinks.b]\nkind = \"count\"\n";

fn rule(rest: &str) -> String {
    format!("[[rules]]\nname = \"r\"\nmatch = {{ any = true }}\n{rest}\n")
}

#[test]
fn groups_and_rules_name_sinks() {
    let group = "[groups.g]\nworkers = \"all\"\nsinks = [\"b\", \"a\"]\n";
    let policy =
        read(&format!("{COUNT}{group}{}", rule("action = \"steer g\"\nsinks = \"a\""))).expect("valid");
    let names = |ids: &[program::SinkId]| -> Vec<&str> {
        ids.iter().map(|id| policy.sinks[id.index()].sink.name.as_str()).collect()
    };
    assert_eq!(names(&policy.groups[0].sinks), ["b", "a"]);
    assert_eq!(policy.rules[0].sinks.as_deref().map(names), Some(vec!["a"]));
}

#[test]
fn mistakes_are_named_with_a_remedy() {
    let group = |sinks: &str| format!("{COUNT}[groups.g]\nworkers = \"all\"\nsinks = {sinks}\n");
    let cases = [
        (group("[\"c\"]"), "unknown sink `c`"),
        (group("[\"a\", \"a\"]"), "the sink `a` is named twice"),
        ("[sinks.a]\n".to_owned(), "the sink has no `kind`"),
        ("[sinks.a]\nkind = \"cuont\"\n".to_owned(), "did you mean `count`?"),
        ("[sinks.a]\nkind = \"kernel\"\n".to_owned(), "the sink has no `interface`"),
        ("[sinks.a]\nkind = \"kernel\"\ninterface = \"\"\n".to_owned(), "`interface` is empty"),
        (
            "[sinks.a]\nkind = \"kernel\"\ninterface = \"x\"\n[sinks.b]\nkind = \"kernel\"\ninterface = \"y\"\n"
                .to_owned(),
            "there are two sinks of kind `kernel`",
        ),
        (
            "[sinks.a]\nkind = \"forward\"\nport = 1\n[sinks.b]\nkind = \"forward\"\nport = 2\n[groups.g]\nworkers = \"all\"\nsinks = [\"a\", \"b\"]\n"
                .to_owned(),
            "there are two sinks of kind `forward`",
        ),
        (
            "[sinks.a]\nkind = \"forward\"\nport = 1\nsrc_mac = \"zz\"\n".to_owned(),
            "`src_mac` is not a MAC address",
        ),
        (format!("{COUNT}{}", rule("action = \"drop\"\nsinks = \"a\"")), "the rule delivers no packets"),
    ];
    for (text, expected) in cases {
        let errors = read(&text).expect_err(&text);
        assert!(errors.contains(expected), "{text}\n{errors}");
    }
}

#[test]
fn a_sink_with_a_mistake_is_not_reported_again_where_it_is_used() {
    let errors =
        read("[sinks.a]\nkind = \"x\"\n[groups.g]\nworkers = \"all\"\nsinks = [\"a\"]\n").expect_err("x");
    assert!(!errors.contains("unknown sink"), "{errors}");
}
