//! Messages to a client in the wire form of its revision.

mod messages;
mod server_identity;
mod capabilities;
mod result_writer;
mod result_meta;
mod list;
mod prompt;
mod resource;
mod skill;
mod completion;
mod passthrough;
mod input_required;
mod response;

use capabilities::write_capabilities;
use catalog::reply::Reply;
use completion::completion_result;
use domain::calls::cursor::CacheScope;
use domain::fault::{Fault, RequestFault};
use domain::json::jsonrpc::Id;
use domain::json::object::write_object;
use domain::json::write_str;
use domain::protocol::method::{SET_LOG_LEVEL, SUBSCRIBE, UNSUBSCRIBE};
use domain::protocol::revision::{Era, Revision};
use domain::text::chunks::Chunks;
use domain::tool::result::write_error;
use domain::{calls::error_code, protocol::meta};
use input_required::input_required_result;
use list::{found_result, list_result};
use passthrough::passthrough_result;
use prompt::{prompt_result, prompt_tool_result};
use resource::resource_result;
use result_meta::write_via;
use result_writer::ResultWriter;
use skill::{skill_result, skill_tool_result};

pub use capabilities::{Offer, ToolOffer};
pub(crate) use response::{result_chunks, result_message};
pub use server_identity::ServerIdentity;

/// The rules for messages to a client of one revision.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Dialect {
    revision: Revision,
}

/// The form in which a client gets the result of a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ResultForm {
    /// The result of the method for prompts.
    Prompt,
    /// The result of a tool that stands for prompts.
    Tool,
}

impl Dialect {
    /// Returns the dialect of a revision.
    pub fn new(revision: Revision) -> Self {
        Self { revision }
    }

    /// Returns the revision of the dialect.
    pub fn revision(self) -> Revision {
        self.revision
    }

    /// Returns whether an error response without a request has `"id":null`. From MCP 2025-11-25 on
    /// it has no `id`.
    pub fn writes_null_id(self) -> bool {
        self.revision < Revision::V2025_11_25
    }

    /// Returns whether an unknown method and a missing client capability have a separate HTTP
    /// status (MCP 2026-07-28, Streamable HTTP). In the legacy era the status is 200.
    pub fn has_error_status(self) -> bool {
        self.revision.era() == Era::Modern
    }

    /// Returns whether a client cancels its call by disconnecting (MCP 2026-07-28, Streamable
    /// HTTP).
    pub fn cancels_on_disconnect(self) -> bool {
        self.revision.era() == Era::Modern
    }

    /// Returns whether capabilities of the revision can declare skills.
    pub fn has_skills(self) -> bool {
        self.revision.era() == Era::Modern
    }

    /// Returns whether the revision has JSON-RPC batches (only MCP 2025-03-26).
    pub fn supports_batches(self) -> bool {
        self.revision == Revision::V2025_03_26
    }

    /// Returns whether a stream starts with an event that has an id and no data, so that the client
    /// can resume the stream from its start (MCP 2025-11-25, Streamable HTTP).
    pub fn has_priming_event(self) -> bool {
        self.revision == Revision::V2025_11_25
    }

    /// Returns whether the revision has a method that later revisions removed.
    pub fn has_method(self, method: &str) -> bool {
        let removed = [SET_LOG_LEVEL, SUBSCRIBE, UNSUBSCRIBE];
        self.revision.era() == Era::Legacy || !removed.contains(&method)
    }

    /// Returns whether the revision has `notifications/elicitation/complete`.
    pub fn has_elicitation_complete(self) -> bool {
        self.revision == Revision::V2025_11_25
    }

    /// Writes the result of `initialize` (legacy era).
    pub fn initialize(self, identity: &ServerIdentity, offer: Offer) -> String {
        let mut out = String::new();
        write_object(&mut out, |result| {
            result.text("protocolVersion", self.revision.as_str());
            result.members(&identity.instructions);
            result.object_unless_empty("_meta", |meta| write_via(&offer.via, meta));
            write_capabilities(&offer, self.revision, result);
            result.json("serverInfo", &identity.server_info);
        });
        out
    }

    /// Writes the result of `server/discover` (modern era), which changes with the configuration,
    /// and with the first skill. `ttl_ms` is in milliseconds.
    pub fn discover(self, identity: &ServerIdentity, offer: Offer, ttl_ms: u128) -> String {
        let writer = ResultWriter::new(self.revision, identity);
        let versions = Revision::modern().map(Revision::as_str);
        writer.text(
            |meta| write_via(&offer.via, meta),
            |result| {
                result.array("supportedVersions", versions, write_str);
                result.members(&identity.instructions);
                write_capabilities(&offer, self.revision, result);
                writer.write_cache_hints(ttl_ms, CacheScope::Public, result);
            },
        )
    }

    /// Writes the result of a call.
    pub fn reply(self, reply: &Reply, form: ResultForm, identity: &ServerIdentity) -> Chunks {
        let writer = ResultWriter::new(self.revision, identity);
        match reply {
            Reply::List(list) => list_result(list, writer),
            Reply::Found(found) => found_result(found, writer).into(),
            Reply::Prompt(prompt) => match form {
                ResultForm::Prompt => prompt_result(prompt, writer),
                ResultForm::Tool => prompt_tool_result(prompt, writer).into(),
            },
            Reply::InputRequired(input_required) => {
                input_required_result(input_required, self.revision, identity).into()
            }
            Reply::Passthrough(passthrough) => passthrough_result(passthrough, writer),
            Reply::Completion { completion, origin } => {
                completion_result(completion, origin, writer).into()
            }
            Reply::Skill(skill) => match form {
                ResultForm::Prompt => skill_result(skill, writer),
                ResultForm::Tool => skill_tool_result(skill, writer),
            },
            Reply::Resource(resource) => resource_result(resource, writer),
        }
    }

    /// Writes a fault as the result of a tool, so that a model can read it (MCP 2025-11-25, tools,
    /// error handling).
    pub fn tool_error(self, fault: &Fault, identity: &ServerIdentity) -> String {
        // A model can call tools, but cannot list prompts or resources.
        let message = match fault {
            Fault::Request(RequestFault::UnknownPrompt) => {
                "unknown prompt; find it with find_prompt, or list the tools again".into()
            }
            Fault::Request(RequestFault::UnknownResource { .. }) => {
                "unknown skill or file; find it with find_skill".into()
            }
            fault => error_code::message(fault),
        };
        ResultWriter::new(self.revision, identity).text(
            |meta| {
                meta.text("promptgate/reason", fault.reason());
                if let Some(id) = fault.correlation() {
                    meta.text("promptgate/correlationId", &id.to_string());
                }
            },
            |result| write_error(&message, result),
        )
    }

    /// Writes the empty list of a kind that the gateway does not have; `member` is the name of the
    /// list. `ttl_ms` is in milliseconds.
    pub fn empty_list(self, member: &str, identity: &ServerIdentity, ttl_ms: u128) -> String {
        let writer = ResultWriter::new(self.revision, identity);
        writer.text(
            |_| {},
            |result| {
                writer.write_cache_hints(ttl_ms, CacheScope::Public, result);
                result.json(member, "[]");
            },
        )
    }

    /// Writes the result of `subscriptions/listen`, which ends the subscription (MCP 2026-07-28,
    /// subscriptions).
    pub fn listen_result(self, subscription: &Id, identity: &ServerIdentity) -> String {
        ResultWriter::new(self.revision, identity).text(
            |meta| {
                meta.json(meta::SUBSCRIPTION_ID, subscription.text());
            },
            |_| {},
        )
    }

    /// Returns the fault of a read of a resource that does not exist.
    pub fn unknown_resource(self, uri: &str) -> RequestFault {
        RequestFault::unknown_resource(self.revision.era() == Era::Modern, uri)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use domain::protocol::via::Via;

    const OFFER: Offer = Offer {
        prompts: true,
        tools: ToolOffer::Empty,
        skills: false,
        links: false,
        passthrough: None,
        via: Via::NONE,
    };

    #[test]
    fn initialize_declares_the_capabilities_of_the_revision() {
        let identity = ServerIdentity::new("a \"gate\"", Some("Ask \"nicely\""));
        let result = |revision| -> Value {
            serde_json::from_str(&Dialect::new(revision).initialize(&identity, OFFER)).unwrap()
        };
        let newest = result(Revision::V2025_11_25);
        assert_eq!(
            newest["capabilities"],
            json!({"prompts": {"listChanged": true}, "completions": {}, "tools": {}})
        );
        assert_eq!(newest["instructions"], "Ask \"nicely\"");
        assert_eq!(newest["serverInfo"]["name"], "a \"gate\"");
        assert_eq!(
            result(Revision::V2024_11_05)["capabilities"],
            json!({"prompts": {"listChanged": true}, "tools": {}})
        );
    }
}
