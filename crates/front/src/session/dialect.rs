//! Messages to a client in the wire form of its revision.

use std::sync::Arc;

use tokio::time::Instant;

use calls::skills::file::only_content;
use catalog::passthrough_reply::{PassthroughPage, PassthroughReply};
use catalog::reply::{
    Completion, Flags, FoundReply, InputRequired, ListReply, PromptReply, Reply, RequestOrigin,
    ResourceReply, ResultOrigin, SkillBody, SkillReply,
};
use catalog::snapshot::Incomplete;
use catalog::view_cache::{ListKind, ListKinds};
use domain::call::Sought;
use domain::call_overlay::{AddedMessage, with_messages};
use domain::chunks::{Chunks, Splices};
use domain::content::is_mime_type;
use domain::document::Document;
use domain::fault::{Fault, RequestFault};
use domain::json::object::{ObjectWriter, write_members, write_object};
use domain::json::{Json, JsonKind, write_str};
use domain::jsonrpc::{self, Id};
use domain::method::{
    CANCELLED, ELICITATION_COMPLETE, MESSAGE, PROGRESS, SET_LOG_LEVEL, SUBSCRIBE,
    SUBSCRIPTION_ACKNOWLEDGED, UNSUBSCRIBE,
};
use domain::passthrough::PassthroughCapabilities;
use domain::revision::{Era, Revision};
use domain::server_request::{Presentation, ServerRequest};
use domain::tool::result::{write_content, write_error, write_text_block};
use domain::via::{VIA, Via};
use domain::{error_code, meta, skill, translate};
use upstream::passthrough_signals::PassthroughLists;

/// The rules for messages to a client of one revision.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Dialect {
    revision: Revision,
}

/// The gateway's own implementation info and instructions.
#[derive(Clone, Debug)]
pub struct ServerIdentity {
    /// `Implementation` as JSON text.
    server_info: String,
    /// The member `"instructions":"…"`, or empty.
    instructions: String,
}

/// The offer of an endpoint to a client, as its capabilities declare it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Offer {
    pub prompts: bool,
    pub tools: ToolOffer,
    /// Declared in the modern era only: no other has the extension.
    pub skills: bool,
    /// Whether links in prompts can be read.
    pub links: bool,
    /// The capabilities that the upstream of `[passthrough]` has declared.
    pub passthrough: Option<Arc<PassthroughCapabilities>>,
    /// The gateway, and those behind its upstreams.
    pub via: Via,
}

/// The tools that an endpoint declares.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ToolOffer {
    None,
    /// An empty list, which never changes, for hosts that ask every server for tools.
    Empty,
    /// Tools that stand for prompts.
    Prompts,
}

/// The form in which a client gets the result of a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ResultForm {
    /// The result of the method for prompts.
    Prompt,
    /// The result of a tool that stands for prompts.
    Tool,
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

    /// Writes the notification `method` that a list has changed, for a subscription with its id.
    pub fn list_changed(self, method: &str, subscription: Option<&Id>) -> String {
        jsonrpc::notification(method, |params| {
            if let Some(id) = subscription {
                write_subscription(id, params);
            }
        })
    }

    /// Writes `notifications/message` with the members that the protocol defines.
    pub fn log_message(self, params: Json<'_>) -> String {
        jsonrpc::notification(MESSAGE, |out| {
            for (key, value) in params.members() {
                if ["level", "logger", "data"].iter().any(|name| key.is(name)) {
                    out.member(key, value);
                }
            }
        })
    }

    /// Writes `notifications/progress` with the client's progress token and with the members that
    /// the revision defines: `message` exists since MCP 2025-03-26.
    pub fn progress(self, token: &Id, params: Json<'_>) -> String {
        let has_message = self.revision >= Revision::V2025_03_26;
        jsonrpc::notification(PROGRESS, |out| {
            for (key, value) in params.members() {
                let is_known = match key.as_str().as_deref() {
                    Some("progress" | "total") => value.kind() == JsonKind::Number,
                    Some("message") => value.kind() == JsonKind::String && has_message,
                    _ => false,
                };
                if is_known {
                    out.member(key, value);
                }
            }
            out.json("progressToken", token.text());
        })
    }

    /// Returns whether the revision has `notifications/elicitation/complete`.
    pub fn has_elicitation_complete(self) -> bool {
        self.revision == Revision::V2025_11_25
    }

    /// Writes `notifications/elicitation/complete` (MCP 2025-11-25, URL elicitation).
    pub fn elicitation_complete(self, id: &str) -> String {
        jsonrpc::notification(ELICITATION_COMPLETE, |params| {
            params.text("elicitationId", id);
        })
    }

    /// Writes a server request as a JSON-RPC request of the gateway.
    pub fn server_request(
        self,
        id: &Id,
        server_request: &ServerRequest,
        origin: &RequestOrigin,
    ) -> String {
        let presentation = self.presentation(origin, id.text().trim_matches('"'));
        jsonrpc::message(512, |request| {
            request.json("id", id.text()).text("method", server_request.method());
            request.written("params", |out| server_request.write_params(presentation, out));
        })
    }

    fn presentation<'a>(self, origin: &'a RequestOrigin, id: &'a str) -> Presentation<'a> {
        Presentation {
            upstream: &origin.upstream,
            label: origin.label,
            revision: self.revision,
            id,
        }
    }

    /// Writes `notifications/cancelled`: withdraws a server request, or ends a subscription on a
    /// connection, where there is no stream to close.
    pub fn cancelled(self, id: &Id) -> String {
        jsonrpc::notification(CANCELLED, |params| {
            params.json("requestId", id.text());
        })
    }

    /// Writes the first message of a subscription (MCP 2026-07-28, subscriptions): the
    /// notifications that the gateway will send.
    pub(crate) fn acknowledged(
        self,
        subscription: &Id,
        kinds: ListKinds,
        passthrough: PassthroughLists,
    ) -> String {
        jsonrpc::notification(SUBSCRIPTION_ACKNOWLEDGED, |params| {
            write_subscription(subscription, params);
            params.object("notifications", |granted| {
                if kinds.prompts {
                    granted.display("promptsListChanged", true);
                }
                if kinds.tools || passthrough.tools {
                    granted.display("toolsListChanged", true);
                }
                if passthrough.resources {
                    granted.display("resourcesListChanged", true);
                }
            });
        })
    }

    /// Writes the result of `subscriptions/listen`, which ends the subscription (MCP 2026-07-28,
    /// subscriptions).
    pub fn listen_result(self, subscription: &Id, identity: &ServerIdentity) -> String {
        let mut out = String::new();
        write_object(&mut out, |result| {
            self.lead(identity, result, |meta| {
                meta.json(meta::SUBSCRIPTION_ID, subscription.text());
            });
        });
        out
    }

    /// Writes the result of `initialize` (legacy era).
    pub fn initialize(self, identity: &ServerIdentity, offer: Offer) -> String {
        let mut out = String::new();
        write_object(&mut out, |result| {
            result.text("protocolVersion", self.revision.as_str());
            result.members(&identity.instructions);
            result.object_unless_empty("_meta", |meta| write_via(&offer.via, meta));
            self.write_capabilities(offer, result);
            result.json("serverInfo", &identity.server_info);
        });
        out
    }

    /// Writes the result of `server/discover` (modern era), which changes with the configuration,
    /// and with the first skill. `ttl_ms` is in milliseconds.
    pub fn discover(self, identity: &ServerIdentity, offer: Offer, ttl_ms: u128) -> String {
        let mut out = String::new();
        write_object(&mut out, |result| {
            self.lead(identity, result, |meta| write_via(&offer.via, meta));
            let versions = Revision::modern().map(Revision::as_str);
            result.array("supportedVersions", versions, write_str);
            result.members(&identity.instructions);
            self.write_capabilities(offer, result);
            result.display("ttlMs", ttl_ms).text("cacheScope", "public");
        });
        out
    }

    fn write_capabilities(self, offer: Offer, result: &mut ObjectWriter<'_>) {
        result.object("capabilities", |capabilities| {
            if offer.prompts {
                capabilities.object("prompts", |prompts| {
                    prompts.display("listChanged", true);
                });
                // The capability exists since MCP 2025-03-26. Clients of 2024-11-05 may call the
                // method as well.
                if self.revision > Revision::V2024_11_05 {
                    capabilities.object("completions", |_| {});
                }
            }
            let passthrough = offer.passthrough.as_deref();
            let has_skills = offer.skills && self.has_skills();
            let announces_tools = offer.tools == ToolOffer::Prompts
                || passthrough.and_then(|passthrough| passthrough.tools) == Some(true);
            if offer.tools != ToolOffer::None
                || passthrough.is_some_and(|passthrough| passthrough.tools.is_some())
            {
                capabilities.object("tools", |tools| {
                    if announces_tools {
                        tools.display("listChanged", true);
                    }
                });
            }
            self.write_resources(passthrough, has_skills, offer.links, capabilities);
            if let Some(passthrough) = passthrough {
                self.write_passthrough(passthrough, offer.prompts, capabilities);
            }
        });
    }

    /// Writes the capability `resources` and the extensions: those of skills, and those of the
    /// upstream of `[passthrough]`.
    fn write_resources(
        self,
        passthrough: Option<&PassthroughCapabilities>,
        has_skills: bool,
        has_links: bool,
        capabilities: &mut ObjectWriter<'_>,
    ) {
        let resources = passthrough.and_then(|passthrough| passthrough.resources);
        if has_skills || has_links || resources.is_some() {
            capabilities.object("resources", |out| {
                if resources == Some(true) {
                    out.display("listChanged", true);
                }
            });
        }
        if self.revision.era() == Era::Legacy {
            return;
        }
        capabilities.object_unless_empty("extensions", |out| {
            if has_skills {
                out.object(skill::EXTENSION, |skills| {
                    skills.display("directoryRead", true);
                });
            }
            out.members(passthrough.map_or("", |passthrough| &passthrough.extensions));
        });
    }

    /// Writes the capabilities of the upstream of `[passthrough]` but for its tools and resources.
    fn write_passthrough(
        self,
        passthrough: &PassthroughCapabilities,
        has_prompts: bool,
        capabilities: &mut ObjectWriter<'_>,
    ) {
        if passthrough.logging {
            capabilities.object("logging", |_| {});
        }
        if passthrough.completions && !has_prompts {
            capabilities.object("completions", |_| {});
        }
    }

    /// Writes the result of a call.
    pub fn reply(self, reply: &Reply, form: ResultForm, identity: &ServerIdentity) -> Chunks {
        match reply {
            Reply::List(list) => self.list(list, identity),
            Reply::Found(found) => self.found(found, identity).into(),
            Reply::Prompt(prompt) => match form {
                ResultForm::Prompt => self.prompt(prompt, identity),
                ResultForm::Tool => self.prompt_as_tool(prompt, identity).into(),
            },
            Reply::InputRequired(input_required) => {
                self.input_required(input_required, identity).into()
            }
            Reply::Passthrough(passthrough) => self.passthrough(passthrough, identity),
            Reply::Completion { completion, origin } => {
                let mut out = String::new();
                write_object(&mut out, |result| {
                    self.lead(identity, result, |meta| write_origin(origin, meta));
                    write_completion(completion, result);
                });
                out.into()
            }
            Reply::Skill(skill) => match form {
                ResultForm::Prompt => self.skill(skill, identity),
                ResultForm::Tool => self.skill_as_tool(skill, identity),
            },
            Reply::Resource(resource) => self.resource(resource, identity),
        }
    }

    /// Writes a result of the upstream of `[passthrough]`, with the members that each hop sets.
    fn passthrough(self, reply: &PassthroughReply, identity: &ServerIdentity) -> Chunks {
        let from_upstream = reply.result.json();
        let mut splices = Splices::default();
        let mut out = String::with_capacity(from_upstream.text().len().min(4 << 10) + 512);
        let is_modern = self.revision.era() == Era::Modern;
        // Any JSON value since MCP 2026-07-28; elsewhere a null is a member that is not there.
        let may_be_null = |key: Json<'_>| is_modern && key.is("structuredContent");
        write_object(&mut out, |result| {
            self.lead(identity, result, |meta| write_rest_meta(reply, meta));
            for (key, value) in from_upstream.members() {
                let is = |names: &[&str]| names.iter().any(|name| key.is(name));
                let is_ours = is(&["_meta", "resultType"])
                    || reply.caching.is_some() && is(&["ttlMs", "cacheScope"])
                    || reply.page.is_some() && is(&["nextCursor"]);
                if let Some(page) = reply.page.as_ref().filter(|page| key.is(page.list.member)) {
                    result.rewritten(key, |out| write_page(reply, page, &mut splices, out));
                } else if !is_ours && (value.kind() != JsonKind::Null || may_be_null(key)) {
                    result.rewritten(key, |out| {
                        splices.add(out, value.text(), || reply.result.slice(value));
                    });
                }
            }
            if let Some((ttl, scope)) = reply.caching.filter(|_| is_modern) {
                result.display("ttlMs", ttl.as_millis()).text("cacheScope", scope.as_str());
            }
            if let Some(cursor) = reply.page.as_ref().and_then(|page| page.next_cursor.as_ref()) {
                result.text("nextCursor", cursor);
            }
        });
        splices.into_chunks(out)
    }

    /// Writes a page of found prompts or skills as the result of a tool: as data, and as text for
    /// older clients (MCP 2025-11-25, tools, structured content).
    fn found(self, found: &FoundReply, identity: &ServerIdentity) -> String {
        let mut data = String::with_capacity(found.elements.len() + 256);
        write_object(&mut data, |data| {
            let member = match found.sought {
                Sought::Prompts => "prompts",
                Sought::Skills => "skills",
            };
            data.written(member, |out| out.extend(["[", &found.elements, "]"]));
            if let Some(cursor) = &found.next_cursor {
                data.text("nextCursor", cursor);
            }
        });
        let mut out = String::with_capacity(3 * data.len());
        write_object(&mut out, |result| {
            self.lead(identity, result, |meta| {
                write_incomplete(&found.incomplete, found.now, meta);
            });
            result.array("content", [&data], |data, out| write_text_block(data, out));
            result.json("structuredContent", &data);
        });
        out
    }

    /// Writes a fault as the result of a tool, so that a model can read it (MCP 2025-11-25, tools,
    /// error handling).
    pub fn tool_error(self, fault: &Fault, identity: &ServerIdentity) -> String {
        let mut out = String::new();
        write_object(&mut out, |result| {
            self.lead(identity, result, |meta| {
                meta.text("promptgate/reason", fault.reason());
                if let Some(id) = fault.correlation() {
                    meta.text("promptgate/correlationId", &id.to_string());
                }
            });
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
            write_error(&message, result);
        });
        out
    }

    /// Writes the messages of a prompt as the result of a tool.
    fn prompt_as_tool(self, prompt: &PromptReply, identity: &ServerIdentity) -> String {
        let PromptReply { result, origin, overlay, .. } = prompt;
        let upstream_result = result.json();
        let mut out = String::with_capacity(upstream_result.text().len() + 1024);
        write_object(&mut out, |result| {
            // Hosts obey some metadata of tools, so no metadata of an upstream is passed on.
            self.lead(identity, result, |meta| write_own_meta(prompt, meta));
            result.written("content", |out| match upstream_result.get("messages") {
                Some(messages) => {
                    let linked = with_links(prompt, messages);
                    let messages = linked.as_deref().map_or(messages, Json::accepted);
                    let messages = with_messages(overlay.as_deref(), messages);
                    write_content(messages, &origin.name, self.revision, out);
                }
                None => out.push_str("[]"),
            });
        });
        out
    }

    fn prompt(self, prompt: &PromptReply, identity: &ServerIdentity) -> Chunks {
        let PromptReply { result: document, origin, overlay, links, .. } = prompt;
        let overlay = overlay.as_deref();
        let upstream_result = document.json();
        let mut splices = Splices::default();
        let mut out = String::with_capacity(upstream_result.text().len().min(4 << 10) + 512);
        write_object(&mut out, |result| {
            self.lead(identity, result, |meta| {
                write_prompt_meta(prompt, meta);
            });
            for (key, value) in upstream_result.members() {
                let is_ours = ["_meta", "resultType"].iter().any(|name| key.is(name));
                if key.is("messages") && translate::applies(value, self.revision) {
                    result.written("messages", |out| {
                        let linked = with_links(prompt, value);
                        let messages = linked.as_deref().map_or(value, Json::accepted);
                        let messages = with_messages(overlay, messages);
                        translate::write_messages(messages, &origin.name, self.revision, out);
                    });
                } else if key.is("messages") && (overlay.is_some() || !links.is_empty()) {
                    result.written("messages", |out| {
                        write_messages(prompt, value, &mut splices, out);
                    });
                } else if !is_ours && value.kind() != JsonKind::Null {
                    result.rewritten(key, |out| {
                        splices.add(out, value.text(), || document.slice(value));
                    });
                }
            }
        });
        splices.into_chunks(out)
    }

    /// Writes the resource behind a link in a prompt, which is for its caller only.
    fn resource(self, resource: &ResourceReply, identity: &ServerIdentity) -> Chunks {
        let ResourceReply { result: document, origin, flags, links } = resource;
        let from_upstream = document.json();
        let mut splices = Splices::default();
        let mut out = String::with_capacity(from_upstream.text().len().min(4 << 10) + 512);
        write_object(&mut out, |result| {
            self.lead(identity, result, |meta| {
                if let Some(upstream_meta) = from_upstream.get("_meta") {
                    meta::write_foreign(upstream_meta, meta);
                }
                write_origin(origin, meta);
                write_flags(flags, meta);
            });
            for (key, value) in from_upstream.members().filter(|(key, _)| key.is("contents")) {
                result.rewritten(key, |out| {
                    links.write(document, value.text(), &mut splices, out);
                });
            }
            if self.revision.era() == Era::Modern {
                let ttl = from_upstream.get("ttlMs").and_then(Json::as_i64).unwrap_or_default();
                result.display("ttlMs", ttl.max(0)).text("cacheScope", "private");
            }
        });
        splices.into_chunks(out)
    }

    /// Writes the entry of a skill, a file or a folder of it (extension for skills).
    fn skill(self, skill: &SkillReply, identity: &ServerIdentity) -> Chunks {
        let SkillReply { body, origin, ttl, scope, is_snapshot } = skill;
        let mut splices = Splices::default();
        let mut out = String::with_capacity(2 << 10);
        write_object(&mut out, |result| {
            self.lead(identity, result, |meta| {
                write_origin(origin, meta);
                if *is_snapshot {
                    meta.display("promptgate/snapshot", true);
                }
            });
            match body {
                SkillBody::Entry(entry) => result.json("skill", entry),
                SkillBody::Directory(elements) => {
                    result.written("resources", |out| out.extend(["[", elements, "]"]))
                }
                SkillBody::File { uri, result: file, .. } => result.written("contents", |out| {
                    out.push('[');
                    write_file(uri, file, &mut splices, out);
                    out.push(']');
                }),
            };
            if self.revision.era() == Era::Modern {
                result.display("ttlMs", ttl.as_millis()).text("cacheScope", scope.as_str());
            }
        });
        splices.into_chunks(out)
    }

    /// Writes a file of a skill as the result of a tool. Behind a `SKILL.md` come the names of the
    /// other files.
    fn skill_as_tool(self, skill: &SkillReply, identity: &ServerIdentity) -> Chunks {
        let SkillReply { body, origin, .. } = skill;
        let mut splices = Splices::default();
        let mut out = String::with_capacity(2 << 10);
        write_object(&mut out, |result| {
            self.lead(identity, result, |meta| write_origin(origin, meta));
            result.written("content", |out| {
                out.push('[');
                if let SkillBody::File { uri, result: file, skill } = body {
                    write_file_block(uri, file, &mut splices, out);
                    let names = skill.as_ref().map(|skill| skill.other_files());
                    if let Some(names) = names.filter(|names| !names.is_empty()) {
                        out.push(',');
                        let names = names.join("\n- ");
                        write_text_block(&format!("Files of this skill:\n- {names}"), out);
                    }
                }
                out.push(']');
            });
        });
        splices.into_chunks(out)
    }

    /// Writes an `InputRequiredResult` with server requests (MCP 2026-07-28, multi-round-trip
    /// requests).
    fn input_required(self, input_required: &InputRequired, identity: &ServerIdentity) -> String {
        let InputRequired { server_requests, state, origin } = input_required;
        let mut out = String::with_capacity(state.len() + 1024);
        write_object(&mut out, |result| {
            result.text("resultType", "input_required").object("_meta", |meta| {
                meta.json(meta::SERVER_INFO, &identity.server_info);
                meta.text("promptgate/upstream", &origin.upstream);
            });
            result.object("inputRequests", |requests| {
                for (key, server_request) in server_requests {
                    let presentation = self.presentation(origin, key);
                    requests.object(key, |request| {
                        request.text("method", server_request.method()).written("params", |out| {
                            server_request.write_params(presentation, out);
                        });
                    });
                }
            });
            result.text("requestState", state);
        });
        out
    }

    /// Writes the empty list of a kind that the gateway does not have; `member` is the name of the
    /// list. `ttl_ms` is in milliseconds.
    pub fn empty_list(self, member: &str, identity: &ServerIdentity, ttl_ms: u128) -> String {
        let mut out = String::new();
        write_object(&mut out, |result| {
            self.lead(identity, result, |_| {});
            if self.revision.era() == Era::Modern {
                result.display("ttlMs", ttl_ms).text("cacheScope", "public");
            }
            result.json(member, "[]");
        });
        out
    }

    /// Returns the fault of a read of a resource that does not exist.
    pub fn unknown_resource(self, uri: &str) -> RequestFault {
        RequestFault::unknown_resource(self.revision.era() == Era::Modern, uri)
    }

    fn list(self, list: &ListReply, identity: &ServerIdentity) -> Chunks {
        let mut splices = Splices::default();
        let mut out = String::with_capacity(2 << 10);
        write_object(&mut out, |result| {
            self.lead(identity, result, |meta| write_incomplete(&list.incomplete, list.now, meta));
            if self.revision.era() == Era::Modern {
                result.display("ttlMs", list.ttl.as_millis());
                result.text("cacheScope", list.scope.as_str());
            }
            let member = match list.kind {
                ListKind::Prompts => "prompts",
                ListKind::Tools => "tools",
                ListKind::Skills => "skills",
            };
            result.written(member, |out| {
                out.push('[');
                list.elements.iter().for_each(|piece| splices.add_bytes(out, piece.clone()));
                out.push(']');
            });
            if let Some(cursor) = &list.next_cursor {
                result.text("nextCursor", cursor);
            }
        });
        // The catalog keeps its elements, however many responses share them.
        let kept = splices.size();
        splices.into_chunks(out).with_kept_elsewhere(kept)
    }

    /// Writes the first members of a result: `resultType` in the modern era, and `_meta` with the
    /// members that `write_meta` adds.
    fn lead(
        self,
        identity: &ServerIdentity,
        result: &mut ObjectWriter<'_>,
        write_meta: impl FnOnce(&mut ObjectWriter<'_>),
    ) {
        let is_modern = self.revision.era() == Era::Modern;
        if is_modern {
            result.text("resultType", "complete");
        }
        result.object_unless_empty("_meta", |meta| {
            if is_modern {
                meta.json(meta::SERVER_INFO, &identity.server_info);
            }
            write_meta(meta);
        });
    }
}

fn write_via(via: &Via, meta: &mut ObjectWriter<'_>) {
    if !via.is_none() {
        meta.text(VIA, via.as_str());
    }
}

/// Appends the messages of an upstream, a JSON array, with sealed links, and those of the overlays
/// around them.
fn write_messages(
    prompt: &PromptReply,
    messages: Json<'_>,
    splices: &mut Splices,
    out: &mut String,
) {
    let PromptReply { result: document, overlay, links, .. } = prompt;
    let inner = &messages.text()[1..messages.text().len() - 1];
    let is_empty = inner.trim_ascii().is_empty();
    let joined =
        |added: &[AddedMessage]| added.iter().map(AddedMessage::json).collect::<Vec<_>>().join(",");
    let overlay = overlay.as_deref();
    let before = overlay.map(|overlay| joined(overlay.before())).unwrap_or_default();
    let after = overlay.map(|overlay| joined(overlay.after())).unwrap_or_default();
    out.extend(["[", &before]);
    if !before.is_empty() && !is_empty {
        out.push(',');
    }
    links.write(document, inner, splices, out);
    let is_first = is_empty && before.is_empty();
    if !after.is_empty() && !is_first {
        out.push(',');
    }
    out.extend([&after, "]"]);
}

/// Returns a copy of the messages with sealed links, where there are any.
fn with_links(prompt: &PromptReply, messages: Json<'_>) -> Option<String> {
    let PromptReply { result, links, .. } = prompt;
    (!links.is_empty()).then(|| links.applied(result, messages))
}

/// Writes the file that is the only content of an upstream's result, under its public URI.
fn write_file(uri: &str, file: &Document, splices: &mut Splices, out: &mut String) {
    let Some(content) = only_content(file.json()) else { return };
    write_object(out, |out| {
        out.text("uri", uri);
        let mime = content.get("mimeType").and_then(Json::as_str);
        if let Some(mime) = mime.filter(|mime| is_mime_type(mime)) {
            out.text("mimeType", &mime);
        }
        for (key, value) in content.members().filter(|(key, _)| key.is("text") || key.is("blob")) {
            out.rewritten(key, |out| splices.add(out, value.text(), || file.slice(value)));
        }
    });
}

/// Writes a file of a skill as content of a tool: a text, or an embedded resource.
fn write_file_block(uri: &str, file: &Document, splices: &mut Splices, out: &mut String) {
    let text = only_content(file.json()).and_then(|content| content.get("text"));
    write_object(out, |block| {
        match text {
            Some(text) => block.text("type", "text").written("text", |out| {
                splices.add(out, text.text(), || file.slice(text));
            }),
            None => block
                .text("type", "resource")
                .written("resource", |out| write_file(uri, file, splices, out)),
        };
    });
}

fn write_subscription(id: &Id, params: &mut ObjectWriter<'_>) {
    params.object("_meta", |meta| {
        meta.json(meta::SUBSCRIPTION_ID, id.text());
    });
}

/// Appends the elements of a page: tools that stand for prompts, and elements the caller may use.
fn write_page(
    reply: &PassthroughReply,
    page: &PassthroughPage,
    splices: &mut Splices,
    out: &mut String,
) {
    out.push('[');
    let mut is_first = true;
    for piece in page.ours.iter().filter(|piece| !piece.is_empty()) {
        is_first = false;
        splices.add_bytes(out, piece.clone());
    }
    for element in page.elements(reply.result.json()) {
        if !std::mem::take(&mut is_first) {
            out.push(',');
        }
        splices.add(out, element.text(), || reply.result.slice(element));
    }
    out.push(']');
}

fn write_rest_meta(reply: &PassthroughReply, meta: &mut ObjectWriter<'_>) {
    if let Some(upstream_meta) = reply.result.json().get("_meta") {
        meta::write_foreign(upstream_meta, meta);
    }
    // An empty result stays empty: clients check that of `logging/setLevel`.
    if reply.result.json().members().any(|(key, _)| !key.is("resultType")) {
        meta.text("promptgate/upstream", reply.upstream.as_str());
    }
    let incomplete = reply.page.as_ref().and_then(|page| page.incomplete.as_ref());
    write_incomplete(incomplete.map_or(&[], std::slice::from_ref), Instant::now(), meta);
}

fn write_prompt_meta(prompt: &PromptReply, meta: &mut ObjectWriter<'_>) {
    if let Some(upstream_meta) = prompt.result.json().get("_meta") {
        meta::write_foreign(upstream_meta, meta);
        // Only libraries and stores have versions; the gateway itself makes their results.
        let config = upstream_meta.get(meta::CONFIG).filter(|_| prompt.origin.version.is_some());
        if let Some(config) = config {
            meta.json(meta::CONFIG, config.text());
        }
    }
    write_own_meta(prompt, meta);
}

fn write_own_meta(prompt: &PromptReply, meta: &mut ObjectWriter<'_>) {
    let PromptReply { origin, flags, .. } = prompt;
    write_origin(origin, meta);
    if prompt.is_snapshot {
        meta.display("promptgate/snapshot", true);
    }
    write_flags(flags, meta);
}

fn write_flags(flags: &Flags, meta: &mut ObjectWriter<'_>) {
    if let Some(places) = &flags.hidden_text {
        meta.json("promptgate/hiddenText", places);
    }
    if let Some(places) = &flags.unsafe_uris {
        meta.json("promptgate/unsafeUris", places);
    }
}

fn write_origin(origin: &ResultOrigin, meta: &mut ObjectWriter<'_>) {
    let upstream = origin.upstream.as_str();
    meta.text("promptgate/upstream", upstream).text("promptgate/digest", &origin.digest);
    if let Some(version) = &origin.version {
        // The member has the same name as in the definition of the prompt.
        meta.text("version", &version.version);
        if let Some(label) = &version.label {
            meta.text("label", label);
        }
    }
    if let Some(chosen) = &origin.rollout {
        meta.text("promptgate/rollout", chosen);
    }
}

/// Writes `promptgate/incomplete`, which names the upstreams whose prompts are out of date or
/// missing.
fn write_incomplete(incomplete: &[Incomplete], now: Instant, meta: &mut ObjectWriter<'_>) {
    if incomplete.is_empty() {
        return;
    }
    meta.array("promptgate/incomplete", incomplete, |part, out| {
        write_object(out, |entry| {
            entry.text("upstream", part.upstream.as_str()).text("reason", part.kind.reason());
            entry.display("stale", part.walked_at.is_some());
            if let Some(walked_at) = part.walked_at {
                entry.display("ageMs", now.duration_since(walked_at).as_millis());
            }
        });
    });
}

fn write_completion(completion: &Completion, result: &mut ObjectWriter<'_>) {
    let Completion { values, total, has_more } = completion;
    result.object("completion", |out| {
        out.written("values", |out| out.extend(["[", values, "]"]));
        if let Some(total) = total {
            out.display("total", total);
        }
        if let Some(has_more) = has_more {
            out.display("hasMore", has_more);
        }
    });
}

/// Writes a JSON-RPC response around a result, which is JSON text.
pub(crate) fn result_chunks(id: &Id, result: Chunks) -> Chunks {
    let before = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":", id.text());
    result.between(&before, "}")
}

/// Writes a JSON-RPC response; `result` is JSON text.
pub(crate) fn result_message(id: &Id, result: &str) -> String {
    jsonrpc::message(result.len() + 64, |response| {
        response.json("id", id.text()).json("result", result);
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use domain::document::Document;

    const OFFER: Offer = Offer {
        prompts: true,
        tools: ToolOffer::Empty,
        skills: false,
        links: false,
        passthrough: None,
        via: Via::NONE,
    };

    fn reply(revision: Revision, result: &str) -> Value {
        let result = Document::parse(result.as_bytes().to_vec(), 64).unwrap();
        let origin = ResultOrigin {
            upstream: domain::name::UpstreamId::parse("up").unwrap(),
            digest: "sha256:00".into(),
            name: "up__p".into(),
            version: None,
            rollout: None,
        };
        let identity = ServerIdentity::new("gate", None);
        let text = Dialect::new(revision).reply(
            &Reply::Prompt(PromptReply::of(result, origin)),
            ResultForm::Prompt,
            &identity,
        );
        serde_json::from_str(&text.into_text()).unwrap()
    }

    #[test]
    fn results_have_the_members_of_their_era_and_pass_unknown_ones() {
        let from_upstream = r#"{"messages":[],"description":"d","x":{"y":null},"resultType":"complete",
            "_meta":{"promptgate/upstream":"evil","io.modelcontextprotocol/serverInfo":{},"k":1}}"#;
        let legacy = reply(Revision::V2025_06_18, from_upstream);
        let meta = json!({"k": 1, "promptgate/upstream": "up", "promptgate/digest": "sha256:00"});
        assert_eq!(legacy, json!({"_meta": meta, "messages": [], "description": "d", "x": {}}));
        let modern = reply(Revision::V2026_07_28, from_upstream);
        assert_eq!(modern["resultType"], "complete");
        assert_eq!(modern["_meta"][meta::SERVER_INFO]["name"], "gate");
        assert_eq!(modern["_meta"]["promptgate/upstream"], "up");
    }

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
