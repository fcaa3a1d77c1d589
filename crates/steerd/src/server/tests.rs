//! Who is served when there are too many connections, or no thread.

use std::io::{ErrorKind, Read};

use super::*;

struct Nothing;

impl Router for Nothing {
    const LIMITS: Limits =
        Limits { name: "test", exchange: None, write: Duration::from_secs(60), half_close: false };

    async fn answer(&self, _: Request<Incoming>, _: Option<Peer>) -> Answer {
        text(StatusCode::OK, "")
    }
}

/// The client's end, and that of the server.
fn pair() -> (std::os::unix::net::UnixStream, UnixStream) {
    let (client, server) = std::os::unix::net::UnixStream::pair().expect("a pair");
    client.set_nonblocking(true).expect("an option");
    server.set_nonblocking(true).expect("an option");
    (client, UnixStream::from_std(server).expect("a runtime"))
}

fn is_open(mut client: &std::os::unix::net::UnixStream) -> bool {
    client.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(test);
}

#[test]
fn a_connection_without_a_thread_waits_for_one() {
    run(async {
        let mut connections = Connections::new(Nothing);
        connections.spawn = |_, serve| {
            drop(serve);
            Err(io::Error::from(ErrorKind::WouldBlock))
        };
        let (client, server) = pair();
        assert!(connections.begin_or_wait(server, Some(1001)).is_err());
        assert!(is_open(&client), "closing it could block this thread");
        assert!(connections.begin_waiting().is_err());
        assert_eq!((connections.waiting.len(), connections.open.len()), (1, 0));
        connections.spawn = Builder::spawn;
        connections.begin_waiting().expect("a thread");
        assert_eq!((connections.waiting.len(), connections.open.len()), (0, 1));
        assert!(is_open(&client));
        connections.close_all().await;
    });
}

/// A server that has no thread for a new connection keeps those that it has, and accepts no more.
#[test]
fn without_threads_nothing_is_closed_or_accepted() {
    run(async {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("s");
        let listener = Listener::Unix(UnixListener::bind(&path).expect("bound"));
        let listener = Accepting::new(listener).expect("a runtime");
        let mut connections = Connections::new(Nothing);
        let (open, server) = pair();
        connections.begin_or_wait(server, Some(1001)).expect("a thread");
        connections.spawn = |_, _| Err(io::Error::from(ErrorKind::WouldBlock));
        let clients: Vec<_> = (0..3)
            .map(|_| {
                let client = std::os::unix::net::UnixStream::connect(&path).expect("connected");
                client.set_nonblocking(true).expect("an option");
                client
            })
            .collect();
        // Longer than several pauses.
        let accepting = connections.accept(&listener);
        assert!(timeout(ACCEPT_RETRY * 20, accepting).await.is_err(), "it goes on");
        assert_eq!(connections.waiting.len(), 1, "the others wait in the queue of the socket");
        assert!(is_open(&open) && connections.open.iter().all(Connection::is_open));
        assert!(clients.iter().all(is_open));
        connections.spawn = Builder::spawn;
        let _ = timeout(ACCEPT_RETRY * 20, connections.accept(&listener)).await;
        assert_eq!((connections.waiting.len(), connections.open.len()), (0, 4));
        connections.close_all().await;
    });
}

#[test]
fn users_close_no_connection_of_root() {
    run(async {
        let mut connections = Connections::new(Nothing);
        connections.request_time = Duration::ZERO;
        let mut begin = |uid| {
            let (client, server) = pair();
            connections.begin_or_wait(server, Some(uid)).expect("a thread");
            client
        };
        let of_root: Vec<_> = (0..RESERVED).map(|_| begin(0)).collect();
        let of_users: Vec<_> =
            (1001..1006).flat_map(|user| [user; USER_CONNECTIONS_MAX]).map(&mut begin).collect();
        let late = begin(0);
        let open = |uid: fn(u32) -> bool| {
            let is = |one: &&Connection| one.is_open() && one.uid.is_some_and(uid);
            connections.open.iter().filter(is).count()
        };
        assert_eq!(open(|uid| uid == 0), RESERVED, "one of root's own was closed for the late one");
        assert_eq!(open(|uid| uid != 0), CONNECTIONS_MAX - RESERVED);
        assert!(is_open(&late));
        connections.close_all().await;
        drop((of_root, of_users));
    });
}

/// No connection of many at once is closed before its request can arrive.
#[test]
fn a_connection_is_kept_until_it_can_have_asked() {
    run(async {
        let mut connections = Connections::new(Nothing);
        // Longer than the test.
        connections.request_time = Duration::from_secs(3600);
        let begin = |connections: &mut Connections<Nothing>| {
            let (client, server) = pair();
            connections.begin_or_wait(server, Some(1001)).expect("a thread");
            client
        };
        let clients: Vec<_> = (0..2 * USER_CONNECTIONS_MAX).map(|_| begin(&mut connections)).collect();
        assert!(clients.iter().all(is_open));
        let counts = |connections: &Connections<Nothing>| {
            let open = connections.open.iter().filter(|one| one.is_open());
            (connections.waiting.len(), open.count())
        };
        assert_eq!(counts(&connections), (USER_CONNECTIONS_MAX, USER_CONNECTIONS_MAX));
        let _one_more = begin(&mut connections);
        assert_eq!(
            counts(&connections),
            (USER_CONNECTIONS_MAX, USER_CONNECTIONS_MAX),
            "a user with as many that wait loses the oldest"
        );
        connections.request_time = Duration::ZERO;
        // Threads of closed connections count until they end.
        let begun = Instant::now();
        while !connections.waiting.is_empty() && begun.elapsed() < Duration::from_secs(10) {
            connections.begin_waiting().expect("a thread");
            tokio::time::sleep(ACCEPT_RETRY).await;
        }
        assert_eq!(connections.waiting.len(), 0, "those that ask nothing make place");
        connections.close_all().await;
    });
}

#[test]
fn answers_have_a_date_only_where_http_has_one() {
    assert!(has_http_date(SystemTime::now()));
    assert!(has_http_date(UNIX_EPOCH));
    assert!(!has_http_date(UNIX_EPOCH - Duration::from_nanos(1)));
}
