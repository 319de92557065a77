//! Findings of guards in an offered version (`on = ["offered"]`), which stand beside its texts.

use std::sync::Arc;

use serde_json::json;

use catalog::approval::{ApprovalRow, DEPTH};
use catalog::blocking::run_blocking;
use config::lock::{Object, Objects};
use config::{Guard, GuardEvent};
use domain::guards::text_guard::{Decision, Texts};
use domain::json::document::Document;

/// A finding of a guard in a part of an offered version.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OfferedFinding {
    /// The guard, the part and the reason code, in a sentence.
    pub sentence: String,
    /// Whether the guard is enforced: the version is then approved by its name only.
    pub is_enforced: bool,
}

/// Examines the parts of an offered version beside the calls.
pub(super) async fn find(
    guards: &[Arc<Guard>],
    row: &ApprovalRow,
    objects: &Objects,
) -> Vec<OfferedFinding> {
    let (event, name) = (GuardEvent::Offered, &*row.public_name);
    let guards = guards.iter().filter(|guard| guard.examines(event, &row.upstream, name));
    let guards: Vec<_> = guards.cloned().collect();
    if guards.is_empty() {
        return Vec::new();
    }
    let objects = objects.clone();
    run_blocking(move || {
        let mut found = Vec::new();
        for object in objects.values() {
            let (part, text) = match object {
                Object::Json(text) => ("its definition or source", text.as_str().into()),
                Object::Text(text) => ("its text", text.as_str().into()),
                Object::File(bytes) => ("a file", String::from_utf8_lossy(bytes)),
            };
            let parse = |text: &str| Document::parse(text.as_bytes().to_vec(), DEPTH);
            // A source or file that is no JSON is one text.
            let document = parse(&text).or_else(|_| parse(&json!(text).to_string()));
            let Ok(document) = document else { continue };
            for guard in &guards {
                let decision = guard.patterns.decide(&document, Texts::Content);
                if let Decision::Denied { code, .. } | Decision::Masked(code, _) = decision {
                    let sentence = format!("The guard {:?} finds {code} in {part}.", guard.name);
                    found.push(OfferedFinding { sentence, is_enforced: guard.is_enforced });
                }
            }
        }
        found
    })
    .await
}
