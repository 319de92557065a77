//! The entry of this gateway for each host, filled in.

use askama::Template;
use clap::ValueEnum;

use super::Page;
use crate::console::ConsoleSection;
use crate::console::text::filters;
use crate::hosts::{ENTRY, GatewayEndpoint, Host, Plan, plan, with_entry};
use crate::request::PageRequest;
use crate::state::AdminState;

/// The entries for an endpoint.
#[derive(Template)]
#[template(path = "connect.html")]
pub(super) struct ConnectPage {
    url: String,
    needs_key: bool,
    hosts: Vec<HostEntry>,
    view: String,
    views: Vec<String>,
}

/// Instructions to connect one host.
struct HostEntry {
    /// As `promptgate connect` names it.
    host: String,
    command: Option<String>,
    /// The file of the host.
    file: Option<String>,
    entry: Option<String>,
    notes: Vec<String>,
}

impl Page for ConnectPage {
    const SECTION: ConsoleSection = ConsoleSection::Connect;
}

/// Returns the entries for the main endpoint, or for the view that the parameter `view` names.
pub(super) fn connect(state: &AdminState, request: &PageRequest) -> ConnectPage {
    let view = request.params.get("view");
    let views: Vec<String> = state.config.views.iter().map(|view| view.name.clone()).collect();
    let view = if views.iter().any(|known| known == view) { view } else { "" };
    let server = &state.config.server;
    let resource = server.resource.trim_end_matches('/');
    let url = if view.is_empty() { resource.to_owned() } else { format!("{resource}/{view}") };
    let gateway = GatewayEndpoint {
        name: ENTRY,
        url: &url,
        // A gateway that the host starts would be a second process.
        is_view: true,
        needs_key: state.config.auth.required,
        config: None,
    };
    let hosts = Host::value_variants().iter().map(|host| entry(*host, &gateway)).collect();
    ConnectPage { needs_key: gateway.needs_key, hosts, view: view.to_owned(), views, url }
}

fn entry(host: Host, gateway: &GatewayEndpoint<'_>) -> HostEntry {
    let Plan { command, place, notes } = plan(host, gateway);
    let name = host.to_possible_value().map(|value| value.get_name().to_owned());
    let entry = place.as_ref().and_then(|place| with_entry("", place, gateway.name).ok());
    let file = place.and_then(|place| place.file).map(|file| file.display().to_string());
    HostEntry { host: name.unwrap_or_default(), command, file, entry, notes }
}
