//! The server over real sockets, with states made up.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Instant;

mod browsers;

use super::*;
use crate::daemon::health::Health;
use crate::server::CONNECTIONS_MAX;
use crate::state::{RuleState, State};
use crate::telemetry::pages::{Renderer, Source};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A state with so many rules; how often it was asked for.
#[derive(Default)]
struct Made {
    rules: usize,
    asked: AtomicUsize,
    /// How many explanations were begun.
    explained: AtomicUsize,
    changes: AtomicU64,
    /// The receiver that a state waits for.
    held: Option<Mutex<Receiver<()>>>,
    /// The receiver that the texts of the policy wait for.
    held_texts: Option<Mutex<Receiver<()>>>,
    /// The receiver that explanations wait for.
    held_explanations: Option<Mutex<Receiver<()>>>,
}

impl Source for Made {
    fn state(&self) -> Arc<State> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if let Some(held) = &self.held {
            let _ = held.lock().expect("nobody panics with it").recv();
        }
        let rule =
            |index| RuleState { name: format!("rule-{index:060}"), current: true, ..RuleState::default() };
        Arc::new(State { rules: (0..self.rules).map(rule).collect(), ..State::default() })
    }

    fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    fn policy(&self) -> Result<Vec<u8>, String> {
        Ok(format!("{{\"policy of\": {}}}", self.rules).into())
    }

    fn policy_texts(&self) -> Result<Vec<u8>, String> {
        if let Some(held) = &self.held_texts {
            let _ = held.lock().expect("nobody panics with it").recv();
        }
        Ok(b"{\"files\": []}".into())
    }

    fn history(&self) -> Result<Vec<u8>, String> {
        Ok(b"{\"policies\": []}".into())
    }

    fn explain(&self, packet: &str, direction: Direction) -> Result<Vec<u8>, String> {
        self.explained.fetch_add(1, Ordering::Relaxed);
        if let Some(held) = &self.held_explanations {
            let _ = held.lock().expect("nobody panics with it").recv();
        }
        let key = policy::key_of_text(packet)?;
        Ok(format!("{{\"port\": {}, \"direction\": \"{direction:?}\"}}", key.outer.dst_port).into())
    }
}

/// A server and the renderer of its pages.
struct Served {
    server: Server,
    renderer: Renderer,
}

impl Served {
    fn stop(self, timeout: Duration) -> bool {
        self.server.stop(timeout) && self.renderer.stop(timeout)
    }
}

fn serve_bound(bound: Bound, source: Arc<Made>) -> Served {
    let (pages, renderer) = Pages::start(source).expect("a renderer");
    Served { server: bound.serve(pages, Arc::new(Health::default())).expect("served"), renderer }
}

fn serve(source: &Arc<Made>) -> (Served, SocketAddr) {
    let bound = bind("127.0.0.1:0".parse().expect("address"), &Http::default()).expect("bound");
    let address = bound.address;
    (serve_bound(bound, Arc::clone(source)), address)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connection");
    stream.set_read_timeout(Some(TIMEOUT)).expect("timeout");
    stream
}

fn ask(address: SocketAddr, page: &str) -> TcpStream {
    let mut stream = connect(address);
    write!(stream, "GET {page} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("request");
    stream
}

fn answer(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

/// Whether the server has not closed the connection, although the client may have much to read.
fn is_served(stream: &TcpStream) -> bool {
    let (server, client) = (stream.peer_addr().expect("address"), stream.local_addr().expect("address"));
    // proc(5), net/tcp: local and remote address, then the state; 01 is ESTABLISHED.
    let table = std::fs::read_to_string("/proc/net/tcp").expect("/proc/net/tcp");
    table.contains(&format!(" 0100007F:{:04X} 0100007F:{:04X} 01 ", server.port(), client.port()))
}

/// Until the server closes the connection, with an answer or without.
fn closed_after(mut stream: TcpStream) -> Duration {
    let begun = Instant::now();
    let mut buffer = [0; 4096];
    while stream.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
    begun.elapsed()
}

#[test]
fn a_slow_device_delays_no_other_page() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let (server, address) = serve(&Arc::new(Made { held: Some(Mutex::new(held)), ..Made::default() }));
    let scrape = ask(address, "/metrics");
    assert!(answer(ask(address, "/healthz")).contains("200 OK"));
    release.send(()).expect("still waiting");
    assert!(answer(scrape).contains("200 OK"));
    assert!(server.stop(TIMEOUT));
}

#[test]
fn metrics_have_the_format_that_is_asked_for() {
    let (server, address) = serve(&Arc::default());
    let scraped = |accept: &str| {
        let mut stream = connect(address);
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n{accept}\r\n").expect("request");
        let text = answer(stream);
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.to_lowercase().contains("\r\nvary: accept"), "{head}");
        (head.to_lowercase(), body.to_owned())
    };
    let (head, body) = scraped("Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n");
    let content_type = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.contains(content_type) && body.ends_with("\n# EOF\n"), "{head}");
    for accept in ["", "Accept: */*\r\n", "Accept: application/openmetrics-text;q=0\r\n"] {
        let (head, body) = scraped(accept);
        assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
        assert!(!body.contains("# EOF"), "{accept}");
    }
    assert!(server.stop(TIMEOUT));
}

#[test]
fn long_texts_delay_no_scrape() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held_texts = Some(Mutex::new(held));
    let (server, address) = serve(&Arc::new(Made { held_texts, ..Made::default() }));
    let texts = ask(address, "/api/v1/policy/texts");
    assert!(answer(ask(address, "/metrics")).contains("200 OK"));
    release.send(()).expect("still waiting");
    assert!(answer(texts).ends_with("{\"files\": []}"));
    assert!(server.stop(TIMEOUT));
}

#[test]
fn a_page_is_rendered_once_for_all_and_anew_after_a_change() {
    let source = Arc::new(Made::default());
    let (server, address) = serve(&source);
    let begun = Instant::now();
    let all: Vec<TcpStream> = (0..40).map(|_| ask(address, "/metrics")).collect();
    assert!(all.into_iter().all(|stream| answer(stream).contains("200 OK")));
    // Once a second; a loaded machine may take several for this.
    let most = 1 + usize::try_from(begun.elapsed().as_secs()).expect("seconds");
    let asked = source.asked.load(Ordering::Relaxed);
    assert!((1..=most).contains(&asked), "{asked} states in {:?}", begun.elapsed());
    source.changes.fetch_add(1, Ordering::Relaxed);
    assert!(answer(ask(address, "/metrics")).contains("200 OK"));
    assert!(source.asked.load(Ordering::Relaxed) > asked);
    assert!(server.stop(TIMEOUT));
}

#[test]
fn idle_connections_keep_nobody_out_and_are_closed() {
    let (server, address) = serve(&Arc::default());
    let idle: Vec<TcpStream> = (0..3 * CONNECTIONS_MAX).map(|_| connect(address)).collect();
    // Part of a header is as idle as nothing.
    for mut stream in &idle {
        let _ = stream.write_all(b"GET /metrics HT");
    }
    for _ in 0..10 {
        assert!(answer(ask(address, "/healthz")).contains("200 OK"));
    }
    let last = idle.into_iter().next_back().expect("the newest");
    assert!(closed_after(last) < Duration::from_secs(30), "its header never comes");
    assert!(server.stop(TIMEOUT));
}

#[test]
fn only_the_first_of_pipelined_requests_is_answered() {
    let (server, address) = serve(&Arc::default());
    let mut stream = connect(address);
    stream.write_all(&b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100)).expect("requests");
    let text = answer(stream);
    assert_eq!(text.matches("200 OK").count(), 1, "{text}");
    assert!(text.to_lowercase().contains("connection: close"), "{text}");
    assert!(server.stop(TIMEOUT));
}

#[test]
fn a_client_that_does_not_read_is_given_up() {
    // More than the sockets' buffers take (tcp(7): tcp_wmem and tcp_rmem are 6 MiB at most by default).
    let (server, address) = serve(&Arc::new(Made { rules: 100_000, ..Made::default() }));
    let stream = ask(address, "/metrics");
    assert!(is_served(&stream), "it has just been made");
    let begun = Instant::now();
    while is_served(&stream) {
        assert!(begun.elapsed() < TIMEOUT, "still served");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(stream);
    assert!(answer(ask(address, "/healthz")).contains("200 OK"));
    assert!(server.stop(TIMEOUT));
}

#[test]
fn large_headers_and_other_methods_are_refused() {
    let (server, address) = serve(&Arc::default());
    let mut stream = connect(address);
    let request = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    // The server may have closed it before all is written.
    let _ = stream.write_all(request.as_bytes());
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    assert!(!String::from_utf8_lossy(&text).contains("200 OK"));
    let mut stream = connect(address);
    write!(stream, "POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello")
        .expect("request");
    assert!(answer(stream).contains("405 Method Not Allowed"));
    let mut stream = connect(address);
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: rebind.example\r\n\r\n").expect("request");
    let text = answer(stream);
    assert!(text.contains("421 Misdirected Request") && text.contains("http.hosts"), "{text}");
    assert!(server.stop(TIMEOUT));
}

#[test]
fn the_token_guards_the_pages_but_not_the_probes() {
    let folder = tempfile::tempdir().expect("folder");
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, "correct-horse-battery\n").expect("written");
    let settings = Http { token_file, ..Http::default() };
    let bound = bind("127.0.0.1:0".parse().expect("address"), &settings).expect("bound");
    assert!(!format!("{bound:?}").contains("horse"), "{bound:?}");
    let address = bound.address;
    let server = serve_bound(bound, Arc::default());
    let with = |page: &str, header: &str| {
        let mut stream = connect(address);
        write!(stream, "GET {page} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n").expect("request");
        stream.shutdown(Shutdown::Write).expect("half closed");
        answer(stream).split_whitespace().nth(1).map(ToOwned::to_owned)
    };
    for page in ["/metrics", "/api/v1/state"] {
        assert_eq!(with(page, "").as_deref(), Some("401"), "{page}");
        assert_eq!(
            with(page, "Authorization: Bearer correct-horse-batterx\r\n").as_deref(),
            Some("401"),
            "{page}"
        );
        assert_eq!(
            with(page, "Authorization: Bearer correct-horse-battery\r\n").as_deref(),
            Some("200"),
            "{page}"
        );
    }
    assert_eq!(with("/healthz", "").as_deref(), Some("200"));
    assert!(server.stop(TIMEOUT));
}

#[test]
fn what_others_can_reach_is_warned_of() {
    let warned = |address: &str, token| exposure(address.parse().expect("address"), token);
    for address in ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"] {
        assert_eq!(warned(address, false), None, "{address}");
    }
    for address in ["0.0.0.0", "::", "192.0.2.1", "::ffff:192.0.2.1"] {
        assert!(warned(address, false).is_some_and(|text| text.contains("http.token_file")), "{address}");
        assert!(warned(address, true).is_some_and(|text| text.contains("clear text")), "{address}");
    }
}

#[test]
fn a_server_whose_thread_has_ended_is_seen() {
    let (server, _) = serve(&Arc::default());
    assert!(!server.server.has_ended() && !server.renderer.has_ended());
    let server = server.server.with_thread(std::thread::spawn(|| {}));
    let deadline = Instant::now() + TIMEOUT;
    while !server.has_ended() {
        assert!(Instant::now() < deadline, "not seen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_check_keeps_nobody_from_the_address() {
    let bound = bind("127.0.0.1:0".parse().expect("address"), &Http::default()).expect("bound");
    let [error] = &check(bound.address, &Http::default())[..] else { panic!("it is in use") };
    let second = bind(bound.address, &Http::default()).expect_err("it is in use");
    assert_eq!(error.to_string(), second.to_string());
    let address = bound.address;
    drop(bound);
    assert!(check(address, &Http::default()).is_empty());
    assert!(bind(address, &Http::default()).is_ok());
    let both = Http { token_file: "/nonexistent/token".into(), ..Http::default() };
    assert!(matches!(
        check("203.0.113.77:0".parse().expect("address"), &both)[..],
        [Error::Token { .. }, Error::Bind { .. }]
    ));
}
