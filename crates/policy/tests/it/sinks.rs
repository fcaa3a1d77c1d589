//! `[sinks]`: which sinks a group and a rule have, and what is refused.

use policy::{NoFiles, Policy, Source};
use program::{KernelSink, SinkKind, TapMac};

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
fn a_forward_sink_has_its_options() {
    use program::{ForwardMode, ForwardSink, SinkKind, VlanChange};
    let forward = |options: &str| {
        let policy = read(&format!("[sinks.a]\nkind = \"forward\"\n{options}")).expect(options);
        match policy.sinks[0].sink.kind.clone() {
            SinkKind::Forward(forward) => forward,
            other => panic!("{other:?}"),
        }
    };
    let to_2 = ForwardSink { port: Some(2), ..ForwardSink::default() };
    assert_eq!(forward("port = 2"), to_2);
    let other = ForwardSink { device: Some("mlx5_1".to_owned()), ..to_2.clone() };
    assert_eq!(forward("device = \"mlx5_1\"\nport = 2"), other);
    for (vlan, change) in [
        ("{ set = 7 }", VlanChange::Set(7)),
        ("{ push = 4095 }", VlanChange::Push(4095)),
        ("{ pop = true }", VlanChange::Pop),
    ] {
        let wanted = ForwardSink { vlan: Some(change), swap_macs: true, ..to_2.clone() };
        assert_eq!(forward(&format!("port = 2\nmac = \"swap\"\nvlan = {vlan}")), wanted);
    }
    let reflect = ForwardSink { mode: ForwardMode::Reflect, ..ForwardSink::default() };
    assert_eq!(forward("mode = \"reflect\""), reflect);
}

#[test]
fn mistakes_of_a_forward_sink_are_named_with_a_remedy() {
    for (options, expected) in [
        ("", "the sink has no `port`"),
        ("port = 0", "`port`"),
        ("device = \"mlx5_1\"", "the sink has no `port`"),
        ("device = \"\"\nport = 1", "`device` is empty"),
        ("port = 1\nmode = \"mirror\"", "write \"forward\" or \"reflect\""),
        ("port = 1\nmac = \"keep\"", "write \"swap\""),
        ("mode = \"reflect\"\nmac = \"swap\"", "remove `mac`"),
        ("port = 1\nsrc_mac = \"01:00:5e:00:00:01\"", "the address of a group"),
        ("port = 1\nvlan = 5", "`vlan`"),
        ("port = 1\nvlan = {}", "`vlan` needs one change"),
        ("port = 1\nvlan = { set = 1, push = 2 }", "`vlan` needs one change"),
        ("port = 1\nvlan = { pop = false }", "`pop` must be true"),
        ("port = 1\nvlan = { push = 4096 }", "`push`"),
        ("port = 1\nvlan = { psuh = 1 }", "did you mean `push`?"),
    ] {
        let errors = read(&format!("[sinks.a]\nkind = \"forward\"\n{options}\n")).expect_err(options);
        assert!(errors.contains(expected), "{options}\n{errors}");
    }
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

fn app(options: &str) -> Result<program::AppSink, String> {
    let policy = read(&format!("[sinks.a]\nkind = \"app\"\n{options}\n"))?;
    match &policy.sinks[0].sink.kind {
        program::SinkKind::App(sink) => Ok(sink.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn options_of_an_app_sink_have_defaults() {
    let plain = app("socket = \"/run/a.sock\"").expect("valid");
    assert_eq!(plain, program::AppSink::new("/run/a.sock".into()));
    assert_eq!((plain.mode, plain.socket_mode), (program::AppMode::Copy, 0o600));
    let shared =
        app("socket = \"/run/a.sock\"\nmode = \"share\"\nuids = [1000]\nring_size = 512").expect("valid");
    assert_eq!((shared.mode, shared.socket_mode, shared.ring_size), (program::AppMode::Share, 0o666, 512));
    let closed = app("socket = \"/run/a.sock\"\ngids = [44]\nsocket_mode = \"0660\"").expect("valid");
    assert_eq!((closed.gids, closed.socket_mode), (vec![44], 0o660));
    assert_eq!((plain.transmit, plain.port), (false, None));
    let sends = app("socket = \"/run/a.sock\"\ntransmit = true\nport = 2").expect("valid");
    assert_eq!((sends.transmit, sends.port), (true, Some(2)));
}

#[test]
fn options_of_an_app_sink_are_checked() {
    for (options, expected) in [
        ("", "the sink has no `socket`"),
        ("socket = \"a.sock\"", "not an absolute path"),
        (&format!("socket = \"/{}\"", "a".repeat(107)), "longer than 107 bytes"),
        ("socket = \"/a\\u0000b\"", "a zero byte"),
        ("socket = \"/a\"\nmode = \"both\"", "must be one of copy, share"),
        ("socket = \"/a\"\nclients = 65", "`clients` is out of range"),
        ("socket = \"/a\"\nrings = 0", "`rings` is out of range"),
        ("socket = \"/a\"\nring_size = 1000", "write 1024"),
        ("socket = \"/a\"\nring_size = 32768", "`ring_size` is out of range"),
        ("socket = \"/a\"\nclient_mib = 5000", "`client_mib` is out of range"),
        ("socket = \"/a\"\nuids = [-1]", "a number of `uids` is out of range"),
        ("socket = \"/a\"\nuids = \"root\"", "`uids` must be"),
        ("socket = \"/a\"\ntransmit = 1", "`transmit` must be"),
        ("socket = \"/a\"\ntransmit = true\nport = 0", "`port` is out of range"),
        ("socket = \"/a\"\nport = 1", "add transmit = true, or remove `port`"),
        ("socket = \"/a\"\ntransmit = false\nport = 1", "`port` without transmit = true"),
        ("socket = \"/a\"\nsocket_mode = \"rw\"", "not a number of permissions"),
        ("socket = \"/a\"\nsocket_mode = \"1777\"", "not a number of permissions"),
        ("socket = \"/a\"\nsocket_mode = \"+666\"", "not a number of permissions"),
    ] {
        let error = app(options).expect_err(options);
        assert!(error.contains(expected), "{options}: {error}");
    }
    let two = "[sinks.a]\nkind = \"app\"\nsocket = \"/a\"\n[sinks.b]\nkind = \"app\"\nsocket = \"/a\"\n";
    assert!(read(two).expect_err("one socket").contains("the sinks `a` and `b` have the same socket"));
}

#[test]
fn a_kernel_sink_has_an_interface_and_options() {
    let kernel = |options: &str| {
        let text = format!("[sinks.a]\nkind = \"kernel\"\ninterface = \"host0\"\n{options}");
        read(&text).map(|policy| policy.sinks[0].sink.kind.clone())
    };
    assert_eq!(kernel(""), Ok(SinkKind::Kernel(KernelSink::new("host0"))));
    let all = "mac = \"02:00:00:00:00:01\"\nmtu = 9000\ntransmit = false\nport = 2\nring_bytes = 131072\n";
    let expected = KernelSink {
        mac: TapMac::Address("02:00:00:00:00:01".parse().expect("an address")),
        mtu: Some(9000),
        transmit: false,
        port: Some(2),
        ring_bytes: 131_072,
        ..KernelSink::new("host0")
    };
    assert_eq!(kernel(all), Ok(SinkKind::Kernel(expected)));
    let keep = KernelSink { mac: TapMac::Keep, ..KernelSink::new("host0") };
    assert_eq!(kernel("mac = \"keep\""), Ok(SinkKind::Kernel(keep)));

    for (options, expected) in [
        ("mac = \"prot\"", "`mac` is not a MAC address"),
        ("mac = \"01:00:5e:00:00:01\"", "`mac` is not the address of one station"),
        ("mac = \"00:00:00:00:00:00\"", "`mac` is not the address of one station"),
        ("mtu = 67", "`mtu`"),
        ("mtu = 65522", "`mtu`"),
        ("transmit = 1", "`transmit`"),
        ("port = 0", "`port`"),
        ("ring_bytes = 1", "`ring_bytes`"),
        ("queue = 1", "unknown key `queue`"),
    ] {
        let errors = kernel(options).expect_err(options);
        assert!(errors.contains(expected), "{options}\n{errors}");
    }
    for name in ["a name", "host0123456789ab", "a/b", "tap%d", "..", "h:0", "h\u{e9}"] {
        let errors =
            read(&format!("[sinks.a]\nkind = \"kernel\"\ninterface = \"{name}\"\n")).expect_err(name);
        assert!(errors.contains("cannot be the name of a network interface"), "{errors}");
    }
}

#[test]
fn a_sink_with_a_mistake_is_not_reported_again_where_it_is_used() {
    let errors =
        read("[sinks.a]\nkind = \"x\"\n[groups.g]\nworkers = \"all\"\nsinks = [\"a\"]\n").expect_err("x");
    assert!(!errors.contains("unknown sink"), "{errors}");
}
