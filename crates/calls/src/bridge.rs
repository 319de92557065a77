//! The bridge between eras: server requests of an upstream in the middle of a get reach the client
//! in the mode that it supports, and its answers return (legacy: requests during the call;
//! 2026-07-28: multi-round-trip requests).

use tokio::time::Instant;

use super::Router;
use super::admitted::{Admitted, DEPTH};
use super::bridged_request::BridgedRequest;
use super::call_channel::{CallChannel, CallEvent};
use super::suspended_calls::{self, SuspendedCall};
use super::url_elicitation::{shown_to, url_elicitations};
use base::platform::heap::boxed;
use base::seal;
use catalog::reply::{InputRequired, Reply, RequestOrigin};
use domain::calls::call::{Call, InputRetry, ServerRequestMode};
use domain::calls::fair_share::Holder;
use domain::calls::request_state::{self, GetProgress, Replay, RequestState};
use domain::fault::{Fault, RequestFault, UpstreamFault, UpstreamFaultKind as Kind};
use domain::json::Json;
use domain::json::document::Document;
use domain::json::object::write_object;
use domain::protocol::meta;
use domain::protocol::revision::Revision;
use domain::protocol::server_request::{
    Answer, ClientCapabilities, ServerRequest, ServerRequestKind,
};
use domain::time::unix_time::UnixSeconds;
use upstream::call::correlator::InterimMessage;
use upstream::call::exchange::{CallExchange, ExchangeEvent};
use upstream::call::request::{InputResponses, UpstreamRequest};

/// A call in progress whose upstream may ask its client.
pub(super) struct Bridge<'a> {
    pub router: &'a Router,
    pub admitted: &'a Admitted<'a>,
    pub channel: &'a CallChannel,
    pub request: BridgedRequest<'a>,
    /// Extended while a user answers.
    pub deadline: Instant,
    pub now: UnixSeconds,
    /// Server requests so far, one after another; at most [`MAX_SERVER_REQUESTS`].
    pub rounds: usize,
}

/// The key of a legacy upstream's server request in `inputRequests`: one request at a time.
const KEY: &str = "answer";

/// Server requests in one get, one after another or at once: a form of several steps, and no loop.
const MAX_SERVER_REQUESTS: usize = 8;

impl Bridge<'_> {
    pub(crate) async fn run(mut self, retry: Option<&InputRetry>) -> Result<Reply, Fault> {
        match self.admitted.call.client.mode {
            ServerRequestMode::MidCall => self.run_mid_call().await,
            ServerRequestMode::InputRequired => self.run_input_required(retry).await,
        }
    }

    /// Sends server requests to a client that waits for its response.
    async fn run_mid_call(&mut self) -> Result<Reply, Fault> {
        let mut answers = None;
        loop {
            let mut exchange = self.start(answers);
            let result = loop {
                let step = exchange.next().await;
                match step.map_err(|fault| self.refused(fault.kind))? {
                    ExchangeEvent::Response(result) => break result,
                    ExchangeEvent::Interim(InterimMessage::ServerRequest {
                        server_request,
                        answer,
                    }) => {
                        self.next_round()?;
                        let requests = self.send_request(server_request);
                        if let Some(client_answer) = exchange.wait_for_client(requests).await {
                            let none = || Answer::Error { code: -32603, message: NONE.to_owned() };
                            let _ = answer.send(client_answer.unwrap_or_else(none));
                        }
                    }
                    ExchangeEvent::Interim(interim) => self.tell(interim),
                }
            };
            drop(exchange);
            match self.input_requests(result.json())? {
                None => return self.reply(result).await,
                Some(requests) => answers = Some(self.request_all(requests).await?),
            }
        }
    }

    /// Answers with an input-required result; the client retries the request with its input.
    async fn run_input_required(&mut self, retry: Option<&InputRetry>) -> Result<Reply, Fault> {
        let progress = match retry {
            None => GetProgress::Replay(Replay::default()),
            Some(retry) => self.open(retry)?,
        };
        let responses = retry.and_then(|retry| retry.responses.as_ref());
        match progress {
            GetProgress::Upstream(state) => {
                let responses = responses.map(clean);
                let exchange = self.start(Some(InputResponses { responses, state }));
                self.replay(exchange, Replay::default(), None).await
            }
            GetProgress::Replay(mut replay) => {
                let response = responses.and_then(|r| r.json().get(KEY));
                if let Some(ticket) = replay.suspended.take()
                    && let Some(suspended_call) =
                        self.router.shared.suspended.take(&ticket, &self.admitted.call.caller).await
                {
                    return boxed(self.resume(suspended_call, replay, response)).await;
                }
                if let (Some(server_request), Some(response)) = (replay.open.take(), response) {
                    replay.answers.push((server_request, response.text().to_owned()));
                }
                let exchange = self.start(None);
                self.replay(exchange, replay, None).await
            }
        }
    }

    /// Resumes a suspended call with the input of its user.
    async fn resume(
        &mut self,
        suspended_call: SuspendedCall,
        replay: Replay,
        response: Option<Json<'_>>,
    ) -> Result<Reply, Fault> {
        let SuspendedCall { mut exchange, server_request, answer, until } = suspended_call;
        let Some(response) = response else {
            // A retry without input gets the same server request again, within the same time.
            self.next_round()?;
            return self.suspend(SuspendedCall { exchange, server_request, answer, until }, replay);
        };
        let result = server_request.read_answer(response).ok_or_else(invalid_answer)?;
        let _ = answer.send(Answer::Result(result));
        let timeout = self.admitted.upstream.config().settings.timeout;
        exchange.extend_to(self.deadline.min(Instant::now() + timeout));
        self.replay(exchange, replay, Some(until)).await
    }

    /// Runs an exchange and answers its server requests from `replay`, up to the first that has no
    /// answer yet. A call that was suspended cannot be replayed, so it is suspended again, until
    /// `waits_until` at the latest; it has received the earlier answers already.
    async fn replay(
        &mut self,
        mut exchange: CallExchange,
        mut replay: Replay,
        waits_until: Option<Instant>,
    ) -> Result<Reply, Fault> {
        let mut known = match waits_until {
            None => replay.answers.clone(),
            Some(_) => Vec::new(),
        };
        let result = loop {
            let step = match exchange.next().await {
                Ok(step) => step,
                Err(fault) => return self.require_url_elicitations(fault.kind, replay),
            };
            let (server_request, answer) = match step {
                ExchangeEvent::Response(result) => break result,
                ExchangeEvent::Interim(InterimMessage::ServerRequest {
                    server_request,
                    answer,
                }) => (server_request, answer),
                ExchangeEvent::Interim(interim) => {
                    self.tell(interim);
                    continue;
                }
            };
            let digest = seal::digest([server_request.identity().as_str()]);
            if server_request.kind() != ServerRequestKind::Url
                && let Some(at) = known.iter().position(|(requests, _)| *requests == digest)
            {
                let known_answer = Document::parse(known.remove(at).1.into_bytes(), DEPTH).ok();
                let result =
                    known_answer.and_then(|known| server_request.read_answer(known.json()));
                let _ = answer.send(Answer::Result(result.ok_or_else(invalid_answer)?));
                continue;
            }
            self.next_round()?;
            if waits_until.is_some() || server_request.kind() == ServerRequestKind::Url {
                let patience = self.router.limits.server_request_timeout;
                let until = waits_until.unwrap_or_else(|| Instant::now() + patience);
                return self
                    .suspend(SuspendedCall { exchange, server_request, answer, until }, replay);
            }
            replay.open = Some(digest);
            return self.input_required(
                vec![(KEY.to_owned(), server_request)],
                GetProgress::Replay(replay),
            );
        };
        match self.input_requests(result.json())? {
            None => self.reply(result).await,
            Some(InputRequests { requests, state }) => {
                self.next_round()?;
                self.input_required(requests, GetProgress::Upstream(state))
            }
        }
    }

    fn suspend(&self, suspended_call: SuspendedCall, mut replay: Replay) -> Result<Reply, Fault> {
        let limits = suspended_calls::SuspendedLimits {
            per_upstream: (self.admitted.upstream.config().settings.in_flight / 4).max(1),
            share: self.router.limits.share,
        };
        let requests = vec![(KEY.to_owned(), suspended_call.server_request.clone())];
        let Call { caller, address, .. } = self.admitted.call;
        let holder = Holder::of(caller, *address);
        let upstream = &self.admitted.upstream.config().id;
        let suspended = &self.router.shared.suspended;
        let ticket = suspended.suspend(caller, &holder, upstream, limits, suspended_call);
        let ticket = ticket.ok_or_else(|| self.fault(Kind::Unanswered(TOO_MANY_WAIT)))?;
        replay.suspended = Some(ticket);
        let reply = self.input_required(requests, GetProgress::Replay(replay));
        // Without its state, the client cannot resume it.
        reply.inspect_err(|_| suspended.end(&ticket))
    }

    /// The input-required result, with the sealed state of the call.
    fn input_required(
        &self,
        server_requests: Vec<(String, ServerRequest)>,
        progress: GetProgress,
    ) -> Result<Reply, Fault> {
        let rounds = u8::try_from(self.rounds).unwrap_or(u8::MAX);
        let owner = self.state_owner();
        let plain = RequestState { owner, issued_at: self.now, rounds, progress }.encode();
        let endpoint = &self.admitted.call.endpoint;
        let kind = seal::TokenKind::State;
        let state = self.router.sealer.seal(kind, endpoint, &plain);
        if state.len() <= kind.max_len() {
            Ok(Reply::InputRequired(InputRequired {
                server_requests,
                state: Some(state),
                origin: self.request_origin(),
            }))
        } else {
            Err(self.fault(Kind::TooLarge { limit: kind.max_len() }))
        }
    }

    /// Opens a `requestState` that belongs to this caller, prompt and arguments.
    fn open(&mut self, retry: &InputRetry) -> Result<GetProgress, Fault> {
        let plain = self.router.sealer.open(
            seal::TokenKind::State,
            &self.admitted.call.endpoint,
            &retry.state,
        );
        let owner = self.state_owner();
        let state = plain
            .and_then(|plain| RequestState::decode(&plain))
            .filter(|state| state.owner == owner && state.is_fresh(self.now));
        let state = state.ok_or(RequestFault::InvalidState)?;
        self.rounds = state.rounds.into();
        Ok(state.progress)
    }

    async fn reply(&self, result: Document) -> Result<Reply, Fault> {
        self.request.reply(self.router, self.admitted.upstream, result).await
    }

    fn state_owner(&self) -> request_state::StateOwner {
        request_state::StateOwner {
            caller: self.admitted.call.caller.id().to_owned(),
            name: self.request.name(),
            upstream: self.admitted.upstream.config().id.to_string(),
            arguments: self.request.digest(),
        }
    }

    fn start(&self, answers: Option<InputResponses>) -> CallExchange {
        let capabilities = self.admitted.call.client.capabilities.and(self.allowed());
        let is_asking = self.request.may_ask();
        let request = UpstreamRequest {
            params: self.request.params(answers),
            forwarded: self.admitted.call.forwarded.clone(),
            overlay: self.request.overlay(),
            // A request without server requests needs no dedicated connection.
            capabilities: if is_asking { capabilities } else { ClientCapabilities::NONE },
            progress: self.admitted.call.client.progress,
            log_level: self.admitted.call.client.log_level,
        };
        self.admitted.upstream.call(&self.admitted.authorized, request, self.deadline)
    }

    /// The server requests of an `InputRequiredResult` (2026-07-28); `None` for a complete result.
    fn input_requests(&self, result: Json<'_>) -> Result<Option<InputRequests>, Fault> {
        if !result.get("resultType").is_some_and(|t| t.is("input_required")) {
            return Ok(None);
        }
        let broken = |what: &str| self.fault(Kind::Protocol(what.to_owned()));
        let mut requests = Vec::new();
        let listed = result.get("inputRequests");
        for (key, request) in listed.iter().flat_map(|r| r.members()) {
            let method = request.get("method").and_then(Json::as_str).unwrap_or_default();
            let server_request = ServerRequest::read(&method, request.get("params"));
            let server_request = server_request.map_err(|error| broken(&error.to_string()))?;
            if !self
                .admitted
                .call
                .client
                .capabilities
                .and(self.allowed())
                .contains(server_request.required_capabilities())
            {
                return Err(broken(
                    "an input-required result demands a capability that the client did not declare",
                ));
            }
            requests.push((key.as_str().unwrap_or_default().into_owned(), server_request));
        }
        if requests.len() > MAX_SERVER_REQUESTS {
            return Err(broken("an input-required result holds more than 8 server requests"));
        }
        let state = result.get("requestState").and_then(Json::as_str).map(|s| s.into_owned());
        Ok(Some(InputRequests { requests, state }))
    }

    async fn request_all(
        &mut self,
        input_requests: InputRequests,
    ) -> Result<InputResponses, Fault> {
        self.next_round()?;
        let mut answers: Vec<(String, Document)> =
            Vec::with_capacity(input_requests.requests.len());
        for (key, server_request) in input_requests.requests {
            let cancel = server_request.cancel_answer();
            let started = Instant::now();
            let answer = match self.send_request(server_request).await {
                Some(Answer::Result(answer)) => Some(answer),
                Some(Answer::Error { .. }) | None => cancel,
            };
            self.deadline += started.elapsed();
            let answer = answer.ok_or_else(|| self.fault(Kind::Unanswered(NONE)))?;
            answers.push((key, answer));
        }
        let mut responses = String::new();
        write_object(&mut responses, |responses| {
            for (key, answer) in answers {
                responses.json(&key, answer.json().text());
            }
        });
        Ok(InputResponses { responses: Some(responses), state: input_requests.state })
    }

    /// Sends a server request to a client that waits.
    fn send_request(&self, server_request: ServerRequest) -> impl Future<Output = Option<Answer>> {
        let channel = self.channel.clone();
        let origin = self.request_origin();
        let patience = self.router.limits.server_request_timeout;
        async move { channel.request(server_request, origin, patience).await }
    }

    fn tell(&self, interim: InterimMessage) {
        match interim {
            InterimMessage::Progress(params) => self.channel.tell(CallEvent::Progress(params)),
            InterimMessage::Log(params) => self.channel.tell(CallEvent::Log(params)),
            InterimMessage::UrlElicitationComplete(params) => {
                self.channel.tell(CallEvent::UrlElicitationComplete(params))
            }
            InterimMessage::ServerRequest { .. } => {}
        }
    }

    fn next_round(&mut self) -> Result<(), Fault> {
        self.rounds += 1;
        if self.rounds > MAX_SERVER_REQUESTS {
            Err(self.fault(Kind::Unanswered("more than 8 server requests in one call")))
        } else {
            Ok(())
        }
    }

    /// Translates an upstream's error about missing capabilities, and a sign-in that the caller
    /// needs, into the client's terms.
    fn refused(&self, kind: Kind) -> Fault {
        if matches!(kind, Kind::SignInNeeded { .. }) {
            return shown_to(self.admitted.call.client.capabilities, self.fault(kind));
        }
        let Kind::Error { code, message, data: Some(data) } = &kind else {
            return self.fault(kind);
        };
        let Ok(data_json) = Json::parse_text(data, DEPTH) else {
            return self.fault(kind);
        };
        let client = self.admitted.call.client;
        match *code {
            MISSING_CAPABILITY if self.admitted.upstream.declares_capabilities_per_request() => {
                let Some(required) = data_json.get("requiredCapabilities") else {
                    return self.fault(kind);
                };
                let needed = ClientCapabilities::declared(Some(required), Revision::NEWEST_MODERN);
                let has = |capabilities: ClientCapabilities| {
                    !needed.is_none() && capabilities.contains(needed)
                };
                match (has(client.capabilities), has(self.allowed())) {
                    (true, true) => self.fault(kind),
                    (true, false) => self.fault(Kind::ServerRequestNotAllowed),
                    (false, _) => {
                        let required = required.text().to_owned();
                        RequestFault::CapabilityMissing { required }.into()
                    }
                }
            }
            URL_ELICITATION_REQUIRED if client.capabilities.contains(ClientCapabilities::URL) => {
                if self.allowed().contains(ClientCapabilities::URL) {
                    self.fault(Kind::UrlElicitationRequired {
                        message: message.clone(),
                        data: data.clone(),
                    })
                } else {
                    self.fault(Kind::ServerRequestNotAllowed)
                }
            }
            _ => self.fault(kind),
        }
    }

    /// Turns an error that demands URL elicitations (2025-11-25, -32042) into an input-required
    /// result; passes any other error on.
    fn require_url_elicitations(&mut self, kind: Kind, replay: Replay) -> Result<Reply, Fault> {
        let fault = self.refused(kind);
        let Fault::Upstream(UpstreamFault {
            kind: Kind::UrlElicitationRequired { data, .. }, ..
        }) = &fault
        else {
            return Err(fault);
        };
        let requests = url_elicitations(data);
        let requests = requests.filter(|requests| requests.len() <= MAX_SERVER_REQUESTS);
        let requests = requests.ok_or_else(|| {
            self.fault(Kind::Protocol("its list of URL elicitations is malformed".to_owned()))
        })?;
        self.next_round()?;
        self.input_required(requests, GetProgress::Replay(replay))
    }

    fn allowed(&self) -> ClientCapabilities {
        self.admitted.upstream.allowed_server_requests()
    }

    fn request_origin(&self) -> RequestOrigin {
        let config = self.admitted.upstream.config();
        RequestOrigin { upstream: config.id.to_string(), label: config.settings.label_elicitations }
    }

    fn fault(&self, kind: Kind) -> Fault {
        Fault::upstream(self.admitted.upstream.config().id.as_str(), kind)
    }
}

/// The server requests of a result by their keys, and the state to return with the answers.
struct InputRequests {
    requests: Vec<(String, ServerRequest)>,
    state: Option<String>,
}

const MISSING_CAPABILITY: i64 = -32021;
const URL_ELICITATION_REQUIRED: i64 = -32042;
const NONE: &str = "no answer from the client";
const TOO_MANY_WAIT: &str = "too many calls are suspended for URL elicitations";

fn invalid_answer() -> Fault {
    Fault::invalid_params("`inputResponses` holds an answer that does not fit its server request")
}

/// The client's `inputResponses` for a modern upstream, without reserved `_meta` keys.
fn clean(responses: &Document) -> String {
    let mut out = String::new();
    write_object(&mut out, |out| {
        for (key, answer) in responses.json().members() {
            out.rewritten(key, |out| out.push_str(meta::without_reserved(answer).json().text()));
        }
    });
    out
}
