//! Decisions of people, and the reasons for refusing a decision.

use catalog::approval::ApprovalRow;
use config::lock::LockError;
use domain::approval::BadReason;

/// A decision on prompts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Action {
    /// Approves the offered versions. `unseen`: includes versions with only the definition
    /// compared. `partial`: leaves out versions that cannot be approved, instead of refusing all.
    Approve { unseen: bool, partial: bool },
    /// Approves variants that callers found, in addition to the approved version of one prompt.
    /// Each variant is named by its digest, or by its first 8 or more digits.
    ApproveVariants { digests: Vec<String> },
    /// Rejects the offered versions that wait for a decision.
    Reject,
    /// Takes approvals back, also of prompts that are not offered.
    Withdraw,
    /// Approves versions that were approved before: the newest, or the version with this digest.
    RollBack { to: Option<String> },
}

impl Action {
    /// The name of the member that lists the completed decisions.
    pub fn key(&self) -> &'static str {
        match self {
            Self::Approve { .. } | Self::ApproveVariants { .. } => "approved",
            Self::Reject => "rejected",
            Self::Withdraw => "withdrawn",
            Self::RollBack { .. } => "rolledBack",
        }
    }
}

/// Why a decision failed without any effect.
#[derive(Debug, thiserror::Error)]
pub enum ApprovalError {
    #[error("{0}")]
    Store(#[from] LockError),
    /// The lock file cannot be written. Includes the patch that makes the change.
    #[error("{error}; apply this patch instead")]
    ReadOnly { error: LockError, patch: String },
    #[error("{prompt}: {why}")]
    Refused { prompt: String, why: String },
    #[error(transparent)]
    BadReason(#[from] BadReason),
}

/// The refusal of a decision on a prompt.
pub(super) fn refused(row: &ApprovalRow, why: String) -> ApprovalError {
    ApprovalError::Refused { prompt: row.public_name.clone(), why }
}
