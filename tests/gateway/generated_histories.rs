//! Over generated histories: every request gets exactly one response (fault matrix, property 1).

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::support::client::{modern, modern_bytes, request};
use crate::support::upstream::HANG;
use crate::support::{Gateway, PATIENCE, Received, Scripted, Upstream, eventually, metrics};

/// Tries whether something holds for this many histories of such steps.
pub fn over_histories<S: std::fmt::Debug>(
    cases: u32,
    step: impl Strategy<Value = S>,
    holds: impl Fn(Vec<S>),
) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let histories = prop::collection::vec(step, 1..30);
    let tried = TestRunner::new(config).run(&histories, |steps| {
        holds(steps);
        Ok(())
    });
    tried.unwrap_or_else(|error| panic!("{error}"));
}

/// The fate of a request.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Well,
    Fails,
    Hangs,
    BreaksOff,
    IsNoJson,
    IsAnsweredTwice,
    IsUnknown,
    IsAList,
    IsAPing,
}

#[derive(Clone, Debug)]
enum Step {
    Ask(Fate),
    /// One of those that were asked before.
    Cancel(Index),
    /// Over HTTP, by a client that goes away once it has asked.
    AskAndLeave(Fate),
}

fn step() -> impl Strategy<Value = Step> {
    use Fate::*;
    let answered = vec![Well, Fails, IsAnsweredTwice, IsUnknown, IsAList, IsAPing];
    let broken = vec![Hangs, BreaksOff, IsNoJson];
    let fate = select([answered, broken].concat());
    prop_oneof![
        6 => fate.clone().prop_map(Step::Ask),
        2 => any::<Index>().prop_map(Step::Cancel),
        1 => fate.prop_map(Step::AskAndLeave),
    ]
}

/// The call that has this fate.
fn call(fate: Fate) -> (&'static str, Value) {
    match fate {
        Fate::IsAList => ("prompts/list", json!({})),
        Fate::IsAPing => ("ping", json!({})),
        Fate::IsUnknown => ("prompts/get", json!({"name": "nobody"})),
        fate => {
            let fate = format!("{fate:?}");
            ("prompts/get", json!({"name": "up__p", "arguments": {"fate": fate}}))
        }
    }
}

fn as_fated(asked: &Received) -> Option<Scripted> {
    let result = json!({"resultType": "complete", "messages": []});
    let answer = json!({"jsonrpc": "2.0", "id": asked.message["id"], "result": result});
    match asked.message["params"]["arguments"]["fate"].as_str()? {
        "Fails" => Some(asked.error(7, "no")),
        "Hangs" => Some(HANG),
        "BreaksOff" => Some(Scripted::Break(b"HTTP/1.1 200 OK\r\nContent-".to_vec())),
        "IsNoJson" => {
            let json = ("Content-Type", "application/json".to_owned());
            Some(Scripted::Http(200, vec![json], b"{]".to_vec()))
        }
        "IsAnsweredTwice" => {
            Some(Scripted::Stream(format!("data: {answer}\n\ndata: {answer}\n\n").into_bytes()))
        }
        _ => None,
    }
}

/// The requests over one connection, the cancelled ones, and how often each was answered.
#[derive(Debug, Default)]
struct Account {
    asked: Vec<u64>,
    cancelled: BTreeSet<u64>,
    answers: BTreeMap<u64, usize>,
}

impl Account {
    /// The line that a client of standard streams writes for this step, if it does.
    async fn say(&mut self, step: &Step, is_modern: bool, gateway: &Gateway) -> Option<Value> {
        match step {
            Step::Ask(fate) => {
                let (id, (method, params)) = (self.asked.len() as u64 + 1, call(*fate));
                self.asked.push(id);
                Some(match is_modern {
                    true => modern(id, method, params).0,
                    false => request(id, method, params),
                })
            }
            Step::Cancel(_) if self.asked.is_empty() => None,
            Step::Cancel(which) => {
                let id = *which.get(&self.asked);
                self.cancelled.insert(id);
                let (method, params) = ("notifications/cancelled", json!({"requestId": id}));
                Some(json!({"jsonrpc": "2.0", "method": method, "params": params}))
            }
            Step::AskAndLeave(fate) => {
                let (method, params) = call(*fate);
                let mut stream = TcpStream::connect(gateway.addr).await.unwrap();
                let asked = modern_bytes("HTTP/1.1", method, params);
                stream.write_all(&asked).await.unwrap();
                None
            }
        }
    }

    fn hear(&mut self, line: &str) {
        let answer: Value = serde_json::from_str(line).unwrap();
        assert!(answer.get("result").is_some() != answer.get("error").is_some(), "{answer}");
        *self.answers.entry(answer["id"].as_u64().unwrap()).or_default() += 1;
    }

    /// Whether all is answered that will be.
    fn is_settled(&self) -> bool {
        self.asked.iter().all(|id| self.cancelled.contains(id) || self.answers.contains_key(id))
    }
}

/// Lets a history happen over standard streams, to their end.
async fn happen(gateway: &Gateway, is_modern: bool, steps: &[Step]) -> Account {
    let (stream, serving) = gateway.stdio_task();
    let (output, mut input) = tokio::io::split(stream);
    let mut lines = BufReader::new(output).lines();
    if !is_modern {
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"}});
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let opening = format!("{}\n{initialized}\n", request(0, "initialize", params));
        input.write_all(opening.as_bytes()).await.unwrap();
        lines.next_line().await.unwrap().expect("it is initialized");
    }
    let mut account = Account::default();
    for step in steps {
        if let Some(message) = account.say(step, is_modern, gateway).await {
            input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
        }
    }
    while !account.is_settled() {
        let line = timeout(PATIENCE, lines.next_line()).await.expect("an answer in time");
        account.hear(&line.unwrap().expect("an answer"));
    }
    // Whatever comes after that came too often, but for what was cancelled too late.
    input.shutdown().await.unwrap();
    while let Some(line) = timeout(PATIENCE, lines.next_line()).await.expect("its end").unwrap() {
        account.hear(&line);
    }
    timeout(PATIENCE, serving).await.expect("its end").unwrap();
    account
}

#[test]
fn property_1_every_request_ends_once_and_leaves_nothing_behind() {
    let runtime = Runtime::new().unwrap();
    let (_upstream, gateway) = runtime.block_on(async {
        let upstream = Upstream::modern(as_fated).await;
        let toml = "[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned()
            + &upstream.patient_table("up")
            + "timeout = \"100ms\"\nin_flight = 4\nqueue = 3\nbreaker = { failures = 9999 }\n";
        let gateway = Gateway::start(&toml).await;
        gateway.summary().await;
        // A history without a get must find the series of the upstream, too.
        happen(&gateway, true, &[Step::Ask(Fate::Well)]).await;
        (upstream, gateway)
    });
    const LIMIT: &str = "promptgate_in_flight_size_limit_bytes";
    let names =
        ["promptgate_in_flight", "promptgate_upstream_in_flight", "promptgate_upstream_queued"];
    over_histories(24, (any::<bool>(), step()), |history| {
        let (eras, steps): (Vec<_>, Vec<_>) = history.into_iter().unzip();
        runtime.block_on(async {
            let account = happen(&gateway, eras[0], &steps).await;
            assert!(account.answers.values().all(|times| *times == 1), "{account:?}");
            assert!(account.answers.keys().all(|id| account.asked.contains(id)), "{account:?}");
            let admin = gateway.admin();
            // Of calls, their size, and those of an upstream, which are there from its first one.
            let is_quiet = |now: &BTreeMap<String, f64>| {
                now.len() == 5 && now.iter().all(|(name, value)| *value == 0. || name == LIMIT)
            };
            eventually(async || metrics(&admin, &names).await, is_quiet).await;
        });
    });
}
