//! The capabilities that an endpoint declares to a client.

use std::sync::Arc;

use domain::calls::passthrough::PassthroughCapabilities;
use domain::json::object::ObjectWriter;
use domain::prompts::skill;
use domain::protocol::revision::{Era, Revision};
use domain::protocol::via::Via;

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

pub(super) fn write_capabilities(offer: &Offer, revision: Revision, result: &mut ObjectWriter<'_>) {
    result.object("capabilities", |capabilities| {
        if offer.prompts {
            capabilities.object("prompts", |prompts| {
                prompts.display("listChanged", true);
            });
            // The capability exists since MCP 2025-03-26. Clients of 2024-11-05 may call the method
            // as well.
            if revision > Revision::V2024_11_05 {
                capabilities.object("completions", |_| {});
            }
        }
        let passthrough = offer.passthrough.as_deref();
        let has_skills = offer.skills && revision.era() == Era::Modern;
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
        write_resources(passthrough, has_skills, offer.links, revision, capabilities);
        if let Some(passthrough) = passthrough {
            write_passthrough(passthrough, offer.prompts, capabilities);
        }
    });
}

/// Writes the capability `resources` and the extensions: those of skills, and those of the upstream
/// of `[passthrough]`.
fn write_resources(
    passthrough: Option<&PassthroughCapabilities>,
    has_skills: bool,
    has_links: bool,
    revision: Revision,
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
    if revision.era() == Era::Legacy {
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
