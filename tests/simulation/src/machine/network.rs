//! A network in memory: hosts with addresses, connections whose bytes are split and delayed, and
//! faults.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use async_trait::async_trait;
use base::platform::network::{Acceptor, Connect, Connecting, Dialling, Network, Stream};
use bytes::{Buf, Bytes};
use fastrand::Rng;
use http::Uri;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::trace;

/// The network, shared by all hosts.
#[derive(Clone)]
pub struct SimNetwork(Arc<Mutex<Net>>);

struct Net {
    rng: Rng,
    listeners: BTreeMap<SocketAddr, mpsc::UnboundedSender<(Stream, SocketAddr)>>,
    hosts: BTreeMap<IpAddr, Host>,
    connections: BTreeMap<u64, Arc<Mutex<Connection>>>,
    opened: u64,
    next_port: u16,
}

/// The conditions for the traffic of a host.
#[derive(Clone, Copy, Debug)]
struct Host {
    /// The latency of one direction: at least, and at most.
    latency: (Duration, Duration),
    /// No byte from or to it arrives before.
    stalled_until: Instant,
    /// New connections from and to it are refused until then.
    refuses_until: Instant,
    /// It does not exist at present.
    is_down: bool,
}

/// One connection; side 0 has opened it.
struct Connection {
    id: u64,
    ends: [SocketAddr; 2],
    /// The bytes that each side has sent.
    sent: [Direction; 2],
    is_reset: bool,
    /// Whether the network has interfered with it.
    is_disturbed: bool,
}

/// The bytes on the way to one side.
#[derive(Default)]
struct Direction {
    segments: VecDeque<(Instant, Bytes)>,
    bytes: usize,
    window: usize,
    /// When the last segment arrives: none overtakes another.
    last: Option<Instant>,
    /// The sender has closed it, which arrives then.
    end: Option<Instant>,
    /// The receiver reads no more.
    is_abandoned: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// One side of a connection.
pub struct SimSocket {
    net: SimNetwork,
    connection: Arc<Mutex<Connection>>,
    side: usize,
    timer: Pin<Box<Sleep>>,
}

/// The chance that an operation that could go on is put off, so that tasks run in another order.
const YIELD: f64 = 0.05;

/// The largest piece in which bytes arrive.
const SEGMENT: usize = 16 << 10;

impl SimNetwork {
    pub fn new(rng: Rng) -> Self {
        Self(Arc::new(Mutex::new(Net {
            rng,
            listeners: BTreeMap::new(),
            hosts: BTreeMap::new(),
            connections: BTreeMap::new(),
            opened: 0,
            next_port: 40_000,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Net> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the latency of a host.
    pub fn set_latency(&self, host: IpAddr, latency: (Duration, Duration)) {
        self.lock().host(host).latency = latency;
    }

    /// Lets nothing from or to a host arrive for a time.
    pub fn stall(&self, host: IpAddr, time: Duration) {
        trace::note("network", &format!("{host} stalls for {time:?}"));
        let mut net = self.lock();
        net.host(host).stalled_until = Instant::now() + time;
        net.disturb(host);
    }

    /// Refuses new connections from and to a host for a time.
    pub fn refuse(&self, host: IpAddr, time: Duration) {
        trace::note("network", &format!("{host} refuses for {time:?}"));
        let mut net = self.lock();
        net.host(host).refuses_until = Instant::now() + time;
        net.disturb(host);
    }

    /// Resets one connection of a host, chosen by the seed.
    pub fn reset_one(&self, host: IpAddr) {
        let mut net = self.lock();
        let open: Vec<_> = net.connections_of(host).collect();
        if open.is_empty() {
            return;
        }
        let chosen = net.rng.usize(..open.len());
        open[chosen].lock().unwrap_or_else(PoisonError::into_inner).reset();
    }

    /// Takes a host off the network: its connections are reset and its listeners are gone.
    pub fn crash(&self, host: IpAddr) {
        trace::note("network", &format!("{host} is gone"));
        let mut net = self.lock();
        net.host(host).is_down = true;
        net.listeners.retain(|address, _| address.ip() != host);
        for connection in net.connections_of(host).collect::<Vec<_>>() {
            connection.lock().unwrap_or_else(PoisonError::into_inner).reset();
        }
    }

    /// Puts a host back on the network.
    pub fn restart(&self, host: IpAddr) {
        trace::note("network", &format!("{host} is back"));
        self.lock().host(host).is_down = false;
    }

    /// Ends the faults of all hosts.
    pub fn heal(&self) {
        trace::note("network", "heals");
        let now = Instant::now();
        for host in self.lock().hosts.values_mut() {
            *host = Host { stalled_until: now, refuses_until: now, is_down: false, ..*host };
        }
    }

    /// Returns how many connections of a host are open.
    pub fn open(&self, host: IpAddr) -> usize {
        self.lock().connections_of(host).count()
    }

    /// Listens at an address.
    pub fn listen(&self, address: SocketAddr) -> io::Result<Listening> {
        let mut net = self.lock();
        let (sender, arrivals) = mpsc::unbounded_channel();
        if net.listeners.get(&address).is_some_and(|listener| !listener.is_closed()) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        net.host(address.ip());
        net.listeners.insert(address, sender);
        Ok(Listening { address, arrivals: tokio::sync::Mutex::new(arrivals) })
    }

    /// Opens a connection from a host.
    pub async fn dial(&self, from: IpAddr, to: SocketAddr) -> io::Result<SimSocket> {
        let latency = {
            let mut net = self.lock();
            net.host(from);
            net.host(to.ip());
            net.latency(from, to.ip())
        };
        sleep(latency).await;
        let mut net = self.lock();
        let now = Instant::now();
        let refuses = |host: &Host| host.is_down || now < host.refuses_until;
        if refuses(&net.hosts[&from]) || refuses(&net.hosts[&to.ip()]) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let is_disturbed = [from, to.ip()].iter().any(|host| now < net.hosts[host].stalled_until);
        let Some(listener) = net.listeners.get(&to).cloned() else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        net.next_port = net.next_port.checked_add(1).unwrap_or(40_000);
        let peer = SocketAddr::new(from, net.next_port);
        net.opened += 1;
        let id = net.opened;
        let mut direction = || {
            let window = net.rng.usize(4 << 10..64 << 10);
            Direction { window, ..Direction::default() }
        };
        let sent = [direction(), direction()];
        let connection = Arc::new(Mutex::new(Connection {
            id,
            ends: [peer, to],
            sent,
            is_reset: false,
            is_disturbed,
        }));
        net.connections.insert(id, connection.clone());
        drop(net);
        let socket = |side| SimSocket {
            net: self.clone(),
            connection: connection.clone(),
            side,
            timer: Box::pin(sleep_until(now)),
        };
        match listener.send((Stream::new(socket(1)), peer)) {
            Ok(()) => {
                trace::note("network", &format!("connection {id}: {peer} to {to}"));
                Ok(socket(0))
            }
            Err(_) => {
                self.lock().connections.remove(&id);
                Err(io::ErrorKind::ConnectionRefused.into())
            }
        }
    }

    /// Whether an operation is put off, by the seed.
    fn yields(&self) -> bool {
        self.lock().rng.f64() < YIELD
    }
}

impl Net {
    fn host(&mut self, host: IpAddr) -> &mut Host {
        let now = Instant::now();
        self.hosts.entry(host).or_insert(Host {
            latency: (Duration::from_micros(50), Duration::from_millis(2)),
            stalled_until: now,
            refuses_until: now,
            is_down: false,
        })
    }

    fn latency(&mut self, a: IpAddr, b: IpAddr) -> Duration {
        let slower = self.hosts[&a].latency.max(self.hosts[&b].latency);
        let (least, most) = slower;
        least + (most - least).mul_f64(self.rng.f64())
    }

    fn connections_of(&self, host: IpAddr) -> impl Iterator<Item = Arc<Mutex<Connection>>> {
        let is_end = move |connection: &&Arc<Mutex<Connection>>| {
            let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            connection.ends.iter().any(|end| end.ip() == host)
        };
        self.connections.values().filter(is_end).cloned()
    }

    fn disturb(&mut self, host: IpAddr) {
        for connection in self.connections_of(host) {
            connection.lock().unwrap_or_else(PoisonError::into_inner).is_disturbed = true;
        }
    }
}

impl Connection {
    fn reset(&mut self) {
        if !self.is_reset {
            trace::note("network", &format!("connection {}: reset", self.id));
        }
        self.is_reset = true;
        self.is_disturbed = true;
        for direction in &mut self.sent {
            direction.wake();
        }
    }
}

fn wake(waiting: &mut Option<Waker>) {
    if let Some(waker) = waiting.take() {
        waker.wake();
    }
}

impl Direction {
    fn wake(&mut self) {
        wake(&mut self.reader);
        wake(&mut self.writer);
    }
}

impl SimSocket {
    /// Whether the network has interfered with the connection.
    pub fn observer(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let connection = self.connection.clone();
        move || connection.lock().unwrap_or_else(PoisonError::into_inner).is_disturbed
    }

    fn put_off(&self, context: &Context<'_>) -> bool {
        let yields = self.net.yields();
        if yields {
            context.waker().wake_by_ref();
        }
        yields
    }
}

impl AsyncRead for SimSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.put_off(context) {
            return Poll::Pending;
        }
        loop {
            let wait = {
                let mut connection = this.connection.lock().unwrap_or_else(PoisonError::into_inner);
                if connection.is_reset {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                }
                let now = Instant::now();
                let incoming = &mut connection.sent[1 - this.side];
                incoming.reader = Some(context.waker().clone());
                match incoming.segments.front_mut() {
                    Some((at, bytes)) if *at <= now => {
                        let length = bytes.len().min(buffer.remaining());
                        buffer.put_slice(&bytes[..length]);
                        bytes.advance(length);
                        if bytes.is_empty() {
                            incoming.segments.pop_front();
                        }
                        incoming.bytes -= length;
                        wake(&mut incoming.writer);
                        return Poll::Ready(Ok(()));
                    }
                    Some((at, _)) => Some(*at),
                    None => match incoming.end {
                        Some(end) if end <= now => return Poll::Ready(Ok(())),
                        end => end,
                    },
                }
            };
            let Some(at) = wait else { return Poll::Pending };
            this.timer.as_mut().reset(at);
            ready!(this.timer.as_mut().poll(context));
        }
    }
}

impl AsyncWrite for SimSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.put_off(context) {
            return Poll::Pending;
        }
        let mut net = self.net.lock();
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if connection.is_reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let [a, b] = connection.ends;
        let latency = net.latency(a.ip(), b.ip());
        let stalled = net.hosts[&a.ip()].stalled_until.max(net.hosts[&b.ip()].stalled_until);
        let outgoing = &mut connection.sent[self.side];
        if outgoing.is_abandoned || outgoing.end.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = outgoing.window.saturating_sub(outgoing.bytes);
        if room == 0 {
            outgoing.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let most = bytes.len().min(room).min(SEGMENT);
        let length = if net.rng.u8(..) < 32 { net.rng.usize(..most) + 1 } else { most };
        let at = (Instant::now() + latency).max(stalled);
        let at = outgoing.last.map_or(at, |last| last.max(at));
        outgoing.last = Some(at);
        outgoing.segments.push_back((at, Bytes::copy_from_slice(&bytes[..length])));
        outgoing.bytes += length;
        wake(&mut outgoing.reader);
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.close();
        Poll::Ready(Ok(()))
    }
}

impl SimSocket {
    /// Sends the end of this direction.
    fn close(&self) {
        let mut net = self.net.lock();
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let [a, b] = connection.ends;
        let latency = net.latency(a.ip(), b.ip());
        let outgoing = &mut connection.sent[self.side];
        if outgoing.end.is_none() {
            let at = Instant::now() + latency;
            outgoing.end = Some(outgoing.last.map_or(at, |last| last.max(at)));
            outgoing.wake();
        }
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        self.close();
        let id = {
            let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
            let incoming = &mut connection.sent[1 - self.side];
            incoming.is_abandoned = true;
            incoming.wake();
            let is_over = connection.sent.iter().all(|direction| direction.is_abandoned);
            is_over.then_some(connection.id)
        };
        if let Some(id) = id {
            trace::note("network", &format!("connection {id}: closed"));
            self.net.lock().connections.remove(&id);
        }
    }
}

/// A socket that listens.
pub struct Listening {
    address: SocketAddr,
    arrivals: tokio::sync::Mutex<mpsc::UnboundedReceiver<(Stream, SocketAddr)>>,
}

#[async_trait]
impl Acceptor for Listening {
    fn address(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match self.arrivals.lock().await.recv().await {
            Some(arrival) => Ok(arrival),
            // The host has crashed.
            None => std::future::pending().await,
        }
    }
}

/// The network as one host sees it.
pub struct HostNetwork {
    pub network: SimNetwork,
    pub host: IpAddr,
}

#[async_trait]
impl Network for HostNetwork {
    async fn bind(&self, address: SocketAddr) -> io::Result<Box<dyn Acceptor>> {
        Ok(Box::new(self.network.listen(address)?))
    }

    async fn connect(&self, host: &str, port: u16) -> io::Result<Stream> {
        let to = SocketAddr::new(resolve(host)?, port);
        Ok(Stream::new(self.network.dial(self.host, to).await?))
    }

    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(vec![SocketAddr::new(resolve(host)?, port)])
    }

    fn http(&self, dialling: Dialling) -> Arc<dyn Connect> {
        Arc::new(HttpDialler { network: self.network.clone(), host: self.host, dialling })
    }
}

#[derive(Clone)]
struct HttpDialler {
    network: SimNetwork,
    host: IpAddr,
    dialling: Dialling,
}

impl Connect for HttpDialler {
    fn connect(&self, url: Uri) -> Connecting {
        let Self { network, host, dialling } = self.clone();
        Box::pin(async move {
            let to = resolve(url.host().unwrap_or_default())?;
            dialling.check(to)?;
            let to = SocketAddr::new(to, url.port_u16().unwrap_or(80));
            let dialled = tokio::time::timeout(dialling.timeout, network.dial(host, to)).await;
            let socket = dialled.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            Ok(Stream::new(socket))
        })
    }
}

/// The address of a name: hosts are named by their addresses.
fn resolve(host: &str) -> io::Result<IpAddr> {
    let address = host.parse::<Ipv4Addr>();
    address.map(IpAddr::V4).map_err(|_| io::Error::new(io::ErrorKind::NotFound, "no such host"))
}
