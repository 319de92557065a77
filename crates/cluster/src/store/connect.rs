//! Opens a connection to one server of the store: TCP, TLS, and the handshake of RESP3.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, ProtocolVersion, RedisConnectionInfo, RedisError};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::push::PushSender;
use base::platform::platform;
use config::{Cluster, StoreCredential, StoreServer};
use net::tls;

/// Requests that wait to be written. More wait for room, within the time of one operation.
const QUEUE: usize = 1024;

/// Opens connections with the settings of `[cluster]`.
pub(super) struct StoreConnector {
    tls: TlsConnector,
    credential: Option<StoreCredential>,
    tasks: TaskTracker,
}

/// An open connection. Dropping it ends the connection.
pub(super) struct Opened {
    pub connection: MultiplexedConnection,
    /// Cancelled when the connection has ended.
    closed: CancellationToken,
    /// Operations that timed out, one after another.
    pub timeouts: AtomicU32,
}

impl Opened {
    /// Resolves when the connection has ended.
    pub(super) async fn ended(&self) {
        self.closed.cancelled().await;
    }

    /// Ends the connection, also for the operations that wait for an answer.
    pub(super) fn end(&self) {
        self.closed.cancel();
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.end();
    }
}

impl StoreConnector {
    pub(super) fn new(cluster: &Cluster, tasks: TaskTracker) -> Result<Self, String> {
        let tls = tls::client(cluster.ca.as_deref())?;
        let credential = cluster.credential.clone();
        Ok(Self { tls: TlsConnector::from(std::sync::Arc::new(tls)), credential, tasks })
    }

    /// Opens a connection, whose channel messages go to `pushes`. A Sentinel may have no password:
    /// if it refuses the configured credential, the connection is tried without a credential. A
    /// store that requires one refuses that, too.
    pub(super) async fn open(
        &self,
        server: &StoreServer,
        pushes: Option<PushSender>,
    ) -> Result<Opened, RedisError> {
        match self.open_as(server, self.credential.as_ref(), pushes.clone()).await {
            Err(error) if self.credential.is_some() && is_refusal(&error) => {
                self.open_as(server, None, pushes).await.map_err(|_| error)
            }
            opened => opened,
        }
    }

    async fn open_as(
        &self,
        server: &StoreServer,
        credential: Option<&StoreCredential>,
        pushes: Option<PushSender>,
    ) -> Result<Opened, RedisError> {
        let StoreServer { host, port, is_tls, database, .. } = server;
        let mut info = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_db(*database)
            .set_skip_set_lib_name();
        if let Some(StoreCredential { username, password }) = credential {
            info = info.set_password(password.expose());
            if let Some(username) = username {
                info = info.set_username(username);
            }
        }
        let tcp = platform().network.connect(host, *port).await?;
        if !is_tls {
            return self.handshake(&info, tcp, pushes).await;
        }
        let name = ServerName::try_from(host.clone()).map_err(std::io::Error::other)?;
        let stream = self.tls.connect(name, tcp).await?;
        self.handshake(&info, stream, pushes).await
    }

    async fn handshake(
        &self,
        info: &RedisConnectionInfo,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        pushes: Option<PushSender>,
    ) -> Result<Opened, RedisError> {
        // The time of each operation is bounded by the caller.
        let mut config =
            AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(QUEUE);
        if let Some(pushes) = pushes {
            config = config.set_push_sender(move |push| pushes.send(push));
        }
        let (connection, driver) =
            MultiplexedConnection::new_with_config(info, stream, config).await?;
        let closed = CancellationToken::new();
        let ended = closed.clone();
        self.tasks.spawn(async move {
            ended.run_until_cancelled(driver).await;
            ended.cancel();
        });
        Ok(Opened { connection, closed, timeouts: AtomicU32::new(0) })
    }
}

/// Whether a server refuses the credential, or has no authentication.
fn is_refusal(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM"))
        || error.to_string().contains("AUTH")
}

/// Time to find the store by way of one server, and to open a connection to it. No call waits for
/// this.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(3);
