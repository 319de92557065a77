//! A collector of audit records, which fails in every way that a collector has.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use audit::verify::TrustAnchors;
use audit::verify::exported::ExportedLines;
use base::platform::network::Acceptor;
use bytes::Bytes;
use fastrand::Rng;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use prost::Message;
use serde_json::Value;
use tokio::time::sleep;

use crate::machine::network::SimNetwork;
use crate::machine::trace;
use crate::world::World;

/// Where the gateway finds it.
pub const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 5, 0)), 4318);

#[derive(Clone)]
pub struct Collector(Arc<Mutex<State>>);

struct State {
    rng: Rng,
    /// The chance that a request is treated badly.
    mood: f64,
    /// The lines that it has, each with a line feed.
    kept: Vec<u8>,
}

/// The treatment of a request.
enum Treatment {
    Accept,
    LoseAcknowledgement,
    Hang,
    RefusePart,
    Status(u16),
}

impl Collector {
    /// Listens at [`ADDRESS`].
    pub fn start(rng: Rng, network: &SimNetwork) -> Self {
        let this = Self(Arc::new(Mutex::new(State { rng, mood: 0.0, kept: Vec::new() })));
        let listening = network.listen(ADDRESS).expect("it is free");
        let collector = this.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listening.accept().await {
                let collector = collector.clone();
                tokio::spawn(async move {
                    let service = service_fn(|request| collector.respond(request));
                    let serving =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    let _ = serving.await;
                });
            }
        });
        this
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the chance that a request is treated badly; 1: it is down.
    pub fn set_mood(&self, mood: f64) {
        trace::note("collector", &format!("fails with {mood:.2}"));
        self.lock().mood = mood;
    }

    /// Returns the lines that it has.
    pub fn kept(&self) -> Vec<u8> {
        self.lock().kept.clone()
    }

    async fn respond(&self, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
        let body = request.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
        let lines = lines(&body).map_err(io::Error::other)?;
        let treatment = {
            let State { rng, mood, kept } = &mut *self.lock();
            let treatment = draw(rng, *mood);
            if matches!(treatment, Treatment::Accept | Treatment::LoseAcknowledgement) {
                kept.extend(&lines);
            }
            treatment
        };
        let response = Response::builder();
        let (status, body) = match treatment {
            Treatment::Accept => (200, Vec::new()),
            Treatment::LoseAcknowledgement => return Err(io::ErrorKind::ConnectionReset.into()),
            Treatment::Hang => {
                sleep(Duration::from_secs(10)).await;
                return Err(io::ErrorKind::TimedOut.into());
            }
            Treatment::RefusePart => {
                let error_message = "a record is too old".to_owned();
                let partial = ExportLogsPartialSuccess { rejected_log_records: 1, error_message };
                let response = ExportLogsServiceResponse { partial_success: Some(partial) };
                (200, response.encode_to_vec())
            }
            Treatment::Status(status) => (status, Vec::new()),
        };
        let response = response.status(status).header("Retry-After", "1");
        Ok(response.body(Full::from(body)).expect("a response"))
    }
}

fn draw(rng: &mut Rng, mood: f64) -> Treatment {
    if rng.f64() >= mood {
        return Treatment::Accept;
    }
    match rng.u8(..8) {
        0 => Treatment::Hang,
        1 => Treatment::LoseAcknowledgement,
        2 => Treatment::RefusePart,
        3 => Treatment::Status(413),
        4 => Treatment::Status(429),
        _ => Treatment::Status(503),
    }
}

/// The bodies of the records of a request, each with a line feed.
fn lines(body: &[u8]) -> Result<Vec<u8>, prost::DecodeError> {
    let request = ExportLogsServiceRequest::decode(body)?;
    let scopes = request.resource_logs.into_iter().flat_map(|logs| logs.scope_logs);
    let bodies = scopes.flat_map(|scope| scope.log_records).filter_map(|record| record.body?.value);
    let texts = bodies.filter_map(|body| match body {
        AnyValue::StringValue(text) => Some(text + "\n"),
        _ => None,
    });
    Ok(texts.collect::<String>().into_bytes())
}

/// The records of one log, as collector and disk have them.
#[derive(Default)]
struct Known {
    arrived: BTreeSet<u64>,
    /// The records that the collector has refused for good.
    refused: BTreeSet<u64>,
    /// The first and the last record of each removed segment, and whether it counts as exported.
    removed: Vec<(u64, u64, bool)>,
}

/// Checks that each removed segment was exported, or that the log says that it was not; returns
/// whether all were exported. Then the exported lines have no gap.
pub fn check(world: &World, collector: &Collector, anchors: &TrustAnchors) -> bool {
    let kept = collector.kept();
    let mut logs: BTreeMap<String, Known> = BTreeMap::new();
    let on_disk: Vec<u8> = world.audit_segments(false).flatten().collect();
    for (text, has_arrived) in [(&kept, true), (&on_disk, false)] {
        for line in text.split(|byte| *byte == b'\n') {
            let Ok(record) = serde_json::from_slice::<Value>(line) else { continue };
            let number = |name: &str| record[name].as_u64();
            let log = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
            let Some(seq) = number("seq") else { continue };
            if has_arrived {
                logs.entry(log("instance")).or_default().arrived.insert(seq);
            }
            if record["event"] == "export_refused" {
                logs.entry(log("log")).or_default().refused.extend(number("record"));
            }
            if let (Some(first), Some(last)) = (number("first_seq"), number("last_seq")) {
                let is_exported = record["exported"] != false;
                logs.entry(log("instance")).or_default().removed.push((first, last, is_exported));
            }
        }
    }
    let mut all_exported = true;
    for (instance, Known { arrived, refused, removed }) in logs {
        for (first, last, is_exported) in removed {
            all_exported &= is_exported;
            let lost = (first..=last).find(|seq| !arrived.contains(seq) && !refused.contains(seq));
            if let Some(lost) = lost.filter(|_| is_exported) {
                let why = format!("record {lost} of {instance} has left, and was not exported");
                world.violation(why);
            }
        }
    }
    let lines = ExportedLines::read(&kept[..]).expect("it is in memory");
    for exported in lines.verify(anchors) {
        let mistakes = &exported.report.mistakes;
        if all_exported && !mistakes.is_empty() {
            world.violation(format!("exported lines are not whole: {mistakes:?}"));
        }
    }
    all_exported
}
