//! Enums whose variants are labels of metrics: a counter for each is an array with the places of `ALL`.

/// Makes such an enum of rows: each is a variant and its name as a label.
macro_rules! labels {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $label:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// All of them; each is at its index, `self as usize`.
            pub const ALL: [Self; [$($label,)*].len()] = [$(Self::$variant,)*];

            /// The name as a metric label.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $label,)*
                }
            }
        }
    };
}

pub(crate) use labels;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fmt::Debug;
    use std::hash::Hash;

    use crate::disposition::Disposition;
    use crate::regime::Regime;
    use crate::sink::SinkDrop;
    use crate::stats::{DropReason, Failure};

    fn check<T: Copy + Debug + Eq + Hash>(all: &[T], name: fn(T) -> &'static str, index: fn(T) -> usize) {
        let names: HashSet<&str> = all.iter().copied().map(name).collect();
        assert_eq!(names.len(), all.len(), "two have one name: {all:?}");
        assert!(all.iter().copied().map(index).eq(0..all.len()), "{all:?}");
    }

    #[test]
    fn each_variant_is_at_its_index_with_a_name_of_its_own() {
        check(&Disposition::ALL, Disposition::name, |one| one as usize);
        check(&Regime::ALL, Regime::name, |one| one as usize);
        check(&SinkDrop::ALL, SinkDrop::name, |one| one as usize);
        check(&DropReason::ALL, DropReason::name, |one| one as usize);
        check(&Failure::ALL, Failure::name, |one| one as usize);
    }
}
