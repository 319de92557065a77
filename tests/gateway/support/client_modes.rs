//! One client interface over every protocol revision and transport.

use std::collections::VecDeque;

use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf,
};
use tokio::time::timeout;

use super::client::{MODERN, Stream, modern, request};
use super::{Client, Gateway, PATIENCE};

/// Transport and revision of a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ClientMode {
    /// HTTP+SSE of 2024-11-05, initialized with this revision.
    Sse(&'static str),
    /// Streamable HTTP of a legacy revision.
    Http(&'static str),
    /// Streamable HTTP of 2026-07-28.
    Modern,
    /// Standard streams, with a handshake of this revision.
    Stdio(&'static str),
    /// Standard streams, 2026-07-28.
    ModernStdio,
}

/// A connected client, subscribed to changes of the prompt list.
pub struct ModeClient {
    wire: Wire,
    revision: &'static str,
    next_id: u64,
    /// Declared to the gateway.
    capabilities: Value,
    /// Notifications and server requests that came before the response to one of its requests.
    unsolicited: VecDeque<Value>,
}

enum Wire {
    Http { client: Client, stream: Stream },
    Sse { client: Client, post: String, stream: Stream },
    Stdio { input: WriteHalf<DuplexStream>, output: Lines<BufReader<ReadHalf<DuplexStream>>> },
}

const JSON: (&str, &str) = ("Content-Type", "application/json");
const EVENTS: (&str, &str) = ("Accept", "text/event-stream");

impl ModeClient {
    pub async fn connect(gateway: &Gateway, client_mode: ClientMode) -> Self {
        Self::with_capabilities(gateway, client_mode, json!({})).await
    }

    /// A client that declares these capabilities.
    pub async fn with_capabilities(
        gateway: &Gateway,
        client_mode: ClientMode,
        capabilities: Value,
    ) -> Self {
        let wire = match client_mode {
            ClientMode::Stdio(_) | ClientMode::ModernStdio => stdio(gateway),
            _ => return Self::over_http(gateway.client(), client_mode, capabilities).await,
        };
        Self::over(wire, client_mode, capabilities).await
    }

    /// A client of whatever listens there.
    pub async fn over_http(client: Client, client_mode: ClientMode, capabilities: Value) -> Self {
        let wire = match client_mode {
            ClientMode::Modern => {
                let stream = client.listen().await;
                Wire::Http { client, stream }
            }
            ClientMode::Http(revision) => {
                let client = client.legacy_with(revision, capabilities.clone()).await;
                let stream = client.stream("GET", &[EVENTS], b"").await;
                Wire::Http { client, stream }
            }
            ClientMode::Sse(_) => {
                let mut stream = client.stream_at("GET", "/sse", &[EVENTS], b"").await;
                let post = stream.event().await.expect("the endpoint").data;
                assert!(post.starts_with("/sse?"), "{post}");
                Wire::Sse { client, post, stream }
            }
            ClientMode::Stdio(_) | ClientMode::ModernStdio => panic!("no HTTP: {client_mode:?}"),
        };
        Self::over(wire, client_mode, capabilities).await
    }

    async fn over(wire: Wire, client_mode: ClientMode, capabilities: Value) -> Self {
        let revision = match client_mode {
            ClientMode::Sse(revision)
            | ClientMode::Http(revision)
            | ClientMode::Stdio(revision) => revision,
            ClientMode::Modern | ClientMode::ModernStdio => MODERN,
        };
        let unsolicited = VecDeque::new();
        let mut client = Self { wire, revision, next_id: 100, capabilities, unsolicited };
        match client_mode {
            ClientMode::Sse(revision) | ClientMode::Stdio(revision) => {
                client.initialize(revision).await
            }
            ClientMode::ModernStdio => {
                let params = json!({"notifications": {"promptsListChanged": true}});
                let listen = client.request("subscriptions/listen", params);
                client.send(&listen).await;
                let ack = client.next_message().await;
                assert_eq!(ack["method"], "notifications/subscriptions/acknowledged");
            }
            ClientMode::Http(_) | ClientMode::Modern => {}
        }
        client
    }

    async fn initialize(&mut self, revision: &str) {
        let params = json!({"protocolVersion": revision, "capabilities": self.capabilities,
            "clientInfo": {"name": "test", "version": "1"}});
        let result = self.ask("initialize", params).await;
        assert_eq!(result["protocolVersion"], revision);
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
    }

    /// The result of a request.
    pub async fn ask(&mut self, method: &str, params: Value) -> Value {
        let message = self.answer(method, params).await;
        assert!(message.get("error").is_none(), "{method}: {message}");
        message["result"].clone()
    }

    /// The response to a request: a result or an error.
    pub async fn answer(&mut self, method: &str, params: Value) -> Value {
        let request = self.request(method, params);
        let id = request["id"].clone();
        if let Wire::Http { client, .. } = &self.wire {
            let headers = headers(&request);
            let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
            let reply = client.send("POST", "/mcp", &headers, request.to_string().as_bytes()).await;
            return reply.json();
        }
        self.send(&request).await;
        loop {
            let message = self.read_message().await;
            match message["id"] == id && message.get("method").is_none() {
                true => return message,
                false => self.unsolicited.push_back(message),
            }
        }
    }

    /// Gets a prompt and answers its server requests with what `say` makes of their parameters;
    /// returns the server requests (`{method, params}`) and the response.
    pub async fn get_answering(
        &mut self,
        params: Value,
        say: impl FnMut(&Value) -> Value,
    ) -> (Vec<Value>, Value) {
        self.call_answering("prompts/get", params, say).await
    }

    /// The same, for another method.
    pub async fn call_answering(
        &mut self,
        method: &str,
        params: Value,
        mut say: impl FnMut(&Value) -> Value,
    ) -> (Vec<Value>, Value) {
        let (mut asked, mut again) = (Vec::new(), params.clone());
        if self.revision == MODERN {
            loop {
                let answer = self.answer(method, again).await;
                if answer["result"]["resultType"] != "input_required" {
                    return (asked, answer);
                }
                let requests = answer["result"]["inputRequests"].as_object().cloned();
                let mut responses = json!({});
                for (key, request) in requests.unwrap_or_default() {
                    responses[key] = say(&request["params"]);
                    asked.push(request);
                }
                again = params.clone();
                again["inputResponses"] = responses;
                again["requestState"] = answer["result"]["requestState"].clone();
            }
        }
        let request = self.request(method, params);
        let mut own_stream = match &self.wire {
            Wire::Http { client, .. } => {
                let body = request.to_string();
                Some(client.stream("POST", &[JSON, EVENTS], body.as_bytes()).await)
            }
            _ => None,
        };
        if own_stream.is_none() {
            self.send(&request).await;
        }
        loop {
            let message = match &mut own_stream {
                Some(stream) => stream.event().await.expect("an answer").json(),
                None => self.read_message().await,
            };
            if message.get("method").is_none() {
                return (asked, message);
            }
            if message.get("id").is_none() {
                self.unsolicited.push_back(message);
                continue;
            }
            let answer =
                json!({"jsonrpc": "2.0", "id": message["id"], "result": say(&message["params"])});
            match &self.wire {
                Wire::Http { client, .. } => assert_eq!(client.post(&answer).await.status, 202),
                _ => self.send(&answer).await,
            }
            asked.push(message);
        }
    }

    /// The next notification or server request, or the response to a request sent by
    /// [`Self::send`].
    pub async fn next_message(&mut self) -> Value {
        match self.unsolicited.pop_front() {
            Some(message) => message,
            None => self.read_message().await,
        }
    }

    /// Waits for the end of its stream.
    pub async fn ended(&mut self) {
        match &mut self.wire {
            Wire::Http { stream, .. } | Wire::Sse { stream, .. } => {
                assert!(stream.event().await.is_none());
            }
            Wire::Stdio { output, .. } => assert_eq!(output.next_line().await.unwrap(), None),
        }
    }

    /// Reads `notifications/prompts/list_changed`.
    pub async fn await_list_changed(&mut self) {
        let message = self.next_message().await;
        assert_eq!(message["method"], "notifications/prompts/list_changed", "{message}");
    }

    /// Sends a message over a transport on which all responses share one stream.
    pub async fn send(&mut self, message: &Value) {
        match &mut self.wire {
            Wire::Http { .. } => unreachable!("each request has its own answer"),
            Wire::Sse { client, post, .. } => {
                let body = message.to_string();
                let reply = client.send("POST", post, &[JSON], body.as_bytes()).await;
                assert_eq!(reply.status, 202);
            }
            Wire::Stdio { input, .. } => {
                input.write_all(format!("{message}\n").as_bytes()).await.expect("a reader");
            }
        }
    }

    /// A request of the client's revision.
    pub fn request(&mut self, method: &str, params: Value) -> Value {
        self.next_id += 1;
        match self.revision {
            MODERN => {
                let mut body = modern(self.next_id, method, params).0;
                let key = "io.modelcontextprotocol/clientCapabilities";
                body["params"]["_meta"][key] = self.capabilities.clone();
                body
            }
            _ => request(self.next_id, method, params),
        }
    }

    async fn read_message(&mut self) -> Value {
        match &mut self.wire {
            Wire::Http { stream, .. } | Wire::Sse { stream, .. } => loop {
                let event = stream.event().await.expect("an event");
                // An event that primes the stream has no data.
                if !event.data.is_empty() {
                    return event.json();
                }
            },
            Wire::Stdio { output, .. } => {
                let line = timeout(PATIENCE, output.next_line()).await.expect("a line in time");
                let line = line.unwrap().expect("a line");
                serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
            }
        }
    }
}

fn stdio(gateway: &Gateway) -> Wire {
    let (output, input) = tokio::io::split(gateway.stdio());
    Wire::Stdio { input, output: BufReader::new(output).lines() }
}

/// The headers that repeat a modern request; a legacy one needs only its type.
fn headers(request: &Value) -> Vec<(&'static str, String)> {
    let method = request["method"].as_str().unwrap_or_default();
    match request["params"]["_meta"].get("io.modelcontextprotocol/protocolVersion") {
        Some(_) => modern(0, method, request["params"].clone()).1,
        None => vec![(JSON.0, JSON.1.to_owned())],
    }
}
