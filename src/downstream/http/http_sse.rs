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

use super::event_stream::EventStream;
use super::respond;
use super::respond::Body;
use crate::config::Limits;
use crate::domain::caller::Caller;
use crate::domain::fault::TransportFault;
use crate::downstream::admission::{Load, StreamPlace};
use crate::downstream::calls::now_secs;
use crate::downstream::channel::Line;
use crate::seal::hex::hex;
use crate::seal::random;
use crate::session::connection::{Connection, ConnectionKind};
use crate::session::{Sessions, StreamEnd};

/// The open streams: as many entries as `server.limits.streams` allows.
pub struct EventLines {
    open: Arc<DashMap<String, Line>>,
    sessions: Arc<ArcSwap<Sessions>>,
    load: Arc<Load>,
    path: String,
    /// Where cursors and states belong: a client may change its transport and keep them.
    endpoint: String,
    keep_alive: Duration,
    patience: Duration,
    lifetime: Option<Duration>,
    drain: CancellationToken,
}

/// What goes down one stream; the session ends with it.
pub struct EventLine {
    outgoing: mpsc::Receiver<String>,
    entry: OpenEntry,
    /// Cancelled when the client has read nothing for too long.
    over: CancellationToken,
    end: StreamEnd,
    drain: CancellationToken,
    is_draining: bool,
    _place: StreamPlace,
}

/// A session is known as long as this lives.
struct OpenEntry {
    open: Arc<DashMap<String, Line>>,
    id: String,
    connection: Arc<Connection>,
}

impl EventLines {
    pub fn new(
        path: &str,
        endpoint: &str,
        limits: &Limits,
        sessions: Arc<ArcSwap<Sessions>>,
        load: Arc<Load>,
        open: Arc<DashMap<String, Line>>,
        drain: CancellationToken,
    ) -> Self {
        Self {
            open,
            sessions,
            load,
            path: path.to_owned(),
            endpoint: endpoint.to_owned(),
            keep_alive: limits.keep_alive,
            patience: limits.reader_patience(),
            lifetime: Some(limits.stream_lifetime).filter(|lifetime| !lifetime.is_zero()),
            drain,
        }
    }

    /// Where the stream is opened, and messages are posted.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Opens a stream for a caller whom these sessions have let in.
    pub fn open(
        &self,
        caller: Caller,
        address: IpAddr,
        let_in_by: &Sessions,
    ) -> Result<Response<Body>, TransportFault> {
        let place = self.load.stream(&caller)?;
        let id = hex(&random::<16>());
        let (sessions, address) = (self.sessions.clone(), Some(address));
        let kind = ConnectionKind::Sse;
        let end = let_in_by.end_of_stream(&caller, self.lifetime, now_secs());
        let connection = Connection::new(sessions, caller, &self.endpoint, address, kind);
        let (line, outgoing) = Line::new(connection, self.load.clone(), self.patience);
        let endpoint = format!("{}?{SESSION}={id}", self.path);
        let event_line = EventLine {
            outgoing,
            entry: OpenEntry { open: self.open.clone(), id, connection: line.connection().clone() },
            over: line.over(),
            end,
            drain: self.drain.clone(),
            is_draining: false,
            _place: place,
        };
        self.open.insert(event_line.entry.id.clone(), line);
        Ok(respond::events(EventStream::line(&endpoint, event_line, self.keep_alive)))
    }

    /// The session that a URL names, if it is the caller's.
    pub fn session(&self, uri: &Uri, caller: &Caller) -> Result<Line, TransportFault> {
        let pairs = uri.query().unwrap_or_default().split('&');
        let id = pairs.filter_map(|pair| pair.split_once('=')).find(|(name, _)| *name == SESSION);
        let (_, id) = id.ok_or(TransportFault::SessionRequired)?;
        let line = self.open.get(id).filter(|line| line.connection().caller() == caller);
        line.map(|line| line.clone()).ok_or(TransportFault::SessionUnknown)
    }
}

const SESSION: &str = "sessionId";

impl EventLine {
    /// The next message; nothing at the end.
    pub async fn next(&mut self) -> Option<String> {
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

impl OpenEntry {
    /// Nothing more is taken in, answers of users among it; calls that run are let finish.
    fn close(&self) {
        self.open.remove(&self.id);
        self.connection.hang_up();
    }
}

impl Drop for OpenEntry {
    fn drop(&mut self) {
        self.close();
    }
}
