//! Text of others on a page: escaped, with its hidden characters made visible.

use std::fmt;

use askama::filters::HtmlSafe;

use domain::name::is_hidden;

/// An untrusted text, as HTML. Hidden characters are written as marked code points, so that people
/// see the text that a model would read.
pub(crate) struct ShownText<'a>(pub &'a str);

impl HtmlSafe for ShownText<'_> {}

impl fmt::Display for ShownText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => write!(f, "{c}")?,
                c if is_hidden(c) => {
                    write!(f, "<mark class=\"hidden\">U+{:04X}</mark>", u32::from(c))?;
                }
                c => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

/// HTML that a template has made.
pub(crate) struct Html(pub String);

impl HtmlSafe for Html {}

impl fmt::Display for Html {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The filters of the templates.
pub(crate) mod filters {
    #![expect(
        unreachable_pub,
        reason = "a macro makes types of the filters, with fields of its own"
    )]

    use std::time::SystemTime;

    use askama::{Result, Values};

    use super::Html;

    /// Text of others: see [`super::ShownText`].
    #[askama::filter_fn]
    pub(crate) fn shown(text: impl std::fmt::Display, _: &dyn Values) -> Result<Html> {
        Ok(Html(super::ShownText(&text.to_string()).to_string()))
    }

    /// A time as people read it, in UTC.
    #[askama::filter_fn]
    pub(crate) fn moment(time: &SystemTime, _: &dyn Values) -> Result<Html> {
        Ok(super::time(&humantime::format_rfc3339_seconds(*time).to_string()))
    }

    /// A time that stands as RFC 3339 in a record or a file, as people read it.
    #[askama::filter_fn]
    pub(crate) fn short_time(text: &str, _: &dyn Values) -> Result<Html> {
        Ok(super::time(text))
    }

    /// A duration in microseconds.
    #[askama::filter_fn]
    pub(crate) fn millis(micros: &u64, _: &dyn Values) -> Result<String> {
        Ok(format!("{}.{} ms", micros / 1000, micros % 1000 / 100))
    }

    /// A number with as many digits as people need.
    #[askama::filter_fn]
    pub(crate) fn number(value: &f64, _: &dyn Values) -> Result<String> {
        Ok(crate::console::plot::number(*value))
    }

    /// A text as one segment of a path.
    #[askama::filter_fn]
    pub(crate) fn segment(text: impl std::fmt::Display, _: &dyn Values) -> Result<Html> {
        Ok(Html(domain::percent::encoded_segment(&text.to_string())))
    }
}

/// Returns a time of RFC 3339 in UTC as people read it; any other text as it is.
fn time(text: &str) -> Html {
    let parts = text.get(..10).zip(text.get(11..19)).filter(|_| text.ends_with('Z'));
    match parts {
        Some((day, time)) => {
            Html(format!("<time>{} {} UTC</time>", ShownText(day), ShownText(time)))
        }
        None => Html(ShownText(text).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_short_and_other_texts_stay() {
        assert_eq!(time("2026-11-22T18:28:57.364522Z").0, "<time>2026-11-22 18:28:57 UTC</time>");
        assert_eq!(time("<b>").0, "&lt;b&gt;");
        assert_eq!(time("<234567890T18:28:57Z").0, "<time>&lt;234567890 18:28:57 UTC</time>");
    }

    #[test]
    fn text_of_others_is_escaped_and_hidden_characters_show() {
        let shown = |text| ShownText(text).to_string();
        assert_eq!(shown("<b a=\"'\">&"), "&lt;b a=&quot;&#39;&quot;&gt;&amp;");
        assert_eq!(shown("a\u{202e}b"), "a<mark class=\"hidden\">U+202E</mark>b");
        assert_eq!(shown("\u{1b}[31m"), "<mark class=\"hidden\">U+001B</mark>[31m");
        assert_eq!(shown("one\n\ttwo é 漢"), "one\n\ttwo é 漢");
    }

    proptest! {
        #[test]
        fn no_text_leaves_its_place_in_a_page(text in any::<String>()) {
            let shown = ShownText(&text).to_string();
            let inner = shown.replace("<mark class=\"hidden\">", "").replace("</mark>", "");
            prop_assert!(!inner.contains(['<', '>', '"', '\'']), "{shown}");
        }
    }
}
