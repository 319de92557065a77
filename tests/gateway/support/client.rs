//! A client that knows HTTP/1.1 just well enough to say anything.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::PATIENCE;

#[derive(Clone)]
pub struct Client {
    pub addr: SocketAddr,
    /// Sent with every request.
    headers: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

pub const MODERN: &str = "2026-07-28";

impl Client {
    pub fn new(addr: SocketAddr) -> Self {
        Self { addr, headers: Vec::new() }
    }

    /// The same client with one more header.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A client that has initialized a session of this revision.
    pub async fn legacy(self, revision: &str) -> Self {
        self.legacy_with(revision, json!({})).await
    }

    /// The same, with capabilities.
    pub async fn legacy_with(self, revision: &str, capabilities: Value) -> Self {
        let params = json!({"protocolVersion": revision, "capabilities": capabilities,
            "clientInfo": {"name": "test", "version": "1"}});
        let reply = self.post(&request(0, "initialize", params)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let session = reply.header("mcp-session-id").expect("a session").to_owned();
        self.with("Mcp-Session-Id", &session)
    }

    /// Initializes this many sessions and leaves them, over few connections.
    pub async fn open_sessions(&self, count: usize) {
        const CONNECTIONS: usize = 8;
        let params = json!({"protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"}});
        let body = request(0, "initialize", params).to_string();
        let message = format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let opening = (0..CONNECTIONS).map(|_| {
            let (addr, message) = (self.addr, message.clone());
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(addr).await.unwrap();
                let mut buffer = Vec::new();
                for _ in 0..count / CONNECTIONS {
                    stream.write_all(message.as_bytes()).await.unwrap();
                    buffer.clear();
                    while !buffer.ends_with(b"}}") {
                        assert_ne!(stream.read_buf(&mut buffer).await.unwrap(), 0, "it answers");
                    }
                    assert!(buffer.starts_with(b"HTTP/1.1 200"));
                }
            })
        });
        for connection in opening.collect::<Vec<_>>() {
            connection.await.unwrap();
        }
    }

    /// The id of its session.
    pub fn session(&self) -> &str {
        let header = self.headers.iter().rfind(|(name, _)| name == "Mcp-Session-Id");
        &header.expect("a session").1
    }

    /// Posts a JSON value with the headers that belong to it.
    pub async fn post(&self, body: &Value) -> Reply {
        self.post_bytes(body.to_string().as_bytes()).await
    }

    pub async fn post_bytes(&self, body: &[u8]) -> Reply {
        self.send("POST", "/mcp", &[("Content-Type", "application/json")], body).await
    }

    /// A modern request with its metadata and headers.
    pub async fn modern(&self, method: &str, params: Value) -> Reply {
        let (body, headers) = modern(1, method, params);
        let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
        self.send("POST", "/mcp", &headers, body.to_string().as_bytes()).await
    }

    /// A modern request to a gateway that may end meanwhile: nothing if no whole answer comes.
    pub async fn try_modern(&self, method: &str, params: Value) -> Option<Reply> {
        let (body, headers) = modern(1, method, params);
        let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
        self.raw(&self.request("POST", "/mcp", &headers, body.to_string().as_bytes())).await
    }

    /// The result of a modern request.
    pub async fn ask(&self, method: &str, params: Value) -> Value {
        let reply = self.modern(method, params).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let message = reply.json();
        assert_eq!(message["id"], 1, "{message}");
        assert!(message.get("error").is_none(), "{message}");
        message["result"].clone()
    }

    /// The error of a modern request that is answered by JSON-RPC.
    pub async fn ask_error(&self, method: &str, params: Value) -> Value {
        let reply = self.modern(method, params).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let message = reply.json();
        assert!(message.get("result").is_none(), "{message}");
        message["error"].clone()
    }

    /// The names of all pages, and how many pages there were.
    pub async fn names(&self) -> (Vec<String>, usize) {
        let (mut names, mut params, mut pages) = (Vec::new(), json!({}), 0);
        loop {
            let result = self.ask("prompts/list", params).await;
            pages += 1;
            let prompts = result["prompts"].as_array().expect("prompts").iter();
            names.extend(prompts.map(|p| p["name"].as_str().expect("name").to_owned()));
            match result.get("nextCursor") {
                Some(cursor) => params = json!({"cursor": cursor}),
                None => return (names, pages),
            }
        }
    }

    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        self.raw(&self.request(method, path, headers, body)).await.expect("an answer")
    }

    /// The same to a gateway that may close before it has read all: nothing if no whole answer
    /// comes.
    pub async fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Option<Reply> {
        self.raw(&self.request(method, path, headers, body)).await
    }

    fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        let own = self.headers.iter().map(|(n, v)| (n.as_str(), v.as_str()));
        let all: Vec<_> = headers.iter().copied().chain(own).collect();
        if !all.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str("Host: localhost\r\n");
        }
        for (name, value) in all {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if matches!(method, "POST" | "PUT") || !body.is_empty() {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        [head.as_bytes(), b"\r\n", body].concat()
    }

    /// Opens a stream of events. The request asks for it in the client's way.
    pub async fn stream(&self, method: &str, headers: &[(&str, &str)], body: &[u8]) -> Stream {
        self.stream_at(method, "/mcp", headers, body).await
    }

    /// The same, at another path.
    pub async fn stream_at(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Stream {
        let opened = self.try_stream_at(method, path, headers, body).await;
        opened.unwrap_or_else(|head| panic!("{head}"))
    }

    /// The same; the head of the response where it is no stream of events.
    pub async fn try_stream_at(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Stream, String> {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        let own = self.headers.iter().map(|(n, v)| (n.as_str(), v.as_str()));
        for (name, value) in headers.iter().copied().chain(own) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        let mut socket = TcpStream::connect(self.addr).await.unwrap();
        socket.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
        let mut stream = Stream { socket, text: String::new() };
        let head = stream.until("\r\n\r\n").await.expect("a head");
        if head.starts_with("HTTP/1.1 200") && head.contains("text/event-stream") {
            Ok(stream)
        } else {
            Err(head)
        }
    }

    /// Subscribes to changes of the list in the modern way; the acknowledgement was read.
    pub async fn listen(&self) -> Stream {
        let params = json!({"notifications": {"promptsListChanged": true}});
        let (body, headers) = modern(9, "subscriptions/listen", params);
        let headers: Vec<_> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let mut stream = self.stream("POST", &headers, body.to_string().as_bytes()).await;
        let ack = stream.event().await.expect("an acknowledgement").json();
        assert_eq!(ack["method"], "notifications/subscriptions/acknowledged");
        assert_eq!(ack["params"]["notifications"], json!({"promptsListChanged": true}));
        stream
    }

    /// Sends bytes as they are and reads until the other side closes.
    pub async fn raw(&self, request: &[u8]) -> Option<Reply> {
        let mut stream = TcpStream::connect(self.addr).await.ok()?;
        let exchange = async {
            // The gateway may answer, and close, before it has read everything.
            let _ = stream.write_all(request).await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            answer
        };
        let answer = timeout(PATIENCE, exchange).await.expect("an answer in time");
        Reply::parse(&answer)
    }
}

/// A stream of events that stays open.
pub struct Stream {
    socket: TcpStream,
    text: String,
}

/// One event, or a comment.
#[derive(Debug)]
pub struct Event {
    pub id: Option<String>,
    pub data: String,
}

impl Event {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

impl Stream {
    /// The next event; nothing at the end of the stream.
    pub async fn event(&mut self) -> Option<Event> {
        // Comments keep the line alive, and must not keep a test alive.
        timeout(PATIENCE, self.next_event()).await.expect("an event in time")
    }

    async fn next_event(&mut self) -> Option<Event> {
        loop {
            let chunk = self.until("\n\n").await?;
            // Chunk sizes of the transfer coding stand between the lines of interest.
            let field = |name: &str| {
                chunk.lines().find_map(|l| l.strip_prefix(name)).map(|v| v.trim().to_owned())
            };
            if let Some(data) = field("data:") {
                return Some(Event { id: field("id:"), data });
            }
        }
    }

    async fn until(&mut self, end: &str) -> Option<String> {
        loop {
            if let Some(at) = self.text.find(end) {
                let rest = self.text.split_off(at + end.len());
                return Some(std::mem::replace(&mut self.text, rest));
            }
            let mut piece = [0; 4096];
            match self.socket.read(&mut piece).await {
                Ok(length @ 1..) => self.text.push_str(&String::from_utf8_lossy(&piece[..length])),
                _ => return None,
            }
        }
    }
}

impl Reply {
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&bytes[..end]).ok()?;
        let mut lines = head.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers: Vec<_> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let mut reply = Self { status, headers, body: bytes[end + 4..].to_vec() };
        if reply.header("transfer-encoding") == Some("chunked") {
            reply.body = dechunk(&reply.body);
        }
        Some(reply)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The message: the body, or the data of the only event of a stream.
    pub fn json(&self) -> Value {
        let text = String::from_utf8(self.body.clone()).expect("UTF-8");
        let data = text.lines().find_map(|line| line.strip_prefix("data: "));
        serde_json::from_str(data.unwrap_or(&text)).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    /// The responses to a batch.
    pub fn answers(&self) -> Vec<Value> {
        serde_json::from_value(self.json()).expect("an array")
    }

    /// (status, code, reason) of an error.
    pub fn refusal(&self) -> (u16, i64, String) {
        let message = self.json();
        let reason = message["error"]["data"]["reason"].as_str().unwrap_or_default().to_owned();
        (self.status, message["error"]["code"].as_i64().unwrap_or_default(), reason)
    }
}

pub fn request(id: u64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// A modern request and the headers that repeat it.
pub fn modern(id: u64, method: &str, params: Value) -> (Value, Vec<(&'static str, String)>) {
    let mut headers = vec![
        ("Content-Type", "application/json".to_owned()),
        ("MCP-Protocol-Version", MODERN.to_owned()),
        ("Mcp-Method", method.to_owned()),
    ];
    let named = match method {
        "prompts/get" | "tools/call" => params["name"].as_str(),
        "resources/read" => params["uri"].as_str(),
        _ => None,
    };
    if let Some(name) = named {
        headers.push(("Mcp-Name", domain::protocol::mcp_name::encode(name).into_owned()));
    }
    let mut body = request(id, method, params);
    let meta = &mut body["params"]["_meta"];
    meta["io.modelcontextprotocol/protocolVersion"] = MODERN.into();
    meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
    (body, headers)
}

/// The bytes of a modern request over this version of HTTP.
pub fn modern_bytes(version: &str, method: &str, params: Value) -> Vec<u8> {
    let (body, headers) = modern(9, method, params);
    let body = body.to_string();
    let head: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let text = format!(
        "POST /mcp {version}\r\nHost: localhost\r\n{head}Content-Length: {length}\r\n\r\n{body}"
    );
    text.into_bytes()
}

fn dechunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = bytes.windows(2).position(|w| w == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..end]).ok();
        let size = size.and_then(|s| usize::from_str_radix(s, 16).ok()).unwrap_or(0);
        let Some(chunk) = bytes.get(end + 2..end + 2 + size).filter(|_| size > 0) else {
            break;
        };
        out.extend_from_slice(chunk);
        bytes = &bytes[(end + 4 + size).min(bytes.len())..];
    }
    out
}
