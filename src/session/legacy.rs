//! Legacy clients (2024-11-05 to 2025-11-25): the handshake, sealed sessions, and the stream of
//! notices that a session may open.

use tokio::time::Instant;
use tracing::debug;

use super::dialect::{Dialect, result_message};
use super::headers::Headers;
use super::notices::{Audience, EventIds, Notices};
use super::token::{Nonce, Token};
use super::{Fallen, Incoming, Refusal, Sessions, Turn, is_modern_version};
use crate::domain::caller::Caller;
use crate::domain::fault::{Fault, RequestFault, TransportFault};
use crate::domain::json::Json;
use crate::domain::jsonrpc::Id;
use crate::domain::method::{CANCELLED, INITIALIZE, PING};
use crate::domain::revision::Revision;

impl Sessions {
    /// Ends a session (legacy DELETE).
    pub fn end(
        &self,
        headers: &Headers<'_>,
        caller: &Caller,
        endpoint: &str,
        now_secs: u64,
    ) -> Result<(), Refusal> {
        let dialect = self.dialect_of(headers, endpoint);
        let ended = match is_modern_version(headers) {
            true => Err(TransportFault::MethodNotAllowed { allow: "POST" }.into()),
            false => self.session(headers, caller, endpoint, now_secs),
        };
        let token = ended.map_err(|fault| Refusal { fault, id: None, dialect })?;
        self.ended.insert(token.nonce);
        Ok(())
    }

    /// Opens the notification stream of a session (legacy GET). `last_event` is the id of the last
    /// event that its client saw.
    pub fn open_stream(
        &self,
        headers: &Headers<'_>,
        last_event: Option<&str>,
        caller: &Caller,
        endpoint: &str,
        now_secs: u64,
    ) -> Result<Notices, Refusal> {
        let opened = match is_modern_version(headers) {
            true => Err(TransportFault::MethodNotAllowed { allow: "POST" }.into()),
            false => self.session(headers, caller, endpoint, now_secs),
        };
        let dialect = self.dialect_of(headers, endpoint);
        let token = opened.map_err(|fault| Refusal { fault, id: None, dialect })?;
        let audience = Audience::Session {
            ids: EventIds::new(self.sealer.clone(), endpoint),
            place: self.streams.open(token.nonce),
            nonce: token.nonce,
            ended: self.ended.clone(),
        };
        let known = last_event.and_then(|id| EventIds::digest(&self.sealer, endpoint, id));
        let lifetime = Some(self.limits.stream_lifetime).filter(|l| !l.is_zero());
        let ends_at = lifetime.map(|lifetime| Instant::now() + lifetime);
        let (changes, drain) = (self.router.changes(), self.drain.clone());
        let dialect = Dialect::new(token.revision);
        Ok(Notices::new(changes, known, dialect, audience, drain, ends_at))
    }

    pub(super) fn legacy(&self, incoming: &Incoming<'_>, id: Option<Id>) -> Result<Turn, Fallen> {
        if incoming.method == INITIALIZE {
            return self.initialize(incoming, id);
        }
        let Incoming { headers, caller, endpoint, now_secs, .. } = incoming;
        let token = self.session(headers, caller, endpoint, *now_secs);
        let token = token.map_err(|fault| (fault, incoming.guess))?;
        let dialect = Dialect::new(token.revision);
        let version = headers.version;
        if !version.is_absent() && version.value().and_then(Revision::parse).is_none() {
            return Err((RequestFault::LegacyVersionUnknown.into(), dialect));
        }
        let Some(id) = id else {
            if incoming.method == CANCELLED {
                self.cancel(token.nonce, incoming.params);
            }
            return Ok(Turn::Accepted);
        };
        match incoming.method == PING {
            true => Ok(Turn::Answer { message: result_message(&id, "{}"), session: None }),
            false => self.pending(incoming, id, dialect, Some(token.nonce)),
        }
    }

    fn initialize(&self, incoming: &Incoming<'_>, id: Option<Id>) -> Result<Turn, Fallen> {
        let Some(id) = id else {
            return Ok(Turn::Accepted);
        };
        let member = |name| incoming.params.and_then(|p| p.get(name));
        let Some(requested) = member("protocolVersion").and_then(Json::as_str) else {
            let fault = Fault::invalid_params("`protocolVersion` must be a string");
            return Err((fault, Dialect::new(Revision::NEWEST_LEGACY)));
        };
        let revision = Revision::negotiate_legacy(&requested);
        let token = Token::new(revision, &incoming.caller, incoming.now_secs);
        debug!(%revision, requested = requested.escape_debug().to_string(), "session opened");
        Ok(Turn::Answer {
            message: result_message(&id, &Dialect::new(revision).initialize(&self.identity)),
            session: Some(token.seal(&self.sealer, incoming.endpoint)),
        })
    }

    /// The session that the headers name, if it is the caller's and alive.
    pub(super) fn session(
        &self,
        headers: &Headers<'_>,
        caller: &Caller,
        endpoint: &str,
        now_secs: u64,
    ) -> Result<Token, Fault> {
        if headers.session.is_absent() {
            return Err(TransportFault::SessionRequired.into());
        }
        let id = headers.session.value();
        let token = id.and_then(|id| Token::open(&self.sealer, endpoint, id)).filter(|token| {
            token.caller == caller.id()
                && now_secs.saturating_sub(token.issued_at)
                    <= self.limits.session_lifetime.as_secs()
                && !self.ended.contains(&token.nonce)
        });
        token.ok_or_else(|| TransportFault::SessionUnknown.into())
    }

    fn cancel(&self, session: Nonce, params: Option<Json<'_>>) {
        if let Some(id) = params.and_then(|p| p.get("requestId")).and_then(Id::read) {
            self.running.cancel(session, id);
        }
    }
}
