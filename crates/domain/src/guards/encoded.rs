//! The encoded parts of a text, in which guards search for secrets as well.

use std::ops::Range;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::NO_PAD;
use memchr::memchr;

use crate::text::percent;

/// Shortest part, in bytes: an encoded secret is longer, and most words are shorter.
const SHORTEST: usize = 16;

/// Decodes parts without padding that end anywhere.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, NO_PAD.with_decode_allow_trailing_bits(true));

/// Hands each part of a text in base64 (RFC 4648, sections 4 and 5, also in several lines) and in
/// percent encoding (RFC 3986, section 2.1) to `each`, with its place and decoded once. Bytes that
/// are no text are U+FFFD. Together the parts have at most four times the size of the text.
pub(super) fn each_part(text: &str, mut each: impl FnMut(&Range<usize>, &str)) {
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/-_\r\n".contains(&byte);
    for place in runs(text, is_base64) {
        let digits = text[place.clone()].replace(['\r', '\n'], "");
        let digits = digits.replace('-', "+").replace('_', "/");
        // Characters before a secret, such as the path of a URL, shift its beginning.
        for skipped in 0..digits.len().min(4) {
            let digits = &digits[skipped..];
            let whole = digits.len() - usize::from(digits.len() % 4 == 1);
            if let Ok(bytes) = BASE64.decode(&digits[..whole]) {
                each(&place, &String::from_utf8_lossy(&bytes));
            }
        }
    }
    if memchr(b'%', text.as_bytes()).is_none() {
        return;
    }
    for place in runs(text, |byte| byte.is_ascii_graphic()) {
        let encoded = &text[place.clone()];
        if encoded.contains('%') {
            each(&place, &String::from_utf8_lossy(&percent::decoded_bytes(encoded).0));
        }
    }
}

/// Returns the places of [`SHORTEST`] and more ASCII bytes of a kind. Most bytes of a text of short
/// words are not read: the search looks back from where the shortest run would end.
fn runs(text: &str, is_in: impl Fn(u8) -> bool) -> impl Iterator<Item = Range<usize>> {
    let bytes = text.as_bytes();
    let mut start = 0;
    std::iter::from_fn(move || {
        loop {
            let shortest = bytes.get(start..start + SHORTEST)?;
            if let Some(other) = shortest.iter().rposition(|byte| !is_in(*byte)) {
                start += other + 1;
                continue;
            }
            let rest = &bytes[start + SHORTEST..];
            let more = rest.iter().position(|byte| !is_in(*byte)).unwrap_or(rest.len());
            let run = start..start + SHORTEST + more;
            start = run.end;
            return Some(run);
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_are_the_longest_parts_of_a_kind(text in "([a-c]{0,20}[ é%]){0,8}[a-c]{0,20}") {
            let found: Vec<_> = runs(&text, |byte| byte.is_ascii_lowercase()).collect();
            let parts = text.split(|c: char| !c.is_ascii_lowercase());
            let expected: Vec<_> = parts
                .filter(|part| part.len() >= SHORTEST)
                .map(|part| {
                    let start = part.as_ptr() as usize - text.as_ptr() as usize;
                    start..start + part.len()
                })
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
