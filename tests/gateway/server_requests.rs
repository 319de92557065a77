//! Server requests (elicitation) in the middle of a get: which client gets them, and how answers
//! return.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::support::client::request;
use crate::support::gateway::api_key;
use crate::support::server_request_upstream::{
    ServerRequest, accept_blue, form_elicitation, url_elicitation,
};
use crate::support::upstream::good_legacy;
use crate::support::{
    ClientMode, Counter, Gateway, ModeClient, OpenStream, Scripted, Upstream, eventually,
};

const FORM: &str = r#"{"elicitation":{"form":{}}}"#;
const ALL: &str = r#"{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{}},"roots":{}}"#;

const CLIENTS: [ClientMode; 5] = [
    ClientMode::Http("2025-11-25"),
    ClientMode::Sse("2025-11-25"),
    ClientMode::Stdio("2025-06-18"),
    ClientMode::Modern,
    ClientMode::ModernStdio,
];

async fn connect(gateway: &Gateway, client_mode: ClientMode, capabilities: &str) -> ModeClient {
    let capabilities = serde_json::from_str(capabilities).unwrap();
    ModeClient::with_capabilities(gateway, client_mode, capabilities).await
}

async fn before(upstream: &Upstream, settings: &str) -> Gateway {
    Gateway::start(&(upstream.patient_table("up") + settings)).await
}

/// Both kinds of upstream, which ask the same.
async fn askers(server_requests: impl Fn() -> Vec<ServerRequest>) -> [Upstream; 2] {
    [
        Upstream::legacy_with_server_requests(server_requests()).await,
        Upstream::modern_with_input_requests(server_requests()).await,
    ]
}

fn text(answer: &Value) -> Value {
    let text = answer["result"]["messages"][0]["content"]["text"].as_str();
    serde_json::from_str(text.unwrap_or_else(|| panic!("{answer}"))).unwrap()
}

fn get() -> Value {
    json!({"name": "up__p", "arguments": {"a": "1"}})
}

#[tokio::test]
async fn a_caller_for_whom_there_is_no_connection_left_ends_one_of_those_that_are_idle() {
    let upstream = Upstream::start(|asked| match asked.http_method.as_str() {
        "GET" => Scripted::Http(405, vec![], vec![]),
        // Until the gateway gives up.
        "DELETE" => Scripted::Stall(vec![]),
        _ => good_legacy(asked, "2025-11-25"),
    })
    .await;
    let callers = 0..9;
    let keys: String =
        callers.clone().map(|n| api_key(&format!("c{n}"), &format!("pg_{n}"))).collect();
    let gateway = Gateway::start(&(keys + &upstream.patient_table("up"))).await;
    for n in callers {
        let client = gateway.client().with("X-API-Key", &format!("pg_{n}"));
        let capabilities = serde_json::from_str(FORM).unwrap();
        let client = client.legacy_with("2025-11-25", capabilities).await;
        let client = client.with("Accept", "application/json, text/event-stream");
        let get = request(1, "prompts/get", json!({"name": "up__p"}));
        assert_eq!(client.post(&get).await.status, 200);
    }
    let ended = upstream.received().iter().filter(|asked| asked.http_method == "DELETE").count();
    assert_eq!(ended, 1);
}

#[tokio::test]
async fn s3_a_dedicated_session_that_has_ended_is_opened_anew_alone_and_with_the_shared_one() {
    let sessions = Counter::new();
    let [ended, alone] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let (opened, lost, lost_alone) = (sessions.clone(), ended.clone(), alone.clone());
    let upstream = Upstream::start(move |asked| match asked.http_method.as_str() {
        "GET" => Scripted::Http(405, vec![], vec![]),
        "DELETE" => Scripted::Http(200, vec![], vec![]),
        _ if asked.method() == "initialize" => {
            let reply = good_legacy(asked, "2025-11-25");
            let Scripted::Http(status, headers, body) = reply else { return reply };
            let mut headers: Vec<_> =
                headers.into_iter().filter(|(name, _)| *name != "Mcp-Session-Id").collect();
            headers.push(("Mcp-Session-Id", (opened.increment() + 1).to_string()));
            Scripted::Http(status, headers, body)
        }
        // As many servers answer for a session that they do not know any more.
        _ => {
            let session: usize = asked.header("mcp-session-id").unwrap_or("0").parse().unwrap();
            let is_alone = session == lost_alone.load(Ordering::SeqCst);
            match is_alone || session <= lost.load(Ordering::SeqCst) {
                true => {
                    let error = json!({"code": -32000, "message": "No valid session ID"});
                    let error = json!({"jsonrpc": "2.0", "id": null, "error": error}).to_string();
                    let headers = vec![("Content-Type", "application/json".to_owned())];
                    Scripted::Http(400, headers, error.into_bytes())
                }
                false => good_legacy(asked, "2025-11-25"),
            }
        }
    })
    .await;
    let gateway = before(&upstream, "poll = \"100ms\"\n").await;
    let mut client = connect(&gateway, ClientMode::Http("2025-11-25"), FORM).await;
    assert!(client.answer("prompts/get", get()).await["result"].is_object());
    assert_eq!(sessions.get(), 2, "the shared one, and one that declares what the client can do");
    alone.store(2, Ordering::SeqCst);
    served(&mut client).await;
    assert_eq!(sessions.get(), 3, "the shared one is as it was");
    ended.store(3, Ordering::SeqCst);
    served(&mut client).await;
}

/// Gets the prompt until that works.
async fn served(client: &mut ModeClient) {
    let got = async || client.answer("prompts/get", get()).await;
    eventually(got, |answer| answer["result"].is_object()).await;
}

#[tokio::test]
async fn a_form_is_answered_in_every_cell() {
    for upstream in askers(|| vec![form_elicitation("Which colour?")]).await {
        let gateway = before(&upstream, "").await;
        for client_mode in CLIENTS {
            let mut client = connect(&gateway, client_mode, FORM).await;
            let (asked, answer) = client.get_answering(get(), |_| accept_blue()).await;
            assert_eq!(asked.len(), 1, "{client_mode:?}");
            assert_eq!(asked[0]["method"], "elicitation/create");
            let params = &asked[0]["params"];
            assert_eq!(params["message"], "[up] Which colour?", "the user sees who asks");
            assert_eq!(params["_meta"]["promptgate/upstream"], "up");
            assert_eq!(text(&answer), json!([accept_blue()]), "{client_mode:?}");
        }
    }
}

#[tokio::test]
async fn several_server_requests_are_answered_in_every_cell() {
    let server_requests =
        || vec![form_elicitation("One?"), ("roots/list", json!({})), form_elicitation("Two?")];
    let say = |params: &Value| match params["message"].as_str() {
        Some(message) => json!({"action": "accept", "content": {"colour": message}}),
        None => json!({"roots": [{"uri": "file:///a"}]}),
    };
    for upstream in askers(server_requests).await {
        let settings =
            "server_requests = [\"elicitation\", \"roots\"]\nlabel_elicitations = false\n";
        let gateway = before(&upstream, settings).await;
        for client_mode in CLIENTS {
            let mut client = connect(&gateway, client_mode, ALL).await;
            let (asked, answer) = client.get_answering(get(), say).await;
            assert_eq!(asked.len(), 3, "{client_mode:?}: {answer}");
            let colour = |text| json!({"action": "accept", "content": {"colour": text}});
            let roots = json!({"roots": [{"uri": "file:///a"}]});
            assert_eq!(
                text(&answer),
                json!([colour("One?"), roots, colour("Two?")]),
                "{client_mode:?}"
            );
        }
    }
}

#[tokio::test]
async fn u18_who_declared_nothing_is_never_asked() {
    let [legacy, modern] = askers(|| vec![form_elicitation("Which colour?")]).await;
    let before_legacy = before(&legacy, "").await;
    let before_modern = before(&modern, "").await;
    for client_mode in CLIENTS {
        for capabilities in ["{}", r#"{"roots":{}}"#] {
            let get_from = async |gateway: &Gateway| {
                let mut client = connect(gateway, client_mode, capabilities).await;
                let (asked, answer) = client.get_answering(get(), |_| accept_blue()).await;
                assert!(asked.is_empty(), "{client_mode:?} {asked:?}");
                answer
            };
            // The request of the legacy upstream is refused; the modern one has broken the
            // protocol.
            let answer = get_from(&before_legacy).await;
            assert_eq!(text(&answer)[0]["code"], -32601, "{client_mode:?}");
            let answer = get_from(&before_modern).await;
            assert_eq!(answer["error"]["data"]["reason"], "upstream_protocol_error");
        }
    }
}

#[tokio::test]
async fn what_the_configuration_withholds_is_not_asked() {
    for upstream in askers(|| vec![form_elicitation("Which colour?")]).await {
        let gateway = before(&upstream, "server_requests = [\"roots\"]\n").await;
        for client_mode in CLIENTS {
            let mut client = connect(&gateway, client_mode, ALL).await;
            let (asked, _) = client.get_answering(get(), |_| accept_blue()).await;
            assert!(asked.is_empty(), "{client_mode:?} {asked:?}");
        }
        let declared = |asked: &crate::support::Received| {
            let params = &asked.message["params"];
            let per_call = &params["_meta"]["io.modelcontextprotocol/clientCapabilities"];
            let found = params.get("capabilities").unwrap_or(per_call).clone();
            found.get("elicitation").is_some()
        };
        assert!(!upstream.received().iter().any(declared), "it was never told that it may");
    }
}

#[tokio::test]
async fn a9_each_round_trip_may_go_to_another_replica() {
    const KEY: &str = "seal_key = { value = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }\n";
    let server_requests = || vec![form_elicitation("One?"), form_elicitation("Two?")];
    for upstream in askers(server_requests).await {
        let toml = format!("[server]\n{KEY}{}", upstream.patient_table("up"));
        let replicas = [Gateway::start(&toml).await, Gateway::start(&toml).await];
        let mut params = get();
        for round in 0.. {
            let mut client = connect(&replicas[round % 2], ClientMode::Modern, FORM).await;
            let answer = client.answer("prompts/get", params).await;
            if answer["result"]["resultType"] == "complete" {
                assert_eq!(text(&answer), json!([accept_blue(), accept_blue()]));
                assert!(round > 0);
                break;
            }
            let requests = answer["result"]["inputRequests"].as_object().expect("server requests");
            params = get();
            params["requestState"] = answer["result"]["requestState"].clone();
            params["inputResponses"] =
                requests.keys().map(|key| (key.clone(), accept_blue())).collect();
        }
    }
}

/// The state that a first round trip gives out.
async fn state(client: &mut ModeClient, params: Value) -> String {
    let answer = client.answer("prompts/get", params).await;
    answer["result"]["requestState"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[tokio::test]
async fn a9_a_state_opens_only_for_the_call_that_it_was_given_to() {
    for upstream in askers(|| vec![form_elicitation("Which colour?")]).await {
        let gateway = before(&upstream, "").await;
        let other_key = before(&upstream, "").await;
        let mut client = connect(&gateway, ClientMode::Modern, FORM).await;
        let good = state(&mut client, get()).await;
        let elsewhere = {
            let mut client = connect(&other_key, ClientMode::Modern, FORM).await;
            state(&mut client, get()).await
        };
        let mut flipped = good.clone().into_bytes();
        flipped[40] ^= 1;
        let flipped = String::from_utf8(flipped).unwrap();
        let session = gateway.client().legacy("2025-11-25").await.session().to_owned();
        let calls = upstream.gets().len();
        let other_arguments = json!({"name": "up__p", "arguments": {"a": "2"}});
        let no_arguments = json!({"name": "up__p"});
        let cases = [
            (get(), flipped.as_str()),
            (get(), &good[..good.len() - 1]),
            (get(), ""),
            (get(), "theirs"),
            (get(), &elsewhere),
            (get(), &session),
            (other_arguments, &good),
            (no_arguments, &good),
        ];
        for (mut params, state) in cases {
            params["requestState"] = json!(state);
            params["inputResponses"] = json!({"answer": accept_blue(), "k0": accept_blue()});
            let answer = client.answer("prompts/get", params).await;
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
            assert_eq!(answer["error"]["data"]["reason"], "invalid_request_state");
        }
        assert_eq!(upstream.gets().len(), calls, "the upstream is not called");
        let mut params = get();
        params["requestState"] = json!(good);
        params["inputResponses"] = json!({"answer": accept_blue(), "k0": accept_blue()});
        assert_eq!(text(&client.answer("prompts/get", params).await)[0], accept_blue());
    }
}

#[tokio::test]
async fn a_state_belongs_to_one_prompt() {
    let upstream =
        Upstream::modern_with_input_requests(vec![form_elicitation("Which colour?")]).await;
    let toml = upstream.patient_table("up") + &upstream.patient_table("twin");
    let gateway = Gateway::start(&toml).await;
    let mut client = connect(&gateway, ClientMode::Modern, FORM).await;
    let state = state(&mut client, get()).await;
    let mut params = get();
    params["name"] = json!("twin__p");
    params["requestState"] = json!(state);
    let answer = client.answer("prompts/get", params).await;
    assert_eq!(answer["error"]["data"]["reason"], "invalid_request_state");
}

#[tokio::test]
async fn one_user_who_thinks_blocks_nobody() {
    let upstream =
        Upstream::legacy_with_server_requests(vec![form_elicitation("Which colour?")]).await;
    let gateway = before(&upstream, "in_flight = 1\ntimeout = \"5s\"\n").await;
    let client =
        gateway.client().legacy_with("2025-11-25", serde_json::from_str(FORM).unwrap()).await;
    let request = crate::support::client::request(7, "prompts/get", get());
    let headers = [("Content-Type", "application/json"), ("Accept", "text/event-stream")];
    let body = request.to_string();
    let mut thinking = client.stream("POST", &headers, body.as_bytes()).await;
    let server_request = thinking.event().await.expect("a server request").json();
    for client_mode in [ClientMode::Modern, ClientMode::Http("2025-11-25")] {
        let mut other = connect(&gateway, client_mode, FORM).await;
        let (_, answer) = other.get_answering(get(), |_| accept_blue()).await;
        assert_eq!(text(&answer), json!([accept_blue()]));
    }
    let answer = json!({"jsonrpc": "2.0", "id": server_request["id"], "result": accept_blue()});
    assert_eq!(client.post(&answer).await.status, 202);
    let last = thinking.event().await.expect("an answer").json();
    assert_eq!((&last["id"], text(&last)), (&json!(7), json!([accept_blue()])));
}

#[tokio::test]
async fn a_user_who_does_not_answer_in_time_is_not_waited_for() {
    let upstreams = askers(|| vec![form_elicitation("Which colour?")]).await;
    // The legacy upstream gets an error, the modern one the answer of a user who cancelled.
    let expected = [("code", json!(-32603)), ("action", json!("cancel"))];
    for (upstream, (key, value)) in upstreams.into_iter().zip(expected) {
        let toml = format!(
            "[server.limits]\nserver_request_timeout = \"100ms\"\n{}",
            upstream.patient_table("up")
        );
        let gateway = Gateway::start(&toml).await;
        let client =
            gateway.client().legacy_with("2025-11-25", serde_json::from_str(FORM).unwrap()).await;
        let body = crate::support::client::request(7, "prompts/get", get()).to_string();
        let headers = [("Content-Type", "application/json"), ("Accept", "text/event-stream")];
        let mut stream = client.stream("POST", &headers, body.as_bytes()).await;
        let server_request = stream.event().await.unwrap().json();
        assert_eq!(server_request["method"], "elicitation/create");
        let taken_back = stream.event().await.unwrap().json();
        assert_eq!(taken_back["method"], "notifications/cancelled");
        assert_eq!(taken_back["params"]["requestId"], server_request["id"]);
        let answer = stream.event().await.expect("an answer").json();
        assert_eq!(text(&answer)[0][key], value, "{answer}");
    }
}

#[tokio::test]
async fn a_server_request_that_nobody_waits_for_any_more_is_withdrawn_before_the_next_one() {
    let server_requests = ["Which colour?", "And now?"].map(form_elicitation).to_vec();
    let upstream = Upstream::legacy_with_server_requests(server_requests).await;
    let toml = "[server.limits]\nserver_request_timeout = \"200ms\"\n".to_owned();
    let gateway = Gateway::start(&(toml + &upstream.patient_table("up"))).await;
    let client =
        gateway.client().legacy_with("2025-11-25", serde_json::from_str(FORM).unwrap()).await;
    let body = request(7, "prompts/get", get()).to_string();
    let headers = [("Content-Type", "application/json"), ("Accept", "text/event-stream")];
    let mut stream = client.stream("POST", &headers, body.as_bytes()).await;
    for _ in 0..2 {
        let server_request = stream.event().await.unwrap().json();
        assert_eq!(server_request["method"], "elicitation/create", "{server_request}");
        let withdrawn = stream.event().await.unwrap().json();
        assert_eq!(withdrawn["method"], "notifications/cancelled", "{withdrawn}");
        assert_eq!(withdrawn["params"]["requestId"], server_request["id"]);
    }
    let answer = stream.event().await.expect("an answer").json();
    assert_eq!(text(&answer).as_array().map(Vec::len), Some(2), "{answer}");
}

#[tokio::test]
async fn server_requests_without_end_are_ended() {
    let many = || (0..9).map(|_| form_elicitation("Again?")).collect::<Vec<_>>();
    let upstream = Upstream::legacy_with_server_requests(many()).await;
    let gateway = before(&upstream, "").await;
    let mut modern = connect(&gateway, ClientMode::Modern, FORM).await;
    let (asked, answer) = modern.get_answering(get(), |_| accept_blue()).await;
    assert_eq!(asked.len(), 8);
    assert_eq!(answer["error"]["data"]["reason"], "server_request_unanswered");
    let mut legacy = connect(&gateway, ClientMode::Http("2025-11-25"), FORM).await;
    let (asked, answer) = legacy.get_answering(get(), |_| accept_blue()).await;
    assert_eq!(asked.len(), 8);
    assert_eq!(answer["error"]["data"]["reason"], "server_request_unanswered");

    let upstream = Upstream::modern_with_input_requests(many()).await;
    let gateway = before(&upstream, "").await;
    for client_mode in [ClientMode::Modern, ClientMode::Http("2025-11-25")] {
        let mut client = connect(&gateway, client_mode, FORM).await;
        let (asked, answer) = client.get_answering(get(), |_| accept_blue()).await;
        assert!(asked.is_empty());
        assert_eq!(answer["error"]["data"]["reason"], "upstream_protocol_error");
    }
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_refused() {
    let upstream =
        Upstream::legacy_with_server_requests(vec![form_elicitation("Which colour?")]).await;
    let gateway = before(&upstream, "").await;
    let mut modern = connect(&gateway, ClientMode::Modern, FORM).await;
    let (_, answer) = modern.get_answering(get(), |_| json!({"action": "maybe"})).await;
    assert_eq!(answer["error"]["code"], -32602);
    let mut legacy = connect(&gateway, ClientMode::Http("2025-11-25"), FORM).await;
    let (_, answer) = legacy.get_answering(get(), |_| json!({"action": "maybe"})).await;
    assert_eq!(text(&answer)[0]["code"], -32602);
}

#[tokio::test]
async fn a_page_is_visited_while_the_call_waits() {
    let settings = "server_requests = [\"elicitation\", \"elicitation-url\"]\n";
    let visited = |params: &Value| match params["mode"] == "url" {
        true => {
            assert_eq!(params["url"], "https://a.example/authorise");
            json!({"action": "accept"})
        }
        false => accept_blue(),
    };
    let [legacy, modern] = askers(|| {
        vec![form_elicitation("One?"), url_elicitation("Authorise"), form_elicitation("Two?")]
    })
    .await;
    // A modern client's first form is answered by a replay; from the page on the call itself waits.
    for (upstream, counts) in [(legacy, [2, 1]), (modern, [2, 2])] {
        let gateway = before(&upstream, settings).await;
        for (client_mode, count) in
            [ClientMode::Modern, ClientMode::Http("2025-11-25")].into_iter().zip(counts)
        {
            let calls = upstream.gets().len();
            let mut client = connect(&gateway, client_mode, ALL).await;
            let (asked, answer) = client.get_answering(get(), visited).await;
            assert_eq!(asked.len(), 3, "{answer}");
            assert_eq!(
                text(&answer),
                json!([accept_blue(), {"action": "accept"}, accept_blue()]),
                "{client_mode:?}"
            );
            assert_eq!(upstream.gets().len() - calls, count, "{client_mode:?}");
        }
    }
}

#[tokio::test]
async fn calls_that_wait_for_a_page_are_bounded_and_a_lost_one_is_asked_anew() {
    let upstream = Upstream::legacy_with_server_requests(vec![url_elicitation("Authorise")]).await;
    let toml = format!(
        "[server]\nseal_key = {{ value = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }}\n\
         {}server_requests = [\"elicitation-url\"]\n",
        upstream.patient_table("up")
    );
    let (gateway, replica) = (Gateway::start(&toml).await, Gateway::start(&toml).await);
    let mut client = connect(&gateway, ClientMode::Modern, ALL).await;
    let first = state(&mut client, get()).await;
    for _ in 1..4 {
        state(&mut client, get()).await;
    }
    let fifth = client.answer("prompts/get", get()).await;
    assert_eq!(fifth["error"]["data"]["reason"], "server_request_unanswered");
    let with_state = |state: &str| {
        let mut params = get();
        params["requestState"] = json!(state);
        params["inputResponses"] = json!({"answer": {"action": "accept"}});
        params
    };
    let calls = upstream.gets().len();
    let done = client.answer("prompts/get", with_state(&first)).await;
    assert_eq!(text(&done), json!([{"action": "accept"}]));
    assert_eq!(upstream.gets().len(), calls, "the call that waited went on");
    // Its place is free, and what it waited for cannot be used again: the user is asked anew.
    let anew = state(&mut client, with_state(&first)).await;
    assert_eq!(upstream.gets().len(), calls + 1);
    let mut elsewhere = connect(&replica, ClientMode::Modern, ALL).await;
    let lost = elsewhere.answer("prompts/get", with_state(&anew)).await;
    assert_eq!(lost["result"]["resultType"], "input_required", "{lost}");
}

#[tokio::test]
async fn a_call_whose_state_is_too_large_keeps_no_place() {
    let server_requests = || vec![form_elicitation("Which colour?"), url_elicitation("Authorise")];
    let upstream = Upstream::legacy_with_server_requests(server_requests()).await;
    let toml =
        upstream.patient_table("up") + "server_requests = [\"elicitation\", \"elicitation-url\"]\n";
    let gateway = Gateway::start(&toml).await;
    let mut client = connect(&gateway, ClientMode::Modern, ALL).await;
    let answered = async |client: &mut ModeClient, colour: &str| {
        let mut params = get();
        params["requestState"] = json!(state(client, get()).await);
        let content = json!({"colour": colour});
        params["inputResponses"] = json!({"answer": {"action": "accept", "content": content}});
        client.answer("prompts/get", params).await
    };
    for _ in 0..5 {
        let refused = answered(&mut client, &"x".repeat(300 << 10)).await;
        assert_eq!(refused["error"]["data"]["reason"], "upstream_too_large", "{refused}");
    }
    let asked = answered(&mut client, "blue").await;
    let request = &asked["result"]["inputRequests"]["answer"];
    assert_eq!(request["params"]["url"], "https://a.example/authorise", "{asked}");
}

/// An upstream that wants pages to be visited before it is asked again (2025-11-25, -32042).
async fn wants_pages() -> Upstream {
    Upstream::start(|asked| match asked.method() {
        "prompts/get" => {
            let page = json!({"mode": "url", "message": "Authorise", "elicitationId": "e1",
                "url": "https://a.example/x"});
            let error =
                json!({"code": -32042, "message": "first", "data": {"elicitations": [page]}});
            Scripted::Json(json!({"jsonrpc": "2.0", "id": asked.message["id"], "error": error}))
        }
        _ => crate::support::upstream::good_legacy(asked, "2025-11-25"),
    })
    .await
}

#[tokio::test]
async fn pages_that_an_error_names_reach_those_who_can_visit_them() {
    let upstream = wants_pages().await;
    let gateway = before(&upstream, "server_requests = [\"elicitation-url\"]\n").await;
    let mut newest = connect(&gateway, ClientMode::Http("2025-11-25"), ALL).await;
    let answer = newest.answer("prompts/get", get()).await;
    assert_eq!(answer["error"]["code"], -32042);
    assert_eq!(answer["error"]["data"]["elicitations"][0]["url"], "https://a.example/x");

    let mut modern = connect(&gateway, ClientMode::Modern, ALL).await;
    let answer = modern.answer("prompts/get", get()).await;
    assert_eq!(answer["result"]["resultType"], "input_required");
    let requests = answer["result"]["inputRequests"].as_object().unwrap();
    assert_eq!(requests["page-0"]["params"]["url"], "https://a.example/x");
    assert_eq!(requests["page-0"]["params"]["message"], "[up] Authorise");

    for (client_mode, capabilities) in [
        (ClientMode::Http("2025-06-18"), ALL),
        (ClientMode::Http("2025-11-25"), FORM),
        (ClientMode::Modern, FORM),
    ] {
        let mut other = connect(&gateway, client_mode, capabilities).await;
        let answer = other.answer("prompts/get", get()).await;
        assert_eq!(answer["error"]["code"], -32603, "{client_mode:?}");
        assert_eq!(answer["error"]["data"]["upstreamCode"], -32042);
    }

    let withheld = before(&upstream, "").await;
    let mut newest = connect(&withheld, ClientMode::Http("2025-11-25"), ALL).await;
    let answer = newest.answer("prompts/get", get()).await;
    assert_eq!(answer["error"]["data"]["reason"], "server_request_not_allowed");
}

#[tokio::test]
async fn w9_a_capability_that_an_upstream_needs_is_the_clients_or_the_configurations_to_grant() {
    let upstream = Upstream::modern(|asked| {
        (asked.method() == "prompts/get").then(|| {
            let data = json!({"requiredCapabilities": {"sampling": {}}});
            let error = json!({"code": -32021, "message": "needs sampling", "data": data});
            let body = json!({"jsonrpc": "2.0", "id": asked.message["id"], "error": error});
            let headers = vec![("Content-Type", "application/json".to_owned())];
            Scripted::Http(400, headers, body.to_string().into_bytes())
        })
    })
    .await;
    let gateway = before(&upstream, "").await;
    let reply = gateway.client().modern("prompts/get", get()).await;
    assert_eq!(reply.refusal(), (400, -32021, "capability_missing".to_owned()));
    let required = &reply.json()["error"]["data"]["requiredCapabilities"];
    assert_eq!(*required, json!({"sampling": {}}));
    let mut able = connect(&gateway, ClientMode::Modern, ALL).await;
    let answer = able.answer("prompts/get", get()).await;
    assert_eq!(answer["error"]["code"], -32603);
    assert_eq!(answer["error"]["data"]["reason"], "server_request_not_allowed");
}

#[tokio::test]
async fn who_takes_no_stream_is_not_asked() {
    let upstream =
        Upstream::legacy_with_server_requests(vec![form_elicitation("Which colour?")]).await;
    let gateway = before(&upstream, "").await;
    let capabilities = serde_json::from_str(FORM).unwrap();
    let client = gateway.client().legacy_with("2025-11-25", capabilities).await;
    let request = crate::support::client::request(7, "prompts/get", get());
    let reply = client.with("Accept", "application/json").post(&request).await;
    assert_eq!(text(&reply.json())[0]["code"], -32601);
}

/// An upstream that asks on the GET stream, as servers do that do not tie server requests to calls,
/// and answers what is open with what it is told.
async fn asks_beside_its_answers() -> Upstream {
    let get_stream: Arc<Mutex<Option<OpenStream>>> = Arc::default();
    let open: Arc<Mutex<Vec<(OpenStream, Value)>>> = Arc::default();
    Upstream::start(move |asked| {
        let stream = &mut *get_stream.lock().unwrap();
        match (asked.http_method.as_str(), asked.method()) {
            ("GET", _) => {
                let (live, scripted) = OpenStream::new();
                *stream = Some(live);
                scripted
            }
            ("POST", "prompts/get") => {
                let Some(stream) = stream else {
                    return asked.error(-32000, "no stream yet");
                };
                let (live, scripted) = OpenStream::new();
                open.lock().unwrap().push((live, asked.message["id"].clone()));
                let (method, params) = form_elicitation("Which colour?");
                let server_request =
                    json!({"jsonrpc": "2.0", "id": "q", "method": method, "params": params});
                stream.send(&server_request);
                scripted
            }
            ("POST", "") => {
                let said = asked.message.get("result").unwrap_or(&asked.message["error"]);
                for (live, id) in open.lock().unwrap().drain(..) {
                    let content = json!({"type": "text", "text": json!([said]).to_string()});
                    live.send(&json!({"jsonrpc": "2.0", "id": id,
                        "result": {"messages": [{"role": "user", "content": content}]}}));
                }
                Scripted::Http(202, vec![], vec![])
            }
            _ => crate::support::upstream::good_legacy(asked, "2025-11-25"),
        }
    })
    .await
}

#[tokio::test]
async fn what_asks_on_a_stream_of_its_own_is_answered_one_call_at_a_time() {
    let upstream = asks_beside_its_answers().await;
    let gateway = before(&upstream, "").await;
    // The stream opens beside the first call: it may not be there yet.
    let answer = eventually(
        async || {
            let mut legacy = connect(&gateway, ClientMode::Http("2025-11-25"), FORM).await;
            legacy.get_answering(get(), |_| accept_blue()).await.1
        },
        |answer| answer.get("result").is_some(),
    )
    .await;
    assert_eq!(text(&answer), json!([accept_blue()]));
}

/// A child that asks in each get before it answers, and goes on asking if it is not answered.
const CHILD: &str = r#"
while read -r line; do
    id=$(printf '%s' "$line" | sed 's/^[^,]*,"id":\([0-9]*\).*/\1/')
    case "$line" in
    *'"method":"server/discover"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}\n' "$id" ;;
    *'"method":"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{"prompts":{}},"serverInfo":{"name":"sh","version":"1"}}}\n' "$id" ;;
    *'"method":"prompts/list"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"prompts":[{"name":"p"}]}}\n' "$id" ;;
    *'"method":"prompts/get"'*)
        get=$id
        who=$(printf '%s' "$line" | sed 's/.*"a":"\([^"]*\)".*/\1/')
        printf '{"jsonrpc":"2.0","id":"q1","method":"elicitation/create","params":{"message":"First of %s","requestedSchema":{"type":"object","properties":{}}}}\n' "$who" ;;
    *'"notifications/cancelled"'*)
        printf '{"jsonrpc":"2.0","id":"q2","method":"elicitation/create","params":{"message":"Second of %s","requestedSchema":{"type":"object","properties":{}}}}\n' "$who" ;;
    *'"id":"q1"'*)
        text=$(printf '%s' "$line" | sed 's/.*"result":\(.*\)}$/\1/; s/"/\\"/g')
        printf '{"jsonrpc":"2.0","id":%s,"result":{"messages":[{"role":"user","content":{"type":"text","text":"[%s]"}}]}}\n' "$get" "$text" ;;
    esac
done
"#;

#[tokio::test]
async fn s3_a_child_asks_each_caller_on_its_own_turn_and_nobody_elses() {
    let script = serde_json::to_string(CHILD).unwrap();
    let toml = format!(
        "[upstreams.up]\ntransport = \"stdio\"\ncommand = [\"sh\", \"-c\", {script}]\n\
         server_requests = [\"elicitation\"]\n"
    );
    let gateway = Gateway::start(&toml).await;
    let get = |who: &str| json!({"name": "up__p", "arguments": {"a": who}});
    // A modern client is asked by an answer, which gives the child's call up: what the child asks
    // afterwards must reach nobody, least of all the next one.
    let mut modern = connect(&gateway, ClientMode::Modern, FORM).await;
    let asked = modern.answer("prompts/get", get("alice")).await;
    let message = &asked["result"]["inputRequests"]["answer"]["params"]["message"];
    assert_eq!(message, "[up] First of alice");
    let mut legacy = connect(&gateway, ClientMode::Http("2025-11-25"), FORM).await;
    let (asked, answer) = legacy.get_answering(get("bob"), |_| accept_blue()).await;
    let messages: Vec<_> = asked.iter().map(|asked| &asked["params"]["message"]).collect();
    assert_eq!(messages, ["[up] First of bob"]);
    assert_eq!(text(&answer), json!([accept_blue()]));
    let (asked, answer) = modern.get_answering(get("alice"), |_| accept_blue()).await;
    assert_eq!((asked.len(), text(&answer)), (1, json!([accept_blue()])));
}

#[tokio::test]
async fn an_answer_given_before_a_page_is_not_given_again_to_a_later_server_request() {
    let server_requests = vec![
        form_elicitation("Approve?"),
        url_elicitation("Authorise"),
        form_elicitation("Approve?"),
    ];
    let upstream = Upstream::legacy_with_server_requests(server_requests).await;
    let gateway =
        before(&upstream, "server_requests = [\"elicitation\", \"elicitation-url\"]\n").await;
    let mut modern = connect(&gateway, ClientMode::Modern, ALL).await;
    let (asked, answer) = modern.get_answering(get(), |_| accept_blue()).await;
    assert_eq!(asked.len(), 3, "the second approval is the user's, too");
    assert_eq!(text(&answer), json!([accept_blue(), accept_blue(), accept_blue()]));
}

#[tokio::test]
async fn an_error_that_names_pages_cannot_ask_for_anything_else() {
    let upstream = Upstream::start(|asked| match asked.method() {
        "prompts/get" => {
            let data = json!({"elicitations": [form_elicitation("Your password?").1]});
            let error = json!({"code": -32042, "message": "first", "data": data});
            Scripted::Json(json!({"jsonrpc": "2.0", "id": asked.message["id"], "error": error}))
        }
        _ => crate::support::upstream::good_legacy(asked, "2025-11-25"),
    })
    .await;
    let gateway = before(&upstream, "server_requests = [\"elicitation-url\"]\n").await;
    let mut modern = connect(&gateway, ClientMode::Modern, ALL).await;
    let answer = modern.answer("prompts/get", get()).await;
    assert_eq!(answer["error"]["data"]["reason"], "upstream_protocol_error");
}

#[tokio::test]
async fn a_user_of_a_modern_upstream_who_thinks_takes_nobodys_place() {
    let upstream =
        Upstream::modern_with_input_requests(vec![form_elicitation("Which colour?")]).await;
    let gateway = before(&upstream, "in_flight = 1\ntimeout = \"5s\"\n").await;
    let client =
        gateway.client().legacy_with("2025-11-25", serde_json::from_str(FORM).unwrap()).await;
    let body = crate::support::client::request(7, "prompts/get", get()).to_string();
    let headers = [("Content-Type", "application/json"), ("Accept", "text/event-stream")];
    let mut thinking = client.stream("POST", &headers, body.as_bytes()).await;
    assert_eq!(thinking.event().await.unwrap().json()["method"], "elicitation/create");
    let mut other = connect(&gateway, ClientMode::Modern, FORM).await;
    let (_, answer) = other.get_answering(get(), |_| accept_blue()).await;
    assert_eq!(text(&answer), json!([accept_blue()]));
}

#[tokio::test]
async fn answers_come_in_when_all_places_are_taken_by_users_who_think() {
    let upstream =
        Upstream::legacy_with_server_requests(vec![form_elicitation("Which colour?")]).await;
    let toml = format!("[server.limits]\nin_flight = 1\n{}", upstream.patient_table("up"));
    let gateway = Gateway::start(&toml).await;
    let client =
        gateway.client().legacy_with("2025-11-25", serde_json::from_str(FORM).unwrap()).await;
    let body = crate::support::client::request(7, "prompts/get", get()).to_string();
    let headers = [("Content-Type", "application/json"), ("Accept", "text/event-stream")];
    let mut thinking = client.stream("POST", &headers, body.as_bytes()).await;
    let server_request = thinking.event().await.unwrap().json();
    // A user who thinks takes no place of other calls, and the answer is accepted.
    gateway.client().ask("prompts/list", json!({})).await;
    let said = json!({"jsonrpc": "2.0", "id": server_request["id"], "result": accept_blue()});
    assert_eq!(client.post(&said).await.status, 202);
    assert_eq!(text(&thinking.event().await.unwrap().json()), json!([accept_blue()]));
}

#[tokio::test]
async fn who_was_sent_to_a_page_hears_that_it_is_done_and_nobody_else() {
    let streams: Arc<Mutex<Vec<OpenStream>>> = Arc::default();
    let opened = streams.clone();
    let upstream =
        Upstream::start(move |asked| match (asked.http_method.as_str(), asked.method()) {
            ("GET", _) => {
                let (live, scripted) = OpenStream::new();
                opened.lock().unwrap().push(live);
                scripted
            }
            (_, "prompts/get") => {
                let mut elicitation = url_elicitation("Authorise").1;
                elicitation["elicitationId"] = asked.message["params"]["arguments"]["id"].clone();
                let data = json!({"elicitations": [elicitation]});
                let error = json!({"code": -32042, "message": "first", "data": data});
                Scripted::Json(json!({"jsonrpc": "2.0", "id": asked.message["id"], "error": error}))
            }
            _ => crate::support::upstream::good_legacy(asked, "2025-11-25"),
        })
        .await;
    let gateway = before(&upstream, "server_requests = [\"elicitation-url\"]\n").await;
    let mut sent = connect(&gateway, ClientMode::Http("2025-11-25"), ALL).await;
    let mut other = connect(&gateway, ClientMode::Stdio("2025-11-25"), ALL).await;
    let send_to = async |client: &mut ModeClient, id: &str| {
        let params = json!({"name": "up__p", "arguments": {"id": id}});
        assert_eq!(client.answer("prompts/get", params).await["error"]["code"], -32042);
    };
    send_to(&mut sent, "e1").await;
    send_to(&mut other, "e2").await;
    send_to(&mut sent, "e3").await;
    let done = |id: &str| {
        json!({"jsonrpc": "2.0", "method": "notifications/elicitation/complete",
            "params": {"elicitationId": id}})
    };
    let live = eventually(async || streams.lock().unwrap().pop(), Option::is_some).await.unwrap();
    for id in ["e1", "e2", "e3"] {
        live.send(&done(id));
    }
    // Completions are handled in order, so one that reached the wrong client would come first.
    assert_eq!(other.next_message().await, done("e2"));
    assert_eq!(sent.next_message().await, done("e1"));
    assert_eq!(sent.next_message().await, done("e3"));
}

#[tokio::test]
async fn what_asks_beside_its_answers_is_understood_by_modern_clients_too() {
    let upstream = asks_beside_its_answers().await;
    let gateway = before(&upstream, "").await;
    let mut modern = connect(&gateway, ClientMode::Modern, FORM).await;
    for _ in 0..2 {
        let (asked, answer) = modern.get_answering(get(), |_| accept_blue()).await;
        assert_eq!((asked.len(), text(&answer)), (1, json!([accept_blue()])));
    }
}
