//! The indirection tables that the queue pairs of a program share.

use foldhash::{HashMap, HashMapExt as _};
use program::{Program, WorkerId};

/// The tables that a program's queue pairs need, each once, and which of them each queue pair has.
pub(crate) fn distinct_tables(program: &Program) -> (Vec<Vec<WorkerId>>, Vec<usize>) {
    let mut tables = Vec::new();
    let mut known: HashMap<&[WorkerId], usize> = HashMap::new();
    let mut of_queue = Vec::with_capacity(program.queues.len());
    for queue in &program.queues {
        let table = *known.entry(&queue.table).or_insert_with(|| {
            tables.push(queue.table.clone());
            tables.len() - 1
        });
        of_queue.push(table);
    }
    (tables, of_queue)
}
