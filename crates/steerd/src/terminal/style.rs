//! Colours and line breaks. Colours only on a terminal, and not if NO_COLOR is set (no-color.org) or TERM is
//! "dumb". Lines are broken at the terminal's width and nowhere else, so that programs read one finding per
//! line.

use std::io::IsTerminal;

/// The meaning of a piece of text, which determines its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Good,
    Warning,
    Bad,
    Heading,
    Dim,
    Plain,
}

/// Whether output to `stream` may have colours.
pub(crate) fn is_wanted(stream: &impl IsTerminal) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    stream.is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// Whether to colors at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Colors(bool);

impl Colors {
    /// The style of stdout.
    pub(crate) fn stdout() -> Self {
        Self(is_wanted(&std::io::stdout()))
    }

    pub(crate) fn text(self, tone: Style, text: &str) -> String {
        if !self.0 || text.is_empty() || tone == Style::Plain {
            return text.to_owned();
        }
        let code = match tone {
            Style::Plain => "0",
            Style::Good => "32",
            Style::Warning => "33",
            Style::Bad => "31;1",
            Style::Heading => "1",
            Style::Dim => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// The least width: a narrower terminal would get single words per line.
const NARROWEST: usize = 40;

/// Colours, and the width to break lines at if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    colors: Colors,
    width: Option<usize>,
}

impl Layout {
    /// The style of stdout.
    pub(crate) fn stdout() -> Self {
        let stdout = std::io::stdout();
        let columns = stdout.is_terminal().then(|| rustix::termios::tcgetwinsize(&stdout).ok()).flatten();
        // A terminal of unknown width reports 0.
        let columns = columns.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
        Self { colors: Colors::stdout(), width: columns.map(|columns| columns.max(NARROWEST)) }
    }

    pub(crate) fn text(self, tone: Style, text: &str) -> String {
        self.colors.text(tone, text)
    }

    /// Styled text after `before`; continuation lines are indented to its width.
    pub(crate) fn lines(self, tone: Style, before: &str, text: &str) -> String {
        let indent = " ".repeat(before.chars().count());
        let lines = self.broken(before.chars().count(), &indent, text);
        let painted: Vec<String> = lines.iter().map(|line| self.text(tone, line)).collect();
        format!("{before}{}\n", painted.join(&format!("\n{indent}")))
    }

    /// Plain text after a styled `before`; continuation lines begin with `indent`.
    pub(crate) fn lines_after(self, tone: Style, before: &str, indent: &str, text: &str) -> String {
        let lines = self.broken(before.chars().count(), indent, text);
        let name = before.trim();
        let painted = before.replacen(name, &self.text(tone, name), 1);
        format!("{painted}{}\n", lines.join(&format!("\n{indent}")))
    }

    /// Breaks the text into lines: the first has `taken` columns less, the others the indent's.
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

/// The lines of a text that is broken at this width. A word that is longer is a line of its own.
pub(crate) fn broken_at(width: usize, text: &str) -> Vec<String> {
    Layout { colors: Colors(false), width: Some(width) }.broken(0, "", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_at_the_width_and_hang() {
        let layout = |width| Layout { colors: Colors(false), width };
        let text = "one two three";
        assert_eq!(layout(None).lines(Style::Good, "  a: ", text), "  a: one two three\n");
        assert_eq!(layout(Some(12)).lines(Style::Good, "  a: ", text), "  a: one two\n     three\n");
        assert_eq!(layout(Some(13)).lines_after(Style::Good, "  a: ", "  ", text), "  a: one two\n  three\n");
        assert_eq!(layout(Some(4)).lines(Style::Good, "  a: ", text), "  a: one\n     two\n     three\n");
        let painted = Layout { colors: Colors(true), width: Some(12) };
        assert_eq!(
            painted.lines(Style::Good, "  a: ", text),
            "  a: \x1b[32mone two\x1b[0m\n     \x1b[32mthree\x1b[0m\n"
        );
        assert_eq!(painted.lines_after(Style::Good, "  a: ", "", "x"), "  \x1b[32ma:\x1b[0m x\n");
    }

    #[test]
    fn plain_text_stays_as_it_is() {
        assert_eq!(Colors(false).text(Style::Bad, "no"), "no");
        assert_eq!(Colors(true).text(Style::Bad, "no"), "\x1b[31;1mno\x1b[0m");
        assert_eq!(Colors(true).text(Style::Good, ""), "");
    }
}
