//! Scripted upstreams of the modern revision, fast enough not to matter: several listeners in one
//! process.
//!
//! A path `/all` lists the prompts of all of them under their public names, for the bare proxy, and
//! answers `initialize`.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use memchr::memmem;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::client::NUMBER;

/// Part of the name of a prompt which the last upstream fails to get.
const FAILING: &[u8] = b"p-00049\"";

/// Failures in a row after which that upstream does not answer the gateway either, so that the
/// circuit breaker opens: more than the probes of one prompt.
const GONE_AFTER: u64 = 50;

/// The content of the scripted upstreams.
#[derive(Clone, Debug, clap::Args)]
pub struct UpstreamOptions {
    /// Number of upstreams.
    #[arg(long, default_value_t = 10)]
    pub upstreams: usize,
    /// Prompts of each.
    #[arg(long, default_value_t = 50)]
    pub prompts: usize,
    /// Bytes of text in the result of a get.
    #[arg(long, default_value_t = 1_000)]
    pub text: usize,
    /// Bytes of text in the result of a get whose prompt has this as its name: `big`.
    #[arg(long, default_value_t = 1 << 20)]
    pub big: usize,
    /// Milliseconds before the last upstream answers a get.
    #[arg(long, default_value_t = 0)]
    pub slow: u64,
}

impl UpstreamOptions {
    /// Ten upstreams of fifty prompts, with big results of this many bytes.
    pub fn usual(big: usize) -> Self {
        Self { upstreams: 10, prompts: 50, text: 1_000, big, slow: 0 }
    }
}

struct Upstream {
    index: usize,
    options: Arc<UpstreamOptions>,
    small: Messages,
    big: Messages,
    tool: Messages,
    /// The serialised prompts of all upstreams, for the bare proxy.
    all: Bytes,
    /// The number of changes of this upstream's list.
    version: watch::Sender<u64>,
    list: Mutex<(u64, Bytes)>,
    /// Gets that failed since the last answered get.
    failures: AtomicU64,
    /// Requests for prompts and completions so far, of all upstreams.
    calls: Arc<AtomicU64>,
}

/// The result of a get or a call, around the number of the request that makes it differ from
/// others.
struct Messages {
    head: Bytes,
    tail: Bytes,
}

type Body = BoxBody<Bytes, Infallible>;

fn failure() -> Response<Body> {
    let response = Response::builder().status(500);
    response.body(Full::default().boxed()).expect("a response")
}

/// Serves until it is killed. Prints one address for each upstream.
pub async fn serve(options: UpstreamOptions) {
    let options = Arc::new(options);
    let calls = Arc::new(AtomicU64::new(0));
    let all: Vec<_> = (0..options.upstreams).map(|at| prompts(at, &options, 0, true)).collect();
    let all = Bytes::from(all.join(","));
    for index in 0..options.upstreams {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("{}", listener.local_addr().expect("an address"));
        let upstream = Arc::new(Upstream {
            index,
            small: messages(options.text),
            big: messages(options.big),
            tool: contents(options.text),
            all: all.clone(),
            version: watch::Sender::new(0),
            list: Mutex::new((0, prompts(index, &options, 0, false).into())),
            options: options.clone(),
            failures: AtomicU64::new(0),
            calls: calls.clone(),
        });
        tokio::spawn(accept(listener, upstream));
    }
    std::future::pending().await
}

async fn accept(listener: TcpListener, upstream: Arc<Upstream>) {
    while let Ok((stream, _)) = listener.accept().await {
        let upstream = upstream.clone();
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            let answer = service_fn(move |request: Request<Incoming>| {
                let upstream = upstream.clone();
                async move { Ok::<_, Infallible>(upstream.answer(request).await) }
            });
            let served = auto::Builder::new(TokioExecutor::new());
            let _ = served.serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

/// The prompts of one upstream, separated by commas; about 330 bytes each.
fn prompts(upstream: usize, options: &UpstreamOptions, version: u64, public: bool) -> String {
    let mut text = String::new();
    for prompt in 0..options.prompts {
        let comma = if prompt == 0 { "" } else { "," };
        let prefix = if public { format!("u{upstream}__") } else { String::new() };
        // One prompt changes with each version; the largest prompt is that of the first upstream.
        let changed = if prompt == 0 { version } else { 0 };
        let name = match (upstream, prompt + 1) {
            (0, last) if last == options.prompts => "big".to_owned(),
            _ => format!("p-{prompt:05}"),
        };
        let _ = write!(
            text,
            r#"{comma}{{"name":"{prefix}{name}","title":"Prompt {prompt} of team {upstream}","description":"Reviews one of the many things that a team asks for, in version {changed} of the rules that the team has agreed on.","arguments":[{{"name":"text","description":"What it is about","required":false}},{{"name":"tone","description":"How formal it is"}}]}}"#
        );
    }
    text
}

fn text(size: usize) -> String {
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(size / 45 + 1);
    text[NUMBER.len().min(size)..size].to_owned()
}

/// The result of a call of a tool: the texts of [`messages`].
fn contents(size: usize) -> Messages {
    let text = text(size);
    Messages {
        head: br#"{"resultType":"complete","content":[{"type":"text","text":""#[..].into(),
        tail: format!(r#"{text}"}},{{"type":"text","text":"Understood."}}]}}"#).into(),
    }
}

fn messages(size: usize) -> Messages {
    let text = text(size);
    Messages {
        head: br#"{"resultType":"complete","description":"A scripted prompt","messages":[{"role":"user","content":{"type":"text","text":""#[..].into(),
        tail: format!(
            r#"{text}"}}}},{{"role":"assistant","content":{{"type":"text","text":"Understood."}}}}]}}"#
        )
        .into(),
    }
}

impl Upstream {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.map(|body| body.to_bytes());
        let body = body.unwrap_or_default();
        match path.as_str() {
            "/change" => {
                self.change();
                return full("text/plain", Bytes::new());
            }
            "/calls" => {
                let calls = self.calls.load(Ordering::Relaxed).to_string();
                return full("text/plain", calls.into());
            }
            _ => {}
        }
        let has = |text: &str| memmem::find(&body, text.as_bytes()).is_some();
        if has("\"prompts/get\"") {
            return self.get(&body).await;
        }
        let id = id(&body);
        if has("\"tools/call\"") {
            self.calls.fetch_add(1, Ordering::Relaxed);
            return json(&id, &[&self.tool.head, number(&body), &self.tool.tail]);
        }
        if has("\"prompts/list\"") {
            let list = if path == "/all" { self.all.clone() } else { self.list() };
            return json(
                &id,
                &[
                    br#"{"resultType":"complete","ttlMs":600000,"cacheScope":"public","prompts":["#,
                    &list,
                    b"]}",
                ],
            );
        }
        if has("\"completion/complete\"") {
            self.calls.fetch_add(1, Ordering::Relaxed);
            return json(&id, &[br#"{"resultType":"complete","completion":{"values":["formal","friendly","short"],"hasMore":false}}"#]);
        }
        if has("\"server/discover\"") {
            if self.failures.load(Ordering::Relaxed) > GONE_AFTER {
                return failure();
            }
            return json(&id, &[br#"{"resultType":"complete","ttlMs":600000,"cacheScope":"public","supportedVersions":["2026-07-28"],"capabilities":{"prompts":{"listChanged":true},"completions":{}}}"#]);
        }
        if has("\"subscriptions/listen\"") {
            return self.listen(&id);
        }
        if has("\"initialize\"") {
            return json(&id, &[br#"{"protocolVersion":"2025-06-18","capabilities":{"prompts":{}},"serverInfo":{"name":"scripted","version":"1"}}"#]);
        }
        json(&id, &[b"{}"])
    }

    async fn get(&self, body: &[u8]) -> Response<Body> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.index + 1 == self.options.upstreams && memmem::find(body, FAILING).is_some() {
            self.failures.fetch_add(1, Ordering::Relaxed);
            return failure();
        }
        self.failures.store(0, Ordering::Relaxed);
        if self.options.slow > 0 && self.index + 1 == self.options.upstreams {
            tokio::time::sleep(Duration::from_millis(self.options.slow)).await;
        }
        let is_big = memmem::find(body, b"big\"").is_some();
        let Messages { head, tail } = if is_big { &self.big } else { &self.small };
        json(&id(body), &[head, number(body), tail])
    }

    fn list(&self) -> Bytes {
        let version = *self.version.borrow();
        let mut list = self.list.lock().expect("nobody panics");
        if list.0 != version {
            *list = (version, prompts(self.index, &self.options, version, false).into());
        }
        list.1.clone()
    }

    fn change(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    /// A stream that announces each change of the list.
    fn listen(&self, id: &str) -> Response<Body> {
        let (mut sender, body) = http_body_util::channel::Channel::<Bytes, Infallible>::new(4);
        let mut version = self.version.subscribe();
        let tag = format!(r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}"#);
        tokio::spawn(async move {
            let mut text = format!(
                "data: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/subscriptions/acknowledged\",\
                 \"params\":{{\"notifications\":{{\"promptsListChanged\":true}},{tag}}}}}\n\n"
            );
            version.mark_unchanged();
            while sender.send_data(text.into()).await.is_ok() && version.changed().await.is_ok() {
                text = format!(
                    "data: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/prompts/list_changed\",\
                     \"params\":{{{tag}}}}}\n\n"
                );
            }
        });
        let response = Response::builder().header("Content-Type", "text/event-stream");
        response.body(body.boxed()).expect("a response")
    }
}

/// The number of a request, which is its argument; whole, so that a marker of a probe shows.
fn number(body: &[u8]) -> &[u8] {
    let argument = memmem::find(body, b"\"text\":\"").map_or(&[][..], |at| &body[at + 8..]);
    memchr::memchr(b'"', argument).map_or(NUMBER.as_bytes(), |end| &argument[..end])
}

/// The id of a request as text. The requests that are sent here have it once.
fn id(body: &[u8]) -> String {
    let at = memmem::find(body, b"\"id\":").map_or(0, |at| at + 5);
    let end = body[at..].iter().position(|byte| matches!(byte, b',' | b'}')).unwrap_or(0);
    String::from_utf8_lossy(&body[at..at + end]).into_owned()
}

fn json(id: &str, result: &[&[u8]]) -> Response<Body> {
    let length: usize = result.iter().map(|part| part.len()).sum();
    let mut text = Vec::with_capacity(length + 64);
    text.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    text.extend_from_slice(id.as_bytes());
    text.extend_from_slice(br#","result":"#);
    result.iter().for_each(|part| text.extend_from_slice(part));
    text.push(b'}');
    full("application/json", text.into())
}

fn full(media_type: &'static str, body: Bytes) -> Response<Body> {
    let response = Response::builder().header("Content-Type", media_type);
    response.body(Full::new(body).boxed()).expect("a response")
}
