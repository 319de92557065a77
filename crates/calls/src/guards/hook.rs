//! The hook of a guard: a server of the operator decides on a document.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::time::{Instant, timeout};

use base::seal::{self, hex::hex};
use config::{Breaker, GuardHook};
use domain::calls::fair_share::{Holder, Share};
use domain::fault::UpstreamFaultKind as Kind;
use domain::guards::hook_answer::{MAX_ANSWER, decision};
use domain::guards::text_guard::{Decision, Texts};
use domain::json::document::Document;
use domain::json::object::write_members;
use net::egress::{Egress, FetchError, read_body};
use net::webhook::{client, signed};
use upstream::guard::circuit_breaker::CircuitBreaker;
use upstream::guard::concurrency::ConcurrencyLimit;
use upstream::guard::large_texts::work_on;

/// The client of one hook.
pub(super) struct HookClient {
    /// The members of each message that name the gateway and the guard.
    sender: String,
    hook: GuardHook,
    egress: Result<Egress, String>,
    places: Arc<ConcurrencyLimit>,
    breaker: Arc<CircuitBreaker>,
}

/// Most requests at a time: a hook of 300 ms then answers 200 calls a second. With texts of
/// [`MAX_SENT`] they take 128 MiB.
const PLACES: usize = 64;

/// Most calls that wait for a place: as many as such a hook answers within the default timeout.
const QUEUE: usize = 400;

/// Largest text that is sent, in bytes.
const MAX_SENT: usize = 1 << 20;

impl HookClient {
    pub(super) fn new(guard: &str, hook: &GuardHook, share: Share) -> Self {
        let places = ConcurrencyLimit::new(PLACES, QUEUE, hook.timeout);
        places.set_share(share);
        let breaker = CircuitBreaker::new(&format!("guards.{guard}"), Breaker::default(), false);
        let egress = client(&hook.webhook, PLACES);
        let mut sender = String::new();
        write_members(&mut sender, |out| {
            out.text("gateway", &hook.webhook.gateway).text("guard", guard);
        });
        Self { sender, hook: hook.clone(), egress, places, breaker }
    }

    /// Whether texts on which the hook does not decide are refused.
    pub(super) fn refuses_on_failure(&self) -> bool {
        self.hook.refuses_on_failure
    }

    /// Asks the hook to decide on a document. `about` has the members of the message that describe
    /// the call, which holds no permit of an upstream meanwhile.
    ///
    /// # Errors
    /// Why there is no decision, without texts of the document and of the answer.
    pub(super) async fn ask(
        &self,
        about: &str,
        texts: Texts,
        holder: &Holder,
        document: &Document,
    ) -> Result<Decision, String> {
        let size = document.json().text().len();
        if size > MAX_SENT {
            return Err("the text is larger than 1 MiB".to_owned());
        }
        let place = self.places.acquire(holder).await;
        let _place = place.map_err(|_| "too many requests wait for the hook")?;
        let id = format!("msg_{}", hex(&seal::random::<16>()));
        // Each message counts as another prompt: a guard may examine a single one.
        let permit = self.breaker.admit(holder, &id, Instant::now());
        let permit = permit.map_err(|open| open.diagnosis())?;
        let webhook = self.hook.webhook.clone();
        let about = format!("{},{about}", self.sender);
        let member = if texts == Texts::Arguments { "arguments" } else { "result" };
        let sent = document.clone();
        let compose = move || {
            let text = sent.json().text();
            let digest = seal::sha256_text(text.as_bytes());
            let body = format!(r#"{{{about},"digest":"{digest}","{member}":{text}}}"#);
            signed(&webhook, &id, body)
        };
        let request = work_on(size, holder, compose).await?;
        let answer = timeout(self.hook.timeout, self.post(request)).await;
        let answer = answer.unwrap_or(Err(FetchError::Timeout));
        permit.end(answer.as_ref().err().map(|_| &Kind::Timeout), Instant::now());
        let answer = answer.map_err(|error| match error {
            // The rest of the answer may repeat the text.
            FetchError::Status { status, .. } => format!("HTTP {}", status.as_u16()),
            other => other.to_string(),
        })?;
        let sent = document.clone();
        let read = move || decision(answer.into(), &sent, texts);
        Ok(work_on(size, holder, read).await?)
    }

    /// Sends a request, and once more if the connection ends before the answer begins, as one that
    /// the hook closes while it is idle.
    async fn post(&self, request: Request<Full<Bytes>>) -> Result<Bytes, FetchError> {
        let egress = self.egress.as_ref().map_err(|error| FetchError::Broken(error.clone()))?;
        let mut response = egress.send(request.clone()).await;
        if let Err(Kind::Reset(_)) = response {
            response = egress.send(request).await;
        }
        let response = response.map_err(|kind| FetchError::Broken(kind.diagnosis()))?;
        read_body(response, MAX_ANSWER).await
    }
}
