//! Sets that name one another in a circle: each is refused by name. Called by
//! `parse` once all files are read. Whoever reads a set reads each set once, so a circle does no harm there.

use crate::diagnostics::{Place, Severity};

use super::super::reader::Reader;
use super::Sets;

impl Sets {
    /// Reports sets that name one another in a circle.
    pub(in crate::parse) fn refuse_circles(&self, reader: &mut Reader) {
        #[derive(Clone, Copy, PartialEq)]
        enum State {
            New,
            Open,
            Done,
        }
        let mut states = vec![State::New; self.list.len()];
        for start in 0..self.list.len() {
            // From `start` down to the set that is being looked at, each with its next item.
            let mut path = match states[start] {
                State::Done => Vec::new(),
                _ => vec![(start, 0)],
            };
            while let Some((set, next)) = path.last_mut() {
                let (set, item) = (*set, *next);
                *next += 1;
                states[set] = State::Open;
                if item == self.list[set].items.len() {
                    states[set] = State::Done;
                    path.pop();
                    continue;
                }
                match self.named_by(&self.list[set], item).map(|other| (other, states[other])) {
                    Some((other, State::New)) => path.push((other, 0)),
                    Some((other, State::Open)) => {
                        let circle = path.iter().map(|(set, _)| *set).skip_while(|set| *set != other);
                        self.refuse_circle(reader, &self.list[set].items.place(item), &circle);
                    }
                    Some((_, State::Done)) | None => {}
                }
            }
        }
    }

    /// `circle`: from the set that is named at `place` to the one that names it there.
    fn refuse_circle(
        &self,
        reader: &mut Reader,
        place: &Place,
        circle: &(impl Iterator<Item = usize> + Clone),
    ) {
        /// So many names are told of a long circle.
        const SHOWN: usize = 8;
        reader.diagnostics.push_with(Severity::Error, || {
            let name = |set: usize| format!("`{}`", self.list[set].name);
            let mut names: Vec<String> = circle.clone().take(SHOWN).map(name).collect();
            names.extend(circle.clone().nth(SHOWN).map(|_| "...".to_owned()));
            names.extend(circle.clone().next().map(name));
            let message = format!("sets name one another: {}", names.join(" names "));
            place.error(message, "closes the circle").hint("remove one of these names")
        });
    }
}
