//! Results that an upstream sends again: compared with the first, and never mistaken for it.

use std::sync::Mutex;

use serde_json::{Value, json};

use crate::support::{Gateway, Received, Scripted, Upstream};

/// The response to a get with this text.
fn response(asked: &Received, text: &str) -> Value {
    match asked.content(json!({"type": "text", "text": text})) {
        Scripted::Json(response) => response,
        other => panic!("{other:?}"),
    }
}

fn sent(response: &str) -> Scripted {
    let json = vec![("Content-Type", "application/json".to_owned())];
    Scripted::Http(200, json, response.as_bytes().to_vec())
}

#[tokio::test]
async fn a_result_that_comes_again_is_passed_on_and_what_only_resembles_it_is_read_anew() {
    // What the upstream does, and the text that the client gets.
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
    let left = Mutex::new(steps.into_iter());
    let first = Mutex::new(None);
    let upstream = Upstream::modern(move |asked| {
        if asked.method() != "prompts/get" {
            return None;
        }
        let mut first = first.lock().unwrap();
        Some(match left.lock().unwrap().next().unwrap().0 {
            "REPLAY" => sent(first.as_deref().unwrap()),
            "CUT OFF" => sent(response(asked, "one").to_string().strip_suffix('}').unwrap()),
            "LINE END" => sent(&format!("{}\n", response(asked, "one"))),
            "GO ON" => sent(&format!("{}x", response(asked, "one"))),
            text => {
                let response = response(asked, text);
                first.get_or_insert_with(|| response.to_string());
                Scripted::Json(response)
            }
        })
    })
    .await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    let client = gateway.client();
    for (_, text) in steps {
        let reply = client.modern("prompts/get", json!({"name": "up__p"})).await.json();
        match text {
            Some(text) => assert_eq!(reply["result"]["messages"][0]["content"]["text"], text),
            None => assert_eq!(reply["error"]["data"]["reason"], "upstream_protocol_error"),
        }
    }
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
