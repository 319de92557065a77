//! The configuration in use, the keys that the last reload changed, and the reloads.

use askama::Template;
use serde_json::Value;

use super::Page;
use crate::console::ConsoleSection;
use crate::console::text::filters;
use crate::reloads::Reload;
use crate::request::{PageRequest, Paging, Params};
use crate::state::AdminState;
use config::{Origin, Setting};

/// The configuration in use.
#[derive(Template)]
#[template(path = "configuration.html")]
pub(super) struct Configuration {
    digest: String,
    settings: Vec<SettingRow>,
    paging: Paging,
    /// The newest first.
    reloads: Vec<Reload>,
    /// Mistakes in the file, if it is rejected at present.
    mistakes: Vec<String>,
    needs_restart: Vec<&'static str>,
    why_unready: Vec<String>,
    /// As `/api/v1/replicas` has them.
    replicas: Value,
    params: Params,
}

/// One key.
struct SettingRow {
    key: String,
    value: String,
    /// `default`, `line N`, or the name of a variable.
    origin: String,
}

impl Page for Configuration {
    const SECTION: ConsoleSection = ConsoleSection::Configuration;
}

/// Rows of one page.
const PAGE: usize = 200;

/// Returns the keys that match the parameters `q` and `origin` (`file`, `env` or `default`).
pub(super) fn configuration(state: &AdminState, request: &PageRequest) -> Configuration {
    let params = &request.params;
    let text = params.get("q").trim().to_lowercase();
    let is_wanted = |setting: &&Setting| {
        let is_origin = match (params.get("origin"), &setting.origin) {
            ("file", origin) => matches!(origin, Some(Origin::Line(_))),
            ("env", origin) => matches!(origin, Some(Origin::Environment(_))),
            ("default", origin) => origin.is_none(),
            _ => true,
        };
        is_origin
            && (setting.key.to_lowercase().contains(&text)
                || setting.value.to_lowercase().contains(&text))
    };
    let settings: Vec<_> = state.config.settings.iter().filter(is_wanted).collect();
    let paging = request.paging(settings.len(), PAGE);
    let shown = settings.into_iter().skip(paging.start).take(paging.size);
    Configuration {
        digest: state.config.digest.clone(),
        settings: shown.map(row).collect(),
        paging,
        reloads: state.reloads.history(),
        mistakes: state.reloads.mistakes(),
        needs_restart: state.reloads.needs_restart(),
        why_unready: state.unready_reasons(),
        replicas: state.replicas(),
        params: params.clone(),
    }
}

impl Configuration {
    fn has_replicas(&self) -> bool {
        self.replicas["replicas"].as_array().is_some_and(|replicas| !replicas.is_empty())
    }

    fn replica_rows(&self) -> Vec<[String; 5]> {
        let rows = self.replicas["replicas"].as_array().into_iter().flatten();
        let text = |row: &Value, key: &str| match &row[key] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        let keys = ["name", "version", "configDigest", "catalogDigest", "seenMs"];
        rows.map(|row| keys.map(|key| text(row, key))).collect()
    }
}

fn row(setting: &Setting) -> SettingRow {
    let origin = match &setting.origin {
        None => "default".to_owned(),
        Some(Origin::Line(line)) => format!("line {line}"),
        Some(Origin::Environment(name)) => name.clone(),
        Some(Origin::Unknown) => "file".to_owned(),
    };
    SettingRow { key: setting.key.clone(), value: setting.value.clone(), origin }
}
