//! Percent-encoding (RFC 3986, section 2.1).

use std::fmt::Write as _;

/// Encodes a text as a value of a form or of a query: all bytes except the unreserved characters
/// (section 2.3).
pub fn encoded(text: &str) -> String {
    encoded_except(text, b"")
}

/// Encodes a path: all bytes except the unreserved characters and `/`.
pub fn encoded_path(path: &str) -> String {
    encoded_except(path, b"/")
}

/// Encodes a text as one segment of a path (section 3.3). The segments `.` and `..`, which mean
/// folders, are encoded too.
pub fn encoded_segment(text: &str) -> String {
    match text {
        "." | ".." => text.replace('.', "%2E"),
        text => encoded(text),
    }
}

/// Encodes characters that no URI contains (section 2): controls, spaces, all beyond ASCII, and a
/// few signs. Percent-encoded text stays unchanged.
pub fn encoded_foreign(text: &str) -> String {
    encoded_except(text, b"%:/?#[]@!$&'()*+,;=")
}

/// Decodes a text; `None` if the encoding is broken, or the bytes are not UTF-8.
pub fn decoded(text: &str) -> Option<String> {
    let (bytes, is_broken) = decoded_bytes(text);
    if is_broken { None } else { String::from_utf8(bytes).ok() }
}

/// Decodes the percent-encoded bytes of a text once, and returns whether a `%` without two
/// hexadecimal digits is kept as it is.
pub fn decoded_bytes(text: &str) -> (Vec<u8>, bool) {
    let mut out = Vec::with_capacity(text.len());
    let mut is_broken = false;
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let code = match after {
            [high, low, ..] if byte == b'%' => hex_byte(*high, *low),
            _ => None,
        };
        match code {
            Some(code) => {
                out.push(code);
                rest = &after[2..];
            }
            None => {
                is_broken |= byte == b'%';
                out.push(byte);
            }
        }
    }
    (out, is_broken)
}

/// Writes each byte of a text in one way, whether it was percent-encoded or not: unreserved
/// characters and those of `alike` plain, all others percent-encoded in capital digits. Plain bytes
/// in `kept` stay plain. `None` if the encoding is broken. Takes time linear in the length.
pub fn respelled(text: &str, alike: &[u8], kept: &[u8]) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = match after {
            [high, low, ..] if first == b'%' => Some(hex_byte(*high, *low)?),
            _ if first == b'%' => return None,
            _ => None,
        };
        rest = if code.is_some() { &after[2..] } else { after };
        let byte = code.unwrap_or(first);
        if is_unreserved(byte) || alike.contains(&byte) || (code.is_none() && kept.contains(&byte))
        {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    Some(out)
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn encoded_except(text: &str, kept: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if is_unreserved(byte) || kept.contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

fn hex_byte(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reserved_characters_are_encoded() {
        assert_eq!(encoded("a b&c=é~"), "a%20b%26c%3D%C3%A9~");
        assert_eq!(encoded("up__é x"), "up__%C3%A9%20x");
        assert_eq!(encoded_path("a b/c"), "a%20b/c");
        assert_eq!(encoded_foreign("a/é (1)%20\n\"b"), "a/%C3%A9%20(1)%20%0A%22b");
        assert_eq!(encoded_segment("a/b"), "a%2Fb");
        assert_eq!((encoded_segment("."), encoded_segment("..")), ("%2E".into(), "%2E%2E".into()));
    }

    #[test]
    fn a_broken_encoding_is_not_decoded() {
        for broken in ["%", "%4", "%zz", "%+1", "a%2", "%ff"] {
            assert_eq!(decoded(broken), None, "{broken}");
        }
        assert_eq!(decoded_bytes("%zz%41%"), (b"%zzA%".to_vec(), true));
    }

    proptest! {
        #[test]
        fn every_text_survives_as_a_segment(text: String) {
            let segment = encoded_segment(&text);
            prop_assert!(!segment.contains('/') && segment != "." && segment != "..");
            prop_assert_eq!(decoded(&segment), Some(text));
        }
    }
}
