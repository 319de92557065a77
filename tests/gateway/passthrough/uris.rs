//! Rules, limits and records see one form of each URI, however clients and servers spell it.

use super::*;

const DENY: &str = "[[access.rules]]\nallow = [\"list\", \"get\", \"passthrough\"]\n\
    [[access.rules]]\ndeny = [\"passthrough\"]\n";

/// A server that reads each URI, with the lists of a folder.
async fn files() -> Upstream {
    server(true, |asked| {
        let complete = |mut result: Value| {
            result["resultType"] = "complete".into();
            Some(asked.result(result))
        };
        let uri = &asked.message["params"]["uri"];
        match asked.method() {
            "resources/read" => complete(json!({"contents": [{"uri": uri, "text": "x"}]})),
            "resources/list" => complete(json!({"resources": [
                {"uri": "FILE:///private/a", "name": "a"}, {"uri": "file:///open/%62", "name": "b"},
                {"uri": "file:///open%2Fc", "name": "c"}]})),
            "resources/templates/list" => complete(json!({"resourceTemplates": [
                {"uriTemplate": "file:///%70rivate/{x}", "name": "t"},
                {"uriTemplate": "file:///open/{x}", "name": "u"}]})),
            _ => tool_server(asked),
        }
    })
    .await
}

/// The denied resource in spellings that servers read as `file:///private/b`.
const SPELLINGS: [&str; 8] = [
    "file:///private/b",
    "file:///%70rivate/b",
    "FILE:///private/b",
    "file:///private%2fb",
    "file://localhost/private/b",
    "file:/private/b",
    "file:////private/b",
    "file:///open/..;/private/b",
];

async fn reads(upstream: &Upstream) -> Vec<Value> {
    let reads = upstream.received().into_iter().filter(|asked| asked.method() == "resources/read");
    reads.map(|asked| asked.message["params"]["uri"].clone()).collect()
}

#[tokio::test]
async fn a_deny_of_a_uri_holds_for_each_of_its_spellings() {
    for pattern in ["file:///private/*", "FILE://localhost/%70rivate/*"] {
        let upstream = files().await;
        let log = Log::new();
        let rules = format!("{DENY}prompts = [{pattern:?}]\n");
        let gateway = before(&upstream, &(rules + &log.table())).await;
        let client = gateway.client();
        for uri in SPELLINGS {
            let error = client.ask_error("resources/read", json!({"uri": uri})).await;
            assert_eq!(error["data"]["reason"], "unknown_resource", "{uri}");
            let reference = json!({"type": "ref/resource", "uri": uri});
            let params = json!({"ref": reference, "argument": {"name": "x", "value": ""}});
            let refused = client.modern("completion/complete", params).await.refusal();
            assert_eq!(refused.1, -32601, "{uri}");
        }
        assert_eq!(reads(&upstream).await, Vec::<Value>::new());
        let listed = client.ask("resources/list", json!({})).await;
        assert_eq!(names(&listed["resources"]), ["b"]);
        let listed = client.ask("resources/templates/list", json!({})).await;
        assert_eq!(names(&listed["resourceTemplates"]), ["u"]);
        let sent = "FILE:///open/%62";
        client.ask("resources/read", json!({"uri": sent})).await;
        assert_eq!(reads(&upstream).await, [sent], "as the client has sent it");
        let read =
            |record: &Value| record["decision"] == "allowed" && record["name"] != Value::Null;
        let records = log.of("received");
        let record = records.iter().rfind(|record| read(record)).expect("a record");
        assert_eq!(record["name"], "file:///open/b");
    }
}

#[tokio::test]
async fn without_rules_the_server_decides_on_spellings() {
    let upstream = files().await;
    let gateway = before(&upstream, "").await;
    for uri in ["file:///private%2fb", "docs://a//b", "file:///a?b"] {
        gateway.client().ask("resources/read", json!({"uri": uri})).await;
    }
    assert_eq!(reads(&upstream).await.len(), 3);
}

#[tokio::test]
async fn a_limit_of_one_resource_counts_all_of_its_spellings() {
    let upstream = files().await;
    let limit = "[[limits]]\nname = \"reads\"\nper = [\"prompt\"]\nmethods = [\"passthrough\"]\n\
        rate = \"1/h\"\nburst = 3\n";
    let gateway = before(&upstream, limit).await;
    let mut limited = 0;
    for uri in SPELLINGS {
        let reply = gateway.client().modern("resources/read", json!({"uri": uri})).await;
        limited += usize::from(reply.status == 429);
    }
    // Three spellings of the eight are no resource, since the limit would not know of which.
    assert_eq!((reads(&upstream).await.len(), limited), (3, 2));
}
