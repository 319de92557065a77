//! The entry of this gateway for a host, filled in.

use askama::Template;
use clap::ValueEnum;

use super::Page;
use crate::console::ConsoleSection;
use crate::console::filters;
use crate::hosts::{ENTRY, GatewayEndpoint, Host, Plan, install_link, plan, with_entry};
use crate::request::PageRequest;
use crate::state::AdminState;
use config::{Config, Exposure};

/// Instructions to connect one host with an endpoint.
#[derive(Template)]
#[template(path = "connect.html")]
pub(super) struct ConnectPage {
    url: String,
    needs_key: bool,
    hosts: Vec<Choice>,
    /// The main endpoint and the views; empty if there is no view.
    endpoints: Vec<Choice>,
    title: &'static str,
    command: Option<String>,
    /// The command of promptgate that writes the entry, if the host has a file.
    write: Option<String>,
    /// The file of the host, and the systems that have it there.
    files: Vec<(String, String)>,
    entry: Option<String>,
    /// An address that opens the host.
    install: Option<String>,
    notes: Vec<String>,
    /// Set where the endpoint offers nothing that the host supports.
    missing_tools: Option<MissingTools>,
}

/// A link of a list, in which one link is chosen.
struct Choice {
    label: String,
    link: String,
    is_chosen: bool,
}

/// The remedy where a host supports tools only, and the endpoint offers no prompts as tools.
enum MissingTools {
    /// The view that offers tools, with its link.
    View { name: String, link: String },
    /// The lines to add to the file.
    Setting,
}

/// A view for hosts that support tools only.
const TOOLS_VIEW: &str = "[views.tools]\nexpose = [\"tools\"]";

impl Page for ConnectPage {
    const SECTION: ConsoleSection = ConsoleSection::Connect;
}

/// Returns the entry of the host that the parameter `host` names, for the main endpoint, or for the
/// view that the parameter `view` names.
pub(super) fn connect(state: &AdminState, request: &PageRequest) -> ConnectPage {
    let (config, params) = (&state.config, &request.params);
    let views = config.views.iter().map(|view| view.name.as_str());
    let view = views.clone().find(|name| *name == params.get("view")).unwrap_or_default();
    let host = Host::from_str(params.get("host"), false).unwrap_or(Host::ClaudeCode);
    let resource = config.server.resource.trim_end_matches('/');
    let url = if view.is_empty() { resource.to_owned() } else { format!("{resource}/{view}") };
    let gateway = GatewayEndpoint {
        name: ENTRY,
        url: &url,
        // Suppresses the command with which a host would start a second gateway.
        is_view: true,
        needs_key: config.auth.required,
        // Suppresses the note on missing tools: the page shows [`MissingTools`] instead.
        has_tools: true,
        config: None,
    };
    let Plan { command, place, notes } = plan(host, &gateway);
    let entry = place.as_ref().and_then(|place| with_entry("", place, gateway.name).ok());
    let install = place.as_ref().and_then(|place| install_link(host, place, gateway.name));
    let host_choice = |own: &Host| Choice {
        label: own.title().to_owned(),
        link: link(*own, endpoint_for(config, *own, view)),
        is_chosen: *own == host,
    };
    let endpoint = |name: &str| Choice {
        label: if name.is_empty() { "main endpoint".to_owned() } else { name.to_owned() },
        link: link(host, name),
        is_chosen: name == view,
    };
    let endpoints = std::iter::once("").chain(views).map(endpoint);
    ConnectPage {
        needs_key: gateway.needs_key,
        hosts: Host::value_variants().iter().map(host_choice).collect(),
        endpoints: endpoints.filter(|_| !config.views.is_empty()).collect(),
        title: host.title(),
        command,
        write: place.is_some().then(|| write(host, view)),
        files: files(host, place.and_then(|place| place.file)),
        entry,
        install,
        notes,
        missing_tools: missing_tools(config, host, view),
        url,
    }
}

fn exposure(config: &Config, view: &str) -> Exposure {
    let found = config.views.iter().find(|own| own.name == view);
    found.map_or(config.server.exposure, |view| view.exposure)
}

/// Returns the view that suits a host: `view`, unless only another view offers enough.
fn endpoint_for<'a>(config: &'a Config, host: Host, view: &'a str) -> &'a str {
    let suits = |view: &str| {
        let Exposure { prompts, tools, .. } = exposure(config, view);
        tools && !host.takes_prompts() || prompts && host.takes_prompts()
    };
    let others = config.views.iter().map(|view| view.name.as_str());
    [view, ""].into_iter().chain(others).find(|view| suits(view)).unwrap_or(view)
}

fn missing_tools(config: &Config, host: Host, view: &str) -> Option<MissingTools> {
    if host.takes_prompts() || exposure(config, view).tools {
        return None;
    }
    Some(match endpoint_for(config, host, view) {
        other if other == view => MissingTools::Setting,
        other => MissingTools::View { name: other.to_owned(), link: link(host, other) },
    })
}

fn link(host: Host, view: &str) -> String {
    let view = if view.is_empty() { String::new() } else { format!("&view={view}") };
    format!("/connect?host={}{view}", key(host))
}

fn write(host: Host, view: &str) -> String {
    let view = if view.is_empty() { String::new() } else { format!(" --view {view}") };
    format!("promptgate connect {}{view} --write", key(host))
}

/// Returns the name of a host as commands take it.
fn key(host: Host) -> String {
    host.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Returns the files of a host, each with the systems that have it there: the file of the user, or
/// that of a project.
fn files(host: Host, project: Option<std::path::PathBuf>) -> Vec<(String, String)> {
    let files = host.user_files();
    let is_one = files.len() == 1;
    let shown = |(file, systems): (String, Vec<&str>)| {
        (file, if is_one { String::new() } else { format!(" ({})", systems.join(", ")) })
    };
    match files.is_empty() {
        true => project
            .map(|file| (file.display().to_string(), " of the project".to_owned()))
            .into_iter()
            .collect(),
        false => files.into_iter().map(shown).collect(),
    }
}
