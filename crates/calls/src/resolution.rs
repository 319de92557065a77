//! Resolutions of names that no list contains.

use catalog::approval::ApprovalRow;
use catalog::snapshot::{Catalog, LeftOutBy};
use config::{Transport, UpstreamSettings};
use domain::approval::ApprovalState;
use domain::calls::error_code::INVALID_PARAMS;
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
        let target = CallTarget {
            upstream,
            raw_name,
            definition: "",
            state: *state,
            number: None,
            version: None,
        };
        Resolution::Unlisted(target, Fault::upstream(upstream, kind.clone()))
    }
}

/// Returns the error for a prompt whose source is not valid; `None` if no such prompt has the
/// name. The text names the file, but not the folder of its library.
pub(super) fn invalid(
    catalog: &Catalog,
    upstream: &UpstreamSettings,
    raw_name: &str,
) -> Option<Kind> {
    let left_out = catalog.content.left_out.iter().find(|left_out| {
        left_out.by == LeftOutBy::Defect
            && left_out.raw_name == raw_name
            && left_out.upstream == upstream.id.as_str()
    })?;
    let reason = match &upstream.transport {
        Transport::Library(library) => {
            left_out.reason.replace(&format!("{}/", library.folder.display()), "")
        }
        Transport::Git(_) | Transport::Store(_) => left_out.reason.clone(),
        Transport::Http(_) | Transport::Sse(_) | Transport::Stdio(_) => return None,
    };
    let message = format!("the prompt is not valid, so it is not served: {reason}");
    Some(Kind::Error { code: INVALID_PARAMS, message, data: None })
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
        number: None,
        version: None,
    };
    Resolution::NotServed { target, rule: format!("approvals.{}", state.as_str()) }
}
