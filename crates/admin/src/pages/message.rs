//! Messages of prompts, as a page shows them.

use serde::Serialize;

use super::definition::text;
use domain::json::Json;
use domain::prompts::hidden_text;

/// One message.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Message"))]
#[serde(rename_all = "camelCase")]
pub(crate) struct MessageView {
    pub role: String,
    #[serde(flatten)]
    pub content: ContentView,
    /// Hidden characters in its text.
    pub hidden: usize,
}

/// The content of a message.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub(crate) enum ContentView {
    Text {
        text: String,
    },
    Image {
        mime_type: String,
        /// Base64; empty if it is too large, or of a type that pages do not show.
        data: String,
        bytes: usize,
    },
    Audio {
        mime_type: String,
        /// Base64; empty if it is too large, or of a type that pages do not play.
        data: String,
        bytes: usize,
    },
    Resource {
        uri: String,
        mime_type: String,
        text: Option<String>,
        bytes: usize,
    },
    ResourceLink {
        uri: String,
        name: String,
        description: String,
    },
    Unknown,
}

/// Images and sounds up to this size are shown, in bytes of base64.
const SHOWN: usize = 2 << 20;

/// Image types that a page shows.
const IMAGES: [&str; 5] = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"];

/// Sound types that a page plays.
const SOUNDS: [&str; 6] =
    ["audio/mpeg", "audio/wav", "audio/x-wav", "audio/ogg", "audio/mp4", "audio/webm"];

impl MessageView {
    pub(super) fn of(message: Json<'_>) -> Self {
        let content = message.get("content").map_or(ContentView::Unknown, content);
        let hidden = match &content {
            ContentView::Text { text } | ContentView::Resource { text: Some(text), .. } => {
                hidden_text::count(text)
            }
            ContentView::ResourceLink { uri, name, description } => {
                [uri, name, description].into_iter().map(|text| hidden_text::count(text)).sum()
            }
            _ => 0,
        };
        Self { role: text(message, "role"), content, hidden }
    }
}

fn content(content: Json<'_>) -> ContentView {
    let mime_type = text(content, "mimeType");
    // Four characters of base64 are three bytes.
    let bytes = |data: &str| data.len() / 4 * 3;
    let shown = |data: String, types: &[&str]| {
        let is_shown = data.len() <= SHOWN && types.contains(&mime_type.as_str());
        if is_shown { data } else { String::new() }
    };
    match text(content, "type").as_str() {
        "text" => ContentView::Text { text: text(content, "text") },
        "image" => {
            let data = text(content, "data");
            ContentView::Image { bytes: bytes(&data), data: shown(data, &IMAGES), mime_type }
        }
        "audio" => {
            let data = text(content, "data");
            ContentView::Audio { bytes: bytes(&data), data: shown(data, &SOUNDS), mime_type }
        }
        "resource" => resource(content.get("resource")),
        "resource_link" => ContentView::ResourceLink {
            uri: text(content, "uri"),
            name: text(content, "name"),
            description: text(content, "description"),
        },
        _ => ContentView::Unknown,
    }
}

fn resource(resource: Option<Json<'_>>) -> ContentView {
    let Some(resource) = resource else {
        return ContentView::Unknown;
    };
    let body = resource.get("text").and_then(Json::as_str).map(|text| text.into_owned());
    ContentView::Resource {
        uri: text(resource, "uri"),
        mime_type: text(resource, "mimeType"),
        bytes: body.as_ref().map_or(text(resource, "blob").len() / 4 * 3, String::len),
        text: body,
    }
}
