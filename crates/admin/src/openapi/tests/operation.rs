//! An operation of the description: a method of a path.

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Value, json};

use crate::routes::Route;
use crate::sign_in::Role;

/// A response that several operations have.
pub(super) struct SharedResponse {
    status: u16,
    pub name: &'static str,
    description: &'static str,
}

pub(super) const SHARED: [SharedResponse; 13] = [
    shared(
        304,
        "NotModified",
        "The document with the entity tag in `If-None-Match` is still the same.",
    ),
    shared(400, "BadRequest", "The body or a parameter is not as described."),
    shared(401, "Unauthorized", "The token is missing or wrong."),
    shared(403, "Forbidden", "`Host` or `Origin` is not allowed, or the role does not allow it."),
    shared(404, "NotFound", "There is no such path or thing."),
    shared(405, "MethodNotAllowed", "The path has other methods."),
    shared(408, "Timeout", "The body did not arrive in time."),
    shared(409, "Conflict", "The decision cannot be carried out, or the text cannot be had."),
    shared(
        412,
        "PreconditionFailed",
        "The approvals, or what upstreams offer, have changed since the document with this tag.",
    ),
    shared(413, "TooLarge", "The body is too large."),
    shared(415, "UnsupportedMediaType", "`Content-Type` is not `application/json`."),
    shared(428, "PreconditionRequired", "`If-Match` is missing."),
    shared(
        503,
        "Unavailable",
        "It takes longer than `admin.render_timeout`, or too many pages are being made at once.",
    ),
];

/// The parts of a description that the table of routes does not imply.
pub(super) struct Operation {
    pub summary: &'static str,
    /// The schema of the body.
    pub request: Option<Value>,
    /// The description of `If-Match`.
    pub if_match: Option<&'static str>,
    /// Responses that its part, role and method do not imply.
    pub responses: BTreeMap<u16, Value>,
}

impl SharedResponse {
    /// Describes the response; `failure` is the schema of errors.
    pub(super) fn described(&self, failure: &Value) -> Value {
        match self.status {
            304 => json!({"description": self.description}),
            _ => response(self.description, failure),
        }
    }
}

impl Operation {
    /// An operation that answers with JSON.
    pub(super) fn new(summary: &'static str, success: &str, schema: &Value) -> Self {
        let responses = BTreeMap::from([(200, response(success, schema))]);
        Self { summary, request: None, if_match: None, responses }
    }

    /// Adds a response.
    pub(super) fn or(mut self, status: u16, response: Value) -> Self {
        self.responses.insert(status, response);
        self
    }

    /// Adds responses that other operations have, too.
    pub(super) fn or_shared(self, statuses: &[u16]) -> Self {
        statuses.iter().fold(self, |operation, status| operation.or(*status, reference(*status)))
    }

    /// Adds the entity tag of the document.
    pub(super) fn tagged(mut self) -> Self {
        if let Some(success) = self.responses.get_mut(&200) {
            let description = "The entity tag of the document.";
            success["headers"] =
                json!({"ETag": {"description": description, "schema": {"type": "string"}}});
        }
        self
    }

    /// Takes the entity tag of the document that the operation changes.
    pub(super) fn if_match(self, description: &'static str) -> Self {
        Self { if_match: Some(description), ..self }
    }

    /// Describes the operation of a route.
    pub(super) fn described(mut self, route: &Route) -> Value {
        let needs = match route.role {
            Some(Role::Approver) => " Only with `admin.write`, for approvers.",
            Some(Role::Tester) => " For testers and approvers.",
            Some(Role::Viewer) | None => "",
        };
        let mut operation = json!({"summary": format!("{}{needs}", self.summary)});
        let mut implied = vec![403, 405];
        match route.role {
            Some(_) => implied.extend([400, 401]),
            None => operation["security"] = json!([]),
        }
        let parameters = self.parameters(route.path);
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        assert_eq!(self.request.is_some(), route.method != Method::GET, "{}", route.path);
        if let Some(schema) = self.request.take() {
            implied.extend([408, 413, 415]);
            let content = json!({"application/json": {"schema": schema}});
            operation["requestBody"] = json!({"required": true, "content": content});
        }
        for status in implied {
            self.responses.entry(status).or_insert_with(|| reference(status));
        }
        operation["responses"] = json!(self.responses);
        operation
    }

    fn parameters(&self, path: &str) -> Vec<Value> {
        let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let in_path = names.map(|name| match name {
            "name" => parameter(name, "path", "Public name."),
            "id" => parameter(name, "path", "Id of the upstream."),
            "label" => parameter(name, "path", "Label."),
            other => panic!("{other} in {path} has no description"),
        });
        let header = self.if_match.map(|description| parameter("If-Match", "header", description));
        in_path.chain(header).collect()
    }
}

/// Describes a response of JSON.
pub(super) fn response(description: &str, schema: &Value) -> Value {
    json!({"description": description, "content": {"application/json": {"schema": schema}}})
}

const fn shared(status: u16, name: &'static str, description: &'static str) -> SharedResponse {
    SharedResponse { status, name, description }
}

fn reference(status: u16) -> Value {
    let shared = SHARED.iter().find(|shared| shared.status == status);
    let name = shared.expect("a response that operations share").name;
    json!({"$ref": format!("#/components/responses/{name}")})
}

fn parameter(name: &str, place: &str, description: &str) -> Value {
    json!({
        "name": name,
        "in": place,
        "required": true,
        "description": description,
        "schema": {"type": "string"},
    })
}
