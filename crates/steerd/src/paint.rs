//! Colours for people: only on a terminal, and not where NO_COLOR is set (no-color.org) or TERM is "dumb".
//! Commands decide by it what to wrap; it never changes the text itself.

use std::io::IsTerminal;

/// What a piece of text says, and so its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Doubtful,
    Bad,
    Head,
    Aside,
}

/// Whether to paint at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Paint(bool);

impl Paint {
    /// For what goes to stdout.
    pub(crate) fn stdout() -> Self {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self(std::io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb)
    }

    pub(crate) fn text(self, tone: Tone, text: &str) -> String {
        if !self.0 || text.is_empty() {
            return text.to_owned();
        }
        let code = match tone {
            Tone::Good => "32",
            Tone::Doubtful => "33",
            Tone::Bad => "31;1",
            Tone::Head => "1",
            Tone::Aside => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_stays_as_it_is() {
        assert_eq!(Paint(false).text(Tone::Bad, "no"), "no");
        assert_eq!(Paint(true).text(Tone::Bad, "no"), "\x1b[31;1mno\x1b[0m");
        assert_eq!(Paint(true).text(Tone::Good, ""), "");
    }
}
