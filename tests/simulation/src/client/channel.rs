//! A connection on which all messages of the gateway arrive: HTTP+SSE, or the standard streams.

use std::collections::BTreeSet;

use http::Method;
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, WriteHalf, split};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use super::events::Events;
use super::{Client, DEADLINE, Listener, Outcome, count_change};
use crate::machine::trace;
use crate::plan::ClientTransport;

pub struct Channel {
    pub replica: usize,
    pub opened: Instant,
    outgoing: Outgoing,
    received: mpsc::UnboundedReceiver<Value>,
    /// The requests that another replica may have got and did not acknowledge: their responses may
    /// come.
    unacknowledged: BTreeSet<u64>,
    /// The changed lists that the client was told of.
    told: watch::Receiver<u64>,
    reader: AbortHandle,
    is_disturbed: Box<dyn Fn() -> bool + Send + Sync>,
}

/// Where the client's own messages go.
enum Outgoing {
    /// They are posted to this path.
    Post(String),
    Lines(WriteHalf<DuplexStream>),
}

/// Why a message was not taken.
pub enum NotSent {
    /// The gateway has refused it.
    Refused(Outcome),
    Lost,
}

impl Channel {
    /// Whether the network has interfered with it.
    pub fn is_disturbed(&self) -> bool {
        (self.is_disturbed)()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Client {
    /// Opens a channel; `false` if that fails.
    pub(super) async fn open_channel(&mut self) -> bool {
        self.channel = match self.plan.transport {
            ClientTransport::Stdio => self.open_streams(),
            _ => timeout(DEADLINE, self.open_events()).await.ok().flatten(),
        };
        self.channel.is_some()
    }

    /// The standard streams of the gateway.
    fn open_streams(&mut self) -> Option<Channel> {
        let replica = self.rng.usize(..self.world.scenario.replicas);
        let (reading, writing) = split(self.world.serve_stdio(replica)?);
        let (received, told, sender) = self.inbox();
        let reader = tokio::spawn(async move {
            let mut lines = BufReader::new(reading).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                sender(serde_json::from_str(&line).unwrap_or(Value::String(line)));
            }
        });
        let outgoing = Outgoing::Lines(writing);
        let (reader, is_disturbed) = (reader.abort_handle(), Box::new(|| false));
        Some(Channel {
            replica,
            opened: Instant::now(),
            outgoing,
            received,
            unacknowledged: BTreeSet::new(),
            told,
            reader,
            is_disturbed,
        })
    }

    /// The event stream of HTTP+SSE, whose first event says where to post messages.
    async fn open_events(&mut self) -> Option<Channel> {
        let mut connection = self.connect().await?;
        let request = self.builder(Method::GET, "/sse").body(Full::default()).ok()?;
        let response = connection.sender.send_request(request).await.ok()?;
        if response.status() != 200 {
            trace::note(&self.plan.name, &format!("no stream: {}", response.status()));
            return None;
        }
        let mut events = Events::new(response);
        let endpoint = events.next_data().await?;
        let (received, told, sender) = self.inbox();
        let replica = connection.replica;
        let is_disturbed = connection.is_disturbed.clone();
        let reader = tokio::spawn(async move {
            let _open = connection;
            while let Some(message) = events.next().await {
                sender(message);
            }
        });
        let (outgoing, reader) = (Outgoing::Post(endpoint), reader.abort_handle());
        let is_disturbed = Box::new(move || is_disturbed());
        Some(Channel {
            replica,
            opened: Instant::now(),
            outgoing,
            received,
            unacknowledged: BTreeSet::new(),
            told,
            reader,
            is_disturbed,
        })
    }

    /// The inbox of a channel: notifications of changed lists are counted, other messages are
    /// received.
    fn inbox(
        &self,
    ) -> (mpsc::UnboundedReceiver<Value>, watch::Receiver<u64>, impl Fn(Value) + Send + use<>) {
        let (sender, received) = mpsc::unbounded_channel();
        let (count, told) = watch::channel(0);
        let name = self.plan.name.clone();
        let take = move |message: Value| {
            count_change(&name, &message, &count);
            let _ = sender.send(message);
        };
        (received, told, take)
    }

    /// Sends a message.
    pub(super) async fn send_over_channel(&mut self, message: &Value) -> Result<(), NotSent> {
        let path = match &mut self.channel.as_mut().ok_or(NotSent::Lost)?.outgoing {
            Outgoing::Lines(writing) => {
                let line = format!("{message}\n");
                return writing.write_all(line.as_bytes()).await.map_err(|_| NotSent::Lost);
            }
            Outgoing::Post(path) => path.clone(),
        };
        // A connection that is used again may have been closed meanwhile, which says nothing of the
        // gateway.
        self.connection = None;
        let request = self.builder(Method::POST, &path).body(Full::from(message.to_string()));
        let request = request.expect("a request");
        let response = self.send(request).await.ok_or(NotSent::Lost)?;
        match response.status().as_u16() {
            202 => Ok(()),
            status => {
                let id = message["id"].as_u64().unwrap_or_default();
                let refusal = Box::pin(self.read(response, id, None)).await;
                Err(NotSent::Refused(refusal.unwrap_or(Outcome::Status(status))))
            }
        }
    }

    /// Sends a request and waits for its response; `None` if the channel ends before.
    pub(super) async fn exchange_over_channel(
        &mut self,
        body: &Value,
        id: u64,
        nonce: Option<&str>,
    ) -> Option<Outcome> {
        match self.send_over_channel(body).await {
            Ok(()) => {}
            Err(NotSent::Refused(outcome)) => {
                if matches!(&outcome, Outcome::Error(_, why) if why == "replica_unreachable") {
                    self.channel.as_mut()?.unacknowledged.insert(id);
                }
                return Some(outcome);
            }
            Err(NotSent::Lost) => return None,
        }
        loop {
            let channel = self.channel.as_mut()?;
            let message = channel.received.recv().await?;
            let answered = message["id"].as_u64().filter(|_| message.get("method").is_none());
            let is_late = answered.is_some_and(|id| channel.unacknowledged.remove(&id));
            self.check_bytes(message.to_string().as_bytes());
            if is_late {
                continue;
            }
            match (message.get("method").is_some(), message.get("id").cloned()) {
                (false, _) => return Some(self.outcome(&message, id, 200)),
                (true, Some(server_request)) => {
                    let result = self.answer(&message["params"], nonce);
                    let answer = json!({"jsonrpc": "2.0", "id": server_request, "result": result});
                    let _ = self.send_over_channel(&answer).await;
                }
                (true, None) => {}
            }
        }
    }

    /// Counts the notifications of changed lists that arrive from now on.
    pub(super) async fn listen_over_channel(&mut self) -> Option<Listener> {
        if self.channel.is_none() && !self.open_channel().await {
            return None;
        }
        if self.is_modern() {
            let params = json!({"notifications": {"promptsListChanged": true}});
            let (_, body) = self.request("subscriptions/listen", params);
            self.send_over_channel(&body).await.ok()?;
        }
        let channel = self.channel.as_ref()?;
        Some(Listener {
            name: self.plan.name.clone(),
            caller: self.caller.clone(),
            count: channel.told.clone(),
            task: channel.reader.clone(),
        })
    }
}
