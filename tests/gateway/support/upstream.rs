//! An upstream that answers by a script, well or badly.

use std::net::SocketAddr;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, broadcast, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::{Counter, PATIENCE};

/// A request as the upstream received it.
#[derive(Clone, Debug)]
pub struct Received {
    /// GET, POST or DELETE.
    pub http_method: String,
    /// With its query.
    pub path: String,
    /// As they came, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The JSON-RPC message; null for requests without a body.
    pub message: Value,
    /// The body as it came.
    pub body: Vec<u8>,
    /// How many connections were opened before this one.
    pub connection: usize,
}

/// A scripted response.
#[derive(Clone, Debug)]
pub enum Scripted {
    /// 200 with this JSON.
    Json(Value),
    /// A status, headers and a body of exactly these bytes.
    Http(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// 200 with an event stream of these bytes, then the end.
    Stream(Vec<u8>),
    /// 200 with an event stream of these bytes, which ends once that is notified.
    LateEnd(Vec<u8>, Arc<Notify>),
    /// This head, then these bytes over and over until nobody reads them.
    Endless(String, Vec<u8>),
    /// An event stream of whatever is sent through the channel, until the upstream ends.
    Events(broadcast::Sender<String>),
    /// An event stream of whatever its [`OpenStream`] sends, until that is dropped.
    OpenStream(Arc<Mutex<Option<mpsc::UnboundedReceiver<String>>>>),
    /// These bytes, then the connection breaks.
    Break(Vec<u8>),
    /// These bytes, then nothing until the other side gives up.
    Stall(Vec<u8>),
}

/// The sender of an open event stream.
#[derive(Clone, Debug)]
pub struct OpenStream(mpsc::UnboundedSender<String>);

impl OpenStream {
    pub fn new() -> (Self, Scripted) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), Scripted::OpenStream(Arc::new(Mutex::new(Some(receiver)))))
    }

    /// Sends an event that carries a message.
    pub fn send(&self, message: &Value) {
        self.raw(&format!("data: {message}\n\n"));
    }

    pub fn raw(&self, text: &str) {
        let _ = self.0.send(text.to_owned());
    }

    /// Waits until the client has disconnected.
    pub async fn closed(&self) {
        self.0.closed().await;
    }
}

/// Never answers.
pub const HANG: Scripted = Scripted::Stall(Vec::new());

pub struct Upstream {
    pub addr: SocketAddr,
    log: Arc<Log>,
    accepting: AbortHandle,
}

/// The requests that an upstream received.
struct Log {
    requests: Mutex<Vec<Received>>,
    /// Counts the requests whose script has run.
    scripted: Counter,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Upstream {
    /// Answers every request with what `script` says.
    pub async fn start(script: impl Fn(&Received) -> Scripted + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let log = Arc::new(Log { requests: Mutex::default(), scripted: Counter::new() });
        let shared = log.clone();
        let script = Arc::new(script);
        let accepting = tokio::spawn(async move {
            let mut connection = 0;
            while let Ok((stream, _)) = listener.accept().await {
                let (script, log) = (script.clone(), shared.clone());
                tokio::spawn(async move { serve(stream, connection, &*script, &log).await });
                connection += 1;
            }
        });
        Self { addr, log, accepting: accepting.abort_handle() }
    }

    /// A modern upstream; `script` may answer what it likes, the rest is answered well.
    pub async fn modern(
        script: impl Fn(&Received) -> Option<Scripted> + Send + Sync + 'static,
    ) -> Self {
        Self::start(move |asked| script(asked).unwrap_or_else(|| good_modern(asked))).await
    }

    /// A modern upstream with these prompts, each of which answers its name and arguments.
    pub async fn with_prompts(names: &[&str]) -> Self {
        let prompts: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        Self::modern(move |asked| {
            (asked.method() == "prompts/list").then(|| asked.list(&json!(prompts)))
        })
        .await
    }

    /// A modern upstream whose first get waits for [`Upstream::answer_get`].
    pub async fn holding_a_get() -> (Self, OpenStream) {
        let (live, scripted) = OpenStream::new();
        let has_held = AtomicBool::new(false);
        let holds = move |asked: &Received| {
            asked.method() == "prompts/get" && !has_held.swap(true, Ordering::SeqCst)
        };
        (Self::modern(move |asked| holds(asked).then(|| scripted.clone())).await, live)
    }

    /// Answers the first get that it was asked.
    pub fn answer_get(&self, live: &OpenStream) {
        let asked = self.received();
        let get = asked.iter().find(|asked| asked.method() == "prompts/get").expect("it was asked");
        let result = json!({"resultType": "complete", "messages": []});
        live.send(&json!({"jsonrpc": "2.0", "id": get.message["id"], "result": result}));
    }

    /// Its table in the configuration. Waits are short, so that tests see their end.
    pub fn table(&self, id: &str) -> String {
        self.patient_table(id) + "page_timeout = \"2s\"\nwalk_timeout = \"4s\"\ntimeout = \"2s\"\n"
    }

    /// Its table with the default waits, for tests in which something is meant to last.
    pub fn patient_table(&self, id: &str) -> String {
        format!("[upstreams.{id}]\ntransport = \"http\"\nurl = \"http://{}/mcp\"\n", self.addr)
    }

    /// Waits until it received a request with this method.
    #[track_caller]
    pub fn received_method(&self, method: &str) -> impl Future<Output = ()> {
        self.until(move |received| received.iter().any(|request| request.method() == method))
    }

    /// Waits until it received this many gets.
    #[track_caller]
    pub fn received_gets(&self, count: usize) -> impl Future<Output = ()> {
        self.until(move |received| {
            received.iter().filter(|request| request.method() == "prompts/get").count() == count
        })
    }

    /// Waits until `accept` holds for the requests received so far; looks again after each request,
    /// once the script has run for it.
    #[track_caller]
    pub fn until(&self, mut accept: impl FnMut(&[Received]) -> bool) -> impl Future<Output = ()> {
        self.until_some(move || accept(&self.log.requests.lock().unwrap()).then_some(()))
    }

    /// Waits until `look` finds something, and returns it; looks again after each request.
    #[track_caller]
    pub fn until_some<T>(&self, mut look: impl FnMut() -> Option<T>) -> impl Future<Output = T> {
        let caller = Location::caller();
        let found = async move {
            loop {
                let count = self.log.scripted.get();
                if let Some(found) = look() {
                    return found;
                }
                self.log.scripted.above(count).await;
            }
        };
        async move {
            let found = timeout(PATIENCE, found).await;
            found.unwrap_or_else(|_| panic!("{caller}: received only {:?}", self.methods()))
        }
    }

    /// The gets received so far, in order.
    pub fn gets(&self) -> Vec<Received> {
        self.received().into_iter().filter(|asked| asked.method() == "prompts/get").collect()
    }

    /// All requests received so far.
    pub fn received(&self) -> Vec<Received> {
        self.log.requests.lock().unwrap().clone()
    }

    /// The methods of the requests received so far, in order.
    pub fn methods(&self) -> Vec<String> {
        self.received().iter().map(|asked| asked.method().to_owned()).collect()
    }
}

impl Received {
    pub fn method(&self) -> &str {
        self.message["method"].as_str().unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub fn body_text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A JSON-RPC result for this request.
    pub fn result(&self, result: Value) -> Scripted {
        Scripted::Json(json!({"jsonrpc": "2.0", "id": self.message["id"], "result": result}))
    }

    pub fn error(&self, code: i64, message: &str) -> Scripted {
        let error = json!({"code": code, "message": message});
        Scripted::Json(json!({"jsonrpc": "2.0", "id": self.message["id"], "error": error}))
    }

    /// A whole modern list.
    pub fn list(&self, prompts: &Value) -> Scripted {
        self.result(json!({"resultType": "complete", "ttlMs": 60_000, "cacheScope": "public",
            "prompts": prompts}))
    }

    /// A get whose one message is this content.
    pub fn content(&self, content: Value) -> Scripted {
        let messages = json!([{"role": "user", "content": content}]);
        self.result(json!({"resultType": "complete", "messages": messages}))
    }
}

/// Discovers, lists one prompt `p`, echoes gets, completes nothing.
pub fn good_modern(asked: &Received) -> Scripted {
    let params = &asked.message["params"];
    match asked.method() {
        "server/discover" => asked.result(json!({
            "resultType": "complete", "ttlMs": 0, "cacheScope": "public",
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"prompts": {}, "completions": {}},
        })),
        "prompts/list" => asked.list(&json!([{"name": "p"}])),
        "prompts/get" => {
            let text = format!("{} {}", params["name"], params["arguments"]);
            asked.content(json!({"type": "text", "text": text}))
        }
        "completion/complete" => {
            asked.result(json!({"resultType": "complete", "completion": {"values": []}}))
        }
        _ => asked.error(-32601, "method not found"),
    }
}

/// Initializes, as a server that knows nothing newer does.
pub fn good_legacy(asked: &Received, revision: &str) -> Scripted {
    match asked.method() {
        "server/discover" => Scripted::Http(
            400,
            vec![("Content-Type", "application/json".into())],
            br#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request"},"id":null}"#
                .to_vec(),
        ),
        "initialize" => {
            let result = json!({"protocolVersion": revision,
                "capabilities": {"prompts": {}, "completions": {}},
                "serverInfo": {"name": "legacy", "version": "1"}});
            let Scripted::Json(answer) = asked.result(result) else { unreachable!() };
            let headers = vec![
                ("Content-Type", "application/json".to_owned()),
                ("Mcp-Session-Id", "legacy-session".to_owned()),
            ];
            Scripted::Http(200, headers, answer.to_string().into_bytes())
        }
        "notifications/initialized" => Scripted::Http(202, vec![], vec![]),
        _ => good_modern(asked),
    }
}

async fn serve(
    mut stream: TcpStream,
    connection: usize,
    script: &(dyn Fn(&Received) -> Scripted + Send + Sync),
    log: &Log,
) {
    while let Some(asked) = read_request(&mut stream, connection).await {
        log.requests.lock().unwrap().push(asked.clone());
        let scripted = script(&asked);
        log.scripted.increment();
        let written = match scripted {
            Scripted::Json(json) => {
                let headers = vec![("Content-Type", "application/json".to_owned())];
                write(&mut stream, 200, &headers, json.to_string().as_bytes()).await
            }
            Scripted::Http(status, headers, body) => {
                write(&mut stream, status, &headers, &body).await
            }
            Scripted::Stream(body) => {
                let headers = vec![("Content-Type", "text/event-stream".to_owned())];
                write(&mut stream, 200, &headers, &body).await
            }
            Scripted::LateEnd(body, end) => {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                    Transfer-Encoding: chunked\r\n\r\n";
                let chunk = [format!("{:x}\r\n", body.len()).as_bytes(), &body, b"\r\n"].concat();
                match stream.write_all(&[head.as_bytes(), &chunk].concat()).await {
                    Ok(()) => {
                        end.notified().await;
                        stream.write_all(b"0\r\n\r\n").await
                    }
                    error => error,
                }
            }
            Scripted::Endless(head, piece) => {
                let mut written = stream.write_all(head.as_bytes()).await;
                while written.is_ok() {
                    written = stream.write_all(&piece).await;
                }
                written
            }
            Scripted::Events(sender) => {
                let mut events = sender.subscribe();
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: open\n\n";
                let mut written = stream.write_all(head.as_bytes()).await;
                while let (Ok(()), Ok(event)) = (&written, events.recv().await) {
                    written = stream.write_all(format!("data: {event}\n\n").as_bytes()).await;
                }
                return;
            }
            Scripted::OpenStream(receiver) => {
                let mut texts = receiver.lock().unwrap().take().expect("one stream of each");
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
                let mut written = stream.write_all(head.as_bytes()).await;
                while written.is_ok() {
                    let mut gone = [0];
                    tokio::select! {
                        text = texts.recv() => match text {
                            Some(text) => written = stream.write_all(text.as_bytes()).await,
                            None => return,
                        },
                        _ = stream.read(&mut gone) => return,
                    }
                }
                return;
            }
            Scripted::Break(bytes) => {
                let _ = stream.write_all(&bytes).await;
                return;
            }
            Scripted::Stall(bytes) => {
                let _ = stream.write_all(&bytes).await;
                let _ = stream.read(&mut [0]).await;
                return;
            }
        };
        if written.is_err() {
            return;
        }
    }
}

async fn read_request(stream: &mut TcpStream, connection: usize) -> Option<Received> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).ok()?;
    let mut lines = head.split("\r\n");
    let mut words = lines.next()?.split(' ').map(str::to_owned);
    let (http_method, path) = (words.next()?, words.next()?);
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
    let mut body = bytes[end + 4..].to_vec();
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    let message = serde_json::from_slice(&body).unwrap_or_default();
    Some(Received { http_method, path, headers, message, body, connection })
}

async fn write(
    stream: &mut TcpStream,
    status: u16,
    headers: &[(&str, String)],
    body: &[u8],
) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(&[head.as_bytes(), b"\r\n", body].concat()).await
}
