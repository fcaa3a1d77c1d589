//! Under traffic the engine and a worker neither allocate nor call the kernel, with a thread for the engine
//! and inline. Of two engine threads one may wait in the kernel where the other one is interrupted while it
//! holds the device's mutex.
//!
//! The scene runs in a child process. Its allocator counts all allocations of the process while the main
//! thread sleeps. Then this process traces the child's threads (ptrace(2)) and counts the system calls that
//! the kernel reports. What is covered: receiving from a generator, flow lookup, delivery, polling,
//! classification and posting buffers again. Wires that are system calls by nature (af_packet) and sinks are
//! not.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use control::{Controller, Device, DeviceSelector};
use device_model::DeviceModel;
use policy::{NoFiles, Source};
use program::WorkerId;
use softnic::{Drive, Personality, PortConfig, SoftNicConfig};
use softnic_verbs::SoftNic;
use wire::{Rate, WireConfig};
use worker::{Idle, Worker, WorkerConfig};

const POLICY: &str = "version = 1\ndefault = \"steer every\"\n[groups.every]\nworkers = \"all\"\n\
                      [[rules]]\nname = \"dns\"\nmatch = { protocol = \"udp\", dst_port = 53 }\naction = { steer = \"every\" }\n";
const ENGINE: &str = "hot-engine";
const ENGINES: [&str; 2] = ["hot-engine/1", "hot-engine/2"];
const WORKER: &str = "worker-0";
const NOISY: &str = "noisy";
const WARM_UP: Duration = Duration::from_millis(300);
const WINDOW: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(60);

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the contract of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the contract of this function.
        unsafe { System.dealloc(pointer, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The threads of this process with this name.
fn thread_ids(name: &str) -> Vec<i32> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|thread| thread.path());
    let named = threads.filter(|thread| {
        std::fs::read_to_string(thread.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    });
    named.map(|thread| thread.file_name().unwrap().to_str().unwrap().parse().unwrap()).collect()
}

/// The scene; it ends with its standard input.
#[test]
#[ignore = "run by the other tests in a process of its own"]
fn child() {
    let Ok(mode) = std::env::var("HOT_THREADS_MODE") else { return };
    let (drive, ports) = match mode.as_str() {
        "inline" => (Drive::Inline, 1),
        "two engines" => (Drive::Threads { cores: vec![None; 2] }, 2),
        _ => (Drive::Thread { core: None }, 1),
    };
    let WireConfig::Generator(mut config) = "generator".parse().unwrap() else { panic!("a generator") };
    // An engine that waits for the next frame sleeps.
    config.rate = Rate::FlatOut;
    let wire = || WireConfig::Generator(config.clone()).open().unwrap();
    let nic = SoftNic::create(SoftNicConfig {
        name: ENGINE.to_owned(),
        personality: Personality::Ideal,
        ports: (0..ports).map(|_| PortConfig { wire: wire(), mtu_bytes: 1500 }).collect(),
        drive,
    })
    .unwrap();
    let device = Device::open(&DeviceSelector::named(ENGINE), Some(&nic)).unwrap();
    let config = WorkerConfig {
        idle: Idle::Spin,
        pages: vec![hugemem::PageKind::Plain],
        ..WorkerConfig::new(WorkerId(0))
    };
    let worker = Worker::new(device.context(), config).unwrap();
    let mut controller = Controller::new(&device, (1..=ports).collect(), vec![worker.work_queue()]).unwrap();
    let control = worker.control();
    let handle = worker.spawn().unwrap();
    let (policy, _) = policy::parse(&Source::new("hot.toml", POLICY), &NoFiles).unwrap();
    let program = Arc::new(compiler::compile(&policy, &DeviceModel::ideal(), 1).unwrap());
    controller
        .install(program, &mut |stage| {
            let publication = control.publish(stage);
            assert!(control.wait(publication, PATIENCE));
            Ok(())
        })
        .unwrap();
    std::thread::Builder::new()
        .name(NOISY.to_owned())
        .spawn(|| {
            loop {
                std::thread::sleep(Duration::from_millis(1));
            }
        })
        .unwrap();
    std::thread::sleep(WARM_UP);
    let (packets, allocations) = (control.progress().received_packets, ALLOCATIONS.load(Ordering::Relaxed));
    std::thread::sleep(WINDOW);
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - allocations;
    let packets = control.progress().received_packets - packets;
    let hot: &[&str] = match mode.as_str() {
        "inline" => &[WORKER],
        "two engines" => &[ENGINES[0], ENGINES[1], WORKER],
        _ => &[ENGINE, WORKER],
    };
    let hot: Vec<i32> = hot.iter().flat_map(|name| thread_ids(name)).collect();
    println!("\nready {packets} {allocations} {:?} {:?}", thread_ids(NOISY), hot);
    let _ = std::io::stdin().read(&mut [0]);
    controller.clear().unwrap();
    handle.join().unwrap();
}

/// Numbers in a text.
fn numbers(text: &str) -> Vec<i32> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// Waits until a traced thread stops; returns its status word, or `None` when the time is over.
fn stop_of(thread: i32, deadline: Instant) -> Option<i32> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is writable; a thread that is not traced is an error.
        let stopped = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL | libc::WNOHANG) };
        assert!(stopped >= 0, "waitpid: {}", std::io::Error::last_os_error());
        if stopped == thread {
            return Some(status);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn ptrace(request: libc::c_uint, thread: i32, data: libc::c_long) -> std::io::Result<()> {
    let none: libc::c_long = 0;
    // SAFETY: none of the requests here uses memory of this process.
    match unsafe { libc::ptrace(request, thread, none, data) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// How often a thread of the child enters the kernel by a system call, in a window of time.
fn system_calls(thread: i32) -> std::io::Result<u64> {
    ptrace(libc::PTRACE_SEIZE, thread, libc::PTRACE_O_TRACESYSGOOD.into())?;
    ptrace(libc::PTRACE_INTERRUPT, thread, 0)?;
    stop_of(thread, Instant::now() + PATIENCE).expect("it stops");
    ptrace(libc::PTRACE_SYSCALL, thread, 0)?;
    let (mut stops, deadline) = (0, Instant::now() + WINDOW);
    while let Some(status) = stop_of(thread, deadline) {
        // A signal is delivered; a stop with an event (in the upper half) is none.
        let signal = libc::WSTOPSIG(status);
        let is_call = signal == libc::SIGTRAP | 0x80;
        stops += u64::from(is_call);
        ptrace(libc::PTRACE_SYSCALL, thread, if is_call || status >> 16 != 0 { 0 } else { signal.into() })?;
        if Instant::now() >= deadline {
            break;
        }
    }
    ptrace(libc::PTRACE_INTERRUPT, thread, 0)?;
    stop_of(thread, Instant::now() + PATIENCE).expect("it stops");
    ptrace(libc::PTRACE_DETACH, thread, 0)?;
    // One stop at the entry, one at the exit.
    Ok(stops.div_ceil(2))
}

fn start(mode: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env("HOT_THREADS_MODE", mode)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// `limit`: of the system calls of a thread.
fn measure(mode: &str, threads: usize, limit: u64) {
    let mut child = start(mode);
    // Open until the child has ended, which writes to it.
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let ready = lines.find_map(|line| Some(numbers(line.strip_prefix("ready ")?)));
    let [packets, allocations, noisy, hot @ ..] = ready.as_deref().unwrap() else { panic!("{ready:?}") };
    assert!(*packets > 1000, "there was traffic: {packets} packets");
    assert_eq!(hot.len(), threads, "{mode}: {hot:?}");
    let traced = system_calls(*noisy).and_then(|noisy| {
        let hot = hot.iter().map(|thread| system_calls(*thread)).collect::<std::io::Result<Vec<_>>>()?;
        Ok((noisy, hot))
    });
    drop(child.stdin.take());
    let text: Vec<String> = lines.collect();
    assert!(child.wait().unwrap().success(), "{text:?}");
    assert_eq!(*allocations, 0, "{mode}: allocations while {packets} packets were received");
    match traced {
        Err(error) => test_support::not_run("counting system calls", &format!("ptrace: {error}")),
        Ok((noisy, hot)) => {
            println!(
                "{mode}: {packets} packets, {allocations} allocations, system calls {hot:?}, of a thread that sleeps {noisy}"
            );
            assert!(noisy > 10, "the counting works: {noisy}");
            assert!(hot.iter().all(|calls| *calls <= limit), "{mode}: {hot:?}");
        }
    }
}

#[test]
fn a_dedicated_engine_and_its_worker_do_not_call_the_kernel() {
    measure("dedicated", 2, 0);
}

#[test]
fn a_worker_that_drives_the_engine_does_not_call_the_kernel() {
    measure("inline", 1, 0);
}

#[test]
fn two_engine_threads_call_the_kernel_at_most_to_wait_for_each_other() {
    /// Without an interruption the mutex is held for a few microseconds, and a waiter spins as long.
    const CALLS_PER_SECOND: u64 = 2_000;
    measure("two engines", 3, CALLS_PER_SECOND * WINDOW.as_millis() as u64 / 1000);
}
