//! Results that were checked before: the same result of the same call is not checked again.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::{Cache, DefaultLifecycle};

use super::RoutedCall;
use super::reply::{self, Flags, Origin, PromptReply};
use super::view_cache::options;
use base::seal::last_digest::{LastDigest, MAX_KEPT};
use config::Transport;
use domain::document::Document;
use domain::fault::Fault;
use domain::hidden_text::HiddenText;
use domain::known_response::KnownResponse;

/// The last result of each call; the least recently used are forgotten, and are then checked again.
pub(super) struct KnownResults {
    results: Cache<u64, Arc<KnownResult>, Size>,
    keys: RandomState,
}

/// A result that was checked.
pub(super) struct KnownResult {
    response: KnownResponse,
    /// The policy under which it was checked.
    mode: HiddenText,
    /// The result as it is passed on, with its warnings.
    checked: Document,
    flags: Flags,
    digest: Arc<LastDigest>,
}

/// The known result of a call, recalled before the request is sent.
#[derive(Default)]
pub(super) struct Recalled {
    /// `None` for a call whose result is not to be remembered.
    key: Option<u64>,
    result: Option<Arc<KnownResult>>,
}

/// Memory for results, in bytes: thousands of usual ones, and a few of a mebibyte.
const MEMORY: u64 = 8 << 20;

/// Bytes of the arguments, as JSON, up to which results are remembered: longer ones hardly come
/// twice.
const MAX_ARGUMENTS: usize = 1_024;

#[derive(Clone)]
struct Size;

impl Weighter<u64, Arc<KnownResult>> for Size {
    fn weight(&self, _: &u64, known: &Arc<KnownResult>) -> u64 {
        let received = known.response.result();
        let is_changed = !known.checked.is_same(received);
        let changed = if is_changed { known.checked.size() } else { 0 };
        // Of the sent text, only that of a long result is kept with its digest.
        let sent = if received.size() < MAX_KEPT { 0 } else { MAX_KEPT };
        (size_of::<KnownResult>() + received.size() + changed + sent) as u64
    }
}

impl Default for KnownResults {
    fn default() -> Self {
        let (hashers, lifecycle) = (<_>::default(), DefaultLifecycle::default());
        let results = Cache::with_options(options(MEMORY), Size, hashers, lifecycle);
        Self { results, keys: RandomState::new() }
    }
}

impl Recalled {
    /// The response that the upstream may send again.
    pub(super) fn response(&self) -> Option<&KnownResponse> {
        self.result.as_ref().map(|known| &known.response)
    }
}

impl KnownResults {
    /// Returns the known result of a call with these arguments.
    pub(super) fn recall(&self, routed: &RoutedCall<'_>, arguments: Option<&Document>) -> Recalled {
        let RoutedCall { owner, upstream, .. } = routed;
        // Only Streamable HTTP compares responses, not HTTP+SSE, which an upstream may have fallen
        // back to.
        let is_compared = || {
            matches!(upstream.config().transport, Transport::Http(_))
                && upstream.negotiated().is_some_and(|negotiated| !negotiated.is_shared)
        };
        let arguments = arguments.map_or("", |arguments| arguments.json().text());
        if arguments.len() > MAX_ARGUMENTS || !is_compared() {
            return Recalled::default();
        }
        // Calls with the same key only evict each other's results: a result is known by its bytes,
        // not by its key.
        let key = self.keys.hash_one((owner.upstream.as_str(), &*owner.raw_name, arguments));
        Recalled { key: Some(key), result: self.results.get(&key) }
    }

    /// Checks a result as [`reply::prompt`] does, unless it is the one that was recalled.
    ///
    /// # Errors
    /// As [`reply::prompt`].
    pub(super) fn check(
        &self,
        recalled: &Recalled,
        result: Document,
        origin: Origin,
        mode: HiddenText,
    ) -> Result<PromptReply, Fault> {
        if let Some(known) = &recalled.result
            && known.mode == mode
            && known.response.result().is_same(&result)
        {
            let (flags, last_digest) = (known.flags.clone(), Some(known.digest.clone()));
            let checked = PromptReply::of(known.checked.clone(), origin);
            return Ok(PromptReply { flags, last_digest, ..checked });
        }
        let received = result.clone();
        let prompt = reply::prompt(result, origin, mode)?;
        if let (Some(key), Some(response)) = (recalled.key, KnownResponse::of(&received)) {
            let (checked, flags) = (prompt.result.clone(), prompt.flags.clone());
            let digest = Arc::default();
            let known = KnownResult { response, mode, checked, flags, digest };
            self.results.insert(key, Arc::new(known));
        }
        Ok(prompt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::name::UpstreamId;

    fn result(text: &str) -> Document {
        let response = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{text}}}"#);
        let mut response = Document::parse(response.into_bytes(), 16).unwrap();
        response.narrow(|json| json.get("result")).unwrap();
        response
    }

    /// Checks a result under the key 1. Returns whether it is the one that is known, and whether it
    /// is passed on unchanged.
    fn check(results: &KnownResults, result: Document, mode: HiddenText) -> (bool, bool) {
        let recalled = Recalled { key: Some(1), result: results.results.get(&1) };
        let upstream = UpstreamId::parse("a").unwrap();
        let origin = Origin { upstream, digest: "".into(), name: "".into() };
        let reply = results.check(&recalled, result.clone(), origin, mode).unwrap();
        (reply.last_digest.is_some(), reply.result.is_same(&result))
    }

    #[test]
    fn only_the_result_that_was_recognized_is_not_checked_again_and_only_under_the_same_policy() {
        let results = KnownResults::default();
        let text = r#"{"messages":[{"role":"user","content":{"type":"text","text":"a"}}]}"#;
        let (first, second) = (result(text), result(text));
        assert_eq!(check(&results, first.clone(), HiddenText::Flag), (false, true));
        assert_eq!(check(&results, first.clone(), HiddenText::Flag), (true, true));
        assert_eq!(check(&results, first.clone(), HiddenText::Reject), (false, true));
        assert_eq!(check(&results, first.clone(), HiddenText::Reject), (true, true));
        assert_eq!(check(&results, second.clone(), HiddenText::Reject), (false, true));
        assert_eq!(check(&results, second, HiddenText::Reject), (true, true));
        assert_eq!(check(&results, first, HiddenText::Reject), (false, true));
    }
}
