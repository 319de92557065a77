//! Telemetry: one get from its client's trace to the upstream, metrics that are scraped and pushed,
//! and a collector that is not there.

use std::fs;

use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::{Value, json};

use crate::support::collector::{Collector, attribute};
use crate::support::gateway::api_key;
use crate::support::{
    Client, Gateway, Process, Scripted, Server, ServerMode, Upstream, write_greeting,
};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const SECRET: &str = "pg_canary-of-the-client";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A running binary that tells this collector of everything, at once.
async fn told(collector_url: &str, toml: &str) -> (Process, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let audit = "[audit]\npath = \"\"\n[telemetry]\nservice_name = \"gate\"\n";
    fs::write(folder.path().join("gateway.toml"), format!("{audit}{toml}")).unwrap();
    let settings = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector_url),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
        ("OTEL_BLRP_SCHEDULE_DELAY", "20"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "50"),
    ];
    (Process::serve_env(folder.path(), &settings).await, folder)
}

/// The span of this kind and name.
async fn span(collector: &Collector, kind: i32, name: &str) -> Span {
    collector
        .until_some(|collector| {
            collector.spans().into_iter().find(|span| span.kind == kind && span.name == name)
        })
        .await
}

const SERVER: i32 = 2;
const CLIENT: i32 = 3;

#[tokio::test]
async fn a_get_is_one_trace_from_its_client_to_the_upstream() {
    let (collector, upstream) = (Collector::start().await, Upstream::with_prompts(&["p"]).await);
    let (process, _folder) =
        told(&collector.url(), &(upstream.table("up") + &api_key("ci", SECRET))).await;
    let client = process.client().with("Authorization", &format!("Bearer {SECRET}"));
    let list = client.names().await.0;
    assert_eq!(list, ["up__p"]);
    let meta = json!({"traceparent": PARENT, "tracestate": "congo=t61rcWkgMzE"});
    let params = json!({"name": "up__p", "arguments": {"who": "me"}, "_meta": meta});
    // The trace context of the body takes precedence over that of headers.
    let other = PARENT.replace("0af7", "0af8");
    client.clone().with("traceparent", &other).ask("prompts/get", params).await;

    let server = span(&collector, SERVER, "prompts/get up__p").await;
    let asked = span(&collector, CLIENT, "prompts/get p").await;
    assert_eq!(
        (hex(&server.trace_id).as_str(), hex(&server.parent_span_id).as_str()),
        (TRACE, "b7ad6b7169203331")
    );
    assert_eq!((&asked.trace_id, &asked.parent_span_id), (&server.trace_id, &server.span_id));
    assert_eq!(server.trace_state, "congo=t61rcWkgMzE");
    // The upstream stands below the gateway, in its body and in its headers.
    let got = upstream.received().into_iter().find(|a| a.method() == "prompts/get").unwrap();
    let expected = format!("00-{TRACE}-{}-01", hex(&asked.span_id));
    assert_eq!(got.message["params"]["_meta"]["traceparent"], expected.as_str());
    assert_eq!(got.header("traceparent"), Some(expected.as_str()));
    assert_eq!(got.header("tracestate"), Some("congo=t61rcWkgMzE"));

    let of = |span: &Span, key: &str| attribute(&span.attributes, key);
    for (key, value) in [
        ("mcp.method.name", "prompts/get"),
        ("mcp.protocol.version", "2026-07-28"),
        ("gen_ai.prompt.name", "up__p"),
        ("jsonrpc.request.id", "1"),
        ("network.transport", "tcp"),
        ("network.protocol.name", "http"),
        ("client.address", "127.0.0.1"),
    ] {
        assert_eq!(of(&server, key).as_deref(), Some(value), "{key}");
    }
    let port = upstream.addr.port().to_string();
    for (key, value) in [
        ("mcp.method.name", "prompts/get"),
        ("gen_ai.prompt.name", "p"),
        ("promptgate.upstream", "up"),
        ("server.address", "127.0.0.1"),
        ("server.port", &port),
    ] {
        assert_eq!(of(&asked, key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(collector.service().as_deref(), Some("gate"));

    // A failure is told by its reason, in the trace that headers name.
    let legacy = client.clone().legacy("2025-06-18").await.with("traceparent", PARENT);
    let unknown = crate::support::client::request(7, "prompts/get", json!({"name": "nobody"}));
    legacy.post(&unknown).await;
    let failed = span(&collector, SERVER, "prompts/get nobody").await;
    assert_eq!(of(&failed, "error.type").as_deref(), Some("unknown_prompt"));
    assert_eq!(of(&failed, "rpc.response.status_code").as_deref(), Some("-32602"));
    assert_eq!(hex(&failed.trace_id), TRACE);
    assert_eq!(of(&failed, "mcp.session.id").map(|id| id.len()), Some(16));
    let opened = span(&collector, SERVER, "initialize").await;
    assert_ne!(hex(&opened.trace_id), TRACE, "it came without a trace");
    // Its own walks are traces of their own.
    let walked = span(&collector, CLIENT, "prompts/list").await;
    assert_eq!(walked.parent_span_id, Vec::<u8>::new());

    let durations = async |name: &str, key: &str, value: &str| {
        collector
            .until_some(|collector| match collector.metric(name)?.data? {
                Data::Histogram(histogram) => histogram.data_points.into_iter().find(|point| {
                    let is = |key: &str, value: &str| {
                        attribute(&point.attributes, key).as_deref() == Some(value)
                    };
                    is("mcp.method.name", "prompts/get") && is(key, value)
                }),
                other => panic!("{other:?}"),
            })
            .await
    };
    let server = durations("mcp.server.operation.duration", "network.transport", "tcp").await;
    assert_eq!(attribute(&server.attributes, "gen_ai.prompt.name"), None);
    let first = server.explicit_bounds[..2].to_vec();
    assert_eq!((first, server.explicit_bounds.last()), (vec![0.00025, 0.0005], Some(&300.)));
    durations("mcp.client.operation.duration", "promptgate.upstream", "up").await;
    collector
        .until_some(|collector| {
            let log = collector.logs().into_iter().find(|log| log.severity_text == "INFO")?;
            log.body
        })
        .await;
    process.stop().await;
    // A10: nothing of the credential went to the collector or beyond.
    assert!(collector.heard_of("prompts/get up__p"));
    assert!(!collector.heard_of("canary-of-the-client"));
    assert!(!collector.heard_of("\"who\""));
}

#[tokio::test]
async fn a_failing_call_is_logged_in_its_trace_with_who_asked_and_what_the_upstream_sent() {
    let collector = Collector::start().await;
    let upstream = Upstream::modern(|asked| {
        let credential = asked.header("authorization").unwrap_or_default();
        let page = format!("<h1>Out of\u{1b}[31m ink</h1>\n{credential} {}", "x".repeat(4096));
        let html = vec![("Content-Type", "text/html".to_owned())];
        (asked.method() == "prompts/get").then(|| Scripted::Http(500, html, page.into_bytes()))
    })
    .await;
    let credential = "credential = { bearer = { value = \"canary-credential\" } }\n";
    let toml = upstream.table("up") + credential + &api_key("ci", SECRET);
    let (process, _folder) = told(&collector.url(), &toml).await;
    let client = process.client().with("Authorization", &format!("Bearer {SECRET}"));
    client.names().await;
    let params = json!({"name": "up__p", "_meta": {"traceparent": PARENT}});
    let error = client.ask_error("prompts/get", params).await;
    assert!(!error.to_string().contains("ink"), "{error}");
    let line = collector
        .until_some(|collector| {
            let is_failure = |log: &LogRecord| format!("{:?}", log.body).contains("call failed");
            collector.logs().into_iter().find(is_failure)
        })
        .await;
    let server = span(&collector, SERVER, "prompts/get up__p").await;
    assert_eq!((hex(&line.trace_id).as_str(), &line.span_id), (TRACE, &server.span_id));
    let of = |key: &str| attribute(&line.attributes, key);
    let id = error["data"]["correlationId"].as_str().unwrap();
    for (key, value) in [
        ("caller", "ci"),
        ("prompt", "up__p"),
        ("upstream", "up"),
        ("trace_id", TRACE),
        ("correlation", id),
    ] {
        assert_eq!(of(key).as_deref(), Some(value), "{key}");
    }
    let sent = of("error").unwrap();
    let begin = "the upstream responded with HTTP 500: <h1>Out of [31m ink</h1> [redacted] xx";
    assert!(sent.starts_with(begin), "{sent}");
    assert!(sent.len() < 400, "{sent}");
    process.stop().await;
}

#[tokio::test]
async fn what_an_upstream_repeats_of_an_argument_is_in_no_line_of_the_log() {
    let collector = Collector::start().await;
    let upstream = Upstream::modern(|asked| {
        let word = asked.message["params"]["arguments"]["word"].as_str().unwrap_or_default();
        let html = vec![("Content-Type", "text/html".to_owned())];
        (asked.method() == "prompts/get").then(|| match word {
            "canary-one" => asked.error(-32000, "no canary-one here"),
            word => Scripted::Http(500, html, format!("<h1>{word}</h1>").into_bytes()),
        })
    })
    .await;
    let (process, _folder) = told(&collector.url(), &upstream.table("up")).await;
    for (word, failure) in [("canary-one", "error -32000"), ("canary-two", "HTTP 500")] {
        let params = json!({"name": "up__p", "arguments": {"word": word}});
        process.client().ask_error("prompts/get", params).await;
        collector
            .until_some(|collector| {
                let is_failure = |log: &LogRecord| {
                    format!("{:?}", log.body).contains("call failed")
                        && attribute(&log.attributes, "error").is_some_and(|e| e.ends_with(failure))
                };
                collector.logs().into_iter().find(is_failure)
            })
            .await;
    }
    assert!(!collector.heard_of("canary-"));
    process.stop().await;
}

#[tokio::test]
async fn x5_a_collector_that_hangs_or_is_not_there_stops_neither_calls_nor_the_end() {
    let hanging = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    for addr in [hanging.local_addr().unwrap(), gone] {
        let upstream = Upstream::with_prompts(&["p"]).await;
        let (process, _folder) = told(&format!("http://{addr}"), &upstream.table("up")).await;
        for _ in 0..50 {
            process.client().ask("prompts/get", json!({"name": "up__p"})).await;
        }
        // Waits for the end, and that it is an orderly one.
        process.stop().await;
    }
}

/// The value of a series of which all these are part.
fn value(text: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let is_meant = |line: &&str| {
        let Some(rest) = line.strip_prefix(name) else {
            return false;
        };
        rest.starts_with(['{', ' ']) && labels.iter().all(|label| rest.contains(label))
    };
    let line = text.lines().find(is_meant)?;
    Some(line.rsplit(' ').next().unwrap().parse().unwrap())
}

async fn scrape(admin: &Client) -> String {
    let reply = admin.send("GET", "/metrics", &[], b"").await;
    assert_eq!(reply.status, 200);
    assert!(reply.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    String::from_utf8(reply.body).unwrap()
}

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_memory_of_child_processes_is_a_metric_and_names_follow_the_rules_of_prometheus() {
    let server = Server::start(ServerMode::Stdio).await;
    let gateway = Gateway::start(&(ADMIN.to_owned() + &server.table)).await;
    assert!(!gateway.client().names().await.0.is_empty());
    let text = scrape(&gateway.admin()).await;
    let memory = value(&text, "promptgate_children_memory_usage_bytes", &[]).unwrap();
    assert!(memory > 500_000.0, "{memory}");
    // As `promtool check metrics` wants them.
    let types: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    assert!(types.len() > 20, "{types:?}");
    for (name, kind) in types.iter().map(|line| line.split_once(' ').unwrap()) {
        let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
        assert_eq!(ends(&["_total"]), kind == "counter", "{name} {kind}");
        assert!(!ends(&["_count", "_sum", "_bucket"]), "{name} {kind}");
    }
}

#[tokio::test]
async fn metrics_tell_who_was_asked_for_what_and_what_was_refused() {
    let upstream = Upstream::with_prompts(&["p", "q", "secret"]).await;
    let toml = ADMIN.to_owned()
        + &api_key("ci", "ci")
        + &upstream.table("up")
        + "[[access.rules]]\nallow = [\"list\", \"get\"]\n\
           [[access.rules]]\ndeny = [\"get\"]\nprompts = [\"secret\"]\n\
           [[limits]]\nname = \"few\"\nper = [\"caller\", \"prompt\"]\nrate = \"2/h\"\nburst = 2\n";
    let gateway = Gateway::start(&toml).await;
    let client = gateway.client().with("X-API-Key", "ci");
    assert_eq!(client.names().await.0.len(), 3);
    let get = async |name: &str| client.modern("prompts/get", json!({"name": name})).await.json();
    for _ in 0..3 {
        get("up__p").await;
    }
    get("up__q").await;
    get("up__secret").await;
    get("up__nobody").await;
    gateway.client().modern("prompts/list", json!({})).await;
    client.clone().legacy("2025-06-18").await;
    let text = scrape(&gateway.admin()).await;
    let get = "mcp_method_name=\"prompts/get\"";
    let p = "gen_ai_prompt_name=\"up__p\"";
    for (name, labels, wanted) in [
        ("promptgate_prompt_uses_total", &[get, p, "promptgate_upstream=\"up\""][..], 2.),
        (
            "promptgate_refused_total",
            &["error_type=\"rate_limited\"", "promptgate_limit=\"few\""],
            1.,
        ),
        ("promptgate_refused_total", &["error_type=\"unauthorized\""], 1.),
        ("promptgate_denied_total", &[get], 1.),
        ("promptgate_sessions_created_total", &["mcp_protocol_version=\"2025-06-18\""], 1.),
        ("promptgate_catalog_prompts", &[], 3.),
        ("promptgate_upstream_prompts", &["promptgate_upstream=\"up\""], 3.),
        ("promptgate_upstream_up", &["promptgate_upstream=\"up\""], 1.),
        ("promptgate_upstream_breaker_open", &["promptgate_upstream=\"up\""], 0.),
        ("promptgate_upstream_queued", &["promptgate_upstream=\"up\""], 0.),
        ("promptgate_in_flight", &[], 0.),
        ("promptgate_streams", &[], 0.),
        ("mcp_server_operation_duration_seconds_count", &[get, "2026-07-28", "error_type"], 1.),
        ("promptgate_prompt_duration_seconds_count", &[p], 2.),
        ("promptgate_prompt_duration_seconds_bucket", &[p, "le=\"+Inf\""], 2.),
        ("mcp_client_operation_duration_seconds_count", &[get, "promptgate_upstream=\"up\""], 3.),
    ] {
        assert_eq!(value(&text, name, labels), Some(wanted), "{name} {labels:?}\n{text}");
    }
    assert!(value(&text, "promptgate_tasks", &[]).unwrap() > 0.);
    assert!(value(&text, "promptgate_upstream_list_age_seconds", &[]).is_some());
    // Names that nobody has, or may know of, make no series.
    assert!(!text.contains("nobody") && !text.contains("up__secret"), "{text}");
}

#[tokio::test]
async fn beyond_its_limit_prompts_are_counted_as_others() {
    let upstream = Upstream::with_prompts(&["a", "b", "c"]).await;
    let toml = ADMIN.to_owned() + "[telemetry]\nmax_prompts = 1\n" + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    for name in ["up__a", "up__b", "up__c"] {
        gateway.client().ask("prompts/get", json!({"name": name})).await;
    }
    let text = scrape(&gateway.admin()).await;
    let uses = |name: &str| {
        value(&text, "promptgate_prompt_uses_total", &[&format!("gen_ai_prompt_name=\"{name}\"")])
    };
    assert_eq!((uses("up__a"), uses("_other"), uses("up__b")), (Some(1.), Some(2.), None));
}

#[tokio::test]
async fn callers_and_unused_upstreams_make_no_series_without_bound() {
    let names: Vec<_> = (0..60).map(|n| format!("p{n}")).collect();
    let offered: Vec<_> = names.iter().map(String::as_str).collect();
    let upstream = Upstream::with_prompts(&offered).await;
    let unused = Upstream::with_prompts(&["p"]).await;
    let toml = ADMIN.to_owned()
        + "[telemetry]\nmax_prompts = 20\n"
        + &upstream.table("up")
        + &unused.table("unused");
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let admin = gateway.admin();
    let idle = scrape(&admin).await;
    let of_unused = |text: &str| text.lines().filter(|line| line.contains("\"unused\"")).count();
    // Its state, and that of its list.
    assert_eq!(of_unused(&idle), 4, "{idle}");
    for revision in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let client = gateway.client().legacy(revision).await;
        for name in &names {
            for name in [format!("up__{name}"), format!("none__{name}")] {
                let get = crate::support::client::request(1, "prompts/get", json!({"name": name}));
                client.post(&get).await;
            }
        }
    }
    scrape(&admin).await;
    let text = scrape(&admin).await;
    let of_prompts: Vec<_> =
        text.lines().filter(|line| line.contains("gen_ai_prompt_name")).collect();
    let multiplies = |line: &&&str| line.contains("mcp_protocol") || line.contains("error_type");
    assert_eq!(of_prompts.iter().find(multiplies), None);
    // Half of them were used often enough for a label: one line of uses, ten of the histogram.
    let labels = 10 + 1;
    assert!(of_prompts.len() <= labels * (1 + 10), "{}", of_prompts.len());
    assert_eq!(of_unused(&text), 4);
    let lines = text.lines().filter(|line| !line.starts_with('#')).count();
    let series = value(&text, "promptgate_metrics_series", &[]).unwrap();
    assert!((series - lines as f64).abs() < 3., "{series} of {lines}");
}

#[tokio::test]
async fn notices_reloads_and_definitions_are_counted() {
    let library = tempfile::tempdir().unwrap();
    let write = |text: &str| write_greeting(library.path(), text);
    write("one");
    let toml = format!(
        "{ADMIN}[listing]\ndebounce = \"10ms\"\n[upstreams.lib]\ntransport = \"library\"\npath = {:?}\n",
        library.path()
    );
    let gateway = Gateway::start(&toml).await;
    gateway.summary().await;
    let mut stream = gateway.client().listen().await;
    gateway.client().names().await;
    write("two");
    let changed: Value = stream.event().await.unwrap().json();
    assert_eq!(changed["method"], "notifications/prompts/list_changed");
    gateway.reload(&toml).await;
    let text = scrape(&gateway.admin()).await;
    assert!(value(&text, "promptgate_list_changed_sent_total", &[]).unwrap() >= 1.);
    assert_eq!(value(&text, "promptgate_definitions_changed_total", &["lib"]), Some(1.));
    assert_eq!(value(&text, "promptgate_config_reloads_total", &["applied"]), Some(1.));
    assert_eq!(value(&text, "promptgate_streams", &[]), Some(1.));
    assert!(value(&text, "promptgate_connections", &[]).unwrap() >= 1.);
}
