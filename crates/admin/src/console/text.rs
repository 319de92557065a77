//! Text of others on a page: escaped, with its hidden characters made visible.

use std::fmt;
use std::time::SystemTime;

use askama::filters::HtmlSafe;
use serde_json::Value;

use super::plot::number;
use crate::table::{CellKind, Column};
use base::platform::wall_clock;
use domain::name::is_hidden;
use domain::time::distance::distance;

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

/// Returns the content of a cell; empty where the row has no value.
pub(crate) fn cell(column: &Column, row: &Value) -> Html {
    match (column.kind, column.value(row)) {
        (_, Value::Null) => Html(String::new()),
        (CellKind::Millis, ms) => Html(format!("{} ms", number(ms.as_f64().unwrap_or_default()))),
        (CellKind::Time, Value::String(time)) => Moment::read(time).ago(wall_clock()),
        (_, Value::String(text)) => Html(ShownText(text).to_string()),
        (_, other) => Html(ShownText(&other.to_string()).to_string()),
    }
}

/// A time, and how it is written.
pub(super) struct Moment<'a> {
    written: &'a str,
    /// `None` if the text is no time of RFC 3339 in UTC.
    time: Option<SystemTime>,
}

impl<'a> Moment<'a> {
    pub(super) fn read(written: &'a str) -> Self {
        Self { written, time: humantime::parse_rfc3339(written).ok() }
    }

    /// The distance from `now`, and the time as its title.
    pub(super) fn ago(&self, now: SystemTime) -> Html {
        self.html(now, |absolute, distance| {
            format!("<time datetime=\"{}\" title=\"{absolute}\">{distance}</time>", self.written)
        })
    }

    /// The distance from `now`, followed by the time.
    pub(super) fn beside(&self, now: SystemTime) -> Html {
        self.html(now, |absolute, distance| {
            format!("{distance} (<time datetime=\"{}\">{absolute}</time>)", self.written)
        })
    }

    fn html(&self, now: SystemTime, written: impl FnOnce(&str, &str) -> String) -> Html {
        let parts = self.written.get(..10).zip(self.written.get(11..19));
        let (Some(time), Some((day, clock))) = (self.time, parts) else {
            return Html(ShownText(self.written).to_string());
        };
        Html(written(&format!("{day} {clock} UTC"), &distance(time, now)))
    }
}

pub(super) fn thousands(count: u64) -> String {
    match count {
        0..1000 => count.to_string(),
        _ => format!("{},{:03}", thousands(count / 1000), count % 1000),
    }
}

/// Returns a number of things, with their noun in its right form: "1 prompt", "2 prompts".
pub(crate) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Hexadecimal digits that tell digests apart for the eye.
const SHORT_DIGEST: usize = 12;

/// Returns the beginning of a digest, with a button that copies it whole.
pub(crate) fn digest(digest: &str) -> Html {
    let whole = ShownText(digest);
    let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
    let Some(short) = hex.get(..SHORT_DIGEST).filter(|_| hex.len() > SHORT_DIGEST) else {
        return Html(format!("<code>{whole}</code>"));
    };
    Html(format!("<code title=\"{whole}\">{}…</code>{}", ShownText(short), copy(digest)))
}

/// A button with which the script copies a text.
pub(crate) fn copy(text: &str) -> Html {
    let text = text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;");
    Html(format!("<button type=\"button\" class=\"copy\" data-copy=\"{text}\">Copy</button>"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn times_have_their_distance_and_other_texts_stay() {
        let now = humantime::parse_rfc3339("2026-11-22T18:30:00Z").unwrap();
        let moment = Moment::read("2026-11-22T18:28:57.364522Z");
        let attribute = "datetime=\"2026-11-22T18:28:57.364522Z\"";
        let absolute = "2026-11-22 18:28:57 UTC";
        assert_eq!(
            moment.ago(now).0,
            format!("<time {attribute} title=\"{absolute}\">1 min ago</time>")
        );
        assert_eq!(
            moment.beside(now).0,
            format!("1 min ago (<time {attribute}>{absolute}</time>)")
        );
        assert_eq!(Moment::read("<b>").ago(now).0, "&lt;b&gt;");
        assert_eq!(Moment::read("<234567890T18:28:57Z").ago(now).0, "&lt;234567890T18:28:57Z");
    }

    #[test]
    fn thousands_stand_apart() {
        assert_eq!(
            [0, 999, 1000, 12_949, 1_000_001].map(thousands),
            ["0", "999", "1,000", "12,949", "1,000,001"]
        );
    }

    #[test]
    fn a_cell_is_written_by_its_kind_and_escaped() {
        let row = json!({"a": "<b>", "hour": {"p50Ms": 2.0}, "last": "2026-11-22T18:28:57Z"});
        let cell = |member, kind| cell(&Column::new("", member).of(kind), &row).0;
        assert_eq!(cell("a", CellKind::Text), "&lt;b&gt;");
        assert_eq!(cell("hour.p50Ms", CellKind::Millis), format!("{} ms", number(2.0)));
        assert_eq!(cell("hour", CellKind::Text), "{&quot;p50Ms&quot;:2.0}");
        assert!(cell("last", CellKind::Time).starts_with("<time datetime="));
        assert_eq!(cell("none", CellKind::Millis), "");
    }

    #[test]
    fn a_digest_is_short_and_copied_whole() {
        let whole = format!("sha256:{}", "ab".repeat(32));
        let Html(shown) = digest(&whole);
        assert!(
            shown.contains(">abababababab…</code>")
                && shown.contains(&format!("data-copy=\"{whole}\""))
        );
        assert_eq!(digest("<x>").0, "<code>&lt;x&gt;</code>");
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
