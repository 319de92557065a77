//! HTTP+SSE (2024-11-05): a GET opens the one stream on which everything goes down, and names in its
//! first event where messages are to be posted.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use dashmap::DashMap;
use http::{Response, Uri};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::event_stream::{Event, EventSource, EventStream, NextEvent};
use super::respond;
use super::respond::Body;
use crate::config::Limits;
use crate::domain::caller::Caller;
use crate::domain::fault::TransportFault;
use crate::downstream::admission::{Admission, StreamPermit};
use crate::downstream::channel::ClientChannel;
use crate::downstream::clock::now_secs;
use crate::seal::hex::hex;
use crate::seal::random;
use crate::session::connection::{Connection, ConnectionKind};
use crate::session::{Sessions, StreamEnd};

/// The open streams: as many entries as `server.limits.streams` allows.
pub(crate) struct HttpSse {
    open: Arc<DashMap<String, ClientChannel>>,
    sessions: Arc<ArcSwap<Sessions>>,
    admission: Arc<Admission>,
    path: String,
    /// Where cursors and states belong: a client may change its transport and keep them.
    endpoint: String,
    keep_alive: Duration,
    patience: Duration,
    lifetime: Option<Duration>,
    drain: CancellationToken,
}

/// What goes down one stream; the session ends with it.
pub(crate) struct HttpSseSession {
    outgoing: mpsc::Receiver<String>,
    entry: OpenEntry,
    /// Cancelled when the client has read nothing for too long.
    over: CancellationToken,
    end: StreamEnd,
    drain: CancellationToken,
    is_draining: bool,
    _place: StreamPermit,
}

/// A session is known as long as this lives.
struct OpenEntry {
    open: Arc<DashMap<String, ClientChannel>>,
    id: String,
    connection: Arc<Connection>,
}

impl HttpSse {
    pub(crate) fn new(
        path: &str,
        endpoint: &str,
        limits: &Limits,
        sessions: Arc<ArcSwap<Sessions>>,
        admission: Arc<Admission>,
        open: Arc<DashMap<String, ClientChannel>>,
        drain: CancellationToken,
    ) -> Self {
        Self {
            open,
            sessions,
            admission,
            path: path.to_owned(),
            endpoint: endpoint.to_owned(),
            keep_alive: limits.keep_alive,
            patience: limits.reader_patience(),
            lifetime: Some(limits.stream_lifetime).filter(|lifetime| !lifetime.is_zero()),
            drain,
        }
    }

    /// Where the stream is opened, and messages are posted.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Opens a stream for a caller whom these sessions have let in.
    pub(crate) fn open(
        &self,
        caller: Caller,
        address: IpAddr,
        let_in_by: &Sessions,
    ) -> Result<Response<Body>, TransportFault> {
        let permit = self.admission.stream(&caller)?;
        let id = hex(&random::<16>());
        let (sessions, address) = (self.sessions.clone(), Some(address));
        let kind = ConnectionKind::Sse;
        let end = let_in_by.end_of_stream(&caller, self.lifetime, now_secs());
        let connection = Connection::new(sessions, caller, &self.endpoint, address, kind);
        let (channel, outgoing) =
            ClientChannel::new(connection, self.admission.clone(), self.patience);
        let endpoint = format!("{}?{SESSION}={id}", self.path);
        let session = HttpSseSession {
            outgoing,
            entry: OpenEntry {
                open: self.open.clone(),
                id,
                connection: channel.connection().clone(),
            },
            over: channel.over(),
            end,
            drain: self.drain.clone(),
            is_draining: false,
            _place: permit,
        };
        self.open.insert(session.entry.id.clone(), channel);
        Ok(respond::events(EventStream::lasting(
            Some(Event::endpoint(&endpoint)),
            session,
            self.keep_alive,
        )))
    }

    /// The session that a URL names, if it is the caller's.
    pub(crate) fn session(
        &self,
        uri: &Uri,
        caller: &Caller,
    ) -> Result<ClientChannel, TransportFault> {
        let pairs = uri.query().unwrap_or_default().split('&');
        let id = pairs.filter_map(|pair| pair.split_once('=')).find(|(name, _)| *name == SESSION);
        let (_, id) = id.ok_or(TransportFault::SessionRequired)?;
        let channel = self.open.get(id).filter(|channel| channel.connection().caller() == caller);
        channel.map(|channel| channel.clone()).ok_or(TransportFault::SessionUnknown)
    }
}

const SESSION: &str = "sessionId";

impl HttpSseSession {
    /// The next message; nothing at the end.
    async fn next_message(&mut self) -> Option<String> {
        loop {
            tokio::select! {
                biased;
                message = self.outgoing.recv() => return message,
                () = self.drain.cancelled(), if !self.is_draining => {
                    // Without the session no more is taken in; what is under way is still answered.
                    self.is_draining = true;
                    self.entry.close();
                }
                () = self.end.reached() => return None,
                () = self.over.cancelled() => return None,
            }
        }
    }
}

impl EventSource for HttpSseSession {
    async fn next_event(mut self) -> NextEvent<Self> {
        let message = self.next_message().await?;
        Some((Event::message(None, &message), Some(self)))
    }
}

impl OpenEntry {
    /// Nothing more is taken in, answers of users among it; calls that run are let finish.
    fn close(&self) {
        self.open.remove(&self.id);
        self.connection.close_input();
    }
}

impl Drop for OpenEntry {
    fn drop(&mut self) {
        self.close();
    }
}
