//! Questions of upstreams in the middle of a get: who is asked what, and how the answers get back.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::support::server_request_upstream::{Question, blue, form, page};
use crate::support::{Gateway, Live, Manner, PATIENCE, Party, Play, Upstream, eventually};

const FORM: &str = r#"{"elicitation":{"form":{}}}"#;
const ALL: &str = r#"{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{}},"roots":{}}"#;

const CLIENTS: [Manner; 5] = [
    Manner::Http("2025-11-25"),
    Manner::Sse("2025-11-25"),
    Manner::Stdio("2025-06-18"),
    Manner::Modern,
    Manner::ModernStdio,
];

async fn party(gateway: &Gateway, manner: Manner, capabilities: &str) -> Party {
    let capabilities = serde_json::from_str(capabilities).unwrap();
    Party::with_capabilities(gateway, manner, capabilities).await
}

async fn before(upstream: &Upstream, settings: &str) -> Gateway {
    Gateway::start(&(upstream.patient_table("up") + settings)).await
}

/// Both kinds of upstream, which ask the same.
async fn askers(questions: impl Fn() -> Vec<ServerRequest>) -> [Upstream; 2] {
    [Upstream::legacy_asker(questions()).await, Upstream::modern_asker(questions()).await]
}

fn text(answer: &Value) -> Value {
    let text = answer["result"]["messages"][0]["content"]["text"].as_str();
    serde_json::from_str(text.unwrap_or_else(|| panic!("{answer}"))).unwrap()
}

fn get() -> Value {
    json!({"name": "up__p", "arguments": {"a": "1"}})
}

#[tokio::test]
async fn a_form_is_answered_in_every_cell() {
    for upstream in askers(|| vec![form("Which colour?")]).await {
        let gateway = before(&upstream, "").await;
        for manner in CLIENTS {
            let mut party = party(&gateway, manner, FORM).await;
            let (asked, answer) = party.get_answering(get(), |_| blue()).await;
            assert_eq!(asked.len(), 1, "{manner:?}");
            assert_eq!(asked[0]["method"], "elicitation/create");
            let params = &asked[0]["params"];
            assert_eq!(params["message"], "[up] Which colour?", "the user sees who asks");
            assert_eq!(params["_meta"]["promptgate/upstream"], "up");
            assert_eq!(text(&answer), json!([blue()]), "{manner:?}");
        }
    }
}

#[tokio::test]
async fn several_questions_are_answered_in_every_cell() {
    let questions = || vec![form("One?"), ("roots/list", json!({})), form("Two?")];
    let say = |params: &Value| match params["message"].as_str() {
        Some(message) => json!({"action": "accept", "content": {"colour": message}}),
        None => json!({"roots": [{"uri": "file:///a"}]}),
    };
    for upstream in askers(questions).await {
        let settings = "questions = [\"elicitation\", \"roots\"]\nlabel_questions = false\n";
        let gateway = before(&upstream, settings).await;
        for manner in CLIENTS {
            let mut party = party(&gateway, manner, ALL).await;
            let (asked, answer) = party.get_answering(get(), say).await;
            assert_eq!(asked.len(), 3, "{manner:?}: {answer}");
            let colour = |text| json!({"action": "accept", "content": {"colour": text}});
            let roots = json!({"roots": [{"uri": "file:///a"}]});
            assert_eq!(text(&answer), json!([colour("One?"), roots, colour("Two?")]), "{manner:?}");
        }
    }
}

#[tokio::test]
async fn u18_who_declared_nothing_is_never_asked() {
    for upstream in askers(|| vec![form("Which colour?")]).await {
        let gateway = before(&upstream, "").await;
        for manner in CLIENTS {
            for capabilities in ["{}", r#"{"roots":{}}"#] {
                let mut party = party(&gateway, manner, capabilities).await;
                let (asked, answer) = party.get_answering(get(), |_| blue()).await;
                assert!(asked.is_empty(), "{manner:?} {asked:?}");
                // The legacy upstream hears that nobody is asked, the modern one has broken its word.
                if answer.get("error").is_some() {
                    let reason = &answer["error"]["data"]["reason"];
                    assert_eq!(reason, "upstream_protocol_error");
                } else {
                    assert_eq!(text(&answer)[0]["code"], -32601);
                }
            }
        }
    }
}

#[tokio::test]
async fn what_the_configuration_withholds_is_not_asked() {
    for upstream in askers(|| vec![form("Which colour?")]).await {
        let gateway = before(&upstream, "questions = [\"roots\"]\n").await;
        for manner in CLIENTS {
            let mut party = party(&gateway, manner, ALL).await;
            let (asked, _) = party.get_answering(get(), |_| blue()).await;
            assert!(asked.is_empty(), "{manner:?} {asked:?}");
        }
        let declared = |asked: &crate::support::Presentation| {
            let params = &asked.message["params"];
            let per_call = &params["_meta"]["io.modelcontextprotocol/clientCapabilities"];
            let found = params.get("capabilities").unwrap_or(per_call).clone();
            found.get("elicitation").is_some()
        };
        assert!(!upstream.asked().iter().any(declared), "it was never told that it may");
    }
}

#[tokio::test]
async fn a9_each_round_trip_may_go_to_another_replica() {
    const KEY: &str = "seal_key = { value = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }\n";
    let questions = || vec![form("One?"), form("Two?")];
    for upstream in askers(questions).await {
        let toml = format!("[server]\n{KEY}{}", upstream.patient_table("up"));
        let replicas = [Gateway::start(&toml).await, Gateway::start(&toml).await];
        let mut params = get();
        for round in 0.. {
            let mut party = party(&replicas[round % 2], Manner::Modern, FORM).await;
            let answer = party.answer("prompts/get", params).await;
            if answer["result"]["resultType"] == "complete" {
                assert_eq!(text(&answer), json!([blue(), blue()]));
                assert!(round > 0);
                break;
            }
            let requests = answer["result"]["inputRequests"].as_object().expect("questions");
            params = get();
            params["requestState"] = answer["result"]["requestState"].clone();
            params["inputResponses"] = requests.keys().map(|key| (key.clone(), blue())).collect();
        }
    }
}

/// The state that a first round trip gives out.
async fn state(party: &mut Party, params: Value) -> String {
    let answer = party.answer("prompts/get", params).await;
    answer["result"]["requestState"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[tokio::test]
async fn a9_a_state_opens_only_for_the_call_that_it_was_given_to() {
    for upstream in askers(|| vec![form("Which colour?")]).await {
        let gateway = before(&upstream, "").await;
        let other_key = before(&upstream, "").await;
        let mut party = party(&gateway, Manner::Modern, FORM).await;
        let good = state(&mut party, get()).await;
        let elsewhere = {
            let mut party = self::party(&other_key, Manner::Modern, FORM).await;
            state(&mut party, get()).await
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
            params["inputResponses"] = json!({"answer": blue(), "k0": blue()});
            let answer = party.answer("prompts/get", params).await;
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
            assert_eq!(answer["error"]["data"]["reason"], "invalid_request_state");
        }
        assert_eq!(upstream.gets().len(), calls, "the upstream is not called");
        let mut params = get();
        params["requestState"] = json!(good);
        params["inputResponses"] = json!({"answer": blue(), "k0": blue()});
        assert_eq!(text(&party.answer("prompts/get", params).await)[0], blue());
    }
}

#[tokio::test]
async fn a_state_belongs_to_one_prompt() {
    let upstream = Upstream::modern_asker(vec![form("Which colour?")]).await;
    let toml = upstream.patient_table("up") + &upstream.patient_table("twin");
    let gateway = Gateway::start(&toml).await;
    let mut party = party(&gateway, Manner::Modern, FORM).await;
    let state = state(&mut party, get()).await;
    let mut params = get();
    params["name"] = json!("twin__p");
    params["requestState"] = json!(state);
    let answer = party.answer("prompts/get", params).await;
    assert_eq!(answer["error"]["data"]["reason"], "invalid_request_state");
}

#[tokio::test]
async fn one_user_who_thinks_blocks_nobody() {
    let upstream = Upstream::legacy_asker(vec![form("Which colour?")]).await;
    let gateway = before(&upstream, "in_flight = 1\ntimeout = \"5s\"\n").await;
    let client =
        gateway.client().legacy_with("2025-11-25", serde_json::from_str(FORM).unwrap()).await;
    let request = crate::support::client::request(7, "prompts/get", get());
    let headers = [("Content-Type", "application/json"), ("Accept", "text/event-stream")];
    let body = request.to_string();
    let mut thinking = client.stream("POST", &headers, body.as_bytes()).await;
    let server_request = thinking.event().await.expect("a question").json();
    for manner in [Manner::Modern, Manner::Http("2025-11-25")] {
        let mut other = party(&gateway, manner, FORM).await;
        let (_, answer) = other.get_answering(get(), |_| blue()).await;
        assert_eq!(text(&answer), json!([blue()]));
    }
    let answer = json!({"jsonrpc": "2.0", "id": server_request["id"], "result": blue()});
    assert_eq!(client.post(&answer).await.status, 202);
    let last = thinking.event().await.expect("an answer").json();
    assert_eq!((&last["id"], text(&last)), (&json!(7), json!([blue()])));
}

#[tokio::test]
async fn a_user_who_does_not_answer_in_time_is_not_waited_for() {
    for upstream in askers(|| vec![form("Which colour?")]).await {
        let toml = format!(
            "[server.limits]\nquestion_timeout = \"100ms\"\n{}",
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
        // The legacy upstream gets an error, the modern one a user who cancelled.
        let said = &text(&answer)[0];
        assert!(said["code"] == -32603 || said["action"] == "cancel", "{answer}");
    }
}

#[tokio::test]
async fn questions_without_end_are_ended() {
    let many = || (0..9).map(|_| form("Again?")).collect::<Vec<_>>();
    let upstream = Upstream::legacy_asker(many()).await;
    let gateway = before(&upstream, "").await;
    let mut modern = party(&gateway, Manner::Modern, FORM).await;
    let (asked, answer) = modern.get_answering(get(), |_| blue()).await;
    assert_eq!(asked.len(), 8);
    assert_eq!(answer["error"]["data"]["reason"], "question_unanswered");
    let mut legacy = party(&gateway, Manner::Http("2025-11-25"), FORM).await;
    let (asked, answer) = legacy.get_answering(get(), |_| blue()).await;
    assert_eq!(asked.len(), 8);
    assert_eq!(answer["error"]["data"]["reason"], "question_unanswered");

    let upstream = Upstream::modern_asker(many()).await;
    let gateway = before(&upstream, "").await;
    for manner in [Manner::Modern, Manner::Http("2025-11-25")] {
        let mut party = party(&gateway, manner, FORM).await;
        let (asked, answer) = party.get_answering(get(), |_| blue()).await;
        assert!(asked.is_empty());
        assert_eq!(answer["error"]["data"]["reason"], "upstream_protocol_error");
    }
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_refused() {
    let upstream = Upstream::legacy_asker(vec![form("Which colour?")]).await;
    let gateway = before(&upstream, "").await;
    let mut modern = party(&gateway, Manner::Modern, FORM).await;
    let (_, answer) = modern.get_answering(get(), |_| json!({"action": "maybe"})).await;
    assert_eq!(answer["error"]["code"], -32602);
    let mut legacy = party(&gateway, Manner::Http("2025-11-25"), FORM).await;
    let (_, answer) = legacy.get_answering(get(), |_| json!({"action": "maybe"})).await;
    assert_eq!(text(&answer)[0]["code"], -32602);
}

#[tokio::test]
async fn a_page_is_visited_while_the_call_waits() {
    let settings = "questions = [\"elicitation\", \"elicitation-url\"]\n";
    let visited = |params: &Value| match params["mode"] == "url" {
        true => {
            assert_eq!(params["url"], "https://a.example/authorise");
            json!({"action": "accept"})
        }
        false => blue(),
    };
    let [legacy, modern] = askers(|| vec![form("One?"), page("Authorise"), form("Two?")]).await;
    // A modern client's first form is answered by a replay; from the page on the call itself waits.
    for (upstream, counts) in [(legacy, [2, 1]), (modern, [2, 2])] {
        let gateway = before(&upstream, settings).await;
        for (manner, count) in [Manner::Modern, Manner::Http("2025-11-25")].into_iter().zip(counts)
        {
            let calls = upstream.gets().len();
            let mut party = party(&gateway, manner, ALL).await;
            let (asked, answer) = party.get_answering(get(), visited).await;
            assert_eq!(asked.len(), 3, "{answer}");
            assert_eq!(text(&answer), json!([blue(), {"action": "accept"}, blue()]), "{manner:?}");
            assert_eq!(upstream.gets().len() - calls, count, "{manner:?}");
        }
    }
}

#[tokio::test]
async fn calls_that_wait_for_a_page_are_bounded_and_a_lost_one_is_asked_anew() {
    let upstream = Upstream::legacy_asker(vec![page("Authorise")]).await;
    let toml = format!(
        "[server]\nseal_key = {{ value = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }}\n\
         [server.limits]\nparked_per_caller = 2\n{}questions = [\"elicitation-url\"]\n",
        upstream.patient_table("up")
    );
    let (gateway, replica) = (Gateway::start(&toml).await, Gateway::start(&toml).await);
    let mut party = party(&gateway, Manner::Modern, ALL).await;
    let first = state(&mut party, get()).await;
    let _second = state(&mut party, get()).await;
    let third = party.answer("prompts/get", get()).await;
    assert_eq!(third["error"]["data"]["reason"], "question_unanswered");
    let with_state = |state: &str| {
        let mut params = get();
        params["requestState"] = json!(state);
        params["inputResponses"] = json!({"answer": {"action": "accept"}});
        params
    };
    let calls = upstream.gets().len();
    let done = party.answer("prompts/get", with_state(&first)).await;
    assert_eq!(text(&done), json!([{"action": "accept"}]));
    assert_eq!(upstream.gets().len(), calls, "the call that waited went on");
    // Its place is free, and what it waited for cannot be used again: the user is asked anew.
    let anew = state(&mut party, with_state(&first)).await;
    assert_eq!(upstream.gets().len(), calls + 1);
    let mut elsewhere = self::party(&replica, Manner::Modern, ALL).await;
    let lost = elsewhere.answer("prompts/get", with_state(&anew)).await;
    assert_eq!(lost["result"]["resultType"], "input_required", "{lost}");
}

/// An upstream that wants pages to be visited before it is asked again (2025-11-25, -32042).
async fn wants_pages() -> Upstream {
    Upstream::start(|asked| match asked.method() {
        "prompts/get" => {
            let page = json!({"mode": "url", "message": "Authorise", "elicitationId": "e1",
                "url": "https://a.example/x"});
            let error =
                json!({"code": -32042, "message": "first", "data": {"elicitations": [page]}});
            Play::Json(json!({"jsonrpc": "2.0", "id": asked.message["id"], "error": error}))
        }
        _ => crate::support::upstream::good_legacy(asked, "2025-11-25"),
    })
    .await
}

#[tokio::test]
async fn pages_that_an_error_names_reach_those_who_can_visit_them() {
    let upstream = wants_pages().await;
    let gateway = before(&upstream, "questions = [\"elicitation-url\"]\n").await;
    let mut newest = party(&gateway, Manner::Http("2025-11-25"), ALL).await;
    let answer = newest.answer("prompts/get", get()).await;
    assert_eq!(answer["error"]["code"], -32042);
    assert_eq!(answer["error"]["data"]["elicitations"][0]["url"], "https://a.example/x");

    let mut modern = party(&gateway, Manner::Modern, ALL).await;
    let answer = modern.answer("prompts/get", get()).await;
    assert_eq!(answer["result"]["resultType"], "input_required");
    let requests = answer["result"]["inputRequests"].as_object().unwrap();
    assert_eq!(requests["page-0"]["params"]["url"], "https://a.example/x");
    assert_eq!(requests["page-0"]["params"]["message"], "[up] Authorise");

    for (manner, capabilities) in [
        (Manner::Http("2025-06-18"), ALL),
        (Manner::Http("2025-11-25"), FORM),
        (Manner::Modern, FORM),
    ] {
        let mut other = party(&gateway, manner, capabilities).await;
        let answer = other.answer("prompts/get", get()).await;
        assert_eq!(answer["error"]["code"], -32603, "{manner:?}");
        assert_eq!(answer["error"]["data"]["upstreamCode"], -32042);
    }

    let withheld = before(&upstream, "").await;
    let mut newest = party(&withheld, Manner::Http("2025-11-25"), ALL).await;
    let answer = newest.answer("prompts/get", get()).await;
    assert_eq!(answer["error"]["data"]["reason"], "question_not_allowed");
}

#[tokio::test]
async fn w9_a_capability_that_an_upstream_needs_is_the_clients_or_the_configurations_to_grant() {
    let upstream = Upstream::modern(|asked| {
        (asked.method() == "prompts/get").then(|| {
            let data = json!({"requiredCapabilities": {"sampling": {}}});
            let error = json!({"code": -32021, "message": "needs sampling", "data": data});
            let body = json!({"jsonrpc": "2.0", "id": asked.message["id"], "error": error});
            let headers = vec![("Content-Type", "application/json".to_owned())];
            Play::Http(400, headers, body.to_string().into_bytes())
        })
    })
    .await;
    let gateway = before(&upstream, "").await;
    let reply = gateway.client().modern("prompts/get", get()).await;
    assert_eq!(reply.refusal(), (400, -32021, "capability_missing".to_owned()));
    let required = &reply.json()["error"]["data"]["requiredCapabilities"];
    assert_eq!(*required, json!({"sampling": {}}));
    let mut able = party(&gateway, Manner::Modern, ALL).await;
    let answer = able.answer("prompts/get", get()).await;
    assert_eq!(answer["error"]["code"], -32603);
    assert_eq!(answer["error"]["data"]["reason"], "question_not_allowed");
}

#[tokio::test]
async fn who_takes_no_stream_is_not_asked() {
    let upstream = Upstream::legacy_asker(vec![form("Which colour?")]).await;
    let gateway = before(&upstream, "").await;
    let capabilities = serde_json::from_str(FORM).unwrap();
    let client = gateway.client().legacy_with("2025-11-25", capabilities).await;
    let request = crate::support::client::request(7, "prompts/get", get());
    let reply = client.with("Accept", "application/json").post(&request).await;
    assert_eq!(text(&reply.json())[0]["code"], -32601);
}

/// An upstream that asks on the GET stream, as servers do that do not tie questions to calls, and
/// answers what is open with what it is told.
async fn asks_beside_its_answers() -> Upstream {
    let get_stream: Arc<Mutex<Option<Live>>> = Arc::default();
    let open: Arc<Mutex<Vec<(Live, Value)>>> = Arc::default();
    Upstream::start(move |asked| {
        let stream = &mut *get_stream.lock().unwrap();
        match (asked.http_method.as_str(), asked.method()) {
            ("GET", _) => {
                let (live, play) = Live::new();
                *stream = Some(live);
                play
            }
            ("POST", "prompts/get") => {
                let Some(stream) = stream else {
                    return asked.error(-32000, "no stream yet");
                };
                let (live, play) = Live::new();
                open.lock().unwrap().push((live, asked.message["id"].clone()));
                let (method, params) = form("Which colour?");
                let server_request =
                    json!({"jsonrpc": "2.0", "id": "q", "method": method, "params": params});
                stream.say(&server_request);
                play
            }
            ("POST", "") => {
                let said = asked.message.get("result").unwrap_or(&asked.message["error"]);
                for (live, id) in open.lock().unwrap().drain(..) {
                    let content = json!({"type": "text", "text": json!([said]).to_string()});
                    live.say(&json!({"jsonrpc": "2.0", "id": id,
                        "result": {"messages": [{"role": "user", "content": content}]}}));
                }
                Play::Http(202, vec![], vec![])
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
    let answer = eventually(async || {
        let mut legacy = party(&gateway, Manner::Http("2025-11-25"), FORM).await;
        let getting = legacy.get_answering(get(), |_| blue());
        let (_, answer) = tokio::time::timeout(PATIENCE, getting).await.ok()?;
        answer.get("result").is_some().then_some(answer)
    })
    .await;
    assert_eq!(text(&answer), json!([blue()]));
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
         questions = [\"elicitation\"]\n"
    );
    let gateway = Gateway::start(&toml).await;
    let get = |who: &str| json!({"name": "up__p", "arguments": {"a": who}});
    // A modern client is asked by an answer, which gives the child's call up: what the child asks
    // afterwards must reach nobody, least of all the next one.
    let mut modern = party(&gateway, Manner::Modern, FORM).await;
    let asked = modern.answer("prompts/get", get("alice")).await;
    let message = &asked["result"]["inputRequests"]["answer"]["params"]["message"];
    assert_eq!(message, "[up] First of alice");
    let mut legacy = party(&gateway, Manner::Http("2025-11-25"), FORM).await;
    let (asked, answer) = legacy.get_answering(get("bob"), |_| blue()).await;
    let messages: Vec<_> = asked.iter().map(|asked| &asked["params"]["message"]).collect();
    assert_eq!(messages, ["[up] First of bob"]);
    assert_eq!(text(&answer), json!([blue()]));
    let (asked, answer) = modern.get_answering(get("alice"), |_| blue()).await;
    assert_eq!((asked.len(), text(&answer)), (1, json!([blue()])));
}

#[tokio::test]
async fn an_answer_given_before_a_page_is_not_given_again_to_a_later_question() {
    let questions = vec![form("Approve?"), page("Authorise"), form("Approve?")];
    let upstream = Upstream::legacy_asker(questions).await;
    let gateway = before(&upstream, "questions = [\"elicitation\", \"elicitation-url\"]\n").await;
    let mut modern = party(&gateway, Manner::Modern, ALL).await;
    let (asked, answer) = modern.get_answering(get(), |_| blue()).await;
    assert_eq!(asked.len(), 3, "the second approval is the user's, too");
    assert_eq!(text(&answer), json!([blue(), blue(), blue()]));
}

#[tokio::test]
async fn an_error_that_names_pages_cannot_ask_for_anything_else() {
    let upstream = Upstream::start(|asked| match asked.method() {
        "prompts/get" => {
            let data = json!({"elicitations": [form("Your password?").1]});
            let error = json!({"code": -32042, "message": "first", "data": data});
            Play::Json(json!({"jsonrpc": "2.0", "id": asked.message["id"], "error": error}))
        }
        _ => crate::support::upstream::good_legacy(asked, "2025-11-25"),
    })
    .await;
    let gateway = before(&upstream, "questions = [\"elicitation-url\"]\n").await;
    let mut modern = party(&gateway, Manner::Modern, ALL).await;
    let answer = modern.answer("prompts/get", get()).await;
    assert_eq!(answer["error"]["data"]["reason"], "upstream_protocol_error");
}

#[tokio::test]
async fn a_user_of_a_modern_upstream_who_thinks_takes_nobodys_place() {
    let upstream = Upstream::modern_asker(vec![form("Which colour?")]).await;
    let gateway = before(&upstream, "in_flight = 1\ntimeout = \"5s\"\n").await;
    let client =
        gateway.client().legacy_with("2025-11-25", serde_json::from_str(FORM).unwrap()).await;
    let body = crate::support::client::request(7, "prompts/get", get()).to_string();
    let headers = [("Content-Type", "application/json"), ("Accept", "text/event-stream")];
    let mut thinking = client.stream("POST", &headers, body.as_bytes()).await;
    assert_eq!(thinking.event().await.unwrap().json()["method"], "elicitation/create");
    let mut other = party(&gateway, Manner::Modern, FORM).await;
    let (_, answer) = other.get_answering(get(), |_| blue()).await;
    assert_eq!(text(&answer), json!([blue()]));
}

#[tokio::test]
async fn answers_come_in_when_all_places_are_taken_by_users_who_think() {
    let upstream = Upstream::legacy_asker(vec![form("Which colour?")]).await;
    let toml = format!("[server.limits]\nin_flight = 1\n{}", upstream.patient_table("up"));
    let gateway = Gateway::start(&toml).await;
    let client =
        gateway.client().legacy_with("2025-11-25", serde_json::from_str(FORM).unwrap()).await;
    let body = crate::support::client::request(7, "prompts/get", get()).to_string();
    let headers = [("Content-Type", "application/json"), ("Accept", "text/event-stream")];
    let mut thinking = client.stream("POST", &headers, body.as_bytes()).await;
    let server_request = thinking.event().await.unwrap().json();
    // Who thinks takes nobody's place, and is heard.
    gateway.client().ask("prompts/list", json!({})).await;
    let said = json!({"jsonrpc": "2.0", "id": server_request["id"], "result": blue()});
    assert_eq!(client.post(&said).await.status, 202);
    assert_eq!(text(&thinking.event().await.unwrap().json()), json!([blue()]));
}

#[tokio::test]
async fn who_was_sent_to_a_page_hears_that_it_is_done_and_nobody_else() {
    let streams: Arc<Mutex<Vec<Live>>> = Arc::default();
    let opened = streams.clone();
    let upstream =
        Upstream::start(move |asked| match (asked.http_method.as_str(), asked.method()) {
            ("GET", _) => {
                let (live, play) = Live::new();
                opened.lock().unwrap().push(live);
                play
            }
            (_, "prompts/get") => {
                let data = json!({"elicitations": [page("Authorise").1]});
                let error = json!({"code": -32042, "message": "first", "data": data});
                Play::Json(json!({"jsonrpc": "2.0", "id": asked.message["id"], "error": error}))
            }
            _ => crate::support::upstream::good_legacy(asked, "2025-11-25"),
        })
        .await;
    let gateway = before(&upstream, "questions = [\"elicitation-url\"]\n").await;
    let mut sent = party(&gateway, Manner::Http("2025-11-25"), ALL).await;
    let mut other = party(&gateway, Manner::Stdio("2025-11-25"), ALL).await;
    assert_eq!(sent.answer("prompts/get", get()).await["error"]["code"], -32042);
    let done = json!({"jsonrpc": "2.0", "method": "notifications/elicitation/complete",
        "params": {"elicitationId": "e1"}});
    eventually(async || streams.lock().unwrap().pop().map(|live| live.say(&done))).await;
    // The first event primes the stream.
    assert_eq!(sent.hear().await, done);
    other.ask("ping", json!({})).await;
    assert!(other.heard_nothing(), "nobody else hears of it");
}

#[tokio::test]
async fn what_asks_beside_its_answers_is_understood_by_modern_clients_too() {
    let upstream = asks_beside_its_answers().await;
    let gateway = before(&upstream, "").await;
    let mut modern = party(&gateway, Manner::Modern, FORM).await;
    for _ in 0..2 {
        let (asked, answer) = modern.get_answering(get(), |_| blue()).await;
        assert_eq!((asked.len(), text(&answer)), (1, json!([blue()])));
    }
}
