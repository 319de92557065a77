//! A collector of telemetry: takes OTLP over HTTP and keeps what it says, read by the official
//! definitions.

use std::io::Read;
use std::sync::{Arc, Mutex};

use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use super::{Scripted, Upstream};

/// The received exports.
#[derive(Default)]
struct Arrived {
    spans: Vec<Span>,
    /// Of the last push.
    metrics: Vec<Metric>,
    logs: Vec<LogRecord>,
    service: Option<String>,
    /// Everything, as it came.
    bytes: Vec<u8>,
}

pub struct Collector {
    server: Upstream,
    arrived: Arc<Mutex<Arrived>>,
}

impl Collector {
    pub async fn start() -> Self {
        let arrived: Arc<Mutex<Arrived>> = Arc::default();
        let kept = arrived.clone();
        let server = Upstream::start(move |asked| {
            assert_eq!(asked.header("content-encoding"), Some("gzip"));
            let mut body = Vec::new();
            GzDecoder::new(&asked.body[..]).read_to_end(&mut body).unwrap();
            kept.lock().unwrap().take(&asked.path, &body);
            let protobuf = ("Content-Type", "application/x-protobuf".to_owned());
            Scripted::Http(200, vec![protobuf], vec![])
        })
        .await;
        Self { server, arrived }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.server.addr)
    }

    /// Waits until `look` finds something in what has arrived, and returns it.
    #[track_caller]
    pub fn until_some<T>(
        &self,
        mut look: impl FnMut(&Self) -> Option<T>,
    ) -> impl Future<Output = T> {
        self.server.until_some(move || look(self))
    }

    pub fn spans(&self) -> Vec<Span> {
        self.arrived.lock().unwrap().spans.clone()
    }

    pub fn metric(&self, name: &str) -> Option<Metric> {
        self.arrived.lock().unwrap().metrics.iter().find(|metric| metric.name == name).cloned()
    }

    pub fn logs(&self) -> Vec<LogRecord> {
        self.arrived.lock().unwrap().logs.clone()
    }

    /// Whom it all came from.
    pub fn service(&self) -> Option<String> {
        self.arrived.lock().unwrap().service.clone()
    }

    /// Whether this text stood anywhere in it.
    pub fn heard_of(&self, text: &str) -> bool {
        let arrived = self.arrived.lock().unwrap();
        arrived.bytes.windows(text.len()).any(|window| window == text.as_bytes())
    }
}

impl Arrived {
    fn take(&mut self, path: &str, body: &[u8]) {
        self.bytes.extend_from_slice(body);
        match path {
            "/v1/traces" => {
                let request = ExportTraceServiceRequest::decode(body).expect("spans");
                for resource in request.resource_spans {
                    let attributes = resource.resource.unwrap_or_default().attributes;
                    self.service = attribute(&attributes, "service.name");
                    self.spans.extend(resource.scope_spans.into_iter().flat_map(|s| s.spans));
                }
            }
            "/v1/metrics" => {
                let request = ExportMetricsServiceRequest::decode(body).expect("metrics");
                let scopes = request.resource_metrics.into_iter().flat_map(|r| r.scope_metrics);
                self.metrics = scopes.flat_map(|scope| scope.metrics).collect();
            }
            "/v1/logs" => {
                let request = ExportLogsServiceRequest::decode(body).expect("logs");
                let scopes = request.resource_logs.into_iter().flat_map(|r| r.scope_logs);
                self.logs.extend(scopes.flat_map(|scope| scope.log_records));
            }
            other => panic!("{other}"),
        }
    }
}

/// The text of an attribute, if it is there.
pub fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    let value = attributes.iter().find(|attribute| attribute.key == key)?.value.clone()?.value?;
    Some(match value {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        Value::BoolValue(flag) => flag.to_string(),
        other => panic!("{other:?}"),
    })
}
