//! Forwarding besides requests and responses: progress, cancellation, `_meta` and trace context.

use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::client::request;
use crate::support::upstream::{good_legacy, good_modern};
use crate::support::{
    ClientMode, Gateway, ModeClient, OpenStream, PATIENCE, Received, Scripted, Upstream,
};

/// An upstream of either era whose gets stay open: each comes with the stream of its answer.
async fn open_ended(
    is_modern: bool,
) -> (Upstream, mpsc::UnboundedReceiver<(OpenStream, Received)>) {
    let (sender, gets) = mpsc::unbounded_channel();
    let upstream = Upstream::start(move |asked| {
        if asked.method() == "prompts/get" {
            let (live, scripted) = OpenStream::new();
            let _ = sender.send((live, asked.clone()));
            return scripted;
        }
        match (is_modern, asked.http_method.as_str(), asked.method()) {
            (true, ..) => good_modern(asked),
            (false, "GET", _) => Scripted::Http(405, vec![], vec![]),
            (false, _, "notifications/cancelled") => Scripted::Http(202, vec![], vec![]),
            (false, ..) => good_legacy(asked, "2025-06-18"),
        }
    })
    .await;
    (upstream, gets)
}

async fn next(
    gets: &mut mpsc::UnboundedReceiver<(OpenStream, Received)>,
) -> (OpenStream, Received) {
    let get = tokio::time::timeout(PATIENCE, gets.recv()).await.expect("a call in time");
    get.expect("a call")
}

fn progress(asked: &Received, progress: f64) -> Value {
    let token = &asked.message["params"]["_meta"]["progressToken"];
    let params = json!({"progressToken": token, "progress": progress, "message": "so far"});
    json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
}

fn done(asked: &Received) -> Value {
    json!({"jsonrpc": "2.0", "id": asked.message["id"],
        "result": {"resultType": "complete", "messages": []}})
}

const EVENTS: [(&str, &str); 2] =
    [("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")];

#[tokio::test]
async fn progress_comes_under_the_clients_own_token_and_only_forward() {
    for is_modern in [false, true] {
        let (upstream, mut gets) = open_ended(is_modern).await;
        let gateway = Gateway::start(&upstream.patient_table("up")).await;
        for revision in ["2024-11-05", "2025-11-25"] {
            let client = gateway.client().legacy(revision).await;
            let params = json!({"name": "up__p", "_meta": {"progressToken": "mine"}});
            let body = request(3, "prompts/get", params).to_string();
            let opening = client.stream("POST", &EVENTS, body.as_bytes());
            let upstream = async {
                let (live, asked) = next(&mut gets).await;
                let theirs = &asked.message["params"]["_meta"]["progressToken"];
                assert_ne!(*theirs, json!("mine"));
                for at in [1.0, 3.0, 2.0, 4.0] {
                    live.send(&progress(&asked, at));
                }
                live.send(&done(&asked));
            };
            let (mut stream, ()) = tokio::join!(opening, upstream);
            for at in [1.0, 3.0, 4.0] {
                let told = stream.event().await.expect("progress").json();
                assert_eq!(told["method"], "notifications/progress");
                assert_eq!(told["params"]["progressToken"], "mine");
                assert_eq!(told["params"]["progress"], at);
                let has_message = told["params"].get("message").is_some();
                assert_eq!(has_message, revision >= "2025-03-26", "{revision}");
            }
            assert_eq!(stream.event().await.expect("the answer").json()["id"], 3);
        }
    }
}

#[tokio::test]
async fn secrets_that_an_upstream_repeats_on_its_way_do_not_reach_the_client() {
    let credential = "sk/live+key==";
    let (sender, mut gets) = mpsc::unbounded_channel();
    let upstream = Upstream::modern(move |asked| match asked.method() {
        "prompts/get" => {
            let (live, scripted) = OpenStream::new();
            let _ = sender.send((live, asked.clone()));
            Some(scripted)
        }
        "completion/complete" => {
            let sent = asked.header("authorization").unwrap().to_owned();
            let completion =
                json!({"values": ["plain", sent, "SK%2FLIVE%2BKEY%3D%3D", "c2svbGl2ZStrZXk9PQ=="]});
            Some(asked.result(json!({"resultType": "complete", "completion": completion})))
        }
        _ => None,
    })
    .await;
    let credentials = format!("credential = {{ bearer = {{ value = \"{credential}\" }} }}\n");
    let gateway = Gateway::start(&(upstream.patient_table("up") + &credentials)).await;
    let client = gateway.client().legacy("2025-11-25").await;
    let params = json!({"name": "up__p", "_meta": {"progressToken": "mine"}});
    let body = request(3, "prompts/get", params).to_string();
    let opening = client.stream("POST", &EVENTS, body.as_bytes());
    let telling = async {
        let (live, asked) = next(&mut gets).await;
        let mut told = progress(&asked, 1.0);
        told["params"]["message"] = "GET https://a/?k=sk%2Flive%2Bkey%3D%3D failed".into();
        live.send(&told);
        live.send(&done(&asked));
    };
    let (mut stream, ()) = tokio::join!(opening, telling);
    let told = stream.event().await.expect("progress").json();
    assert_eq!(told["params"]["message"], "GET https://a/?k=[redacted] failed");
    let argument = json!({"name": "a", "value": ""});
    let completing = json!({"ref": {"type": "ref/prompt", "name": "up__p"}, "argument": argument});
    let completed = client.ask("completion/complete", completing).await;
    let values = completed["completion"]["values"].as_array().unwrap();
    let values: Vec<&str> = values.iter().map(|value| value.as_str().unwrap()).collect();
    assert_eq!(values, ["plain", "[redacted]", "[redacted]", "[redacted]Q=="]);
}

#[tokio::test]
async fn an_answer_before_which_nothing_is_said_is_one_json_object() {
    let (upstream, mut gets) = open_ended(true).await;
    let gateway = Gateway::start(&upstream.patient_table("up")).await;
    let client = gateway.client().legacy("2025-11-25").await;
    // A client that requested no progress gets none.
    for params in
        [json!({"name": "up__p"}), json!({"name": "up__p", "_meta": {"progressToken": 7}})]
    {
        let asks = params.get("_meta").is_some();
        let get = request(3, "prompts/get", params);
        let upstream = async {
            let (live, asked) = next(&mut gets).await;
            let meta = &asked.message["params"]["_meta"];
            assert_eq!(meta.get("progressToken").is_some(), asks);
            if !asks {
                live.send(&progress(&asked, 1.0));
            }
            live.send(&done(&asked));
        };
        let (reply, ()) = tokio::join!(client.post(&get), upstream);
        assert_eq!(reply.header("content-type"), Some("application/json"));
    }
}

#[tokio::test]
async fn progress_reaches_stdio_and_the_older_transport_too() {
    let (upstream, mut gets) = open_ended(true).await;
    let gateway = Gateway::start(&upstream.patient_table("up")).await;
    for client_mode in
        [ClientMode::Sse("2024-11-05"), ClientMode::Stdio("2025-11-25"), ClientMode::ModernStdio]
    {
        let mut client = ModeClient::connect(&gateway, client_mode).await;
        let params = json!({"name": "up__p", "_meta": {"progressToken": 5}});
        let mut get = client.request("prompts/get", params);
        get["params"]["_meta"]["progressToken"] = json!(5);
        client.send(&get).await;
        let (live, asked) = next(&mut gets).await;
        live.send(&progress(&asked, 0.5));
        let told = client.next_message().await;
        assert_eq!(
            (&told["method"], &told["params"]["progressToken"]),
            (&json!("notifications/progress"), &json!(5)),
            "{client_mode:?}"
        );
        live.send(&done(&asked));
        assert_eq!(client.next_message().await["id"], get["id"]);
    }
}

#[tokio::test]
async fn w15_a_modern_client_that_goes_away_cancels_a_legacy_one_does_not() {
    for is_modern in [false, true] {
        let (upstream, mut gets) = open_ended(is_modern).await;
        let gateway = Gateway::start(&upstream.patient_table("up")).await;
        let (body, headers) =
            crate::support::client::modern(4, "prompts/get", json!({"name": "up__p"}));
        let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let body = body.to_string();
        let client = gateway.client();
        let going = client.send("POST", "/mcp", &headers, body.as_bytes());
        let (live, asked) = tokio::select! {
            got = next(&mut gets) => got,
            reply = going => panic!("{reply:?}"),
        };
        // The client's connection is closed by now, which is its way to cancel.
        match is_modern {
            true => tokio::time::timeout(PATIENCE, live.closed()).await.expect("it was cancelled"),
            false => {
                upstream.received_method("notifications/cancelled").await;
                let cancels = upstream
                    .received()
                    .into_iter()
                    .filter(|asked| asked.method() == "notifications/cancelled");
                let ids: Vec<_> =
                    cancels.map(|asked| asked.message["params"]["requestId"].clone()).collect();
                assert_eq!(ids, [asked.message["id"].clone()]);
            }
        }

        let legacy = gateway.client().legacy("2025-11-25").await;
        let get = request(4, "prompts/get", json!({"name": "up__p"}));
        let (live, asked) = tokio::select! {
            got = next(&mut gets) => got,
            reply = legacy.post(&get) => panic!("{reply:?}"),
        };
        // It is gone, and the call goes on: its id is in use until the upstream has answered.
        let again = legacy.post(&get).await;
        assert_eq!(again.refusal().2, "id_in_use");
        live.send(&done(&asked));
        drop(live);
        let reply = crate::support::eventually(
            async || legacy.post(&request(4, "ping", json!({}))).await,
            |ping| ping.status == 200,
        );
        reply.await;
    }
}

#[tokio::test]
async fn w15_a_call_that_is_cancelled_by_message_ends_without_an_answer() {
    for is_modern in [false, true] {
        let (upstream, mut gets) = open_ended(is_modern).await;
        let gateway = Gateway::start(&upstream.patient_table("up")).await;
        for client_mode in [
            ClientMode::Sse("2025-11-25"),
            ClientMode::Stdio("2025-11-25"),
            ClientMode::ModernStdio,
        ] {
            let mut client = ModeClient::connect(&gateway, client_mode).await;
            let get = client.request("prompts/get", json!({"name": "up__p"}));
            client.send(&get).await;
            let (live, _) = next(&mut gets).await;
            let cancel = |id: &Value| {
                json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
                    "params": {"requestId": id}})
            };
            // Unknown ones are passed over.
            client.send(&cancel(&json!("unknown"))).await;
            client.send(&cancel(&get["id"])).await;
            tokio::time::timeout(PATIENCE, live.closed()).await.expect("it was cancelled");
            let next = client.answer("prompts/list", json!({})).await;
            assert!(next.get("result").is_some(), "the connection lives, {client_mode:?}");
        }
    }
}

#[tokio::test]
async fn metadata_and_trace_are_carried_up_without_what_is_reserved() {
    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for is_modern in [false, true] {
        let upstream = Upstream::start(move |asked| match is_modern {
            true => good_modern(asked),
            false => good_legacy(asked, "2025-06-18"),
        })
        .await;
        let gateway = Gateway::start(&upstream.patient_table("up")).await;
        let meta = json!({"com.example/k": {"v": [1]}, "promptgate/upstream": "evil",
            "io.modelcontextprotocol/serverInfo": {}, "traceparent": PARENT, "tracestate": "a=b"});
        let client = gateway.client().legacy("2025-11-25").await.with("Baggage", "c=d");
        for (method, mut params) in [
            ("prompts/get", json!({"name": "up__p"})),
            (
                "completion/complete",
                json!({"ref": {"type": "ref/prompt", "name": "up__p"},
                "argument": {"name": "a", "value": ""}}),
            ),
        ] {
            params["_meta"] = meta.clone();
            assert_eq!(client.post(&request(1, method, params)).await.status, 200);
            let asked = upstream.received();
            let asked = asked.iter().rfind(|asked| asked.method() == method).expect("it was asked");
            let theirs = &asked.message["params"]["_meta"];
            assert_eq!(theirs["com.example/k"], json!({"v": [1]}));
            assert!(theirs.get("promptgate/upstream").is_none());
            assert!(theirs.get("io.modelcontextprotocol/serverInfo").is_none());
            for (name, value) in
                [("traceparent", PARENT), ("tracestate", "a=b"), ("baggage", "c=d")]
            {
                assert_eq!(theirs[name], value, "{method}");
                assert_eq!(asked.header(name), Some(value), "{method}");
            }
        }
    }
}
