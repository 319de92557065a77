//! The text of a prompt on a page: as it is written, with code kept and the places of arguments
//! marked.

use std::fmt;

use super::text::ShownText;

/// A text of which every character shows. Fenced code stands as code, together with its fences; a
/// place `{{ name }}` is marked if `name` is one of `places`.
pub(crate) struct PromptText<'a> {
    pub text: &'a str,
    pub places: &'a [String],
}

impl fmt::Display for PromptText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (is_code, block) in blocks(self.text) {
            let (open, close) = if is_code {
                ("<pre class=\"code\" tabindex=\"0\">", "</pre>")
            } else {
                ("<div class=\"text\">", "</div>")
            };
            f.write_str(open)?;
            // A parser of HTML drops a line feed at the start of `pre`.
            if block.starts_with('\n') && is_code {
                f.write_str("\n")?;
            }
            self.write(block, f)?;
            f.write_str(close)?;
        }
        Ok(())
    }
}

impl PromptText<'_> {
    fn write(&self, mut text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        while let Some(begin) = text.find("{{") {
            let end = text[begin..].find("}}").map(|end| begin + end + 2);
            let is_place = |end: &usize| {
                let name = text[begin + 2..end - 2].trim();
                self.places.iter().any(|place| place == name)
            };
            let Some(end) = end.filter(is_place) else {
                write!(f, "{}", ShownText(&text[..begin + 2]))?;
                text = &text[begin + 2..];
                continue;
            };
            let (before, place) = (ShownText(&text[..begin]), ShownText(&text[begin..end]));
            write!(f, "{before}<var class=\"place\">{place}</var>")?;
            text = &text[end..];
        }
        write!(f, "{}", ShownText(text))
    }
}

/// Splits a text into prose and fenced code (CommonMark, section 4.5), with all of its characters.
fn blocks(text: &str) -> Vec<(bool, &str)> {
    let mut blocks = Vec::new();
    let (mut start, mut at) = (0, 0);
    let mut fence: Option<&str> = None;
    for line in text.split_inclusive('\n') {
        let end = at + line.len();
        match fence {
            None => {
                if let Some(opening) = opening_fence(line) {
                    blocks.push((false, &text[start..at]));
                    (start, fence) = (at, Some(opening));
                }
            }
            Some(open) if is_closing_fence(line, open) => {
                blocks.push((true, &text[start..end]));
                (start, fence) = (end, None);
            }
            Some(_) => {}
        }
        at = end;
    }
    blocks.push((fence.is_some(), &text[start..]));
    blocks.retain(|(_, block)| !block.is_empty());
    blocks
}

fn opening_fence(line: &str) -> Option<&str> {
    let line = line.trim_start_matches(' ');
    let fence = ['`', '~'].into_iter().find_map(|mark| {
        let length = line.len() - line.trim_start_matches(mark).len();
        (length >= 3).then(|| &line[..length])
    })?;
    let is_inline = fence.starts_with('`') && line[fence.len()..].contains('`');
    (!is_inline).then_some(fence)
}

fn is_closing_fence(line: &str, open: &str) -> bool {
    let line = line.trim();
    line.len() >= open.len() && line.chars().all(|c| open.starts_with(c))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> String {
        PromptText { text, places: &["topic".to_owned()] }.to_string()
    }

    #[test]
    fn code_is_kept_and_places_of_arguments_are_marked() {
        let text = "About {{ topic }}, not {{ other }}:\n```rust\nfn {{topic}}() {}\n```\n<end>";
        let expected = "<div class=\"text\">About <var class=\"place\">{{ topic }}</var>, not {{ other }}:\n</div>\
                        <pre class=\"code\" tabindex=\"0\">```rust\nfn <var class=\"place\">{{topic}}</var>() {}\n```\n</pre>\
                        <div class=\"text\">&lt;end&gt;</div>";
        assert_eq!(shown(text), expected);
    }

    #[test]
    fn fences_open_and_close_as_in_commonmark() {
        let kinds = |text| blocks(text).into_iter().map(|(is_code, _)| is_code).collect::<Vec<_>>();
        assert_eq!(kinds("~~~\na\n```\nb\n~~~~\nc"), [true, false]);
        assert_eq!(kinds("``` a ` b\nc"), [false]);
        assert_eq!(kinds("a\n````\nnot closed\n```\n"), [false, true]);
        assert!(kinds("").is_empty());
    }

    proptest! {
        #[test]
        fn every_character_of_a_text_shows_in_its_order(text in "([a`~\n {}<&]|topic|```|\\{\\{ topic \\}\\}){0,24}") {
            let whole: String = blocks(&text).into_iter().map(|(_, block)| block).collect();
            prop_assert_eq!(&whole, &text);
            let shown = shown(&text);
            let bare = ["<pre class=\"code\" tabindex=\"0\">", "</pre>", "<div class=\"text\">", "</div>",
                "<var class=\"place\">", "</var>"].iter().fold(shown, |shown, tag| shown.replace(tag, ""));
            prop_assert_eq!(bare.replace("&lt;", "<").replace("&amp;", "&"), text);
        }
    }
}
