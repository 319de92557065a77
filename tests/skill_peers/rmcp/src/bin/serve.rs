//! rmcp as a server of skills: the folders below one that is given, and one skill without digests.
//! It reads the folders again on SIGHUP.
//!
//! usage: serve FOLDER     (Streamable HTTP on a free port, which it prints; at every path)

use std::convert::Infallible;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rmcp::handler::server::skill_catalog::SkillCatalog;
use rmcp::model::{
    GetSkillRequestParams, GetSkillResult, ListSkillsResult, PaginatedRequestParams,
    ReadResourceDirectoryRequestParams, ReadResourceDirectoryResult, ReadResourceRequestParams,
    ReadResourceResponse, ServerCapabilities, ServerConfig, Skill, SkillFrontmatter,
    SkillResources,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

const DYNAMIC: &str = "skill://live/SKILL.md";
/// Skills of one page.
const PAGE: usize = 2;

#[derive(Clone)]
struct Skills(Arc<SkillCatalog>);

impl Skills {
    fn all(&self) -> Vec<Skill> {
        let frontmatter = SkillFrontmatter::new("live", "Has no digests");
        let mut all = self.0.skills();
        all.push(Skill::new(DYNAMIC, frontmatter, SkillResources::Dynamic));
        all
    }
}

impl ServerHandler for Skills {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_resources();
        ServerConfig::new(capabilities.enable_skills_with_directory_read().build())
    }

    async fn list_skills(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListSkillsResult, ErrorData> {
        let all = self.all();
        let start = match request.and_then(|request| request.cursor) {
            None => 0,
            Some(cursor) => cursor
                .parse()
                .ok()
                .filter(|start| *start < all.len())
                .ok_or_else(|| ErrorData::invalid_params("unknown cursor", None))?,
        };
        let end = all.len().min(start + PAGE);
        let mut page = ListSkillsResult::with_all_items(all[start..end].to_vec());
        page.next_cursor = (end < all.len()).then(|| end.to_string());
        Ok(page)
    }

    async fn get_skill(
        &self,
        request: GetSkillRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetSkillResult, ErrorData> {
        let skill = self.all().into_iter().find(|skill| skill.uri == request.uri);
        let unknown = || ErrorData::invalid_params(format!("unknown skill {}", request.uri), None);
        skill.map(GetSkillResult::new).ok_or_else(unknown)
    }

    async fn read_resource_directory(
        &self,
        request: ReadResourceDirectoryRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceDirectoryResult, ErrorData> {
        self.0.read_resource_directory(&request.uri)
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let read = self.0.read_resource(&request.uri);
        read.map(Into::into).ok_or_else(|| ErrorData::resource_not_found(request.uri, None))
    }
}

#[tokio::main]
async fn main() {
    let folder = std::env::args().nth(1).expect("usage: serve FOLDER");
    let catalog = Arc::new(SkillCatalog::from_dir(folder).expect("the folder of the skills"));
    tokio::spawn(reload(catalog.clone()));
    let service = StreamableHttpService::new(
        move || Ok(Skills(catalog.clone())),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default(),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    println!("listening: {}", listener.local_addr().expect("an address"));
    while let Ok((stream, _)) = listener.accept().await {
        let service = service.clone();
        let answer = service_fn(move |request| {
            let service = service.clone();
            async move { Ok::<_, Infallible>(service.handle(request).await) }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}

async fn reload(catalog: Arc<SkillCatalog>) {
    let mut asked = signal(SignalKind::hangup()).expect("a handler");
    while asked.recv().await.is_some() {
        catalog.reload().expect("the folder of the skills");
        println!("reloaded");
    }
}
