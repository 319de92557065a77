//! Results that an upstream sends again: compared with the first, and never mistaken for it.

use std::sync::Mutex;

use base::seal::digest_text;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use super::audit::Log;
use crate::support::client::{Reply, request};
use crate::support::{Gateway, Received, Scripted, Upstream};

/// The form of an upstream's responses.
#[derive(Clone, Copy, Debug)]
enum Form {
    Json,
    EventStream,
}

/// The response to a get with this text.
fn response(asked: &Received, text: &str) -> Value {
    match asked.content(json!({"type": "text", "text": text})) {
        Scripted::Json(response) => response,
        other => panic!("{other:?}"),
    }
}

fn sent(form: Form, response: &str) -> Scripted {
    match form {
        Form::Json => {
            let json = vec![("Content-Type", "application/json".to_owned())];
            Scripted::Http(200, json, response.as_bytes().to_vec())
        }
        Form::EventStream => {
            let log = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}"#;
            let lines: String =
                response.split('\n').map(|line| format!("data: {line}\n")).collect();
            Scripted::Stream(format!("data: {log}\n\n{lines}\n").into_bytes())
        }
    }
}

#[tokio::test]
async fn a_result_that_comes_again_is_passed_on_and_what_only_resembles_it_is_read_anew() {
    // The answer of the upstream, and the text that the client gets.
    let steps = [
        ("one", Some("one")),
        ("one", Some("one")),
        // Byte for byte, but it answers another request.
        ("REPLAY", None),
        ("one", Some("one")),
        ("CUT OFF", None),
        ("GO ON", None),
        ("one", Some("one")),
        ("LINE END", Some("one")),
        ("another", Some("another")),
        ("one", Some("one")),
    ];
    for form in [Form::Json, Form::EventStream] {
        let left = Mutex::new(steps.into_iter());
        let first = Mutex::new(None);
        let upstream = Upstream::modern(move |asked| {
            if asked.method() != "prompts/get" {
                return None;
            }
            let mut first = first.lock().unwrap();
            let one = response(asked, "one").to_string();
            let text = match left.lock().unwrap().next().unwrap().0 {
                "REPLAY" => first.clone().unwrap(),
                "CUT OFF" => one.strip_suffix('}').unwrap().to_owned(),
                "LINE END" => format!("{one}\n"),
                "GO ON" => format!("{one}x"),
                text => response(asked, text).to_string(),
            };
            first.get_or_insert_with(|| text.clone());
            Some(sent(form, &text))
        })
        .await;
        let gateway = Gateway::before(&[("up", &upstream)]).await;
        let client = gateway.client();
        for (step, text) in steps {
            let reply = client.modern("prompts/get", json!({"name": "up__p"})).await.json();
            let reason = &reply["error"]["data"]["reason"];
            match (text, form) {
                (Some(text), _) => {
                    let got = &reply["result"]["messages"][0]["content"]["text"];
                    assert_eq!(got, text, "{form:?}: {step}");
                }
                // A message for another request is skipped, and then the stream ends.
                (None, Form::EventStream) if step == "REPLAY" => {
                    assert_eq!(reason, "upstream_reset");
                }
                (None, _) => assert_eq!(reason, "upstream_protocol_error", "{form:?}: {step}"),
            }
        }
    }
}

/// The digest of the result as it came, by another library than the gateway's.
fn result_digest(reply: &Reply) -> String {
    let body = str::from_utf8(&reply.body).unwrap();
    let (_, result) = body.split_once(r#""result":"#).unwrap();
    let digest = digest(&SHA256, result.strip_suffix('}').unwrap().as_bytes());
    digest_text(digest.as_ref().try_into().unwrap())
}

#[tokio::test]
async fn the_log_has_the_digest_of_what_each_client_got_however_often_the_result_comes() {
    let log = Log::new();
    let texts = Mutex::new(["a", "a", "a", "b", "a"].into_iter().cycle());
    let upstream = Upstream::modern(move |asked| {
        let text = |text: &str| asked.content(json!({"type": "text", "text": text.repeat(9_000)}));
        (asked.method() == "prompts/get").then(|| text(texts.lock().unwrap().next().unwrap()))
    })
    .await;
    let gateway = Gateway::start(&format!("{}{}", log.table(), upstream.table("up"))).await;
    let legacy = gateway.client().legacy("2025-06-18").await;
    let modern = gateway.client();
    let (get, mut digests) = (json!({"name": "up__p"}), Vec::new());
    for is_modern in [true, true, false, false, true, true, true, false] {
        let reply = match is_modern {
            true => modern.modern("prompts/get", get.clone()).await,
            false => legacy.post(&request(1, "prompts/get", get.clone())).await,
        };
        digests.push(result_digest(&reply));
    }
    gateway.drain().await;
    let completed = log.of("completed");
    let recorded: Vec<_> =
        completed.iter().filter_map(|record| record["result"].as_str()).collect();
    assert_eq!(recorded, digests);
}

#[tokio::test]
async fn u13_hidden_text_that_comes_again_is_treated_as_the_newest_configuration_says() {
    let upstream = Upstream::modern(|asked| {
        let text = json!({"type": "text", "text": "Be kind.\u{200b}"});
        (asked.method() == "prompts/get").then(|| asked.content(text))
    })
    .await;
    let table = |mode: &str| format!("{}content = \"{mode}\"\n", upstream.table("up"));
    let gateway = Gateway::start(&table("allow")).await;
    let client = gateway.client();
    for mode in ["allow", "flag", "strip", "reject", "allow"] {
        gateway.reload(&table(mode)).await;
        for _ in 0..2 {
            let reply = client.modern("prompts/get", json!({"name": "up__p"})).await.json();
            let text = &reply["result"]["messages"][0]["content"]["text"];
            let flag = &reply["result"]["_meta"]["promptgate/hiddenText"];
            match mode {
                "allow" => assert_eq!((text, flag), (&json!("Be kind.\u{200b}"), &Value::Null)),
                "flag" => assert!(text == "Be kind.\u{200b}" && flag.is_array(), "{reply}"),
                "strip" => assert!(text == "Be kind." && flag.is_array(), "{reply}"),
                _ => assert_eq!(reply["error"]["data"]["reason"], "upstream_protocol_error"),
            }
        }
    }
}
