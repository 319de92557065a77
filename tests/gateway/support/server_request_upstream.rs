//! Upstreams that ask before they answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::upstream::{good_legacy, good_modern};
use super::{Live, Play, Presentation, Upstream};

/// A question: method and parameters.
pub type ServerRequest = (&'static str, Value);

/// A form that asks for a colour.
pub fn form(message: &str) -> ServerRequest {
    let schema = json!({"type": "object", "properties": {"colour": {"type": "string"}}});
    ("elicitation/create", json!({"message": message, "requestedSchema": schema}))
}

/// A page to visit.
pub fn page(message: &str) -> ServerRequest {
    let url = "https://a.example/authorise";
    (
        "elicitation/create",
        json!({"mode": "url", "message": message, "url": url, "elicitationId": "e1"}),
    )
}

/// What a user says to a form.
pub fn blue() -> Value {
    json!({"action": "accept", "content": {"colour": "blue"}})
}

/// A get of a legacy upstream that has not been answered yet.
struct Open {
    live: Live,
    id: Value,
    answers: Vec<Value>,
}

impl Upstream {
    /// A legacy upstream whose gets ask these questions, one after another, and answer with the
    /// answers, as text.
    pub async fn legacy_asker(questions: Vec<ServerRequest>) -> Self {
        let open: Arc<Mutex<HashMap<String, Open>>> = Arc::default();
        Upstream::start(move |asked| {
            let mut open = open.lock().unwrap();
            if asked.method() == "prompts/get" {
                let (live, play) = Live::new();
                let get = asked.message["id"].to_string();
                ask(&live, &get, &questions, 0);
                open.insert(get, Open { live, id: asked.message["id"].clone(), answers: vec![] });
                return play;
            }
            if asked.message.get("method").is_none() && asked.http_method == "POST" {
                let id = asked.message["id"].as_str().unwrap_or_default();
                let get = id.split('-').next().unwrap_or_default().to_owned();
                if let Some(call) = open.get_mut(&get) {
                    let said = asked.message.get("result").unwrap_or(&asked.message["error"]);
                    call.answers.push(said.clone());
                    let count = call.answers.len();
                    if count < questions.len() {
                        ask(&call.live, &get, &questions, count);
                    } else if let Some(call) = open.remove(&get) {
                        call.live.say(&json!({"jsonrpc": "2.0", "id": call.id,
                            "result": told(&call.answers)}));
                    }
                }
                return Play::Http(202, vec![], vec![]);
            }
            if asked.http_method == "GET" {
                return Play::Http(405, vec![], vec![]);
            }
            good_legacy(asked, "2025-11-25")
        })
        .await
    }

    /// A modern upstream whose gets ask this once, and answer with the answers, as text.
    pub async fn modern_asker(questions: Vec<ServerRequest>) -> Self {
        Upstream::start(move |asked| {
            let params = &asked.message["params"];
            match (asked.method(), params.get("inputResponses")) {
                ("prompts/get", None) => {
                    let requests: serde_json::Map<_, _> = questions
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
                    let mut result = told(&answers);
                    result["resultType"] = json!("complete");
                    asked.result(result)
                }
                _ => good_modern(asked),
            }
        })
        .await
    }

    /// What its gets were asked, in their order.
    pub fn gets(&self) -> Vec<Presentation> {
        self.asked().into_iter().filter(|asked| asked.method() == "prompts/get").collect()
    }
}

fn ask(live: &Live, get: &str, questions: &[ServerRequest], at: usize) {
    let (method, params) = &questions[at];
    let id = format!("{get}-{at}");
    live.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
}

fn told(answers: &[Value]) -> Value {
    let text = json!(answers).to_string();
    json!({"messages": [{"role": "user", "content": {"type": "text", "text": text}}]})
}
