//! Who is served when there are too many connections, or no thread.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::*;

struct Nothing;

impl Router for Nothing {
    const LIMITS: Limits = Limits {
        name: "test",
        exchange: None,
        busy: Duration::from_secs(60),
        write: Duration::from_secs(60),
        half_close: false,
    };

    async fn answer(&self, _: Request<Incoming>, _: Option<Peer>) -> Answer {
        text(StatusCode::OK, "")
    }
}

/// A socket, and its path in the folder.
fn listener(folder: &Path) -> (Accepting, std::path::PathBuf) {
    let path = folder.join("s");
    let listener = Listener::Unix(UnixListener::bind(&path).expect("bound"));
    (Accepting::new(listener).expect("a runtime"), path)
}

fn connect(path: &Path) -> UnixStream {
    let client = UnixStream::connect(path).expect("connected");
    client.set_nonblocking(true).expect("an option");
    client
}

/// A client that has sent its request.
fn asking(path: &Path) -> UnixStream {
    let mut client = connect(path);
    client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    client
}

fn is_answered(mut client: &UnixStream) -> bool {
    let mut answer = [0; 256];
    client.read(&mut answer).is_ok_and(|bytes| answer[..bytes].starts_with(b"HTTP/1.1 200 OK"))
}

fn all_are_busy<R: Router>(connections: &Connections<R>) -> bool {
    connections.open.len() == CONNECTIONS_MAX as usize && connections.open.iter().all(Connection::is_busy)
}

fn is_open(mut client: &UnixStream) -> bool {
    client.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// Longer than several pauses.
async fn accept_for_some_time<R: Router>(connections: &mut Connections<R>, listener: &Accepting) {
    assert!(timeout(ACCEPT_RETRY * 20, connections.accept(listener)).await.is_err(), "it goes on");
}

async fn accept_until<R: Router>(
    connections: &mut Connections<R>,
    listener: &Accepting,
    is_done: impl Fn(&Connections<R>) -> bool,
) {
    let begun = Instant::now();
    while !is_done(connections) {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} are open", connections.open.len());
        accept_for_some_time(connections, listener).await;
    }
}

fn run(test: impl AsyncFnOnce(Accepting, std::path::PathBuf)) {
    let folder = tempfile::tempdir().expect("folder");
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let (listener, path) = listener(folder.path());
        test(listener, path).await;
    });
}

/// A server with places, but without a thread for a new connection keeps those that it has, and accepts no
/// more.
#[test]
fn without_threads_nothing_is_closed_or_accepted() {
    run(async |listener, path| {
        let mut connections = Connections::new(Nothing);
        let open = connect(&path);
        accept_until(&mut connections, &listener, |connections| connections.open.len() == 1).await;
        connections.spawn = |_, _| Err(io::Error::from(ErrorKind::WouldBlock));
        let clients: Vec<_> = (0..3).map(|_| connect(&path)).collect();
        accept_for_some_time(&mut connections, &listener).await;
        assert_eq!(connections.open.len(), 1, "the others wait in the queue of the socket");
        assert!(is_open(&open) && clients.iter().all(is_open));
        connections.spawn = Builder::spawn;
        accept_until(&mut connections, &listener, |connections| connections.open.len() == 4).await;
        connections.close_all().await;
    });
}

/// No connection of many at once is closed before its request can arrive; later, the oldest of those that
/// have sent none are.
#[test]
fn a_connection_is_kept_until_it_can_have_asked() {
    run(async |listener, path| {
        let mut connections = Connections::new(Nothing);
        // Longer than the test.
        connections.request_time = Duration::from_secs(3600);
        let clients: Vec<_> = (0..CONNECTIONS_MAX + 5).map(|_| connect(&path)).collect();
        let all_places = |connections: &Connections<_>| connections.open.len() == CONNECTIONS_MAX as usize;
        accept_until(&mut connections, &listener, all_places).await;
        accept_for_some_time(&mut connections, &listener).await;
        assert!(all_places(&connections), "the others wait in the queue of the socket");
        assert!(clients.iter().all(is_open));
        connections.request_time = Duration::ZERO;
        let closed = || clients.iter().take_while(|client| !is_open(client)).count();
        let all = |connections: &Connections<_>| closed() + connections.open.len() == clients.len();
        accept_until(&mut connections, &listener, all).await;
        assert!(closed() >= 5 && clients[closed()..].iter().all(is_open), "the oldest are closed");
        connections.close_all().await;
    });
}

/// A request that is being answered is not given up for new connections, of which the newest are kept.
#[test]
fn a_connection_that_has_asked_is_not_closed() {
    struct Slow;
    impl Router for Slow {
        const LIMITS: Limits = Nothing::LIMITS;
        async fn answer(&self, _: Request<Incoming>, _: Option<Peer>) -> Answer {
            std::future::pending().await
        }
    }
    run(async |listener, path| {
        let mut connections = Connections::new(Slow);
        let asking = asking(&path);
        let has_asked =
            |connections: &Connections<_>| connections.open.front().is_some_and(Connection::is_busy);
        accept_until(&mut connections, &listener, has_asked).await;
        connections.request_time = Duration::ZERO;
        let idle: Vec<_> = (0..2 * CONNECTIONS_MAX).map(|_| connect(&path)).collect();
        let closed = || idle.iter().take_while(|client| !is_open(client)).count();
        let all = |connections: &Connections<_>| closed() + connections.open.len() == idle.len() + 1;
        accept_until(&mut connections, &listener, all).await;
        assert!(is_open(&asking), "after {} others were closed", closed());
        assert!(closed() > CONNECTIONS_MAX as usize, "{}", closed());
        connections.close_all().await;
    });
}

/// A place that a client takes by not reading its answer is given to another one in time, not before.
#[test]
fn a_request_is_answered_while_others_do_not_read() {
    struct Large;
    impl Router for Large {
        const LIMITS: Limits = Nothing::LIMITS;
        async fn answer(&self, _: Request<Incoming>, _: Option<Peer>) -> Answer {
            // More than the socket takes.
            whole(vec![0; 4 << 20])
        }
    }
    run(async |listener, path| {
        let mut connections = Connections::new(Large);
        connections.busy_time = Duration::from_secs(3600);
        let clients: Vec<_> = (0..CONNECTIONS_MAX).map(|_| asking(&path)).collect();
        accept_until(&mut connections, &listener, all_are_busy).await;
        accept_for_some_time(&mut connections, &listener).await;
        assert!(all_are_busy(&connections), "nobody needs their places");
        let client = asking(&path);
        accept_for_some_time(&mut connections, &listener).await;
        assert!(all_are_busy(&connections) && !is_answered(&client), "it waits in the queue");
        connections.busy_time = Duration::ZERO;
        accept_until(&mut connections, &listener, |_| is_answered(&client)).await;
        drop(clients);
        connections.close_all().await;
    });
}

/// A client that has its answer and does not close its connection takes no place from others.
#[test]
fn an_answered_connection_is_idle() {
    run(async |listener, path| {
        let mut connections = Connections::new(Nothing);
        let client = asking(&path);
        accept_until(&mut connections, &listener, |connections| !connections.open.is_empty()).await;
        let is_busy = Arc::clone(&connections.open[0].is_busy);
        accept_until(&mut connections, &listener, |_| is_answered(&client)).await;
        accept_until(&mut connections, &listener, |_| !is_busy.load(Ordering::Relaxed)).await;
        connections.close_all().await;
    });
}

#[test]
fn answers_have_a_date_only_where_http_has_one() {
    assert!(has_http_date(SystemTime::now()));
    assert!(has_http_date(UNIX_EPOCH));
    assert!(!has_http_date(UNIX_EPOCH - Duration::from_nanos(1)));
}
