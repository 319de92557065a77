//! Forms: approved texts with placeholders for arguments, parsed once so that each get is compared
//! in one pass, without a copy of the text or the result.

use super::TemplateArguments;
use super::template::{placeholder_in_json, split};
use crate::json::{Json, JsonKind};

/// An approved text with its placeholders, or a variant of the text.
#[derive(Debug)]
pub struct Form {
    text: String,
    description: Option<Part>,
    messages: Option<Part>,
    /// Whether `description` and `messages` are the only members, and no key has a placeholder.
    is_regular: bool,
}

/// A value of the text.
#[derive(Debug)]
enum Part {
    Array(Vec<Self>),
    /// Members by their keys, with the keys' spelling and in byte order.
    Object(Vec<(Box<str>, Self)>),
    /// The parts between the quotes.
    String(Vec<Piece>),
    /// A number, `true`, `false` or `null`.
    Other(Box<str>),
}

#[derive(Debug)]
enum Piece {
    Constant(Box<str>),
    /// The value of the argument with this index.
    Place(usize),
}

impl Form {
    /// Reads a canonical text that was approved for these arguments.
    pub fn new(text: String, arguments: &TemplateArguments) -> Self {
        let places: Vec<String> = arguments.names().map(placeholder_in_json).collect();
        let value = Json::accepted(&text);
        let mut is_regular = value.kind() == JsonKind::Object;
        let mut part = |name| Some(Part::read(value.get(name)?, &places, &mut is_regular));
        let description = part("description");
        let messages = part("messages");
        let known = usize::from(description.is_some()) + usize::from(messages.is_some());
        is_regular &= value.members().count() == known;
        Self { text, description, messages, is_regular }
    }

    /// Returns the canonical text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a result equals this text with the arguments of a get in its placeholders: members
    /// in any order, strings and numbers byte for byte. `values` are the values of the arguments
    /// for which the text was approved, in the order of the arguments, as canonical JSON between
    /// quotes. After `false` the canonical texts must be compared, since the result may only be
    /// spelled differently.
    pub fn is_alike(&self, values: &[&str], result: Json<'_>) -> bool {
        let mut description = self.description.as_ref();
        let mut messages = self.messages.as_ref();
        let is_alike = |(key, value): (Json<'_>, Json<'_>)| {
            let own = match key.raw_str() {
                Some("description") => description.take(),
                Some("messages") => messages.take(),
                _ => return true,
            };
            own.is_some_and(|own| own.is_alike(values, value))
        };
        self.is_regular
            && result.members().all(is_alike)
            && description.is_none()
            && messages.is_none()
    }
}

impl Part {
    fn read(value: Json<'_>, places: &[String], is_regular: &mut bool) -> Self {
        if let Some(text) = value.raw_str() {
            let piece = |(own, place): (&str, Option<usize>)| {
                place.map_or_else(|| Piece::Constant(own.into()), Piece::Place)
            };
            return Self::String(split(text, places).map(piece).collect());
        }
        match value.kind() {
            JsonKind::Array => {
                Self::Array(value.elements().map(|e| Self::read(e, places, is_regular)).collect())
            }
            JsonKind::Object => {
                let member = |(key, value): (Json<'_>, Json<'_>)| {
                    let key = key.text();
                    *is_regular &= !places.iter().any(|place| key.contains(place.as_str()));
                    (key.into(), Self::read(value, places, is_regular))
                };
                let mut members: Vec<_> = value.members().map(member).collect();
                members.sort_by(|(one, _): &(Box<str>, _), (other, _)| one.cmp(other));
                Self::Object(members)
            }
            _ => Self::Other(value.text().into()),
        }
    }

    fn is_alike(&self, values: &[&str], other: Json<'_>) -> bool {
        match self {
            Self::String(pieces) => {
                let fill = |rest: &str, piece: &Piece| match piece {
                    Piece::Constant(text) => rest.strip_prefix(&**text).map(str::len),
                    Piece::Place(index) => rest.strip_prefix(values.get(*index)?).map(str::len),
                };
                other.raw_str().is_some_and(|text| {
                    let left = pieces.iter().try_fold(text.len(), |left, piece| {
                        fill(&text[text.len() - left..], piece)
                    });
                    left == Some(0)
                })
            }
            Self::Array(parts) if other.kind() == JsonKind::Array => {
                let mut elements = other.elements();
                let is_element =
                    |part: &Self| elements.next().is_some_and(|e| part.is_alike(values, e));
                parts.iter().all(is_element) && elements.next().is_none()
            }
            Self::Object(parts) if other.kind() == JsonKind::Object => {
                let mut count = 0;
                // The scan has refused duplicate keys.
                let is_member = |(key, value): (Json<'_>, Json<'_>)| {
                    count += 1;
                    let found = parts.binary_search_by(|(own, _)| (**own).cmp(key.text()));
                    found.is_ok_and(|at| parts[at].1.is_alike(values, value))
                };
                other.members().all(is_member) && count == parts.len()
            }
            Self::Other(text) => **text == *other.text(),
            Self::Array(_) | Self::Object(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARGUMENTS: &str = r#"{"style":"{{ style }}","who":"{{ who }}"}"#;

    fn values(given: &str) -> Vec<&str> {
        Json::accepted(given).members().map(|(_, value)| value.raw_str().unwrap()).collect()
    }

    fn is_alike(form: &str, given: &str, result: &str) -> bool {
        let arguments = TemplateArguments::read(ARGUMENTS).unwrap();
        Form::new(form.to_owned(), &arguments).is_alike(&values(given), Json::accepted(result))
    }

    #[test]
    fn a_result_is_alike_with_its_members_in_any_order_and_nothing_more() {
        let form = r#"{"messages":[{"content":{"text":"To {{ who }}: {{ style }} {{{ who }}.","type":"text"},"role":"user"}]}"#;
        let given = r#"{"style":"b\"rief","who":"ada"}"#;
        let content = r#"{"type":"text","text":"To ada: b\"rief {ada."}"#;
        let ours =
            format!(r#"{{"_meta":{{}},"messages":[{{"role":"user","content":{content}}}]}}"#);
        assert!(is_alike(form, given, &ours));
        for (from, to) in [
            ("{ada.", "{ada. Always."),
            ("To ada", "To eve"),
            ("To ada", "To \\u0061da"),
            ("\"user\"", "\"assistant\""),
            ("\"type\"", "\"annotations\":{},\"type\""),
            ("\"type\":\"text\",", ""),
            ("}]", "},{}]"),
            ("\"messages\"", "\"description\":\"\",\"messages\""),
            ("[{", "[[],{"),
            ("{\"type\":\"text\",\"text\":\"To ada: b\\\"rief {ada.\"}", "7"),
        ] {
            assert!(ours.contains(from), "{from}");
            assert!(!is_alike(form, given, &ours.replace(from, to)), "{to}");
        }
        assert!(!is_alike(form, r#"{"style":"","who":"ada"}"#, &ours));
    }

    #[test]
    fn a_form_with_a_place_in_a_key_or_of_another_shape_is_never_alike() {
        let given = r#"{"style":"x","who":"ada"}"#;
        let key = r#"{"messages":[{"{{ who }}":"x"}]}"#;
        assert!(!is_alike(key, given, key));
        assert!(!is_alike(key, given, r#"{"messages":[{"ada":"x"}]}"#));
        for form in ["[]", "7", r#"{"messages":[],"more":1}"#] {
            assert!(!is_alike(form, given, form), "{form}");
        }
        assert!(is_alike(
            r#"{"messages":[1.5,true,"{{ who }}"]}"#,
            given,
            r#"{"messages":[1.5,true,"ada"]}"#
        ));
    }
}
