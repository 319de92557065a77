//! The export of the audit log, to collectors that fail in every way they can.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use audit::keys::Keys;
use audit::verify::TrustAnchors;
use audit::verify::exported::{ExportedLines, ExportedLogReport};
use base::seal::AuditKey;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use prost::Message;
use serde_json::json;

use super::audit::{KEY, Log};
use crate::support::collector::attribute;
use crate::support::{Gateway, Scripted, Upstream, eventually};

/// A collector that keeps records, and answers each request as a script says.
struct Receiver {
    server: Upstream,
    /// The records of each request that was kept.
    kept: Arc<Mutex<Vec<Vec<LogRecord>>>>,
}

/// The treatment of one request.
#[derive(Clone, Copy)]
enum Treatment {
    Accept,
    /// The records are kept, and the acknowledgement is lost.
    LoseAcknowledgement,
    Hang,
    RefusePart,
    Status(u16),
}

fn accepted() -> Scripted {
    Scripted::Http(200, vec![("Content-Type", "application/x-protobuf".to_owned())], vec![])
}

impl Receiver {
    /// Starts a collector with a treatment of the first requests; it accepts the others.
    async fn start(script: &[Treatment]) -> Self {
        let kept: Arc<Mutex<Vec<Vec<LogRecord>>>> = Arc::default();
        let keeping = kept.clone();
        let mut script = script.to_vec();
        script.reverse();
        let script = Mutex::new(script);
        let server = Upstream::start(move |asked| {
            assert_eq!(asked.path, "/v1/logs");
            assert_eq!(asked.header("x-token"), Some("s3cret"));
            let request = ExportLogsServiceRequest::decode(&asked.body[..]).expect("logs");
            let scopes = request.resource_logs.into_iter().flat_map(|r| r.scope_logs);
            let records = scopes.flat_map(|scope| scope.log_records).collect();
            let treatment = script.lock().unwrap().pop().unwrap_or(Treatment::Accept);
            match treatment {
                Treatment::Accept => keeping.lock().unwrap().push(records),
                Treatment::LoseAcknowledgement => {
                    keeping.lock().unwrap().push(records);
                    return Scripted::Break(vec![]);
                }
                Treatment::Hang => return Scripted::Stall(vec![]),
                Treatment::RefusePart => {
                    let error_message = "a record is too old".to_owned();
                    let partial =
                        ExportLogsPartialSuccess { rejected_log_records: 1, error_message };
                    let response = ExportLogsServiceResponse { partial_success: Some(partial) };
                    return Scripted::Http(200, vec![], response.encode_to_vec());
                }
                Treatment::Status(status) => {
                    let wait = vec![("Retry-After", "0".to_owned())];
                    return Scripted::Http(status, wait, vec![]);
                }
            }
            accepted()
        })
        .await;
        Self { server, kept }
    }

    /// `[audit.export]` to this collector; `more` belongs to it.
    fn table(&self, more: &str) -> String {
        format!(
            "[audit.export]\nendpoint = \"http://{}\"\ninterval = \"20ms\"\ntimeout = \"300ms\"\n\
             headers = {{ x-token = {{ value = \"s3cret\" }} }}\n{more}",
            self.server.addr
        )
    }

    fn lines(&self) -> Vec<String> {
        let kept = self.kept.lock().unwrap();
        kept.iter().flatten().map(body).collect()
    }

    /// Waits until all lines have arrived that the log has by now.
    async fn until_all_of(&self, log: &Log) {
        let expected: Vec<String> = log.text().lines().map(str::to_owned).collect();
        assert!(!expected.is_empty());
        self.server
            .until_some(|| {
                let arrived: HashSet<_> = self.lines().into_iter().collect();
                expected.iter().all(|line| arrived.contains(line)).then_some(())
            })
            .await;
    }

    fn find(&self, event: &str) -> LogRecord {
        let kept = self.kept.lock().unwrap();
        let named = |record: &&LogRecord| record.event_name == format!("promptgate.audit.{event}");
        kept.iter().flatten().find(named).cloned().unwrap()
    }
}

fn body(record: &LogRecord) -> String {
    let Some(Value::StringValue(line)) = record.body.clone().unwrap().value else {
        panic!("{record:?}")
    };
    line
}

/// Lines as the file exporter of a collector writes them, a request each.
fn exported(requests: &[&[String]]) -> String {
    let file = requests.iter().map(|lines| {
        let record = |line: &String| json!({"body": {"stringValue": line}, "attributes": [
            {"key": "promptgate.name", "value": {"stringValue": line.replace("\"seq\":", "\"seq\":9")}},
        ]});
        let records: Vec<_> = lines.iter().map(record).collect();
        let scopes = json!([{"scope": {"name": "promptgate.audit"}, "logRecords": records}]);
        json!({"resourceLogs": [{"scopeLogs": scopes}]}).to_string() + "\n"
    });
    file.collect()
}

fn verified(file: &str) -> Vec<ExportedLogReport> {
    let keys = Keys::new(&AuditKey::parse(KEY).unwrap());
    let secret = TrustAnchors { keys: Some(keys.into()), ..TrustAnchors::default() };
    ExportedLines::read(file.as_bytes()).unwrap().verify(&secret)
}

#[tokio::test]
async fn every_record_arrives_byte_for_byte_and_in_order_whatever_the_collector_does() {
    let log = Log::new();
    let upstream = Upstream::with_prompts(&["p"]).await;
    let receiver = Receiver::start(&[
        Treatment::Status(503),
        Treatment::Hang,
        Treatment::RefusePart,
        Treatment::LoseAcknowledgement,
        Treatment::Status(429),
        Treatment::Status(400),
    ])
    .await;
    let toml = log.table() + &receiver.table("batch = 4\n") + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    for _ in 0..5 {
        gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    }
    receiver.until_all_of(&log).await;
    let lines = receiver.lines();
    let reports = verified(&exported(&[&lines]));
    let [ExportedLogReport { repeated, report, .. }] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!(report.mistakes, [], "{lines:#?}");
    assert!(*repeated >= 1, "the batch without acknowledgement came twice");
    let sequence: Vec<u64> = lines
        .iter()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["seq"].as_u64())
        .collect();
    let mut seen = HashSet::new();
    let firsts: Vec<u64> = sequence.iter().copied().filter(|seq| seen.insert(*seq)).collect();
    assert!(firsts[0] == 1 && firsts.is_sorted(), "in order, but for repetitions: {sequence:?}");
    let received = receiver.find("received");
    let attribute = |key| attribute(&received.attributes, key).unwrap_or_default();
    assert_eq!(attribute("mcp.method.name"), "prompts/get");
    assert_eq!(attribute("gen_ai.prompt.name"), "up__p");
    assert_eq!(attribute("promptgate.decision"), "allowed");
    assert!(received.time_unix_nano > 0 && attribute("promptgate.mac").is_empty());
}

#[tokio::test]
async fn a_restart_and_a_reload_go_on_behind_the_last_accepted_record() {
    let log = Log::new();
    let upstream = Upstream::with_prompts(&["p"]).await;
    let first = Receiver::start(&[]).await;
    let second = Receiver::start(&[]).await;
    let toml = |receiver: &Receiver| log.table() + &receiver.table("") + &upstream.table("up");
    let gateway = Gateway::start(&toml(&first)).await;
    gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    first.until_all_of(&log).await;
    gateway.reload(&toml(&second)).await;
    gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    let last = log.wait_for("config_reloaded").await["seq"].to_string();
    second
        .server
        .until_some(|| second.lines().last().filter(|l| l.contains("completed")).cloned())
        .await;
    gateway.drain().await;
    let third = Receiver::start(&[]).await;
    let gateway = Gateway::start(&toml(&third)).await;
    third
        .server
        .until_some(|| third.lines().iter().any(|l| l.contains("config_loaded")).then_some(()))
        .await;
    drop(gateway);
    let all = [first.lines(), second.lines(), third.lines()];
    assert!(!all[1].iter().any(|line| line.starts_with("{\"seq\":1,")), "{last}: {:#?}", all[1]);
    assert!(!all[2].iter().any(|line| line.starts_with("{\"seq\":1,")), "{:#?}", all[2]);
    // Mixed, in any order, and the middle a second time.
    let reports = verified(&exported(&[&all[2], &all[1], &all[0], &all[1]]));
    let [ExportedLogReport { repeated, report, .. }] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!((report.first, &report.mistakes[..]), (1, &[][..]));
    assert!(*repeated >= all[1].len() as u64, "{repeated}");
    let reports = verified(&exported(&[&all[2], &all[0]]));
    assert!(reports[0].report.mistakes[0].what.contains("are missing"), "{reports:?}");
    let changed = exported(&[&all[0]]).replacen("up__p", "up__q", 1);
    assert!(verified(&changed)[0].report.mistakes[0].what.contains("was changed"));
}

#[tokio::test]
async fn a_collector_that_is_down_delays_the_export_and_no_get_and_the_status_says_so() {
    let log = Log::new();
    let upstream = Upstream::with_prompts(&["p"]).await;
    let receiver = Receiver::start(&[Treatment::Status(500); 1_000]).await;
    let toml = "[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned()
        + &log.table()
        + &receiver.table("")
        + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    let status = async || gateway.admin().send("GET", "/api/v1/status", &[], b"").await.json();
    gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    let failing = |status: &serde_json::Value| status["auditExport"]["error"] == "HTTP 500";
    let status = eventually(status, failing).await;
    assert_eq!(status["auditExport"]["lastSuccess"], json!(null));
    assert_eq!(status["audit"], "written", "the log does not wait for the collector");
    gateway.drain().await;
    assert_eq!(receiver.lines(), Vec::<String>::new());
}
