//! Streamable HTTP: one endpoint for all revisions.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::body::{self, Accepts};
use super::guard::Guard;
use super::respond::{self, Body};
use super::sse::EventStream;
use crate::config::{Limits, Server};
use crate::domain::fault::TransportFault;
use crate::domain::jsonrpc::Id;
use crate::session::dialect::{Dialect, result_message};
use crate::session::notices::Notices;
use crate::session::{Ending, Pending, Refusal, Sessions, Slot, Turn};

/// The HTTP side of the gateway.
pub struct Endpoint {
    sessions: Arc<Sessions>,
    guard: Guard,
    path: String,
    limits: Limits,
    /// One permit for each request that is being worked on.
    in_flight: Arc<Semaphore>,
    /// One permit for each KiB of their bodies.
    in_flight_kibibytes: Arc<Semaphore>,
    /// One permit for each open stream of notices.
    streams: Arc<Semaphore>,
}

impl Endpoint {
    pub fn new(server: &Server, sessions: Arc<Sessions>) -> Self {
        Self {
            sessions,
            guard: Guard::new(server),
            path: server.path.clone(),
            limits: server.limits.clone(),
            in_flight: Arc::new(Semaphore::new(server.limits.in_flight)),
            in_flight_kibibytes: Arc::new(Semaphore::new(server.limits.in_flight_bytes / 1024)),
            streams: Arc::new(Semaphore::new(server.limits.streams)),
        }
    }

    /// Answers one request, whatever it is.
    pub async fn serve(&self, request: Request<Incoming>) -> Response<Body> {
        let dialect = self.sessions.dialect_of(&body::read_headers(request.headers()), &self.path);
        let refuse = |fault: TransportFault| {
            respond::refusal(&Refusal { fault: fault.into(), id: None, dialect })
        };
        if let Err(fault) = self.guard.check_host(request.uri(), request.headers()) {
            return refuse(fault);
        }
        let origin = match self.guard.check_origin(request.headers()) {
            Ok(origin) => origin,
            Err(fault) => return refuse(fault),
        };
        if request.method() == Method::OPTIONS {
            let mut response = respond::plain(StatusCode::NO_CONTENT);
            if let Some(origin) = origin {
                origin.allow_preflight(response.headers_mut());
            }
            return response;
        }
        let answered = self.dispatch(request, dialect).await;
        let mut response = answered.unwrap_or_else(|refused| match refused {
            Refused::Transport(fault) => refuse(fault),
            Refused::Message(refusal) => respond::refusal(&refusal),
        });
        if let Some(origin) = origin {
            origin.allow(response.headers_mut());
        }
        response
    }

    /// `guess` is how the client is written to as long as no more is known than its headers.
    async fn dispatch(
        &self,
        request: Request<Incoming>,
        guess: Dialect,
    ) -> Result<Response<Body>, Refused> {
        if request.uri().path().len() > self.limits.uri_length
            || request.uri().query().is_some_and(|q| q.len() > self.limits.uri_length)
        {
            return Err(TransportFault::UriTooLong { limit: self.limits.uri_length }.into());
        }
        if request.uri().path() != self.path {
            return Err(TransportFault::NotFound.into());
        }
        match *request.method() {
            Method::POST => self.post(request, guess).await,
            Method::GET => {
                let headers = body::read_headers(request.headers());
                let caller = self.sessions.authenticate()?;
                let last_event = request.headers().get(LAST_EVENT_ID).and_then(|v| v.to_str().ok());
                let notices = self.sessions.open_stream(
                    &headers,
                    last_event,
                    &caller,
                    &self.path,
                    now_secs(),
                )?;
                self.notices(notices, body::read_accept(request.headers())?)
            }
            Method::DELETE => {
                let headers = body::read_headers(request.headers());
                let caller = self.sessions.authenticate()?;
                self.sessions.end(&headers, &caller, &self.path, now_secs())?;
                Ok(respond::plain(StatusCode::OK))
            }
            _ => Err(TransportFault::MethodNotAllowed { allow: "GET, POST, DELETE" }.into()),
        }
    }

    async fn post(
        &self,
        request: Request<Incoming>,
        guess: Dialect,
    ) -> Result<Response<Body>, Refused> {
        body::check_media_type(request.headers())?;
        let accepts = body::read_accept(request.headers())?;
        let caller = self.sessions.authenticate()?;
        let call = self.slot()?;
        let (head, incoming) = request.into_parts();
        let room = self.room(&head.headers)?;
        let bytes = body::read(incoming, &head.headers, &self.limits).await?;
        let room = Arc::new(shrunk(room, bytes.len()));
        let headers = body::read_headers(&head.headers);
        let turn = self.sessions.read(&headers, &bytes, &caller, &self.path, now_secs(), guess)?;
        drop(bytes);
        match turn {
            Turn::Accepted => Ok(respond::accepted()),
            Turn::Answer { message, session } => {
                let response = match accepts {
                    Accepts::StreamOnly => self.stream(async { Some(message) }),
                    Accepts::Both | Accepts::JsonOnly => respond::json(message),
                };
                Ok(respond::with_session(response, session.as_deref()))
            }
            Turn::Listen(notices) => self.notices(notices, accepts),
            Turn::Batch(items) => {
                drop(call);
                let mut answer = Box::pin(self.batch(items, &room));
                let early = match accepts {
                    Accepts::JsonOnly => Ok(answer.as_mut().await),
                    _ => timeout(self.limits.keep_alive, answer.as_mut()).await,
                };
                Ok(match early {
                    Ok(None) => respond::accepted(),
                    Ok(message) if accepts == Accepts::StreamOnly => self.stream(async { message }),
                    Ok(Some(message)) => respond::json(message),
                    Err(_) => self.stream(answer),
                })
            }
            Turn::Pending(pending) => {
                let slot = Slot { call, bytes: room };
                // On the heap: the future of a call is large, and moves more than once.
                let answer = Box::pin(perform(self.sessions.clone(), pending, slot));
                self.answer(answer, accepts).await
            }
        }
    }

    /// The answers of a batch as one array; nothing if none of its messages has an answer. Each item
    /// is refused by itself.
    fn batch(
        &self,
        items: Vec<Result<Turn, Refusal>>,
        room: &Arc<OwnedSemaphorePermit>,
    ) -> impl Future<Output = Option<String>> + Send + 'static {
        let start = |item| match item {
            Ok(Turn::Answer { message, .. }) => Started::There(Some(message)),
            Ok(Turn::Pending(pending)) => match self.slot() {
                Ok(call) => {
                    let slot = Slot { call, bytes: room.clone() };
                    let (id, dialect) = (pending.id.clone(), pending.dialect);
                    let answer = Box::pin(perform(self.sessions.clone(), pending, slot));
                    Started::Running(id, dialect, answer)
                }
                Err(fault) => {
                    let (id, dialect) = (Some(pending.id), pending.dialect);
                    let refusal = Refusal { fault: fault.into(), id, dialect };
                    Started::There(Some(refusal_message(&refusal)))
                }
            },
            Ok(Turn::Accepted | Turn::Listen(_) | Turn::Batch(_)) => Started::There(None),
            Err(refusal) => Started::There(Some(refusal_message(&refusal))),
        };
        let started: Vec<_> = items.into_iter().map(start).collect();
        async move {
            let mut messages = Vec::with_capacity(started.len());
            let mut room = BATCH_ANSWER;
            for item in started {
                messages.extend(match item {
                    Started::There(message) => message,
                    Started::Running(id, dialect, answer) => {
                        let message = answer.await.into_message();
                        let size = message.as_ref().map_or(0, String::len);
                        match room.checked_sub(size) {
                            Some(rest) => {
                                room = rest;
                                message
                            }
                            None => {
                                let fault = TransportFault::Overloaded.into();
                                let refusal = Refusal { fault, id: Some(id), dialect };
                                Some(refusal_message(&refusal))
                            }
                        }
                    }
                });
            }
            (!messages.is_empty()).then(|| format!("[{}]", messages.join(",")))
        }
    }

    /// A place among the calls that run.
    fn slot(&self) -> Result<OwnedSemaphorePermit, TransportFault> {
        self.in_flight.clone().try_acquire_owned().map_err(|_| TransportFault::Overloaded)
    }

    /// Room for a body: as much as it announces, or else as much as it may have.
    fn room(&self, headers: &HeaderMap) -> Result<OwnedSemaphorePermit, TransportFault> {
        let size = body::announced(headers).unwrap_or(usize::MAX).min(self.limits.body_size);
        let kibibytes = u32::try_from(size.div_ceil(1024)).unwrap_or(u32::MAX);
        let room = self.in_flight_kibibytes.clone().try_acquire_many_owned(kibibytes);
        room.map_err(|_| TransportFault::Overloaded)
    }

    /// One JSON object, if the client takes it and it is there in time; else a stream.
    async fn answer(
        &self,
        mut answer: Pin<Box<impl Future<Output = Answer> + Send + 'static>>,
        accepts: Accepts,
    ) -> Result<Response<Body>, Refused> {
        let early = match accepts {
            Accepts::JsonOnly => Some(answer.as_mut().await),
            Accepts::Both => timeout(self.limits.keep_alive, answer.as_mut()).await.ok(),
            Accepts::StreamOnly => None,
        };
        match early {
            Some(Answer::Message(message)) => Ok(respond::json(message)),
            Some(Answer::Refused(refusal)) => Err(refusal.into()),
            // A cancelled call ends as an empty stream (2025-11-25, cancellation).
            Some(Answer::Cancelled) => Ok(self.stream(async { None })),
            None => Ok(self.stream(async move { answer.await.into_message() })),
        }
    }

    fn stream(
        &self,
        message: impl Future<Output = Option<String>> + Send + 'static,
    ) -> Response<Body> {
        respond::events(EventStream::answer(message, self.limits.keep_alive))
    }

    /// A stream of notices; listening as JSON is impossible.
    fn notices(&self, notices: Notices, accepts: Accepts) -> Result<Response<Body>, Refused> {
        if accepts == Accepts::JsonOnly {
            return Err(TransportFault::NotAcceptable.into());
        }
        let place = self.streams.clone().try_acquire_owned();
        let place = place.map_err(|_| TransportFault::Overloaded)?;
        Ok(respond::events(EventStream::notices(notices, place, self.limits.keep_alive)))
    }
}

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// What became of a call, ready to be sent.
enum Answer {
    Message(String),
    Refused(Refusal),
    Cancelled,
}

impl Answer {
    fn into_message(self) -> Option<String> {
        match self {
            Answer::Message(message) => Some(message),
            Answer::Refused(refusal) => Some(refusal_message(&refusal)),
            Answer::Cancelled => None,
        }
    }
}

/// One item of a batch.
enum Started {
    There(Option<String>),
    Running(Id, Dialect, Pin<Box<dyn Future<Output = Answer> + Send>>),
}

/// Bytes of all answers of one batch: a small request must not make the gateway hold gigabytes.
const BATCH_ANSWER: usize = 64 << 20;

/// Starts a call; what is returned waits for its end.
fn perform(
    sessions: Arc<Sessions>,
    pending: Pending,
    slot: Slot,
) -> impl Future<Output = Answer> + Send + 'static {
    let (id, dialect) = (pending.id.clone(), pending.dialect);
    let ending = sessions.perform(pending, slot, now_secs());
    async move {
        match ending.await {
            Ending::Result(result) => Answer::Message(result_message(&id, &result)),
            Ending::Fault(fault) => Answer::Refused(Refusal { fault, id: Some(id), dialect }),
            Ending::Cancelled => Answer::Cancelled,
        }
    }
}

/// The part of `room` that a body of this size really takes.
fn shrunk(mut room: OwnedSemaphorePermit, size: usize) -> OwnedSemaphorePermit {
    room.split(size.div_ceil(1024)).unwrap_or(room)
}

fn refusal_message(Refusal { fault, id, dialect }: &Refusal) -> String {
    respond::error_message(fault, id.as_ref(), *dialect)
}

/// Why a request is not answered with a result.
enum Refused {
    /// Before its message was understood.
    Transport(TransportFault),
    Message(Refusal),
}

impl From<TransportFault> for Refused {
    fn from(fault: TransportFault) -> Self {
        Self::Transport(fault)
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::Message(refusal)
    }
}

/// Seconds since the Unix epoch; a clock before it counts as there.
fn now_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
