//! The names of the tools of an upstream, beside which prompts are offered as tools.

use std::collections::HashSet;

use tokio::time::timeout;

use super::RemoteConnection;
use super::handshake::RpcRequest;
use config::Settings;
use domain::fault::UpstreamFaultKind as Kind;
use domain::json::Json;
use domain::json::object::write_members;
use domain::method::ForeignMethod;

/// Reads the names on all pages of `tools/list`, within the limits of a walk.
///
/// # Errors
/// When a page cannot be read within `page_timeout`.
pub(super) async fn tool_names(
    connection: &RemoteConnection,
    settings: &Settings,
) -> Result<HashSet<String>, Kind> {
    let (mut names, mut cursors) = (HashSet::new(), HashSet::new());
    let mut params = String::new();
    for _ in 0..settings.max_pages {
        let method = ForeignMethod::ListTools.as_str();
        let rpc = RpcRequest { method, params: &params, ..RpcRequest::default() };
        let page = timeout(settings.page_timeout, connection.request(rpc, None)).await;
        let page = page.map_err(|_| Kind::Timeout)??;
        let listed = page.json().get("tools");
        for tool in listed.iter().flat_map(|tools| tools.elements()) {
            names.extend(tool.get("name").and_then(Json::as_str).map(|name| name.into_owned()));
        }
        let next = page.json().get("nextCursor").and_then(Json::as_str);
        let Some(next) = next.filter(|next| cursors.insert(next.clone().into_owned())) else {
            break;
        };
        if names.len() >= settings.max_prompts {
            break;
        }
        params.clear();
        write_members(&mut params, |params| {
            params.text("cursor", &next);
        });
    }
    Ok(names)
}
