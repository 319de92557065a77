//! Approvals as JSON, for commands and the admin API.

use std::sync::Arc;

use serde_json::{Value, json};

use super::examined::Examined;
use super::probe::ProbedText;
use base::seal;
use catalog::approval::{FoundVariant, SeenOtherwise};
use domain::approval::{Class, Decided, DigestText, Version};

/// Returns a prompt with its state, the offered version, and the decisions on it.
pub fn row_json(examined: &Examined) -> Value {
    let Examined { row, offered, .. } = examined;
    let approval = row.approval.as_ref();
    let approved = approval.and_then(|approval| approval.approved.as_ref());
    let version = approved.map(|decided| &decided.version);
    let version = version.or(offered.as_ref().map(|offered| &offered.version));
    let mut texts = offered.iter().flat_map(|offered| offered.texts.values());
    let is_unstable = texts.any(|text| matches!(text, ProbedText::Unstable));
    let class = version.map(Version::class);
    let covers = class.map(Class::as_str).unwrap_or_default();
    let covers = if is_unstable { format!("{covers}, text unstable") } else { covers.to_owned() };
    let previous = approval.iter().flat_map(|approval| &approval.previous).map(decided_json);
    json!({
        "kind": row.kind.as_str(),
        "name": row.public_name,
        "upstream": row.upstream.as_str(),
        "rawName": row.raw_name,
        "state": row.decision.state.as_str(),
        "reason": row.problem.as_deref().unwrap_or(row.decision.reason.as_str()),
        "covers": covers,
        "compared": class.map(Class::compared),
        "notCompared": class.map(Class::not_compared),
        "mode": row.mode.as_str(),
        "held": row.is_held(),
        "approvedBy": approved.map(|decided| &decided.attribution.by),
        "offered": offered.as_ref().map(|offered| version_json(&offered.version)),
        "approved": approved.map(decided_json),
        "rejected": approval.and_then(|approval| approval.rejected.as_ref()).map(decided_json),
        "pending": row.half_approved().map(decided_json),
        "previous": previous.collect::<Vec<_>>(),
        "variants": row.variants.iter().map(variant_json).collect::<Vec<_>>(),
    })
}

fn variant_json(found: &FoundVariant) -> Value {
    let mut json = text_json((&found.arguments, &found.digest));
    json["at"] = humantime::format_rfc3339_seconds(found.at).to_string().into();
    json
}

fn text_json((arguments, digest): (&Arc<str>, &DigestText)) -> Value {
    let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
    json!({"arguments": arguments, "digest": digest})
}

/// Returns an examined prompt for approvers, with its difference to the approved version, and with
/// the tag that a decision on this examination must name.
pub fn shown_json(examined: &Examined, diff: String) -> Value {
    let mut json = row_json(examined);
    json["tag"] = tag(examined).into();
    json["diff"] = diff.into();
    json["unseen"] = examined.unseen_text().into();
    json["seenOtherwise"] = examined.seen_otherwise.iter().map(seen_json).collect();
    json
}

fn seen_json(seen: &SeenOtherwise) -> Value {
    let arguments = seen.arguments.as_deref();
    let arguments: Value =
        arguments.map_or(Value::Null, |json| serde_json::from_str(json).unwrap_or_default());
    json!({
        "arguments": arguments,
        "digest": seen.digest,
        "at": humantime::format_rfc3339_seconds(seen.at).to_string(),
        "message": seen.to_string(),
    })
}

fn version_json(version: &Version) -> Value {
    let variants = version.variants.iter().map(|(arguments, digest)| (arguments, digest));
    json!({
        "files": version.files,
        "definition": version.definition,
        "source": version.source,
        "texts": version.texts.iter().map(text_json).collect::<Vec<_>>(),
        "variants": variants.map(text_json).collect::<Vec<_>>(),
    })
}

fn decided_json(decided: &Decided) -> Value {
    let mut json = version_json(&decided.version);
    json["by"] = decided.attribution.by.as_str().into();
    json["at"] = decided.attribution.at.as_str().into();
    json["why"] = decided.attribution.why.clone().into();
    json
}

/// The entity tag of an examination (RFC 9110, section 8.8.3) covers the digests of the definition,
/// the source and the texts, and the decisions on the prompt. A decision names this tag.
pub fn tag(examined: &Examined) -> String {
    let texts = examined.offered.iter().flat_map(|offered| &offered.texts);
    let unknown = texts.filter_map(|(arguments, text)| match text {
        ProbedText::Stable { .. } => None,
        ProbedText::Unstable => Some((&**arguments, "unstable")),
        ProbedText::Failed(_) => Some((&**arguments, "failed")),
    });
    let unread = examined.offered.iter().flat_map(|offered| &offered.unread);
    let unread = unread.map(|(path, _)| (&**path, "unread"));
    let shown = json!([row_json(examined), unknown.chain(unread).collect::<Vec<_>>()]);
    format!("\"{}\"", seal::sha256_text(shown.to_string().as_bytes()))
}
