//! What is looked at rather than counted: how the upstreams are, and how much there is to do.

use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::edition::Edition;
use crate::audit::Audit;
use crate::downstream::{AdmissionUsage, Endpoint, Open};
use crate::router::UpstreamStatus;
use crate::telemetry::{Telemetry, UPSTREAM};

/// Shows the newest edition, as long as there is one.
pub(super) fn gateway(telemetry: &Telemetry, edition: &Arc<ArcSwap<Edition>>, audit: &Audit) {
    let upstreams = |what, value: fn(&UpstreamStatus) -> Option<f64>| {
        let edition = Arc::downgrade(edition);
        telemetry.gauge(what, move |tell| {
            for status in now(&edition).iter().flat_map(|edition| edition.router.status()) {
                if let Some(value) = value(&status) {
                    tell(value, &[(UPSTREAM, &status.id)]);
                }
            }
        });
    };
    upstreams(("promptgate.upstream.up", "", "Whether the upstream can be called"), |status| {
        Some(flag(status.state == "up"))
    });
    upstreams(
        ("promptgate.upstream.prompts", "{prompt}", "Its prompts that are listed"),
        |status| Some(status.listed as f64),
    );
    upstreams(("promptgate.upstream.list.age", "s", "Since its list was walked"), |status| {
        status.walk.map(|walk| walk.at.elapsed().as_secs_f64())
    });
    upstreams(
        ("promptgate.upstream.list.stale", "", "Whether its list is old or missing"),
        |status| Some(flag(status.failure.is_some())),
    );
    upstreams(
        ("promptgate.upstream.breaker.open", "", "Whether it is left alone after failures"),
        |status| {
            let is_open = status.breaker_open_until.is_some_and(|until| until > Instant::now());
            Some(flag(is_open))
        },
    );
    upstreams(("promptgate.upstream.in_flight", "{call}", "Calls that it works on"), |status| {
        Some(status.load.0 as f64)
    });
    upstreams(("promptgate.upstream.queued", "{call}", "Calls that wait for a place"), |status| {
        Some(status.load.1 as f64)
    });
    catalog(telemetry, edition);
    audit_log(telemetry, audit);
    process(telemetry);
}

fn catalog(telemetry: &Telemetry, edition: &Arc<ArcSwap<Edition>>) {
    let single = |what, value: fn(&Edition) -> f64| {
        let edition = Arc::downgrade(edition);
        telemetry.gauge(what, move |tell| {
            if let Some(edition) = now(&edition) {
                tell(value(&edition), &[]);
            }
        });
    };
    single(("promptgate.catalog.prompts", "{prompt}", "Prompts that are listed"), |edition| {
        edition.router.catalog().content.owners().len() as f64
    });
    single(("promptgate.catalog.left_out", "{prompt}", "Prompts that are not listed"), |edition| {
        edition.router.catalog().content.left_out.len() as f64
    });
    single(
        ("promptgate.calls.cancellable", "{call}", "Calls that can be cancelled by their ids"),
        |edition| edition.sessions.in_flight_calls() as f64,
    );
    single(("promptgate.calls.parked", "{call}", "Calls whose users visit a page"), |edition| {
        edition.router.suspended() as f64
    });
}

fn audit_log(telemetry: &Telemetry, audit: &Audit) {
    let single = |what, value: fn(&Audit) -> f64| {
        let audit = audit.clone();
        telemetry.gauge(what, move |tell| {
            if audit.is_on() {
                tell(value(&audit), &[]);
            }
        });
    };
    single(("promptgate.audit.up", "", "Whether the audit log is written"), |audit| {
        flag(audit.is_written())
    });
    single(("promptgate.audit.waiting", "By", "Records that wait to be written"), |audit| {
        audit.waiting() as f64
    });
    single(("promptgate.audit.lag", "s", "Since the oldest record came that waits"), |audit| {
        audit.lag().as_secs_f64()
    });
}

/// Shows how much the endpoint has to do.
pub(super) fn endpoint(telemetry: &Telemetry, endpoint: &Arc<ArcSwap<Endpoint>>, open: &Arc<Open>) {
    let admission = |what, value: fn(AdmissionUsage) -> usize| {
        let endpoint = Arc::downgrade(endpoint);
        telemetry.gauge(what, move |tell| {
            if let Some(endpoint) = endpoint.upgrade() {
                tell(value(endpoint.load().usage()) as f64, &[]);
            }
        });
    };
    admission(
        ("promptgate.in_flight", "{call}", "Calls that take a place of server.limits.in_flight"),
        |admission| admission.calls,
    );
    admission(
        ("promptgate.calls.awaiting_input", "{call}", "Calls that wait for a user's answer"),
        |admission| admission.suspended,
    );
    admission(("promptgate.in_flight.size", "By", "Messages that are worked on"), |admission| {
        admission.bytes
    });
    admission(("promptgate.streams", "{stream}", "Open streams of notices"), |admission| {
        admission.streams
    });
    let open = Arc::downgrade(open);
    telemetry.gauge(("promptgate.connections", "{connection}", "Open connections"), move |tell| {
        if let Some(open) = open.upgrade() {
            tell(open.count() as f64, &[]);
        }
    });
}

/// What only grows if something is forgotten.
fn process(telemetry: &Telemetry) {
    // Absent where there is no runtime, and then nothing runs.
    if let Ok(runtime) = Handle::try_current() {
        telemetry.gauge(("promptgate.tasks", "{task}", "Tasks of the runtime"), move |tell| {
            tell(runtime.metrics().num_alive_tasks() as f64, &[]);
        });
    }
    #[cfg(target_os = "linux")]
    {
        telemetry.gauge(("process.memory.usage", "By", "Resident memory"), |tell| {
            let resident = std::fs::read_to_string("/proc/self/statm").ok();
            let pages = resident.and_then(|text| text.split(' ').nth(1)?.parse::<f64>().ok());
            if let Some(pages) = pages {
                tell(pages * rustix::param::page_size() as f64, &[]);
            }
        });
        let what = ("process.open_file_descriptor.count", "{file}", "Open file descriptors");
        telemetry.gauge(what, |tell| {
            if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
                tell(open.count() as f64, &[]);
            }
        });
    }
}

/// A yes is 1.
fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

fn now(edition: &Weak<ArcSwap<Edition>>) -> Option<Arc<Edition>> {
    edition.upgrade().map(|edition| edition.load_full())
}
