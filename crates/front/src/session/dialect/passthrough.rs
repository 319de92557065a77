//! Results of the upstream of `[passthrough]`.

use tokio::time::Instant;

use super::result_meta::write_incomplete;
use super::result_writer::{ResultWriter, write_next_cursor, write_shared};
use catalog::passthrough_reply::{PassthroughPage, PassthroughReply};
use domain::json::object::ObjectWriter;
use domain::json::{Json, JsonKind};
use domain::protocol::meta;
use domain::text::chunks::{Chunks, Splices};

/// Writes a result of the upstream of `[passthrough]`, with the members that each hop sets.
pub(super) fn passthrough_result(reply: &PassthroughReply, writer: ResultWriter<'_>) -> Chunks {
    let from_upstream = reply.result.json();
    let writer = writer.with_capacity(from_upstream.text().len().min(4 << 10) + 512);
    // Any JSON value since MCP 2026-07-28; elsewhere a null is a member that is not there.
    let may_be_null = |key: Json<'_>| writer.is_modern() && key.is("structuredContent");
    writer.chunks(
        |meta| write_rest_meta(reply, meta),
        |result, splices| {
            for (key, value) in from_upstream.members() {
                let is = |names: &[&str]| names.iter().any(|name| key.is(name));
                let is_ours = is(&["_meta", "resultType"])
                    || reply.caching.is_some() && is(&["ttlMs", "cacheScope"])
                    || reply.page.is_some() && is(&["nextCursor"]);
                if let Some(page) = reply.page.as_ref().filter(|page| key.is(page.list.member)) {
                    result.rewritten(key, |out| write_page(reply, page, splices, out));
                } else if !is_ours && (value.kind() != JsonKind::Null || may_be_null(key)) {
                    result.rewritten(key, |out| write_shared(value, &reply.result, splices, out));
                }
            }
            if let Some((ttl, scope)) = reply.caching {
                writer.write_cache_hints(ttl.as_millis(), scope, result);
            }
            let cursor = reply.page.as_ref().and_then(|page| page.next_cursor.as_deref());
            write_next_cursor(cursor, result);
        },
    )
}

/// Appends the elements of a page: tools that stand for prompts, and elements the caller may use.
fn write_page(
    reply: &PassthroughReply,
    page: &PassthroughPage,
    splices: &mut Splices,
    out: &mut String,
) {
    out.push('[');
    let mut is_first = true;
    for piece in page.ours.iter().filter(|piece| !piece.is_empty()) {
        is_first = false;
        splices.add_bytes(out, piece.clone());
    }
    for element in page.elements(reply.result.json()) {
        if !std::mem::take(&mut is_first) {
            out.push(',');
        }
        write_shared(element, &reply.result, splices, out);
    }
    out.push(']');
}

fn write_rest_meta(reply: &PassthroughReply, meta: &mut ObjectWriter<'_>) {
    if let Some(upstream_meta) = reply.result.json().get("_meta") {
        meta::write_foreign(upstream_meta, meta);
    }
    // An empty result stays empty: clients check that of `logging/setLevel`.
    if reply.result.json().members().any(|(key, _)| !key.is("resultType")) {
        meta.text("promptgate/upstream", reply.upstream.as_str());
    }
    let incomplete = reply.page.as_ref().and_then(|page| page.incomplete.as_ref());
    write_incomplete(incomplete.map_or(&[], std::slice::from_ref), Instant::now(), meta);
}
