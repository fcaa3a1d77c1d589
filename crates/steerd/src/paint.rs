//! Colours and line ends for people: colours only on a terminal, and not where NO_COLOR is set (no-color.org) or TERM
//! is "dumb"; lines are broken at the terminal's width, and never elsewhere, so that a program gets a finding a line.

use std::io::IsTerminal;

/// What a piece of text says, and so its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Doubtful,
    Bad,
    Head,
    Aside,
    Plain,
}

/// Whether what goes to `stream` may have colours.
pub(crate) fn is_wanted(stream: &impl IsTerminal) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    stream.is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// Whether to paint at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Paint(bool);

impl Paint {
    /// For what goes to stdout.
    pub(crate) fn stdout() -> Self {
        Self(is_wanted(&std::io::stdout()))
    }

    pub(crate) fn text(self, tone: Tone, text: &str) -> String {
        if !self.0 || text.is_empty() || tone == Tone::Plain {
            return text.to_owned();
        }
        let code = match tone {
            Tone::Plain => "0",
            Tone::Good => "32",
            Tone::Doubtful => "33",
            Tone::Bad => "31;1",
            Tone::Head => "1",
            Tone::Aside => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// A narrower terminal is written to as if it had this width: words would stand alone on their lines.
const NARROWEST: usize = 40;

/// Where text goes: its colours, and its width if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    paint: Paint,
    width: Option<usize>,
}

impl Page {
    /// For what goes to stdout.
    pub(crate) fn stdout() -> Self {
        let stdout = std::io::stdout();
        let columns = stdout.is_terminal().then(|| rustix::termios::tcgetwinsize(&stdout).ok()).flatten();
        // A terminal that does not know its width says 0.
        let columns = columns.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
        Self { paint: Paint::stdout(), width: columns.map(|columns| columns.max(NARROWEST)) }
    }

    pub(crate) fn text(self, tone: Tone, text: &str) -> String {
        self.paint.text(tone, text)
    }

    /// Painted text behind `before`; further lines begin below it.
    pub(crate) fn lines(self, tone: Tone, before: &str, text: &str) -> String {
        let indent = " ".repeat(before.chars().count());
        let lines = self.broken(before.chars().count(), &indent, text);
        let painted: Vec<String> = lines.iter().map(|line| self.text(tone, line)).collect();
        format!("{before}{}\n", painted.join(&format!("\n{indent}")))
    }

    /// Plain text behind a painted `before`; further lines begin with `indent`.
    pub(crate) fn lines_after(self, tone: Tone, before: &str, indent: &str, text: &str) -> String {
        let lines = self.broken(before.chars().count(), indent, text);
        let name = before.trim();
        let painted = before.replacen(name, &self.text(tone, name), 1);
        format!("{painted}{}\n", lines.join(&format!("\n{indent}")))
    }

    /// The text in lines: the first has `taken` columns less, the others the indent's.
    fn broken(self, taken: usize, indent: &str, text: &str) -> Vec<String> {
        let Some(width) = self.width else { return vec![text.to_owned()] };
        let mut lines = vec![String::new()];
        let mut used = taken;
        for word in text.split(' ') {
            let length = word.chars().count();
            let Some(line) = lines.last_mut() else { break };
            if line.is_empty() || used + 1 + length <= width {
                if !line.is_empty() {
                    line.push(' ');
                    used += 1;
                }
                line.push_str(word);
                used += length;
            } else {
                lines.push(word.to_owned());
                used = indent.chars().count() + length;
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_at_the_width_and_hang() {
        let page = |width| Page { paint: Paint(false), width };
        let text = "one two three";
        assert_eq!(page(None).lines(Tone::Good, "  a: ", text), "  a: one two three\n");
        assert_eq!(page(Some(12)).lines(Tone::Good, "  a: ", text), "  a: one two\n     three\n");
        assert_eq!(page(Some(13)).lines_after(Tone::Good, "  a: ", "  ", text), "  a: one two\n  three\n");
        assert_eq!(page(Some(4)).lines(Tone::Good, "  a: ", text), "  a: one\n     two\n     three\n");
        let painted = Page { paint: Paint(true), width: Some(12) };
        assert_eq!(
            painted.lines(Tone::Good, "  a: ", text),
            "  a: \x1b[32mone two\x1b[0m\n     \x1b[32mthree\x1b[0m\n"
        );
        assert_eq!(painted.lines_after(Tone::Good, "  a: ", "", "x"), "  \x1b[32ma:\x1b[0m x\n");
    }

    #[test]
    fn plain_text_stays_as_it_is() {
        assert_eq!(Paint(false).text(Tone::Bad, "no"), "no");
        assert_eq!(Paint(true).text(Tone::Bad, "no"), "\x1b[31;1mno\x1b[0m");
        assert_eq!(Paint(true).text(Tone::Good, ""), "");
    }
}
