//! The headers `Mcp-Param-*`, which repeat arguments of a tool as the annotation `x-mcp-header` of
//! its input schema says (MCP 2026-07-28, Streamable HTTP, custom headers from tool parameters).

use std::borrow::Cow;
use std::collections::HashSet;

use crate::json::{Json, JsonKind};
use crate::protocol::mcp_name;

/// The headers that repeat arguments of one tool.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ParamHeaders(Vec<ParamHeader>);

/// One annotated property.
#[derive(Clone, Debug, Eq, PartialEq)]
struct ParamHeader {
    /// The name in lower case, with the prefix.
    name: String,
    /// The names of the properties on the path to the annotated one.
    path: Vec<String>,
}

/// The value that a header must have.
enum Expected<'a> {
    /// The argument is absent or null, or has no form in a header.
    Absent,
    Text(Cow<'a, str>),
    /// Compared as a number.
    Integer(i64),
}

const PREFIX: &str = "mcp-param-";
const ANNOTATION: &str = "x-mcp-header";

/// The limit of annotated properties of a tool, and of their nesting. More is taken for a mistake.
const MAX_HEADERS: usize = 32;
const MAX_DEPTH: usize = 8;

/// The limits of a header's name without its prefix, and of its value, in bytes: servers accept no
/// larger heads.
const MAX_NAME: usize = 64;
const MAX_VALUE: usize = 4 << 10;

impl ParamHeaders {
    /// Reads the annotations of an input schema, at properties reached through `properties` only.
    /// `None` without annotations, or if one is invalid: the tool is invalid then.
    pub fn read(schema: Json<'_>) -> Option<Self> {
        let mut headers = Self::default();
        headers.add(schema, &mut Vec::new())?;
        let mut names = HashSet::new();
        let are_unique = headers.0.iter().all(|header| names.insert(header.name.as_str()));
        (are_unique && !headers.0.is_empty()).then_some(headers)
    }

    /// Adds the annotations below a schema; `None` if one is invalid.
    fn add(&mut self, schema: Json<'_>, path: &mut Vec<String>) -> Option<()> {
        let properties = schema.get("properties").and_then(Json::object);
        for (name, property) in properties.iter().flat_map(|p| p.members()) {
            path.push(name.as_str()?.into_owned());
            if let Some(annotation) = property.get(ANNOTATION) {
                let name = annotation.as_str().filter(|name| is_token(name) && is_plain(property));
                let name = format!("{PREFIX}{}", name?.to_ascii_lowercase());
                self.0.push(ParamHeader { name, path: path.clone() });
                if self.0.len() > MAX_HEADERS {
                    return None;
                }
            }
            if path.len() < MAX_DEPTH {
                self.add(property, path)?;
            }
            path.pop();
        }
        Some(())
    }

    /// Returns the headers for the arguments of a call, as pairs of name and value.
    pub fn of_call(&self, arguments: Option<Json<'_>>) -> Vec<(String, String)> {
        let value = |header: &ParamHeader| match header.expected(arguments) {
            Expected::Absent => None,
            Expected::Text(text) => Some(mcp_name::encode(&text).into_owned()),
            Expected::Integer(number) => Some(number.to_string()),
        };
        let values = self.0.iter().filter_map(|header| Some((header.name.clone(), value(header)?)));
        values.filter(|(_, value)| value.len() <= MAX_VALUE).collect()
    }

    /// Compares the headers of a call with its arguments. `header` returns the value of a header,
    /// `None` for a missing header, and `Some(None)` for an unreadable value.
    ///
    /// # Errors
    /// The name of the first header that differs.
    pub fn check<'a>(
        &self,
        arguments: Option<Json<'_>>,
        header: impl Fn(&str) -> Option<Option<&'a str>>,
    ) -> Result<(), &str> {
        let differs = |own: &&ParamHeader| {
            let expected = own.expected(arguments);
            let Some(given) = header(&own.name) else {
                return !matches!(expected, Expected::Absent);
            };
            let given = given.and_then(mcp_name::decode);
            given.is_none_or(|given| !expected.is(&given))
        };
        self.0.iter().find(differs).map_or(Ok(()), |header| Err(&header.name))
    }
}

impl ParamHeader {
    fn expected<'a>(&self, arguments: Option<Json<'a>>) -> Expected<'a> {
        let argument = arguments.and_then(|arguments| {
            self.path.iter().try_fold(arguments, |object, name| object.get(name))
        });
        let Some(argument) = argument else { return Expected::Absent };
        match argument.kind() {
            JsonKind::String => argument.as_str().map_or(Expected::Absent, Expected::Text),
            JsonKind::Number => integer(argument.text())
                .map_or_else(|| Expected::Text(argument.text().into()), Expected::Integer),
            _ => match argument.as_bool() {
                Some(flag) => Expected::Text(if flag { "true" } else { "false" }.into()),
                None => Expected::Absent,
            },
        }
    }
}

impl Expected<'_> {
    fn is(&self, given: &str) -> bool {
        match self {
            Self::Absent => false,
            Self::Text(text) => text == given,
            Self::Integer(number) => integer(given) == Some(*number),
        }
    }
}

/// Reads an integer, also in the form `42.0`; `None` beyond the range in which JSON numbers are
/// exact.
fn integer(text: &str) -> Option<i64> {
    let whole = match text.split_once('.') {
        Some((whole, zeros)) if zeros.bytes().all(|b| b == b'0') => whole,
        Some(_) => return None,
        None => text,
    };
    whole.parse().ok().filter(|number: &i64| number.unsigned_abs() < 1 << 53)
}

/// Whether the declared type of a property has a form in a header.
fn is_plain(property: Json<'_>) -> bool {
    let plain = ["string", "integer", "boolean"];
    property.get("type").is_none_or(|declared| plain.iter().any(|plain| declared.is(plain)))
}

/// Whether a name is a token (RFC 9110, section 5.6.2) of at most [`MAX_NAME`] bytes.
fn is_token(name: &str) -> bool {
    let is_tchar = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_tchar)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json<'_> {
        Json::parse(text.as_bytes(), 32).unwrap()
    }

    fn headers() -> ParamHeaders {
        let schema = r#"{"type":"object","properties":{
            "region":{"type":"string","x-mcp-header":"Region"},
            "dry":{"type":"boolean","x-mcp-header":"Dry-Run"},
            "page":{"type":"object","properties":{
                "limit":{"type":"integer","x-mcp-header":"Limit"}}},
            "free":{"type":"string"}}}"#;
        ParamHeaders::read(json(schema)).expect("they are valid")
    }

    #[test]
    fn annotated_arguments_become_headers_and_others_do_not() {
        let arguments = r#"{"region":" é","dry":false,"page":{"limit":42.0},"free":"x"}"#;
        let made = headers().of_call(Some(json(arguments)));
        let made: Vec<_> = made.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(
            made,
            [
                ("mcp-param-region", "=?base64?IMOp?="),
                ("mcp-param-dry-run", "false"),
                ("mcp-param-limit", "42")
            ]
        );
        for arguments in [r#"{"region":null,"page":null}"#, "{}"] {
            assert_eq!(headers().of_call(Some(json(arguments))), []);
        }
        assert_eq!(headers().of_call(None), []);
        let long = format!(r#"{{"region":"{}"}}"#, "x".repeat(MAX_VALUE + 1));
        assert_eq!(headers().of_call(Some(json(&long))), []);
    }

    #[test]
    fn a_header_that_differs_from_its_argument_is_named() {
        let check = |arguments: &str, name: &str, value: Option<Option<&'static str>>| {
            let given = |asked: &str| if asked == name { value } else { None };
            headers().check(Some(json(arguments)), given).map_err(str::to_owned)
        };
        let region = "mcp-param-region";
        let differs = Err(region.to_owned());
        assert_eq!(check("{}", "other", None), Ok(()));
        assert_eq!(check(r#"{"region":"eu"}"#, region, Some(Some("eu"))), Ok(()));
        assert_eq!(check(r#"{"region":"eu"}"#, region, Some(Some("=?base64?ZXU=?="))), Ok(()));
        for value in [None, Some(None), Some(Some("us")), Some(Some("=?base64?ZXU?="))] {
            assert_eq!(check(r#"{"region":"eu"}"#, region, value), differs, "{value:?}");
        }
        for arguments in ["{}", r#"{"region":null}"#, r#"{"region":{}}"#] {
            assert_eq!(check(arguments, region, Some(Some("eu"))), differs, "{arguments}");
        }
        let limit = r#"{"page":{"limit":42}}"#;
        assert_eq!(check(limit, "mcp-param-limit", Some(Some("42.0"))), Ok(()));
        assert!(check(limit, "mcp-param-limit", Some(Some("42.5"))).is_err());
    }

    #[test]
    fn invalid_annotations_make_no_headers() {
        let of = |properties: &str| {
            ParamHeaders::read(json(&format!(r#"{{"properties":{{{properties}}}}}"#)))
        };
        assert!(of(r#""a":{"x-mcp-header":"A"}"#).is_some());
        for properties in [
            "",
            r#""a":{"type":"string"}"#,
            r#""a":{"x-mcp-header":""}"#,
            r#""a":{"x-mcp-header":"A B"}"#,
            r#""a":{"x-mcp-header":"A\r\nB"}"#,
            r#""a":{"x-mcp-header":7}"#,
            r#""a":{"type":"object","x-mcp-header":"A"}"#,
            r#""a":{"type":"number","x-mcp-header":"A"}"#,
            r#""a":{"x-mcp-header":"A"},"b":{"x-mcp-header":"a"}"#,
        ] {
            assert_eq!(of(properties), None, "{properties}");
        }
    }
}
