//! Hexadecimal encoding of bytes, in lower case only.

/// Returns the bytes as lower-case hexadecimal digits, two for each byte.
pub fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().map(|byte| PAIRS[usize::from(*byte)]);
    let mut out = vec![0; bytes.len() * 2];
    for (pair, digits) in out.as_chunks_mut().0.iter_mut().zip(digits) {
        *pair = digits;
    }
    String::from_utf8(out).expect("digits are ASCII")
}

/// The two digits of each byte.
const PAIRS: [[u8; 2]; 256] = {
    let digits = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < pairs.len() {
        pairs[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    pairs
};

/// Returns the `N` bytes that [`hex`] encodes as `text`; `None` for any other text.
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lower_case_of_the_right_length_is_read() {
        let bytes: [u8; 32] = std::array::from_fn(|i| (i * 9) as u8);
        assert_eq!(from_hex(&hex(&bytes)), Some(bytes));
        assert_eq!(hex(&[0, 0x9f, 0xff]), "009fff");
        assert_eq!(from_hex::<32>(&hex(&bytes).to_uppercase()), None);
        assert_eq!(from_hex::<2>("00"), None);
        assert_eq!(from_hex::<1>("0g"), None);
    }
}
