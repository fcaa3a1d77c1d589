//! Layers, limits, and what each kind of mistake is answered with.

use std::io::Write;

use hugemem::PageKind;
use proptest::prelude::*;
use wire::WireConfig;

use super::types::FrameBytes;
use super::*;

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("file");
    file.write_all(text.as_bytes()).expect("written");
    file
}

fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn source(path: impl Into<PathBuf>) -> PolicySource {
    PolicySource::file(path.into(), BTreeMap::new())
}

fn load_text(text: &str, environment: &[(&str, &str)]) -> Result<Loaded, Problems> {
    let file = file(text);
    let request = Request { file: Some(file.path().to_owned()), ..Request::default() };
    load_with(&request, &variables(environment))
}

fn problem(text: &str, environment: &[(&str, &str)]) -> String {
    load_text(text, environment).expect_err("must be refused").diagnostics.to_string()
}

/// The diagnostics are compared with the marked text that a terminal shows, too.
#[test]
fn texts_that_are_no_settings_are_not_shown() {
    let secret = "$6$salt";
    for (text, environment, place) in [
        ("root:$6$salt/hash:19000:0:99999:7:::\n", vec![], ":1:"),
        ("password = $6$salt\n", vec![], ":1:"),
        ("a = \"$6$salt\na = 1\n", vec![], ":1:"),
        ("password = \"$6$salt\"\n", vec![], ":1:1: "),
        ("", vec![("STEERD_POLICY__VARIABLES", "$6$salt")], "STEERD_POLICY__VARIABLES: "),
        ("", vec![("STEERD_POLICY__VARIABLES", "{ key = \"$6$salt")], "STEERD_POLICY__VARIABLES: "),
        ("", vec![("STEERD_POLICY__VARIABLS__KEY", "$6$salt")], "STEERD_POLICY__VARIABLS__KEY: "),
        ("", vec![("STEERD_POLICY__VARIABLES__", "$6$salt")], "STEERD_POLICY__VARIABLES__: "),
    ] {
        let problems = load_text(text, &environment).expect_err(text).diagnostics;
        for shown in [problems.to_string(), problems.excerpts()] {
            assert!(shown.contains(place.trim_end()) && !shown.contains(secret), "{shown}");
        }
    }
    // A settings file is shown.
    let problems = load_text("[http]\nlisten = 9464\n", &[]).expect_err("a number").diagnostics;
    assert!(problems.excerpts().contains("listen = 9464"), "{}", problems.excerpts());
}

#[test]
fn problems_that_were_not_looked_for_are_mentioned() {
    // Limits of other values are checked only if all of the text is read.
    for (count, summary) in
        [(100, "101 errors in the settings"), (101, "100 errors and more in the settings")]
    {
        let keys: String = (0..count).map(|key| format!("x{key} = 1\n")).collect();
        let text = format!("[http]\nhosts = [\"a b\"]\n[workers]\n{keys}");
        let problems = load_text(&text, &[]).expect_err("unknown settings");
        assert_eq!(problems.to_string(), summary);
    }
}

#[test]
fn ports_do_not_share_a_wire_that_is_for_one() {
    let ports = |first: &str, second: &str| {
        format!(
            "[[softnic.ports]]\nwire = {{ {first} }}\n[[softnic.others]]\nname = 'b'\nports = [{{ wire = {{ {second} }} }}]\n"
        )
    };
    let link = "kind = 'link', name = 'x', end = 'a'";
    let xdp = "kind = 'af_xdp', interface = 'eth0'";
    for (first, second, wire) in [
        (link, link, "x (link, end a)"),
        (xdp, "kind = 'af_xdp', interface = 'eth0', mode = 'generic'", "eth0 (af_xdp)"),
    ] {
        let text = problem(&ports(first, second), &[]);
        assert!(text.contains(":5:") && text.contains(wire), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    for (first, second) in [
        (link, "kind = 'link', name = 'x', end = 'b'"),
        (xdp, "kind = 'af_packet', interface = 'eth0'"),
        ("kind = 'af_packet', interface = 'eth0'", "kind = 'af_packet', interface = 'eth0'"),
    ] {
        load_text(&ports(first, second), &[]).expect(second);
    }
}

#[test]
fn the_built_in_settings_stand_on_their_own() {
    let loaded = load_with(&Request::default(), &[]).expect("defaults");
    let settings = loaded.settings;
    assert_eq!(settings.device.name, "auto");
    assert_eq!(settings.workers.cores, Cores::Auto);
    assert_eq!(settings.workers.pages, [PageKind::Huge2M, PageKind::Transparent, PageKind::Plain]);
    assert_eq!(settings.http.listen, Listen::On("127.0.0.1:9464".parse().expect("address")));
    assert_eq!(loaded.policy, source("policy.toml"));
}

#[test]
fn ports_are_appended_to_the_file() {
    let port = "wire = { kind = \"null\" }";
    let more = format!(
        "[[softnic.ports]]\n{port}\n[[softnic.others]]\nname = \"b\"\n[[softnic.others.ports]]\n{port}\n"
    );
    let softnic =
        load_text(&format!("{DEFAULTS}\n{more}"), &[]).expect("they are defined once").settings.softnic;
    assert_eq!((softnic.ports.len(), softnic.others.len()), (1, 1));
}

#[test]
fn every_key_has_a_default_in_the_file() {
    let defaults: toml::Table = DEFAULTS.parse().expect("TOML");
    for (section, keys) in [
        ("device", vec!["name", "model", "promiscuous", "relaxed_ordering", "receive", "ports"]),
        ("policy", vec!["file", "variables", "traffic", "require_tests", "watch"]),
        (
            "workers",
            vec![
                "cores",
                "spare",
                "frames",
                "frame_bytes",
                "batch",
                "pages",
                "idle",
                "idle_us",
                "timestamps",
            ],
        ),
        ("softnic", vec!["name", "personality", "provider", "mode"]),
        ("http", vec!["hosts", "listen", "token_file"]),
        ("log", vec!["target", "filter", "format"]),
        ("health", vec!["stall_ms"]),
    ] {
        for key in keys {
            assert!(defaults[section].get(key).is_some(), "{section}.{key} is missing in config/steerd.toml");
        }
    }
}

#[test]
fn the_demonstration_needs_nothing() {
    let loaded = load_with(&Request { demo: true, ..Request::default() }, &[]).expect("demo");
    assert_eq!(loaded.settings.workers.cores, Cores::Count(2));
    assert!(matches!(loaded.settings.softnic.ports[0].wire, WireConfig::Generator(_)));
    assert!(matches!(loaded.policy.text, PolicyText::BuiltIn { .. }));
    assert!(!loaded.settings.workers.pages.contains(&PageKind::Huge2M), "no reserved pages");
}

#[test]
fn a_policy_flag_wins_over_the_demonstrations_own() {
    let request = Request { demo: true, policy: Some("other.toml".into()), ..Request::default() };
    assert_eq!(load_with(&request, &[]).expect("demo").policy, source("other.toml"));
}

#[test]
fn an_interface_is_the_port_of_the_soft_nic_whatever_variables_say() {
    let request = Request { interface: Some("eth\"0".into()), ..Request::default() };
    let environment = variables(&[("STEERD_DEVICE__NAME", "mlx5_0")]);
    let settings = load_with(&request, &environment).expect("an interface").settings;
    let [port] = &settings.softnic.ports[..] else { panic!("{:?}", settings.softnic.ports) };
    let WireConfig::AfXdp(wire) = &port.wire else { panic!("{port:?}") };
    assert_eq!((&*wire.interface, wire.mode), ("eth\"0", wire::XdpMode::Auto));
    assert_eq!((&*settings.device.name, &*settings.softnic.name), ("softnic0", "softnic0"));
    assert_eq!(port.nic_filters, NicFilterUse::Off);
    let request = Request { nic_filters: Some(NicFilterUse::Drop), ..request };
    let settings = load_with(&request, &environment).expect("an interface").settings;
    assert_eq!(settings.xdp_ports()[0].nic_filters, NicFilterUse::Drop);
}

#[test]
fn later_layers_win() {
    let text = "[http]\nlisten = \"127.0.0.1:1\"\n[workers]\nframes = 100\nbatch = 8\n";
    let file = file(text);
    let environment = [("STEERD_HTTP__LISTEN", "127.0.0.1:2"), ("STEERD_WORKERS__FRAMES", "200")];
    let mut request = Request { file: Some(file.path().to_owned()), ..Request::default() };
    let settings = load_with(&request, &variables(&environment)).expect("settings").settings;
    assert_eq!(settings.http.listen, Listen::On("127.0.0.1:2".parse().expect("address")));
    assert_eq!((settings.workers.frames, settings.workers.batch), (200, 8));
    assert_eq!(settings.workers.frame_bytes, FrameBytes::Auto, "from the defaults");
    request.listen = Some("off".into());
    let settings = load_with(&request, &variables(&environment)).expect("settings").settings;
    assert_eq!(settings.http.listen, Listen::Off);
}

#[test]
fn a_policys_variables_come_from_every_layer() {
    let file = file("[policy.variables]\nUplink = 42\nworkers = [0, 1]\nsite = \"192.0.2\"\nfast = true\n");
    let environment =
        [("STEERD_POLICY__VARIABLES__SITE", "198.51.100"), ("STEERD_POLICY__VARIABLES__N", "7")];
    let request = Request {
        file: Some(file.path().to_owned()),
        variables: variables(&[("fast", "false"), ("more", "x=y")]),
        ..Request::default()
    };
    let given = load_with(&request, &variables(&environment)).expect("settings").policy.variables;
    let given: Vec<(&str, &str)> =
        given.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(
        given,
        [
            ("Uplink", "42"),
            ("fast", "false"),
            ("more", "x=y"),
            ("n", "7"),
            ("site", "198.51.100"),
            ("workers", "[0, 1]")
        ]
    );
}

#[test]
fn variables_take_toml_and_bare_words() {
    let cores = |value| {
        let environment = [("STEERD_WORKERS__CORES", value)];
        load_with(&Request::default(), &variables(&environment)).expect(value).settings.workers.cores
    };
    assert_eq!(cores("auto"), Cores::Auto);
    assert_eq!(cores("3"), Cores::Count(3));
    assert_eq!(cores("0,1"), Cores::List(vec![0, 1]));
    assert_eq!(cores("[0, 1]"), Cores::List(vec![0, 1]));
    let ports = [("STEERD_SOFTNIC__PORTS", "[{ wire = { kind = \"null\" } }]")];
    let settings = load_with(&Request::default(), &variables(&ports)).expect("ports").settings;
    assert_eq!(settings.softnic.ports[0].wire, WireConfig::Null {});
    assert_eq!(settings.softnic.ports[0].mtu_bytes(), 1500);
}

#[test]
fn paths_in_a_file_are_relative_to_it() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("s.toml");
    let text = "[policy]\nfile = \"p.toml\"\n[[softnic.ports]]\nwire = { kind = \"pcap\", path = \"/abs.pcap\", output = \"out.pcap\" }\n";
    std::fs::write(&path, text).expect("written");
    let request = Request { file: Some(path), ..Request::default() };
    let loaded = load_with(&request, &[]).expect("settings");
    assert_eq!(loaded.policy, source(folder.path().join("p.toml")));
    let WireConfig::Pcap(pcap) = &loaded.settings.softnic.ports[0].wire else { panic!("a pcap wire") };
    assert_eq!(pcap.path, PathBuf::from("/abs.pcap"));
    assert_eq!(pcap.output, Some(folder.path().join("out.pcap")));
    // The same, as another process reads it.
    let wires = &loaded.settings.softnic.wires;
    assert_eq!(wires[0].parse::<WireConfig>().as_ref(), Ok(&loaded.settings.softnic.ports[0].wire));
}

#[test]
fn device_models_are_files_relative_to_the_settings() {
    let folder = tempfile::tempdir().expect("folder");
    let model = "name = \"nic\"\npriorities = 8\nmax_specs = 4\nmax_table = 64\ntag_bits = 24\n";
    std::fs::write(folder.path().join("nic.toml"), model).expect("written");
    std::fs::write(folder.path().join("bad.toml"), model.replace("= 8", "= 0")).expect("written");
    let path = folder.path().join("s.toml");
    let load = |text: &str| {
        std::fs::write(&path, text).expect("written");
        load_with(&Request { file: Some(path.clone()), ..Request::default() }, &[])
    };
    let loaded = load("[softnic]\npersonality = \"nic.toml\"\n").expect("settings");
    assert_eq!(loaded.settings.softnic.personality().expect("a model").model().priorities, 8);
    let loaded = load("[device]\nmodel = \"./nic.toml\"\n").expect("settings");
    assert_eq!(PathBuf::from(loaded.settings.device.model), folder.path().join("./nic.toml"));
    for (text, key) in [
        ("[softnic]\npersonality = \"bad.toml\"\n", "softnic.personality"),
        ("[device]\nmodel = \"./bad.toml\"\n", "device.model"),
    ] {
        let problems = load(text).expect_err("out of range").diagnostics;
        let [problem] = &problems.list[..] else { panic!("{problems}") };
        let is_named = |part| problem.message.contains(part);
        assert!(is_named(key) && is_named("bad.toml:2: priorities: 0 is outside"), "{problem}");
        assert!(problem.hint.is_some() && !is_named("hint"), "{problem}");
    }
}

#[test]
fn a_word_that_is_no_path_is_one_in_other_settings() {
    let file = file(
        "[policy]\nfile = \"counters\"\ntraffic = \"counters\"\n[api]\nsocket = \"auto\"\n[http]\ntoken_file = \"auto\"\n",
    );
    let request = Request { file: Some(file.path().to_owned()), ..Request::default() };
    let settings = load_with(&request, &[]).expect("settings").settings;
    assert_eq!(settings.policy.file, file.path().with_file_name("counters"));
    assert_eq!(settings.http.token_file, file.path().with_file_name("auto"));
    assert_eq!(
        (settings.policy.traffic.to_str(), settings.api.socket.to_str()),
        (Some("counters"), Some("auto"))
    );
}

#[test]
fn paths_of_further_soft_nics_are_relative_to_the_file() {
    let text = "[[softnic.others]]\nname = \"softnic1\"\n\
                ports = [{ wire = { kind = \"pcap\", path = \"in.pcap\", mode = \"once\", output = \"/out.pcap\" } }]\n";
    let file = file(text);
    let request = Request { file: Some(file.path().to_owned()), ..Request::default() };
    let settings = load_with(&request, &[]).expect("settings").settings;
    let WireConfig::Pcap(wire) = &settings.softnic.others[0].ports[0].wire else { panic!("a capture") };
    assert_eq!(wire.path, file.path().with_file_name("in.pcap"));
    assert_eq!(wire.output.as_deref(), Some(std::path::Path::new("/out.pcap")));
}

#[test]
fn further_soft_nics_have_names_and_ports_of_their_own() {
    let other = |name: &str, ports: &str| format!("[[softnic.others]]\nname = {name:?}\nports = [{ports}]\n");
    const PORT: &str = "{ wire = { kind = \"null\" } }";
    let with = |name: &str, ports: &str| problem(&other(name, ports), &[]);
    assert!(load_text(&other("softnic1", PORT), &[]).is_ok());
    for name in ["", "softnic0"] {
        let text = with(name, PORT);
        assert!(text.contains(&format!("softnic.others: the name {name:?} is empty or in use")), "{text}");
    }
    let twice = other("softnic1", PORT).repeat(2);
    assert!(problem(&twice, &[]).contains("\"softnic1\" is empty or in use"));
    let many = [PORT; 9].join(", ");
    for ports in ["", many.as_str()] {
        assert!(with("softnic1", ports).contains("softnic1: 1 to 8 ports are possible"));
    }
    let short = "{ wire = { kind = \"null\" }, mtu_bytes = 10 }";
    assert!(with("softnic1", short).contains("softnic1: mtu_bytes 10 is out of range"));
    let nine: String = (1..10).map(|number| other(&format!("softnic{number}"), PORT)).collect();
    assert!(problem(&nine, &[]).contains("at most 8 further soft NICs"));
    let text = problem(&other("softnic1", PORT), &[("STEERD_DEVICE__NAME", "softnic1")]);
    assert!(text.contains("\"softnic1\" is also device.name"), "{text}");
}

#[test]
fn a_mistake_in_the_file_is_named_with_its_place_and_key() {
    for (text, place, parts) in [
        ("[workers]\nframe = 7\n", ":2:1: ", ["workers.frame", "did you mean `frames`?"]),
        ("[worker]\nframes = 7\n", ":1:2: ", ["worker", "did you mean `workers`?"]),
        ("[workers]\nframes = \"many\"\n", ":2:10: ", ["workers.frames", "must be a number"]),
        ("[workers]\nidle = \"lazy\"\n", ":2:8: ", ["workers.idle", "adaptive"]),
        ("[workers]\npages = [\"huge_3m\"]\n", ":2:", ["workers.pages", "huge_2m"]),
        ("[http]\nlisten = \"nowhere\"\n", ":2:10: ", ["http.listen", "127.0.0.1:9464"]),
        ("[log]\ntarget = \"sterr\"\n", ":2:10: ", ["log.target", "did you mean `stderr`?"]),
        ("[softnic]\npersonality = \"ideel\"\n", ":2:15: ", ["softnic.personality", "did you mean `ideal`?"]),
        ("[device]\nname = \n", ":2:", ["not TOML", ""]),
        ("[policy]\nrequire_tests = yes\n", ":2:17: ", ["must be quoted", "write true or false"]),
        (
            "[softnic]\nports = []\n[[softnic.ports]]\nwire = { kind = \"null\" }\n",
            ":3:",
            ["a key is defined twice", "[[SECTION.KEY]]"],
        ),
        (
            "[[softnic.ports]]\nwire = { kind = \"generater\" }\n",
            ":2:",
            ["softnic.ports.wire", "did you mean `generator`?"],
        ),
    ] {
        let message = problem(text, &[]);
        assert!(message.contains(place), "{place} in: {message}");
        for part in parts {
            assert!(message.contains(part), "{part} in: {message}");
        }
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn a_mistake_in_a_variable_names_the_variable() {
    for (name, value, part) in [
        ("STEERD_HTTP__LISTN", "x", "did you mean `listen`?"),
        ("STEERD_HTPP__LISTEN", "x", "did you mean `http`?"),
        ("STEERD_WORKERS__BATCH", "x", "workers.batch"),
        ("STEERD_HTTP_LISTEN", "127.0.0.1:1", "STEERD_HTTP__LISTEN"),
        ("STEERD_LOG", "debug", "STEERD_LOG__FILTER"),
        ("STEERD___X", "1", "STEERD_SECTION__KEY"),
        ("STEERD_LOG__FILTER", "[1, 2]", "log.filter"),
    ] {
        let message = problem("", &[(name, value)]);
        assert!(message.contains(&format!("environment variable {name}")), "{message}");
        assert!(message.contains(part), "{part} in: {message}");
    }
}

#[test]
fn what_kubernetes_sets_is_not_ours() {
    let environment = [("STEERD_SERVICE_HOST", "10.0.0.1"), ("STEERD_PORT_9464_TCP", "tcp://10.0.0.1:9464")];
    assert!(load_text("", &environment).is_ok());
}

#[test]
fn a_variable_cannot_smuggle_in_other_keys() {
    let message = problem("", &[("STEERD_WORKERS__FRAMES", "64\nworkers.batch = 1")]);
    assert!(message.contains("STEERD_WORKERS__FRAMES"), "{message}");
}

#[test]
fn values_out_of_range_name_the_layer_that_set_them() {
    for (text, key) in [
        ("[workers]\nframes = 63\n", "workers.frames"),
        ("[workers]\nframe_bytes = 100000\n", "workers.frame_bytes"),
        ("[workers]\nbatch = 0\n", "workers.batch"),
        ("[device]\nrelaxed_ordering = \"yes\"\n", "device.relaxed_ordering"),
        ("[device]\nreceive = \"dv\"\n", "device.receive"),
        ("[workers]\ncores = 0\n", "workers.cores"),
        ("[workers]\ncores = [1, 1]\n", "workers.cores"),
        ("[workers]\npages = []\n", "workers.pages"),
        ("[device]\nports = [0]\n", "device.ports"),
        ("[device]\nports = [1, 1]\n", "device.ports"),
        ("[device]\nname = \"\"\n", "device.name"),
        ("[workers]\nidle_us = 1000001\n", "workers.idle_us"),
        ("[softnic]\nmode = \"inline\"\ncore = 0\n", "softnic.core"),
        (
            "[softnic]\nprovider = \"mlx5\"\npersonality = \"mlx5\"\n\
             ports = [{ wire = { kind = \"null\" } }, { wire = { kind = \"null\" } }]\n",
            "softnic.provider",
        ),
        ("[softnic]\nprovider = \"mlx5\"\nports = [{ wire = { kind = \"null\" } }]\n", "softnic.provider"),
        (
            "[softnic]\nprovider = \"mlx5\"\npersonality = \"mlx5\"\nmode = \"inline\"\n\
             ports = [{ wire = { kind = \"null\" } }]\n",
            "softnic.provider",
        ),
        ("[softnic]\nmode = \"inline\"\nthreads = 1\n", "softnic.threads"),
        ("[softnic]\ncores = []\n", "softnic.cores"),
        ("[softnic]\ncores = [1, 1]\n", "softnic.cores"),
        ("[softnic]\ncores = [0, 4096]\n", "softnic.cores"),
        ("[softnic]\ncore = 4096\n", "softnic.core"),
        ("[softnic]\ncores = [0, 1]\nports = [{ wire = { kind = \"null\" } }]\n", "softnic.cores"),
        ("[softnic]\nthreads = 2\nports = [{ wire = { kind = \"null\" } }]\n", "softnic.threads"),
        ("[softnic]\nthreads = 0\n", "softnic.threads"),
        ("[softnic]\nthreads = 9\n", "softnic.threads"),
        ("[softnic]\nthreads = 1000000000000\n", "softnic.threads"),
        ("[softnic]\nthreads = 9223372036854775807\n", "softnic.threads"),
        ("[softnic]\ncore = 0\ncores = [1]\n", "softnic.cores"),
        ("[softnic]\ncores = [1]\nthreads = 1\n", "softnic.threads"),
        ("[device]\nports = [2]\n[[softnic.ports]]\nwire = { kind = \"null\" }\n", "device.ports"),
        ("[[softnic.ports]]\nmtu_bytes = 1\nwire = { kind = \"null\" }\n", "softnic.ports"),
        ("[[softnic.ports]]\nnic_filters = \"drop\"\nwire = { kind = \"null\" }\n", "softnic.ports"),
        (
            "[[softnic.ports]]\nfilter_model = \"mlx5\"\nwire = { kind = \"af_xdp\", interface = \"eth0\" }\n",
            "softnic.ports",
        ),
        (
            "[[softnic.ports]]\nnic_filters = \"drop\"\nfilter_model = \"none\"\n\
             wire = { kind = \"af_xdp\", interface = \"eth0\" }\n",
            "softnic.ports",
        ),
        (
            "[[softnic.others]]\nname = \"out\"\n\
             ports = [{ wire = { kind = \"null\" }, nic_filters = \"drop\" }]\n",
            "softnic.others",
        ),
        (
            "[workers]\nframe_bytes = 2048\n\
             [[softnic.ports]]\nwire = { kind = \"af_packet\", interface = \"eth0\", merged = \"whole\" }\n",
            "softnic.ports",
        ),
        ("[log]\nfilter = \"a=b=c\"\n", "log.filter"),
        ("[log]\nfilter = \"debgu\"\n", "log.filter"),
        ("[log]\nformat = \"xml\"\n", "log.format"),
        ("[health]\nstall_ms = 0\n", "health.stall_ms"),
    ] {
        let file = file(text);
        let request = Request { file: Some(file.path().to_owned()), ..Request::default() };
        let message = load_with(&request, &[]).expect_err(text).diagnostics.to_string();
        assert!(message.contains(&format!(": {key}: ")), "{message}");
        assert!(message.contains(&file.path().display().to_string()), "{message}");
    }
    let message = problem("", &[("STEERD_WORKERS__BATCH", "1000")]);
    assert!(
        message.starts_with("environment variable STEERD_WORKERS__BATCH: error: workers.batch: "),
        "{message}"
    );
}

#[test]
fn engine_threads_are_pinned_if_cores_are_named() {
    for (text, expected) in [
        ("", vec![None]),
        ("core = 1", vec![Some(1)]),
        ("cores = [1]", vec![Some(1)]),
        ("cores = [3, 0]", vec![Some(3), Some(0)]),
        ("threads = 2", vec![None, None]),
    ] {
        let text = format!("[softnic]\n{text}\n");
        let loaded = load_text(&text, &[]).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(loaded.settings.softnic.engine_threads(), expected, "{text}");
    }
}

#[test]
fn more_engine_threads_than_ports_are_refused_with_a_remedy() {
    let text = "[softnic]\ncores = [0, 1]\n[[softnic.ports]]\nwire = { kind = \"null\" }\n";
    let message = problem(text, &[]);
    assert!(message.contains("softnic.cores: 2 engine threads for 1 of [[softnic.ports]]"), "{message}");
    assert!(message.contains("(as many threads as ports at most"), "{message}");
}

#[test]
fn all_problems_are_reported_at_once() {
    let message = problem("[http]\nlisten = 7\n", &[("STEERD_A__B", "1"), ("STEERD_LOG__TARGET", "x")]);
    assert_eq!(message.lines().count(), 3, "{message}");
}

#[test]
fn a_file_that_is_not_there_is_an_error() {
    let request = Request { file: Some("/nonexistent/s.toml".into()), ..Request::default() };
    let message = load_with(&request, &[]).expect_err("no file").diagnostics.to_string();
    assert!(message.starts_with("/nonexistent/s.toml: error: cannot read"), "{message}");
}

proptest! {
    /// Whatever a file or variable holds, the answer is settings within their limits or problems in words.
    #[test]
    fn nothing_that_is_written_panics(
        text in "(\\[(workers|http|softnic|x)\\]\n)?([a-z_]{1,12} ?= ?[\\[\"{0-9a-z.:\\]}-]{0,20}\n){0,4}",
        name in "STEERD_[A-Z_]{0,20}",
        value in "\\PC{0,20}",
    ) {
        match load_text(&text, &[(name.as_str(), value.as_str())]) {
            Ok(loaded) => prop_assert!((64..=1 << 20).contains(&loaded.settings.workers.frames)),
            Err(problems) => {
                prop_assert!(problems.diagnostics.list.iter().all(|problem| !problem.message.is_empty()));
            }
        }
    }
}

/// Reading a device may never end, and opening a FIFO waits for a writer.
#[test]
fn only_a_regular_file_of_a_sensible_size_holds_settings() {
    let folder = tempfile::tempdir().expect("folder");
    let fifo = folder.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o600)).expect("a FIFO");
    let large = folder.path().join("large.toml");
    std::fs::write(&large, "#\n".repeat(1 << 20)).expect("written");
    for (path, expected) in [
        (fifo, "not a regular file"),
        ("/dev/zero".into(), "not a regular file"),
        (folder.path().to_owned(), "not a regular file"),
        (large, "more than 1048576 bytes"),
    ] {
        let request = Request { file: Some(path.clone()), ..Request::default() };
        let problem = load_with(&request, &[]).expect_err("must be refused").diagnostics.to_string();
        assert!(problem.contains(expected), "{problem}");
        assert!(problem.contains(&path.display().to_string()), "{problem}");
    }
}

/// The kernel's device classes on a host where `ens1f0np0` is port 3 of `rocep1s0f0`.
fn classes() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("folder");
    for (path, text) in [
        ("infiniband/rocep1s0f0/ports/1/gid_attrs/ndevs/0", "pf0vf0\n"),
        ("infiniband/rocep1s0f0/ports/3/gid_attrs/ndevs/0", "ens1f0np0\n"),
        ("net/ens1f0np0/device/infiniband/rocep1s0f0/fw_ver", "16.35.2000\n"),
    ] {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    }
    folder
}

#[test]
fn a_network_interface_stands_for_its_device_and_port() {
    let classes = classes();
    let resolved = |text: &str| {
        let file = file(text);
        let request = Request { file: Some(file.path().to_owned()), ..Request::default() };
        let mut settings = load_with(&request, &[]).expect(text).settings;
        settings.resolve_interface(classes.path()).map(|()| settings.device)
    };
    for ports in ["", "ports = [3]\n", "ports = [1]\n"] {
        let device = resolved(&format!("[device]\nname = \"ens1f0np0\"\n{ports}")).expect("resolved");
        assert_eq!((device.name.as_str(), device.ports), ("rocep1s0f0", vec![3]), "{ports}");
        assert_eq!(device.interface.as_deref(), Some("ens1f0np0"));
    }
    for ports in ["[2]", "[3, 1]"] {
        let text = format!("[device]\nname = \"ens1f0np0\"\nports = {ports}\n");
        let problem = resolved(&text).expect_err(ports).to_string();
        for part in [
            ": device.ports: the interface ens1f0np0, ",
            "is port 3 of rocep1s0f0",
            &format!("device.ports is {ports} ("),
            "leave device.ports out",
        ] {
            assert!(problem.contains(part), "no {part:?} in {problem}");
        }
    }
    for name in ["rocep1s0f0", "eth9", "auto"] {
        let device = resolved(&format!("[device]\nname = \"{name}\"\nports = [2]\n")).expect("as it is");
        assert_eq!((device.name.as_str(), device.ports, device.interface), (name, vec![2], None));
    }
    let soft = "[device]\nname = \"ens1f0np0\"\n[softnic]\nname = \"ens1f0np0\"\n\
                [[softnic.ports]]\nwire = { kind = \"null\" }\n";
    assert_eq!(resolved(soft).expect("as it is").name, "ens1f0np0", "the soft NIC has the name");
}
