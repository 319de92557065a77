//! The gateway as a whole, on real sockets, against upstreams that misbehave. One file per
//! behaviour; the name of a test says what must hold, led by the row of the fault matrix where
//! there is one.

mod support;

mod access;
mod act_as_caller;
mod admin;
mod attacks;
mod attacks_held;
mod audit;
mod audit_export;
mod batches;
mod callers;
mod calls;
mod canaries;
mod circles;
mod cli;
#[cfg(target_os = "linux")]
mod cluster;
mod console;
#[cfg(target_os = "linux")]
mod crashes;
mod cross_caller_isolation;
mod cursors;
mod documents;
#[cfg(target_os = "linux")]
mod drain;
mod drills;
mod eras;
mod failed_tasks;
mod first_contact;
mod floods;
mod forwarding;
mod guard_hooks;
mod guards;
mod generated_histories;
mod generated_rules;
#[cfg(unix)]
mod git;
#[cfg(unix)]
mod git_https;
mod health;
mod hooks;
mod labels;
mod library;
mod limits;
mod links;
mod list_changed;
mod listing;
mod logins;
mod matrix;
mod oauth_client_credentials;
mod odd_content;
#[cfg(unix)]
mod odd_upstreams;
#[cfg(target_os = "linux")]
mod overlays;
mod overload;
mod approval_notifications;
mod approval_review;
mod approvals;
mod approvers;
mod reload;
#[cfg(unix)]
mod reload_follow;
#[cfg(unix)]
mod reload_sinks;
mod rollouts;
mod started_rollouts;
mod server_requests;
mod skill_bridge;
mod skills;
mod stdio;
mod passthrough;
mod stores;
mod strangers;
mod streams;
mod telemetry;
mod tls;
mod tokens;
mod tools;
mod transports;
#[cfg(unix)]
mod upgrade;
mod upstream_faults;
mod usage;
mod versions;
mod variants;
mod views;
mod wire;
