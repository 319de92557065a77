//! Resources behind links in prompts.

use super::result_meta::{write_flags, write_origin};
use super::result_writer::ResultWriter;
use catalog::reply::ResourceReply;
use domain::calls::cursor::CacheScope;
use domain::json::Json;
use domain::protocol::meta;
use domain::text::chunks::Chunks;

/// Writes the resource behind a link in a prompt, which is for its caller only.
pub(super) fn resource_result(resource: &ResourceReply, writer: ResultWriter<'_>) -> Chunks {
    let ResourceReply { result: document, origin, flags, links } = resource;
    let from_upstream = document.json();
    writer.with_capacity(from_upstream.text().len().min(4 << 10) + 512).chunks(
        |meta| {
            if let Some(upstream_meta) = from_upstream.get("_meta") {
                meta::write_foreign(upstream_meta, meta);
            }
            write_origin(origin, meta);
            write_flags(flags, meta);
        },
        |result, splices| {
            for (key, value) in from_upstream.members().filter(|(key, _)| key.is("contents")) {
                result.rewritten(key, |out| links.write(document, value.text(), splices, out));
            }
            let ttl = from_upstream.get("ttlMs").and_then(Json::as_whole).unwrap_or_default();
            writer.write_cache_hints(ttl.max(0), CacheScope::Private, result);
        },
    )
}
