//! The export of the audit log, to collectors that fail in every way they can.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use audit::keys::Keys;
use audit::verify::TrustAnchors;
use audit::verify::exported::{ExportedLines, ExportedLogReport};
use base::seal::AuditKey;
use base::seal::hex::hex;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use prost::Message;
use serde_json::{Value as Json, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::audit::{KEY, Log, check, text};
use crate::support::collector::attribute;
use crate::support::{Gateway, PATIENCE, Process, Scripted, Upstream, eventually};

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

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn accepted() -> Scripted {
    Scripted::Http(200, vec![("Content-Type", "application/x-protobuf".to_owned())], vec![])
}

impl Receiver {
    /// Starts a collector with a treatment of the first requests; it accepts the others.
    async fn start(script: &[Treatment]) -> Self {
        let mut script = script.to_vec();
        script.reverse();
        let script = Mutex::new(script);
        Self::judging(move |_| script.lock().unwrap().pop().unwrap_or(Treatment::Accept)).await
    }

    /// Starts a collector that treats requests with a record that contains `text` in this way.
    async fn treating(treatment: Treatment, text: &'static str) -> Self {
        Self::judging(move |records| {
            match records.iter().any(|record| body(record).contains(text)) {
                true => treatment,
                false => Treatment::Accept,
            }
        })
        .await
    }

    async fn judging(judge: impl Fn(&[LogRecord]) -> Treatment + Send + Sync + 'static) -> Self {
        let kept: Arc<Mutex<Vec<Vec<LogRecord>>>> = Arc::default();
        let keeping = kept.clone();
        let server = Upstream::start(move |asked| {
            assert_eq!(asked.path, "/v1/logs");
            assert_eq!(asked.header("x-token"), Some("s3cret"));
            let request = ExportLogsServiceRequest::decode(&asked.body[..]).expect("logs");
            let scopes = request.resource_logs.into_iter().flat_map(|r| r.scope_logs);
            let records = scopes.flat_map(|scope| scope.log_records);
            // A test record belongs to no log.
            let records: Vec<_> =
                records.filter(|record| record.event_name != "promptgate.audit.test").collect();
            match judge(&records) {
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
        self.until_all(&log.text()).await;
    }

    /// Waits until these lines of a log have arrived.
    async fn until_all(&self, text: &str) {
        let expected: Vec<String> = text.lines().map(str::to_owned).collect();
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
        Treatment::LoseAcknowledgement,
        Treatment::Status(503),
        Treatment::Hang,
        Treatment::RefusePart,
        Treatment::Status(429),
        Treatment::Status(401),
    ])
    .await;
    let toml = log.table() + &receiver.table("batch = 4\n") + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    for _ in 0..5 {
        let meta = json!({"traceparent": TRACE});
        let params = json!({"name": "up__p", "_meta": meta});
        gateway.client().ask("prompts/get", params).await;
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
    for record in [received, receiver.find("completed")] {
        assert_eq!(&hex(&record.trace_id), &TRACE[3..35], "{record:?}");
    }
}

#[tokio::test]
async fn a_record_that_is_refused_for_good_is_passed_over_and_the_log_says_so() {
    let refusals = [Treatment::Status(400), Treatment::Status(413), Treatment::Status(422)];
    for refusal in refusals.into_iter().chain([Treatment::RefusePart]) {
        let log = Log::new();
        let upstream = Upstream::with_prompts(&["p", "bad"]).await;
        let receiver = Receiver::treating(refusal, "\"name\":\"up__bad\"").await;
        let toml = "[admin]\nlisten = \"127.0.0.1:0\"\n".to_owned()
            + &log.table()
            + &receiver.table("")
            + &upstream.table("up");
        let gateway = Gateway::start(&toml).await;
        for name in ["up__p", "up__bad", "up__p", "up__bad", "up__p"] {
            gateway.client().ask("prompts/get", json!({"name": name})).await;
        }
        let status = async || gateway.admin().send("GET", "/api/v1/status", &[], b"").await.json();
        let status = eventually(status, |status| status["auditExport"]["refused"] == 2).await;
        assert_eq!(status["audit"], "written");
        gateway.drain().await;
        let refused: Vec<u64> = log
            .of("received")
            .iter()
            .filter(|record| record["name"] == "up__bad")
            .map(|record| record["seq"].as_u64().unwrap())
            .collect();
        let said: Vec<u64> =
            log.of("export_refused").iter().map(|r| r["record"].as_u64().unwrap()).collect();
        assert_eq!((&said, said.len()), (&refused, 2));
        // The rest of the log comes after a restart.
        let gateway = Gateway::start(&toml).await;
        let text = log.text();
        let others = text.lines().filter(|line| !line.contains("\"name\":\"up__bad\""));
        receiver.until_all(&others.collect::<Vec<_>>().join("\n")).await;
        drop(gateway);
        let reports = verified(&exported(&[&receiver.lines()]));
        let [ExportedLogReport { report, .. }] = &reports[..] else { panic!("{reports:?}") };
        assert_eq!((&report.mistakes[..], &report.refused), (&[][..], &refused));
    }
}

#[tokio::test]
async fn a_collector_that_refuses_everything_is_waited_for() {
    let log = Log::new();
    let upstream = Upstream::with_prompts(&["p"]).await;
    let script: Vec<_> = std::iter::repeat_n(Treatment::Status(400), 12).collect();
    let receiver = Receiver::start(&script).await;
    let toml = log.table() + &receiver.table("batch = 4\n") + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    receiver.until_all_of(&log).await;
    assert_eq!(log.of("export_refused"), Vec::<serde_json::Value>::new());
}

#[tokio::test]
async fn the_rest_of_a_replaced_log_arrives_after_a_restart_and_before_the_log_that_continues_it() {
    let logs = [Log::new(), Log::new(), Log::new()];
    let upstream = Upstream::with_prompts(&["p"]).await;
    let dead = Receiver::start(&[Treatment::Status(503); 1_000]).await;
    let toml = |log: &Log, to: &Receiver| log.table() + &to.table("") + &upstream.table("up");
    let gateway = Gateway::start(&toml(&logs[0], &dead)).await;
    gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    for log in &logs[1..] {
        gateway.reload(&toml(log, &dead)).await;
        gateway.client().ask("prompts/get", json!({"name": "up__p"})).await;
    }
    gateway.drain().await;
    assert_eq!(dead.lines(), Vec::<String>::new());
    let receiver = Receiver::start(&[]).await;
    let gateway = Gateway::start(&toml(&logs[2], &receiver)).await;
    for log in &logs {
        receiver.until_all_of(log).await;
    }
    drop(gateway);
    let lines = receiver.lines();
    let reports = verified(&exported(&[&lines]));
    assert_eq!(reports.len(), 3);
    for ExportedLogReport { report, .. } in &reports {
        assert_eq!((report.first, &report.mistakes[..]), (1, &[][..]));
    }
    let place = |text: &str| lines.iter().position(|line| line.contains(text)).unwrap();
    let first = |log: &Log| log.records()[0]["instance"].as_str().unwrap().to_owned();
    assert!(logs.iter().map(|log| place(&first(log))).is_sorted(), "oldest first: {lines:#?}");
}

#[tokio::test]
async fn three_replicas_into_one_collector_are_whole_in_one_file() {
    let logs = [Log::new(), Log::new(), Log::new()];
    let upstream = Upstream::with_prompts(&["p"]).await;
    let receiver = Receiver::start(&[Treatment::LoseAcknowledgement, Treatment::Status(503)]).await;
    let start = |log: &Log| log.table() + &receiver.table("batch = 5\n") + &upstream.table("up");
    let mut replicas = Vec::new();
    for log in &logs {
        replicas.push(Gateway::start(&start(log)).await);
    }
    for _ in 0..4 {
        for replica in &replicas {
            replica.client().ask("prompts/get", json!({"name": "up__p"})).await;
        }
    }
    for log in &logs {
        receiver.until_all_of(log).await;
    }
    drop(replicas);
    let reports = verified(&exported(&[&receiver.lines()]));
    assert_eq!(reports.len(), 3);
    for ExportedLogReport { report, .. } in &reports {
        assert_eq!((report.first, &report.mistakes[..]), (1, &[][..]));
        assert!(report.records >= 9, "{report:?}");
    }
}

/// Kills of the drill; more by the environment.
fn kills() -> usize {
    let kills = std::env::var("PROMPTGATE_KILL_ROUNDS").ok();
    kills.map_or(3, |kills| kills.parse().expect("PROMPTGATE_KILL_ROUNDS is a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_whenever_it_is_killed_every_record_on_the_disk_arrives_and_counts_once() {
    const CLIENTS: usize = 8;
    let upstream = Upstream::with_prompts(&["p"]).await;
    let receiver = Receiver::start(&[Treatment::LoseAcknowledgement; 3]).await;
    let folder = tempfile::tempdir().unwrap();
    let toml = format!(
        "[audit]\nkey = {{ value = \"{KEY}\" }}\nsegment_size = \"16KiB\"\n\
         checkpoint = {{ records = 50 }}\nsync = \"20ms\"\n{}{}",
        receiver.table("batch = 20\n"),
        upstream.patient_table("up")
    );
    std::fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    for round in 0..kills() {
        let process = Process::serve(folder.path()).await;
        let answered = watch::Sender::new(0_usize);
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let (client, answered) = (process.client(), answered.clone());
            clients.spawn(async move {
                let params = json!({"name": "up__p"});
                while client.try_modern("prompts/get", params.clone()).await.is_some() {
                    answered.send_modify(|count| *count += 1);
                }
            });
        }
        // Another place in each round: between batches, syncs, segments and checkpoints.
        let mut counted = answered.subscribe();
        let reached = counted.wait_for(|count| *count >= 5 + (round * 37) % 200);
        timeout(PATIENCE, reached).await.expect("calls are answered").unwrap();
        process.kill().await;
        while clients.join_next().await.is_some() {}
    }
    let process = Process::serve(folder.path()).await;
    let path = folder.path().join("audit");
    receiver.until_all(&text(&path)).await;
    process.stop().await;
    let last = check(&path).last;
    let reports = verified(&exported(&[&receiver.lines()]));
    let [ExportedLogReport { repeated, report, .. }] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!((report.first, &report.mistakes[..]), (1, &[][..]));
    // The process that ends has written its last records after the last batch.
    assert!(report.last + 10 > last && *repeated > 0, "{} of {last}, {repeated}", report.last);
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

#[test]
fn the_files_for_collectors_take_each_record_to_its_store_without_a_queue_in_memory() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/collectors");
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let stores = [("object-storage", "awss3"), ("siem", "splunk_hec"), ("database", "clickhouse")];
    for (file, store) in stores {
        let text = read(&format!("{file}.yaml"));
        let file: Json = serde_saphyr::from_str(&text).unwrap();
        let receiver = &file["receivers"]["otlp"]["protocols"]["http"]["endpoint"];
        assert_eq!(receiver, "0.0.0.0:4318", "the port that docs/audit.md names");
        let exporter = &file["exporters"][store];
        assert_eq!(exporter["sending_queue"], json!({"enabled": false}), "{text}");
        let pipeline = json!({"receivers": ["otlp"], "exporters": [store]});
        assert_eq!(file["service"]["pipelines"], json!({"logs": pipeline}));
    }
    assert_eq!(
        serde_saphyr::from_str::<Json>(&read("object-storage.yaml")).unwrap()["exporters"]["awss3"]
            ["marshaler"],
        "otlp_json",
        "lines that `audit verify --from` reads"
    );
    // The queries name events and members that there are.
    let manual = std::fs::read_to_string(root.join("../../docs/audit.md")).unwrap();
    let sql = read("database.sql");
    let names: Vec<_> = sql.split('\'').skip(1).step_by(2).collect();
    let known = |name: &&str| {
        let is_of_the_query = ["X", "Y", "promptgate.audit"].contains(name);
        is_of_the_query
            || ["name", "caller", "denied", "instance"].contains(name)
            || manual.contains(&format!("`{name}`"))
            || manual.contains(&format!("\"{name}\""))
    };
    assert!(names.len() > 15, "{names:?}");
    assert_eq!(
        names.into_iter().filter(|name| !known(name)).collect::<Vec<_>>(),
        Vec::<&str>::new()
    );
}
