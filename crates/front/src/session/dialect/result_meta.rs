//! Members of the `_meta` of several results.

use tokio::time::Instant;

use catalog::reply::{Flags, ResultOrigin};
use catalog::snapshot::Incomplete;
use domain::fault::UpstreamFaultKind as Kind;
use domain::json::object::{ObjectWriter, write_object};
use domain::protocol::via::{VIA, Via};

pub(super) fn write_via(via: &Via, meta: &mut ObjectWriter<'_>) {
    if !via.is_none() {
        meta.text(VIA, via.as_str());
    }
}

pub(super) fn write_origin(origin: &ResultOrigin, meta: &mut ObjectWriter<'_>) {
    let upstream = origin.upstream.as_str();
    meta.text("promptgate/upstream", upstream).text("promptgate/digest", &origin.digest);
    if let Some(version) = &origin.version {
        // The member has the same name as in the definition of the prompt.
        meta.text("version", &version.version);
        if let Some(label) = &version.label {
            meta.text("label", label);
        }
    }
    if let Some(chosen) = &origin.rollout {
        meta.text("promptgate/rollout", chosen);
    }
}

pub(super) fn write_flags(flags: &Flags, meta: &mut ObjectWriter<'_>) {
    if let Some(places) = &flags.hidden_text {
        meta.json("promptgate/hiddenText", places);
    }
    if let Some(places) = &flags.unsafe_uris {
        meta.json("promptgate/unsafeUris", places);
    }
}

/// Writes `promptgate/incomplete`, which names the upstreams whose prompts are out of date or
/// missing.
pub(super) fn write_incomplete(
    incomplete: &[Incomplete],
    now: Instant,
    meta: &mut ObjectWriter<'_>,
) {
    if incomplete.is_empty() {
        return;
    }
    meta.array("promptgate/incomplete", incomplete, |part, out| {
        write_object(out, |entry| {
            entry.text("upstream", part.upstream.as_str()).text("reason", part.kind.reason());
            entry.display("stale", part.walked_at.is_some());
            if let Kind::SignInNeeded { url, code, .. } = &part.kind {
                entry.text("url", url).text("code", code);
            }
            if let Some(walked_at) = part.walked_at {
                entry.display("ageMs", now.duration_since(walked_at).as_millis());
            }
        });
    });
}
