//! Lines of a log as log records of OpenTelemetry (OTLP 1.x, `logs.proto`).

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;

use crate::record::RecordLine;
use base::seal::hex::from_hex;
use domain::json::JsonKind;

/// Names of attributes in the semantic conventions, by the members of records; other members have
/// the prefix `promptgate.`.
const CONVENTIONS: [(&str, &str); 2] = [("caller", "enduser.id"), ("address", "client.address")];

/// The same for members that mean something else in records without a method.
const OF_CALLS: [(&str, &str); 2] = [("method", "mcp.method.name"), ("name", "gen_ai.prompt.name")];

/// Members that the log record states elsewhere.
const ELSEWHERE: [&str; 4] = ["time", "event", "traceparent", "mac"];

const SCOPE: &str = "promptgate.audit";

/// Returns the request that sends lines of a log, in their order (`ExportLogsServiceRequest`).
pub(super) fn request(service: &str, instance: &str, lines: &[Vec<u8>], now: SystemTime) -> Bytes {
    let records = lines.iter().filter_map(|line| log_record(line, now)).collect();
    enveloped(service, instance, records)
}

/// Returns the request that tests a collector: a single log record that belongs to no log.
pub(super) fn test_request(service: &str, now: SystemTime) -> Bytes {
    let test = LogRecord {
        time_unix_nano: nanoseconds(now),
        event_name: format!("{SCOPE}.test"),
        body: Some(text("a test of `promptgate check --dial`; it belongs to no audit log")),
        ..LogRecord::default()
    };
    enveloped(service, "", vec![test])
}

fn enveloped(service: &str, instance: &str, log_records: Vec<LogRecord>) -> Bytes {
    let attributes =
        vec![attribute("service.name", service), attribute("service.instance.id", instance)];
    let scope = InstrumentationScope { name: SCOPE.to_owned(), ..InstrumentationScope::default() };
    let scope_logs = ScopeLogs { scope: Some(scope), log_records, ..ScopeLogs::default() };
    let resource = Some(Resource { attributes, ..Resource::default() });
    let logs = ResourceLogs { resource, scope_logs: vec![scope_logs], ..ResourceLogs::default() };
    ExportLogsServiceRequest { resource_logs: vec![logs] }.encode_to_vec().into()
}

/// Returns how many log records a collector has refused, and why; `None` if it has accepted all.
/// A response that is no message of OTLP refuses nothing: its status says success.
pub(super) fn refused(response: &[u8]) -> Option<(i64, String)> {
    let partial = ExportLogsServiceResponse::decode(response).ok()?.partial_success?;
    let refused = partial.rejected_log_records;
    (refused > 0).then_some((refused, partial.error_message))
}

fn log_record(line: &[u8], now: SystemTime) -> Option<LogRecord> {
    let read = RecordLine::read(line)?;
    // The header of a segment has no event.
    let event = read.string("event").unwrap_or_else(|| "segment".to_owned());
    let of_calls = if read.json.get("method").is_some() { &OF_CALLS[..] } else { &[] };
    let attributes = read.json.members().filter_map(|(name, value)| {
        let name = name.as_str()?;
        let value = match value.kind() {
            JsonKind::String => Value::StringValue(value.as_str()?.into_owned()),
            JsonKind::Number => Value::IntValue(value.text().parse().ok()?),
            JsonKind::Bool => Value::BoolValue(value.as_bool()?),
            // Lists and objects are in the body.
            _ => return None,
        };
        if ELSEWHERE.contains(&&*name) {
            return None;
        }
        let convention = CONVENTIONS.iter().chain(of_calls).find(|(member, _)| *member == &*name);
        let key = convention.map_or_else(|| format!("promptgate.{name}"), |(_, key)| (*key).into());
        Some(KeyValue { key, value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() })
    });
    let error = read.string("outcome").filter(|outcome| outcome != "ok");
    let error = error.map(|error| attribute("error.type", &error));
    let (trace_id, span_id) = trace(&read).unwrap_or_default();
    Some(LogRecord {
        time_unix_nano: read.time().map(nanoseconds).unwrap_or_default(),
        observed_time_unix_nano: nanoseconds(now),
        severity_number: SeverityNumber::Info.into(),
        event_name: format!("{SCOPE}.{event}"),
        attributes: attributes.chain(error).collect(),
        body: Some(text(std::str::from_utf8(line).ok()?)),
        trace_id,
        span_id,
        ..LogRecord::default()
    })
}

/// Returns the trace and the span of the caller, from `traceparent` (W3C Trace Context, 3.2).
fn trace(line: &RecordLine<'_>) -> Option<(Vec<u8>, Vec<u8>)> {
    let parent = line.string("traceparent")?;
    let mut fields = parent.split('-').skip(1);
    let trace: [u8; 16] = from_hex(fields.next()?)?;
    let span: [u8; 8] = from_hex(fields.next()?)?;
    Some((trace.to_vec(), span.to_vec()))
}

fn attribute(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(text(value)), ..KeyValue::default() }
}

fn text(text: &str) -> AnyValue {
    AnyValue { value: Some(Value::StringValue(text.to_owned())) }
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
