//! The methods that the gateway knows, by their names on the wire.

use std::fmt;

/// A method that is carried to a prompt. What only concerns one connection (`initialize`, `ping`,
/// `server/discover`) is answered by the session layer and never becomes one of these.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Method {
    List,
    Get,
    Complete,
}

impl Method {
    pub const ALL: [Method; 3] = [Method::List, Method::Get, Method::Complete];

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.as_str() == name)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Method::List => "prompts/list",
            Method::Get => "prompts/get",
            Method::Complete => "completion/complete",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

pub const INITIALIZE: &str = "initialize";
pub const INITIALIZED: &str = "notifications/initialized";
pub const PING: &str = "ping";
pub const DISCOVER: &str = "server/discover";
pub const LISTEN: &str = "subscriptions/listen";
pub const CANCELLED: &str = "notifications/cancelled";
pub const PROGRESS: &str = "notifications/progress";
pub const ELICITATION_COMPLETE: &str = "notifications/elicitation/complete";
pub const LIST_CHANGED: &str = "notifications/prompts/list_changed";
