//! The built-in patterns of guards: an expression finds candidates, and a check, such as that of a
//! check digit, leaves few false ones. docs/guards.md names the sources.

use crate::text::glob::Glob;

/// A pattern that the gateway knows by name.
#[derive(Debug)]
pub struct BuiltIn {
    /// The name in the configuration, which is also the reason code for callers.
    pub name: &'static str,
    /// The expression of candidates; empty for hidden text, which no expression finds.
    pub(super) expression: &'static str,
    /// Returns the length of what is meant of a candidate, in bytes; `None` if it is no finding.
    /// Candidates that a check may refuse are short: the search begins again inside them.
    pub(super) check: fn(candidate: &str, hosts: &[Glob]) -> Option<usize>,
}

/// The built-in patterns.
pub static BUILT_INS: [BuiltIn; 8] = [
    // RFC 7468 and RFC 9580; to the end of the text if the end of the key is missing.
    BuiltIn {
        name: "private_key",
        expression: r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----(?s:.*?)(?:-----END [A-Z0-9 ]+-----|\z)",
        check: |candidate, _| Some(candidate.len()),
    },
    BuiltIn {
        name: "cloud_token",
        expression: r"\b(?:(?:AKIA|ASIA)[A-Z2-7]{16}\b|AIza[0-9A-Za-z_-]{35}|GOCSPX-[0-9A-Za-z_-]{28}|AccountKey=[0-9A-Za-z+/]{86}==|do[opr]_v1_[0-9a-f]{64}\b|xox[abeprs]-[0-9A-Za-z-]{10,200}|hf_[A-Za-z]{34}\b|[sr]k_live_[0-9A-Za-z]{24,200})",
        check: |candidate, _| Some(candidate.len()),
    },
    BuiltIn {
        name: "code_token",
        expression: r"\b(?:(?:gh[opsur]|npm)_[0-9A-Za-z]{36}\b|github_pat_[0-9A-Za-z]{22}_[0-9A-Za-z]{59}\b|glpat-[0-9A-Za-z_-]{20}|pypi-AgEIcHlwaS5vcmc[0-9A-Za-z_-]{50,500})",
        check: |candidate, _| is_code_token(candidate).then_some(candidate.len()),
    },
    // ISO/IEC 7812: digits, also in groups.
    BuiltIn {
        name: "payment_card",
        expression: r"\b[2-6][0-9](?:[ -]?[0-9]){11,17}\b",
        check: |candidate, _| longest_part(candidate, is_card),
    },
    // ISO 13616: country, check digits, and up to 30 characters, also in groups of four.
    BuiltIn {
        name: "iban",
        expression: r"\b[A-Z]{2}[0-9]{2}(?: ?[0-9A-Z]{4}){2,7}(?: ?[0-9A-Z]{1,3})?\b",
        check: |candidate, _| longest_part(candidate, is_iban),
    },
    // The addresses of RFC 5321 that people use: no quotes, a domain with a dot.
    BuiltIn {
        name: "email",
        expression: r"\b[0-9A-Za-z._%+-]+@(?:[0-9A-Za-z](?:[0-9A-Za-z-]*[0-9A-Za-z])?\.)+[A-Za-z]{2,24}\b",
        check: |candidate, _| Some(candidate.len()),
    },
    BuiltIn { name: "hidden_text", expression: "", check: |_, _| None },
    // Up to the path, which the whole link is found with.
    BuiltIn {
        name: FOREIGN_LINK,
        expression: r#"(?i)\b(?:https?|wss?|ftp):[/\\]{2}[^\s/?#\\"'<>()\[\]{}]{1,300}"#,
        check: |candidate, hosts| is_foreign(candidate, hosts).then_some(candidate.len()),
    },
];

pub(super) const FOREIGN_LINK: &str = "foreign_link";

/// Returns the length of the longest beginning that ends where a group ends and passes the check:
/// other groups may follow a number, such as the month of a card.
fn longest_part(candidate: &str, check: fn(&str) -> bool) -> Option<usize> {
    let ends = candidate.rmatch_indices([' ', '-']).map(|(at, _)| at);
    let passes = |end: &usize| {
        let part: String = candidate[..*end].chars().filter(char::is_ascii_alphanumeric).collect();
        check(&part)
    };
    std::iter::once(candidate.len()).chain(ends).find(passes)
}

/// Checks the length for the network that a number begins with, and the check digit (ISO/IEC
/// 7812-1, annex B).
fn is_card(digits: &str) -> bool {
    let begin: u32 = digits.get(..4).and_then(|begin| begin.parse().ok()).unwrap_or_default();
    let has_length = match begin {
        // Visa; Mastercard; American Express; Diners Club; Discover, UnionPay and JCB.
        4000..=4999 => matches!(digits.len(), 13 | 16 | 19),
        5100..=5599 | 2221..=2720 => digits.len() == 16,
        3400..=3499 | 3700..=3799 => digits.len() == 15,
        3000..=3059 | 3600..=3699 | 3800..=3899 => digits.len() == 14,
        6011 | 6440..=6599 | 6200..=6299 | 3528..=3589 => (16..=19).contains(&digits.len()),
        _ => false,
    };
    let doubled = |(at, digit): (usize, u8)| {
        let digit = u32::from(digit - b'0');
        if at % 2 == 0 { digit } else { digit * 2 / 10 + digit * 2 % 10 }
    };
    has_length && digits.bytes().rev().enumerate().map(doubled).sum::<u32>().is_multiple_of(10)
}

/// Checks the check digits (ISO 13616; ISO/IEC 7064, MOD 97-10).
fn is_iban(text: &str) -> bool {
    let (Some(begin), Some(rest)) = (text.get(..4), text.get(4..)) else { return false };
    let value = rest.chars().chain(begin.chars()).filter_map(|c| c.to_digit(36));
    let rest = value.fold(0, |rest, value| {
        let scale = if value < 10 { 10 } else { 100 };
        (rest * scale + value) % 97
    });
    (15..=34).contains(&text.len()) && rest == 1
}

/// Checks the last six characters of tokens of GitHub and npm: the CRC-32 of the characters before
/// them, in base 62.
fn is_code_token(token: &str) -> bool {
    let is_checked = token.starts_with("gh") || token.starts_with("npm_");
    let Some((_, body)) = token.split_once('_').filter(|(_, body)| is_checked && body.len() == 36)
    else {
        return true;
    };
    let (random, check) = body.split_at(30);
    let digit = |c: u8| match c {
        b'0'..=b'9' => c - b'0',
        b'A'..=b'Z' => c - b'A' + 10,
        _ => c - b'a' + 36,
    };
    let value = check.bytes().fold(0, |value: u64, c| value * 62 + u64::from(digit(c)));
    value == u64::from(crc32(random.as_bytes()))
}

/// CRC-32 as in zlib (ISO 3309), of few bytes.
fn crc32(bytes: &[u8]) -> u32 {
    let shifted = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), shifted))
}

/// Whether a link, up to its path, leads to another host than `hosts`. What comes before an `@` is
/// not the host (RFC 3986, section 3.2).
fn is_foreign(link: &str, hosts: &[Glob]) -> bool {
    let authority = link.rsplit(['/', '\\']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let host = host.split(':').next().unwrap_or_default().trim_end_matches('.').to_lowercase();
    !hosts.iter().any(|glob| glob.matches(&host))
}
