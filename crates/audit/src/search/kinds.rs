//! The types of records that a search looks for.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Types of records; `call` for calls.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct EventKinds(Vec<String>);

/// Decisions of people on prompts.
const DECISIONS: &[&str] = &[
    "prompt_approved",
    "prompt_approved_by_one",
    "prompt_rejected",
    "prompt_withdrawn",
    "prompt_rolled_back",
];

const LABELS: &[&str] = &["label_moved", "label_removed"];

const ROLLOUTS: &[&str] = &[
    "rollout_changed",
    "rollout_ended",
    "rollout_rearmed",
    "rollout_rolled_back",
    "rollout_started",
];

const SIGN_INS: &[&str] = &["admin_login", "admin_login_failed", "admin_logout"];

/// Changes of the configuration, of sources and of access, and the states that follow.
const OTHER_CHANGES: &[&str] = &[
    "account_revoked",
    "commit_refused",
    "commit_served",
    "config_loaded",
    "config_rejected",
    "config_reloaded",
    "definition_changed",
    "definitions_changed",
    "login_changed",
    "login_forgotten",
    "log_replaced",
    "log_replaces",
    "prompt_state",
    "prompt_states",
    "reload_requested",
    "removal_accepted",
    "removal_held",
    "sign_in_done",
    "sign_in_ended",
];

/// Names that stand for several types.
const GROUPS: [(&str, &[&[&str]]); 5] = [
    ("decisions", &[DECISIONS]),
    ("labels", &[LABELS]),
    ("rollouts", &[ROLLOUTS]),
    ("sign-ins", &[SIGN_INS]),
    ("changes", &[DECISIONS, LABELS, ROLLOUTS, OTHER_CHANGES]),
];

impl From<&str> for EventKinds {
    /// Converts a type, or the name of several: `decisions`, `labels`, `rollouts`, `sign-ins`, or
    /// `changes`, which are all that people and sources changed.
    fn from(name: &str) -> Self {
        match GROUPS.iter().find(|(group, _)| *group == name) {
            Some((_, kinds)) => Self(kinds.concat().into_iter().map(str::to_owned).collect()),
            None => Self(vec![name.to_owned()]),
        }
    }
}

impl fmt::Display for EventKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" or "))
    }
}

impl EventKinds {
    /// Returns the types of several names.
    pub fn of(names: &[&str]) -> Self {
        Self(names.iter().flat_map(|name| Self::from(*name).0).collect())
    }

    /// Whether a type is included.
    pub fn has(&self, kind: &str) -> bool {
        self.0.iter().any(|name| name == kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_reads_the_types_that_another_one_writes_and_names_of_groups_are_no_types() {
        let written = |name: &str| serde_json::to_string(&EventKinds::from(name)).unwrap();
        for name in ["call", "decisions", "sign-ins", "changes"] {
            let read: EventKinds = serde_json::from_str(&written(name)).unwrap();
            assert_eq!(read, name.into());
        }
        assert!(EventKinds::from("decisions").has("prompt_withdrawn"));
        assert!(!EventKinds::from("decisions").has("decisions"));
        for changed in ["label_moved", "rollout_started", "prompt_approved", "commit_served"] {
            assert!(EventKinds::from("changes").has(changed), "{changed}");
        }
    }
}
