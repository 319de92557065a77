//! The scripts that the store runs in one step. They are sent to a server that does not know them
//! (NOSCRIPT, as after a restart).

use redis::Script;

pub(super) struct Scripts {
    pub take: Script,
    pub beat: Script,
    pub terminate: Script,
}

impl Default for Scripts {
    fn default() -> Self {
        Self {
            take: Script::new(include_str!("take.lua")),
            beat: Script::new(include_str!("beat.lua")),
            terminate: Script::new(include_str!("terminate.lua")),
        }
    }
}

/// The script that keeps the state of a rollout.
pub(super) fn keep_rollback() -> Script {
    Script::new(include_str!("keep_rollback.lua"))
}

/// The scripts for sign-ins, which commands run as well.
pub(super) struct LoginScripts {
    pub change: Script,
    pub release: Script,
}

impl Default for LoginScripts {
    fn default() -> Self {
        Self {
            change: Script::new(include_str!("change_login.lua")),
            release: Script::new(include_str!("release_login.lua")),
        }
    }
}
