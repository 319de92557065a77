//! The gateway between peers that nobody here wrote: rmcp on both sides, in both eras.

#[path = "interop/rmcp/checks.rs"]
mod checks;
#[path = "interop/rmcp/server.rs"]
mod server;

use std::path::Path;

use config::Config;
use promptgate::App;
use serde_json::json;

#[tokio::test]
async fn rmcp_lists_pages_gets_and_completes_through_the_gateway() {
    let upstream = server::spawn().await;
    let toml = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[audit]\npath = \"\"\n[admin]\nlisten = \"\"\n[listing]\npage_size = 2\n\
         [upstreams.library]\ntransport = \"library\"\npath = \"examples/support\"\n\
         [upstreams.modern]\ntransport = \"http\"\nurl = \"http://{upstream}/mcp\"\n\
         [upstreams.older]\ntransport = \"http\"\nurl = \"http://{upstream}/mcp\"\n\
         revision = \"2025-06-18\"\n"
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = Config::parse("test", &toml, root, &[]).unwrap_or_else(|e| panic!("{e}"));
    let app = App::start(config).await.unwrap();
    let expect = json!({
        "names": ["library__reply", "library__summarize", "library__triage",
            "modern__greet", "modern__picture", "modern__review",
            "older__greet", "older__picture", "older__review"],
        "minPages": 5,
        "gets": [
            {"name": "modern__greet", "arguments": {"name": "Ada"}, "contains": ["Say hello to Ada"], "messages": 1},
            {"name": "older__picture", "contains": ["image/png", "iVBORw"], "messages": 1},
            {"name": "modern__review", "contains": ["file:///a.md", "I will review it."], "messages": 2},
            {"name": "library__reply", "arguments": {"message": "Hi"}, "contains": ["tone-of-voice.md"], "messages": 3},
        ],
        "completions": [
            {"name": "modern__greet", "argument": "name", "value": "al", "values": ["alice", "albert"]},
            {"name": "older__greet", "argument": "name", "value": "b", "values": ["bob"]},
            {"name": "library__reply", "argument": "language", "value": "e", "values": ["English"]},
        ],
        "errors": [
            {"name": "nope", "code": -32602},
            {"name": "older__greet", "code": -32602},
            {"name": "library__reply", "arguments": {}, "code": -32602},
        ],
    });
    for (mode, version) in [("legacy", "2025-11-25"), ("modern", "2026-07-28")] {
        let client = checks::connect(&app.url().unwrap(), mode).await;
        let done = checks::check(&client, &expect).await;
        assert!(done.starts_with(version), "{done}");
        client.cancel().await.unwrap();
    }
}
