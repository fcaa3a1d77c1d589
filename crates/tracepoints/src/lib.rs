//! Static tracepoints (USDT) of the provider `steerd`, for bpftrace, perf and gdb, as
//! docs/reference/tracepoints.md lists them for operators.
//!
//! A tracepoint is a `nop` instruction, and a note in the program's file that says where it is and which
//! registers have the arguments (<https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation>). Without
//! a tracer it costs the call of a function with nothing but the `nop`, and its arguments are numbers and
//! addresses that are there. The functions are not inlined: the linker removes functions that nobody calls,
//! but not the notes of tracepoints in them, which tracers would then take for places of the program.
//!
//! The macro of the crate `probe` expands to inline assembly in an `unsafe` block. It is in this crate alone,
//! so that the callers can forbid unsafe code. Its only instruction is the `nop`; the rest of the text is the
//! note. The block reads its operands and nothing else, and declares that it changes neither memory nor the
//! stack nor flags.

use std::time::Duration;

use probe::probe;

/// A reload begins: the generation in force.
#[cold]
#[inline(never)]
pub fn reload_begin(generation: u64) {
    probe!(steerd, reload_begin, generation);
}

/// A reload has ended: the generation in force now, 1 if the policy was accepted or else 0, and the time that
/// it took in microseconds.
#[cold]
#[inline(never)]
pub fn reload_end(generation: u64, is_accepted: bool, took: Duration) {
    let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    probe!(steerd, reload_end, generation, is_accepted, took_us);
}

/// A worker has dropped packets without a rule: the reason as address and length of a text, and their number.
#[cold]
#[inline(never)]
pub fn worker_drop(reason: &'static str, packets: u64) {
    probe!(steerd, worker_drop, reason.as_ptr(), reason.len(), packets);
}

/// A sink has not passed packets on: the reason as address and length of a text, and their number.
#[cold]
#[inline(never)]
pub fn sink_drop(reason: &'static str, packets: u64) {
    probe!(steerd, sink_drop, reason.as_ptr(), reason.len(), packets);
}

/// A worker or an engine makes no progress: its name as address and length of a text, and the time in
/// milliseconds.
#[cold]
#[inline(never)]
pub fn stall_begin(part: &str, idle: Duration) {
    let idle_ms = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
    probe!(steerd, stall_begin, part.as_ptr(), part.len(), idle_ms);
}

/// A worker or an engine makes progress again: its name as address and length of a text, and the time
/// without progress in milliseconds.
#[cold]
#[inline(never)]
pub fn stall_end(part: &str, idle: Duration) {
    let idle_ms = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
    probe!(steerd, stall_end, part.as_ptr(), part.len(), idle_ms);
}
