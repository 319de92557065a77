//! Resolutions of names that no list contains.

use catalog::approval::ApprovalRow;
use domain::approval::ApprovalState;
use domain::fault::{Fault, UpstreamFaultKind as Kind};
use domain::name::UpstreamId;
use policy::{CallTarget, Resolution};

/// A prompt that may exist at an upstream whose list was never received.
pub(super) struct Unlisted<'a> {
    pub upstream: &'a UpstreamId,
    pub raw_name: String,
    pub state: ApprovalState,
    /// Why the list is missing.
    pub kind: Kind,
}

impl Unlisted<'_> {
    pub(super) fn resolution(&self) -> Resolution<'_> {
        let Self { upstream, raw_name, state, kind } = self;
        let upstream = upstream.as_str();
        let target =
            CallTarget { upstream, raw_name, definition: "", state: *state, version: None };
        Resolution::Unlisted(target, Fault::upstream(upstream, kind.clone()))
    }
}

/// The resolution of a prompt that approvals hold back.
pub(super) fn held(row: &ApprovalRow) -> Resolution<'_> {
    let state = row.decision.state;
    let offered = row.offered.as_ref();
    let target = CallTarget {
        upstream: row.upstream.as_str(),
        raw_name: &row.raw_name,
        definition: offered.map(|offered| &*offered.version.definition).unwrap_or_default(),
        state,
        version: None,
    };
    Resolution::NotServed { target, rule: format!("approvals.{}", state.as_str()) }
}
