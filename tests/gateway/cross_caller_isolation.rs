//! Isolation of callers: sessions, cursors and states of one are unknown to another. Over generated
//! histories, what a caller receives is, byte for byte, what it receives when it is the only caller
//! (fault matrix, property 6).

use domain::calls::caller::Caller as CallerId;
use domain::fault::{Fault, RequestFault, TransportFault};
use front::session::headers::{Field, Headers};
use front::session::{Dispatch, MessageRefusal};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::audit::Log;
use super::generated_histories::over_histories;
use crate::support::client::{Reply, modern, request};
use crate::support::gateway::{api_key, upstream_tables};
use crate::support::server_request_upstream::{accept_blue, form_elicitation};
use crate::support::session_layer::{NOW, SessionLayer};
use crate::support::{Client, Gateway, Upstream};

fn fault(turn: Result<Dispatch, MessageRefusal>) -> Option<Fault> {
    turn.err().map(|refusal| refusal.fault)
}

#[tokio::test]
async fn a8_a_session_of_another_caller_is_unknown_in_every_way() {
    let log = Log::new();
    let layer = SessionLayer::start(&log.table());
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}});
    let opened = layer.read("alice", &Headers::default(), &request(0, "initialize", params)).await;
    let Ok(Dispatch::Answer { session: Some(session), .. }) = opened else { panic!("a session") };
    let headers = Headers { session: Field::Once(&session), ..Headers::default() };
    let unknown = Some(TransportFault::SessionUnknown.into());
    let ping = request(1, "ping", json!({}));
    assert_eq!(fault(layer.read("bob", &headers, &ping).await), unknown);
    let answer = json!({"jsonrpc": "2.0", "id": "promptgate-0", "result": {}});
    assert_eq!(fault(layer.read("bob", &headers, &answer).await), unknown);
    let bob = CallerId::new("bob");
    let opened = layer.sessions.legacy().open_stream(&headers, None, &bob, "/mcp", NOW);
    assert_eq!(opened.err().map(|refusal| refusal.fault), unknown);
    let ended = layer.sessions.legacy().terminate(&headers, &bob, None, "/mcp", NOW);
    assert_eq!(ended.await.err().map(|refusal| refusal.fault), unknown);
    // As if it had never been, and it is unharmed.
    let never = Headers { session: Field::Once("never"), ..Headers::default() };
    assert_eq!(fault(layer.read("bob", &never, &ping).await), unknown);
    assert_eq!(fault(layer.read("alice", &headers, &ping).await), None);
    // Bob's first try stands on record at once, the others are counted.
    let refused = log.wait_for("refused").await;
    assert_eq!(
        (&refused["caller"], &refused["reason"]),
        (&json!("bob"), &json!("session_unknown"))
    );
}

#[tokio::test]
async fn a8_cursors_and_states_of_another_caller_are_not_valid() {
    let upstream =
        Upstream::legacy_with_server_requests(vec![form_elicitation("Which colour?")]).await;
    let pages = Upstream::with_prompts(&["a", "b"]).await;
    let toml = "[listing]\npage_size = 1\n".to_owned()
        + &upstream.patient_table("up")
        + &pages.patient_table("pages");
    let layer = SessionLayer::start(&toml);
    let list = layer.call("alice", "prompts/list", json!({})).await.unwrap();
    let next = json!({"cursor": list["nextCursor"]});
    let stolen = layer.call("bob", "prompts/list", next.clone()).await;
    assert_eq!(stolen.unwrap_err(), RequestFault::InvalidCursor.into());
    assert!(layer.call("alice", "prompts/list", next).await.is_ok());

    let get = json!({"name": "up__p", "arguments": {"a": "1"}});
    let asked = layer.call("alice", "prompts/get", get.clone()).await.unwrap();
    let mut back = get;
    back["requestState"] = asked["requestState"].clone();
    back["inputResponses"] = json!({"answer": accept_blue()});
    let calls = upstream.gets().len();
    let stolen = layer.call("bob", "prompts/get", back.clone()).await;
    assert_eq!(stolen.unwrap_err(), RequestFault::InvalidState.into());
    assert_eq!(upstream.gets().len(), calls, "the upstream is not called");
    assert_eq!(layer.call("alice", "prompts/get", back).await.unwrap()["resultType"], "complete");
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    List,
    NextPage,
    /// With the cursor of the other one.
    TheirPage,
    Get(&'static str),
    Complete(&'static str),
    /// A get that is answered with a server request.
    Ask,
    Answer,
    /// To what the other one was asked.
    AnswerTheirs,
    Initialize,
    GetInSession,
    /// With the session of the other one.
    GetInTheirs,
    EndTheirs,
}

fn step() -> impl Strategy<Value = Step> {
    use Step::*;
    let steps = [List, NextPage, TheirPage, Ask, Answer, AnswerTheirs, Initialize];
    let more = [GetInSession, GetInTheirs, EndTheirs];
    let named = ["one__p", "two__p", "asks__p", "nobody"].map(|name| [Get(name), Complete(name)]);
    select([&steps[..], &more, named.as_flattened()].concat())
}

/// Somebody who calls, and what it holds.
struct Caller {
    client: Client,
    cursor: String,
    session: String,
    state: String,
    seen: Vec<String>,
}

/// The placeholder for a cursor, a session or a state where there is none.
const NONE: &str = "none";

impl Caller {
    fn new(gateway: &Gateway, id: &str) -> Self {
        let client = gateway.client().with("X-API-Key", id);
        let none = || NONE.to_owned();
        Self { client, cursor: none(), session: none(), state: none(), seen: Vec::new() }
    }

    /// Takes a step; `other` holds what may be stolen.
    async fn take(&mut self, step: Step, other: &Caller) {
        let reply = match step {
            Step::List => self.modern("prompts/list", json!({})).await,
            Step::NextPage => self.page(self.cursor.clone()).await,
            Step::TheirPage => self.page(other.cursor.clone()).await,
            Step::Get(name) => self.modern("prompts/get", get(name)).await,
            Step::Complete(name) => {
                let prompt = json!({"type": "ref/prompt", "name": name});
                let argument = json!({"name": "a", "value": "b"});
                let params = json!({"ref": prompt, "argument": argument});
                self.modern("completion/complete", params).await
            }
            Step::Ask => self.modern("prompts/get", get("asks__p")).await,
            Step::Answer => self.answer(self.state.clone()).await,
            Step::AnswerTheirs => self.answer(other.state.clone()).await,
            Step::Initialize => {
                let params = json!({"protocolVersion": "2025-06-18", "capabilities": {},
                    "clientInfo": {"name": "test", "version": "1"}});
                self.client.post(&request(0, "initialize", params)).await
            }
            Step::GetInSession => self.in_session(self.session.clone()).await,
            Step::GetInTheirs => self.in_session(other.session.clone()).await,
            Step::EndTheirs => {
                let theirs = other.session.clone();
                self.client.send("DELETE", "/mcp", &[("Mcp-Session-Id", &theirs)], b"").await
            }
        };
        self.note(step, &reply);
    }

    async fn modern(&self, method: &str, params: Value) -> Reply {
        let (mut body, headers) = modern(1, method, params);
        let capabilities = "io.modelcontextprotocol/clientCapabilities";
        body["params"]["_meta"][capabilities] = json!({"elicitation": {"form": {}}});
        let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
        self.client.send("POST", "/mcp", &headers, body.to_string().as_bytes()).await
    }

    async fn page(&self, cursor: String) -> Reply {
        self.modern("prompts/list", json!({"cursor": cursor})).await
    }

    async fn answer(&self, state: String) -> Reply {
        let mut params = get("asks__p");
        params["requestState"] = state.into();
        params["inputResponses"] = json!({"answer": accept_blue()});
        self.modern("prompts/get", params).await
    }

    async fn in_session(&self, session: String) -> Reply {
        let client = self.client.clone().with("Mcp-Session-Id", &session);
        client.post(&request(7, "prompts/get", get("one__p"))).await
    }

    /// Keeps what came, but for what is sealed: that is another one each time.
    fn note(&mut self, step: Step, reply: &Reply) {
        let mut text = String::from_utf8(reply.body.clone()).unwrap();
        let message: Value = serde_json::from_str(&text).unwrap_or_default();
        // The time that is left.
        let ttl = &message["result"]["ttlMs"];
        text = text.replace(&format!("\"ttlMs\":{ttl}"), "\"ttlMs\":(left)");
        for (kept, found) in [
            (&mut self.cursor, message["result"]["nextCursor"].as_str()),
            (&mut self.state, message["result"]["requestState"].as_str()),
            (&mut self.session, reply.header("mcp-session-id")),
        ] {
            if let Some(found) = found {
                text = text.replace(found, "(sealed)");
                *kept = found.to_owned();
            }
        }
        let head = reply
            .headers
            .iter()
            .filter(|(name, _)| !["date", "content-length"].contains(&name.as_str()));
        let head: Vec<_> = head
            .map(|(name, value)| match name == "mcp-session-id" {
                true => format!("{name}: (sealed)"),
                false => format!("{name}: {value}"),
            })
            .collect();
        self.seen.push(format!("{step:?}: {} {head:?} {text}", reply.status));
    }
}

fn get(name: &str) -> Value {
    json!({"name": name, "arguments": {"who": "me"}})
}

const RULES: &str = "[listing]\npage_size = 1\n[[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\n\
    upstreams = [\"one\", \"asks\"]\n[[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\n\
    groups = [\"more\"]\n";

/// The responses to each of two callers. Only the steps of callers in `who` are run.
async fn seen(gateway: &Gateway, history: &[(bool, Step)], who: &[bool]) -> [Vec<String>; 2] {
    let mut callers = ["alice", "bob"].map(|id| Caller::new(gateway, id));
    for (is_bob, step) in history.iter().filter(|(is_bob, _)| who.contains(is_bob)) {
        let [alice, bob] = &mut callers;
        let (caller, other) = if *is_bob { (bob, alice) } else { (alice, bob) };
        caller.take(*step, other).await;
    }
    callers.map(|caller| caller.seen)
}

#[test]
fn property_6_a_caller_sees_the_same_whatever_another_one_does() {
    let runtime = Runtime::new().unwrap();
    let (_upstreams, gateways) = runtime.block_on(async {
        let one = Upstream::with_prompts(&["p", "q"]).await;
        let two = Upstream::with_prompts(&["p"]).await;
        let asks =
            Upstream::legacy_with_server_requests(vec![form_elicitation("Which colour?")]).await;
        let keys = api_key("alice", "alice") + &api_key("bob", "bob") + "groups = [\"more\"]\n";
        let toml =
            keys + RULES + &upstream_tables(&[("one", &one), ("two", &two), ("asks", &asks)]);
        // Its pseudonym is made of the key, and the three must be alike.
        let key =
            "[server]\nseal_key = { value = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\" }\n";
        let toml = key.to_owned() + &toml;
        let mut gateways = Vec::new();
        for _ in 0..3 {
            let gateway = Gateway::start(&toml).await;
            gateway.summary().await;
            gateways.push(gateway);
        }
        ([one, two, asks], gateways)
    });
    // All histories share the gateways: effects of earlier ones must not show either.
    over_histories(32, (any::<bool>(), step()), |history| {
        runtime.block_on(async {
            let [alice, bob] = seen(&gateways[0], &history, &[false, true]).await;
            assert_eq!(alice, seen(&gateways[1], &history, &[false]).await[0]);
            assert_eq!(bob, seen(&gateways[2], &history, &[true]).await[1]);
        });
    });
}
