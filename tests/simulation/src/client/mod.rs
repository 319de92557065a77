//! A scripted client of either era, over each transport, which checks all that it receives.

mod channel;
mod events;
mod links;
mod sign_in;
pub mod skills;
mod versions;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::machine::trace;
use crate::plan::{CallerPlan, ClientPlan, ClientTransport, FLOOD, PROVOKER, address_of};
use crate::upstream::versions::is_versioned;
use crate::upstream::{MODERN, OUTSIDE, Prompt, ROLLED_OUT, candidate};
use crate::world::{Observer, SeenList, World};
use channel::Channel;
use events::Events;
use skills::{ListedSkills, Visitor, stands_for_skill};

/// The time within which the gateway answers each request, whatever others do:
/// `server.limits.request`, the time of a server request, and the latency of the network.
const DEADLINE: Duration = Duration::from_secs(11);

/// A client and its connection.
pub struct Client {
    plan: ClientPlan,
    caller: CallerPlan,
    world: Arc<World>,
    rng: Rng,
    connection: Option<Connection>,
    /// The connection of a client over HTTP+SSE or standard streams.
    channel: Option<Channel>,
    /// The session, once it is initialized; over a channel it has no name.
    session: Option<String>,
    /// The path of its endpoint.
    path: String,
    next_id: u64,
    /// Its observations of the lists of each replica.
    observers: Vec<Observer>,
    /// Public names that it has seen, or that it guesses.
    names: Vec<String>,
    /// The last demand to sign in: an error, or a part of a list.
    asked: Option<Value>,
    skills: ListedSkills,
}

struct Connection {
    replica: usize,
    sender: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
    is_disturbed: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Whether a request was sent over it before.
    is_used: bool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// The outcome of a request.
#[derive(Debug)]
pub enum Outcome {
    Result(Value),
    /// A JSON-RPC error: its code and its reason.
    Error(i64, String),
    /// The response has this status and no message.
    Status(u16),
    /// There was no response, for a reason that is not the gateway's.
    Lost,
}

/// The next action of a client.
enum Action {
    List,
    Get,
    GetPlain,
    GetAndLeave,
    Complete,
    Ping,
    Unknown,
    Restart,
    VisitSkills,
    FollowLink,
    GetVersion,
    Think,
}

impl Client {
    pub fn new(plan: ClientPlan, world: Arc<World>, rng: Rng) -> Self {
        let caller = world.scenario.callers[plan.caller].clone();
        let observers = vec![Observer::default(); world.scenario.replicas];
        Self {
            plan,
            caller,
            world,
            rng,
            connection: None,
            channel: None,
            session: None,
            path: "/mcp".to_owned(),
            next_id: 0,
            observers,
            names: Vec::new(),
            asked: None,
            skills: ListedSkills::default(),
        }
    }

    /// Acts until it is aborted.
    pub async fn act(&mut self) {
        loop {
            let pause = self.rng.u64(..400);
            sleep(Duration::from_millis(pause)).await;
            self.world.step();
            match self.draw() {
                Action::List => drop(self.list().await),
                Action::Get => drop(self.get_any().await),
                Action::GetPlain => self.get_plain().await,
                Action::GetAndLeave => self.get_and_leave().await,
                Action::Complete => self.complete().await,
                Action::Ping => drop(self.ask("ping", json!({})).await),
                Action::Unknown => drop(self.ask("prompts/nothing", json!({})).await),
                Action::Restart => self.restart(),
                Action::VisitSkills => Visitor(self).visit().await,
                Action::FollowLink => links::follow(self).await,
                Action::GetVersion => versions::get(self).await,
                Action::Think => sleep(Duration::from_secs(1)).await,
            }
        }
    }

    fn draw(&mut self) -> Action {
        match self.rng.u8(..100) {
            0..25 => Action::List,
            25..42 if self.world.scenario.has_versions() => Action::GetVersion,
            25..62 => Action::Get,
            62..70 => Action::GetPlain,
            70..75 => Action::GetAndLeave,
            75..82 => Action::Complete,
            82..86 => Action::Ping,
            86..88 => Action::Unknown,
            88..92 => Action::Restart,
            92..96 if self.world.scenario.has_skills() => Action::VisitSkills,
            96..98 if self.world.scenario.has_links() => Action::FollowLink,
            _ => Action::Think,
        }
    }

    /// Begins anew, with another connection and session. What it saw of lists it remembers.
    pub fn restart(&mut self) {
        self.connection = None;
        self.channel = None;
        self.session = None;
    }

    /// The replica that it is connected to.
    fn replica(&self) -> Option<usize> {
        let channel = self.channel.as_ref().map(|channel| channel.replica);
        channel.or(self.connection.as_ref().map(|connection| connection.replica))
    }

    pub fn caller(&self) -> &CallerPlan {
        &self.caller
    }

    /// Whether it can read skills.
    pub fn knows_skills(&self) -> bool {
        self.is_modern()
    }

    fn is_modern(&self) -> bool {
        self.plan.revision == MODERN
    }

    /// Lists all prompts, page by page, and checks the list; `None` if it did not get all pages of
    /// one list.
    pub async fn list(&mut self) -> Option<Vec<String>> {
        self.signs_in().await;
        let (mut prompts, mut incomplete) = (Vec::new(), BTreeSet::new());
        let (sent, mut cursor, mut pages) = (Instant::now(), None, 0);
        let mut served_by = BTreeSet::new();
        loop {
            let params = cursor.map_or(json!({}), |cursor: String| json!({"cursor": cursor}));
            let Outcome::Result(result) = self.ask("prompts/list", params).await else {
                return None;
            };
            let page: Listed = serde_json::from_value(result).ok()?;
            prompts.extend(page.prompts);
            pages += 1;
            served_by.extend(self.replica());
            for Incomplete { upstream, link } in page.meta.incomplete {
                incomplete.insert(upstream);
                if link.contains_key("url") {
                    self.asked = Some(Value::Object(link));
                }
            }
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        let received = Instant::now();
        // Pages of before and after a restart are of two gateways, as those of two replicas.
        let replica = served_by.pop_first()?;
        if !served_by.is_empty() || !self.world.was_up_since(replica, sent) {
            return None;
        }
        let of_skills = prompts.extract_if(.., |prompt| stands_for_skill(prompt));
        skills::check_prompts(self, &of_skills.collect::<Vec<_>>(), sent);
        let versioned = prompts.extract_if(.., |prompt| versions::stands_for_version(prompt));
        versions::check_prompts(self, &versioned.collect::<Vec<_>>(), sent);
        let names = prompts.iter().filter_map(|prompt| prompt["name"].as_str().map(str::to_owned));
        let names: Vec<_> = names.collect();
        self.names.clone_from(&names);
        let revision = self.plan.revision.to_owned();
        let list = SeenList { prompts, incomplete, revision, pages, sent, received };
        self.world.check_list(&mut self.observers[replica], &self.caller, &list);
        Some(names)
    }

    /// Signs in, if it was asked to. Returns whether it has tried.
    async fn signs_in(&mut self) -> bool {
        let Some(asked) = self.asked.take() else { return false };
        let _ = timeout(DEADLINE, Box::pin(sign_in::sign_in(self, &asked))).await;
        true
    }

    async fn get_any(&mut self) -> Outcome {
        let guessed = self.rng.u8(..) < 60 || self.names.is_empty();
        let name = if guessed {
            let kind = if self.rng.bool() { "secret" } else { "open" };
            format!("u{}__{kind}-{}", self.rng.u8(..4), self.rng.u8(..14))
        } else {
            let chosen = self.rng.usize(..self.names.len());
            self.names[chosen].clone()
        };
        self.get(&name).await
    }

    /// Gets a prompt, answers the server requests of the call, and checks the text.
    pub async fn get(&mut self, name: &str) -> Outcome {
        let sent = Instant::now();
        let nonce = format!("{}-{}-{:08x}", self.plan.name, self.next_id, self.rng.u32(..));
        let params = json!({"name": name, "arguments": {"nonce": nonce}});
        let mut outcome = self.ask_for("prompts/get", params.clone(), Some(&nonce)).await;
        let is_asked = matches!(&outcome, Outcome::Error(_, reason) if reason == "sign_in_needed");
        if is_asked && self.signs_in().await {
            outcome = self.ask_for("prompts/get", params.clone(), Some(&nonce)).await;
        }
        let mut rounds = 0;
        while let Outcome::Result(result) = &outcome
            && result["resultType"] == "input_required"
            && rounds < 3
        {
            let mut answered = params.clone();
            let requests = result["inputRequests"].as_object().cloned().unwrap_or_default();
            for (key, request) in requests {
                answered["inputResponses"][key] = self.answer(&request["params"], Some(&nonce));
            }
            answered["requestState"] = result["requestState"].clone();
            rounds += 1;
            outcome = self.ask_for("prompts/get", answered, Some(&nonce)).await;
        }
        if let Outcome::Result(result) = &outcome {
            self.check_text(name, &nonce, result, sent);
        }
        versions::check_get(self, name, &outcome, sent);
        outcome
    }

    fn check_text(&self, public: &str, nonce: &str, result: &Value, sent: Instant) {
        let text = result["messages"][0]["content"]["text"].as_str().unwrap_or_default();
        let (upstream, name) = public.split_once("__").unwrap_or_default();
        // With a rollout, the text is that of a version.
        let other = (name == ROLLED_OUT).then(candidate);
        let is_of = |name: &str| {
            text.starts_with(&format!("{upstream} says {name} of {upstream} in version "))
        };
        let version = versions::version_in(text, upstream).filter(|_| is_versioned(name));
        let name = version.as_ref().map_or(name, |version| &version.name);
        let is_own = (is_of(name) || other.as_deref().is_some_and(is_of))
            && text.ends_with(&format!(" for {nonce}"));
        if !is_own {
            let why = format!("{} got {result} for {public} and {nonce}", self.plan.name);
            self.world.violation(why);
        }
        if !self.world.may_use(&self.caller, upstream, name, sent, Instant::now()) {
            self.world.violation(format!("{} got {public}, which it may not use", self.caller.id));
        }
        if !nonce.is_empty() {
            self.world.acknowledge(nonce);
        }
        self.check_approval(name, nonce, text, sent);
        links::keep(self, public, result);
        let mut plans = self.world.scenario.upstreams.iter();
        let is_private = plans.any(|plan| plan.id == upstream && plan.lists_per_caller);
        let end = format!(", of {} for {nonce}", self.caller.id);
        if is_private && !text.ends_with(&end) {
            let why = format!("{} got {text:?} for the private prompt {public}", self.plan.name);
            self.world.violation(why);
        }
    }

    /// A text that is served of an approved prompt was approved.
    fn check_approval(&self, name: &str, nonce: &str, text: &str, sent: Instant) {
        let mut plans = self.world.scenario.upstreams.iter();
        let Some(plan) = plans.find(|plan| text.starts_with(&format!("{} says ", plan.id))) else {
            return;
        };
        let version = text.trim_start_matches(&format!("{} says ", plan.id));
        let description = version.trim_end_matches(&format!(" for {nonce}")).to_owned();
        let prompt = Prompt { name: name.to_owned(), description };
        let time = (sent, Instant::now());
        if plan.needs_approval && !self.world.may_serve(plan, &prompt, nonce.is_empty(), time) {
            self.world.violation(format!("{} got {text:?}, not approved", self.plan.name));
        }
    }

    /// Gets a prompt without arguments, as approvals do.
    async fn get_plain(&mut self) {
        let sent = Instant::now();
        if self.names.is_empty() {
            return;
        }
        let name = self.names[self.rng.usize(..self.names.len())].clone();
        let (upstream, _) = name.split_once("__").unwrap_or_default();
        let mut plans = self.world.scenario.upstreams.iter();
        if plans.any(|plan| plan.id == upstream && plan.needs_approval)
            && let Outcome::Result(result) = self.ask("prompts/get", json!({"name": name})).await
        {
            self.check_text(&name, "", &result, sent);
        }
    }

    /// Asks for a prompt and disconnects before the answer.
    async fn get_and_leave(&mut self) {
        let nonce = format!("{}-{}-left", self.plan.name, self.next_id);
        let name = self.names.first().cloned().unwrap_or_else(|| "u0__open-1".to_owned());
        let patience = Duration::from_micros(self.rng.u64(..20_000));
        let params = json!({"name": name, "arguments": {"nonce": nonce}});
        let _ = timeout(patience, self.ask_for("prompts/get", params, Some(&nonce))).await;
        match self.plan.transport {
            ClientTransport::Http => self.connection = None,
            ClientTransport::Sse | ClientTransport::Stdio => self.restart(),
        }
    }

    async fn complete(&mut self) {
        let name = self.names.first().cloned().unwrap_or_else(|| "u0__open-1".to_owned());
        let params = json!({"ref": {"type": "ref/prompt", "name": name},
            "argument": {"name": "nonce", "value": "a"}});
        let _ = self.ask("completion/complete", params).await;
    }

    pub async fn ask(&mut self, method: &str, params: Value) -> Outcome {
        self.ask_for(method, params, None).await
    }

    /// Sends a request and waits for its response. Server requests of the call are answered if they
    /// are about `nonce`.
    async fn ask_for(&mut self, method: &str, params: Value, nonce: Option<&str>) -> Outcome {
        if !self.is_modern() && self.session.is_none() && !self.initialize().await {
            return Outcome::Lost;
        }
        const LIMITED: [&str; 3] = ["prompts/list", "prompts/get", "completion/complete"];
        // Without skills these count as gets.
        if LIMITED.contains(&method) || matches!(method, "tools/call" | "resources/read") {
            self.world.counts(self.caller.number, nonce);
        }
        let world = self.world.clone();
        let mut call = world.begin_call(self.caller.number);
        let outcome = self.exchange(method, params, nonce).await;
        call.ends(!matches!(outcome, Outcome::Lost));
        trace::note(
            &self.plan.name,
            &format!("{method} {} -> {}", nonce.unwrap_or("-"), outcome.brief()),
        );
        match &outcome {
            Outcome::Status(404) => self.restart(),
            Outcome::Status(429) => self.world.refused_by_limit(self.caller.number),
            Outcome::Error(_, reason) if reason == "rate_limited" => {
                self.world.refused_by_limit(self.caller.number);
            }
            Outcome::Error(_, reason) if reason == "overloaded" => call.is_refused(),
            _ => {}
        }
        outcome
    }

    async fn initialize(&mut self) -> bool {
        let capabilities = self.capabilities();
        let params = json!({"protocolVersion": self.plan.revision, "capabilities": capabilities,
            "clientInfo": {"name": self.plan.name, "version": "1"}});
        let outcome = self.exchange("initialize", params, None).await;
        if self.channel.is_some() {
            self.session = Some(String::new());
        }
        if !matches!(outcome, Outcome::Result(_)) || self.session.is_none() {
            self.session = None;
            return false;
        }
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        match self.plan.transport {
            ClientTransport::Http => self.post(&initialized, None).await.is_some(),
            _ => self.send_over_channel(&initialized).await.is_ok(),
        }
    }

    fn capabilities(&self) -> Value {
        if self.plan.answers { json!({"elicitation": {"form": {}}}) } else { json!({}) }
    }

    /// The body of a request, and the headers that repeat it.
    fn request(&mut self, method: &str, mut params: Value) -> (u64, Value) {
        self.next_id += 1;
        if self.is_modern() {
            params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientInfo": {"name": self.plan.name, "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": self.capabilities()});
        }
        let id = self.next_id;
        (id, json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
    }

    async fn exchange(&mut self, method: &str, params: Value, nonce: Option<&str>) -> Outcome {
        let is_over_http = self.plan.transport == ClientTransport::Http;
        if !is_over_http && self.channel.is_none() && !self.open_channel().await {
            return Outcome::Lost;
        }
        let (id, body) = self.request(method, params);
        let sent = Instant::now();
        let reading = async {
            if !is_over_http {
                return self.exchange_over_channel(&body, id, nonce).await;
            }
            let response = self.post(&body, Some(method)).await?;
            self.read(response, id, nonce).await
        };
        match timeout(DEADLINE, Box::pin(reading)).await {
            Ok(Some(outcome)) => outcome,
            Ok(None) => {
                self.lost(method, sent, "its response broke off");
                Outcome::Lost
            }
            Err(_) => {
                self.lost(method, sent, "it got no response within its deadline");
                Outcome::Lost
            }
        }
    }

    /// A request has no response: a violation if neither the network nor a restart is the cause.
    fn lost(&mut self, method: &str, sent: Instant, what: &str) {
        let is_posting = self.plan.transport == ClientTransport::Sse;
        let is_over = |replica, at| !self.world.must_answer(replica, at);
        let is_excused = match (self.connection.take(), self.channel.take()) {
            (None, None) => true,
            (Some(connection), None) => {
                (connection.is_disturbed)()
                    || connection.is_used
                    || is_over(connection.replica, sent)
            }
            (connection, Some(channel)) => {
                self.session = None;
                let is_posted_in_vain = |connection: Connection| {
                    (connection.is_disturbed)() || is_over(connection.replica, sent)
                };
                // Without a connection nothing was posted.
                connection.map_or(is_posting, is_posted_in_vain)
                    || channel.is_disturbed()
                    || is_over(channel.replica, channel.opened)
                    || is_over(channel.replica, sent)
            }
        };
        if !is_excused {
            self.world.violation(format!("{} has sent {method}, and {what}", self.plan.name));
        }
    }

    /// A request of this caller, so far.
    fn builder(&self, method: http::Method, path: &str) -> http::request::Builder {
        Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, address_of(0).to_string())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, text/event-stream")
            .header(header::AUTHORIZATION, format!("Bearer {}", self.caller.key))
    }

    /// Posts a message. Returns the response; `None` if there was none.
    async fn post(&mut self, body: &Value, method: Option<&str>) -> Option<Response<Incoming>> {
        let mut request = self.builder(http::Method::POST, &self.path);
        match (&self.session, method) {
            (_, Some(method)) if self.is_modern() => {
                request =
                    request.header("MCP-Protocol-Version", MODERN).header("Mcp-Method", method);
                let member = match method {
                    "prompts/get" | "tools/call" => "name",
                    _ => "uri",
                };
                if let Some(name) = body["params"][member].as_str() {
                    request = request.header("Mcp-Name", name);
                }
            }
            (Some(session), _) => {
                request = request.header("Mcp-Session-Id", session);
                request = request.header("MCP-Protocol-Version", self.plan.revision);
            }
            _ => {}
        }
        let request = request.body(Full::from(body.to_string())).expect("a request");
        let response = self.send(request).await?;
        if let Some(session) = response.headers().get("mcp-session-id") {
            self.session = session.to_str().ok().map(str::to_owned);
        }
        Some(response)
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Option<Response<Incoming>> {
        if self.connection.as_ref().is_none_or(|connection| !connection.sender.is_ready()) {
            self.connection = self.connect().await;
        }
        let connection = self.connection.as_mut()?;
        let sent = connection.sender.send_request(request).await.ok();
        if sent.is_some() {
            connection.is_used = true;
        }
        sent
    }

    /// Connects to one of the replicas.
    async fn connect(&mut self) -> Option<Connection> {
        let replica = self.rng.usize(..self.world.scenario.replicas);
        self.connect_to(replica).await
    }

    async fn connect_to(&self, replica: usize) -> Option<Connection> {
        let network = &self.world.machine.network;
        let socket = network.dial(self.plan.host, address_of(replica)).await.ok()?;
        let is_disturbed = Arc::new(socket.observer());
        let (sender, driver) = http1::handshake(TokioIo::new(socket)).await.ok()?;
        let driver = tokio::spawn(async move { drop(driver.await) }).abort_handle();
        Some(Connection { replica, sender, driver, is_disturbed, is_used: false })
    }

    /// Reads the response to a request; `None` if it breaks off.
    async fn read(
        &mut self,
        response: Response<Incoming>,
        id: u64,
        nonce: Option<&str>,
    ) -> Option<Outcome> {
        let status = response.status().as_u16();
        let is_stream = response
            .headers()
            .get(header::CONTENT_TYPE)
            .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"));
        if !is_stream {
            let body = response.into_body().collect().await.ok()?.to_bytes();
            self.check_bytes(&body);
            let Ok(message) = serde_json::from_slice(&body) else {
                return Some(Outcome::Status(status));
            };
            return Some(self.outcome(&message, id, status));
        }
        let mut events = Events::new(response);
        loop {
            let message = events.next().await?;
            self.check_bytes(message.to_string().as_bytes());
            if message.get("method").is_none() {
                return Some(self.outcome(&message, id, status));
            }
            if let Some(server_request) = message.get("id").cloned() {
                let result = self.answer(&message["params"], nonce);
                let answer = json!({"jsonrpc": "2.0", "id": server_request, "result": result});
                self.post_aside(answer);
            }
        }
    }

    /// Posts an answer over a connection of its own, while the call is open.
    fn post_aside(&self, answer: Value) {
        let mut other = Self {
            plan: self.plan.clone(),
            caller: self.caller.clone(),
            world: self.world.clone(),
            rng: self.rng.clone(),
            connection: None,
            channel: None,
            session: self.session.clone(),
            path: self.path.clone(),
            next_id: 0,
            observers: Vec::new(),
            names: Vec::new(),
            asked: None,
            skills: ListedSkills::default(),
        };
        tokio::spawn(async move { drop(timeout(DEADLINE, other.post(&answer, None)).await) });
    }

    /// The user's answer to a server request, which must be about this call.
    fn answer(&self, server_request: &Value, nonce: Option<&str>) -> Value {
        let message = server_request["message"].as_str().unwrap_or_default();
        let asked = nonce.filter(|nonce| message.contains(nonce));
        match asked {
            Some(nonce) if self.plan.answers => {
                json!({"action": "accept", "content": {"colour": format!("blue {nonce}")}})
            }
            _ => {
                let why = format!("{} was asked {message:?} during {nonce:?}", self.plan.name);
                self.world.violation(why);
                json!({"action": "cancel"})
            }
        }
    }

    fn outcome(&mut self, message: &Value, id: u64, status: u16) -> Outcome {
        let is_own = message["id"] == id || (message["id"].is_null() && status >= 400);
        let has_one = message.get("result").is_some() != message.get("error").is_some();
        if !is_own || !has_one {
            let why = format!("{} got {message} for request {id}", self.plan.name);
            self.world.violation(why);
        }
        if let Some(result) = message.get("result") {
            return Outcome::Result(result.clone());
        }
        let error = &message["error"];
        let code = error["code"].as_i64().unwrap_or_default();
        let reason = error["data"]["reason"].as_str().unwrap_or_default().to_owned();
        self.check_error(code, error);
        if reason == "sign_in_needed" {
            self.asked = Some(error["data"].clone());
        }
        match status {
            404 | 429 => Outcome::Status(status),
            _ => Outcome::Error(code, reason),
        }
    }

    /// Property 15: codes that are allowed, no paths, no keys.
    fn check_error(&self, code: i64, error: &Value) {
        let is_reserved = (-32099..=-32000).contains(&code);
        let allowed: &[i64] = match self.is_modern() {
            true => &[-32020, -32021, -32022],
            false => &[-32020, -32021, -32022, -32002, -32042],
        };
        if is_reserved && !allowed.contains(&code) {
            self.world
                .violation(format!("{} got the reserved code {code}: {error}", self.plan.name));
        }
        if ["/gateway/", " keeps "].iter().any(|inner| error.to_string().contains(inner)) {
            self.world.violation(format!("{} got what is inside: {error}", self.plan.name));
        }
    }

    /// No caller's key, and no nonce of another client, reaches this one.
    fn check_bytes(&self, body: &[u8]) {
        let has = |needle: &str| memchr::memmem::find(body, needle.as_bytes()).is_some();
        for caller in &self.world.scenario.callers {
            if has(&caller.key) {
                self.world
                    .violation(format!("{} received the key of {}", self.plan.name, caller.id));
            }
        }
        if has(OUTSIDE) {
            self.world.violation(format!("{} received what is {OUTSIDE}", self.plan.name));
        }
        let others = self.world.scenario.clients.iter().map(|client| client.name.as_str());
        for other in others.chain([FLOOD]) {
            if !self.plan.name.starts_with(other) && has(&format!("{other}-")) {
                let text = String::from_utf8_lossy(body);
                self.world
                    .violation(format!("{} received what is {other}'s: {text}", self.plan.name));
            }
        }
    }

    /// Opens a stream of notifications, and counts those of changed lists.
    pub async fn listen(&mut self) -> Option<Listener> {
        if !self.is_modern() && self.session.is_none() && !self.initialize().await {
            return None;
        }
        if self.plan.transport != ClientTransport::Http {
            return self.listen_over_channel().await;
        }
        // A replica listens to private lists for the streams of a caller that has used them there.
        let is_there = self.replica().filter(|_| self.world.scenario.has_private_lists());
        let mut aside = match is_there {
            Some(replica) => self.connect_to(replica).await?,
            None => self.connect().await?,
        };
        let request = if self.is_modern() {
            let params = json!({"notifications": {"promptsListChanged": true}});
            let (_, body) = self.request("subscriptions/listen", params);
            self.builder(http::Method::POST, "/mcp")
                .header("MCP-Protocol-Version", MODERN)
                .header("Mcp-Method", "subscriptions/listen")
                .body(Full::from(body.to_string()))
        } else {
            self.builder(http::Method::GET, "/mcp")
                .header("Mcp-Session-Id", self.session.as_deref().unwrap_or_default())
                .header("MCP-Protocol-Version", self.plan.revision)
                .body(Full::default())
        };
        let request = request.expect("a request");
        let response = timeout(DEADLINE, aside.sender.send_request(request)).await.ok()?.ok()?;
        if response.status() != 200 {
            trace::note(&self.plan.name, &format!("no stream: {}", response.status()));
            return None;
        }
        let (told, count) = watch::channel(0);
        let mut events = Events::new(response);
        let name = self.plan.name.clone();
        let task = tokio::spawn(async move {
            let _open = aside;
            while let Some(message) = events.next().await {
                count_change(&name, &message, &told);
            }
        });
        Some(Listener {
            name: self.plan.name.clone(),
            caller: self.caller.clone(),
            count,
            task: task.abort_handle(),
        })
    }

    /// Sends many gets at once, again and again, for some seconds.
    pub async fn flood(world: Arc<World>, mut rng: Rng) {
        const CONNECTIONS: u8 = 40;
        let caller = world.scenario.callers.len() - 1;
        let rounds = rng.u8(1..6);
        let clients = (0..CONNECTIONS).map(|number| {
            let plan = ClientPlan {
                name: format!("{FLOOD}-{number}"),
                caller,
                host: IpAddr::V4(Ipv4Addr::new(127, 0, 5, number)),
                transport: ClientTransport::Http,
                revision: MODERN,
                answers: false,
            };
            let mut client = Self::new(plan, world.clone(), rng.fork());
            async move {
                for _ in 0..rounds {
                    client.get_any().await;
                    sleep(Duration::from_millis(client.rng.u64(50..300))).await;
                }
            }
        });
        let mut tasks: JoinSet<_> = clients.collect();
        while tasks.join_next().await.is_some() {}
    }

    /// A client that does nothing by itself. Gets of one whose name begins with [`PROVOKER`] make
    /// their upstream fail.
    pub fn idle(world: Arc<World>, rng: Rng, name: String, caller: usize) -> Self {
        let plan = ClientPlan {
            name,
            caller,
            host: IpAddr::V4(Ipv4Addr::new(127, 0, 6, 0)),
            transport: ClientTransport::Http,
            revision: MODERN,
            answers: false,
        };
        Self::new(plan, world, rng)
    }

    /// Uses the endpoint of a view from now on.
    pub fn enter(&mut self, view: &str) {
        self.path = format!("/mcp/{view}");
    }

    /// Connects anew, to this replica.
    pub async fn move_to(&mut self, replica: usize) {
        self.connection = self.connect_to(replica).await;
    }

    /// Gets a prompt with an argument that makes its upstream fail, over and over.
    pub async fn provoke(world: Arc<World>, rng: Rng, name: &str) {
        const TIMES: usize = 12;
        let caller = world.scenario.callers.len() - 1;
        let mut client = Self::idle(world, rng, PROVOKER.to_owned(), caller);
        for _ in 0..TIMES {
            client.get(name).await;
        }
    }

    /// Sends bytes that are no request, or half of one, and may leave.
    pub async fn intrude(world: &World, rng: &mut Rng, host: IpAddr) {
        let Ok(mut socket) = world.machine.network.dial(host, address_of(0)).await else {
            return;
        };
        let length = rng.usize(..400);
        let mut bytes: Vec<u8> = match rng.u8(..4) {
            0 => (0..length).map(|_| rng.u8(..)).collect(),
            1 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\x04\0\0\0\0\0".to_vec(),
            2 => b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nContent-Length: 100\r\n\r\n{"
                .to_vec(),
            _ => b"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n".to_vec(),
        };
        bytes.truncate(rng.usize(1..bytes.len().max(2)));
        let _ = timeout(DEADLINE, socket.write_all(&bytes)).await;
        sleep(Duration::from_millis(rng.u64(..6000))).await;
    }
}

impl Outcome {
    fn brief(&self) -> String {
        match self {
            Self::Result(result) => format!("result of {} bytes", result.to_string().len()),
            Self::Error(code, reason) => format!("error {code} {reason}"),
            Self::Status(status) => format!("status {status}"),
            Self::Lost => "nothing".to_owned(),
        }
    }
}

/// Counts a notification of a changed list.
fn count_change(name: &str, message: &Value, told: &watch::Sender<u64>) {
    if message["method"] == "notifications/prompts/list_changed" {
        trace::note(name, "is told of a changed list");
        told.send_modify(|count| *count += 1);
    }
}

/// An open stream of notifications.
pub struct Listener {
    pub name: String,
    pub caller: CallerPlan,
    count: watch::Receiver<u64>,
    task: AbortHandle,
}

impl Listener {
    /// The notifications so far; `None` if the stream has ended.
    pub fn told(&self) -> Option<u64> {
        (!self.task.is_finished()).then(|| *self.count.borrow())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A page of a list.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    prompts: Vec<Value>,
    next_cursor: Option<String>,
    #[serde(rename = "_meta", default)]
    meta: Meta,
}

#[derive(Default, Deserialize)]
struct Meta {
    #[serde(rename = "promptgate/incomplete", default)]
    incomplete: Vec<Incomplete>,
}

#[derive(Deserialize)]
struct Incomplete {
    upstream: String,
    #[serde(flatten)]
    link: serde_json::Map<String, Value>,
}
