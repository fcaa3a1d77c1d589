//! Descriptions of rules and groups: texts for people, which no decision depends on.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// A description of one line or several, separated by `\n`. It has no other control character, and none that
/// changes the direction of text, so a terminal can show it. Copies share the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptionText(Arc<str>);

/// Why a text is no description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptionFault {
    /// It has no character but blanks.
    #[error("it is empty")]
    Empty,
    /// It is longer than [`DescriptionText::MAX_BYTES`].
    #[error("it has {0} bytes, at most {max} are allowed", max = DescriptionText::MAX_BYTES)]
    TooLong(usize),
    /// It contains this character.
    #[error("it contains the control character U+{:04X}", u32::from(*.0))]
    Control(char),
}

impl DescriptionText {
    /// The longest description, in bytes of UTF-8.
    pub const MAX_BYTES: usize = 1024;

    /// Checks a text. White space around it is removed, and line ends become `\n`.
    ///
    /// # Errors
    /// The text is empty, too long, or contains a control character.
    pub fn new(text: &str) -> Result<Self, DescriptionFault> {
        let text = text.replace("\r\n", "\n");
        let text = text.trim();
        if text.is_empty() {
            return Err(DescriptionFault::Empty);
        }
        if let Some(control) = text.chars().find(|c| *c != '\n' && is_control(*c)) {
            return Err(DescriptionFault::Control(control));
        }
        if text.len() > Self::MAX_BYTES {
            return Err(DescriptionFault::TooLong(text.len()));
        }
        Ok(Self(text.into()))
    }
}

/// Returns whether a terminal does not show the character as text: control characters, the separators of
/// lines and paragraphs, and the marks that change the direction of text (Unicode Standard Annex 9).
fn is_control(c: char) -> bool {
    let changes_direction = matches!(c, '\u{200e}' | '\u{200f}' | '\u{61c}')
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || changes_direction || matches!(c, '\u{2028}' | '\u{2029}')
}

impl Deref for DescriptionText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DescriptionText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for DescriptionText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_has_lines_without_control_characters() {
        let new = |text: &str| DescriptionText::new(text);
        assert_eq!(new("\n  one\r\ntwo\n").as_deref(), Ok("one\ntwo"));
        assert_eq!(new(" \n"), Err(DescriptionFault::Empty));
        assert_eq!(new("a\u{1b}[2J"), Err(DescriptionFault::Control('\u{1b}')));
        assert_eq!(new("a\tb"), Err(DescriptionFault::Control('\t')));
        assert_eq!(new("a\u{202e}b"), Err(DescriptionFault::Control('\u{202e}')));
        assert!(new(&"é".repeat(512)).is_ok());
        let fault = new(&"é".repeat(513)).expect_err("too long");
        assert_eq!(fault.to_string(), "it has 1026 bytes, at most 1024 are allowed");
        let control = new("a\u{7}").expect_err("a bell").to_string();
        assert_eq!(control, "it contains the control character U+0007");
    }
}
