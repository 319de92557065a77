//! HTTP+SSE (MCP 2024-11-05, transports): a GET opens the stream that carries all messages to the
//! client. Its first event names the URL to which the client posts its own messages.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use dashmap::DashMap;
use http::{Response, Uri};
use tokio_util::sync::CancellationToken;

use super::event_stream::{EventSource, EventStream, NextEvent, WireEvent};
use super::respond;
use super::respond::Body;
use crate::downstream::admission::{Admission, BodyBudget, StreamPermit};
use crate::downstream::channel::{ClientChannel, Outgoing, OutgoingMessage, Sender};
use crate::downstream::clock;
use crate::session::connection::{ClientConnection, ConnectionKind};
use crate::session::{Sessions, StreamEnd, relay_fault};
use base::seal::hex::hex;
use base::seal::random;
use cluster::{ClusterMember, Handling, RelayMessage, ReplicaId};
use config::Limits;
use domain::calls::caller::Caller;
use domain::fault::TransportFault;
use policy::StreamRecord;

/// The HTTP+SSE transport of one configuration.
pub(crate) struct HttpSseEndpoint {
    channels: Arc<OpenChannels>,
    sessions: Arc<ArcSwap<Sessions>>,
    admission: Arc<Admission>,
    path: String,
    /// The path of the Streamable HTTP endpoint, to which cursors and `requestState` are bound: a
    /// client may change its transport and keep them.
    endpoint: String,
    keep_alive: Duration,
    stall: Duration,
    lifetime: Option<Duration>,
    drain: CancellationToken,
}

/// The channels of the open streams by session id. Each entry has a stream permit, so there are at
/// most `server.limits.streams`.
pub(crate) type OpenChannels = DashMap<String, ClientChannel>;

/// One open stream. Its session ends with it.
pub(crate) struct HttpSseSession {
    outgoing: Outgoing,
    entry: OpenEntry,
    /// Cancelled when the client has read nothing for too long.
    abandoned: CancellationToken,
    /// Ends the notification streams.
    input_closed: CancellationToken,
    end: StreamEnd,
    drain: CancellationToken,
    /// Whether new messages are refused: the stream ends once the calls in flight are answered.
    is_ending: bool,
    permit: StreamPermit,
    _record: StreamRecord,
}

/// The entry of a session among the open channels, removed on drop.
struct OpenEntry {
    channels: Arc<OpenChannels>,
    id: String,
    connection: Arc<ClientConnection>,
}

impl HttpSseEndpoint {
    /// Serves the transport at `path`. `sessions` are those of the current configuration,
    /// `channels` the open ones, which outlive a reload.
    pub(crate) fn new(
        path: &str,
        endpoint: &str,
        limits: &Limits,
        sessions: Arc<ArcSwap<Sessions>>,
        admission: Arc<Admission>,
        channels: Arc<OpenChannels>,
        drain: CancellationToken,
    ) -> Self {
        Self {
            channels,
            sessions,
            admission,
            path: path.to_owned(),
            endpoint: endpoint.to_owned(),
            keep_alive: limits.keep_alive,
            stall: limits.reader_patience(),
            lifetime: Some(limits.stream_lifetime).filter(|lifetime| !lifetime.is_zero()),
            drain,
        }
    }

    /// The path at which the stream is opened and messages are posted.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Opens a stream for a caller that `authenticated_by` has authenticated.
    pub(crate) async fn open(
        &self,
        sender: Sender,
        authenticated_by: &Sessions,
    ) -> Result<Response<Body>, TransportFault> {
        let permit = self.admission.stream(&sender.holder())?;
        let Sender { caller, address, .. } = sender;
        let record = authenticated_by.gate().stream(&caller, address, &self.endpoint).await?;
        let id = self.new_id();
        let end = StreamEnd::new(authenticated_by.gate(), &caller, self.lifetime, clock::now());
        let end = end.or_revoked(permit.revocation());
        let connection = ClientConnection::new(
            self.sessions.clone(),
            caller,
            &self.endpoint,
            ConnectionKind::Sse,
        );
        let (channel, outgoing) =
            ClientChannel::new(connection, self.admission.clone(), self.stall);
        let message_url = format!("{}?{SESSION_ID}={id}", self.path);
        let session = HttpSseSession {
            outgoing,
            entry: OpenEntry {
                channels: self.channels.clone(),
                id,
                connection: channel.connection().clone(),
            },
            abandoned: channel.abandoned(),
            input_closed: channel.input_closed(),
            end,
            drain: self.drain.clone(),
            is_ending: false,
            permit,
            _record: record,
        };
        self.channels.insert(session.entry.id.clone(), channel);
        Ok(respond::events(EventStream::long_lived(
            Some(WireEvent::endpoint(&message_url)),
            session,
            self.keep_alive,
        )))
    }

    /// Draws the id of a session. In a cluster it begins with the id of the replica that holds its
    /// stream.
    fn new_id(&self) -> String {
        let random = hex(&random::<16>());
        match self.sessions.load().cluster() {
            Some(cluster) => format!("{}{random}", cluster.id()),
            None => random,
        }
    }

    /// Returns where the session that a URL names is.
    pub(crate) fn find<'a>(
        &self,
        uri: &'a Uri,
        caller: &Caller,
    ) -> Result<SessionPlace<'a>, TransportFault> {
        let pairs = uri.query().unwrap_or_default().split('&');
        let id =
            pairs.filter_map(|pair| pair.split_once('=')).find(|(name, _)| *name == SESSION_ID);
        let (_, id) = id.ok_or(TransportFault::SessionRequired)?;
        if let Some(channel) = self.channel(id, caller) {
            return Ok(SessionPlace::Here(channel));
        }
        let sessions = self.sessions.load();
        let place = sessions.cluster().and_then(|cluster| {
            let replica = ReplicaId::parse(id.get(..ReplicaId::LEN)?)?;
            let is_other = replica != cluster.id();
            is_other.then(|| SessionPlace::Elsewhere { cluster: cluster.clone(), replica, id })
        });
        place.ok_or(TransportFault::SessionUnknown)
    }

    /// Returns the channel of a session of this caller.
    fn channel(&self, id: &str, caller: &Caller) -> Option<ClientChannel> {
        let channel = self.channels.get(id)?;
        (channel.connection().caller() == caller).then(|| channel.clone())
    }

    /// Takes a message that was posted to another replica.
    pub(crate) async fn receive(&self, id: &str, sender: &Sender, body: &[u8]) -> Handling {
        let Some(channel) = self.channel(id, &sender.caller) else {
            return Handling::NotFound;
        };
        match self.admission.budget(&sender.holder(), body.len()) {
            Ok(budget) => {
                channel.receive(sender, body, budget).await;
                Handling::Handled
            }
            Err(_) => Handling::Overloaded,
        }
    }
}

/// Where a session is.
pub(crate) enum SessionPlace<'a> {
    Here(ClientChannel),
    /// On another replica, if there.
    Elsewhere {
        cluster: Arc<ClusterMember>,
        replica: ReplicaId,
        id: &'a str,
    },
}

impl SessionPlace<'_> {
    /// Delivers a message of the client.
    pub(crate) async fn deliver(
        self,
        sender: &Sender,
        body: &[u8],
        budget: BodyBudget,
    ) -> Result<(), TransportFault> {
        let (cluster, replica, id) = match self {
            Self::Here(channel) => {
                channel.receive(sender, body, budget).await;
                return Ok(());
            }
            Self::Elsewhere { cluster, replica, id } => (cluster, replica, id),
        };
        // Its token goes to no other replica.
        let Sender { caller, address, .. } = sender.clone();
        let body = body.to_vec();
        let message = RelayMessage::Post { session_id: id.to_owned(), caller, address, body };
        match cluster.relay().deliver(&sender.holder(), replica, message).await {
            Ok(Handling::Handled) => Ok(()),
            Ok(_) => Err(TransportFault::SessionUnknown),
            Err(error) => Err(relay_fault(error)),
        }
    }
}

/// The query parameter with the session id.
const SESSION_ID: &str = "sessionId";

impl HttpSseSession {
    /// Returns the next message; `None` at the end. Cancel safe.
    async fn next_message(&mut self) -> Option<OutgoingMessage> {
        loop {
            tokio::select! {
                biased;
                message = self.outgoing.next() => return message,
                () = self.drain.cancelled(), if !self.is_ending => {}
                () = self.end.reached(), if !self.is_ending => self.input_closed.cancel(),
                () = self.abandoned.cancelled() => return None,
            }
            self.is_ending = true;
            self.entry.close();
        }
    }
}

impl EventSource for HttpSseSession {
    async fn next_event(mut self) -> NextEvent<Self> {
        let OutgoingMessage { text, memory } = self.next_message().await?;
        self.permit.sent();
        let event = WireEvent::message(None, &text).followed_by(self.outgoing.progress().clone());
        let event = match memory {
            Some(memory) => event.holding(memory),
            None => event,
        };
        Some((event, Some(self)))
    }
}

impl OpenEntry {
    /// Refuses further messages, responses to server requests among them. Calls in flight finish.
    fn close(&self) {
        self.channels.remove(&self.id);
        self.connection.close_input();
    }
}

impl Drop for OpenEntry {
    fn drop(&mut self) {
        self.close();
    }
}
