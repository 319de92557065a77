use base64::prelude::BASE64_URL_SAFE;
use proptest::prelude::*;

use super::*;

#[test]
fn secrets_are_removed_wherever_they_stand() {
    let secrets = Secrets::new(["s3cret-token", "pg_other", "key", ""]);
    for (text, expected) in [
        ("bad key: Bearer s3cret-token", "bad [redacted]: Bearer [redacted]"),
        ("s3cret-tokens3cret-token pg_other", "[redacted][redacted] [redacted]"),
        ("a part s3cret-tok", "a part s3cret-tok"),
        ("the secret is safe, KEY", "the secret is safe, KEY"),
        ("S3CRET-TOKEN", "[redacted]"),
    ] {
        assert_eq!(secrets.redact(text), expected);
        assert_eq!(secrets.is_in(text), text != expected);
    }
    let overlapping = Secrets::new(["abcdef", "cdefghij"]);
    assert_eq!(overlapping.redact("-abcdefghij-"), "-[redacted]-");
    assert_eq!(format!("{overlapping:?}"), "Secrets(redacted)");
}

#[test]
fn secrets_are_removed_in_other_clothes() {
    let secrets = Secrets::new(["sk/live+key==", "p\"w &<é😀>\n'x"]);
    for text in [
        "sk%2Flive%2Bkey%3D%3D",
        "sk%2flive+key==",
        "GET https://a/?k=SK%2FLIVE%2BKEY%3D%3D",
        "sk\\/live+key==",
        "sk\\u002flive\\u002Bkey\\x3d=",
        "sk&#x2F;live&#43;key&#61;=",
        "p%22w+%26%3C%C3%A9%F0%9F%98%80%3E%0A%27x",
        "p\\\"w &<é😀>\\n'x",
        "p\\\\\\\"w \\u0026<\\u00e9\\ud83d\\ude00>\\\\n'x",
        "p&quot;w &amp;&lt;é&#128512;&gt;\n&#39;x",
    ] {
        let redacted = secrets.redact(text);
        assert!(redacted.ends_with(REDACTED), "{text}: {redacted}");
    }
    for (text, is_secret) in [("sk%2Flive%2Bkey%3D%3", false), ("sk/live key==", false)] {
        assert_eq!(secrets.is_in(text), is_secret, "{text}");
    }
}

#[test]
fn a_document_without_its_secrets_is_json() {
    let secrets = Secrets::new(["new-key"]);
    let clean = |text: &str| {
        let document = Document::parse(text.as_bytes().to_vec(), DEPTH).unwrap();
        secrets.redact_document(document).map(|document| document.json().text().to_owned())
    };
    assert_eq!(clean("{\"a\":\"b\"}").unwrap(), "{\"a\":\"b\"}");
    assert_eq!(clean("[\"new\\u002dkey\"]").unwrap(), "[\"[redacted]\"]");
    assert_eq!(clean("[\"\\new-key\"]"), None, "a line feed, and no secret");
}

/// Texts which no search that looks twice at a run or a beginning would end.
#[test]
fn the_search_takes_steps_in_proportion_to_the_text() {
    const LENGTH: usize = 1 << 17;
    let secrets = Secrets::new(["\n\n\n\\s3cret-token", "\\\\\\\\\\\\key", "pg_other"]);
    for unit in ["\\", "\\n", "%", "%5", "&", "&#x5", "k", "\\u005"] {
        assert!(!secrets.is_in(&unit.repeat(LENGTH / unit.len())), "{unit}");
    }
    let runs = format!("{}n", "\\".repeat(LENGTH / 4)).repeat(4);
    assert!(!Secrets::new(["\n\n\n\n\n\n-token"]).is_in(&runs));
    assert!(Secrets::new(["\n\n\n\n-token"]).is_in(&format!("{runs}-token")));
    // A text that cannot be searched is withheld from where the search ends.
    let letters = "a".repeat(LENGTH / 32);
    let long = Secrets::new([format!("{}b", "a".repeat(LENGTH / 64)).as_str()]);
    let text = format!("the key {letters}");
    let redacted = long.redact(&text);
    assert!(redacted.starts_with("the key a") && redacted.ends_with(REDACTED));
    assert!(redacted.len() < LENGTH / 64, "{}", redacted.len());
    let document = Document::parse(format!("[\"{letters}\"]").into_bytes(), DEPTH).unwrap();
    assert!(long.redact_document(document).is_none());
}

/// How forms are found where each place counts its own run.
fn is_in_slowly(secrets: &Secrets, text: &str) -> bool {
    let is_at = |at| {
        let rest = Searched::new(&text[at..]);
        secrets.forms.iter().any(|form| form.length_at(&rest, 0).is_some())
    };
    (0..text.len()).filter(|at| text.is_char_boundary(*at)).any(is_at)
}

proptest! {
    #[test]
    fn each_place_is_read_as_if_the_text_began_there(
        text in r#"(\\{0,40}[nutrx"/]|[%&+;]|u00|5c|2F|quot|k\n|k|ey|=|é){0,30}"#,
        secret in prop::sample::select(
            &["k\ney\"k", "\\\\\\key", "/+= key", "\nk\nk\nk", "éééé"][..],
        ),
    ) {
        let secrets = Secrets::new([secret]);
        prop_assert_eq!(secrets.is_in(&text), is_in_slowly(&secrets, &text));
        let whole = format!("{text}{}", secret.replace('\n', "\\\\\\n"));
        prop_assert!(secrets.is_in(&whole));
    }

    #[test]
    fn no_text_holds_a_secret_afterwards(
        before in ".{0,20}", secret in "[a-zé]{6,12}", after in ".{0,20}",
    ) {
        let secrets = Secrets::new([secret.as_str()]);
        let text = format!("{before}{secret}{after}{secret}");
        prop_assert!(!secrets.redact(&text).contains(&secret));
        prop_assert!(secrets.is_in(&text));
    }

    #[test]
    fn a_secret_in_base64_is_found_at_each_place(
        before in prop::collection::vec(any::<u8>(), 0..8),
        secret in "[ -~]{6,12}",
        after in prop::collection::vec(any::<u8>(), 0..8),
    ) {
        let bytes = [&before, secret.as_bytes(), &after].concat();
        let secrets = Secrets::new([secret.as_str()]);
        for encoded in [BASE64_STANDARD.encode(&bytes), BASE64_URL_SAFE.encode(&bytes)] {
            prop_assert!(secrets.is_in(&encoded), "{encoded}");
        }
    }

    #[test]
    fn any_text_is_redacted_at_its_borders(text in ".{0,40}", secret in ".{1,9}") {
        let secrets = Secrets::new([secret.as_str()]);
        let redacted = secrets.redact(&text);
        prop_assert_eq!(matches!(redacted, Cow::Owned(_)), secrets.is_in(&text));
    }
}
