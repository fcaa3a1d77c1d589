//! Any sequence of verbs through the unmodified libibverbs, with any arguments, returns without undefined
//! behaviour.
//!
//! Handles are live ones of two contexts, or destroyed ones; structs, lists and blocks are allocated with
//! exactly their claimed length, so that the address sanitizer finds accesses beyond. Asserted: a destroyed
//! handle is EINVAL, one in use EBUSY, the port's counters add up, events refer to live objects, a parent
//! domain's allocator gets back all that it allocated, and at the end all objects can be destroyed.
#![no_main]

mod c;
mod dice;
mod domain;
mod flow;
mod make;
mod post;
mod wire;
mod world;

use libfuzzer_sys::arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;

use dice::Dice;
use world::World;

/// The most calls of a sequence: fewer than the destroyed objects whose memory a context keeps.
const MAX_STEPS: usize = 400;

type Step = fn(&mut World, &mut Dice<'_>);

/// The kinds of calls; frequent ones are listed repeatedly.
const STEPS: [Step; 32] = [
    make::domain,
    make::thread_domain,
    make::parent_domain,
    make::region,
    make::region,
    make::change_region,
    make::channel,
    make::completion_queue,
    make::completion_queue,
    make::change_cq,
    make::work_queue,
    make::work_queue,
    make::change_wq,
    make::table,
    make::table,
    make::plain_queue_pair,
    make::queue_pair,
    make::queue_pair,
    make::change_qp,
    make::query,
    make::destroy,
    make::destroy,
    flow::counters,
    flow::use_counters,
    flow::flow,
    flow::flow,
    post::receive,
    post::send,
    post::batch,
    post::poll,
    post::frames,
    events,
];

fn events(world: &mut World, dice: &mut Dice<'_>) {
    world.read_events();
    if dice.coin() {
        world.acknowledge();
    }
}

fuzz_target!(|data: &[u8]| {
    let mut dice = Dice(Unstructured::new(data));
    let mut world = World::new(&mut dice);
    // The first calls of every program.
    make::domain(&mut world, &mut dice);
    make::region(&mut world, &mut dice);
    make::completion_queue(&mut world, &mut dice);
    for _ in 0..MAX_STEPS {
        if dice.is_empty() {
            break;
        }
        let step = dice.of(&STEPS);
        step(&mut world, &mut dice);
    }
    world.pump();
    world.end();
});
