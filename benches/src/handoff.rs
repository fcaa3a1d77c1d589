//! The baseline: frames copied into free buffers on one core and handed to another core through crossbeam's bounded
//! queues, without parsing, flows, hashes or completions. The difference is the cost of the dataplane.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam::queue::ArrayQueue;

/// As many as a worker posts.
const BUFFERS: usize = 4096;

/// Frames per second from the first to the second core, over `time`.
///
/// # Panics
/// If a thread cannot be started.
#[must_use]
pub fn handoff_frames_per_second(frame_bytes: usize, cores: (usize, usize), time: Duration) -> f64 {
    let free = Arc::new(ArrayQueue::new(BUFFERS));
    let full = Arc::new(ArrayQueue::new(BUFFERS));
    for _ in 0..BUFFERS {
        free.push(vec![0_u8; frame_bytes]).expect("there is room for all buffers");
    }
    let stop = Arc::new(AtomicBool::new(false));
    let producer = {
        let (free, full, stop) = (Arc::clone(&free), Arc::clone(&full), Arc::clone(&stop));
        std::thread::spawn(move || {
            pin(cores.0);
            let frames: Vec<Vec<u8>> = (0..1024).map(|index| vec![index as u8; frame_bytes]).collect();
            for frame in frames.iter().cycle() {
                let mut buffer = loop {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    if let Some(buffer) = free.pop() {
                        break buffer;
                    }
                };
                buffer.copy_from_slice(frame);
                full.push(buffer).expect("it holds every buffer");
            }
        })
    };
    let consumer = std::thread::spawn(move || {
        pin(cores.1);
        let (start, mut frames) = (Instant::now(), 0_u64);
        while start.elapsed() < time {
            for _ in 0..1024 {
                if let Some(buffer) = full.pop() {
                    frames += 1;
                    free.push(buffer).expect("it holds every buffer");
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        frames as f64 / start.elapsed().as_secs_f64()
    });
    let rate = consumer.join().expect("the consumer ends");
    producer.join().expect("the producer ends");
    rate
}

fn pin(core: usize) {
    // Without that core the figure is worse, but valid.
    core_affinity::set_for_current(core_affinity::CoreId { id: core });
}
