//! Upstreams that send server requests (elicitation) before they answer a get.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::upstream::{good_legacy, good_modern};
use super::{OpenStream, Scripted, Upstream};

/// A server request: method and parameters.
pub type ServerRequest = (&'static str, Value);

/// A form elicitation that asks for a colour.
pub fn form_elicitation(message: &str) -> ServerRequest {
    let schema = json!({"type": "object", "properties": {"colour": {"type": "string"}}});
    ("elicitation/create", json!({"message": message, "requestedSchema": schema}))
}

/// A URL elicitation.
pub fn url_elicitation(message: &str) -> ServerRequest {
    let url = "https://a.example/authorise";
    (
        "elicitation/create",
        json!({"mode": "url", "message": message, "url": url, "elicitationId": "e1"}),
    )
}

/// The answer of a user to [`form_elicitation`].
pub fn accept_blue() -> Value {
    json!({"action": "accept", "content": {"colour": "blue"}})
}

/// A get that a legacy upstream has not answered yet.
struct PendingGet {
    live: OpenStream,
    id: Value,
    answers: Vec<Value>,
}

impl Upstream {
    /// A legacy upstream whose gets send these server requests, one after another, and return the
    /// answers as text.
    pub async fn legacy_with_server_requests(requests_to_send: Vec<ServerRequest>) -> Self {
        let open: Arc<Mutex<HashMap<String, PendingGet>>> = Arc::default();
        Upstream::start(move |asked| {
            let mut open = open.lock().unwrap();
            if asked.method() == "prompts/get" {
                let (live, scripted) = OpenStream::new();
                let get = asked.message["id"].to_string();
                send_request(&live, &get, &requests_to_send, 0);
                open.insert(
                    get,
                    PendingGet { live, id: asked.message["id"].clone(), answers: vec![] },
                );
                return scripted;
            }
            if asked.message.get("method").is_none() && asked.http_method == "POST" {
                let id = asked.message["id"].as_str().unwrap_or_default();
                let get = id.split('-').next().unwrap_or_default().to_owned();
                if let Some(call) = open.get_mut(&get) {
                    let said = asked.message.get("result").unwrap_or(&asked.message["error"]);
                    call.answers.push(said.clone());
                    let count = call.answers.len();
                    if count < requests_to_send.len() {
                        send_request(&call.live, &get, &requests_to_send, count);
                    } else if let Some(call) = open.remove(&get) {
                        call.live.send(&json!({"jsonrpc": "2.0", "id": call.id,
                            "result": result_with(&call.answers)}));
                    }
                }
                return Scripted::Http(202, vec![], vec![]);
            }
            if asked.http_method == "GET" {
                return Scripted::Http(405, vec![], vec![]);
            }
            good_legacy(asked, "2025-11-25")
        })
        .await
    }

    /// A modern upstream whose gets return these input requests once, and then the answers as text.
    pub async fn modern_with_input_requests(requests_to_send: Vec<ServerRequest>) -> Self {
        Upstream::start(move |asked| {
            let params = &asked.message["params"];
            match (asked.method(), params.get("inputResponses")) {
                ("prompts/get", None) => {
                    let requests: serde_json::Map<_, _> = requests_to_send
                        .iter()
                        .enumerate()
                        .map(|(i, (method, params))| {
                            (format!("k{i}"), json!({"method": method, "params": params}))
                        })
                        .collect();
                    asked.result(json!({"resultType": "input_required",
                        "inputRequests": requests, "requestState": "theirs"}))
                }
                ("prompts/get", Some(responses)) => {
                    assert_eq!(params["requestState"], "theirs");
                    let answers: Vec<_> =
                        responses.as_object().unwrap().values().cloned().collect();
                    let mut result = result_with(&answers);
                    result["resultType"] = json!("complete");
                    asked.result(result)
                }
                _ => good_modern(asked),
            }
        })
        .await
    }
}

fn send_request(live: &OpenStream, get: &str, requests_to_send: &[ServerRequest], at: usize) {
    let (method, params) = &requests_to_send[at];
    let id = format!("{get}-{at}");
    live.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
}

fn result_with(answers: &[Value]) -> Value {
    let text = json!(answers).to_string();
    json!({"messages": [{"role": "user", "content": {"type": "text", "text": text}}]})
}
