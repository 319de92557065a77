//! Links in prompts (`links = "sealed"`): read by the caller that got the prompt, and as long as it
//! may get it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::seal::{SealKeys, Sealer, TokenKind, sha256_text};
use domain::calls::link::{Link, sealed_uri};
use domain::time::unix_time::UnixSeconds;
use serde_json::{Value, json};

use super::approvals::{Folder, enforced, short_list};
use super::audit::Log;
use super::skills::{discovered, listed, skill};
use crate::support::client::{modern, request};
use crate::support::gateway::api_key;
use crate::support::upstream::{good_legacy, good_modern};
use crate::support::{
    Client, ClientMode, Gateway, ModeClient, Process, Received, Scripted, Upstream, eventually,
};

const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
const SEALED: &str = "links = \"sealed\"\n";
pub const GUIDE: &str = "file:///guide.md";

fn server() -> String {
    format!("[server]\nseal_key = {{ value = \"{KEY}\" }}\n")
}

fn keys() -> String {
    api_key("alice", "alice") + &api_key("bob", "bob")
}

fn as_caller(gateway: &Gateway, id: &str) -> Client {
    gateway.client().with("X-API-Key", id)
}

fn link(uri: &str) -> Value {
    json!({"type": "resource_link", "uri": uri, "name": "n"})
}

fn embedded(uri: &str, text: &str) -> Value {
    json!({"type": "resource", "resource": {"uri": uri, "text": text}})
}

/// The result of a get with these contents, as servers of both eras write it.
pub fn messages(asked: &Received, contents: &[Value]) -> Scripted {
    let message = |content: &Value| json!({"role": "user", "content": content});
    let messages: Vec<_> = contents.iter().map(message).collect();
    asked.result(json!({"resultType": "complete", "messages": messages}))
}

fn contents(asked: &Received, contents: &Value) -> Scripted {
    asked.result(json!({"resultType": "complete", "ttlMs": 7, "cacheScope": "public",
        "contents": contents}))
}

/// A server of either era with the prompt `p`, which links to a guide.
pub async fn guided(
    is_modern: bool,
    script: impl Fn(&Received) -> Option<Scripted> + Send + Sync + 'static,
) -> Upstream {
    Upstream::start(move |asked| {
        if let Some(scripted) = script(asked) {
            return scripted;
        }
        let uri = &asked.message["params"]["uri"];
        match (is_modern, asked.http_method.as_str(), asked.method()) {
            (_, _, "prompts/get") => messages(asked, &[link(GUIDE), embedded(GUIDE, "short")]),
            (_, _, "resources/read") if *uri == GUIDE => {
                contents(asked, &json!([{"uri": GUIDE, "text": "guide", "mimeType": "text/plain"}]))
            }
            (_, _, "resources/read") => asked.error(-32002, "no such resource"),
            (true, ..) => good_modern(asked),
            (false, "GET", _) => Scripted::Http(405, vec![], vec![]),
            (false, ..) => good_legacy(asked, "2025-11-25"),
        }
    })
    .await
}

async fn simple() -> Upstream {
    guided(true, |_| None).await
}

/// A modern server whose prompt has this content, and whose resources are these.
async fn serving(
    content: Value,
    read: impl Fn(&Received) -> Scripted + Send + Sync + 'static,
) -> Upstream {
    guided(true, move |asked| match asked.method() {
        "prompts/get" => Some(messages(asked, std::slice::from_ref(&content))),
        "resources/read" => Some(read(asked)),
        _ => None,
    })
    .await
}

fn table(upstream: &Upstream) -> String {
    upstream.table("up") + SEALED
}

/// The answer at another endpoint, whatever its status.
async fn answer_at(client: &Client, path: &str, method: &str, params: Value) -> Value {
    let (body, headers) = modern(1, method, params);
    let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
    client.send("POST", path, &headers, body.to_string().as_bytes()).await.json()
}

async fn get(client: &Client) -> Value {
    client.ask("prompts/get", json!({"name": "up__p"})).await
}

/// The link to the guide that a caller gets.
async fn sealed(client: &Client) -> String {
    uri(&get(client).await["messages"][0]["content"])
}

fn uri(block: &Value) -> String {
    let uri = block["uri"].as_str().unwrap_or_else(|| panic!("{block}"));
    assert!(uri.starts_with("promptgate://link/"), "{block}");
    uri.to_owned()
}

async fn read(client: &Client, uri: &str) -> Value {
    client.ask("resources/read", json!({"uri": uri})).await
}

/// The whole answer to a read that is refused, without what names the URI.
async fn refused(client: &Client, uri: &str) -> String {
    let error = client.ask_error("resources/read", json!({"uri": uri})).await;
    if uri.len() <= 2048 {
        assert_eq!(error["data"]["uri"], uri, "{error}");
    }
    error.to_string().replace(&serde_json::to_string(uri).unwrap(), "URI")
}

fn reads(upstream: &Upstream) -> usize {
    upstream.methods().iter().filter(|method| *method == "resources/read").count()
}

#[tokio::test]
async fn a_link_is_read_in_all_four_cells() {
    for is_modern in [false, true] {
        let upstream = guided(is_modern, |_| None).await;
        let gateway = Gateway::start(&table(&upstream)).await;
        for client_mode in [
            ClientMode::Sse("2024-11-05"),
            ClientMode::Http("2025-06-18"),
            ClientMode::Modern,
            ClientMode::Stdio("2025-11-25"),
            ClientMode::ModernStdio,
        ] {
            let context = format!("{client_mode:?} {is_modern}");
            let is_modern_client =
                matches!(client_mode, ClientMode::Modern | ClientMode::ModernStdio);
            let mut client = ModeClient::connect(&gateway, client_mode).await;
            let got = client.ask("prompts/get", json!({"name": "up__p"})).await;
            let [linked, block] = [0, 1].map(|at| got["messages"][at]["content"].clone());
            for block in [&linked, &block] {
                assert_eq!(block["_meta"]["promptgate/uri"], GUIDE, "{context} {block}");
            }
            if client_mode == ClientMode::Sse("2024-11-05") {
                let text = linked["text"].as_str().unwrap();
                assert!(text.starts_with("n: promptgate://link/"), "{context} {linked}");
            } else {
                uri(&linked);
            }
            assert_eq!(block["resource"]["text"], "short", "{context}");
            let uri = uri(&block["resource"]);
            let result = client.ask("resources/read", json!({"uri": uri})).await;
            let content = json!([{"uri": uri, "text": "guide", "mimeType": "text/plain",
                "_meta": {"promptgate/uri": GUIDE}}]);
            assert_eq!(result["contents"], content, "{context}");
            assert_eq!(result["_meta"]["promptgate/upstream"], "up", "{context}");
            let hints = (result["ttlMs"].as_i64(), result["cacheScope"].as_str());
            let expected = if is_modern_client { (Some(7), Some("private")) } else { (None, None) };
            assert_eq!(hints, expected, "{context}");
            let answer = client.answer("resources/read", json!({"uri": "promptgate://x"})).await;
            let code = if is_modern_client { -32602 } else { -32002 };
            assert_eq!(answer["error"]["code"], code, "{context} {answer}");
            for (method, member) in
                [("resources/list", "resources"), ("resources/templates/list", "resourceTemplates")]
            {
                assert_eq!(client.ask(method, json!({})).await[member], json!([]), "{context}");
            }
        }
        let asked = upstream.received();
        let mut asked = asked.iter().filter(|asked| asked.method() == "resources/read");
        assert!(asked.all(|asked| asked.message["params"]["uri"] == GUIDE));
        assert_eq!(reads(&upstream), 5);
    }
}

#[tokio::test]
async fn resources_are_declared_where_links_can_be_read() {
    let (sealing, plain) = (simple().await, simple().await);
    let views = "[views.plain]\nupstreams = [\"plain\"]\n";
    let toml = |empty: &str| {
        let server = format!("[server]\nempty_lists = {empty}\n");
        server + views + &table(&sealing) + &plain.table("plain")
    };
    for empty_lists in ["true", "false"] {
        let gateway = Gateway::start(&toml(empty_lists)).await;
        let client = gateway.client();
        for (path, expected) in [("/mcp", Some(&json!({}))), ("/mcp/plain", None)] {
            let answer = answer_at(&client, path, "server/discover", json!({})).await;
            let declared = &answer["result"]["capabilities"];
            assert_eq!(declared.get("resources"), expected, "{path} {declared}");
            assert_eq!(declared.get("extensions"), None, "{path}");
            let list = answer_at(&client, path, "resources/list", json!({})).await;
            let is_served = expected.is_some() || empty_lists == "true";
            assert_eq!(list.get("result").is_some(), is_served, "{path} {list}");
        }
        let initialize = json!({"protocolVersion": "2025-11-25", "capabilities": {}});
        let opened = client.post(&request(1, "initialize", initialize)).await.json();
        assert_eq!(opened["result"]["capabilities"]["resources"], json!({}), "{opened}");
        let as_is = client.ask("prompts/get", json!({"name": "plain__p"})).await;
        assert_eq!(as_is["messages"][0]["content"], link(GUIDE));
        let own =
            answer_at(&client, "/mcp/plain", "resources/read", json!({"uri": "promptgate://x"}));
        let reason = own.await["error"]["data"]["reason"].take();
        let expected = if empty_lists == "true" { "unknown_resource" } else { "method_not_found" };
        assert_eq!(reason, expected);
    }
}

#[tokio::test]
async fn nobody_else_reads_a_link_and_nowhere_else() {
    let upstream = simple().await;
    let views = "[views.other]\nupstreams = [\"up\"]\n";
    let toml = server() + views + &keys() + &table(&upstream);
    let gateway = Gateway::start(&toml).await;
    let (alice, bob) = (as_caller(&gateway, "alice"), as_caller(&gateway, "bob"));
    let uri = sealed(&alice).await;
    let unknown = refused(&bob, "promptgate://link/x").await;
    assert!(unknown.contains("unknown_resource"), "{unknown}");
    let token = uri.strip_prefix("promptgate://link/").unwrap();
    let cursor = Sealer::new(&SealKeys::parse(KEY).unwrap()).seal(TokenKind::Cursor, "/mcp", b"x");
    let mut flipped = token.to_owned().into_bytes();
    flipped[60] ^= 1;
    for forged in [
        uri.clone() + "A",
        uri.clone() + "=",
        uri.clone() + "/",
        uri.clone() + "?x",
        uri[..uri.len() - 1].to_owned(),
        uri.to_uppercase(),
        uri.replace("promptgate", "Promptgate"),
        uri.replace("link/", "Link/"),
        format!("promptgate://{token}"),
        format!("promptgate://link/{}", String::from_utf8_lossy(&flipped)),
        format!("promptgate://link/{cursor}"),
        format!("promptgate://link/{}", "A".repeat(9 << 10)),
        "promptgate://link/".to_owned(),
        "promptgate://".to_owned(),
        "promptgate://up__p/0".to_owned(),
        GUIDE.to_owned(),
        "https://a.example/".to_owned(),
    ] {
        let answer = refused(&alice, &forged).await;
        assert_eq!(
            answer.replace(",\"uri\":URI", ""),
            unknown.replace(",\"uri\":URI", ""),
            "{forged}"
        );
    }
    assert_eq!(refused(&bob, &uri).await, unknown);
    let elsewhere = answer_at(&alice, "/mcp/other", "resources/read", json!({"uri": uri})).await;
    assert_eq!(elsewhere["error"]["data"]["reason"], "unknown_resource");
    let nobody = gateway.client().modern("resources/read", json!({"uri": uri})).await;
    assert_eq!(nobody.status, 401);
    assert_eq!(reads(&upstream), 0, "the upstream was not asked");
    assert_eq!(read(&alice, &uri).await["contents"][0]["text"], "guide");
    let of_bob = sealed(&bob).await;
    assert_eq!(read(&bob, &of_bob).await["contents"][0]["uri"], of_bob);
}

#[tokio::test]
async fn a_link_is_read_at_another_replica_until_it_expires() {
    let upstream = simple().await;
    let toml = server() + &keys() + &table(&upstream);
    let (first, second) = (Gateway::start(&toml).await, Gateway::start(&toml).await);
    let uri = sealed(&as_caller(&first, "alice")).await;
    let alice = as_caller(&second, "alice");
    alice.names().await;
    assert_eq!(read(&alice, &uri).await["contents"][0]["text"], "guide");
    let unknown = refused(&alice, "promptgate://link/x").await;
    let other_key = Gateway::start(&(keys() + &table(&upstream))).await;
    assert_eq!(refused(&as_caller(&other_key, "alice"), &uri).await, unknown);

    let sealer = Sealer::new(&SealKeys::parse(KEY).unwrap());
    let now = std::time::SystemTime::now();
    let of = |hours: u64, change: fn(&mut Link)| {
        let UnixSeconds(now) = UnixSeconds::from(now);
        let mut link = Link {
            caller: "alice".to_owned(),
            name: "up__p".to_owned(),
            upstream: "up".to_owned(),
            prompt: "p".to_owned(),
            uri: GUIDE.to_owned(),
            issued_at: UnixSeconds(now - hours * 60 * 60),
        };
        change(&mut link);
        sealed_uri(&sealer.seal(TokenKind::Link, "/mcp", &link.encode()))
    };
    assert_eq!(read(&alice, &of(23, |_| {})).await["contents"][0]["text"], "guide");
    assert_eq!(refused(&alice, &of(25, |_| {})).await, unknown);
    // Names that mean another prompt by now.
    for stale in [
        of(1, |link| link.prompt = "q".to_owned()),
        of(1, |link| link.name = "up__q".to_owned()),
        of(1, |link| link.upstream = "gone".to_owned()),
    ] {
        assert_eq!(refused(&alice, &stale).await, unknown);
    }
    assert_eq!(reads(&upstream), 2);
}

#[tokio::test]
async fn a_link_ends_with_the_right_to_its_prompt() {
    let upstream = simple().await;
    let toml = |more: &str| server() + &keys() + more + &table(&upstream);
    let rule = |allowed: &str| format!("[[access.rules]]\nallow = {allowed}\n");
    let all = rule("[\"list\", \"get\"]");
    let overlay = all.clone() + "[[overlays]]\nupstream = \"up\"\nprompt = \"p\"\n";
    let gateway = Gateway::start(&toml(&all)).await;
    let alice = as_caller(&gateway, "alice");
    let uri = sealed(&alice).await;
    let unknown = refused(&alice, "promptgate://link/x").await;
    for (changed, names) in [
        (toml(&rule("[\"list\", \"complete\"]")), vec!["up__p"]),
        (toml(&format!("{overlay}drop = true\n")), vec![]),
        (toml(&format!("{overlay}rename = \"q\"\n")), vec!["up__q"]),
        (toml(&all).replace(SEALED, ""), vec!["up__p"]),
    ] {
        gateway.reload(&changed).await;
        eventually(async || alice.names().await.0, |listed| *listed == names).await;
        let answer = refused(&alice, &uri).await;
        assert!(answer.contains("unknown"), "{changed}: {answer}");
        if changed.contains(SEALED) {
            assert_eq!(answer, unknown, "{changed}");
        }
    }
    assert_eq!(reads(&upstream), 0);
    gateway.reload(&toml(&all)).await;
    assert_eq!(refused(&alice, "promptgate://link/x").await, unknown);
    assert_eq!(read(&alice, &uri).await["contents"][0]["text"], "guide");
}

#[tokio::test]
async fn approved_texts_have_the_uris_of_the_upstream_and_what_is_withheld_has_no_links() {
    let is_changed = Arc::new(AtomicBool::new(false));
    let changed = is_changed.clone();
    let upstream = guided(true, move |asked| {
        let argument = json!({"name": "who", "required": true});
        let arguments = if changed.load(Ordering::SeqCst) { json!([argument]) } else { json!([]) };
        let prompts = json!([{"name": "p", "arguments": arguments}]);
        (asked.method() == "prompts/list").then(|| short_list(asked, &prompts))
    })
    .await;
    let folder = Folder::new(&(enforced("") + &table(&upstream)));
    folder.approve().await;
    let objects = folder.objects().concat();
    assert!(objects.contains(GUIDE) && !objects.contains("promptgate://"), "{objects}");
    let process = Process::serve(folder.path()).await;
    let client = process.client();
    let listed = async || client.names().await.0;
    eventually(listed, |names| names == &["up__p"]).await;
    let (uri, again) = (sealed(&client).await, sealed(&client).await);
    assert_ne!(uri, again, "each get has links of its own");
    assert_eq!(read(&client, &uri).await["contents"][0]["text"], "guide");
    is_changed.store(true, Ordering::SeqCst);
    eventually(listed, Vec::is_empty).await;
    let unknown = refused(&client, "promptgate://link/x").await;
    assert_eq!(refused(&client, &uri).await, unknown);
    assert_eq!(reads(&upstream), 1);
    process.stop().await;
}

#[tokio::test]
async fn reads_are_limited_and_recorded_as_those_of_their_prompt() {
    let (upstream, log) = (simple().await, Log::new());
    let limit = "[[limits]]\nname = \"reads\"\nper = [\"caller\", \"prompt\"]\nrate = \"1/h\"\n\
        burst = 2\nmethods = [\"resources/read\"]\n";
    let rules = "[[access.rules]]\nallow = [\"list\", \"get\"]\ngroups = [\"staff\"]\n";
    let keys = api_key("alice", "alice") + "groups = [\"staff\"]\n" + &api_key("bob", "bob");
    let toml = server() + &keys + rules + limit + &log.table() + &table(&upstream);
    let gateway = Gateway::start(&toml).await;
    let (alice, bob) = (as_caller(&gateway, "alice"), as_caller(&gateway, "bob"));
    let uri = sealed(&alice).await;
    let mut last = Vec::new();
    for _ in 0..2 {
        let reply = alice.modern("resources/read", json!({"uri": uri})).await;
        assert_eq!(reply.status, 200);
        last = reply.body;
    }
    let limited = alice.modern("resources/read", json!({"uri": uri})).await;
    assert_eq!((limited.status, limited.refusal().2), (429, "rate_limited".to_owned()));
    assert_eq!(reads(&upstream), 2);
    // A forged one is counted for its caller alone, and denied ones are on record as such.
    refused(&bob, "promptgate://link/forged").await;
    let sealer = Sealer::new(&SealKeys::parse(KEY).unwrap());
    let of_bob = Link {
        caller: "bob".to_owned(),
        name: "up__p".to_owned(),
        upstream: "up".to_owned(),
        prompt: "p".to_owned(),
        uri: GUIDE.to_owned(),
        issued_at: std::time::SystemTime::now().into(),
    };
    let of_bob = sealed_uri(&sealer.seal(TokenKind::Link, "/mcp", &of_bob.encode()));
    refused(&bob, &of_bob).await;
    gateway.drain().await;

    let is_read = |record: &&Value| record["method"] == "resources/read";
    let received: Vec<Value> = log.of("received").iter().filter(is_read).cloned().collect();
    let allowed = &received[0];
    for (member, expected) in [
        ("name", "up__p"),
        ("prompt", "p"),
        ("upstream", "up"),
        ("decision", "allowed"),
        ("caller", "alice"),
    ] {
        assert_eq!(allowed[member], expected, "{allowed}");
    }
    assert!(allowed["definition"].as_str().unwrap().starts_with("sha256:"), "{allowed}");
    let of = |call: &Value| {
        let completed = log.of("completed");
        completed.iter().find(|record| record["call"] == *call).cloned().unwrap()
    };
    let result = serde_json::from_slice::<Value>(&last).unwrap()["result"].to_string();
    let completed = of(&received[1]["call"]);
    assert_eq!(completed["outcome"], "ok", "{completed}");
    let digest = completed["result"].as_str().unwrap();
    let text = String::from_utf8(last).unwrap();
    let from = text.find("\"result\":").unwrap() + "\"result\":".len();
    assert_eq!(digest, sha256_text(&text.as_bytes()[from..text.len() - 1]), "{result}");
    let of_bob: Vec<_> = received.iter().filter(|record| record["caller"] == "bob").collect();
    assert_eq!((&of_bob[0]["name"], &of_bob[0]["prompt"]), (&json!("promptgate://"), &Value::Null));
    let denied = (&of_bob[1]["name"], &of_bob[1]["prompt"], &of_bob[1]["decision"]);
    assert_eq!(denied, (&json!("up__p"), &json!("p"), &json!("denied")));
    for record in &of_bob {
        assert_eq!(of(&record["call"])["outcome"], "unknown_resource");
    }
    let text = log.text();
    assert!(
        !text.contains("promptgate://link") && !text.contains("guide"),
        "no capability, no body"
    );
}

#[tokio::test]
async fn what_a_hostile_server_answers_is_checked() {
    let upstream = serving(link("a:folder"), |asked| {
        let hidden = |text: &str| json!([{"uri": "a:folder", "text": text}]);
        match asked.header("x-answer").unwrap_or_default() {
            "others" => contents(
                asked,
                &json!([{"uri": "a:other", "text": "x"}, {"uri": "https://a.example/", "text": "y"},
                    {"uri": "a:folder", "blob": "AAAA", "_meta": {"k": 1}}]),
            ),
            "hidden" => contents(asked, &hidden("a\u{200b}b")),
            "large" => contents(asked, &hidden(&"x".repeat(4 << 20))),
            "no json" => Scripted::Http(200, vec![], b"<h1>Hi</h1>".to_vec()),
            "no contents" => asked.result(json!({"resultType": "complete"})),
            "asks" => asked.result(json!({"resultType": "input_required", "inputRequests": {}})),
            "forges" => contents(
                asked,
                &json!([{"uri": "a:folder", "text": "x", "_meta": {"promptgate/upstream": "y"}}]),
            ),
            "relative" => contents(asked, &json!([{"uri": "other", "text": "x"}])),
            "no resources" => asked.error(-32601, "method not found"),
            "gone" => asked.error(-32602, "SECRET path"),
            _ => asked.error(-32000, "busy"),
        }
    })
    .await;
    let toml = |answer: &str, more: &str| {
        let own = format!("headers = {{ X-Answer = \"{answer}\" }}\n{more}");
        server() + &table(&upstream) + &own
    };
    let gateway = Gateway::start(&toml("busy", "")).await;
    let client = gateway.client();
    let uri = sealed(&client).await;

    gateway.reload(&toml("others", "")).await;
    let result = read(&client, &uri).await;
    let [other, public, own] = [0, 1, 2].map(|at| result["contents"][at].clone());
    assert_eq!(other["_meta"]["promptgate/uri"], "a:other", "{result}");
    assert_eq!(public, json!({"uri": "https://a.example/", "text": "y"}));
    assert_eq!(
        own,
        json!({"uri": uri, "blob": "AAAA",
        "_meta": {"k": 1, "promptgate/uri": "a:folder"}})
    );
    let followed = read(&client, other["uri"].as_str().unwrap()).await;
    assert_eq!(followed["contents"][0]["uri"], other["uri"], "the next one is sealed, too");

    let unknown = refused(&client, "promptgate://link/x").await;
    for (answer, more, reason) in [
        ("large", "max_message = \"1MiB\"\n", "upstream_too_large"),
        ("no json", "", "upstream_protocol_error"),
        ("no contents", "", "upstream_protocol_error"),
        ("asks", "", "upstream_protocol_error"),
        ("forges", "", "upstream_protocol_error"),
        ("relative", "", "upstream_protocol_error"),
        ("hidden", "content = \"reject\"\n", "upstream_protocol_error"),
        ("busy", "", "upstream_error"),
    ] {
        gateway.reload(&toml(answer, more)).await;
        let error = client.ask_error("resources/read", json!({"uri": uri})).await;
        assert_eq!(error["data"]["reason"], reason, "{answer} {error}");
    }
    for answer in ["gone", "no resources"] {
        gateway.reload(&toml(answer, "")).await;
        assert_eq!(refused(&client, &uri).await, unknown, "{answer}");
    }
    for (mode, text, is_reported) in
        [("allow", "a\u{200b}b", false), ("flag", "a\u{200b}b", true), ("strip", "ab", true)]
    {
        gateway.reload(&toml("hidden", &format!("content = \"{mode}\"\n"))).await;
        let result = read(&client, &uri).await;
        assert_eq!(result["contents"][0]["text"], text, "{mode}");
        assert_eq!(result["_meta"].get("promptgate/hiddenText").is_some(), is_reported, "{mode}");
    }
}

#[tokio::test]
async fn only_what_the_upstream_alone_resolves_is_sealed() {
    let long = |length: usize| format!("a:{}", "x".repeat(length - 2));
    let sealed = ["file:///a", "A:B", "promptgate://link/x", &long(2048)].map(str::to_owned);
    let kept = ["https://a.example/x", "HTTP://a", "data:,x", "skill://a/SKILL.md", &long(2049)];
    let large = "é".repeat(64 << 10);
    let mut all: Vec<Value> = sealed.iter().map(|uri| embedded(uri, &large)).collect();
    all.extend(kept.iter().map(|uri| link(uri)));
    all.push(json!({"type": "text", "text": "a:b", "uri": "a:b"}));
    all.push(json!({"type": "resource_link", "uri": "a:x", "name": "n",
        "_meta": {"k": {"uri": "a:y"}, "promptgate/uri": "forged"}}));
    let sent = all.clone();
    let upstream = guided(true, move |asked| {
        (asked.method() == "prompts/get").then(|| messages(asked, &sent))
    })
    .await;
    let overlay = "[[overlays]]\nupstream = \"up\"\nprompt = \"p\"\n\
        before = { role = \"user\", text = \"first\" }\n";
    let toml = overlay.to_owned() + &table(&upstream) + "max_message = \"8MiB\"\n";
    let gateway = Gateway::start(&toml).await;
    let got = get(&gateway.client()).await;
    let blocks: Vec<_> =
        got["messages"].as_array().unwrap().iter().map(|m| &m["content"]).collect();
    assert_eq!(blocks[0]["text"], "first");
    let blocks = &blocks[1..];
    for (block, original) in blocks.iter().zip(&sealed) {
        uri(&block["resource"]);
        assert_eq!(block["_meta"]["promptgate/uri"], *original);
        assert_eq!(block["resource"]["text"], large);
    }
    assert_eq!(
        blocks[sealed.len()..all.len() - 1].iter().copied().cloned().collect::<Vec<_>>(),
        all[sealed.len()..all.len() - 1]
    );
    let last = blocks.last().unwrap();
    uri(last);
    assert_eq!(last["_meta"], json!({"k": {"uri": "a:y"}, "promptgate/uri": "a:x"}));
}

#[tokio::test]
async fn a_flood_of_links_is_sealed_in_part() {
    let many: Vec<Value> = (0..1_500).map(|n| link(&format!("a:{n}"))).collect();
    let upstream = guided(true, move |asked| {
        (asked.method() == "prompts/get").then(|| messages(asked, &many))
    })
    .await;
    let gateway = Gateway::start(&table(&upstream)).await;
    let got = get(&gateway.client()).await;
    let messages = got["messages"].as_array().unwrap();
    let is_sealed = |message: &Value| message["content"]["_meta"].is_object();
    assert_eq!(messages.iter().position(|message| !is_sealed(message)), Some(1_000));
    assert_eq!(messages.len(), 1_500);
    assert_eq!(messages[1_499]["content"], link("a:1499"));
}

#[tokio::test]
async fn tools_give_links_that_can_be_read() {
    let upstream = simple().await;
    let expose = "[server]\nexpose = [\"tools\"]\n";
    let gateway = Gateway::start(&(expose.to_owned() + &table(&upstream))).await;
    let client = gateway.client();
    let call = json!({"name": "use_prompt", "arguments": {"name": "up__p"}});
    let result = client.ask("tools/call", call).await;
    let block = &result["content"][1];
    assert_eq!(block["_meta"]["promptgate/uri"], GUIDE, "{result}");
    assert_eq!(read(&client, &uri(block)).await["contents"][0]["text"], "guide");
}

#[tokio::test]
async fn the_upstream_of_rest_never_sees_a_link() {
    let upstream = simple().await;
    let rest = "[passthrough]\nupstream = \"up\"\n";
    for links in [SEALED, ""] {
        let toml = server() + rest + &upstream.table("up") + links;
        let gateway = Gateway::start(&toml).await;
        let client = gateway.client();
        client.names().await;
        let before = reads(&upstream);
        for own in ["promptgate://", "PROMPTGATE://link/x", "promptgate://link/x"] {
            let error = client.ask_error("resources/read", json!({"uri": own})).await;
            assert_eq!(error["data"]["reason"], "unknown_resource", "{error}");
        }
        assert_eq!(reads(&upstream), before);
        let read_as_is = read(&client, GUIDE).await;
        assert_eq!(
            read_as_is["contents"][0],
            json!({"uri": GUIDE, "text": "guide",
            "mimeType": "text/plain"})
        );
        if links == SEALED {
            let uri = sealed(&client).await;
            assert_eq!(read(&client, &uri).await["contents"][0]["uri"], uri);
        }
    }
}

#[tokio::test]
async fn a_link_is_no_door_to_a_file_of_a_skill() {
    let file = "github://acme/refunds/limits.md";
    let entry = skill("github://acme/refunds", &[("SKILL.md", "x"), ("limits.md", "y")]);
    let upstream = guided(true, move |asked| match asked.method() {
        "server/discover" => Some(discovered(asked)),
        "skills/list" => Some(listed(asked, &json!([entry]))),
        "prompts/get" => Some(messages(asked, &[link(file), link("github://acme/other.md")])),
        _ => None,
    })
    .await;
    let gateway = Gateway::start(&(server() + &table(&upstream))).await;
    let client = gateway.client();
    client.ask("skills/list", json!({})).await;
    let got = get(&client).await;
    assert_eq!(got["messages"][0]["content"], link(file), "it stays as it is");
    uri(&got["messages"][1]["content"]);
    // Sealed before the skill was listed.
    let sealer = Sealer::new(&SealKeys::parse(KEY).unwrap());
    let early = Link {
        caller: "anonymous".to_owned(),
        name: "up__p".to_owned(),
        upstream: "up".to_owned(),
        prompt: "p".to_owned(),
        uri: file.to_owned(),
        issued_at: std::time::SystemTime::now().into(),
    };
    let early = sealed_uri(&sealer.seal(TokenKind::Link, "/mcp", &early.encode()));
    refused(&client, &early).await;
    assert_eq!(reads(&upstream), 0);
}
