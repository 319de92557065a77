//! The collector: sends one request at a time, and says what became of it.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use tokio::time::timeout;

use super::otlp;
use base::platform::wall_clock;
use config::Proxies;
use domain::address_policy::AddressPolicy;
use domain::fault::{UpstreamFaultKind, sanitised};
use net::egress::{CONNECT, Egress};
use net::{retry_after, root_cause};

/// The client for one collector.
pub(super) struct Collector {
    config: config::AuditExport,
    egress: Egress,
}

/// Why the collector has not accepted all records.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Refusal {
    /// The reason, for an operator.
    pub why: String,
    /// The wait that the collector demands.
    pub retry_after: Option<Duration>,
    /// Whether the refusal is about the records: other ones could be accepted.
    pub is_of_records: bool,
}

/// The limit of a response, in bytes: far above the largest partial-success message.
const MAX_RESPONSE: usize = 64 << 10;

/// The longest wait that a collector can demand.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// The limit of a message of the collector, in characters.
const MAX_SHOWN: usize = 200;

impl Collector {
    pub(super) fn new(config: config::AuditExport, proxies: &Proxies) -> Result<Self, String> {
        let policy = AddressPolicy::NotLinkLocal;
        let egress = Egress::pooled(1, CONNECT, None, policy, Some(proxies))?;
        Ok(Self { config, egress })
    }

    /// Sends an encoded request, and waits for its outcome for at most the configured time.
    pub(super) async fn send(&self, request: Bytes) -> Result<(), Refusal> {
        let http = self.request(request).map_err(Refusal::of)?;
        let sending = async {
            let sent = self.egress.send(http).await;
            let (head, body) =
                sent.map_err(|fault: UpstreamFaultKind| fault.diagnosis())?.into_parts();
            let body = Limited::new(body, MAX_RESPONSE).collect().await;
            let body = body.map_err(|error| root_cause(error.as_ref()))?;
            Ok((head, body.to_bytes()))
        };
        match timeout(self.config.timeout, sending).await {
            Ok(Ok((head, body))) => outcome(head.status, &head.headers, &body, wall_clock()),
            Ok(Err(why)) => Err(Refusal::of(why)),
            Err(_) => Err(Refusal::of("no response in time (audit.export.timeout)".to_owned())),
        }
    }

    fn request(&self, request: Bytes) -> Result<Request<Full<Bytes>>, String> {
        let uri = format!("{}/v1/logs", self.config.endpoint);
        let mut http = Request::builder().method(Method::POST).uri(uri);
        http = http.header(CONTENT_TYPE, "application/x-protobuf");
        for (name, value) in &self.config.headers {
            let mut value = HeaderValue::from_str(value.expose()).map_err(|e| e.to_string())?;
            value.set_sensitive(true);
            http = http.header(name, value);
        }
        http.body(Full::new(request)).map_err(|error| error.to_string())
    }
}

impl Refusal {
    pub(super) fn of(why: String) -> Self {
        Self { why, ..Self::default() }
    }
}

/// Returns what a response says of the records (OTLP 1.x, "OTLP/HTTP response").
fn outcome(
    status: StatusCode,
    headers: &http::HeaderMap,
    body: &[u8],
    now: SystemTime,
) -> Result<(), Refusal> {
    if status.is_success() {
        let Some((count, message)) = otlp::refused(body) else { return Ok(()) };
        let message = sanitised(&message, MAX_SHOWN);
        let why = format!("the collector refuses {count} records: {message}");
        return Err(Refusal { is_of_records: true, ..Refusal::of(why) });
    }
    let retry_after = retry_after(headers, now).map(Duration::from_secs);
    Err(Refusal {
        why: format!("HTTP {}", status.as_u16()),
        retry_after: retry_after.map(|wait| wait.min(MAX_RETRY_AFTER)),
        // Such a request must not be repeated (OTLP 1.x, "Failures").
        is_of_records: matches!(status.as_u16(), 400 | 413 | 422),
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use http::header::RETRY_AFTER;
    use opentelemetry_proto::tonic::collector::logs::v1::{
        ExportLogsPartialSuccess, ExportLogsServiceResponse,
    };
    use prost::Message;

    use super::*;

    fn answered(status: u16, headers: &HeaderMap, body: &[u8]) -> Result<(), Refusal> {
        outcome(StatusCode::from_u16(status).unwrap(), headers, body, SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn only_a_success_without_refused_records_accepts_a_request() {
        let none = HeaderMap::new();
        let response = |rejected_log_records| {
            let error_message = "too\nold".to_owned();
            let partial = ExportLogsPartialSuccess { rejected_log_records, error_message };
            ExportLogsServiceResponse { partial_success: Some(partial) }.encode_to_vec()
        };
        assert_eq!(answered(200, &none, b""), Ok(()));
        assert_eq!(answered(200, &none, &response(0)), Ok(()), "a warning refuses nothing");
        assert_eq!(answered(200, &none, b"{}"), Ok(()), "JSON in place of protobuf");
        let refused = answered(200, &none, &response(2)).unwrap_err();
        assert!(
            refused.is_of_records && refused.why.contains("refuses 2 records: too"),
            "{refused:?}"
        );
        for status in [301, 401, 403, 404, 429, 500, 503] {
            let refused = answered(status, &none, b"").unwrap_err();
            assert_eq!((refused.why, refused.is_of_records), (format!("HTTP {status}"), false));
        }
        assert!(
            [400, 413, 422].map(|s| answered(s, &none, b"").unwrap_err().is_of_records)
                == [true; 3]
        );
    }

    #[test]
    fn the_collector_chooses_the_wait_up_to_an_hour() {
        let wait = |value: &str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, value.parse().unwrap())]);
            answered(503, &headers, b"").unwrap_err().retry_after
        };
        assert_eq!(wait("7"), Some(Duration::from_secs(7)));
        assert_eq!(wait("999999999999"), Some(MAX_RETRY_AFTER));
        assert_eq!(wait("Thu, 01 Jan 1970 00:00:09 GMT"), Some(Duration::from_secs(9)));
        assert_eq!(wait("soon"), None);
    }
}
