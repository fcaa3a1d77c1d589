//! The page for browsers and its data: headers, access, and streams of events.

use std::io::{BufRead, BufReader};

use super::events::STREAMS_MAX;
use super::*;

/// Serves a source on this address, with a token if there is one.
fn serve_at(address: &str, source: &Arc<Made>, token: Option<&str>) -> (Served, SocketAddr) {
    let folder = tempfile::tempdir().expect("folder");
    let token_file = folder.path().join("token");
    let settings = match token {
        Some(token) => {
            std::fs::write(&token_file, token).expect("written");
            Http { token_file, ..Http::default() }
        }
        None => Http::default(),
    };
    let bound = bind(address.parse().expect("address"), &settings).expect("bound");
    let port = bound.address.port();
    (serve_bound(bound, Arc::clone(source)), ([127, 0, 0, 1], port).into())
}

/// The whole answer to a request with more headers, each with its line end.
fn answered(address: SocketAddr, method: &str, target: &str, headers: &str) -> String {
    let mut stream = connect(address);
    write!(stream, "{method} {target} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").expect("request");
    answer(stream)
}

fn status(answer: &str) -> u16 {
    answer.split_whitespace().nth(1).and_then(|code| code.parse().ok()).expect("a status")
}

/// The value of a header.
fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let head = answer.split_once("\r\n\r\n").map_or(answer, |(head, _)| head);
    let lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// A client of `/api/v1/events`.
struct Stream(BufReader<TcpStream>);

impl Stream {
    fn open(address: SocketAddr) -> Self {
        let mut stream = BufReader::new(ask(address, "/api/v1/events"));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(stream.read_line(&mut head).expect("a header") > 0, "{head}");
        }
        assert_eq!(status(&head), 200, "{head}");
        assert_eq!(header(&head, "content-type"), Some("text/event-stream"), "{head}");
        assert_eq!(header(&head, "cache-control"), Some("no-store"), "{head}");
        Self(stream)
    }

    fn is_served(&self) -> bool {
        is_served(self.0.get_ref())
    }

    /// Reads up to the end of an event; `false`: the stream has ended.
    fn reads_event(&mut self) -> bool {
        let mut line = Vec::new();
        loop {
            line.clear();
            match self.0.read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return false,
                Ok(_) if line.starts_with(b"data: ") => return true,
                Ok(_) => {}
            }
        }
    }
}

#[test]
fn the_page_may_run_its_own_script_only() {
    let (server, address) = serve(&Arc::default());
    let page = answered(address, "GET", "/", "");
    assert_eq!(status(&page), 200);
    let policy = header(&page, "content-security-policy").expect("a policy");
    for part in [
        "default-src 'none'; ",
        "script-src 'sha256-",
        "connect-src 'self'; ",
        "frame-ancestors 'none'; ",
        "require-trusted-types-for 'script'",
    ] {
        assert!(policy.contains(part), "{part}: {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    for (name, value) in [
        ("content-type", "text/html; charset=utf-8"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(header(&page, name), Some(value), "{name}");
    }
    let head = answered(address, "HEAD", "/", "");
    assert!(status(&head) == 200 && head.ends_with("\r\n\r\n"), "{head}");
    assert_eq!(status(&answered(address, "GET", "/api/v1/none", "")), 404);
    assert_eq!(status(&answered(address, "POST", "/api/v1/explain", "Content-Length: 0\r\n")), 405);
    assert!(server.stop(TIMEOUT));
}

#[test]
fn the_data_of_the_page_are_those_of_the_source() {
    let (server, address) = serve(&Arc::new(Made { rules: 3, ..Made::default() }));
    let get = |target: &str| answered(address, "GET", target, "");
    let policy = get("/api/v1/policy");
    assert!(policy.ends_with("{\"policy of\": 3}"), "{policy}");
    assert_eq!(header(&policy, "content-type"), Some("application/json"));
    assert_eq!(header(&policy, "x-content-type-options"), Some("nosniff"));
    assert!(get("/api/v1/history").ends_with("{\"policies\": []}"));
    let explained = get("/api/v1/explain?packet=protocol%3Dudp%2Cdst_port=53&direction=egress");
    assert!(explained.ends_with("{\"port\": 53, \"direction\": \"Egress\"}"), "{explained}");
    for (target, why) in [
        ("/api/v1/explain", "a packet is needed"),
        ("/api/v1/explain?packet=colour=red", "there is no field"),
        ("/api/v1/explain?packet=protocol=udp&direction=up", "ingress or egress"),
    ] {
        let refused = get(target);
        assert!(status(&refused) == 400 && refused.contains(why), "{target}: {refused}");
    }
    assert!(server.stop(TIMEOUT));
}

#[test]
fn explanations_are_computed_one_at_a_time_and_delay_no_probe() {
    const TARGET: &str = "/api/v1/explain?packet=protocol=udp";
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held_explanations = Some(Mutex::new(held));
    let source = Arc::new(Made { held_explanations, ..Made::default() });
    let (server, address) = serve(&source);
    let first = ask(address, TARGET);
    let begun = Instant::now();
    while source.explained.load(Ordering::Relaxed) == 0 {
        assert!(begun.elapsed() < TIMEOUT, "not begun");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(status(&answer(ask(address, TARGET))), 503);
    assert!(answer(ask(address, "/healthz")).contains("200 OK"));
    release.send(()).expect("still waiting");
    assert_eq!(status(&answer(first)), 200);
    assert!(server.stop(TIMEOUT));
}

const DATA: [&str; 5] = [
    "/api/v1/events",
    "/api/v1/policy",
    "/api/v1/policy/texts",
    "/api/v1/history",
    "/api/v1/explain?packet=protocol=udp",
];

#[test]
fn the_token_guards_the_data_but_not_the_page() {
    let (server, address) = serve_at("127.0.0.1:0", &Arc::default(), Some("correct-horse-battery"));
    assert_eq!(status(&answered(address, "GET", "/", "")), 200);
    for target in DATA {
        assert_eq!(status(&answered(address, "GET", target, "")), 401, "{target}");
        let headers = "Authorization: Bearer correct-horse-battery\r\n";
        assert_eq!(status(&answered(address, "HEAD", target, headers)), 200, "{target}");
    }
    assert!(server.stop(TIMEOUT));
}

/// A daemon that is scraped over a network shows there what it did before it had a page.
#[test]
fn the_policy_is_not_shown_to_a_network_without_a_token() {
    let statuses = |token: Option<&str>| {
        let (server, address) = serve_at("0.0.0.0:0", &Arc::default(), token);
        let headers = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
        let statuses = DATA.map(|target| status(&answered(address, "HEAD", target, &headers)));
        assert!(server.stop(TIMEOUT));
        statuses
    };
    assert_eq!(statuses(None), [200, 403, 403, 403, 403]);
    assert_eq!(statuses(Some("correct-horse-battery")), [200; 5]);
}

#[test]
fn pages_of_other_sites_get_nothing() {
    let (server, address) = serve(&Arc::default());
    for target in DATA {
        for (site, expected) in [("cross-site", 403), ("same-site", 403), ("same-origin", 200)] {
            let headers = format!("Sec-Fetch-Site: {site}\r\n");
            assert_eq!(status(&answered(address, "HEAD", target, &headers)), expected, "{target}: {site}");
        }
        let headers = "Origin: http://other.example\r\n";
        assert_eq!(status(&answered(address, "HEAD", target, headers)), 403, "{target}");
    }
    // A link leads to the page, which has no data.
    assert_eq!(status(&answered(address, "GET", "/", "Sec-Fetch-Site: cross-site\r\n")), 200);
    assert!(server.stop(TIMEOUT));
}

#[test]
fn an_event_is_made_once_for_all_streams() {
    let source = Arc::new(Made::default());
    let (server, address) = serve(&source);
    let begun = Instant::now();
    let mut streams: Vec<Stream> = (0..10).map(|_| Stream::open(address)).collect();
    for _ in 0..3 {
        assert!(streams.iter_mut().all(Stream::reads_event));
    }
    let passed = begun.elapsed();
    assert!(passed >= Duration::from_millis(1500), "three events in {passed:?}");
    let asked = source.asked.load(Ordering::Relaxed);
    // Once a second, and once more for streams that began just after a state was outdated.
    let most = 2 + usize::try_from(passed.as_secs()).expect("seconds");
    assert!((2..=most).contains(&asked), "{asked} states for ten streams in {passed:?}");
    drop(streams);
    assert!(server.stop(TIMEOUT));
}

#[test]
fn one_stream_too_many_ends_the_oldest() {
    let (server, address) = serve(&Arc::default());
    let mut streams: Vec<Stream> = (0..STREAMS_MAX).map(|_| Stream::open(address)).collect();
    assert!(streams.iter_mut().all(Stream::reads_event));
    streams.push(Stream::open(address));
    assert!(answer(ask(address, "/healthz")).contains("200 OK"), "others are answered");
    let begun = Instant::now();
    while streams[0].reads_event() {
        assert!(begun.elapsed() < TIMEOUT, "the oldest is still served");
    }
    assert!((0..3).all(|_| streams[1..].iter_mut().all(Stream::reads_event)), "only the oldest has ended");
    assert!(server.stop(TIMEOUT));
}

#[test]
fn the_end_of_the_server_ends_streams_at_once() {
    let (server, address) = serve(&Arc::default());
    let mut streams: Vec<Stream> = (0..4).map(|_| Stream::open(address)).collect();
    assert!(streams.iter_mut().all(Stream::reads_event));
    let begun = Instant::now();
    assert!(server.stop(TIMEOUT));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    for stream in &mut streams {
        while stream.reads_event() {}
    }
}

/// A stream goes on after the time in which other answers must be read, but for a client that does not read.
/// One that reads a little keeps its place only until another one needs it.
#[test]
fn only_streams_that_are_read_are_kept() {
    // More for each event than the sockets' buffers take (tcp(7)).
    let (server, address) = serve(&Arc::new(Made { rules: 60_000, ..Made::default() }));
    let slow = Stream::open(address);
    let mut slow_socket = slow.0.get_ref().try_clone().expect("a socket");
    let reader = std::thread::spawn(move || {
        // Less than it is sent, and enough for the server to write again in time.
        while slow_socket.read(&mut [0; 64 << 10]).is_ok_and(|bytes| bytes > 0) {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let mut read = Stream::open(address);
    let unread: Vec<Stream> = (2..STREAMS_MAX).map(|_| Stream::open(address)).collect();
    let begun = Instant::now();
    let mut goes_on = || {
        assert!(read.reads_event(), "ended after {:?}", begun.elapsed());
        assert!(begun.elapsed() < 2 * TIMEOUT, "others are still served");
    };
    while begun.elapsed() < EXCHANGE_TIMEOUT + Duration::from_secs(1) || unread.iter().any(Stream::is_served)
    {
        goes_on();
    }
    assert!(slow.is_served(), "nobody needs its place");
    let more: Vec<Stream> = (2..=STREAMS_MAX).map(|_| Stream::open(address)).collect();
    while slow.is_served() {
        goes_on();
    }
    drop(more);
    assert!(server.stop(TIMEOUT));
    reader.join().expect("it ends with its connection");
}
