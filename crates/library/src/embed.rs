//! Files that a library prompt embeds as separate messages.

use std::path::{Component, Path};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;

use super::files;
use base::platform::disk;
use domain::text::percent;

/// Reads the file that `embed` names, and returns it as a content object in JSON text.
///
/// Names are relative to the library's folder and stay inside it: no `..`, no absolute paths, no
/// dot-files, and no symbolic links that lead out of it. `library` is the first part of the URI of
/// a resource. `limit` is in bytes of base64.
pub(crate) fn content(
    folder: &Path,
    library: &str,
    name: &str,
    limit: usize,
) -> Result<String, String> {
    let bytes = read(folder, name, limit).map_err(|e| format!("embed({name:?}): {e}"))?;
    let mime = mime_type(name);
    let content = match mime.split('/').next() {
        Some("image") => {
            json!({"type": "image", "data": BASE64_STANDARD.encode(bytes), "mimeType": mime})
        }
        Some("audio") => {
            json!({"type": "audio", "data": BASE64_STANDARD.encode(bytes), "mimeType": mime})
        }
        _ => {
            let uri = format!("promptgate://{library}/{}", percent::encoded_path(name));
            let resource = match String::from_utf8(bytes) {
                Ok(text) => json!({"uri": uri, "mimeType": mime, "text": text}),
                Err(error) => {
                    let blob = BASE64_STANDARD.encode(error.as_bytes());
                    json!({"uri": uri, "mimeType": mime, "blob": blob})
                }
            };
            json!({"type": "resource", "resource": resource})
        }
    };
    Ok(content.to_string())
}

fn read(folder: &Path, name: &str, limit: usize) -> Result<Vec<u8>, String> {
    let mut path = folder.to_path_buf();
    for component in Path::new(name).components() {
        match component {
            Component::Normal(part) if !part.to_string_lossy().starts_with('.') => path.push(part),
            _ => return Err("the name must stay inside the folder, without dot-files".to_owned()),
        }
    }
    if disk::symlink_metadata(&path).is_err() {
        return Err(
            "there is no such file; its name begins at the folder of the library".to_owned()
        );
    }
    // A file that is not text is sent as base64: four characters for three bytes.
    files::read(folder, &files::resolve_inside(folder, &path)?, limit / 4 * 3)
}

pub(super) fn mime_type(name: &str) -> &'static str {
    let extension = name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    match extension.as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "ogg" => "audio/ogg",
        "flac" => "audio/flac",
        "m4a" => "audio/mp4",
        "md" => "text/markdown",
        "txt" => "text/plain",
        "csv" => "text/csv",
        "html" => "text/html",
        "json" => "application/json",
        "yaml" | "yml" => "application/yaml",
        "toml" => "application/toml",
        "xml" => "application/xml",
        "pdf" => "application/pdf",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_become_the_content_that_their_ending_says() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a b")).unwrap();
        fs::write(folder.path().join("a b/guide.md"), "# Hi").unwrap();
        fs::write(folder.path().join("dot.png"), b"\x89PNG").unwrap();
        fs::write(folder.path().join("raw.bin"), b"\xff\x00").unwrap();
        let content = |name| content(folder.path(), "lib", name, 100).unwrap();
        let guide: serde_json::Value = serde_json::from_str(&content("a b/guide.md")).unwrap();
        let uri = "promptgate://lib/a%20b/guide.md";
        let resource = serde_json::json!({"mimeType": "text/markdown", "text": "# Hi", "uri": uri});
        assert_eq!(guide, serde_json::json!({"type": "resource", "resource": resource}));
        assert!(content("dot.png").contains(r#""data":"iVBORw==""#));
        assert!(content("raw.bin").contains(r#""blob":"/wA=""#));
    }

    #[test]
    fn names_never_leave_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("lib");
        fs::create_dir(&inside).unwrap();
        fs::write(folder.path().join("secret"), "x").unwrap();
        fs::write(inside.join(".env"), "x").unwrap();
        fs::write(inside.join("big"), "12345").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(folder.path().join("secret"), inside.join("link")).unwrap();
        for name in ["../secret", "/etc/hostname", ".env", "link", "", ".", "missing", "./big"] {
            assert!(content(&inside, "lib", name, 100).is_err(), "{name}");
        }
        assert!(content(&inside, "lib", "big", 8).is_ok());
        assert!(content(&inside, "lib", "big", 7).is_err());
    }
}
