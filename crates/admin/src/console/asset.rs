//! The files of the console that are the same on every page.

use std::sync::LazyLock;

use base::seal;

/// A file of the console. Its path holds its digest, so that browsers keep it.
#[derive(Debug)]
pub(crate) struct Asset {
    pub path: String,
    pub content: &'static str,
    pub media_type: &'static str,
}

impl Asset {
    fn new(name: &str, content: &'static str, media_type: &'static str) -> Self {
        let digest = seal::sha256_text(content.as_bytes());
        let (stem, suffix) = name.split_once('.').unwrap_or((name, ""));
        Self { path: format!("/assets/{stem}.{}.{suffix}", &digest[7..19]), content, media_type }
    }
}

pub(crate) static STYLE: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("style.css", include_str!("style.css"), "text/css; charset=utf-8"));

pub(crate) static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("script.js", include_str!("script.js"), "text/javascript; charset=utf-8")
});

pub(crate) static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("icon.svg", include_str!("icon.svg"), "image/svg+xml"));

/// Returns the file at a path.
pub(crate) fn at(path: &str) -> Option<&'static Asset> {
    let all: [&'static Asset; 3] = [&STYLE, &SCRIPT, &ICON];
    all.into_iter().find(|asset| asset.path == path)
}
