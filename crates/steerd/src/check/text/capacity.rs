//! What a program takes of a device, as a table of what can run out and one of its priorities. Makes text alone.

use compiler::{Capacity, CapacityRow};

use crate::paint::{Page, Tone};
use crate::table::{Grid, number};

/// As many priorities are listed one by one.
const SHOWN_PRIORITIES: usize = 16;

pub(super) fn taken(capacity: &Capacity, page: Page) -> String {
    let mut grid = Grid::new(&[&format!("capacity of {}", capacity.device), "used", "of", ""]);
    let rows = capacity.rows.iter().filter(|row| row.used > 0 || row.exceeds());
    for row in rows {
        let most = row.most.map_or_else(|| "-".to_owned(), number);
        grid.row(vec![row.what.to_owned(), number(row.used), most, remark(row)]);
    }
    let mut out = format!("\n{}", headed(&grid, page));
    // Devices limit all priorities alike, or none.
    if let Some((masks, flows)) = capacity.priorities.iter().find_map(|priority| priority.most) {
        out.push_str(&priorities(capacity, page));
        let flows = number(flows.into());
        let room = format!(
            "a priority has {masks} groups of up to {flows} flows of one mask, and room for one flow of each mask more"
        );
        out.push_str(&page.lines(Tone::Aside, "", &room));
    }
    out
}

fn priorities(capacity: &Capacity, page: Page) -> String {
    let mut grid = Grid::new(&["priority", "flows", "masks", "largest mask"]);
    for priority in capacity.priorities.iter().take(SHOWN_PRIORITIES) {
        grid.row(vec![
            priority.priority.to_string(),
            number(priority.flows),
            number(priority.shapes),
            number(priority.largest_shape),
        ]);
    }
    let more = capacity.priorities.len().saturating_sub(SHOWN_PRIORITIES);
    let rest = if more > 0 { format!("and {more} more\n") } else { String::new() };
    format!("\n{}{rest}", headed(&grid, page))
}

/// A table with its head painted.
fn headed(grid: &Grid, page: Page) -> String {
    let text = grid.text();
    let (head, rest) = text.split_once('\n').unwrap_or((&text, ""));
    format!("{}\n{rest}", page.text(Tone::Head, head))
}

fn remark(row: &CapacityRow) -> String {
    if row.exceeds() {
        format!("too many: {}", row.errno)
    } else if row.blocks_a_reload() {
        format!("no room for a reload: {}", row.errno)
    } else if row.most.is_some_and(|most| row.used > most) {
        format!("not all: {}", row.errno)
    } else {
        String::new()
    }
}
