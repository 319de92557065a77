//! Requests for tools and resources: empty lists for hosts that ask every server for them, and
//! prompts as tools for hosts and models without prompt support.

use serde_json::{Value, json};

use crate::audit::Log;
use crate::support::client::{Reply, modern, request};
use crate::support::gateway::api_key;
use crate::support::server_request_upstream::{accept_blue, form_elicitation};
use crate::support::{Client, ClientMode, Gateway, ModeClient, Upstream, eventually};

const CLIENTS: [ClientMode; 7] = [
    ClientMode::Sse("2024-11-05"),
    ClientMode::Http("2025-03-26"),
    ClientMode::Http("2025-06-18"),
    ClientMode::Http("2025-11-25"),
    ClientMode::Modern,
    ClientMode::Stdio("2025-11-25"),
    ClientMode::ModernStdio,
];

const PAIR: &str = "[server]\nexpose = [\"prompts\", \"tools\"]\n";
const EACH: &str = "[server]\nexpose = [\"prompts\", \"tools\"]\ntools = \"each\"\n";

/// The result of a call of a tool.
async fn call(client: &Client, tool: &str, arguments: Value) -> Value {
    client.ask("tools/call", json!({"name": tool, "arguments": arguments})).await
}

async fn use_prompt(client: &Client, name: &str) -> Value {
    call(client, "use_prompt", json!({"name": name})).await
}

async fn tool_names(client: &Client) -> Vec<String> {
    names(&client.ask("tools/list", json!({})).await["tools"])
}

fn names(list: &Value) -> Vec<String> {
    let names = list.as_array().expect("a list").iter().map(|item| item["name"].as_str());
    names.map(|name| name.expect("a name").to_owned()).collect()
}

fn texts(result: &Value) -> Vec<&str> {
    let blocks = result["content"].as_array().unwrap_or_else(|| panic!("{result}"));
    blocks.iter().map(|block| block["text"].as_str().expect("text")).collect()
}

async fn post_at(client: &Client, path: &str, method: &str, params: Value) -> Reply {
    let (body, headers) = modern(1, method, params);
    let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
    client.send("POST", path, &headers, body.to_string().as_bytes()).await
}

#[tokio::test]
async fn hosts_that_ask_every_server_for_tools_and_resources_get_empty_lists() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::before(&[("up", &upstream)]).await;
    let lists = [
        ("tools/list", "tools"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ];
    for client_mode in CLIENTS {
        let mut client = ModeClient::connect(&gateway, client_mode).await;
        let is_modern = matches!(client_mode, ClientMode::Modern | ClientMode::ModernStdio);
        for (method, member) in lists {
            let result = client.ask(method, json!({})).await;
            assert_eq!(result[member], json!([]), "{client_mode:?} {method}");
            assert_eq!(result["ttlMs"].is_u64(), is_modern, "{client_mode:?} {method}");
            assert_eq!(result["cacheScope"] == "public", is_modern, "{client_mode:?} {method}");
            let answer = client.answer(method, json!({"cursor": "x"})).await;
            assert_eq!(answer["error"]["data"]["reason"], "invalid_cursor", "{client_mode:?}");
        }
        let answer = client.answer("tools/call", json!({"name": "x"})).await;
        assert_eq!(answer["error"]["code"], -32602, "{client_mode:?}");
        let answer = client.answer("resources/read", json!({"uri": "a:b"})).await;
        let expected = if is_modern { -32602 } else { -32002 };
        assert_eq!(answer["error"]["code"], expected, "{client_mode:?}");
        assert_eq!(answer["error"]["data"]["uri"], "a:b", "{client_mode:?}");
    }
    let methods = upstream.methods();
    assert!(!methods.iter().any(|m| m.contains("tools") || m.contains("resources")), "{methods:?}");
}

#[tokio::test]
async fn empty_tools_are_declared_and_resources_are_not() {
    let gateway = Gateway::start("").await;
    let discovered = gateway.client().ask("server/discover", json!({})).await;
    let declared = json!({"prompts": {"listChanged": true}, "completions": {}, "tools": {}});
    assert_eq!(discovered["capabilities"], declared);

    let gateway = Gateway::start("[server]\nempty_lists = false\n").await;
    let discovered = gateway.client().ask("server/discover", json!({})).await;
    let declared = json!({"prompts": {"listChanged": true}, "completions": {}});
    assert_eq!(discovered["capabilities"], declared);
    for method in
        ["tools/list", "tools/call", "resources/list", "resources/templates/list", "resources/read"]
    {
        let reply = gateway.client().modern(method, json!({"name": "x", "uri": "a:b"})).await;
        assert_eq!(reply.refusal(), (404, -32601, "method_not_found".into()), "{method}");
    }
}

#[tokio::test]
async fn w8_the_name_header_is_checked_for_tools_and_resources() {
    let gateway = Gateway::start(PAIR).await;
    for (method, params) in
        [("tools/call", json!({"name": "find_prompt"})), ("resources/read", json!({"uri": "a:b"}))]
    {
        let (body, headers) = modern(1, method, params);
        for name in [None, Some("other")] {
            let headers =
                headers.iter().map(|(n, v)| (*n, v.as_str())).filter(|(n, _)| *n != "Mcp-Name");
            let headers: Vec<_> = headers.chain(name.map(|name| ("Mcp-Name", name))).collect();
            let reply =
                gateway.client().send("POST", "/mcp", &headers, body.to_string().as_bytes()).await;
            assert_eq!(reply.refusal(), (400, -32020, "header_mismatch".into()), "{method}");
        }
    }
}

#[tokio::test]
async fn p4_limits_count_requests_for_tools_and_resources() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let limit = |method: &str| {
        format!(
            "[[limits]]\nname = \"few\"\nper = []\nmethods = [\"{method}\"]\nrate = \"1/h\"\nburst = 2\n"
        )
    };
    let requests = [
        ("prompts/list", "tools/list", json!({})),
        ("prompts/list", "resources/list", json!({})),
        ("prompts/list", "resources/templates/list", json!({})),
        ("prompts/get", "tools/call", json!({"name": "x"})),
        ("prompts/get", "resources/read", json!({"uri": "a:b"})),
    ];
    for (counted_as, method, params) in requests {
        let toml = limit(counted_as) + &upstream.table("up");
        let gateway = Gateway::start(&toml).await;
        for _ in 0..2 {
            assert_eq!(gateway.client().modern(method, params.clone()).await.status, 200);
        }
        let reply = gateway.client().modern(method, params).await;
        assert_eq!(reply.refusal(), (429, -32603, "rate_limited".into()), "{method}");
    }
    // Prompts as tools are counted as the prompts that they stand for.
    let requests = [
        (PAIR, "prompts/list", "tools/list", json!({})),
        (PAIR, "prompts/list", "tools/call", json!({"name": "find_prompt"})),
        (
            PAIR,
            "prompts/get",
            "tools/call",
            json!({"name": "use_prompt", "arguments": {"name": "up__p"}}),
        ),
        (PAIR, "prompts/get", "tools/call", json!({"name": "none"})),
        (
            PAIR,
            "prompts/get",
            "tools/call",
            json!({"name": "find_prompt", "arguments": {"query": 1}}),
        ),
        (EACH, "prompts/get", "tools/call", json!({"name": "up__p"})),
        (EACH, "prompts/get", "tools/call", json!({"name": "none"})),
    ];
    for (server, counted_as, method, params) in requests {
        let gateway =
            Gateway::start(&(server.to_owned() + &limit(counted_as) + &upstream.table("up"))).await;
        for _ in 0..2 {
            assert_eq!(gateway.client().modern(method, params.clone()).await.status, 200);
        }
        let reply = gateway.client().modern(method, params).await;
        assert_eq!(reply.refusal(), (429, -32603, "rate_limited".into()), "{method}");
    }
}

#[tokio::test]
async fn the_pair_finds_and_uses_prompts_in_every_mode() {
    let upstream = Upstream::modern(|asked| {
        let prompts = json!([
            {"name": "poem", "description": "Writes a review in verse"},
            {"name": "review", "title": "Review", "arguments": [{"name": "code", "required": true}]},
        ]);
        (asked.method() == "prompts/list").then(|| asked.list(&prompts))
    })
    .await;
    let gateway = Gateway::start(&(PAIR.to_owned() + &upstream.table("up"))).await;
    for client_mode in CLIENTS {
        let mut client = ModeClient::connect(&gateway, client_mode).await;
        let tools = client.ask("tools/list", json!({})).await;
        assert_eq!(names(&tools["tools"]), ["find_prompt", "use_prompt"], "{client_mode:?}");
        let found = client
            .ask("tools/call", json!({"name": "find_prompt", "arguments": {"query": "review"}}))
            .await;
        let data = &found["structuredContent"];
        assert_eq!(names(&data["prompts"]), ["up__review", "up__poem"], "{client_mode:?}");
        assert_eq!(data["prompts"][0]["arguments"], json!([{"name": "code", "required": true}]));
        assert_eq!(&serde_json::from_str::<Value>(texts(&found)[0]).unwrap(), data);
        let arguments = json!({"name": "up__review", "arguments": {"code": "x", "style": null}});
        let used =
            client.ask("tools/call", json!({"name": "use_prompt", "arguments": arguments})).await;
        assert_eq!(texts(&used), ["[user]", r#""review" {"code":"x"}"#], "{client_mode:?}");
        assert_eq!(used["_meta"]["promptgate/upstream"], "up", "{client_mode:?}");
        assert!(used.get("messages").is_none() && used.get("isError").is_none());
    }
}

#[tokio::test]
async fn the_pair_is_listed_while_no_upstream_answers() {
    let dead = "[listing]\npage_size = 1\n[upstreams.dead]\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/mcp\"\n";
    let gateway = Gateway::start(&(PAIR.to_owned() + dead)).await;
    let listed = gateway.client().ask("tools/list", json!({})).await;
    assert_eq!(names(&listed["tools"]), ["find_prompt", "use_prompt"]);
    assert_eq!((&listed["cacheScope"], listed.get("nextCursor")), (&json!("public"), None));
    assert!(listed["ttlMs"].as_u64().unwrap() > 0);
    let found = call(&gateway.client(), "find_prompt", json!({})).await;
    assert_eq!(found["_meta"]["promptgate/reason"], "upstream_unavailable", "{found}");
    assert_eq!(texts(&found)[0], "no upstream can be reached at present", "{found}");
    let used = call(&gateway.client(), "use_prompt", json!({"name": "dead__p"})).await;
    assert_eq!(
        used["_meta"]["promptgate/correlationId"].as_str().map(str::len),
        Some(16),
        "{used}"
    );
}

#[tokio::test]
async fn find_prompt_pages_through_a_ranking() {
    let names_of: Vec<String> = (0..45).map(|n| format!("p{n:02}")).collect();
    let upstream =
        Upstream::with_prompts(&names_of.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let toml = keys() + PAIR + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client().with("X-API-Key", "alice");
    let mut found = Vec::new();
    let mut arguments = json!({"query": "up", "cursor": ""});
    let mut cursors = Vec::new();
    loop {
        let page = call(&client, "find_prompt", arguments).await["structuredContent"].take();
        found.extend(names(&page["prompts"]));
        let Some(cursor) = page.get("nextCursor").cloned() else { break };
        arguments = json!({"query": "up", "cursor": cursor});
        cursors.push(cursor);
    }
    let all: Vec<_> = names_of.iter().map(|name| format!("up__{name}")).collect();
    assert_eq!((found, cursors.len()), (all, 2));
    // A cursor is for one query, one caller and one list.
    let bob = gateway.client().with("X-API-Key", "bob");
    for (client, query) in [(&client, "p"), (&bob, "up")] {
        let result =
            call(client, "find_prompt", json!({"query": query, "cursor": cursors[0]})).await;
        assert_eq!(result["_meta"]["promptgate/reason"], "invalid_cursor");
    }
    let error = client.ask_error("prompts/list", json!({"cursor": cursors[0]})).await;
    assert_eq!(error["data"]["reason"], "invalid_cursor");
}

fn keys() -> String {
    api_key("alice", "alice") + &api_key("bob", "bob")
}

/// Alice may use `p` alone.
const RULES: &str = "[[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\n\
    callers = [\"alice\"]\nprompts = [\"p\"]\n\
    [[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\ncallers = [\"bob\"]\n";

#[tokio::test]
async fn p1_tools_show_and_give_only_what_their_caller_may_use() {
    let upstream = Upstream::with_prompts(&["p", "secret"]).await;
    let rest = keys() + RULES + &upstream.table("up");
    let pair = Gateway::start(&(PAIR.to_owned() + &rest)).await;
    let each = Gateway::start(&(EACH.to_owned() + &rest)).await;
    let alice = |gateway: &Gateway| gateway.client().with("X-API-Key", "alice");
    let bob = |gateway: &Gateway| gateway.client().with("X-API-Key", "bob");

    let found = |result: &Value| names(&result["structuredContent"]["prompts"]);
    assert_eq!(found(&call(&alice(&pair), "find_prompt", json!({})).await), ["up__p"]);
    assert_eq!(found(&call(&bob(&pair), "find_prompt", json!({})).await), ["up__p", "up__secret"]);
    assert_eq!(tool_names(&alice(&each)).await, ["up__p"]);
    assert_eq!(tool_names(&bob(&each)).await, ["up__p", "up__secret"]);
    assert_eq!(texts(&use_prompt(&alice(&pair), "up__p").await)[1], "\"p\" null");
    assert_eq!(texts(&call(&alice(&each), "up__p", json!({})).await)[1], "\"p\" {}");

    let denied = use_prompt(&alice(&pair), "up__secret").await;
    assert_eq!(denied["isError"], true, "{denied}");
    assert_eq!(denied["_meta"]["promptgate/reason"], "unknown_prompt");
    // Byte for byte, as the names have the same length.
    let body = async |client: Client, params: Value| client.modern("tools/call", params).await.body;
    let used = |name: &str| json!({"name": "use_prompt", "arguments": {"name": name}});
    assert_eq!(
        body(alice(&pair), used("up__secret")).await,
        body(alice(&pair), used("up__absent")).await
    );
    let called = |name: &str| json!({"name": name});
    assert_eq!(
        body(alice(&each), called("up__secret")).await,
        body(alice(&each), called("up__absent")).await
    );
    assert_eq!(upstream.gets().len(), 2, "the upstream sees what is allowed");
}

#[tokio::test]
async fn faults_that_a_model_can_act_on_are_results_and_others_are_errors() {
    let upstream = Upstream::modern(|asked| {
        let prompts = json!([
            {"name": "p", "arguments": [{"name": "code", "required": true}]}, {"name": "broken"},
        ]);
        match asked.method() {
            "prompts/list" => Some(asked.list(&prompts)),
            "prompts/get" if asked.message["params"]["name"] == "broken" => {
                Some(asked.error(-32603, "out of ink"))
            }
            _ => None,
        }
    })
    .await;
    let gateway = Gateway::start(&(PAIR.to_owned() + &upstream.table("up"))).await;
    let client = gateway.client();
    for (arguments, reason, said) in [
        (json!({}), "invalid_params", "`name` must be a string"),
        (json!({"name": "up__p"}), "missing_argument", "required argument `code` is missing"),
        (
            json!({"name": "up__p", "arguments": {"code": 1}}),
            "invalid_params",
            "`arguments.code` must be a string",
        ),
        (json!({"name": "up__never"}), "unknown_prompt", "find it with find_prompt"),
        (json!({"name": "up__broken"}), "upstream_error", "out of ink"),
    ] {
        let result = call(&client, "use_prompt", arguments.clone()).await;
        assert_eq!(result["isError"], true, "{arguments}");
        assert_eq!(result["_meta"]["promptgate/reason"], reason, "{arguments}");
        assert!(texts(&result)[0].contains(said), "{result}");
    }
    let bad = call(&client, "find_prompt", json!({"query": 1})).await;
    assert_eq!(bad["_meta"]["promptgate/reason"], "invalid_params");
    let unknown = client.ask_error("tools/call", json!({"name": "up__p"})).await;
    assert_eq!(unknown["data"]["reason"], "unknown_tool", "there is no tool of this name");
    let unauthenticated = Gateway::start(&(keys() + PAIR)).await;
    let refused =
        unauthenticated.client().modern("tools/call", json!({"name": "use_prompt"})).await;
    assert_eq!(refused.status, 401);
}

#[tokio::test]
async fn each_prompt_is_a_tool_with_its_arguments_as_a_schema() {
    let library = tempfile::tempdir().unwrap();
    let prompt = "---\nname: review\ndescription: Reviews\narguments:\n  - name: code\n    required: true\n  \
        - name: focus\n    choices: [speed, safety]\n---\n## user\n{{ code }} {{ focus }}\n## assistant\nYes\n";
    std::fs::write(library.path().join("review.md"), prompt).unwrap();
    let upstream = Upstream::with_prompts(&["r\u{e9}sum\u{e9}", &"x".repeat(80)]).await;
    let toml =
        format!("{EACH}[upstreams.lib]\ntransport = \"library\"\npath = {:?}\n", library.path());
    let gateway = Gateway::start(&(toml + &upstream.table("up"))).await;
    let client = gateway.client();
    let listed = client.ask("tools/list", json!({})).await;
    let tools = listed["tools"].as_array().unwrap();
    assert_eq!(tools[0]["name"], "lib__review");
    let schema = json!({"type": "object", "required": ["code"], "properties": {
        "code": {"type": "string"}, "focus": {"type": "string", "enum": ["speed", "safety"]}}});
    assert_eq!(tools[0]["inputSchema"], schema);
    let result = call(&client, "lib__review", json!({"code": "a", "focus": "speed"})).await;
    assert_eq!(texts(&result), ["[user]", "a speed", "[assistant]", "Yes"]);
    // Names that hosts do not accept are derived, and lead to their prompts.
    for (tool, raw_name) in tools[1..].iter().zip(["r\u{e9}sum\u{e9}", &"x".repeat(80)]) {
        let name = tool["name"].as_str().unwrap();
        assert!(name.len() <= 64 && name.is_ascii(), "{name}");
        let result = call(&client, name, json!({})).await;
        assert_eq!(texts(&result)[1], format!("\"{raw_name}\" {{}}"));
    }
    assert_eq!(tools.len(), 3);
}

#[tokio::test]
async fn one_prompt_more_than_tools_max_and_the_endpoint_offers_the_pair() {
    let (two, three) = (["a", "b"], ["a", "b", "c"]);
    let within = Upstream::with_prompts(&two).await;
    let beyond = Upstream::with_prompts(&three).await;
    // The form does not depend on what the caller may use: Alice sees one prompt.
    let rules =
        "[[access.rules]]\nallow = [\"list\", \"get\"]\ncallers = [\"alice\"]\nprompts = [\"a\"]\n";
    let toml = |upstream: &Upstream| {
        keys()
            + EACH
            + "tools_max = 2\n"
            + rules
            + "[views.few]\nprompts = [\"up__a\"]\n"
            + &upstream.table("up")
    };
    let gateway = Gateway::start(&toml(&within)).await;
    let alice = gateway.client().with("X-API-Key", "alice");
    assert_eq!(tool_names(&alice).await, ["up__a"]);
    let gateway = Gateway::start(&toml(&beyond)).await;
    let alice = gateway.client().with("X-API-Key", "alice");
    assert_eq!(tool_names(&alice).await, ["find_prompt", "use_prompt"]);
    assert_eq!(texts(&use_prompt(&alice, "up__a").await)[1], "\"a\" null");
    let listed = post_at(&alice, "/mcp/few", "tools/list", json!({})).await.json();
    assert_eq!(names(&listed["result"]["tools"]), ["up__a"], "the view has one prompt");
}

#[tokio::test]
async fn an_endpoint_without_prompts_in_expose_declares_and_serves_none() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = "[views.models]\nexpose = [\"tools\"]\n".to_owned() + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    let discovered = post_at(&client, "/mcp/models", "server/discover", json!({})).await.json();
    assert_eq!(discovered["result"]["capabilities"], json!({"tools": {"listChanged": true}}));
    let complete = json!({"ref": {"type": "ref/prompt", "name": "up__p"}, "argument": {"name": "a", "value": ""}});
    for (method, params) in [
        ("prompts/list", json!({})),
        ("prompts/get", json!({"name": "up__p"})),
        ("completion/complete", complete),
    ] {
        let reply = post_at(&client, "/mcp/models", method, params.clone()).await;
        assert_eq!(reply.refusal().1, -32601, "{method}");
        assert_eq!(
            client.modern(method, params).await.status,
            200,
            "{method} on the main endpoint"
        );
    }
    let listed = post_at(&client, "/mcp/models", "tools/list", json!({})).await.json();
    assert_eq!(names(&listed["result"]["tools"]), ["find_prompt", "use_prompt"]);
    let elsewhere = client.ask("tools/list", json!({})).await;
    assert_eq!(elsewhere["tools"], json!([]));
}

#[tokio::test]
async fn tools_are_on_record_as_the_prompts_that_they_stand_for() {
    let log = Log::new();
    let upstream = Upstream::with_prompts(&["p"]).await;
    let toml = log.table() + PAIR + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client();
    call(&client, "find_prompt", json!({"query": "p"})).await;
    call(&client, "use_prompt", json!({"name": "up__p", "arguments": {"a": "canary"}})).await;
    use_prompt(&client, "up__never").await;
    let completed = eventually(async || log.of("completed"), |records| records.len() == 3).await;
    let received = log.of("received");
    assert_eq!(received[0]["method"], "prompts/list");
    let used = &received[1];
    assert_eq!((&used["method"], &used["name"]), (&json!("prompts/get"), &json!("up__p")));
    assert_eq!((&used["upstream"], &used["decision"]), (&json!("up"), &json!("allowed")));
    assert!(!log.text().contains("canary"));
    assert_eq!(completed[2]["outcome"], "unknown_prompt", "not the result that the model reads");
}

#[tokio::test]
async fn l3_changes_of_the_tools_are_announced_where_they_change() {
    let library = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        let text = format!("---\nname: {name}\n---\nHello\n");
        std::fs::write(library.path().join(format!("{name}.md")), text).unwrap();
    };
    write("one");
    let toml = format!(
        "[listing]\ndebounce = \"1ms\"\n[views.each]\nexpose = [\"tools\"]\ntools = \"each\"\ntools_max = 3\n\
         [views.pair]\nexpose = [\"prompts\", \"tools\"]\n\
         [upstreams.lib]\ntransport = \"library\"\npath = {:?}\n",
        library.path()
    );
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let both = json!({"notifications": {"promptsListChanged": true, "toolsListChanged": true}});
    let mut streams = Vec::new();
    for (path, granted) in [
        ("/mcp", json!({"promptsListChanged": true})),
        ("/mcp/pair", json!({"promptsListChanged": true, "toolsListChanged": true})),
        ("/mcp/each", json!({"toolsListChanged": true})),
    ] {
        let (body, headers) = modern(9, "subscriptions/listen", both.clone());
        let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let client = gateway.client();
        let mut stream =
            client.stream_at("POST", path, &headers, body.to_string().as_bytes()).await;
        let acknowledged = stream.event().await.unwrap().json();
        assert_eq!(acknowledged["params"]["notifications"], granted, "{path}");
        streams.push(stream);
    }
    let legacy = gateway.client().legacy("2025-06-18").await;
    let mut legacy = legacy.stream("GET", &[("Accept", "text/event-stream")], b"").await;
    write("two");
    let prompts = "notifications/prompts/list_changed";
    let tools = "notifications/tools/list_changed";
    for (stream, expected) in streams.iter_mut().zip([prompts, prompts, tools]) {
        assert_eq!(stream.event().await.unwrap().json()["method"], expected);
    }
    assert_eq!(legacy.event().await.unwrap().json()["method"], prompts);
    // The pair never changes: the next notification of its endpoint is about prompts again.
    write("three");
    for (stream, expected) in streams.iter_mut().zip([prompts, prompts, tools]) {
        assert_eq!(stream.event().await.unwrap().json()["method"], expected);
    }
    // One more than tools_max: the tools are the pair from now on.
    write("four");
    assert_eq!(streams[2].event().await.unwrap().json()["method"], tools);
    let listed = post_at(&gateway.client(), "/mcp/each", "tools/list", json!({})).await.json();
    assert_eq!(names(&listed["result"]["tools"]), ["find_prompt", "use_prompt"]);
}

#[tokio::test]
async fn a_server_request_in_the_middle_of_a_tool_is_answered_in_every_cell() {
    let server_requests = || vec![form_elicitation("Which colour?")];
    let upstreams = [
        Upstream::legacy_with_server_requests(server_requests()).await,
        Upstream::modern_with_input_requests(server_requests()).await,
    ];
    for upstream in upstreams {
        let gateway = Gateway::start(&(PAIR.to_owned() + &upstream.patient_table("up"))).await;
        for client_mode in
            [ClientMode::Http("2025-11-25"), ClientMode::Modern, ClientMode::Stdio("2025-06-18")]
        {
            let capabilities = json!({"elicitation": {"form": {}}});
            let mut client =
                ModeClient::with_capabilities(&gateway, client_mode, capabilities).await;
            let arguments = json!({"name": "up__p", "arguments": {"a": "1"}});
            let params = json!({"name": "use_prompt", "arguments": arguments});
            let (asked, answer) =
                client.call_answering("tools/call", params, |_| accept_blue()).await;
            assert_eq!(asked.len(), 1, "{client_mode:?}: {answer}");
            let answers: Value = serde_json::from_str(texts(&answer["result"])[1]).unwrap();
            assert_eq!(answers, json!([accept_blue()]), "{client_mode:?}");
        }
    }
}

#[tokio::test]
async fn a_batch_may_hold_calls_of_tools() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let gateway = Gateway::start(&(PAIR.to_owned() + &upstream.table("up"))).await;
    let client = gateway.client().legacy("2025-03-26").await;
    let batch = json!([
        request(1, "tools/list", json!({})),
        request(2, "tools/call", json!({"name": "use_prompt", "arguments": {"name": "up__p"}})),
        request(3, "resources/list", json!({})),
    ]);
    let mut answers = client.post(&batch).await.json();
    let answers = answers.as_array_mut().unwrap();
    answers.sort_by_key(|answer| answer["id"].as_u64());
    assert_eq!(names(&answers[0]["result"]["tools"]), ["find_prompt", "use_prompt"]);
    assert_eq!(texts(&answers[1]["result"])[1], "\"p\" null");
    assert_eq!(answers[2]["result"], json!({"resources": []}));
}

#[tokio::test]
async fn p1_no_prompt_takes_the_place_of_the_pair() {
    let upstream = Upstream::with_prompts(&["find_prompt", "use_prompt", "p"]).await;
    for server in [PAIR.to_owned(), EACH.to_owned(), EACH.to_owned() + "tools_max = 1\n"] {
        let gateway = Gateway::start(&(server + &upstream.table("up") + "prefix = \"\"\n")).await;
        let client = gateway.client();
        let found = call(&client, "find_prompt", json!({"query": "p"})).await;
        assert!(found["structuredContent"]["prompts"].is_array(), "{found}");
        let used = use_prompt(&client, "find_prompt").await;
        assert_eq!(texts(&used)[1], "\"find_prompt\" null", "by its public name it is a prompt");
        for name in tool_names(&client).await {
            let is_pair = ["find_prompt", "use_prompt"].contains(&name.as_str());
            let has_pair = tool_names(&client).await.len() == 2;
            assert_eq!(is_pair, has_pair, "{name}");
        }
    }
}

#[tokio::test]
async fn arguments_whose_names_models_refuse_reach_the_prompt_under_their_own() {
    let log = Log::new();
    let upstream = Upstream::modern(|asked| {
        let arguments = json!([{"name": "user name", "required": true}, {"name": "plain"}]);
        let prompts = json!([{"name": "a b", "arguments": arguments, "_meta": {"ui": {"x": 1}}}]);
        (asked.method() == "prompts/list").then(|| asked.list(&prompts))
    })
    .await;
    let gateway = Gateway::start(&(log.table() + EACH + &upstream.table("up"))).await;
    let client = gateway.client();
    let tools = client.ask("tools/list", json!({})).await["tools"].take();
    let tool = &tools[0];
    assert!(tool.get("_meta").is_none(), "hosts obey some metadata of tools: {tool}");
    let required = tool["inputSchema"]["required"][0].as_str().unwrap().to_owned();
    assert!(required.starts_with("user_name-") && required.len() == 26, "{required}");
    assert_eq!(tool["inputSchema"]["properties"][&required]["title"], "user name");
    let arguments = json!({required: "Ada", "plain": "x"});
    let result = call(&client, tool["name"].as_str().unwrap(), arguments).await;
    assert_eq!(texts(&result)[1], r#""a b" {"user name":"Ada","plain":"x"}"#);
    let missing = call(&client, tool["name"].as_str().unwrap(), json!({})).await;
    assert_eq!(missing["_meta"]["promptgate/reason"], "missing_argument");
    let received = log.wait_for("received").await;
    assert_eq!(received["name"], "up__a b", "not the name of its tool");
}

#[tokio::test]
async fn a_search_names_the_upstreams_that_are_missing() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let dead = "[upstreams.dead]\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/mcp\"\n";
    let gateway = Gateway::start(&(PAIR.to_owned() + dead + &upstream.table("up"))).await;
    let found = call(&gateway.client(), "find_prompt", json!({})).await;
    assert_eq!(found["_meta"]["promptgate/incomplete"][0]["upstream"], "dead");
    assert_eq!(names(&found["structuredContent"]["prompts"]), ["up__p"]);
}

#[tokio::test]
async fn an_argument_that_is_given_under_both_of_its_names_is_refused() {
    let upstream = Upstream::modern(|asked| {
        let arguments = json!([{"name": "a b"}, {"name": "c d", "required": true}]);
        (asked.method() == "prompts/list")
            .then(|| asked.list(&json!([{"name": "p", "arguments": arguments}])))
    })
    .await;
    let gateway = Gateway::start(&(EACH.to_owned() + &upstream.table("up"))).await;
    gateway.summary().await;
    let client = gateway.client();
    let tools = client.ask("tools/list", json!({})).await;
    let properties = tools["tools"][0]["inputSchema"]["properties"].as_object().unwrap();
    let [one, other] = <[&String; 2]>::try_from(properties.keys().collect::<Vec<_>>()).unwrap();
    let answer = async |arguments: Value| {
        let params = json!({"name": "up__p", "arguments": arguments});
        client.modern("tools/call", params).await.json().to_string()
    };
    let sent = answer(json!({one: "1", other: "2"})).await;
    assert!(sent.contains("a b") && sent.contains("c d"), "{sent}");
    let refused = answer(json!({"a b": "1", one: "1", other: "2"})).await;
    assert!(refused.contains("is given twice"), "{refused}");
}
