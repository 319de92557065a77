//! A vault that has a secret of each caller for each upstream.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::platform::network::Acceptor;
use bytes::Bytes;
use fastrand::Rng;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::time::sleep;

use crate::machine::network::SimNetwork;
use crate::machine::trace;

/// Where the gateway finds it.
pub const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 4, 0)), 8200);

/// Secrets are `secret-of-CALLER-for-UPSTREAM-ROTATION`.
const PREFIX: &str = "secret-of-";

#[derive(Clone)]
pub struct Vault(Arc<Mutex<State>>);

struct State {
    rng: Rng,
    /// The chances that a lookup fails, finds nothing, or takes seconds.
    mood: f64,
    rotation: u64,
    /// Whether secrets are valid for hours instead of seconds.
    leases_are_long: bool,
}

impl Vault {
    /// Listens at [`ADDRESS`].
    pub fn start(rng: Rng, network: &SimNetwork) -> Self {
        let this = Self(Arc::new(Mutex::new(State {
            rng,
            mood: 0.0,
            rotation: 0,
            leases_are_long: false,
        })));
        let listening = network.listen(ADDRESS).expect("it is free");
        let vault = this.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listening.accept().await {
                let vault = vault.clone();
                tokio::spawn(async move {
                    let service = service_fn(|request| vault.respond(request));
                    let serving =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    let _ = serving.await;
                });
            }
        });
        this
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the chance of each way to serve a lookup badly.
    pub fn set_mood(&self, mood: f64) {
        self.lock().mood = mood;
    }

    /// From now on all lookups succeed, and secrets are valid longer than any stream waits: a
    /// stream of a caller whose secret has expired hears of no change.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.mood = 0.0;
        state.leases_are_long = true;
    }

    /// Replaces all secrets. Those of before are accepted no longer.
    pub fn rotate(&self) {
        trace::note("vault", "has other secrets");
        self.lock().rotation += 1;
    }

    /// Returns the secret of a caller for an upstream.
    pub fn secret(&self, caller: &str, upstream: &str) -> String {
        format!("{PREFIX}{caller}-for-{upstream}-{}", self.lock().rotation)
    }

    /// Draws for how many seconds a secret is valid.
    pub fn lease(&self) -> u64 {
        let State { rng, leases_are_long, .. } = &mut *self.lock();
        if *leases_are_long { 36_000 } else { rng.u64(1..10) }
    }

    /// Whether an upstream accepts a secret.
    pub fn accepts(&self, secret: &str) -> bool {
        secret.ends_with(&format!("-{}", self.lock().rotation)) && secret.starts_with(PREFIX)
    }

    async fn respond(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let (pause, status, rotation, lease) = {
            let State { rng, mood, rotation, leases_are_long } = &mut *self.lock();
            let mut happens = || rng.f64() < *mood;
            let (is_slow, fails, finds_nothing) = (happens(), happens(), happens());
            let pause = if is_slow { rng.u64(100..4_000) } else { rng.u64(..5) };
            let status = if fails {
                503
            } else if finds_nothing {
                404
            } else {
                200
            };
            let lease = if *leases_are_long { 36_000 } else { rng.u64(1..10) };
            (Duration::from_millis(pause), status, *rotation, lease)
        };
        sleep(pause).await;
        let mut parts = request.uri().path().trim_start_matches("/v1/").split('/');
        let (upstream, caller) =
            (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        trace::note("vault", &format!("{caller} for {upstream}: {status}"));
        let body = match status {
            200 => json!({"token": format!("{PREFIX}{caller}-for-{upstream}-{rotation}"),
                "lease_duration": lease}),
            _ => json!({"errors": []}),
        };
        let response =
            Response::builder().status(status).header("Content-Type", "application/json");
        Ok(response.body(Full::from(body.to_string())).expect("a response"))
    }
}

/// Whose secret it is, whatever its rotation: `CALLER-for-UPSTREAM`.
pub fn owner(secret: &str) -> &str {
    let secret = secret.strip_prefix(PREFIX).unwrap_or(secret);
    secret.rsplit_once('-').map_or(secret, |(owner, _)| owner)
}
