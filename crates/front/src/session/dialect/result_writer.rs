//! Members that most results have, and values that a result shares with its document.

use std::fmt::Display;

use super::server_identity::ServerIdentity;
use domain::calls::cursor::CacheScope;
use domain::json::Json;
use domain::json::document::Document;
use domain::json::object::{ObjectWriter, write_object};
use domain::protocol::meta;
use domain::protocol::revision::{Era, Revision};
use domain::text::chunks::{Chunks, Splices};

/// Writer of the results for one client: `resultType` in the modern era, `_meta`, and a body.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResultWriter<'a> {
    pub revision: Revision,
    identity: &'a ServerIdentity,
    /// The capacity of the text at first, in bytes.
    capacity: usize,
}

impl<'a> ResultWriter<'a> {
    pub(super) fn new(revision: Revision, identity: &'a ServerIdentity) -> Self {
        Self { revision, identity, capacity: 0 }
    }

    /// Returns the writer with a text that has this capacity at first, in bytes.
    pub(super) fn with_capacity(self, capacity: usize) -> Self {
        Self { capacity, ..self }
    }

    pub(super) fn is_modern(self) -> bool {
        self.revision.era() == Era::Modern
    }

    /// Writes a result whose `_meta` and body have the members that the closures add.
    pub(super) fn text(
        self,
        write_meta: impl FnOnce(&mut ObjectWriter<'_>),
        write_body: impl FnOnce(&mut ObjectWriter<'_>),
    ) -> String {
        let mut out = String::with_capacity(self.capacity);
        write_object(&mut out, |result| {
            if self.is_modern() {
                result.text("resultType", "complete");
            }
            result.object_unless_empty("_meta", |meta| {
                if self.is_modern() {
                    meta.json(meta::SERVER_INFO, &self.identity.server_info);
                }
                write_meta(meta);
            });
            write_body(result);
        });
        out
    }

    /// Writes such a result, which shares large parts of its body with their documents.
    pub(super) fn chunks(
        self,
        write_meta: impl FnOnce(&mut ObjectWriter<'_>),
        write_body: impl FnOnce(&mut ObjectWriter<'_>, &mut Splices),
    ) -> Chunks {
        let mut splices = Splices::default();
        let out = self.text(write_meta, |result| write_body(result, &mut splices));
        splices.into_chunks(out)
    }

    /// Adds how long a client may keep the result, in milliseconds, and for whom (MCP 2026-07-28,
    /// caching). The legacy era has no such members.
    pub(super) fn write_cache_hints(
        self,
        ttl_ms: impl Display,
        scope: CacheScope,
        result: &mut ObjectWriter<'_>,
    ) {
        if self.is_modern() {
            result.display("ttlMs", ttl_ms).text("cacheScope", scope.as_str());
        }
    }
}

pub(super) fn write_next_cursor(cursor: Option<&str>, result: &mut ObjectWriter<'_>) {
    if let Some(cursor) = cursor {
        result.text("nextCursor", cursor);
    }
}

/// Appends a value of a document. A large value is shared with the document.
pub(super) fn write_shared(
    value: Json<'_>,
    document: &Document,
    splices: &mut Splices,
    out: &mut String,
) {
    splices.add(out, value.text(), || document.slice(value));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_members_of_their_era_in_one_order() {
        let identity = ServerIdentity::new("gate", None);
        let result = |revision| {
            let writer = ResultWriter::new(revision, &identity);
            writer.text(
                |meta| {
                    meta.display("k", 1);
                },
                |result| writer.write_cache_hints(7, CacheScope::Private, result),
            )
        };
        assert_eq!(result(Revision::V2025_11_25), r#"{"_meta":{"k":1}}"#);
        let expected = format!(
            r#"{{"resultType":"complete","_meta":{{"{}":{},"k":1}},"ttlMs":7,"cacheScope":"private"}}"#,
            meta::SERVER_INFO,
            identity.server_info
        );
        assert_eq!(result(Revision::V2026_07_28), expected);
    }
}
