//! The known tools of an upstream: the gateway needs their names to offer prompts as tools, and
//! their arguments that headers repeat.

use std::collections::HashSet;

use tokio::time::timeout;

use super::RemoteConnection;
use super::handshake::RpcRequest;
use crate::passthrough_signals::{KnownTools, headers_of, tools_of};
use config::Settings;
use domain::fault::UpstreamFaultKind as Kind;
use domain::json::Json;
use domain::json::object::write_members;
use domain::protocol::method::ForeignMethod;

/// Reads the tools on all pages of `tools/list`, within the limits of a walk.
pub(super) async fn known_tools(
    connection: &RemoteConnection,
    settings: &Settings,
) -> Result<KnownTools, Kind> {
    let mut tools = KnownTools::new();
    let mut cursors = HashSet::new();
    let mut params = String::new();
    for _ in 0..settings.max_pages {
        let method = ForeignMethod::ListTools.as_str();
        let rpc = RpcRequest { method, params: &params, ..RpcRequest::default() };
        let page = timeout(settings.page_timeout, connection.request(rpc, None)).await;
        let page = page.map_err(|_| Kind::Timeout)??;
        tools.extend(
            tools_of(page.json()).map(|(name, tool)| (name.into_owned(), headers_of(tool))),
        );
        let next = page.json().get("nextCursor").and_then(Json::as_str);
        let Some(next) = next.filter(|next| cursors.insert(next.clone().into_owned())) else {
            break;
        };
        if tools.len() >= settings.max_prompts {
            break;
        }
        params.clear();
        write_members(&mut params, |params| {
            params.text("cursor", &next);
        });
    }
    Ok(tools)
}
