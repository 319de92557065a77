//! `promptgate list --skills` and `promptgate get skill://…`: the skills of a running gateway.

use serde_json::{Value, json};

use super::client::{Choice, ListFilter, call, list_text};
use crate::cli::shared::args::GatewayArgs;
use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::{printable, terminal_width};
use crate::cli::shared::reach::Reach;
use config::Settings;
use domain::calls::call::ForwardedMeta;
use domain::fault::UpstreamFaultKind as Kind;
use domain::prompts::skill::Skill;
use domain::protocol::server_request::ClientCapabilities;
use upstream::call::request::{RequestParams, UpstreamRequest};

/// Lists the skills whose URIs are chosen.
pub(crate) fn list(gateway: &GatewayArgs, choice: &Choice) -> Result<(), Failure> {
    let reach = Reach::find(&gateway.file);
    let filter = ListFilter::new(&reach, choice.pattern.as_deref(), None)?;
    let url = reach.endpoint(gateway.url.as_deref())?;
    let listed = call(&url, async |client| {
        client.list(&Settings::default(), &ForwardedMeta::default()).await
    })?;
    let all = listed.skills.len();
    let skills = listed.skills.iter().map(|skill| entry(skill));
    let is_chosen = |skill: &Value| skill["uri"].as_str().is_some_and(|uri| filter.accepts(uri));
    let skills: Vec<Value> = skills.filter(is_chosen).collect();
    let line = |skill: &Value| json!({"name": skill["uri"], "description": skill["frontmatter"]["description"]});
    let text = match (skills.len(), all) {
        (0, 0) => "The gateway lists no skills.".to_owned(),
        (0, all) => format!("None of the {all} skills matches."),
        _ => list_text(&skills.iter().map(line).collect::<Vec<_>>(), terminal_width()),
    };
    gateway.output.print(&Value::from(skills), &text)
}

/// Returns a skill as the gateway lists it.
fn entry(skill: &Skill) -> Value {
    serde_json::from_str(&skill.canonical()).unwrap_or_default()
}

/// `data.reason` of a file that does not exist, or that the caller may not read.
const UNKNOWN_SKILL: &str = r#""reason":"unknown_resource""#;

/// Gets a file of a skill.
///
/// # Errors
/// With exit code 64 where arguments are given; or the gateway's error.
pub(crate) fn get(
    gateway: &GatewayArgs,
    uri: &str,
    arguments: &[(String, String)],
) -> Result<(), Failure> {
    if !arguments.is_empty() {
        return Err(Failure::usage("A file of a skill has no arguments."));
    }
    let url = Reach::find(&gateway.file).endpoint(gateway.url.as_deref())?;
    let request = UpstreamRequest {
        params: RequestParams::ReadFile { skill: uri.into(), uri: uri.into() },
        forwarded: ForwardedMeta::default(),
        overlay: None,
        capabilities: ClientCapabilities::NONE,
        progress: false,
        log_level: None,
    };
    let result = call(&url, async |client| match client.call(&request).await {
        Err(Kind::Error { data: Some(data), .. }) if data.contains(UNKNOWN_SKILL) => Ok(Err(
            printable(&format!("There is no skill `{uri}`. `promptgate list --skills` shows all.")),
        )),
        answer => answer.map(Ok),
    })?;
    let result = result.map_err(Failure::new)?;
    let result: Value = serde_json::from_str(result.json().text()).unwrap_or_default();
    let content = &result["contents"][0];
    let text = match (content["text"].as_str(), content["blob"].as_str()) {
        (Some(text), _) => printable(text),
        // Four characters of base64 are three bytes.
        (None, blob) => {
            let bytes = blob.map_or(0, |blob| blob.len() / 4 * 3);
            format!("[about {bytes} bytes that are no text; --json has them]")
        }
    };
    gateway.output.print(&result, &text)
}
