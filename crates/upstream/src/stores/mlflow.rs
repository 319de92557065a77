//! MLflow: prompts are registered models with a tag, and the text of a version is one of its tags
//! (MLflow REST API 2.0, `registered-models` and `model-versions`).

use super::api::{Found, ListPage, StoreApi, array, rows, text};
use super::template::Format;
use super::version::{StoreConfig, StoreVersion, chat, config_of};
use config::PromptStore;
use domain::json::Json;
use domain::text::percent::encoded;

pub(super) struct Mlflow;

/// Filter that excludes models that are not prompts from the list.
const IS_PROMPT: &str = "tags.`mlflow.prompt.is_prompt` = 'true'";

/// Prompts on one page, each with the text of its newest version; MLflow allows 1,000.
const PAGE: usize = 200;

/// Depth of the JSON text of a chat prompt.
const DEPTH: usize = 16;

/// Depth of the JSON texts of a configuration: a response format is a JSON Schema.
const CONFIG_DEPTH: usize = 48;

/// The alias that MLflow keeps for the newest version.
const LATEST: &str = "latest";

impl StoreApi for Mlflow {
    fn list_path(&self, store: &PromptStore, next: Option<&str>) -> String {
        let filter = store.filter.iter().fold(IS_PROMPT.to_owned(), |all, one| all + " AND " + one);
        let filter = encoded(&filter);
        let next = next.map(|token| format!("&page_token={}", encoded(token))).unwrap_or_default();
        format!("/api/2.0/mlflow/registered-models/search?max_results={PAGE}&filter={filter}{next}")
    }

    fn page(&self, answer: Json<'_>, store: &PromptStore) -> Option<ListPage> {
        // An empty list is an empty object.
        if answer.is_object() && answer.members().next().is_none() {
            return Some(ListPage { rows: Vec::new(), next: None });
        }
        let models = array(answer, "registered_models")?;
        let next = text(answer, "next_page_token").filter(|token| !token.is_empty());
        Some(ListPage { rows: rows(models, store, find), next })
    }

    fn version(&self, answer: Json<'_>) -> Result<StoreVersion, String> {
        let version = answer.get("model_version").ok_or("the answer has no `model_version`")?;
        read_version(version)
    }
}

/// Finds the version with the label. The list has the newest version of each prompt, and all its
/// aliases. An alias can move without a new timestamp, so the stamp includes its version's number.
fn find(model: Json<'_>, name: &str, label: &str) -> Result<Found, String> {
    let latest = || model.get("latest_versions").into_iter().flat_map(Json::elements);
    let number_of = |version: Json<'_>| number(version.get("version")?);
    let wanted = if label == LATEST {
        latest().filter_map(number_of).max_by_key(|number| number.parse::<u64>().unwrap_or(0))
    } else {
        let aliases = model.get("aliases").into_iter().flat_map(Json::elements);
        let mut named = aliases.filter(|alias| alias.get("alias").is_some_and(|a| a.is(label)));
        named.next().and_then(number_of)
    };
    let Some(wanted) = wanted else { return Ok(Found::Nothing) };
    if let Some(version) = latest().find(|version| number_of(*version).as_ref() == Some(&wanted)) {
        return Ok(Found::Here(read_version(version)));
    }
    let name = encoded(name);
    let version = encoded(&wanted);
    let path = format!("/api/2.0/mlflow/model-versions/get?name={name}&version={version}");
    let time = |member| model.get(member).map(Json::text).unwrap_or_default();
    // The versions of a deleted and recreated prompt restart at 1.
    let made = time("creation_timestamp");
    let updated = time("last_updated_timestamp");
    let stamp = Some(format!("{wanted} {made} {updated}"));
    Ok(Found::Elsewhere { path, stamp })
}

/// Returns the number of a version, which is a text or a number.
fn number(json: Json<'_>) -> Option<String> {
    json.as_str().map(|text| text.into_owned()).or_else(|| json.as_whole().map(|n| n.to_string()))
}

fn read_version(version: Json<'_>) -> Result<StoreVersion, String> {
    let tags = || version.get("tags").into_iter().flat_map(Json::elements);
    let tag = |key: &str| {
        let mut named = tags().filter(|tag| tag.get("key").is_some_and(|k| k.is(key)));
        named.next().and_then(|tag| text(tag, "value"))
    };
    let template = tag("mlflow.prompt.text").ok_or("it has no tag `mlflow.prompt.text`")?;
    // Nothing else tells a Jinja template from a text with variables.
    if let Some(mark) = ["{%", "{#"].into_iter().find(|mark| template.contains(mark)) {
        return Err(format!(
            "its text has {mark:?}, which is Jinja; only {{{{ variables }}}} are put in"
        ));
    }
    // The second tag is the tag of MLflow before 3.4.
    let kind = tag("_mlflow_prompt_type").or_else(|| tag("mlflow.prompt.type"));
    let messages = match kind.as_deref() {
        None | Some("text") => vec![("user".to_owned(), template)],
        Some("chat") => {
            let messages = Json::parse_text(&template, DEPTH);
            let messages =
                messages.map_err(|error| format!("its messages are no JSON: {error}"))?;
            chat(messages)?
        }
        Some(other) => return Err(format!("its type is {other:?}, not text or chat")),
    };
    let number = version.get("version").and_then(number).ok_or("its version has no number")?;
    let config = read_config(
        tag("_mlflow_prompt_model_config").as_deref(),
        tag("_mlflow_prompt_response_format").as_deref(),
    );
    Ok(StoreVersion { number, format: Format::Braces, messages, is_composed: false, config })
}

fn read_config(model: Option<&str>, response: Option<&str>) -> StoreConfig {
    for text in [model, response].into_iter().flatten() {
        let read = Json::parse_text(text, CONFIG_DEPTH);
        read.map_err(|error| format!("its configuration is no JSON: {error}"))?;
    }
    config_of(&[("model_config", model), ("response_format", response)])
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::api::Row;
    use super::super::tests::store;
    use super::*;

    fn tag(key: &str, value: &str) -> Value {
        json!({"key": key, "value": value})
    }

    fn version_of(number: &str, kind: &str, text: &str) -> Value {
        let tags = [
            tag("owner", "sre"),
            tag("mlflow.prompt.text", text),
            tag("_mlflow_prompt_type", kind),
        ];
        json!({"name": "n", "version": number, "tags": tags, "status": "READY"})
    }

    fn model(name: &str, newest: Value, production: Option<&str>) -> Value {
        let alias = |version| json!({"alias": "production", "version": version});
        let aliases: Vec<_> = production.map(alias).into_iter().collect();
        json!({"name": name, "description": "About it", "creation_timestamp": 17, "aliases": aliases,
            "last_updated_timestamp": 18, "latest_versions": [newest], "tags": []})
    }

    fn page(answer: Value, more: &str) -> Option<ListPage> {
        let text = answer.to_string();
        Mlflow.page(Json::parse_text(&text, 32).unwrap(), &store("mlflow", more))
    }

    fn only_row(answer: Value, more: &str) -> Row {
        let models = json!({"registered_models": [answer]});
        page(models, more).unwrap().rows.remove(0).unwrap()
    }

    #[test]
    fn the_newest_version_comes_with_the_list_and_another_one_is_asked_for() {
        let newest = || version_of("12", "text", "Page {{ team }}");
        let here = only_row(model("oncall", newest(), Some("12")), "");
        let Found::Here(Ok(version)) = here.found else { panic!("{here:?}") };
        assert_eq!(version.messages, [("user".to_owned(), "Page {{ team }}".to_owned())]);
        assert_eq!(
            (version.number.as_str(), here.listed.description.as_deref()),
            ("12", Some("About it"))
        );
        let there = only_row(model("a b&c", newest(), Some("9")), "");
        let Found::Elsewhere { path, stamp } = there.found else { panic!("{there:?}") };
        assert_eq!(path, "/api/2.0/mlflow/model-versions/get?name=a%20b%26c&version=9");
        // An alias moves without another time; another prompt of the same name has another time.
        assert_eq!(stamp.as_deref(), Some("9 17 18"));
        let label = "label = \"latest\"\n";
        assert!(matches!(only_row(model("x", newest(), None), label).found, Found::Here(Ok(_))));
        assert!(matches!(only_row(model("x", newest(), None), "").found, Found::Nothing));
    }

    #[test]
    fn the_configuration_of_a_version_is_an_object_of_its_json_texts() {
        let read = |tags: &[(&str, &str)]| {
            let mut version = version_of("1", "text", "x");
            let more = tags.iter().map(|(key, value)| tag(key, value));
            version["tags"].as_array_mut().unwrap().extend(more);
            let text = json!({"model_version": version}).to_string();
            Mlflow.version(Json::parse_text(&text, 64).unwrap()).unwrap().config
        };
        let model = ("_mlflow_prompt_model_config", r#"{"temperature":0.2}"#);
        let format = ("_mlflow_prompt_response_format", r#"{"type":"object"}"#);
        let both = r#"{"model_config":{"temperature":0.2},"response_format":{"type":"object"}}"#;
        assert_eq!(read(&[model, format]), Ok(Some(both.to_owned())));
        assert_eq!(read(&[]), Ok(None));
        assert!(read(&[(model.0, "{")]).unwrap_err().contains("no JSON"));
        let large = format!("[{}1]", "1,".repeat(40_000));
        assert!(read(&[(model.0, &large)]).unwrap_err().contains("65536 bytes"));
    }

    #[test]
    fn each_further_label_is_a_row_and_no_name_looks_like_one() {
        let mut model = model("oncall", version_of("12", "text", "x"), Some("12"));
        let staging = json!({"alias": "staging", "version": "9"});
        model["aliases"].as_array_mut().unwrap().push(staging);
        let named = json!({"name": "oncall@staging"});
        let models = json!({"registered_models": [model, named]});
        let labels = "labels = [\"staging\", \"candidate\"]\n";
        let read = page(models, labels).unwrap().rows;
        let names: Vec<_> =
            read.iter().map(|row| row.as_ref().map_or("", |row| row.name.as_str())).collect();
        assert_eq!(names, ["oncall", "oncall@staging", "oncall@candidate", ""]);
        let found = |at: usize| &read[at].as_ref().unwrap().found;
        assert!(matches!(found(0), Found::Here(Ok(_))));
        assert!(matches!(found(1), Found::Elsewhere { path, .. } if path.ends_with("version=9")));
        assert!(matches!(found(2), Found::Nothing));
        assert!(read[3].as_ref().unwrap_err().contains("rename it"), "{read:?}");
    }

    #[test]
    fn a_chat_is_read_and_what_is_none_is_refused() {
        let chat =
            r#"[{"role":"system","content":"Be {{ tone }}"},{"role":"user","content":"Hi"}]"#;
        let read = |version: Value| {
            let text = json!({"model_version": version}).to_string();
            Mlflow.version(Json::parse_text(&text, 32).unwrap())
        };
        assert_eq!(read(version_of("1", "chat", chat)).unwrap().messages.len(), 2);
        for (version, named) in [
            (version_of("1", "chat", "no JSON"), "no JSON"),
            (version_of("1", "chat", r#"[{"role":1}]"#), "no text"),
            (version_of("1", "audio", "x"), "audio"),
            (version_of("1", "text", "{% for i in items %}{{ i }}{% endfor %}"), "Jinja"),
            (version_of("1", "text", "a {# note #}"), "Jinja"),
            (json!({"version": "1", "tags": "none"}), "mlflow.prompt.text"),
            (json!({"tags": [tag("mlflow.prompt.text", "x")]}), "no number"),
            (json!({"version": "1", "tags": [{"key": "mlflow.prompt.text", "value": 7}]}), "tag"),
        ] {
            let refused = read(version).unwrap_err();
            assert!(refused.contains(named), "{named}: {refused}");
        }
    }

    #[test]
    fn wrong_types_lose_no_other_prompt_and_another_answer_is_no_list() {
        let good = model("good", version_of("1", "text", "x"), Some("1"));
        let odd = [
            json!(7),
            json!({"name": ["x"]}),
            json!({"name": ""}),
            json!({"name": "o", "aliases": {"alias": "production"}, "latest_versions": 3}),
            good,
        ];
        let rows = page(json!({"registered_models": odd, "next_page_token": "t="}), "").unwrap();
        let read: Vec<_> = rows.rows.iter().map(Result::is_ok).collect();
        assert_eq!(
            (read, rows.next.as_deref()),
            (vec![false, false, false, true, true], Some("t="))
        );
        assert!(page(json!({}), "").unwrap().rows.is_empty(), "an empty list");
        for other in [json!([]), json!({"error_code": "X"}), json!({"registered_models": {}})] {
            assert!(page(other.clone(), "").is_none(), "{other}");
        }
    }

    #[test]
    fn the_filter_of_the_operator_is_beside_that_for_prompts() {
        let store = store("mlflow", "filter = \"name LIKE 'team-%'\"\n");
        let path = Mlflow.list_path(&store, Some("a=&b"));
        assert!(
            path.contains("%20AND%20name%20LIKE%20%27team-%25%27&page_token=a%3D%26b"),
            "{path}"
        );
    }
}
