//! Text of policies in Markdown, which an editor shows as it is written in the policy.

/// A code span of a text. Its fence is longer than any run of backquotes in the text, so that the text cannot
/// end it.
pub(crate) fn code_span(text: &str) -> String {
    // An empty line would end the paragraph, and the span with it.
    let text = text.replace(|c: char| c.is_control(), " ");
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or_default();
    let fence = "`".repeat(longest + 1);
    // Readers of Markdown take one space at both ends away.
    let is_padded = text.is_empty() || text.starts_with(['`', ' ']) || text.ends_with(['`', ' ']);
    let padding = if is_padded { " " } else { "" };
    format!("{fence}{padding}{text}{padding}{fence}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_span() {
        assert_eq!(code_span("80, *web*"), "`80, *web*`");
        assert_eq!(code_span("a `b` ``c"), "```a `b` ``c```");
        assert_eq!(code_span("`a"), "`` `a ``");
        assert_eq!(code_span("a\n\n# b"), "`a  # b`");
    }
}
