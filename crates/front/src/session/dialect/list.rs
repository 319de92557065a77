//! Pages of lists, and of found prompts and skills.

use super::result_meta::write_incomplete;
use super::result_writer::{ResultWriter, write_next_cursor};
use catalog::reply::{FoundReply, ListReply};
use catalog::view_cache::ListKind;
use domain::calls::call::Sought;
use domain::json::object::write_object;
use domain::text::chunks::Chunks;
use domain::tool::result::write_text_block;

/// Writes a page of a list.
pub(super) fn list_result(list: &ListReply, writer: ResultWriter<'_>) -> Chunks {
    let member = match list.kind {
        ListKind::Prompts => "prompts",
        ListKind::Tools => "tools",
        ListKind::Skills => "skills",
    };
    let mut shared = 0;
    let chunks = writer.with_capacity(2 << 10).chunks(
        |meta| write_incomplete(&list.incomplete, list.now, meta),
        |result, splices| {
            writer.write_cache_hints(list.ttl.as_millis(), list.scope, result);
            result.written(member, |out| {
                out.push('[');
                list.elements.iter().for_each(|piece| splices.add_bytes(out, piece.clone()));
                out.push(']');
            });
            write_next_cursor(list.next_cursor.as_deref(), result);
            shared = splices.size();
        },
    );
    // The catalog keeps its elements, however many responses share them.
    chunks.with_kept_elsewhere(shared)
}

/// Writes a page of found prompts or skills as the result of a tool: as data, and as text for older
/// clients (MCP 2025-11-25, tools, structured content).
pub(super) fn found_result(found: &FoundReply, writer: ResultWriter<'_>) -> String {
    let member = match found.sought {
        Sought::Prompts => "prompts",
        Sought::Skills => "skills",
    };
    let mut data = String::with_capacity(found.elements.len() + 256);
    write_object(&mut data, |data| {
        data.written(member, |out| out.extend(["[", &found.elements, "]"]));
        write_next_cursor(found.next_cursor.as_deref(), data);
    });
    writer.with_capacity(3 * data.len()).text(
        |meta| write_incomplete(&found.incomplete, found.now, meta),
        |result| {
            result.array("content", [&data], |data, out| write_text_block(data, out));
            result.json("structuredContent", &data);
        },
    )
}
