//! Phoenix: the list has no texts, so each prompt is one request (Phoenix REST API v1, `prompts`).

use super::api::{Found, ListPage, StoreApi, array, rows, text};
use super::template::Format;
use super::version::{StoreVersion, chat, config_of};
use config::PromptStore;
use domain::json::Json;
use domain::text::percent::{encoded, encoded_segment};

pub(super) struct Phoenix;

/// Prompts on one page.
const PAGE: usize = 200;

/// The members that form the configuration of a version.
const CONFIG: [&str; 4] =
    ["model_provider", "model_name", "invocation_parameters", "response_format"];

/// The label for the newest version, tagged or not.
const LATEST: &str = "latest";

impl StoreApi for Phoenix {
    fn list_path(&self, _store: &PromptStore, next: Option<&str>) -> String {
        let next = next.map(|cursor| format!("&cursor={}", encoded(cursor))).unwrap_or_default();
        format!("/v1/prompts?limit={PAGE}{next}")
    }

    fn page(&self, answer: Json<'_>, store: &PromptStore) -> Option<ListPage> {
        let prompts = array(answer, "data")?;
        let find = |prompt: Json<'_>, name: &str, label: &str| {
            // Names can be reused for another prompt; ids cannot.
            let id = text(prompt, "id").unwrap_or_else(|| name.to_owned());
            let tag = match label {
                LATEST => LATEST.to_owned(),
                label => format!("tags/{}", encoded_segment(label)),
            };
            let path = format!("/v1/prompts/{}/{tag}", encoded_segment(&id));
            Ok(Found::Elsewhere { path, stamp: None })
        };
        let next = text(answer, "next_cursor").filter(|cursor| !cursor.is_empty());
        Some(ListPage { rows: rows(prompts, store, find), next })
    }

    fn version(&self, answer: Json<'_>) -> Result<StoreVersion, String> {
        let version = answer.get("data").ok_or("the answer has no `data`")?;
        let format = match text(version, "template_format").as_deref() {
            Some("MUSTACHE") => Format::Braces,
            Some("F_STRING") => Format::FString,
            Some("NONE") => Format::Plain,
            other => return Err(format!("its template format is {other:?}, which is not known")),
        };
        let template = version.get("template").ok_or("it has no `template`")?;
        let messages =
            match (template.get("template").and_then(Json::as_str), template.get("messages")) {
                (Some(template), _) => vec![("user".to_owned(), template.into_owned())],
                (None, Some(messages)) => chat(messages)?,
                (None, None) => {
                    return Err("its template has neither a text nor messages".to_owned());
                }
            };
        let number = text(version, "id").ok_or("its version has no `id`")?;
        let member = |name| (name, version.get(name).filter(|v| !v.is("")).map(Json::text));
        let config = config_of(&CONFIG.map(member));
        Ok(StoreVersion { number, format, messages, is_composed: false, config })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::api::Row;
    use super::super::tests::store;
    use super::*;

    fn paths(answer: &Value, more: &str) -> Vec<String> {
        let text = answer.to_string();
        let page = Phoenix.page(Json::parse_text(&text, 32).unwrap(), &store("phoenix", more));
        let path = |row: Row| match row.found {
            Found::Elsewhere { path, stamp: None } => path,
            other => panic!("{other:?}"),
        };
        page.unwrap().rows.into_iter().filter_map(Result::ok).map(path).collect()
    }

    #[test]
    fn each_prompt_is_asked_for_by_its_id_and_tag() {
        let prompts = json!({"data": [{"name": "handover", "id": "UHJv/bQ==", "description": null},
            {"id": "no name"}, {"name": "by name"}], "next_cursor": null});
        let expected = |end: &str| {
            [format!("/v1/prompts/UHJv%2FbQ%3D%3D/{end}"), format!("/v1/prompts/by%20name/{end}")]
        };
        assert_eq!(paths(&prompts, ""), expected("tags/production"));
        assert_eq!(paths(&prompts, "label = \"latest\"\n"), expected("latest"));
        assert_eq!(paths(&prompts, "label = \"a/b\"\n"), expected("tags/a%2Fb"));
        let text = r#"{"detail":"no"}"#;
        let json = Json::parse_text(text, 4).unwrap();
        assert!(Phoenix.page(json, &store("phoenix", "")).is_none());
    }

    #[test]
    fn the_template_format_decides_the_language() {
        let read = |format: &str, template: Value| {
            let version = json!({"data": {"id": "v7", "template_format": format,
                "template_type": "CHAT", "template": template}});
            let text = version.to_string();
            Phoenix.version(Json::parse_text(&text, 32).unwrap())
        };
        let chat = json!({"type": "chat", "messages": [{"role": "user", "content": [
            {"type": "text", "text": "Hand over {shift}"}]}]});
        for (format, expected) in
            [("MUSTACHE", Format::Braces), ("F_STRING", Format::FString), ("NONE", Format::Plain)]
        {
            let version = read(format, chat.clone()).unwrap();
            assert_eq!((version.format, version.number.as_str()), (expected, "v7"));
            assert_eq!(version.messages[0].1, "Hand over {shift}");
        }
        let text = read("NONE", json!({"type": "string", "template": "Hi"})).unwrap();
        assert_eq!(text.messages, [("user".to_owned(), "Hi".to_owned())]);
        assert!(read("JINJA", chat.clone()).unwrap_err().contains("JINJA"));
        assert!(
            read(
                "NONE",
                json!({"messages": [{"role": "tool", "content": [
            {"type": "tool_result", "tool_call_id": "1"}]}]})
            )
            .is_err()
        );
        assert!(read("NONE", json!({})).is_err());
    }
}
