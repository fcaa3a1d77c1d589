//! Remedies of problems: a text for people, and where the remedy is a replacement of text, that replacement,
//! which an editor can apply.

use crate::diagnostics::Place;

/// The remedy of a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProblemHint {
    text: String,
    correction: Option<Correction>,
}

/// A correction of the marked text.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Correction {
    /// The word `wrong` of the marked text becomes `right`; quotes around it stay.
    Word { wrong: String, right: String },
    /// The marked text, quotes included, becomes this one.
    Whole(String),
    /// The rule becomes two: each has one of the keys, and all the others.
    RuleForEach([String; 2]),
}

/// A replacement of text that is the remedy of a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextReplacement {
    /// The text that is replaced; an empty place is one to insert at.
    pub place: Place,
    /// The new text.
    pub text: String,
}

impl ProblemHint {
    /// The hint that `right` was probably meant by `wrong`, a word of the marked text.
    #[must_use]
    pub fn meant(wrong: &str, right: &str) -> Self {
        Self::word(format!("did you mean `{right}`?"), wrong, right)
    }

    /// The hint to write `right` in the place of `wrong`, a word of the marked text.
    #[must_use]
    pub fn write(wrong: &str, right: &str) -> Self {
        Self::word(format!("write {right}"), wrong, right)
    }

    /// A hint, and its effect on the marked text: the word `wrong` becomes `right`.
    #[must_use]
    pub fn word(text: impl Into<String>, wrong: &str, right: &str) -> Self {
        let correction = Correction::Word { wrong: wrong.to_owned(), right: right.to_owned() };
        Self { text: text.into(), correction: Some(correction) }
    }

    /// A hint, and the text that the whole marked text becomes.
    #[must_use]
    pub fn whole(text: impl Into<String>, replacement: impl Into<String>) -> Self {
        Self { text: text.into(), correction: Some(Correction::Whole(replacement.into())) }
    }

    /// The hint to write a rule for each of two keys; that with `first` comes first.
    #[must_use]
    pub fn rule_for_each(text: impl Into<String>, first: &str, second: &str) -> Self {
        let keys = [first.to_owned(), second.to_owned()];
        Self { text: text.into(), correction: Some(Correction::RuleForEach(keys)) }
    }

    /// The keys that become one rule each, in the order of the rules.
    #[must_use]
    pub fn separate_keys(&self) -> Option<&[String; 2]> {
        match self.correction.as_ref()? {
            Correction::RuleForEach(keys) => Some(keys),
            Correction::Word { .. } | Correction::Whole(_) => None,
        }
    }

    /// The hint for people.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The replacement that carries the hint out, for a problem at `place`; `None`: it is for people only, or
    /// the marked text is not the one that the hint is about, as with escapes or variables in it.
    #[must_use]
    pub fn replacement(&self, place: &Place) -> Option<TextReplacement> {
        match self.correction.as_ref()? {
            // The replacement is made of the value of a variable; the text would lose its name.
            Correction::Whole(_) if place.text().is_some_and(|marked| marked.contains("${")) => None,
            Correction::Whole(text) => Some(TextReplacement { place: place.clone(), text: text.clone() }),
            Correction::Word { wrong, right } => word_replacement(place, wrong, right),
            Correction::RuleForEach(_) => None,
        }
    }
}

/// The replacement of the only occurrence of a word in a place.
fn word_replacement(place: &Place, wrong: &str, right: &str) -> Option<TextReplacement> {
    let marked = place.text()?;
    // What would have to be escaped in a string is left to people.
    if wrong.is_empty() || right.contains(['"', '\'', '\\']) || right.contains(char::is_control) {
        return None;
    }
    let mut found = marked.match_indices(wrong);
    let (Some((at, _)), None) = (found.next(), found.next()) else { return None };
    let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let is_bare_key = marked == wrong && wrong.chars().all(is_bare);
    let text = match is_bare_key && !right.chars().all(is_bare) {
        true => format!("\"{right}\""),
        false => right.to_owned(),
    };
    Some(TextReplacement { place: place.part(at..at + wrong.len()), text })
}

impl From<String> for ProblemHint {
    fn from(text: String) -> Self {
        Self { text, correction: None }
    }
}

impl From<&str> for ProblemHint {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<&String> for ProblemHint {
    fn from(text: &String) -> Self {
        text.clone().into()
    }
}

impl From<ProblemHint> for String {
    fn from(hint: ProblemHint) -> Self {
        hint.text
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::source::Source;

    /// The text after the hint for the marked part of a text was applied.
    fn applied(text: &str, marked: &str, hint: &ProblemHint) -> Option<String> {
        let at = text.find(marked).expect("it is in the text");
        let place = Place::new(&Arc::new(Source::new("p.toml", text)), at..at + marked.len());
        let replacement = hint.replacement(&place)?;
        let mut text = text.to_owned();
        text.replace_range(replacement.place.span(), &replacement.text);
        Some(text)
    }

    #[test]
    fn quotes_around_words_stay() {
        let meant = |text, marked| applied(text, marked, &ProblemHint::meant("tpc", "tcp"));
        assert_eq!(meant("a = \"tpc\"", "\"tpc\"").as_deref(), Some("a = \"tcp\""));
        assert_eq!(meant("a = 'tpc'", "'tpc'").as_deref(), Some("a = 'tcp'"));
        assert_eq!(meant("tpc = 1", "tpc").as_deref(), Some("tcp = 1"));
        let number = ProblemHint::whole("write 5, without quotes", "5");
        assert_eq!(applied("a = \"5\"", "\"5\"", &number).as_deref(), Some("a = 5"));
    }

    #[test]
    fn keys_are_quoted_where_needed() {
        let hint = ProblemHint::meant("web1", "web.1");
        assert_eq!(applied("web1 = 1", "web1", &hint).as_deref(), Some("\"web.1\" = 1"));
        assert_eq!(applied("a = \"web1\"", "\"web1\"", &hint).as_deref(), Some("a = \"web.1\""));
    }

    #[test]
    fn ambiguous_places_have_no_replacement() {
        let hint = ProblemHint::meant("rz", "rx");
        assert_eq!(applied("a = \"rz rz\"", "\"rz rz\"", &hint), None);
        assert_eq!(applied("a = \"r\\u007a\"", "\"r\\u007a\"", &hint), None);
        assert_eq!(applied("a = \"rz\"", "\"rz\"", &ProblemHint::meant("rz", "a\"b")), None);
        assert_eq!(applied("a = \"rz\"", "\"rz\"", &ProblemHint::from("write something")), None);
    }

    #[test]
    fn variables_are_not_replaced_by_their_values() {
        let hint = ProblemHint::whole("write \"10.0.0.0/8\"", "\"10.0.0.0/8\"");
        assert_eq!(applied("a = \"${net}/8\"", "\"${net}/8\"", &hint), None);
        assert_eq!(
            applied("a = \"10.1.0.0/8\"", "\"10.1.0.0/8\"", &hint).as_deref(),
            Some("a = \"10.0.0.0/8\"")
        );
    }
}
