//! Guards by patterns: what a guard decides on the texts of a document.

use std::borrow::Cow;

use super::encoded;
use super::pattern::{Finding, Pattern};
use crate::json::document::Document;
use crate::json::edits::Edits;
use crate::json::{Json, JsonKind};

/// A guard that searches texts for patterns.
#[derive(Clone, Debug)]
pub struct TextGuard {
    /// Whether each finding is replaced by [`MASK`]; otherwise the document is denied.
    pub masks: bool,
    pub patterns: Vec<Pattern>,
}

/// The kind of a document, which decides on the strings in it that are texts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Texts {
    /// Arguments of a client: all strings, and the keys.
    Arguments,
    /// A checked result for prompts: no words of the protocol.
    Content,
    /// A result of the upstream of `[passthrough]`.
    Foreign,
}

/// The text in place of a finding.
pub const MASK: &str = "***";

/// The value of a masked `uri`, which must remain a URI.
pub(super) const MASKED_URI: &str = "about:masked";

/// The advice to the caller of a denied text, unless a hook gives another one.
pub(super) const LEAVE_OUT: &str = "leave such texts out";

/// The decision of a guard on a document, with the reason code of a finding.
#[derive(Clone, Debug)]
pub enum Decision {
    Allowed,
    Denied {
        code: Cow<'static, str>,
        /// A sentence for the caller.
        advice: Cow<'static, str>,
    },
    Masked(Cow<'static, str>, Document),
}

impl TextGuard {
    /// Returns the findings of all patterns in a text, in the order of their places. The place of a
    /// secret in an encoded part is the part.
    pub fn find(&self, text: &str) -> Vec<Finding> {
        let mut found = Vec::new();
        self.patterns.iter().for_each(|pattern| pattern.find(text, &mut found));
        if self.patterns.iter().any(Pattern::is_secret) {
            encoded::each_part(text, |place, decoded| {
                let mut secrets = Vec::new();
                let patterns = self.patterns.iter().filter(|pattern| pattern.is_secret());
                patterns.for_each(|pattern| pattern.find(decoded, &mut secrets));
                let secret = secrets.into_iter().next();
                found.extend(secret.map(|secret| Finding { place: place.clone(), ..secret }));
            });
        }
        found.sort_by_key(|finding| finding.place.start);
        found
    }

    /// Decides on the texts of a document. Findings that cannot be masked are denied: keys that a
    /// client has chosen, and numbers.
    pub fn decide(&self, document: &Document, texts: Texts) -> Decision {
        let mut edits = Edits::default();
        let mut code = None;
        let mut values = vec![(false, document.json())];
        while let Some((is_uri, value)) = values.pop() {
            if value.kind() == JsonKind::Array {
                values.extend(value.elements().map(|element| (false, element)));
                continue;
            }
            let text = match value.kind() {
                JsonKind::Object => {
                    for (key, member) in value.members() {
                        let key = key.as_str().unwrap_or_default();
                        if texts == Texts::Arguments
                            && let Some(finding) = self.find(&key).first()
                        {
                            let code = finding.code.into();
                            return Decision::Denied { code, advice: LEAVE_OUT.into() };
                        }
                        if !texts.leaves_out(value, &key) {
                            values.push((key == "uri", member));
                        }
                    }
                    continue;
                }
                JsonKind::String => value.as_str().unwrap_or_default(),
                _ => value.text().into(),
            };
            let found = self.find(&text);
            let Some(first) = found.first() else { continue };
            if !self.masks || value.kind() != JsonKind::String {
                let code = first.code.into();
                return Decision::Denied { code, advice: LEAVE_OUT.into() };
            }
            code = Some(first.code);
            let masked = if is_uri { MASKED_URI.into() } else { masked(&text, &found) };
            edits.set(document, value, &masked);
        }
        let Some(code) = code else { return Decision::Allowed };
        Decision::Masked(code.into(), edited(document, &edits))
    }
}

/// Returns a copy of the document with the changes in it.
pub(super) fn edited(document: &Document, edits: &Edits) -> Document {
    Document::copy_of(Json::accepted(&edits.applied(document, document.json())))
}

impl Texts {
    /// Whether a member of an object is no text: encoded content, or a word of the protocol.
    pub(super) fn leaves_out(self, object: Json<'_>, key: &str) -> bool {
        match (self, key) {
            (Self::Arguments, _) => false,
            (_, "blob") => object.get("uri").is_some(),
            (_, "data") => object.get("type").is_some_and(|t| t.is("image") || t.is("audio")),
            (own, "mimeType" | "role" | "type") => own == Self::Content,
            _ => false,
        }
    }
}

/// Returns a text with one mask for findings that overlap or touch. The findings are in the order
/// of their places.
pub fn masked(text: &str, found: &[Finding]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut end = 0;
    for Finding { place, .. } in found {
        if place.start > end || out.is_empty() {
            out.push_str(&text[end..place.start]);
            out.push_str(MASK);
        }
        end = end.max(place.end);
    }
    out.push_str(&text[end..]);
    out
}

#[cfg(test)]
mod tests;
