//! Approvals as JSON, for commands and the admin API.

use serde_json::{Value, json};

use super::Examined;
use super::probe::ProbedText;
use domain::approval::{Decided, Version};

/// Returns a prompt with its state, the offered version, and the decisions on it.
pub fn row_json(examined: &Examined) -> Value {
    let Examined { row, offered, .. } = examined;
    let approval = row.approval.as_ref();
    let approved = approval.and_then(|approval| approval.approved.as_ref());
    let version = approved.map(|decided| &decided.version);
    let version = version.or(offered.as_ref().map(|offered| &offered.version));
    let mut texts = offered.iter().flat_map(|offered| offered.texts.values());
    let is_unstable = texts.any(|text| matches!(text, ProbedText::Unstable));
    let kind = version.map(|version| version.kind().as_str()).unwrap_or_default();
    let kind = if is_unstable { format!("{kind}, text unstable") } else { kind.to_owned() };
    let previous = approval.iter().flat_map(|approval| &approval.previous).map(decided_json);
    json!({
        "name": row.public_name,
        "upstream": row.upstream.as_str(),
        "rawName": row.raw_name,
        "state": row.decision.state.as_str(),
        "reason": row.problem.as_deref().unwrap_or(row.decision.reason.as_str()),
        "covers": kind,
        "mode": row.mode.as_str(),
        "held": row.is_held(),
        "approvedBy": approved.map(|decided| &decided.attribution.by),
        "offered": offered.as_ref().map(|offered| version_json(&offered.version)),
        "approved": approved.map(decided_json),
        "rejected": approval.and_then(|approval| approval.rejected.as_ref()).map(decided_json),
        "previous": previous.collect::<Vec<_>>(),
    })
}

fn version_json(version: &Version) -> Value {
    let texts = version.texts.iter().map(|(arguments, digest)| {
        let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
        json!({"arguments": arguments, "digest": digest})
    });
    json!({
        "definition": version.definition,
        "source": version.source,
        "texts": texts.collect::<Vec<_>>(),
    })
}

fn decided_json(decided: &Decided) -> Value {
    let mut json = version_json(&decided.version);
    json["by"] = decided.attribution.by.as_str().into();
    json["at"] = decided.attribution.at.as_str().into();
    json["why"] = decided.attribution.why.clone().into();
    json
}
