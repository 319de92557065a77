//! Langfuse: the list has labels and times, the texts are one request each (Langfuse public API,
//! `v2/prompts`).

use super::api::{Found, ListPage, StoreApi, array, rows};
use super::template::Format;
use super::version::{StoreVersion, chat, config_of};
use config::PromptStore;
use domain::json::Json;
use domain::text::percent::{encoded, encoded_segment};

pub(super) struct Langfuse;

/// Prompts on one page: the most that Langfuse allows.
const PAGE: usize = 100;

impl StoreApi for Langfuse {
    fn list_path(&self, store: &PromptStore, next: Option<&str>) -> String {
        let label = encoded(&store.label);
        let page = next.unwrap_or("1");
        let tag = store.filter.iter().map(|tag| format!("&tag={}", encoded(tag)));
        let tag = tag.collect::<String>();
        format!("/api/public/v2/prompts?limit={PAGE}&page={page}&label={label}{tag}")
    }

    fn page(&self, answer: Json<'_>, store: &PromptStore) -> Option<ListPage> {
        let prompts = array(answer, "data")?;
        let meta = answer.get("meta")?;
        let number = |member| meta.get(member).and_then(Json::as_whole);
        let page = number("page")?;
        let pages = number("totalPages")?;
        let next = (page < pages).then(|| page.saturating_add(1).to_string());
        let find = |prompt: Json<'_>, name: &str, label: &str| Ok(find(prompt, name, label, store));
        Some(ListPage { rows: rows(prompts, store, find), next })
    }

    fn version(&self, answer: Json<'_>) -> Result<StoreVersion, String> {
        let prompt = answer.get("prompt").ok_or("the answer has no `prompt`")?;
        let messages = match prompt.as_str() {
            Some(template) => vec![("user".to_owned(), template.into_owned())],
            None => chat(prompt)?,
        };
        let number = answer.get("version").and_then(Json::as_whole);
        let number = number.ok_or("its version has no number")?.to_string();
        let is_composed = answer.get("resolutionGraph").is_some();
        let config = answer.get("config").filter(|config| config.members().next().is_some());
        let config = config_of(&[("config", config.map(Json::text))]);
        Ok(StoreVersion { number, format: Format::Braces, messages, is_composed, config })
    }
}

/// Finds the version with a label. The list has the prompts that have the label of plain names; a
/// row names all labels of its prompt.
fn find(prompt: Json<'_>, name: &str, label: &str, store: &PromptStore) -> Found {
    let mut labels = prompt.get("labels").into_iter().flat_map(Json::elements);
    if label != store.label && !labels.any(|one| one.is(label)) {
        return Found::Nothing;
    }
    // A name with slashes is in a folder, and is one segment all the same.
    let path = format!("/api/public/v2/prompts/{}?label={}", encoded_segment(name), encoded(label));
    let part = |member| prompt.get(member).map(Json::text).unwrap_or_default();
    let stamp = ["lastUpdatedAt", "labels", "versions"].map(part).join(" ");
    let has_time = prompt.get("lastUpdatedAt").is_some();
    Found::Elsewhere { path, stamp: has_time.then_some(stamp) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::store;
    use super::*;

    fn page(answer: &Value) -> Option<ListPage> {
        let text = answer.to_string();
        Langfuse.page(Json::parse_text(&text, 32).unwrap(), &store("langfuse", ""))
    }

    #[test]
    fn folders_are_one_segment_and_the_stamp_follows_labels_and_times() {
        let list = |labels: &[&str], time: &str, of: i64| {
            json!({"data": [{"name": "support/refund", "labels": labels, "versions": [1, 2],
                "tags": [], "lastUpdatedAt": time, "lastConfig": {}}],
                "meta": {"page": 1, "limit": 100, "totalItems": 1, "totalPages": of}})
        };
        let found = |answer: &Value| match page(answer).unwrap().rows.remove(0).unwrap().found {
            Found::Elsewhere { path, stamp } => (path, stamp),
            other => panic!("{other:?}"),
        };
        let (path, first) = found(&list(&["production"], "2026-11-01T10:00:00Z", 1));
        assert_eq!(path, "/api/public/v2/prompts/support%2Frefund?label=production");
        assert_ne!(first, found(&list(&["production", "x"], "2026-11-01T10:00:00Z", 1)).1);
        assert_ne!(first, found(&list(&["production"], "2026-11-01T10:00:01Z", 1)).1);
        assert_eq!(page(&list(&[], "t", 1)).unwrap().next, None);
        assert_eq!(page(&list(&[], "t", 3)).unwrap().next.as_deref(), Some("2"));
        assert!(page(&json!({"data": []})).is_none(), "without `meta`");
        let filtered = Langfuse.list_path(&store("langfuse", "filter = \"a b\"\n"), Some("2"));
        let expected = "/api/public/v2/prompts?limit=100&page=2&label=production&tag=a%20b";
        assert_eq!(filtered, expected);
    }

    #[test]
    fn texts_and_chats_are_read_and_placeholders_are_refused() {
        let read = |prompt: Value, graph: Value| {
            let answer = json!({"name": "n", "version": 4, "type": "x", "prompt": prompt,
                "config": {"temperature": 0}, "labels": ["production"], "resolutionGraph": graph});
            let text = answer.to_string();
            Langfuse.version(Json::parse_text(&text, 32).unwrap())
        };
        let text = read(json!("Refund {{ order }}"), Value::Null).unwrap();
        assert_eq!((text.number.as_str(), text.is_composed), ("4", false));
        assert!(read(json!("x"), json!({"root": {}})).unwrap().is_composed);
        let chat = json!([{"role": "user", "content": "Hi"}, {"type": "chatmessage", "role":
            "assistant", "content": "Yes"}]);
        assert_eq!(read(chat, Value::Null).unwrap().messages.len(), 2);
        let history = json!([{"type": "placeholder", "name": "history"}]);
        assert!(read(history, Value::Null).unwrap_err().contains("history"));
        assert!(read(Value::Null, Value::Null).is_err());
    }
}
