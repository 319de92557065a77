//! A prompt server built with rmcp, the official Rust SDK: nobody here wrote how it speaks.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rmcp::model::{
    CompleteRequestParams, CompleteResult, CompletionInfo, GetPromptRequestParams,
    GetPromptResponse, GetPromptResult, Implementation, ListPromptsResult, PaginatedRequestParams,
    Prompt, PromptArgument, PromptMessage, Role, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tokio::net::TcpListener;

#[derive(Clone)]
pub struct Prompts;

impl ServerHandler for Prompts {
    fn get_info(&self) -> ServerConfig {
        let capabilities =
            ServerCapabilities::builder().enable_prompts().enable_completions().build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("rmcp-prompts", "1.0.0"))
    }

    /// Two prompts a page.
    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let who =
            PromptArgument::new("name").with_description("Who is greeted").with_required(true);
        let all = [
            Prompt::new("greet", Some("Greets somebody"), Some(vec![who])),
            Prompt::new("picture", Some("Shows a picture"), None),
            Prompt::new("review", Some("Two messages, one of them a resource"), None),
        ];
        let start = match request.and_then(|r| r.cursor) {
            None => 0,
            Some(cursor) if cursor == "second" => 2,
            Some(_) => return Err(ErrorData::invalid_params("unknown cursor", None)),
        };
        let page = all.iter().skip(start).take(2).cloned().collect();
        let next_cursor = (start == 0).then(|| "second".to_owned());
        Ok(ListPromptsResult { next_cursor, ..ListPromptsResult::with_all_items(page) })
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let messages = match request.name.as_str() {
            "greet" => {
                let name = request.arguments.as_ref().and_then(|a| a.get("name")?.as_str());
                let name =
                    name.ok_or_else(|| ErrorData::invalid_params("missing argument: name", None))?;
                vec![PromptMessage::new_text(Role::User, format!("Say hello to {name}"))]
            }
            "picture" => {
                vec![PromptMessage::new_image(Role::User, b"\x89PNG", "image/png", None, None)]
            }
            "review" => {
                let (mime, text) = (Some("text/markdown".into()), Some("# Title".into()));
                let uri = "file:///a.md".into();
                vec![
                    PromptMessage::new_resource(Role::User, uri, mime, text, None, None, None),
                    PromptMessage::new_text(Role::Assistant, "I will review it."),
                ]
            }
            _ => return Err(ErrorData::invalid_params("unknown prompt", None)),
        };
        Ok(GetPromptResult::new(messages).with_description("From rmcp").into())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let fits = ["alice", "albert", "bob"]
            .into_iter()
            .filter(|name| name.starts_with(&request.argument.value))
            .map(str::to_owned)
            .collect();
        let values = CompletionInfo::with_all_values(fits);
        Ok(CompleteResult::new(values.map_err(|e| ErrorData::internal_error(e, None))?))
    }
}

/// Serves on a free port of loopback, at every path.
pub async fn spawn() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("an address");
    let service = StreamableHttpService::new(
        || Ok(Prompts),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default(),
    );
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service.clone();
            let answer = service_fn(move |request| {
                let service = service.clone();
                async move { Ok::<_, Infallible>(service.handle(request).await) }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
        }
    });
    addr
}
