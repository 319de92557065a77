//! Checks a file of a skill against its entry. A file that differs is not served.

use std::borrow::Cow;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use base::seal;
use domain::json::{Json, JsonKind};
use domain::prompts::skill::SkillFile;

/// Checks that a `resources/read` result holds this file alone. Returns the file's bytes.
///
/// # Errors
/// The difference between the result and the entry.
pub fn verified<'a>(result: Json<'a>, file: &SkillFile) -> Result<Cow<'a, [u8]>, String> {
    let content = only_content(result).ok_or("the result must have one content")?;
    if !content.get("uri").is_some_and(|uri| uri.is(&file.uri)) {
        return Err("the result has the content of another URI".to_owned());
    }
    match (content.get("text"), content.get("blob")) {
        (Some(text), None) if text.kind() == JsonKind::String => {
            let bytes = match text.as_str().ok_or("`text` is not valid")? {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                Cow::Owned(text) => Cow::Owned(text.into_bytes()),
            };
            compare(bytes, file)
        }
        (None, Some(blob)) if blob.kind() == JsonKind::String => {
            // Base64 has four characters for three bytes: a longer text is not decoded.
            let longest = usize::try_from(file.size).unwrap_or(usize::MAX).saturating_mul(2);
            let blob = blob.as_str().filter(|blob| blob.len() <= longest.saturating_add(4));
            let bytes = blob.and_then(|blob| BASE64_STANDARD.decode(blob.as_bytes()).ok());
            let bytes = bytes.ok_or("`blob` is not base64 of the size in the skill's entry")?;
            compare(bytes.into(), file)
        }
        _ => Err("the content must have a `text` or a `blob`".to_owned()),
    }
}

/// Returns the text of the one content of a result; `None` if it is not UTF-8.
pub(super) fn text(result: Json<'_>) -> Option<String> {
    let content = only_content(result)?;
    if let Some(text) = content.get("text") {
        return text.as_str().map(|text| text.into_owned());
    }
    let blob = content.get("blob")?.as_str()?;
    String::from_utf8(BASE64_STANDARD.decode(blob.as_bytes()).ok()?).ok()
}

/// Returns the content of a result that has exactly one.
pub fn only_content(result: Json<'_>) -> Option<Json<'_>> {
    let contents = result.get("contents").filter(|contents| contents.kind() == JsonKind::Array)?;
    let mut contents = contents.elements();
    contents.next().filter(|only| only.is_object() && contents.next().is_none())
}

fn compare<'a>(bytes: Cow<'a, [u8]>, file: &SkillFile) -> Result<Cow<'a, [u8]>, String> {
    if bytes.len() as u64 != file.size {
        let found = bytes.len();
        let size = file.size;
        return Err(format!("the file has {found} bytes, and {size} in the skill's entry"));
    }
    if seal::sha256_text(&bytes) != *file.digest {
        return Err("the file has another digest than in the skill's entry".to_owned());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_bytes_of_the_entry_pass() {
        let of = |bytes: &[u8]| SkillFile {
            uri: "skill://a/x".into(),
            path: "a/x".into(),
            digest: seal::sha256_text(bytes).into(),
            size: bytes.len() as u64,
        };
        let check = |contents: &str, file: &SkillFile| {
            let text = format!(r#"{{"contents":{contents}}}"#);
            verified(Json::parse_text(&text, 8).unwrap(), file).map(Cow::into_owned)
        };
        let text = r#"[{"uri":"skill://a/x","text":"h\u00e9\n"}]"#;
        assert_eq!(check(text, &of("hé\n".as_bytes())), Ok("hé\n".into()));
        assert!(check(text, &of(b"h")).unwrap_err().contains("4 bytes, and 1"));
        assert!(check(text, &of(b"four")).unwrap_err().contains("digest"));
        let blob = r#"[{"uri":"skill://a/x","blob":"/wA="}]"#;
        assert_eq!(check(blob, &of(b"\xff\x00")), Ok(vec![0xff, 0]));
        assert!(check(blob, &SkillFile { size: 3, ..of(b"\xff\x00") }).is_err());
        for bad in [
            "[]",
            "{}",
            r#"[{"uri":"skill://a/y","text":"x"}]"#,
            r#"[{"uri":"skill://a/x","text":"x"},{"uri":"skill://a/x","text":"x"}]"#,
            r#"[{"uri":"skill://a/x","text":"x","blob":"eA=="}]"#,
            r#"[{"uri":"skill://a/x","text":7}]"#,
            r#"[{"uri":"skill://a/x","blob":"eA"}]"#,
            r#"[{"uri":"skill://a/x","blob":"eHh4eHh4eHh4"}]"#,
            r#"[{"uri":"skill://a/x"}]"#,
        ] {
            assert!(check(bad, &of(b"x")).is_err(), "{bad}");
        }
    }
}
