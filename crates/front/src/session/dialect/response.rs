//! JSON-RPC responses around results.

use domain::json::jsonrpc::{self, Id};
use domain::text::chunks::Chunks;

/// Writes a JSON-RPC response around a result, which is JSON text.
pub(crate) fn result_chunks(id: &Id, result: Chunks) -> Chunks {
    let before = format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":", id.text());
    result.between(&before, "}")
}

/// Writes a JSON-RPC response; `result` is JSON text.
pub(crate) fn result_message(id: &Id, result: &str) -> String {
    jsonrpc::message(result.len() + 64, |response| {
        response.json("id", id.text()).json("result", result);
    })
}
