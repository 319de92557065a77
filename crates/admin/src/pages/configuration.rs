//! The configuration in use, and the reloads with the outcome of each.

use askama::Template;

use super::Page;
use crate::console::ConsoleSection;
use crate::console::filters;
use crate::console::text::{Html, ShownText};
use crate::documents::ReplicaRow;
use crate::reloads::Reload;
use crate::request::{PageRequest, Paging, Params};
use crate::state::AdminState;
use config::key::Key;
use config::reference::of_setting;
use config::{Origin, Setting};

/// The configuration in use.
#[derive(Template)]
#[template(path = "configuration.html")]
pub(super) struct Configuration {
    digest: String,
    settings: Vec<SettingRow>,
    paging: Paging,
    /// Keys that the file or the environment sets, and all with their defaults, that match.
    set: usize,
    all: usize,
    /// The newest first.
    reloads: Vec<Reload>,
    /// Mistakes in the file, if it is rejected at present.
    mistakes: Vec<String>,
    needs_restart: Vec<&'static str>,
    why_unready: Vec<String>,
    /// The rows of `/api/v1/replicas`.
    replicas: Vec<ReplicaRow>,
    params: Params,
}

/// One key.
struct SettingRow {
    key: String,
    value: String,
    /// `default`, `line N`, or the name of a variable.
    origin: String,
    /// A sentence.
    meaning: Html,
}

impl Page for Configuration {
    const SECTION: ConsoleSection = ConsoleSection::Configuration;
}

/// Rows of one page.
const PAGE: usize = 200;

/// Returns the keys that match the parameter `q`: without `defaults`, only keys that are set.
pub(super) fn configuration(state: &AdminState, request: &PageRequest) -> Configuration {
    let params = &request.params;
    let text = params.get("q").trim().to_lowercase();
    let is_wanted = |setting: &&Setting| {
        setting.key.to_lowercase().contains(&text) || setting.value.to_lowercase().contains(&text)
    };
    let mut settings: Vec<_> = state.config.settings.iter().filter(is_wanted).collect();
    let all = settings.len();
    let set = settings.iter().filter(|setting| setting.origin.is_some()).count();
    if params.some("defaults").is_none() {
        settings.retain(|setting| setting.origin.is_some());
    }
    let paging = request.paging(settings.len(), PAGE);
    let shown = settings.into_iter().skip(paging.start).take(paging.size);
    Configuration {
        digest: state.config.digest.clone(),
        settings: shown.map(row).collect(),
        paging,
        set,
        all,
        reloads: state.reloads.history(),
        mistakes: state.reloads.mistakes(),
        needs_restart: state.reloads.needs_restart(),
        why_unready: state.unready_reasons(),
        replicas: state.replicas().replicas,
        params: params.clone(),
    }
}

impl Configuration {
    /// The query of the same search with all keys, or only with keys that are set.
    fn switched(&self, defaults: &str) -> String {
        self.params.without(&["page"]).with("defaults", defaults)
    }

    fn has_defaults(&self) -> bool {
        self.params.some("defaults").is_some()
    }

    fn replica_rows(&self) -> Vec<[String; 5]> {
        let row = |replica: &ReplicaRow| {
            [
                replica.name.clone(),
                replica.version.clone(),
                replica.config_digest.clone(),
                replica.catalog_digest.clone(),
                replica.seen_ms.to_string(),
            ]
        };
        self.replicas.iter().map(row).collect()
    }
}

fn row(setting: &Setting) -> SettingRow {
    let origin = match &setting.origin {
        None => "default".to_owned(),
        Some(Origin::Line(line)) => format!("line {line}"),
        Some(Origin::Environment(name)) => name.clone(),
        Some(Origin::Unknown) => "file".to_owned(),
    };
    let meaning = with_code(&of_setting(&setting.key).map(meaning).unwrap_or_default());
    SettingRow { key: setting.key.clone(), value: setting.value.clone(), origin, meaning }
}

/// Returns the first sentence of a meaning, or all of it where it begins with one of many values.
fn meaning(key: &Key) -> String {
    if key.meaning.starts_with('`') { key.meaning.clone() } else { key.summary() }
}

/// Returns a text of the reference as HTML, with text between backticks as code.
fn with_code(text: &str) -> Html {
    let part = |(index, part)| match index % 2 {
        0 => ShownText(part).to_string(),
        _ => format!("<code>{}</code>", ShownText(part)),
    };
    Html(text.split('`').enumerate().map(part).collect())
}
