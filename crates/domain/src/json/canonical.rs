//! The canonical form of JSON (RFC 8785): equal values have equal texts, whatever their sender's
//! spelling.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::object::write_array;
use super::{Json, JsonKind, write_str};

/// Returns the canonical form of a value; see [`write_canonical`].
pub fn canonical(value: Json<'_>) -> String {
    let mut out = String::with_capacity(value.text().len());
    write_canonical(value, &mut out);
    out
}

/// Appends the canonical form of a value. Members that are `null` are kept.
pub(crate) fn write_canonical(value: Json<'_>, out: &mut String) {
    match value.kind() {
        JsonKind::Object => write_canonical_object(value.members(), out),
        JsonKind::Array => write_array(out, value.elements(), write_canonical),
        JsonKind::String => match value.raw_str() {
            // Without an escape, the literal is canonical: the scan has refused control characters.
            Some(raw) if !raw.contains('\\') => out.push_str(value.text()),
            _ => write_str(&value.as_str().unwrap_or_default(), out),
        },
        JsonKind::Number => write_number(value.text(), out),
        JsonKind::Bool | JsonKind::Null => out.push_str(value.text()),
    }
}

/// Appends the canonical form of an object with these members, whose names differ.
pub fn write_canonical_object<'a>(
    members: impl Iterator<Item = (Json<'a>, Json<'a>)>,
    out: &mut String,
) {
    let mut members: Vec<(Cow<'_, str>, Json<'_>)> =
        members.map(|(key, value)| (key.as_str().unwrap_or_default(), value)).collect();
    members.sort_unstable_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
    out.push('{');
    for (index, (key, value)) in members.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_str(&key, out);
        out.push(':');
        write_canonical(value, out);
    }
    out.push('}');
}

/// Appends a number in the format of ECMAScript (RFC 8785, section 3.2.2.3).
fn write_number(text: &str, out: &mut String) {
    // The scan has refused numbers beyond the range of a double.
    let number: f64 = text.parse().unwrap_or_default();
    if number == 0.0 {
        out.push('0');
        return;
    }
    // The shortest digits that parse to the same number, and the exponent of the first digit.
    let scientific = format!("{:e}", number.abs());
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if number < 0.0 {
        out.push('-');
    }
    // Writing to a string cannot fail.
    let _ = if (-6..21).contains(&exponent) {
        write!(out, "{}", number.abs())
    } else {
        let sign = if exponent > 0 { "+" } else { "" };
        write!(out, "{digits}e{sign}{exponent}")
    };
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn canonical(text: &str) -> String {
        super::canonical(Json::parse(text.as_bytes(), 64).unwrap())
    }

    #[test]
    fn the_examples_of_the_rfc() {
        let example = r#"{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
            "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [true, false]}"#;
        assert_eq!(
            canonical(example),
            r#"{"literals":[true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#
        );
        let sorted =
            r#"{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}"#;
        assert_eq!(
            canonical(sorted),
            "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"ö\":7,\"€\":1,\"😀\":5,\"\u{fb33}\":3}"
        );
    }

    #[test]
    fn numbers_are_written_as_ecmascript_writes_them() {
        for (text, expected) in [
            ("-0", "0"),
            ("1.0", "1"),
            ("-1e2", "-100"),
            ("1e21", "1e+21"),
            ("123456789012345678901", "123456789012345680000"),
            ("1e-6", "0.000001"),
            ("1e-7", "1e-7"),
            ("1.5e-7", "1.5e-7"),
            ("5e-324", "5e-324"),
        ] {
            assert_eq!(canonical(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_canonical_form_is_the_same_value_and_its_own_canonical_form(
            number in any::<f64>().prop_filter("JSON has finite numbers only", |n| n.is_finite()),
            text in "[a-c\"\\\\\u{0}-\u{20}é😀]{0,8}",
        ) {
            let value = serde_json::json!({"n": number, "t": text, "a": [1, {"b": text}]});
            let once = canonical(&value.to_string());
            prop_assert_eq!(&canonical(&once), &once);
            let read: serde_json::Value = serde_json::from_str(&once).unwrap();
            prop_assert_eq!(read["n"].as_f64(), Some(number));
            prop_assert_eq!(&read["t"], &value["t"]);
            prop_assert_eq!(&canonical(&format!("{value:#}")), &once);
        }
    }
}
