//! The members that say which gateway answers.

use domain::json::object::{write_members, write_object};

/// The gateway's own implementation info and instructions.
#[derive(Clone, Debug)]
pub struct ServerIdentity {
    /// `Implementation` as JSON text.
    pub(super) server_info: String,
    /// The member `"instructions":"…"`, or empty.
    pub(super) instructions: String,
}

impl ServerIdentity {
    /// `name` and `instructions` are the configuration keys `server.name` and
    /// `server.instructions`.
    pub fn new(name: &str, instructions: Option<&str>) -> Self {
        let mut server_info = String::new();
        write_object(&mut server_info, |info| {
            info.text("name", name).text("version", env!("CARGO_PKG_VERSION"));
        });
        let mut member = String::new();
        if let Some(text) = instructions {
            write_members(&mut member, |result| {
                result.text("instructions", text);
            });
        }
        Self { server_info, instructions: member }
    }
}
