//! The text of files that people and other programs write.

/// Returns the text of a file: UTF-8, or UTF-16 with a byte order mark, as Windows programs write.
/// A byte order mark is not part of the text.
///
/// # Errors
/// The bytes are neither UTF-8 nor UTF-16.
pub fn decode(bytes: Vec<u8>) -> Result<String, NotText> {
    let units = |of: fn([u8; 2]) -> u16| {
        let (units, rest) = bytes[2..].as_chunks::<2>();
        let text = String::from_utf16(&units.iter().map(|unit| of(*unit)).collect::<Vec<_>>());
        text.ok().filter(|_| rest.is_empty()).ok_or(NotText::Utf16)
    };
    match bytes.as_slice() {
        [0xff, 0xfe, ..] => units(u16::from_le_bytes),
        [0xfe, 0xff, ..] => units(u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] => utf8(rest.to_vec()),
        _ => utf8(bytes),
    }
}

fn utf8(bytes: Vec<u8>) -> Result<String, NotText> {
    String::from_utf8(bytes).map_err(|error| NotText::Utf8 { at: error.utf8_error().valid_up_to() })
}

/// The error for a file that is not text.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NotText {
    #[error("is not UTF-8 text, from byte {at} on: save it as UTF-8")]
    Utf8 { at: usize },
    #[error("begins as UTF-16 text and is not: save it as UTF-8")]
    Utf16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_in_each_encoding_that_windows_writes() {
        let utf16 = |of: fn(u16) -> [u8; 2], text: &str| {
            let text = format!("\u{feff}{text}");
            text.encode_utf16().flat_map(of).collect::<Vec<_>>()
        };
        let text = "key = \"ä\u{1f600}\"\r\n";
        for bytes in [
            text.as_bytes().to_vec(),
            format!("\u{feff}{text}").into_bytes(),
            utf16(u16::to_le_bytes, text),
            utf16(u16::to_be_bytes, text),
        ] {
            assert_eq!(decode(bytes).as_deref(), Ok(text));
        }
        assert_eq!(decode(Vec::new()).as_deref(), Ok(""));
    }

    #[test]
    fn bytes_that_are_no_text_are_reported_with_the_remedy() {
        assert_eq!(decode(b"ab\xe4c".to_vec()), Err(NotText::Utf8 { at: 2 }));
        for bytes in [&b"\xff\xfea"[..], b"\xff\xfe\x00\xd8", b"\xfe\xff\xd8\x00\x00a"] {
            assert_eq!(decode(bytes.to_vec()), Err(NotText::Utf16), "{bytes:?}");
        }
        assert!(NotText::Utf16.to_string().contains("save it as UTF-8"));
    }
}
