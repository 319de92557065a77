//! The encoded parts of a text, in which guards search for secrets as well.

use std::ops::Range;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::NO_PAD;

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
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || "+/-_\r\n".contains(c);
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
    for place in runs(text, |c| c.is_ascii_graphic()) {
        let encoded = &text[place.clone()];
        if encoded.contains('%') {
            each(&place, &String::from_utf8_lossy(&percent::decoded_bytes(encoded).0));
        }
    }
}

/// Returns the places of [`SHORTEST`] and more ASCII characters of a kind.
fn runs(text: &str, is_in: impl Fn(char) -> bool + Copy) -> impl Iterator<Item = Range<usize>> {
    let mut end = 0;
    text.split_inclusive(move |c| !is_in(c)).filter_map(move |piece| {
        let start = end;
        end += piece.len();
        let run = piece.trim_end_matches(|c| !is_in(c));
        (run.len() >= SHORTEST).then(|| start..start + run.len())
    })
}
