//! rmcp as a client whose caller has to sign in, from the command line. It prints the answer to the
//! get as JSON: `url` and `message`, and the `code` of an error. It reads a line, `signed in`, and
//! prints the texts of the prompt as `got`.

use rmcp::model::{
    ClientCapabilities, ClientConfig, ContentBlock, ElicitRequestParams, ElicitResult,
    ElicitationAction, ElicitationCapability, ErrorCode, GetPromptRequestParams, GetPromptResult,
    Implementation, ProtocolVersion, UrlElicitationCapability,
};
use rmcp::service::{ClientLifecycleMode, RequestContext, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, ClientServiceExt, ErrorData, RoleClient};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

/// For which rmcp has no name.
const URL_ELICITATION_REQUIRED: ErrorCode = ErrorCode(-32042);

/// A caller, who is shown pages or not.
struct Caller {
    elicits: bool,
}

impl ClientHandler for Caller {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        if self.elicits {
            let url = UrlElicitationCapability::new();
            capabilities.elicitation = Some(ElicitationCapability::new().with_url(url));
        }
        ClientConfig::new(capabilities, Implementation::new("check", "1.0.0"))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let ElicitRequestParams::UrlElicitationParams { url, message, .. } = request else {
            panic!("asked for {request:?}");
        };
        tell(&json!({"url": url, "message": message})).await;
        Ok(ElicitResult::new(ElicitationAction::Accept))
    }
}

/// Prints where the caller is asked to sign in, and waits for a line that says that it has.
async fn tell(asked: &Value) {
    println!("{asked}");
    let line = BufReader::new(tokio::io::stdin()).lines().next_line().await.expect("a line");
    assert_eq!(line.as_deref(), Some("signed in"));
}

/// Gets the prompt, a second time after an error that names the page.
async fn get(client: &RunningService<RoleClient, Caller>, prompt: &str) -> GetPromptResult {
    let error = match client.get_prompt(GetPromptRequestParams::new(prompt)).await {
        Ok(result) => return result,
        Err(ServiceError::McpError(error)) => error,
        Err(other) => panic!("{other:?}"),
    };
    let (code, data) = (error.code, error.data.expect("data"));
    let (url, message) = match code {
        URL_ELICITATION_REQUIRED => {
            let asked = &data["elicitations"][0];
            (asked["url"].clone(), asked["message"].clone())
        }
        _ => (data["url"].clone(), error.message.into()),
    };
    tell(&json!({"code": code, "url": url, "message": message})).await;
    client.get_prompt(GetPromptRequestParams::new(prompt)).await.expect("a prompt")
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, key, prompt, mode, elicits] = arguments.as_slice() else {
        panic!("usage: rmcp-sign-in URL KEY PROMPT legacy|modern elicits|plain");
    };
    let mode = match mode.as_str() {
        "legacy" => ClientLifecycleMode::Initialize,
        "modern" => ClientLifecycleMode::Discover {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        },
        other => panic!("unknown mode {other}"),
    };
    let caller = Caller { elicits: elicits == "elicits" };
    let config = StreamableHttpClientTransportConfig::with_uri(url.as_str()).auth_header(key);
    let transport = StreamableHttpClientTransport::from_config(config);
    let client = caller.serve_with_lifecycle(transport, mode).await.expect("a connection");
    let result = get(&client, prompt).await;
    let texts = result.messages.iter().map(|message| match &message.content {
        ContentBlock::Text(text) => text.text.clone(),
        other => panic!("{other:?}"),
    });
    println!("{}", json!({"got": texts.collect::<Vec<_>>()}));
    client.cancel().await.expect("a farewell");
}
