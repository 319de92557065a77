//! The schemas of documents and of bodies of requests.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, transform_subschemas};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value};

use crate::answer::ErrorDocument;

/// The schemas that operations refer to.
pub(super) struct Schemas {
    answers: SchemaGenerator,
    requests: SchemaGenerator,
}

impl Schemas {
    pub(super) fn new() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        let settings = settings.with_transform(RecursiveTransform(join_lines as fn(&mut Schema)));
        let answers = settings.clone().for_serialize().with_transform(close as fn(&mut Schema));
        Self {
            answers: answers.into_generator(),
            requests: settings.for_deserialize().into_generator(),
        }
    }

    /// Refers to the schema of the document of an answer.
    pub(super) fn answer<T: JsonSchema>(&mut self) -> Value {
        self.answers.subschema_for::<T>().into()
    }

    /// Refers to the schema of the body of a request.
    pub(super) fn request<T: JsonSchema>(&mut self) -> Value {
        self.requests.subschema_for::<T>().into()
    }

    /// Refers to the schema of errors.
    pub(super) fn failure(&mut self) -> Value {
        self.answer::<ErrorDocument>()
    }

    /// Returns all schemas by their names.
    pub(super) fn into_definitions(mut self) -> Map<String, Value> {
        let mut definitions = self.answers.take_definitions(true);
        for (name, schema) in self.requests.take_definitions(true) {
            let is_new = definitions.insert(name.clone(), schema).is_none();
            assert!(is_new, "{name} is the name of an answer and of a request");
        }
        definitions.sort_keys();
        definitions
    }
}

/// Makes one line of a doc comment.
fn join_lines(schema: &mut Schema) {
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ");
    }
}

/// Closes the objects of an answer: they have no other members, and a member that may be missing is
/// never null.
fn close(schema: &mut Schema) {
    let Some(object) = schema.as_object_mut() else { return };
    let required = object.get("required").cloned().unwrap_or_default();
    let is_required =
        |name: &str| required.as_array().is_some_and(|all| all.contains(&name.into()));
    let has_variants = object.contains_key("oneOf");
    if let Some(Value::Object(members)) = object.get_mut("properties") {
        members.iter_mut().filter(|(name, _)| !is_required(name)).for_each(|(_, it)| not_null(it));
        let key = if has_variants { "unevaluatedProperties" } else { "additionalProperties" };
        object.insert(key.to_owned(), false.into());
        // The whole is closed, not the variants of which it has one.
        if has_variants {
            return;
        }
    }
    transform_subschemas(&mut (close as fn(&mut Schema)), schema);
}

/// Takes null from the values of a member.
fn not_null(member: &mut Value) {
    if let Some(Value::Array(types)) = member.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            member["type"] = only.clone();
        }
    }
    if let Some(Value::Array(choices)) = member.get_mut("anyOf") {
        choices.retain(|choice| choice["type"] != "null");
    }
}
