//! A scripted upstream of either era, over any transport: well-behaved, or as bad as the seed makes
//! it.

mod author;
pub mod authorization;
pub mod versions;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use base::platform::network::Acceptor;
use bytes::Bytes;
use fastrand::Rng;
use http::request::Parts;
use http::{Method, Request, Response};
use http_body_util::channel::{Channel, Sender};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};

use crate::disk::SimDisk;
use crate::machine::network::SimNetwork;
use crate::machine::processes::Streams;
use crate::machine::{Machine, trace};
use crate::plan::PROVOKER;
use crate::skills::{NAMES, Shelf};
use crate::vault::{self, Vault};
pub use author::OUTSIDE;
use author::Oddity;
use versions::Versions;

type Body = BoxBody<Bytes, io::Error>;

/// The plan of an upstream for the whole run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub id: String,
    pub host: IpAddr,
    pub transport: Transport,
    /// The revision that it negotiates.
    pub revision: &'static str,
    pub page_size: usize,
    /// Whether its gets ask the user at times.
    pub asks: bool,
    /// Whether each get has to carry the secret that the vault has for its caller.
    pub acts_as_caller: bool,
    /// Whether each caller has a list of its own, walked with its secret.
    pub lists_per_caller: bool,
    /// Whether callers sign in there, instead of having secrets in the vault.
    pub signs_in: bool,
    /// Whether only what was approved may be served.
    pub needs_approval: bool,
    /// Whether it announces changes; else the gateway polls.
    pub announces: bool,
    pub has_skills: bool,
    /// Whether its prompts link to resources of its own, and the gateway seals these links.
    pub has_links: bool,
    /// Whether it has a prompt in two versions, of which all callers are to get the new one.
    pub has_rollout: bool,
    /// Whether it is a library with a prompt that has versions and labels.
    pub has_versions: bool,
}

/// How the gateway reaches it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Transport {
    Http,
    /// HTTP+SSE, of revision 2024-11-05.
    Sse {
        /// Whether the configuration names the transport; else the gateway finds out.
        is_named: bool,
    },
    Stdio,
    /// A library of the gateway's own: files in a folder.
    Library,
}

pub const MODERN: &str = "2026-07-28";

/// The prompt that has another version, and the label of that one.
pub const ROLLED_OUT: &str = "open-rolled-out";
pub const CANDIDATE: &str = "candidate";

/// The beginning of the URIs of notes, each of which one prompt links to.
pub const NOTES: &str = "note:///";

/// The credential of the gateway itself, for what it asks on behalf of no caller.
pub const SERVICE: &str = "the-secret-of-the-gateway";

/// The chances that a request is served badly.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mood {
    pub slow: f64,
    pub fails: f64,
    pub garbage: f64,
    pub cuts: f64,
    pub hangs: f64,
    /// Loses its sessions.
    pub forgets: f64,
    /// Gives another text from now on to who asks without arguments.
    pub flips: f64,
}

/// A prompt as the upstream lists it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Prompt {
    pub name: String,
    pub description: String,
}

/// A list that was served.
#[derive(Clone)]
struct Offer {
    at: Instant,
    /// The caller whose list it is; `None`: that of all.
    caller: Option<String>,
    list: Vec<Prompt>,
}

/// A get that has arrived.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub nonce: String,
    pub name: String,
    pub at: Instant,
    /// Whether the upstream has said that it did not process the request.
    pub is_refused: bool,
    /// The bearer token of the request.
    pub token: Option<String>,
}

#[derive(Clone)]
pub struct Upstream(Arc<Shared>);

struct Shared {
    plan: Plan,
    on_get: Box<dyn Fn(&Arrival) + Send + Sync>,
    on_violation: Box<dyn Fn(String) + Send + Sync>,
    /// Where the files of a library are.
    disk: OnceLock<SimDisk>,
    vault: OnceLock<Vault>,
    state: Mutex<State>,
}

struct State {
    rng: Rng,
    mood: Mood,
    /// Whether who asks without arguments gets another text.
    has_other_text: bool,
    version: u64,
    prompts: BTreeMap<String, Prompt>,
    /// The prompts of a library whose files an author has replaced.
    oddities: BTreeMap<String, Oddity>,
    /// `None` for an upstream without versions.
    versions: Option<Versions>,
    /// `None` for an upstream without the extension for skills.
    skills: Option<Shelf>,
    /// List walks under way.
    walks: BTreeMap<u64, Offer>,
    next_walk: u64,
    /// Whether the list changes once more after the first page of the next walk.
    changes_in_walk: bool,
    /// A prompt that the next walk has besides, and at whose name a task of the gateway panics.
    panic: Option<&'static str>,
    /// The lists of all walks that reached their last page.
    offered: Vec<Offer>,
    arrivals: Vec<Arrival>,
    sessions: u64,
    /// The token with which each session began.
    owners: BTreeMap<String, Option<String>>,
    /// The sessions before this one are forgotten.
    forgotten: u64,
    streams: Vec<mpsc::UnboundedSender<Value>>,
    /// The streams of HTTP+SSE, by their sessions.
    replies: BTreeMap<String, mpsc::UnboundedSender<Sent>>,
    server_requests: BTreeMap<String, oneshot::Sender<Value>>,
    next_server_request: u64,
    /// The calls that a server request was asked about: they may come again, with the answer.
    asked: BTreeSet<String>,
}

/// A reply, whatever carries it.
enum Reply {
    Message(Value),
    /// A request to the client, and what follows its answer.
    ServerRequest {
        asked: Value,
        then: Pin<Box<dyn Future<Output = Option<Value>> + Send>>,
    },
    /// A stream of notifications that begins with this message.
    Notifications(Value),
    Accepted,
    /// As servers of before refuse what they do not know.
    Unknown,
}

/// A message on a stream of HTTP+SSE.
enum Sent {
    Event(Bytes),
    /// The begin of an event, and then the end of the connection.
    Cut,
}

/// The fate of one request.
enum Fate {
    Well,
    Status(u16),
    Garbage(&'static [u8]),
    Cut,
    Hang,
}

impl Upstream {
    pub fn new(
        plan: Plan,
        mut rng: Rng,
        on_get: impl Fn(&Arrival) + Send + Sync + 'static,
        on_violation: impl Fn(String) + Send + Sync + 'static,
    ) -> Self {
        let mut prompts = BTreeMap::new();
        let numbered = (0..rng.usize(1..12)).map(|number| {
            let kind = if rng.u8(..) < 80 { "secret" } else { "open" };
            format!("{kind}-{number}")
        });
        let rolled_out = plan.has_rollout.then(|| [ROLLED_OUT.to_owned(), candidate()]);
        for name in numbered.chain(rolled_out.into_iter().flatten()) {
            let description = format!("{name} of {} in version 0", plan.id);
            prompts.insert(name.clone(), Prompt { name, description });
        }
        let versions = plan.has_versions.then(Versions::new);
        let skills = plan.has_skills.then(|| Shelf::new(&plan.id, rng.fork()));
        Self(Arc::new(Shared {
            plan,
            on_get: Box::new(on_get),
            on_violation: Box::new(on_violation),
            disk: OnceLock::new(),
            vault: OnceLock::new(),
            state: Mutex::new(State {
                rng,
                mood: Mood::default(),
                has_other_text: false,
                version: 0,
                prompts,
                oddities: BTreeMap::new(),
                versions,
                skills,
                walks: BTreeMap::new(),
                next_walk: 0,
                changes_in_walk: false,
                panic: None,
                offered: Vec::new(),
                arrivals: Vec::new(),
                sessions: 0,
                owners: BTreeMap::new(),
                forgotten: 0,
                streams: Vec::new(),
                replies: BTreeMap::new(),
                server_requests: BTreeMap::new(),
                next_server_request: 0,
                asked: BTreeSet::new(),
            }),
        }))
    }

    pub fn plan(&self) -> &Plan {
        &self.0.plan
    }

    /// Can be reached from now on.
    pub fn start(&self, machine: &Machine, vault: &Vault) {
        let _ = self.0.vault.set(vault.clone());
        match self.0.plan.transport {
            Transport::Http | Transport::Sse { .. } => self.listen(&machine.network),
            Transport::Stdio => {
                let this = self.clone();
                let program = move |streams| {
                    let this = this.clone();
                    Box::pin(async move { this.run(streams).await }) as Pin<Box<_>>
                };
                machine.processes.install(&self.0.plan.id, Arc::new(program));
            }
            Transport::Library => {
                machine.disk.create_folder(&self.0.plan.folder());
                let _ = self.0.disk.set(machine.disk.clone());
                for prompt in self.prompts() {
                    self.write(&prompt);
                }
                NAMES.iter().for_each(|name| self.write_skill(name));
                self.restore_versions();
            }
        }
    }

    /// Writes the file of a prompt.
    fn write(&self, prompt: &Prompt) {
        if let Some(disk) = self.0.disk.get() {
            self.clear(&prompt.name);
            let file = self.0.plan.folder().join(format!("{}.md", prompt.name));
            disk.write(&file, self.file_of(prompt).as_bytes());
            self.offer();
        }
    }

    /// The content of the file of a prompt.
    fn file_of(&self, Prompt { name, description }: &Prompt) -> String {
        let id = &self.0.plan.id;
        format!(
            "---\nname: {name}\ndescription: {description}\narguments:\n  - name: nonce\n---\n\
             {id} says {description} for {{{{ nonce }}}}"
        )
    }

    /// Writes the files of a skill of a library.
    fn write_skill(&self, name: &str) {
        if let Some(disk) = self.0.disk.get() {
            self.with_skills(|skills| skills.write(name, &self.0.plan.folder(), disk));
        }
    }

    /// Notes the prompts in the folder of a library as its offer.
    fn offer(&self) {
        let mut state = self.lock();
        let list = state.listed();
        state.offered.push(Offer { at: Instant::now(), caller: None, list });
    }

    /// Runs as a child process until its input ends, or until it crashes. Returns its exit code.
    async fn run(&self, streams: Streams) -> i32 {
        let Streams { input, mut output, mut errors } = streams;
        let _ = errors.write_all(b"ready\n").await;
        let (sender, mut changes) = mpsc::unbounded_channel();
        self.lock().streams.push(sender);
        let mut lines = BufReader::new(input).lines();
        loop {
            let line = tokio::select! {
                biased;
                Some(change) = changes.recv() => {
                    let _ = output.write_all(format!("{change}\n").as_bytes()).await;
                    continue;
                }
                line = lines.next_line() => line,
            };
            let Ok(Some(line)) = line else { return 0 };
            let message: Value = serde_json::from_str(&line).unwrap_or_default();
            let (delay, fate) = self.draw();
            sleep(delay).await;
            self.arrived(&message, None, false);
            let reply = match fate {
                Fate::Well => match self.reply(&message, None) {
                    Reply::Message(reply) | Reply::Notifications(reply) => reply,
                    Reply::ServerRequest { .. } | Reply::Accepted => continue,
                    Reply::Unknown => error(&message, -32601),
                },
                Fate::Status(_) => error(&message, -32603),
                Fate::Hang => continue,
                Fate::Garbage(bytes) => {
                    let _ = output.write_all(&[bytes, b"\n"].concat()).await;
                    continue;
                }
                Fate::Cut => return 3,
            };
            if output.write_all(format!("{reply}\n").as_bytes()).await.is_err() {
                return 1;
            }
        }
    }

    /// Listens; each connection is served by a task of its own.
    fn listen(&self, network: &SimNetwork) {
        let listening = network.listen(SocketAddr::new(self.0.plan.host, 80)).expect("it is free");
        let this = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listening.accept().await {
                let this = this.clone();
                tokio::spawn(async move {
                    let service = service_fn(|request| this.respond(request));
                    let serving =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    let _ = serving.await;
                });
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_mood(&self, mood: Mood) {
        self.lock().mood = mood;
    }

    /// Changes the list, and once more while the gateway walks it. A list of one caller is walked
    /// when the caller asks, who then gets that of before: such a list changes once.
    pub fn change_while_walked(&self) {
        self.lock().changes_in_walk = !self.0.plan.lists_per_caller;
        self.change();
    }

    /// Changes one prompt, or adds or removes one; announces it, if it announces changes.
    pub fn change(&self) {
        let mut state = self.lock();
        state.version += 1;
        let version = state.version;
        let number = state.rng.usize(..14);
        let kind = if state.rng.bool() { "secret" } else { "open" };
        let name = format!("{kind}-{number}");
        if state.prompts.len() > 1 && state.rng.u8(..) < 64 && state.prompts.remove(&name).is_some()
        {
            trace::note(&self.0.plan.id, &format!("version {version}: without {name}"));
            drop(state);
            if let Some(disk) = self.0.disk.get() {
                self.clear(&name);
                disk.remove(&self.0.plan.folder().join(format!("{name}.md")));
                self.offer();
            }
        } else {
            let description = format!("{name} of {} in version {version}", self.0.plan.id);
            let prompt = Prompt { name: name.clone(), description };
            state.prompts.insert(name.clone(), prompt.clone());
            trace::note(&self.0.plan.id, &format!("version {version}: another {name}"));
            drop(state);
            self.write(&prompt);
        }
        self.announce();
    }

    /// Changes a skill, if it has any. Those of a library are as its files are.
    pub fn change_skill(&self) {
        let may_lie = self.0.plan.transport != Transport::Library;
        let changed = self.with_skills(|skills| skills.change(may_lie));
        if let Some(name) = changed {
            trace::note(&self.0.plan.id, &format!("changes the skill {name}"));
            self.write_skill(name);
            self.announce();
        }
    }

    /// From now on all files of skills are as their entries say.
    pub fn stop_lying(&self) {
        self.with_skills(Shelf::stop_lying);
        self.announce();
    }

    /// Asks its skills for something; `None` if it has no skills.
    pub fn with_skills<T>(&self, ask: impl FnOnce(&mut Shelf) -> T) -> Option<T> {
        self.lock().skills.as_mut().map(ask)
    }

    fn announce(&self) {
        if self.0.plan.announces {
            let changed = json!({"jsonrpc": "2.0", "method": "notifications/prompts/list_changed"});
            self.lock().streams.retain(|stream| stream.send(changed.clone()).is_ok());
        }
    }

    /// Makes a task of the gateway panic at its next walk: `driver`, or `merge`, which ends the
    /// gateway.
    pub fn panic_in(&self, task: &'static str) {
        self.lock().panic =
            Some(if task == "merge" { "panic-in-merge" } else { "panic-in-driver" });
        self.announce();
    }

    /// Gives a prompt another description and text from now on.
    pub fn change_prompt(&self, name: &str) {
        let changed = {
            let mut state = self.lock();
            state.version += 1;
            let description = format!("{name} of {} in version {}", self.0.plan.id, state.version);
            state.prompts.get_mut(name).map(|prompt| {
                prompt.description = description;
                prompt.clone()
            })
        };
        if let Some(prompt) = changed {
            self.write(&prompt);
            self.announce();
        }
    }

    /// The prompts that it lists at present.
    pub fn prompts(&self) -> Vec<Prompt> {
        self.lock().listed()
    }

    /// The lists that it has offered to a caller, oldest first.
    pub fn offered(&self, caller: &str) -> Vec<Vec<Prompt>> {
        let state = self.lock();
        let is_meant =
            |offer: &&Offer| offer.caller.as_ref().is_none_or(|offered_to| offered_to == caller);
        state.offered.iter().filter(is_meant).map(|offer| offer.list.clone()).collect()
    }

    /// When it has offered them.
    pub fn offered_at(&self) -> Vec<Instant> {
        self.lock().offered.iter().map(|offer| offer.at).collect()
    }

    /// Ends its streams, and forgets the server requests that nobody has answered.
    pub fn end(&self) {
        let mut state = self.lock();
        state.streams.clear();
        state.replies.clear();
        state.server_requests.clear();
    }

    fn draw(&self) -> (Duration, Fate) {
        let State { rng, mood, .. } = &mut *self.lock();
        let delay = match rng.f64() < mood.slow {
            true => Duration::from_millis(rng.u64(100..3000)),
            false => Duration::from_micros(rng.u64(..3000)),
        };
        let mut left = rng.f64();
        let mut drawn = |chance: f64| {
            left -= chance;
            left < 0.0
        };
        let fate = if drawn(mood.fails) {
            Fate::Status(*rng.choice(&[500, 502, 503, 429]).expect("one"))
        } else if drawn(mood.garbage) {
            const GARBAGE: [&[u8]; 4] =
                [b"{]", b"\xff\xfe", b"{\"jsonrpc\":\"2.0\",\"id\":77,\"result\":{}}", b"[]"];
            Fate::Garbage(rng.choice(GARBAGE).expect("one"))
        } else if drawn(mood.cuts) {
            Fate::Cut
        } else if drawn(mood.hangs) {
            Fate::Hang
        } else {
            Fate::Well
        };
        (delay, fate)
    }

    async fn respond(&self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let message: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (delay, fate) = self.draw();
        sleep(delay).await;
        if let Transport::Sse { .. } = self.0.plan.transport {
            return Ok(self.over_sse(&head, &message, fate).await);
        }
        if self.0.plan.signs_in && head.uri.path() != "/mcp" {
            return Ok(match fate {
                Fate::Status(code) => status(code),
                Fate::Hang => std::future::pending().await,
                Fate::Garbage(bytes) => json_bytes(Bytes::from_static(bytes)),
                Fate::Cut | Fate::Well => self.authorization_server(head.uri.path(), &body),
            });
        }
        if head.method != Method::POST {
            return Ok(self.without_body(&head.method));
        }
        let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
        let token = header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        if let Some(session) = header("mcp-session-id") {
            if self.is_forgotten(session) {
                self.arrived(&message, token, true);
                return Ok(status(404));
            }
            self.check_session(session, token);
        }
        let is_service = token == Some(SERVICE) && !self.0.plan.lists_per_caller;
        if self.0.plan.acts_as_caller && !is_service && !self.accepts(token) {
            self.arrived(&message, token, true);
            return Ok(status(401));
        }
        self.arrived(&message, token, false);
        // An argument that it cannot bear.
        let nonce = message["params"]["arguments"]["nonce"].as_str().unwrap_or_default();
        let fate = if nonce.starts_with(PROVOKER) { Fate::Status(500) } else { fate };
        Ok(match fate {
            Fate::Status(code) => status(code),
            Fate::Garbage(bytes) => json_bytes(Bytes::from_static(bytes)),
            Fate::Cut => self.cut(&message),
            Fate::Hang => std::future::pending().await,
            Fate::Well => self.answer(&message, token),
        })
    }

    /// Responds to a request of HTTP+SSE: a GET opens the stream of a session, and replies to what
    /// is posted go out on it.
    async fn over_sse(&self, head: &Parts, message: &Value, fate: Fate) -> Response<Body> {
        if head.method == Method::GET {
            return match fate {
                Fate::Status(code) => status(code),
                Fate::Hang => std::future::pending().await,
                _ => self.sse_session(),
            };
        }
        // Clients that post to the stream find out that this is no Streamable HTTP.
        let Some(session) = head.uri.query() else { return status(405) };
        let is_forgotten = self.is_forgotten(session);
        let stream = self.lock().replies.get(session).cloned();
        let Some(stream) = stream.filter(|stream| !is_forgotten && !stream.is_closed()) else {
            self.arrived(message, None, true);
            return status(404);
        };
        self.arrived(message, None, false);
        let sent = match fate {
            Fate::Status(code) => return status(code),
            Fate::Hang => return std::future::pending().await,
            Fate::Garbage(bytes) => Sent::Event([b"data: ", bytes, b"\n\n"].concat().into()),
            Fate::Cut => Sent::Cut,
            Fate::Well => match self.reply(message, None) {
                Reply::Message(reply) | Reply::Notifications(reply) => Sent::Event(event(&reply)),
                Reply::ServerRequest { .. } | Reply::Accepted => return status(202),
                Reply::Unknown => Sent::Event(event(&error(message, -32601))),
            },
        };
        let _ = stream.send(sent);
        status(202)
    }

    /// Opens the stream of a new session of HTTP+SSE.
    fn sse_session(&self) -> Response<Body> {
        let session = self.session(None);
        let (change_sender, mut changes) = mpsc::unbounded_channel();
        let (reply_sender, mut replies) = mpsc::unbounded_channel();
        {
            let mut state = self.lock();
            state.streams.push(change_sender);
            state.replies.insert(session.clone(), reply_sender);
        }
        let (mut events, response) = event_stream();
        let open = Noted::begin(&self.0.plan.id, "a session of HTTP+SSE");
        tokio::spawn(async move {
            let _open = open;
            let mut next = Bytes::from(format!("event: endpoint\ndata: /messages?{session}\n\n"));
            while events.send_data(next).await.is_ok() {
                let sent = tokio::select! {
                    biased;
                    Some(change) = changes.recv() => Sent::Event(event(&change)),
                    Some(sent) = replies.recv() => sent,
                    else => return,
                };
                next = match sent {
                    Sent::Event(event) => event,
                    Sent::Cut => {
                        let _ = events.send_data(Bytes::from_static(b"data: {\"jsonrpc\"")).await;
                        return events.abort(io::ErrorKind::ConnectionReset.into());
                    }
                };
            }
        });
        response
    }

    /// A session is used by those who began it.
    fn check_session(&self, session: &str, token: Option<&str>) {
        let secret = |token: Option<&str>| token.map(|token| vault::owner(token).to_owned());
        let began = self.lock().owners.get(session).cloned();
        if let Some(began) = began.filter(|began| secret(began.as_deref()) != secret(token)) {
            (self.0.on_violation)(format!(
                "session {session} of {} began with {began:?}, and goes on with {token:?}",
                self.0.plan.id
            ));
        }
    }

    /// The caller of a request, if what is listed depends on it.
    fn caller<'a>(&self, token: Option<&'a str>) -> Option<&'a str> {
        let owner = vault::owner(token.filter(|_| self.0.plan.lists_per_caller)?);
        owner.strip_suffix(&format!("-for-{}", self.0.plan.id))
    }

    /// Whether a secret is one that the vault has given out, and that has not been replaced long
    /// ago.
    fn accepts(&self, token: Option<&str>) -> bool {
        token.is_some_and(|token| self.0.vault.get().is_some_and(|vault| vault.accepts(token)))
    }

    fn arrived(&self, message: &Value, token: Option<&str>, is_refused: bool) {
        let params = &message["params"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let nonce = text(&params["arguments"]["nonce"]);
        if message["method"] != "prompts/get" {
            return;
        }
        let token = token.map(str::to_owned);
        let arrival =
            Arrival { name: text(&params["name"]), at: Instant::now(), is_refused, nonce, token };
        trace::note(&self.0.plan.id, &format!("get {} {}", arrival.name, arrival.nonce));
        (self.0.on_get)(&arrival);
        let mut state = self.lock();
        let is_again = |other: &Arrival| other.nonce == arrival.nonce && !other.is_refused;
        // The gateway asks for approved texts as often as it wants to, also with a completed value.
        let is_named = ![String::new(), completed("")].contains(&arrival.nonce);
        if is_named && state.arrivals.iter().any(is_again) && !state.asked.contains(&arrival.nonce)
        {
            (self.0.on_violation)(format!("{} was sent twice", arrival.nonce));
        }
        state.arrivals.push(arrival);
    }

    /// Whether the session is one that the upstream has forgotten; it may forget all now.
    fn is_forgotten(&self, session: &str) -> bool {
        let mut state = self.lock();
        if state.rng.f64() < state.mood.forgets {
            state.forgotten = state.sessions;
            state.streams.clear();
            state.replies.clear();
        }
        session.parse().is_ok_and(|session: u64| session <= state.forgotten)
    }

    /// The stream of notifications, or the end of a session.
    fn without_body(&self, method: &Method) -> Response<Body> {
        match *method {
            Method::GET if self.0.plan.announces && self.0.plan.revision != MODERN => {
                self.notifications(None)
            }
            Method::DELETE => status(200),
            _ => status(405),
        }
    }

    /// A stream of notifications, which begins with a message.
    fn notifications(&self, first: Option<Value>) -> Response<Body> {
        let (sender, mut changes) = mpsc::unbounded_channel();
        self.lock().streams.push(sender);
        let (mut events, response) = event_stream();
        let open = Noted::begin(&self.0.plan.id, "a stream of notifications");
        tokio::spawn(async move {
            let _open = open;
            let mut next = first;
            loop {
                if let Some(message) = next.take()
                    && events.send_data(event(&message)).await.is_err()
                {
                    return;
                }
                next = changes.recv().await;
                if next.is_none() {
                    return;
                }
            }
        });
        response
    }

    /// The reply of a well-behaved upstream to a message, of this caller if that makes a
    /// difference.
    fn reply(&self, message: &Value, caller: Option<&str>) -> Reply {
        let params = &message["params"];
        let method = message["method"].as_str().unwrap_or_default();
        let is_modern = self.0.plan.revision == MODERN;
        let result = match method {
            "server/discover" if is_modern => json!({"resultType": "complete", "ttlMs": 0,
                "cacheScope": "public", "supportedVersions": [MODERN],
                "capabilities": self.capabilities()}),
            "initialize" if !is_modern => json!({"protocolVersion": self.0.plan.revision,
                "capabilities": self.capabilities(),
                "serverInfo": {"name": self.0.plan.id, "version": "1"}}),
            "subscriptions/listen" if is_modern => {
                let id = message["id"].clone();
                let acknowledged = json!({"jsonrpc": "2.0",
                    "method": "notifications/subscriptions/acknowledged",
                    "params": {"notifications": {"promptsListChanged": true},
                        "_meta": {"io.modelcontextprotocol/subscriptionId": id}}});
                return Reply::Notifications(acknowledged);
            }
            "prompts/list" => self.page(params["cursor"].as_str(), caller),
            "prompts/get" => return self.get(message, caller),
            "skills/list" if self.0.plan.has_skills => self.skill_page(params["cursor"].as_str()),
            "resources/read" => match self.contents(params["uri"].as_str(), caller) {
                Some(contents) if is_modern => cached(json!({ "contents": contents })),
                Some(contents) => json!({ "contents": contents }),
                None => return Reply::Message(error(message, -32602)),
            },
            "completion/complete" => {
                let value = params["argument"]["value"].as_str().unwrap_or_default();
                let values = json!([completed(value)]);
                complete(is_modern, json!({"completion": {"values": values}}))
            }
            "" => return self.answered(message),
            method if method.starts_with("notifications/") => return Reply::Accepted,
            "server/discover" => return Reply::Unknown,
            _ => return Reply::Message(error(message, -32601)),
        };
        Reply::Message(result_of(message, &result))
    }

    fn capabilities(&self) -> Value {
        let mut capabilities =
            json!({"prompts": {"listChanged": self.0.plan.announces}, "completions": {}});
        if self.0.plan.has_links {
            capabilities["resources"] = json!({});
        }
        if self.0.plan.has_skills {
            capabilities["resources"] = json!({});
            capabilities["extensions"] = json!({"io.modelcontextprotocol/skills": {}});
        }
        capabilities
    }

    /// The `contents` of a resource: a file of a skill, or the note of a prompt.
    fn contents(&self, uri: Option<&str>, caller: Option<&str>) -> Option<Value> {
        let uri = uri?;
        let name = uri.strip_prefix(NOTES).filter(|_| self.0.plan.has_links);
        match name {
            Some(name) => {
                let text = self.0.plan.note(name, caller);
                Some(json!([{"uri": uri, "text": text}]))
            }
            None => self.with_skills(|skills| skills.contents(uri)).flatten(),
        }
    }

    fn skill_page(&self, cursor: Option<&str>) -> Value {
        let page = self.with_skills(|skills| skills.page(cursor, self.0.plan.page_size));
        let (skills, next) = page.unwrap_or_default();
        let mut result = cached(json!({ "skills": skills }));
        if let Some(next) = next {
            result["nextCursor"] = next.into();
        }
        result
    }

    /// The same, as a response of HTTP.
    fn answer(&self, message: &Value, token: Option<&str>) -> Response<Body> {
        match self.reply(message, self.caller(token)) {
            Reply::Message(answer) => {
                let mut response = json_bytes(answer.to_string().into());
                if message["method"] == "initialize" {
                    let session = self.session(token).parse().expect("a header value");
                    response.headers_mut().insert("Mcp-Session-Id", session);
                }
                response
            }
            Reply::ServerRequest { asked, then } => {
                let (mut events, response) = event_stream();
                tokio::spawn(async move {
                    if events.send_data(event(&asked)).await.is_ok()
                        && let Some(answer) = then.await
                    {
                        let _ = events.send_data(event(&answer)).await;
                    }
                });
                response
            }
            Reply::Notifications(first) => self.notifications(Some(first)),
            Reply::Accepted => status(202),
            Reply::Unknown => status(400),
        }
    }

    /// A new session, begun with a token.
    fn session(&self, token: Option<&str>) -> String {
        let mut state = self.lock();
        state.sessions += 1;
        let session = state.sessions.to_string();
        state.owners.insert(session.clone(), token.map(str::to_owned));
        session
    }

    /// A page of the list as it is now: a list that changes in the middle of a walk is offered with
    /// both halves.
    fn page(&self, cursor: Option<&str>, caller: Option<&str>) -> Value {
        let mut state = self.lock();
        let (walk, after) = match cursor.and_then(|cursor| cursor.split_once('/')) {
            Some((walk, after)) => (walk.parse().unwrap_or_default(), Some(after.to_owned())),
            None => {
                state.next_walk += 1;
                (state.next_walk, None)
            }
        };
        let is_after = |name: &String| after.as_ref().is_none_or(|after| name > after);
        let rest = state.prompts.values().filter(|p| is_after(&p.name));
        let rest: Vec<_> = rest.map(|prompt| prompt.listed_for(caller)).collect();
        let page: Vec<_> = rest.iter().take(self.0.plan.page_size).cloned().collect();
        let begun =
            || Offer { at: Instant::now(), caller: caller.map(str::to_owned), list: vec![] };
        let offer = state.walks.entry(walk).or_insert_with(begun);
        if offer.caller.as_deref() != caller {
            let why = format!("{caller:?} goes on with the list walk of {:?}", offer.caller);
            (self.0.on_violation)(why);
        }
        offer.list.extend(page.iter().cloned());
        let is_last = page.len() == rest.len();
        if is_last {
            let offered = Offer { at: Instant::now(), ..offer.clone() };
            trace::note(&self.0.plan.id, &format!("list walk {walk} ends: {}", offered.list.len()));
            state.offered.push(offered);
        }
        let panic = state.panic.take_if(|_| after.is_none() && caller.is_none());
        let panic = panic.map(|name| json!({ "name": name }));
        let prompts: Vec<_> = page.iter().map(Prompt::listed).chain(panic).collect();
        let mut result = complete(self.0.plan.revision == MODERN, json!({"prompts": prompts}));
        if let (Some(last), false) = (page.last(), is_last) {
            result["nextCursor"] = format!("{walk}/{}", last.name).into();
        }
        if self.0.plan.revision == MODERN {
            result = cached(result);
        }
        let changes = after.is_none() && std::mem::take(&mut state.changes_in_walk);
        drop(state);
        if changes {
            self.change();
        }
        result
    }

    fn get(&self, message: &Value, caller: Option<&str>) -> Reply {
        let params = &message["params"];
        let name = params["name"].as_str().unwrap_or_default();
        let nonce = params["arguments"]["nonce"].as_str().unwrap_or_default().to_owned();
        let (prompt, asks, other) = {
            let mut state = self.lock();
            let flips = nonce.is_empty() && state.rng.f64() < state.mood.flips;
            state.has_other_text ^= flips;
            let other =
                if nonce.is_empty() && state.has_other_text { " in other words" } else { "" };
            let asks = self.0.plan.asks && state.rng.u8(..) < 100;
            if asks {
                state.asked.insert(nonce.clone());
            }
            (state.prompts.get(name).map(|prompt| prompt.listed_for(caller)), asks, other)
        };
        let Some(prompt) = prompt else { return Reply::Message(error(message, -32602)) };
        let is_modern = self.0.plan.revision == MODERN;
        let text = format!("{} says {}{other} for {nonce}", self.0.plan.id, prompt.description);
        let answers = params.get("inputResponses").and_then(Value::as_object);
        match answers {
            Some(answers) => self.check_answer(&nonce, &answers["colour"]),
            None if asks && is_modern && accepts_server_requests(message) => {
                let asked = json!({"resultType": "input_required", "requestState": nonce,
                    "inputRequests": {"colour": {"method": "elicitation/create",
                        "params": elicitation(&nonce)}}});
                return Reply::Message(result_of(message, &asked));
            }
            None if asks && !is_modern => return self.ask(message, nonce, text),
            None => {}
        }
        let mut messages = messages(&text);
        if let Some(all) = messages["messages"].as_array_mut().filter(|_| self.0.plan.has_links) {
            // All versions of a prompt have one note.
            let plain = name.split_once('@').map_or(name, |(plain, _)| plain);
            let uri = [NOTES, plain].concat();
            let link = json!({"type": "resource_link", "uri": uri, "name": "note"});
            all.push(json!({"role": "user", "content": link}));
        }
        Reply::Message(result_of(message, &complete(is_modern, messages)))
    }

    /// Sends a server request during a call, whose result follows the answer.
    fn ask(&self, message: &Value, nonce: String, text: String) -> Reply {
        let (sender, answer) = oneshot::channel();
        let server_request_id = {
            let mut state = self.lock();
            state.next_server_request += 1;
            let id = format!("q{}", state.next_server_request);
            state.server_requests.insert(id.clone(), sender);
            id
        };
        let asked = json!({"jsonrpc": "2.0", "id": server_request_id, "method": "elicitation/create",
            "params": elicitation(&nonce)});
        let result = result_of(message, &messages(&text));
        let this = self.clone();
        let then = Box::pin(async move {
            let answer = answer.await.ok()?;
            // A refusal of the gateway, such as for a client that cannot answer, is an answer, too.
            if answer.get("result").is_some() {
                this.check_answer(&nonce, &answer["result"]);
            }
            Some(result)
        });
        Reply::ServerRequest { asked, then }
    }

    fn check_answer(&self, nonce: &str, answer: &Value) {
        if answer["action"] == "accept" && answer["content"]["colour"] != format!("blue {nonce}") {
            (self.0.on_violation)(format!(
                "the server request of {nonce} got the answer of another call: {answer}"
            ));
        }
    }

    /// The answer to a server request arrives.
    fn answered(&self, message: &Value) -> Reply {
        let id = message["id"].as_str().unwrap_or_default();
        let waiting = self.lock().server_requests.remove(id);
        match waiting {
            Some(waiting) => drop(waiting.send(message.clone())),
            None => (self.0.on_violation)(format!(
                "the server request {id} was answered twice, or never asked"
            )),
        }
        Reply::Accepted
    }

    /// The begin of a response, and then the end of the connection.
    fn cut(&self, message: &Value) -> Response<Body> {
        let (mut events, response) = event_stream();
        let half = event(&json!({"jsonrpc": "2.0", "id": message["id"], "result": {}}));
        tokio::spawn(async move {
            let _ = events.send_data(half.slice(..half.len() / 2)).await;
            events.abort(io::ErrorKind::ConnectionReset.into());
        });
        response
    }
}

/// Something that has its begin and its end in the trace.
struct Noted(String, &'static str);

impl Noted {
    fn begin(actor: &str, what: &'static str) -> Self {
        trace::note(actor, &format!("{what} begins"));
        Self(actor.to_owned(), what)
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        trace::note(&self.0, &format!("{} ends", self.1));
    }
}

impl Plan {
    /// The folder of a library.
    pub fn folder(&self) -> PathBuf {
        PathBuf::from(format!("/libraries/{}", self.id))
    }

    /// Whether such an upstream can link to resources: no older revision has such links, and no
    /// approved text has others than the approved one.
    pub fn can_have_links(&self) -> bool {
        let is_remote = matches!(self.transport, Transport::Http | Transport::Stdio);
        is_remote && self.revision >= "2025-06-18" && !self.needs_approval
    }

    /// Whether such an upstream can have a rollout: one that answers every caller, with texts that
    /// nobody has to approve.
    pub fn can_have_rollout(&self) -> bool {
        self.transport == Transport::Http && !self.acts_as_caller && !self.needs_approval
    }

    /// The note of a prompt, which it links to, as a caller gets it; as all get it, for `None`.
    pub fn note(&self, name: &str, caller: Option<&str>) -> String {
        format!("{} keeps a note of {name} for {}", self.id, caller.unwrap_or("all"))
    }

    /// Whether the gateway takes skills from such an upstream.
    pub fn can_have_skills(&self) -> bool {
        let is_modern = self.revision == MODERN && !self.lists_per_caller;
        self.transport == Transport::Library || is_modern
    }
}

/// The name of the new version of the prompt that has two.
pub fn candidate() -> String {
    format!("{ROLLED_OUT}@{CANDIDATE}")
}

impl Prompt {
    /// The prompt as a caller gets it that has a list of its own; as all get it, for `None`.
    fn listed_for(&self, caller: Option<&str>) -> Self {
        let Self { name, description } = self.clone();
        let description = match caller {
            Some(caller) => format!("{description}, of {caller}"),
            None => description,
        };
        Self { name, description }
    }

    /// The prompt as the upstream lists it.
    pub fn listed(&self) -> Value {
        json!({"name": self.name, "description": self.description,
            "arguments": [{"name": "nonce", "required": false}]})
    }
}

/// Whether the caller of a modern request can be asked.
fn accepts_server_requests(message: &Value) -> bool {
    let capabilities = &message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    capabilities.get("elicitation").is_some()
}

fn elicitation(nonce: &str) -> Value {
    json!({"message": format!("The colour for {nonce}?"), "mode": "form",
        "requestedSchema": {"type": "object", "properties": {"colour": {"type": "string"}}}})
}

fn messages(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": {"type": "text", "text": text}}]})
}

/// The completed value of an argument.
fn completed(value: &str) -> String {
    format!("{value}-completed")
}

fn complete(is_modern: bool, mut result: Value) -> Value {
    if is_modern {
        result["resultType"] = json!("complete");
    }
    result
}

/// A result of the modern revision, with the hints of a cache that keeps nothing.
fn cached(mut result: Value) -> Value {
    result["ttlMs"] = json!(0);
    result["cacheScope"] = json!("public");
    complete(true, result)
}

fn event(message: &Value) -> Bytes {
    format!("data: {message}\n\n").into()
}

fn event_stream() -> (Sender<Bytes, io::Error>, Response<Body>) {
    let (events, body) = Channel::new(4);
    let response = Response::builder().header("Content-Type", "text/event-stream");
    (events, response.body(body.boxed()).expect("a response"))
}

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

fn status(code: u16) -> Response<Body> {
    Response::builder().status(code).body(full("")).expect("a response")
}

fn json_bytes(bytes: Bytes) -> Response<Body> {
    let response = Response::builder().header("Content-Type", "application/json");
    response.body(full(bytes)).expect("a response")
}

fn result_of(message: &Value, result: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": message["id"], "result": result})
}

fn error(message: &Value, code: i64) -> Value {
    json!({"jsonrpc": "2.0", "id": message["id"], "error": {"code": code, "message": "no"}})
}
