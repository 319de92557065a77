//! The decision on the version that an upstream offers. It depends on the arguments only, so that
//! each pass, restart and replica reaches the same decision.

use super::{Approval, ApprovalState, Mode, Offered};

/// The state of a prompt, and the version that is served.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Decision {
    pub state: ApprovalState,
    pub reason: Reason,
    pub serving: Serving,
}

/// The definition that is listed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Serving {
    Offered,
    /// The approved form, instead of the offered one.
    Approved,
    /// No definition: the prompt is held back.
    Nothing,
}

/// Why a prompt is in its state.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// Approvals are off.
    Off,
    NeverApproved,
    /// No known part differs from the approved version.
    Same,
    DefinitionChanged,
    /// As [`Reason::DefinitionChanged`]; additionally the upstream requires an argument that the
    /// approved form lacks.
    ArgumentAdded,
    SourceChanged,
    TextChanged,
    /// The files of a skill differ.
    FilesChanged,
    /// The offered version was rejected, and another version is approved.
    VersionRejected,
    /// The offered version was rejected, and no version is approved.
    PromptRejected,
    /// The upstream of the prompt does not list it, or has no list.
    NotOffered,
}

impl Reason {
    /// Returns the reason as the end of a sentence.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "approvals are off for its upstream",
            Self::NeverApproved => "no version of it was approved",
            Self::Same => "it is the approved version",
            Self::DefinitionChanged => "its definition is not the approved one",
            Self::ArgumentAdded => {
                "its definition is not the approved one, and requires an argument that the approved one lacks"
            }
            Self::SourceChanged => "its source is not the approved one",
            Self::TextChanged => "its text is not the approved one",
            Self::FilesChanged => "its files or its front matter are not the approved ones",
            Self::VersionRejected => "this version was rejected",
            Self::PromptRejected => "it was rejected, or its approval was withdrawn",
            Self::NotOffered => "its upstream does not offer it at present",
        }
    }
}

/// Decides on the version of a skill that an upstream offers. Instead of an unapproved version, the
/// approved version is served if it has a snapshot, and else nothing.
pub fn decide_skill(
    mode: Mode,
    approval: Option<&Approval>,
    offered: &Offered,
    has_snapshot: bool,
) -> Decision {
    let decision = decide(mode, approval, offered, || has_snapshot);
    match decision.reason {
        Reason::ArgumentAdded | Reason::DefinitionChanged => {
            Decision { reason: Reason::FilesChanged, ..decision }
        }
        _ => decision,
    }
}

/// Decides on the version that an upstream offers. `fits_approved` says whether the upstream
/// requires no argument that the approved form lacks.
pub fn decide(
    mode: Mode,
    approval: Option<&Approval>,
    offered: &Offered,
    fits_approved: impl FnOnce() -> bool,
) -> Decision {
    if mode == Mode::Off {
        let state = ApprovalState::Unchecked;
        let reason = Reason::Off;
        return Decision { state, reason, serving: Serving::Offered };
    }
    let approved =
        approval.and_then(|approval| approval.approved.as_ref()).map(|decided| &decided.version);
    let rejected =
        approval.and_then(|approval| approval.rejected.as_ref()).map(|decided| &decided.version);
    let is_rejected = rejected.is_some_and(|rejected| rejected.matches(offered));
    let (state, reason, serving) = match approved {
        Some(version) if version.matches(offered) => {
            (ApprovalState::Approved, Reason::Same, Serving::Offered)
        }
        Some(version) => {
            let is_defined_so = version.definition == offered.definition;
            let is_same_source = version.source.is_none() || version.source == offered.source;
            let fits = is_defined_so || fits_approved();
            let difference = match (fits, is_same_source, is_defined_so) {
                (false, ..) => Reason::ArgumentAdded,
                (true, false, _) => Reason::SourceChanged,
                (true, true, false) => Reason::DefinitionChanged,
                (true, true, true) => Reason::TextChanged,
            };
            let serving = match (is_defined_so, fits) {
                (true, _) => Serving::Offered,
                (false, true) => Serving::Approved,
                (false, false) => Serving::Nothing,
            };
            if is_rejected {
                (ApprovalState::Rejected, Reason::VersionRejected, serving)
            } else {
                (ApprovalState::Changed, difference, serving)
            }
        }
        None if is_rejected => (ApprovalState::Rejected, Reason::PromptRejected, Serving::Nothing),
        None => (ApprovalState::Pending, Reason::NeverApproved, Serving::Nothing),
    };
    let serving = if mode == Mode::Enforce { serving } else { Serving::Offered };
    Decision { state, reason, serving }
}
