use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::guards::built_in::BUILT_INS;
use crate::text::glob::Glob;

fn guard(masks: bool, patterns: &[&str]) -> TextGuard {
    let hosts = ["docs.example", "*.docs.example"].map(|host| Glob::parse(host).unwrap());
    let parse = |pattern: &&str| Pattern::parse(pattern, &hosts).unwrap();
    TextGuard { masks, patterns: patterns.iter().map(parse).collect() }
}

fn document(text: &str) -> Document {
    Document::parse(text.as_bytes().to_vec(), 16).unwrap()
}

/// Tokens with valid check characters, in parts: no tool that searches sources takes them for real.
fn filled(text: &str) -> String {
    text.replace("GITHUB", concat!("gh", "p_zQWBuTSOoRi4A9spHcVY5ncnsDkxkJ0mLq17"))
        .replace("NPM", concat!("np", "m_JkxkDsncn5YVcHps9A4iRoOSTuBWQz3H5P34"))
        .replace("AWS", concat!("AK", "IAIOSFODNN7EXAMPLE"))
}

/// For each built-in pattern: texts, with the text that remains. Equal texts have no finding.
const TABLE: &[(&str, &[(&str, &str)])] = &[
    (
        "private_key",
        &[
            ("a -----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY----- b", "a *** b"),
            ("-----BEGIN RSA PRIVATE KEY-----\nx\n-----END RSA PRIVATE KEY-----", "***"),
            ("-----BEGIN OPENSSH PRIVATE KEY-----\nx\n-----END OPENSSH PRIVATE KEY-----", "***"),
            ("-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nx", "***"),
            ("-----BEGIN EC PRIVATE KEY-----\\nx", "***"),
            ("see -----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----", ""),
            ("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----", ""),
            ("the private key begins with BEGIN PRIVATE KEY", ""),
            (
                "k LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCk1JSUIKLS0tLS1FTkQgUFJJVkFURSBLRVktLS0tLQ== e",
                "k ***== e",
            ),
            (
                "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0t\r\nCk1JSUIKLS0tLS1FTkQgUFJJVkFURSBLRVktLS0tLQ\n",
                "***",
            ),
            ("k -----BEGIN%20PRIVATE%20KEY-----%0AMIIB e", "k *** e"),
            ("k LS0tLS1CRUdJTiBQVUJMSUMgS0VZLS0tLS0 e", ""),
            ("k %2D----BEGIN%2520PRIVATE%2520KEY----- e", ""),
        ],
    ),
    (
        "cloud_token",
        &[
            ("key AWS.", "key ***."),
            ("key XAWS", ""),
            ("key AKIAIOSFODNN7EXAMPL", ""),
            ("key AKIAIOSFODNN7EXAMPL1", ""),
            ("AIzaSyA0123456789abcdefghijklmnopqrstuv", "***"),
            ("AIzaSy", ""),
            ("xoxb-123456789012-abcdefABCDEF", "***"),
            ("hf_abcdefghijklmnopqrstuvwxyzABCDEFGH", "***"),
            ("hf_hub_download", ""),
            ("b a2V5PUFLSUFJT1NGT0ROTjdFWEFNUExFIHNlY3JldA== e", "b ***== e"),
            ("https://h.example/p/a2V5PUFLSUFJT1NGT0ROTjdFWEFNUExFIHNlY3JldA", "https://h.***"),
            ("a?k=%41KIAIOSFODNN7EXAMPLE b", "*** b"),
            ("%E9 is not in it: 100%", ""),
        ],
    ),
    (
        "code_token",
        &[
            ("use GITHUB now", "use *** now"),
            ("use ghp_zQWBuTSOoRi4A9spHcVY5ncnsDkxkJ0mLq18 now", ""),
            ("use ghp_short now", ""),
            ("NPM", "***"),
            ("npm_config_registry", ""),
            ("glpat-abcDEF123456_7890xyz", "***"),
            ("glpat-short", ""),
            ("dG9rZW4gZ2hwX3pRV0J1VFNPb1JpNEE5c3BIY1ZZNW5jbnNEa3hrSjBtTHExNw==", "***=="),
            ("dG9rZW4gZ2hwX3pRV0J1VFNPb1JpNEE5c3BIY1ZZNW5jbnNEa3hrSjBtTHExOA==", ""),
            ("github_pat_0123456789abcdefABCDEF_0123456789", ""),
        ],
    ),
    (
        "payment_card",
        &[
            ("pay 4111 1111 1111 1111 now", "pay *** now"),
            ("pay 4111111111111111 12/28", "pay *** 12/28"),
            ("4111-1111-1111-1111 12", "*** 12"),
            ("378282246310005", "***"),
            ("2 4111 1111 1111 1111", "2 ***"),
            ("5555555555554444, 4012888888881881", "***, ***"),
            ("4111 1111 1111 1112", ""),
            ("9111111111111111", ""),
            ("14111111111111111", ""),
            ("4111 1111 1111", ""),
            ("order 2026-11-28 1830", ""),
        ],
    ),
    (
        "iban",
        &[
            ("to DE89370400440532013000.", "to ***."),
            ("to DE89 3704 0044 0532 0130 00 by noon", "to *** by noon"),
            ("GB82 WEST 1234 5698 7654 32", "***"),
            ("NL91ABNA0417164300 PAID", "*** PAID"),
            ("DE88370400440532013000", ""),
            ("DE89 3704 0044", ""),
            ("de89370400440532013000", ""),
        ],
    ),
    (
        "email",
        &[
            ("mail ann.b+x@mail.example.com!", "mail ***!"),
            ("<bo@example.org>", "<***>"),
            ("bo@localhost", ""),
            ("@name and a @ b.example", ""),
            ("x bo%40example.org y", ""),
            ("a@b..com", ""),
        ],
    ),
    (
        "hidden_text",
        &[
            ("a\u{200b}b", "a***b"),
            ("\u{e0041}\u{e0042}x", "***x"),
            ("👩\u{200d}🚀 é\n", ""),
            ("plain", ""),
        ],
    ),
    (
        "foreign_link",
        &[
            ("![x](https://evil.example/p?q=secret) y", "![x](***) y"),
            ("https://docs.example/a https://evil.example", "https://docs.example/a ***"),
            ("https://docs.example@evil.example/a", "***"),
            ("https://docs.example.evil.example/", "***"),
            ("HTTPS:\\\\EVIL.example\\x", "***"),
            ("https://a.DOCS.example:8443/x", ""),
            ("docs at docs.example/x", ""),
            ("ws://evil.example", "***"),
        ],
    ),
];

#[test]
fn each_built_in_pattern_finds_what_is_meant_and_no_near_miss() {
    let mut count = 0;
    for (built_in, texts) in TABLE {
        let guard = guard(true, &[built_in]);
        for (text, left) in *texts {
            let text = filled(text);
            let left = if left.is_empty() { text.clone() } else { (*left).to_owned() };
            assert_eq!(masked(&text, &guard.find(&text)), left, "{built_in:?}: {text}");
            count += 1;
        }
    }
    assert!(count >= 60 && TABLE.len() == BUILT_INS.len(), "{count}");
}

#[test]
fn a_finding_lies_in_one_text() {
    let guard = guard(false, &["payment_card"]);
    let split = document(r#"{"messages":[{"text":"4111 1111"},{"text":"1111 1111"}]}"#);
    assert!(matches!(guard.decide(&split, Texts::Content), Decision::Allowed));
}

#[test]
fn masked_documents_stay_valid_and_keep_everything_else() {
    let guard = guard(true, &["email", "/secret|user|image/"]);
    let before = document(
        r#"{ "messages":[{"role":"user","content":{"type":"text","text":"a\"b bo@x.org \u0073ecret"}},
        {"role":"user","content":{"type":"image","mimeType":"image/png","data":"secret"}},
        {"content":{"type":"resource","resource":{"uri":"mailto:bo@x.org","blob":"secret"}}}]}"#,
    );
    let Decision::Masked(code, after) = guard.decide(&before, Texts::Content) else {
        panic!("no mask");
    };
    let expected = before
        .json()
        .text()
        .replace(r#"a\"b bo@x.org \u0073ecret"#, r#"a\"b *** ***"#)
        .replace("mailto:bo@x.org", "about:masked");
    let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(value(after.json().text()), value(&expected));
    assert_eq!(code, "email");
}

#[test]
fn findings_that_cannot_be_masked_are_denied() {
    let guard = guard(true, &["payment_card", "email"]);
    for arguments in [r#"{"bo@x.org":"a"}"#, r#"{"a":4111111111111111}"#] {
        let decision = guard.decide(&document(arguments), Texts::Arguments);
        assert!(matches!(decision, Decision::Denied { .. }), "{arguments}: {decision:?}");
    }
    let data = document(r#"{"type":"image","data":"bo@x.org"}"#);
    assert!(matches!(guard.decide(&data, Texts::Arguments), Decision::Masked(..)));
    assert!(matches!(guard.decide(&data, Texts::Foreign), Decision::Allowed));
}

#[test]
fn an_expression_that_is_broken_large_or_of_every_text_is_a_mistake() {
    for (text, mistake) in [
        ("emial", "neither a built-in pattern (private_key, "),
        ("/(/", "cannot be compiled"),
        ("/(?:[a-z]{1000}){1000}/", "cannot be compiled"),
        ("/x*/", "matches the empty text"),
        ("/", "neither a built-in"),
    ] {
        let error = Pattern::parse(text, &[]).unwrap_err();
        assert!(error.contains(mistake), "{error}");
    }
}

#[test]
fn after_a_thousand_findings_the_rest_of_a_text_counts_as_found() {
    let guard = guard(true, &["/a/"]);
    let found = guard.find(&"ab".repeat(2_000));
    assert_eq!((found.len(), found.last().map(|last| last.place.end)), (1_000, Some(4_000)));
}

static EVERY: LazyLock<TextGuard> =
    LazyLock::new(|| guard(true, &BUILT_INS.each_ref().map(|known| known.name)));

proptest! {
    #[test]
    fn masking_changes_nothing_outside_the_mask(
        texts in proptest::collection::vec("(bo@x\\.org|4111 1111 1111 1111|https://e\\.vil/x|[a-z@ \"\\\\é\u{200b}%=0-9]{0,6}){0,6}", 1..4)
    ) {
        let guard = &*EVERY;
        for text in &texts {
            let found = guard.find(text);
            let mut expected = String::new();
            let mut was_in = false;
            for (at, c) in text.char_indices() {
                let is_in = found.iter().any(|finding| finding.place.contains(&at));
                match (is_in, was_in) {
                    (false, _) => expected.push(c),
                    (true, false) => expected.push_str(MASK),
                    (true, true) => {}
                }
                was_in = is_in;
            }
            prop_assert_eq!(masked(text, &found), expected);
        }
        let value = serde_json::json!({"messages": texts});
        let after = match guard.decide(&document(&value.to_string()), Texts::Content) {
            Decision::Allowed => value.clone(),
            Decision::Masked(_, document) => serde_json::from_str(document.json().text()).unwrap(),
            Decision::Denied { .. } => panic!("a mask denies no text"),
        };
        let masked: Vec<_> = texts.iter().map(|text| masked(text, &guard.find(text))).collect();
        prop_assert_eq!(after, serde_json::json!({"messages": masked}));
    }
}
