//! The gateway as a whole, on real sockets, against upstreams that misbehave. One file per
//! behaviour; the name of a test says what must hold, led by the row of the fault matrix where
//! there is one.

mod support;

mod access;
mod admin;
mod audit;
mod batches;
mod callers;
mod calls;
mod canaries;
mod carried;
mod cli;
#[cfg(target_os = "linux")]
mod crashes;
mod cursors;
mod documents;
#[cfg(target_os = "linux")]
mod drain;
mod eras;
mod floods;
#[cfg(unix)]
mod followed;
mod grants;
mod health;
mod histories;
mod isolation;
mod library;
mod limits;
mod listing;
mod matrix;
#[cfg(unix)]
mod moved;
mod notices;
#[cfg(target_os = "linux")]
mod overload;
mod permitted;
mod questions;
mod reload;
mod stdio;
mod strangers;
mod streams;
mod telemetry;
mod tls;
mod tokens;
mod transports;
mod upstream_faults;
mod views;
mod wire;
