//! Commands of the people who run the gateway.

pub(super) mod accounts;
pub(super) mod check;
pub(super) mod config;
pub(super) mod connect;
pub(super) mod dial;
pub(super) mod documents;
pub(super) mod endpoint_bounds;
pub(super) mod git;
pub(super) mod health;
pub(super) mod import;
pub(super) mod init;
pub(super) mod key;
pub(super) mod login;
pub(super) mod reload;
pub(super) mod serve;
#[cfg(target_os = "linux")]
pub(super) mod supervise;
pub(super) mod unmatched;
pub(super) mod upstreams;
