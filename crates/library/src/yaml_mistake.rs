//! Mistakes in front matter, in words for authors who know no YAML.

use serde_saphyr::{Error as YamlError, SnippetMode, UserMessageFormatter};

use domain::fault::excerpt;
use domain::text::similar::is_typing_error;

const TABS: &str = "use spaces instead of tabs";
const QUOTE: &str = "a text that begins with a special sign needs quotation marks: `KEY: \"…\"`";

/// Words of the parser, and the words for authors. `KEY` stands for the key in the line.
const PLAIN_WORDS: [(&str, &str); 18] = [
    ("mapping values are not allowed", "quote a text that has a colon: `KEY: \"…\"`"),
    ("tabs disallowed", TABS),
    ("found a tab", TABS),
    ("unexpected character", QUOTE),
    ("reference to unknown", QUOTE),
    ("alphabetic or numeric", QUOTE),
    ("expected string scalar", QUOTE),
    ("-quoted scalar", "a text goes on behind its quotation mark: write `KEY: \"…\"`"),
    ("quoted scalar", "a quotation mark above is not closed"),
    ("unclosed bracket", "a bracket is not closed by `]` or `}`"),
    ("simple key expected", "a key ends with a colon and a space: `KEY: …`"),
    ("unexpected end of file", "has no `name`: add a line such as `name: review-code`"),
    ("missing field `name`", "has no `name`: add a line such as `name: review-code`"),
    ("null is not allowed", "`KEY` has no value: write it behind the colon"),
    ("invalid boolean", "write true or false"),
    ("untagged enum", "a version is a number or a text"),
    ("expected sequence start", "expected a list, such as [code, language]"),
    ("expected mapping start", "expected keys with values, such as `name: code`"),
];

/// Describes a mistake in the front matter `yaml`, without its place.
pub(super) fn yaml_mistake(error: &YamlError, yaml: &str) -> String {
    if let YamlError::SerdeUnknownField { field, expected, .. } = error {
        let near = expected.iter().find(|known| is_typing_error(known, field));
        return match near {
            Some(near) => format!("unknown key `{field}`; did you mean `{near}`?"),
            None => format!("unknown key `{field}`; the keys are {}", expected.join(", ")),
        };
    }
    let rendering = serde_saphyr::render_options! {
        formatter: &UserMessageFormatter,
        snippets: SnippetMode::Off,
    };
    let text = error.render_with_options(rendering);
    // The remark begins with the place, so the text drops it.
    let place =
        error.location().map(|at| format!(" at line {}, column {}", at.line(), at.column()));
    let bare = place.and_then(|place| text.strip_suffix(place.as_str()).map(str::to_owned));
    let text = bare.unwrap_or(text);
    let Some((_, plain)) = PLAIN_WORDS.iter().find(|(words, _)| text.contains(words)) else {
        return text.replace("unknown variant", "unknown value");
    };
    let number = error.location().map_or(1, |at| usize::try_from(at.line()).unwrap_or(1));
    let line = yaml.lines().nth(number.saturating_sub(1)).unwrap_or_default();
    if text.contains("mapping values") && line.matches(": ").count() < 2 && !line.ends_with(':') {
        return "this line begins further right than the key above it; or quote the text above"
            .into();
    }
    let key = line.trim_start_matches([' ', '-']).split(':').next().unwrap_or_default();
    plain.replace("KEY", &excerpt(key))
}
