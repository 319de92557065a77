use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::fault::RequestFault;
use crate::json::Json;
use crate::prompts::call_overlay::Validation;

fn prompt(definition: &Value) -> Prompt {
    Prompt::read(Json::parse(definition.to_string().as_bytes(), 64).unwrap()).unwrap()
}

fn acme() -> Preset {
    Preset { value: "acme".to_owned(), is_secret: true }
}

fn overlay(number: usize, pattern: &str, change: Change) -> Overlay {
    Overlay {
        number,
        upstream: UpstreamId::parse("up").unwrap(),
        prompt: Glob::parse(pattern).unwrap(),
        action: OverlayAction::Change(Box::new(change)),
    }
}

fn argument(name: &str, change: ArgumentChange) -> Change {
    Change { arguments: vec![(name.to_owned(), change)], ..Change::default() }
}

fn changed(overlays: &[Overlay], definition: &Value) -> Prompt {
    match apply(overlays, &prompt(definition)) {
        Overlaid::Changed(prompt) => prompt,
        other => panic!("{other:?}"),
    }
}

fn listed(prompt: &Prompt) -> Value {
    let mut out = String::new();
    prompt.write(prompt.listed_name(), &mut out);
    serde_json::from_str(&out).unwrap()
}

fn summarize() -> Value {
    json!({"name": "summarize_de", "title": "Old", "x-team": 1, "arguments": [
        {"name": "language", "required": true, "description": "of the summary"},
        {"name": "tenant", "required": true},
        {"name": "style"},
    ], "_meta": {"version": 3, "choices": {"style": ["any"], "tenant": ["a"]}}})
}

#[test]
fn the_effective_definition_has_what_the_overlays_say_and_all_else_of_the_upstream() {
    let pattern = Glob::parse("summarize_*").unwrap();
    let all = Change {
        rename: Some(Rename::parse("summary-{1}", &pattern).unwrap()),
        title: Some("Summary".to_owned()),
        description: Some("Sums up.".to_owned()),
        icons: Some(r#"[{"src":"https://example.com/i.png"}]"#.to_owned()),
        tags: vec!["team".to_owned()],
        arguments: vec![
            (
                "language".to_owned(),
                ArgumentChange { default: Some("en".to_owned()), ..ArgumentChange::default() },
            ),
            (
                "tenant".to_owned(),
                ArgumentChange { preset: Some(acme()), ..ArgumentChange::default() },
            ),
            (
                "style".to_owned(),
                ArgumentChange {
                    choices: Some(vec!["short".to_owned(), "long".to_owned()]),
                    is_required: true,
                    ..ArgumentChange::default()
                },
            ),
        ],
        before: Some(AddedMessage::new("user", "before")),
        after: None,
    };
    let prompt = changed(&[overlay(1, "summarize_*", all)], &summarize());
    assert_eq!((prompt.name.as_str(), prompt.listed_name()), ("summarize_de", "summary-de"));
    assert_eq!(prompt.title.as_deref(), Some("Summary"));
    let expected = json!({"name": "summary-de", "title": "Summary", "description": "Sums up.",
        "icons": [{"src": "https://example.com/i.png"}], "x-team": 1,
        "arguments": [{"name": "language", "description": "of the summary"},
            {"name": "style", "required": true}],
        "_meta": {"version": 3, "tags": ["team"], "choices": {"style": ["short", "long"]}}});
    assert_eq!(listed(&prompt), expected);
    let required: Vec<_> = prompt.arguments.iter().map(|a| (a.name.as_str(), a.required)).collect();
    assert_eq!(required, [("language", false), ("style", true)]);
}

#[test]
fn overlays_compose_in_their_order() {
    let titled = |title: &str| Change { title: Some(title.to_owned()), ..Change::default() };
    let tagged = |tag: &str, text: &str| Change {
        tags: vec![tag.to_owned(), "all".to_owned()],
        before: Some(AddedMessage::new("user", text)),
        ..Change::default()
    };
    let overlays = [
        overlay(1, "*", titled("general")),
        overlay(2, "*", tagged("one", "first")),
        overlay(3, "other", titled("another prompt")),
        overlay(4, "summarize_*", titled("special")),
        overlay(5, "summarize_de", tagged("two", "second")),
    ];
    let prompt = changed(&overlays, &summarize());
    assert_eq!(listed(&prompt)["title"], "special");
    assert_eq!(listed(&prompt)["_meta"]["tags"], json!(["one", "all", "two"]));
    let calls = prompt.overlay.unwrap();
    assert_eq!(calls.numbers, [1, 2, 4, 5]);
    let before: Vec<_> = calls.before().to_vec();
    assert_eq!(before, [AddedMessage::new("user", "first"), AddedMessage::new("user", "second")]);
    let mut dropped = overlays.to_vec();
    dropped.push(Overlay {
        action: OverlayAction::Drop,
        ..overlay(6, "summarize_*", Change::default())
    });
    assert!(matches!(apply(&dropped, &super::tests::prompt(&summarize())), Overlaid::Dropped(6)));
    assert!(matches!(
        apply(&overlays[2..3], &super::tests::prompt(&summarize())),
        Overlaid::Unchanged
    ));
}

#[test]
fn a_raw_name_is_found_by_the_name_that_an_overlay_gives() {
    let pattern = Glob::parse("summarize_*").unwrap();
    let rename = Rename::parse("summary-{1}", &pattern).unwrap();
    let overlays =
        [overlay(1, "summarize_*", Change { rename: Some(rename), ..Change::default() })];
    assert_eq!(raw_name(&overlays, &overlays[0].upstream, "summary-de"), "summarize_de");
    assert_eq!(raw_name(&overlays, &overlays[0].upstream, "other"), "other");
}

/// The calls of a prompt with a default, a preset and choices.
fn calls() -> std::sync::Arc<crate::prompts::call_overlay::CallOverlay> {
    let default = ArgumentChange { default: Some("en".to_owned()), ..ArgumentChange::default() };
    let preset = ArgumentChange { preset: Some(acme()), ..ArgumentChange::default() };
    let choices = ArgumentChange {
        choices: Some(["short", "long", "shorter"].map(str::to_owned).to_vec()),
        ..ArgumentChange::default()
    };
    let overlays = [
        overlay(1, "*", argument("language", default)),
        overlay(2, "*", argument("tenant", preset.clone())),
        overlay(3, "*", argument("style", choices)),
        overlay(4, "*", argument("undeclared", preset)),
    ];
    changed(&overlays, &summarize()).overlay.unwrap()
}

fn sent(given: Option<&Value>, validation: Validation) -> Result<Value, RequestFault> {
    let text = given.map(Value::to_string);
    let given = text.as_ref().map(|text| Json::parse(text.as_bytes(), 8).unwrap());
    let sent = calls().arguments(given, validation)?.expect("arguments are added");
    Ok(serde_json::from_str(sent.json().text()).unwrap())
}

#[test]
fn arguments_are_those_of_the_client_with_defaults_and_presets() {
    let all = json!({"language": "en", "tenant": "acme"});
    assert_eq!(sent(None, Validation::Full), Ok(all.clone()));
    assert_eq!(sent(Some(&json!({})), Validation::Full), Ok(all));
    let given = json!({"language": "de", "style": "long", "other": "x"});
    let expected = json!({"language": "de", "style": "long", "other": "x", "tenant": "acme"});
    assert_eq!(sent(Some(&given), Validation::Full), Ok(expected));
    let unknown = json!({"style": "wide"});
    let fault = sent(Some(&unknown), Validation::Full).unwrap_err();
    assert_eq!(fault.to_string(), "argument `style` must be one of: short, long, shorter");
    assert!(sent(Some(&unknown), Validation::PresetsOnly).is_ok());
    for name in ["tenant", "undeclared"] {
        let fault = sent(Some(&json!({name: "evil"})), Validation::PresetsOnly).unwrap_err();
        assert_eq!(fault, RequestFault::PresetArgument { argument: name.to_owned() });
        assert!(!fault.to_string().contains("acme"));
    }
}

#[test]
fn completions_know_the_choices_and_send_the_presets() {
    let calls = calls();
    assert_eq!(calls.completed("style", "sh"), Some(vec!["short", "shorter"]));
    assert_eq!(calls.completed("language", ""), None);
    assert!(calls.secrets().is_in("for \"acme\"") && !calls.secrets().is_in("for acm"));
    let context = calls.context("language", None).unwrap().unwrap();
    assert_eq!(context.json().text(), r#"{"arguments":{"tenant":"acme"}}"#);
    let given = Json::parse(br#"{"arguments":{"style":"x"},"k":1}"#, 8).unwrap();
    let context = calls.context("language", Some(given)).unwrap().unwrap();
    assert_eq!(context.json().text(), r#"{"k":1,"arguments":{"style":"x","tenant":"acme"}}"#);
    let with_preset = Json::parse(br#"{"arguments":{"tenant":"x"}}"#, 8).unwrap();
    assert!(calls.context("tenant", None).is_err());
    assert!(calls.context("language", Some(with_preset)).is_err());
}

proptest! {
    #[test]
    fn an_effective_definition_is_a_definition(
        title in ".{0,8}", tag in "[a-z\"\\\\é]{1,6}", member in "x-[a-z]{1,5}",
    ) {
        let change = Change {
            title: Some(title.clone()),
            tags: vec![tag.clone()],
            ..Change::default()
        };
        let definition = json!({"name": "p", member: [1, null, {"k": tag}], "arguments": []});
        let effective = changed(&[overlay(1, "*", change)], &definition);
        let text = effective.canonical();
        let read = Json::parse(text.as_bytes(), 64).unwrap();
        prop_assert!(read.get("title").unwrap().is(&title));
        prop_assert_eq!(read.get("_meta").unwrap().get("tags").unwrap().elements().count(), 1);
        // An approved definition is read back unchanged.
        let approved = Prompt::approved(read, &effective).unwrap();
        prop_assert_eq!(approved.canonical(), text);
    }
}
