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
            /// All of them, with different names; each is at its index, `self as usize`.
            pub const ALL: [Self; [$($label,)*].len()] = [$(Self::$variant,)*];

            /// The name as a metric label.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $label,)*
                }
            }
        }

        const _: () = assert!($crate::labels::are_distinct(&[$($label,)*]), "two variants have one name");
    };
}

pub(crate) use labels;

/// Whether no two of the names are the same.
pub(crate) const fn are_distinct(names: &[&str]) -> bool {
    let mut second = 1;
    while second < names.len() {
        let mut first = 0;
        while first < second {
            if is_same(names[first].as_bytes(), names[second].as_bytes()) {
                return false;
            }
            first += 1;
        }
        second += 1;
    }
    true
}

/// The operator `==` of slices, which constants cannot use.
const fn is_same(left: &[u8], right: &[u8]) -> bool {
    let mut index = 0;
    while index < left.len() && index < right.len() && left[index] == right[index] {
        index += 1;
    }
    index == left.len() && index == right.len()
}

#[cfg(test)]
mod tests {
    use super::are_distinct;

    #[test]
    fn equal_names_are_found_wherever_they_are() {
        assert!(are_distinct(&[]) && are_distinct(&["ab", "a", "b", "abc", ""]));
        assert!(!are_distinct(&["a", "b", "a"]) && !are_distinct(&["b", "a", "a"]));
    }
}
