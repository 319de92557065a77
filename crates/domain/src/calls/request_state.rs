//! The codec of `requestState` (MCP 2026-07-28, multi-round-trip requests): the state of a
//! `prompts/get` that the client holds between rounds of server requests. `seal` makes it
//! unforgeable and binds it to its endpoint.

use std::time::Duration;

use crate::text::token_fields::{TokenFields, write};
use crate::time::unix_time::UnixSeconds;

/// The state of one `prompts/get`, with its owner.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RequestState {
    pub owner: StateOwner,
    pub issued_at: UnixSeconds,
    /// The number of rounds of server requests so far.
    pub rounds: u8,
    pub progress: GetProgress,
}

/// The call that a state belongs to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StateOwner {
    /// The id of the caller.
    pub caller: String,
    /// The public name of the prompt.
    pub name: String,
    /// The id of the upstream that owns the prompt.
    pub upstream: String,
    /// The digest of the arguments (SHA-256).
    pub arguments: [u8; 32],
}

/// The way in which the `prompts/get` continues.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum GetProgress {
    /// The upstream continues, with the `requestState` that it returned, if any.
    Upstream(Option<String>),
    /// The gateway repeats the request and answers the earlier server requests from this replay.
    Replay(Replay),
}

/// The answers so far, for a legacy upstream, which keeps no state of a call between attempts.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Replay {
    /// The digest of each answered server request, with its answer as JSON text, in order.
    pub answers: Vec<([u8; 32], String)>,
    /// The digest of the last server request, which has no answer yet.
    pub open: Option<[u8; 32]>,
    /// The id of the suspended call that waits for its answer, on the replica that sent the server
    /// request.
    pub suspended: Option<[u8; 16]>,
}

/// The lifetime of a state, 15 minutes: the time that a user may take to answer a server request.
const LIFETIME: Duration = Duration::from_secs(15 * 60);

impl RequestState {
    /// Encodes the state: integers in big-endian order, texts after their length in four bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.rounds];
        out.extend_from_slice(&self.issued_at.to_be_bytes());
        out.extend_from_slice(&self.owner.arguments);
        for text in [&self.owner.caller, &self.owner.name, &self.owner.upstream] {
            write(text, &mut out);
        }
        match &self.progress {
            GetProgress::Upstream(state) => {
                out.push(0);
                out.push(state.is_some().into());
                write(state.as_deref().unwrap_or_default(), &mut out);
            }
            GetProgress::Replay(Replay { answers, open, suspended }) => {
                out.push(1);
                out.push(answers.len() as u8);
                for (digest, answer) in answers {
                    out.extend_from_slice(digest);
                    write(answer, &mut out);
                }
                out.push(open.is_some().into());
                out.extend(open.iter().flatten());
                out.push(suspended.is_some().into());
                out.extend(suspended.iter().flatten());
            }
        }
        out
    }

    /// Decodes the bytes that [`RequestState::encode`] returned; `None` for any other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = TokenFields(bytes);
        let rounds = rest.byte()?;
        let issued_at = UnixSeconds::from_be_bytes(rest.chunk()?);
        let arguments = rest.chunk()?;
        let caller = rest.text()?;
        let name = rest.text()?;
        let upstream = rest.text()?;
        let progress = match rest.byte()? {
            0 => {
                let is_present = rest.flag()?;
                let state = rest.text()?;
                if !is_present && !state.is_empty() {
                    return None;
                }
                GetProgress::Upstream(is_present.then_some(state))
            }
            1 => {
                let mut answers = Vec::new();
                for _ in 0..rest.byte()? {
                    answers.push((rest.chunk()?, rest.text()?));
                }
                let open = if rest.flag()? { Some(rest.chunk()?) } else { None };
                let suspended = if rest.flag()? { Some(rest.chunk()?) } else { None };
                GetProgress::Replay(Replay { answers, open, suspended })
            }
            _ => return None,
        };
        let owner = StateOwner { caller, name, upstream, arguments };
        rest.0.is_empty().then_some(Self { owner, issued_at, rounds, progress })
    }

    /// Returns whether the state has not expired at `now`. A state from the future, as after the
    /// clock was set back, is fresh.
    pub fn is_fresh(&self, now: UnixSeconds) -> bool {
        now.saturating_since(self.issued_at) <= LIFETIME
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn state() -> impl Strategy<Value = RequestState> {
        let replay = (
            prop::collection::vec((any::<[u8; 32]>(), ".{0,20}"), 0..4),
            any::<Option<[u8; 32]>>(),
            any::<Option<[u8; 16]>>(),
        );
        let progress = prop_oneof![
            any::<Option<String>>().prop_map(GetProgress::Upstream),
            replay.prop_map(|(answers, open, suspended)| GetProgress::Replay(Replay {
                answers,
                open,
                suspended
            })),
        ];
        (".{0,9}", ".{1,40}", any::<[u8; 32]>(), any::<u64>(), any::<u8>(), progress).prop_map(
            |(caller, name, arguments, issued_at, rounds, progress)| {
                let upstream = "up".to_owned();
                let owner = StateOwner { caller, name, upstream, arguments };
                let issued_at = UnixSeconds(issued_at);
                RequestState { owner, issued_at, rounds, progress }
            },
        )
    }

    proptest! {
        #[test]
        fn encoded_states_decode_to_the_same_state(state in state()) {
            prop_assert_eq!(RequestState::decode(&state.encode()), Some(state));
        }

        #[test]
        fn truncated_or_padded_bytes_are_refused(state in state(), cut in 1usize..40) {
            let bytes = state.encode();
            prop_assert_eq!(RequestState::decode(&bytes[..bytes.len().saturating_sub(cut)]), None);
            prop_assert_eq!(RequestState::decode(&[&bytes[..], b"x"].concat()), None);
        }
    }

    #[test]
    fn a9_a_state_is_fresh_for_a_quarter_of_an_hour() {
        let owner = StateOwner {
            caller: String::new(),
            name: String::new(),
            upstream: String::new(),
            arguments: [0; 32],
        };
        let progress = GetProgress::Upstream(None);
        let state = RequestState { owner, issued_at: UnixSeconds(1_000), rounds: 1, progress };
        assert!(state.is_fresh(UnixSeconds(900)));
        assert!(state.is_fresh(UnixSeconds(1_000 + LIFETIME.as_secs())));
        assert!(!state.is_fresh(UnixSeconds(1_001 + LIFETIME.as_secs())));
    }

    #[test]
    fn states_of_earlier_releases_decode() {
        let owner = StateOwner {
            caller: "ada".to_owned(),
            name: "team__review".to_owned(),
            upstream: "team".to_owned(),
            arguments: [1; 32],
        };
        let replay = Replay {
            answers: vec![([2; 32], "{}".to_owned())],
            open: Some([3; 32]),
            suspended: None,
        };
        let progress = GetProgress::Replay(replay);
        let state = RequestState { owner, issued_at: UnixSeconds(7), rounds: 2, progress };
        let bytes = include_bytes!("../../../../tests/formats/state-1");
        assert_eq!(RequestState::decode(bytes), Some(state));
    }
}
