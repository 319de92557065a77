//! The store of a cluster in memory: a server that answers what the gateway asks a Redis or Valkey
//! server, over the network of the simulation. It is one server without replicas, TLS and
//! credentials, and keeps nothing on a disk.
//!
//! Each command is done at the moment at which all of its bytes have arrived; the network decides
//! when that is, and when the reply arrives.

pub mod against_real;
mod database;
mod model;
mod resp;
mod scripts;
mod stream;
pub mod tests;

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use base::platform::network::{Acceptor, Stream};
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::machine::network::{Listening, SimNetwork};
use crate::machine::trace;
use model::Model;
use resp::{Malformed, Reply, Requests};

/// The store. Clones are the same store.
#[derive(Clone)]
pub struct Store(Arc<Shared>);

struct Shared {
    clock: Box<dyn Fn() -> SystemTime + Send + Sync>,
    state: Mutex<State>,
    tasks: TaskTracker,
    end: CancellationToken,
}

struct State {
    model: Model,
    /// The bytes to write to each connection. Only the network bounds how fast it is.
    outboxes: BTreeMap<u64, mpsc::UnboundedSender<Bytes>>,
    /// The connections so far, which are numbered from 1.
    connected: u64,
    /// Ends the connections since the last restart.
    run: CancellationToken,
    frozen_until: Instant,
    loading_until: Instant,
}

/// Commands that a server answers while it loads its data.
const WHILE_LOADING: [&str; 5] = ["HELLO", "SELECT", "SUBSCRIBE", "UNSUBSCRIBE", "PUBLISH"];

impl Store {
    /// A store without keys, whose wall clock is `clock`: scripts see it, and keys expire by it.
    pub fn new(clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        let now = Instant::now();
        let end = CancellationToken::new();
        let state = State {
            model: Model::default(),
            outboxes: BTreeMap::new(),
            connected: 0,
            run: end.child_token(),
            frozen_until: now,
            loading_until: now,
        };
        Self(Arc::new(Shared {
            clock: Box::new(clock),
            state: Mutex::new(state),
            tasks: TaskTracker::new(),
            end,
        }))
    }

    /// Listens at an address; also again, after the network has crashed its host.
    ///
    /// # Errors
    /// The address is in use.
    pub fn start(&self, network: &SimNetwork, address: SocketAddr) -> io::Result<()> {
        let listening = network.listen(address)?;
        let this = self.clone();
        self.0.tasks.spawn(async move {
            this.0.end.run_until_cancelled(this.accept(listening)).await;
        });
        Ok(())
    }

    /// Loses all data, scripts and subscriptions, and ends all connections.
    pub fn restart(&self) {
        let mut state = self.lock();
        trace::note("store", &format!("restarts with {} connections", state.outboxes.len()));
        let now = Instant::now();
        state.model = Model::default();
        state.outboxes.clear();
        (state.frozen_until, state.loading_until) = (now, now);
        let run = std::mem::replace(&mut state.run, self.0.end.child_token());
        drop(state);
        run.cancel();
    }

    /// Does nothing for a time; what has arrived until then is done afterwards.
    pub fn freeze(&self, time: Duration) {
        trace::note("store", &format!("freezes for {time:?}"));
        self.lock().frozen_until = Instant::now() + time;
    }

    /// Refuses the commands for keys and scripts for a time, as a server that reads its data from
    /// its disk.
    pub fn loading(&self, time: Duration) {
        trace::note("store", &format!("loads for {time:?}"));
        self.lock().loading_until = Instant::now() + time;
    }

    /// Ends all faults but those of the network.
    pub fn heal(&self) {
        trace::note("store", "heals");
        let now = Instant::now();
        let mut state = self.lock();
        (state.frozen_until, state.loading_until) = (now, now);
    }

    /// Returns how many connections are open.
    pub fn connections(&self) -> usize {
        self.lock().outboxes.len()
    }

    /// Ends for ever: all connections, and all tasks.
    pub async fn end(&self) {
        trace::note("store", "ends");
        self.0.end.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves each connection in a task of its own.
    async fn accept(&self, listening: Listening) {
        while let Ok((stream, _)) = listening.accept().await {
            let (id, outbox, run) = self.connect();
            let this = self.clone();
            self.0.tasks.spawn(async move {
                run.run_until_cancelled(this.serve(id, stream, outbox)).await;
                this.disconnect(id);
            });
        }
    }

    fn connect(&self) -> (u64, mpsc::UnboundedReceiver<Bytes>, CancellationToken) {
        let (sender, outbox) = mpsc::unbounded_channel();
        let mut state = self.lock();
        state.connected += 1;
        let id = state.connected;
        state.model.connect(id);
        state.outboxes.insert(id, sender);
        (id, outbox, state.run.clone())
    }

    fn disconnect(&self, id: u64) {
        let mut state = self.lock();
        state.model.disconnect(id);
        state.outboxes.remove(&id);
    }

    /// Serves a connection until its peer closes it, or sends what is no request; what was answered
    /// before is sent.
    async fn serve(&self, id: u64, stream: Stream, mut outbox: mpsc::UnboundedReceiver<Bytes>) {
        let (mut input, mut output) = tokio::io::split(stream);
        let reading = async {
            if let Err(Malformed(why)) = self.read(id, &mut input).await {
                self.lock().send(id, &Reply::Error(format!("ERR Protocol error: {why}")));
            }
            self.disconnect(id);
            pending().await
        };
        let writing = async {
            while let Some(bytes) = outbox.recv().await {
                if output.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = reading => {}
            () = writing => {}
        }
    }

    /// Does what is asked, until no more bytes come.
    async fn read(&self, id: u64, input: &mut (impl AsyncRead + Unpin)) -> Result<(), Malformed> {
        let mut requests = Requests::default();
        let mut bytes = vec![0; 16 << 10];
        loop {
            let Ok(length @ 1..) = input.read(&mut bytes).await else {
                return Ok(());
            };
            requests.push(&bytes[..length]);
            while let Some(command) = requests.take()? {
                self.thaw().await;
                self.execute(id, &command);
            }
        }
    }

    /// Waits for the end of [`Self::freeze`].
    async fn thaw(&self) {
        loop {
            let until = self.lock().frozen_until;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }

    fn execute(&self, id: u64, command: &[Bytes]) {
        let now = (self.0.clock)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut state = self.lock();
        if Instant::now() < state.loading_until && !is_answered_while_loading(command) {
            let loading = "LOADING Redis is loading the dataset in memory";
            state.send(id, &Reply::Error(loading.to_owned()));
            return;
        }
        for (to, reply) in state.model.execute(now, id, command) {
            if let Reply::Error(error) = &reply {
                trace::note("store", &format!("refuses: {error}"));
            }
            state.send(to, &reply);
        }
    }
}

impl State {
    /// Sends a reply to a connection, if it is still open.
    fn send(&self, to: u64, reply: &Reply) {
        if let Some(outbox) = self.outboxes.get(&to) {
            // Its task may have ended just now.
            let _ = outbox.send(reply.encode());
        }
    }
}

fn is_answered_while_loading(command: &[Bytes]) -> bool {
    let is_named = |known: &&str| {
        command.first().is_some_and(|name| name.eq_ignore_ascii_case(known.as_bytes()))
    };
    WHILE_LOADING.iter().any(is_named)
}
