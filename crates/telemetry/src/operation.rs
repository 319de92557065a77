//! The measurement of one operation: its span and its duration, as seen by the server or by the
//! client.

use std::net::IpAddr;

use opentelemetry::trace::{
    Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId,
    TraceState, Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::Span;
use tokio::time::Instant;

use super::Telemetry;
use super::metrics::DurationSeries;
use super::series::{Labels, TransportKind};
use base::seal;
use base::seal::hex::hex;
use domain::calls::error_code;
use domain::fault::{Fault, UpstreamFaultKind as Kind, excerpt};
use domain::protocol::method::Method;
use domain::protocol::trace::Trace;

/// The attributes of a request from a client.
#[derive(Clone, Copy, Debug)]
pub struct ServerAttributes<'a> {
    pub method: &'static str,
    pub revision: &'static str,
    pub transport: TransportKind,
    /// The identity of the session, of which only a short digest is exported.
    pub session: Option<&'a [u8]>,
    /// The JSON-RPC id, as JSON.
    pub id: &'a str,
    /// The name that the client sent, whether or not it exists, with the key of its attribute.
    pub target: Option<(&'static str, &'a str)>,
    pub client: Option<IpAddr>,
}

/// The attributes of a request to an upstream.
#[derive(Clone, Copy, Debug)]
pub struct ClientAttributes<'a> {
    pub method: &'static str,
    pub upstream: &'a str,
    /// `None` before it is negotiated.
    pub revision: Option<&'static str>,
    pub transport: TransportKind,
    /// Host and port; `None` for a child process.
    pub server: Option<(&'a str, u16)>,
    /// The name at the upstream, with the key of its attribute.
    pub target: Option<(&'static str, &'a str)>,
}

/// The outcome of an operation.
#[derive(Clone, Copy, Debug)]
pub enum End<'a> {
    /// Success.
    Well,
    Fault(&'a Fault),
    Cancelled,
}

/// A request of a client, from reading to response. An operation that is dropped counts as
/// cancelled.
#[must_use = "an operation that is dropped counts as cancelled"]
pub struct ServerOperation {
    telemetry: Telemetry,
    began: Instant,
    method: &'static str,
    revision: &'static str,
    transport: TransportKind,
    /// On the heap: most operations have no span.
    span: Option<Box<Span>>,
    has_ended: bool,
}

impl ServerOperation {
    /// Starts the operation. If spans are exported, its span becomes the parent in `trace`.
    pub fn begin(telemetry: &Telemetry, request: ServerAttributes<'_>, trace: &mut Trace) -> Self {
        let ServerAttributes { method, revision, transport, .. } = request;
        let span = start(telemetry, SpanKind::Server, method, request.target, trace, || {
            let mut attributes = vec![
                KeyValue::new("mcp.method.name", method),
                KeyValue::new("mcp.protocol.version", revision),
                KeyValue::new("jsonrpc.request.id", request.id.trim_matches('"').to_owned()),
            ];
            let digest = |session| hex(&seal::sha256(session)[..8]);
            let session = request.session.map(|s| KeyValue::new("mcp.session.id", digest(s)));
            let target = request.target.map(|(key, name)| KeyValue::new(key, excerpt(name)));
            let client = request.client.map(|ip| KeyValue::new("client.address", ip.to_string()));
            attributes.extend(session.into_iter().chain(target).chain(client));
            attributes.extend(transport.attributes());
            attributes
        });
        Self {
            telemetry: telemetry.clone(),
            began: Instant::now(),
            method,
            revision,
            transport,
            span,
            has_ended: false,
        }
    }

    /// Returns the context that logs of this operation belong to; `None` if its span is not
    /// recorded.
    pub fn context(&self) -> Option<Context> {
        let span = self.span.as_ref().filter(|span| span.is_recording())?;
        Some(Context::new().with_remote_span_context(span.span_context().clone()))
    }

    /// Ends the operation.
    pub fn end(mut self, ended: End<'_>) {
        self.record(ended);
    }

    fn record(&mut self, ended: End<'_>) {
        self.has_ended = true;
        let labels = Labels {
            method: self.method,
            revision: Some(self.revision),
            transport: Some(self.transport),
            ..Labels::default()
        };
        let metrics = self.telemetry.metrics();
        let durations = &metrics.server_duration;
        let series = durations.series(labels);
        durations.record(self.began.elapsed(), &series, failure(ended, true));
        if let Some(span) = self.span.take() {
            finish(*span, ended);
        }
    }
}

impl Drop for ServerOperation {
    fn drop(&mut self) {
        if !self.has_ended {
            self.record(End::Cancelled);
        }
    }
}

/// A request to an upstream, from sending to response. An operation that is dropped counts as
/// cancelled.
#[must_use = "an operation that is dropped counts as cancelled"]
pub struct ClientOperation {
    telemetry: Telemetry,
    began: Instant,
    /// `None` for a walk before the first call.
    series: Option<DurationSeries>,
    /// On the heap: most operations have no span.
    span: Option<Box<Span>>,
    has_ended: bool,
}

impl ClientOperation {
    /// Starts the operation. If spans are exported, its span becomes the parent in `trace`.
    pub fn begin(
        telemetry: &Telemetry,
        client_attributes: ClientAttributes<'_>,
        trace: &mut Trace,
    ) -> Self {
        let ClientAttributes { method, upstream, revision, transport, server, target } =
            client_attributes;
        let labels = Labels {
            method,
            revision,
            transport: Some(transport),
            upstream: Some(upstream),
            server,
        };
        let metrics = telemetry.metrics();
        // An upstream without calls has no series.
        let is_measured = method != LIST || metrics.is_called(upstream);
        let series = is_measured.then(|| metrics.client_duration.series(labels));
        let span = start(telemetry, SpanKind::Client, method, target, trace, || {
            let name = target.map(|(key, name)| KeyValue::new(key, excerpt(name)));
            labels.attributes().into_iter().chain(name).collect()
        });
        let telemetry = telemetry.clone();
        Self { telemetry, began: Instant::now(), series, span, has_ended: false }
    }

    pub fn end(mut self, error: Option<&Kind>) {
        let fault = error.map(|kind| Fault::upstream("", kind.clone()));
        self.record(fault.as_ref().map_or(End::Well, End::Fault));
    }

    fn record(&mut self, ended: End<'_>) {
        self.has_ended = true;
        // A call that was refused by the concurrency limit did not reach the upstream.
        let was_reached =
            !matches!(ended, End::Fault(Fault::Upstream(fault)) if fault.kind == Kind::Busy);
        if let Some(series) = self.series.as_ref().filter(|_| was_reached) {
            let durations = &self.telemetry.metrics().client_duration;
            durations.record(self.began.elapsed(), series, failure(ended, true));
        }
        if let Some(span) = self.span.take() {
            finish(*span, ended);
        }
    }
}

impl Drop for ClientOperation {
    fn drop(&mut self) {
        if !self.has_ended {
            self.record(End::Cancelled);
        }
    }
}

/// The attribute of a URI. There are too many URIs to put them into names of spans.
const RESOURCE_URI: &str = "mcp.resource.uri";

/// The method of a walk.
const LIST: &str = Method::List.as_str();

/// Starts a span `{method} {name}`, without a URI as the name, as a child of `trace`, which then
/// names it as the parent. Attributes are computed only if the span is recorded. Returns `None` if
/// spans are not exported.
fn start(
    telemetry: &Telemetry,
    kind: SpanKind,
    method: &'static str,
    target: Option<(&'static str, &str)>,
    trace: &mut Trace,
    attributes: impl FnOnce() -> Vec<KeyValue>,
) -> Option<Box<Span>> {
    let otlp = telemetry.otlp();
    let tracer = otlp.as_ref()?.tracer();
    let parent = match span_context(trace) {
        Some(parent) => Context::new().with_remote_span_context(parent),
        None => Context::new(),
    };
    let mut span = tracer.span_builder(method).with_kind(kind).start_with_context(tracer, &parent);
    if span.is_recording() {
        if let Some((_, name)) = target.filter(|(key, _)| *key != RESOURCE_URI) {
            span.update_name(format!("{method} {}", excerpt(name)));
        }
        span.set_attributes(attributes());
    }
    let at = span.span_context();
    // After the shutdown of the exporter spans are not valid.
    if !at.is_valid() {
        return None;
    }
    let flags = (at.trace_flags() & TraceFlags::SAMPLED).to_u8();
    let trace_id = at.trace_id().to_bytes();
    let span_id = at.span_id().to_bytes();
    trace.parent = Some(["00", &hex(&trace_id), &hex(&span_id), &hex(&[flags])].join("-"));
    trace.state = Some(at.trace_state().header()).filter(|state| !state.is_empty());
    Some(Box::new(span))
}

/// Parses the parent of a trace (W3C Trace Context, `traceparent`); [`Trace`] has validated its
/// format.
fn span_context(trace: &Trace) -> Option<SpanContext> {
    let mut parts = trace.parent.as_deref()?.split('-').skip(1);
    let id = parts.next()?;
    let parent = parts.next()?;
    let flags = parts.next()?;
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()? & 1);
    let id = TraceId::from_hex(id).ok()?;
    let parent = SpanId::from_hex(parent).ok()?;
    let state: TraceState = trace.state.as_deref().unwrap_or_default().parse().unwrap_or_default();
    Some(SpanContext::new(id, parent, flags, true, state))
}

/// Returns the attributes of a failure. Upstreams can use any error code: in metrics all codes that
/// are not reserved share the value "other".
fn failure(ended: End<'_>, in_metrics: bool) -> impl Iterator<Item = KeyValue> {
    let (kind, code) = match ended {
        End::Well => (None, None),
        End::Cancelled => (Some("cancelled"), None),
        End::Fault(fault) => (Some(fault.reason()), Some(error_code::of(fault))),
    };
    let kind = kind.map(|kind| KeyValue::new("error.type", kind));
    let code = code.map(|code| {
        let is_known = !in_metrics || error_code::is_reserved(code);
        let text = if is_known { code.to_string() } else { "other".to_owned() };
        KeyValue::new("rpc.response.status_code", text)
    });
    kind.into_iter().chain(code)
}

fn finish(mut span: Span, ended: End<'_>) {
    if span.is_recording() {
        span.set_attributes(failure(ended, false));
        match ended {
            End::Well => {}
            // The reason alone: the message of an upstream can contain anything.
            End::Fault(fault) => span.set_status(Status::error(fault.reason())),
            End::Cancelled => span.set_status(Status::error("cancelled")),
        }
    }
    span.end();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_collector_the_trace_context_passes_unchanged() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let mut trace = Trace { parent: Some(parent.to_owned()), ..Trace::default() };
        let attributes = ServerAttributes {
            method: "prompts/get",
            revision: "2026-07-28",
            transport: TransportKind::Http,
            session: None,
            id: "1",
            target: Some(("gen_ai.prompt.name", "p")),
            client: None,
        };
        let operation = ServerOperation::begin(&Telemetry::silent(), attributes, &mut trace);
        assert!(operation.context().is_none());
        operation.end(End::Well);
        assert_eq!(trace.parent.as_deref(), Some(parent));
    }

    #[test]
    fn the_parent_of_a_trace_is_parsed() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let state = Some("congo=t61rcWkgMzE".to_owned());
        let at =
            span_context(&Trace { parent: Some(parent.to_owned()), state, baggage: None }).unwrap();
        assert_eq!(at.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(
            (at.span_id().to_string().as_str(), at.is_sampled()),
            ("b7ad6b7169203331", true)
        );
        assert_eq!(at.trace_state().header(), "congo=t61rcWkgMzE");
        assert!(span_context(&Trace::default()).is_none());
    }
}
