//! The words that values of a match may have, for editors. Each of them is read by the parser.

use packet::{FIELDS, Form, Header};

use crate::parse::value_names;

/// The words that a key of a match may have as its value, without quotes; none for a key whose values are
/// numbers and addresses, or that there is not.
///
/// ```
/// assert!(policy::value_words("protocol").contains(&"udp".to_owned()));
/// assert!(policy::value_words("dst_port").is_empty());
/// ```
#[must_use]
pub fn value_words(key: &str) -> Vec<String> {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    match key {
        "dscp" => {
            let classes = (0..8).map(|class| format!("cs{class}"));
            let assured = (1..5).flat_map(|class| (1..4).map(move |drop| format!("af{class}{drop}")));
            return classes.chain(assured).chain(["ef".to_owned()]).collect();
        }
        "ecn" => return owned(&["not_ect", "ect1", "ect0", "ce"]),
        "fragment" => return owned(&["any", "none", "first", "later"]),
        "mpls" => return owned(&["any"]),
        _ => {}
    }
    let row = FIELDS.iter().find(|row| row.name == key);
    match row.map(|row| row.form) {
        // The types of VLAN tags have no names.
        Some(Form::EtherType)
            if row.is_some_and(|row| matches!(row.header, Header::Vlan | Header::InnerVlan)) =>
        {
            Vec::new()
        }
        Some(Form::EtherType) => owned(value_names::ETHER_TYPES.as_slice()),
        Some(Form::Protocol) => value_names::protocols(),
        Some(Form::VlanId) => owned(&["none", "any"]),
        Some(Form::Mac) => owned(&["multicast", "broadcast"]),
        Some(Form::Flags(known)) => known.iter().map(|(name, _)| (*name).to_owned()).collect(),
        Some(Form::Number | Form::Bits | Form::Port | Form::Address) | None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NoFiles, Source, parse};

    #[test]
    fn every_word_is_a_value() {
        let keys = FIELDS.iter().map(|row| row.name).chain(["dscp", "ecn", "fragment", "mpls"]);
        let mut words = 0;
        for key in keys {
            for word in value_words(key) {
                let rule = format!("name = 'r', match = {{ {key} = '{word}' }}, action = 'drop'");
                let text = format!("version = 1\nrules = [{{ {rule} }}]\n");
                let read = parse(&Source::new("p.toml", text), &NoFiles);
                // A packet may lack what other keys imply; the word itself is read.
                if let Err(problems) = read {
                    panic!("{key} = {word}: {problems}");
                }
                words += 1;
            }
        }
        assert!(words > 60, "{words}");
    }
}
