//! Waiting that ends: a step on a thread of its own, given up after a time.
//!
//! The end of the daemon takes such steps, because what is stuck cannot be made to end, and the process must.

use std::sync::mpsc;
use std::time::Duration;

/// Runs `step` on a thread called `name`; `None`: it was not done after `patience`, or panicked. What it holds stays
/// with its thread, which ends with the process.
pub(crate) fn within<T: Send + 'static>(
    name: &str,
    patience: Duration,
    step: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, result) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        // Nobody waits any more: then nobody wants it.
        let _ = done.send(step());
    });
    thread.ok()?;
    result.recv_timeout(patience).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_step_that_is_done_gives_its_result_and_one_that_hangs_is_left() {
        assert_eq!(within("quick", Duration::from_secs(60), || 7), Some(7));
        let (release, held) = mpsc::channel::<()>();
        let begun = Instant::now();
        let hung = within("hung", Duration::from_millis(20), move || held.recv());
        assert!(hung.is_none() && begun.elapsed() < Duration::from_secs(30));
        drop(release);
        assert_eq!(within("panicking", Duration::from_secs(60), || -> u8 { panic!("a test's panic") }), None);
    }
}
