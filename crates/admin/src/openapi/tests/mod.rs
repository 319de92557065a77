//! The generator of `openapi.json`, and the test that compares the file with it.

mod operation;
mod operations;
mod schemas;

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Map, Value, json};

use crate::routes::{ROUTES, RoutePart};
use operation::SHARED;
use schemas::Schemas;

/// The environment variable with which the test writes the file anew.
const RENEW: &str = "PROMPTGATE_RENEW";

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/openapi/openapi.json");

const DESCRIPTION: &str = "What the gateway knows, trials of prompts, and decisions on them. Every \
    GET answers HEAD, too. Answers are JSON; an error has the member `error`.";

const SESSION: &str = "A session of the console; `__Host-promptgate_session` beyond loopback. Where \
    no sign-in is configured, none is needed, and everything is read-only.";

/// Describes the routes of probes and of the API.
fn document() -> Value {
    let mut schemas = Schemas::new();
    let mut paths = Map::new();
    let is_described = |part: RoutePart| matches!(part, RoutePart::Probe | RoutePart::Api);
    for route in ROUTES.iter().filter(|route| is_described(route.handler.part())) {
        let operation = operations::of(route, &mut schemas).described(route);
        let methods = paths.entry(route.path).or_insert_with(|| json!({}));
        methods[route.method.as_str().to_lowercase()] = operation;
    }
    let failure = schemas.failure();
    let responses: Map<String, Value> =
        SHARED.iter().map(|shared| (shared.name.to_owned(), shared.described(&failure))).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "promptgate admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": DESCRIPTION,
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {"session": []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The value of `admin.token`.",
                },
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "promptgate_session",
                    "description": SESSION,
                },
            },
            "responses": responses,
            "schemas": schemas.into_definitions(),
        },
    })
}

#[test]
fn the_file_is_as_the_routes_and_the_types_of_documents_say() {
    let document = document();
    if std::env::var_os(RENEW).is_some() {
        let text = serde_json::to_string_pretty(&document).expect("it is JSON");
        fs::write(FILE, text + "\n").expect("the file can be written");
        return;
    }
    let file: Value = serde_json::from_str(super::OPENAPI).expect("it is JSON");
    assert!(
        file == document,
        "openapi.json differs from the routes or the types of documents: \
         {RENEW}=1 cargo test -p promptgate-admin --lib openapi writes it anew"
    );
}

#[test]
fn every_reference_has_its_component_and_every_component_a_reference() {
    let document = document();
    let mut named = BTreeSet::new();
    collect(&document, &mut named);
    let mut defined = BTreeSet::new();
    for kind in ["responses", "schemas"] {
        let components = document["components"][kind].as_object().expect("components");
        defined.extend(components.keys().map(|name| format!("#/components/{kind}/{name}")));
    }
    assert_eq!(named, defined);
    assert!(defined.len() > 50, "{}", defined.len());
}

/// Collects the references of a document.
fn collect(value: &Value, references: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            references.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
            members.values().for_each(|member| collect(member, references));
        }
        Value::Array(elements) => elements.iter().for_each(|value| collect(value, references)),
        _ => {}
    }
}
