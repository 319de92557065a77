//! Messages between replicas. They are sealed for their recipient with the key that the replicas
//! share: a party that controls the store can neither read nor forge one.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::ReplicaId;
use base::seal::{Sealer, TokenKind};
use domain::calls::caller::{Caller, Proof, TokenProof};
use domain::time::unix_time::UnixSeconds;

/// A message for the replica that holds a call or a connection.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RelayMessage {
    /// The client's response to a server request.
    Response { session: [u8; 16], body: Vec<u8> },
    /// `notifications/cancelled`; `request` is the id of the request, as JSON text.
    Cancelled { session: [u8; 16], request: String },
    /// A question about usage or the audit log of the recipient, which answers it.
    Question { body: Vec<u8> },
    /// A hint that the list of an upstream has changed. With `accepted`, a person has accepted the
    /// removal that leaves this number of prompts.
    Hint { upstream: String, accepted: Option<usize> },
    /// The rollback or restart of a rollout, as JSON text.
    Rollback { body: Vec<u8> },
    /// A message that was posted to an HTTP+SSE session.
    Post { session_id: String, caller: Caller, address: Option<IpAddr>, body: Vec<u8> },
}

/// The outcome of a message at its recipient.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Handling {
    Handled,
    /// The recipient holds no such call or connection.
    NotFound,
    /// The recipient has no room for the message.
    Overloaded,
}

/// The id of a message, drawn at random.
pub(crate) type MessageId = [u8; 16];

/// The sealed content of a message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Envelope {
    pub from: ReplicaId,
    /// The id of the message, or of the message that is acknowledged.
    pub id: MessageId,
    /// Milliseconds since the Unix epoch after which the message must not be handled.
    pub expires: u64,
    pub content: EnvelopeContent,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum EnvelopeContent {
    Message(RelayMessage),
    Acknowledgement(Handling),
    /// The answer to a question, in place of an acknowledgement.
    Answer(Vec<u8>),
}

/// The recipient of a message, to which it is bound.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Recipient {
    Replica(ReplicaId),
    All,
}

/// The envelope without the body of its message, which follows it.
#[derive(Deserialize, Serialize)]
struct EnvelopeHeader {
    from: ReplicaId,
    id: MessageId,
    expires: u64,
    content: HeaderContent,
}

#[derive(Deserialize, Serialize)]
enum HeaderContent {
    Response { session: [u8; 16] },
    Cancelled { session: [u8; 16], request: String },
    Post { session_id: String, caller: Box<SentCaller>, address: Option<IpAddr> },
    Acknowledgement { handling: Handling },
    Question {},
    Answer {},
    // Older replicas neither send nor read `accepted`.
    Hint { upstream: String, accepted: Option<usize> },
    Rollback {},
}

/// A caller, as the replica that authenticated it knows it.
#[derive(Deserialize, Serialize)]
struct SentCaller {
    id: String,
    groups: Vec<String>,
    scopes: Vec<String>,
    proof: SentProof,
}

#[derive(Deserialize, Serialize)]
enum SentProof {
    None,
    ApiKey {
        hash: [u8; 32],
    },
    Certificate {
        subject: String,
    },
    Token {
        issuer: String,
        subject: String,
        client: Option<String>,
        id_hash: Option<String>,
        /// Absent in messages of older replicas.
        #[serde(default)]
        context_hash: Option<String>,
        expires: u64,
    },
    Stdio,
}

impl Recipient {
    /// The name of its channel, which the seal is bound to.
    pub(super) fn channel(self) -> String {
        match self {
            Self::Replica(id) => format!("relay:{id}"),
            Self::All => "relay:all".to_owned(),
        }
    }
}

impl Envelope {
    /// Seals the envelope for its recipient.
    pub(super) fn seal(self, sealer: &Sealer, to: Recipient) -> String {
        let Self { from, id, expires, content } = self;
        let (content, body) = match content {
            EnvelopeContent::Message(RelayMessage::Response { session, body }) => {
                (HeaderContent::Response { session }, body)
            }
            EnvelopeContent::Message(RelayMessage::Cancelled { session, request }) => {
                (HeaderContent::Cancelled { session, request }, Vec::new())
            }
            EnvelopeContent::Message(RelayMessage::Post { session_id, caller, address, body }) => {
                (HeaderContent::Post { session_id, caller: Box::new(sent(&caller)), address }, body)
            }
            EnvelopeContent::Message(RelayMessage::Question { body }) => {
                (HeaderContent::Question {}, body)
            }
            EnvelopeContent::Message(RelayMessage::Hint { upstream, accepted }) => {
                (HeaderContent::Hint { upstream, accepted }, Vec::new())
            }
            EnvelopeContent::Message(RelayMessage::Rollback { body }) => {
                (HeaderContent::Rollback {}, body)
            }
            EnvelopeContent::Acknowledgement(handling) => {
                (HeaderContent::Acknowledgement { handling }, Vec::new())
            }
            EnvelopeContent::Answer(body) => (HeaderContent::Answer {}, body),
        };
        let header =
            serde_json::to_vec(&EnvelopeHeader { from, id, expires, content }).unwrap_or_default();
        let mut plain = Vec::with_capacity(4 + header.len() + body.len());
        plain.extend_from_slice(&(header.len() as u32).to_be_bytes());
        plain.extend_from_slice(&header);
        plain.extend_from_slice(&body);
        sealer.seal(TokenKind::Relay, &to.channel(), &plain)
    }

    /// Opens a message that was sealed for this recipient; `None` for anything else.
    pub(super) fn open(sealer: &Sealer, to: Recipient, sealed: &[u8]) -> Option<Self> {
        let token = std::str::from_utf8(sealed).ok()?;
        let plain = sealer.open(TokenKind::Relay, &to.channel(), token)?;
        let (length, rest) = plain.split_first_chunk()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (header, body) = rest.split_at_checked(length)?;
        let EnvelopeHeader { from, id, expires, content } = serde_json::from_slice(header).ok()?;
        let content = match content {
            HeaderContent::Response { session } => {
                EnvelopeContent::Message(RelayMessage::Response { session, body: body.to_vec() })
            }
            HeaderContent::Cancelled { session, request } => {
                EnvelopeContent::Message(RelayMessage::Cancelled { session, request })
            }
            HeaderContent::Post { session_id, caller, address } => {
                let caller = received(*caller);
                let body = body.to_vec();
                EnvelopeContent::Message(RelayMessage::Post { session_id, caller, address, body })
            }
            HeaderContent::Question {} => {
                EnvelopeContent::Message(RelayMessage::Question { body: body.to_vec() })
            }
            HeaderContent::Hint { upstream, accepted } => {
                EnvelopeContent::Message(RelayMessage::Hint { upstream, accepted })
            }
            HeaderContent::Rollback {} => {
                EnvelopeContent::Message(RelayMessage::Rollback { body: body.to_vec() })
            }
            HeaderContent::Acknowledgement { handling } => {
                EnvelopeContent::Acknowledgement(handling)
            }
            HeaderContent::Answer {} => EnvelopeContent::Answer(body.to_vec()),
        };
        Some(Self { from, id, expires, content })
    }
}

impl EnvelopeContent {
    /// The length of its body in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Message(message) => message.body_len(),
            Self::Acknowledgement(_) => 0,
            Self::Answer(body) => body.len(),
        }
    }
}

impl RelayMessage {
    /// The length of its body in bytes.
    pub(super) fn body_len(&self) -> usize {
        match self {
            Self::Response { body, .. }
            | Self::Post { body, .. }
            | Self::Question { body }
            | Self::Rollback { body } => body.len(),
            Self::Cancelled { request, .. } => request.len(),
            Self::Hint { upstream, .. } => upstream.len(),
        }
    }

    /// Its kind, as metrics label it.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Response { .. } => "response",
            Self::Cancelled { .. } => "cancelled",
            Self::Post { .. } => "post",
            Self::Question { .. } => "question",
            Self::Hint { .. } => "hint",
            Self::Rollback { .. } => "rollback",
        }
    }
}

fn sent(caller: &Caller) -> SentCaller {
    let proof = match caller.proof() {
        Proof::None => SentProof::None,
        Proof::ApiKey { hash } => SentProof::ApiKey { hash: *hash },
        Proof::Certificate { subject } => SentProof::Certificate { subject: subject.clone() },
        Proof::Token(token) => {
            let TokenProof { issuer, subject, client, id_hash, context_hash, expires } =
                (**token).clone();
            let expires = expires.0;
            SentProof::Token { issuer, subject, client, id_hash, context_hash, expires }
        }
        Proof::Stdio => SentProof::Stdio,
    };
    let groups = caller.groups().to_vec();
    let scopes = caller.scopes().to_vec();
    SentCaller { id: caller.id().to_owned(), groups, scopes, proof }
}

fn received(SentCaller { id, groups, scopes, proof }: SentCaller) -> Caller {
    let proof = match proof {
        SentProof::None => Proof::None,
        SentProof::ApiKey { hash } => Proof::ApiKey { hash },
        SentProof::Certificate { subject } => Proof::Certificate { subject },
        SentProof::Token { issuer, subject, client, id_hash, context_hash, expires } => {
            let expires = UnixSeconds(expires);
            let token = TokenProof { issuer, subject, client, id_hash, context_hash, expires };
            Proof::Token(Box::new(token))
        }
        SentProof::Stdio => Proof::Stdio,
    };
    Caller::in_groups(&id, &groups).with_scopes(scopes).proved_by(proof)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use base::seal::SealKeys;

    fn sealer(key: u8) -> Sealer {
        Sealer::new(&SealKeys::new(vec![[key; 32]]).unwrap())
    }

    fn envelope(content: EnvelopeContent) -> Envelope {
        Envelope { from: ReplicaId([1; 8]), id: [2; 16], expires: 3, content }
    }

    #[test]
    fn messages_open_for_their_recipient_with_the_shared_key_only() {
        let token = TokenProof {
            issuer: "https://issuer".to_owned(),
            subject: "s".to_owned(),
            client: None,
            id_hash: Some("sha256:00".to_owned()),
            context_hash: Some("sha256:01".to_owned()),
            expires: UnixSeconds(9),
        };
        let caller = Caller::in_groups("a", &["g".to_owned()])
            .with_scopes(vec!["x".to_owned()])
            .proved_by(Proof::Token(Box::new(token)));
        let address = Some([127, 0, 0, 1].into());
        let post = RelayMessage::Post {
            session_id: "id".to_owned(),
            caller: caller.clone(),
            address,
            body: b"{}".to_vec(),
        };
        let to = Recipient::Replica(ReplicaId([7; 8]));
        let sent = envelope(EnvelopeContent::Message(post));
        let sealed = sent.clone().seal(&sealer(1), to);
        let opened = Envelope::open(&sealer(1), to, sealed.as_bytes()).unwrap();
        assert_eq!(opened, sent);
        let EnvelopeContent::Message(RelayMessage::Post { caller: received, .. }) = opened.content
        else {
            panic!("{opened:?}");
        };
        assert_eq!(received.proof(), caller.proof());
        assert_eq!((received.groups(), received.scopes()), (caller.groups(), caller.scopes()));
        let others = [Recipient::All, Recipient::Replica(ReplicaId([8; 8]))];
        for other in others {
            assert_eq!(Envelope::open(&sealer(1), other, sealed.as_bytes()), None);
        }
        assert_eq!(Envelope::open(&sealer(2), to, sealed.as_bytes()), None);
    }

    #[test]
    fn messages_of_earlier_releases_open() {
        let token = TokenProof {
            issuer: "https://issuer".to_owned(),
            subject: "s".to_owned(),
            client: Some("c".to_owned()),
            id_hash: None,
            context_hash: None,
            expires: UnixSeconds(9),
        };
        let caller = Caller::in_groups("ada", &["g".to_owned()])
            .with_scopes(vec!["x".to_owned()])
            .proved_by(Proof::Token(Box::new(token)));
        let post = RelayMessage::Post {
            session_id: "id".to_owned(),
            caller: caller.clone(),
            address: Some([127, 0, 0, 1].into()),
            body: b"{}".to_vec(),
        };
        let to = Recipient::Replica(ReplicaId([7; 8]));
        let sent = envelope(EnvelopeContent::Message(post));
        let sealed = include_bytes!("../../../../tests/formats/relay-1");
        assert_eq!(Envelope::open(&sealer(7), to, sealed), Some(sent));
    }

    proptest! {
        #[test]
        fn other_bytes_open_to_nothing(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(Envelope::open(&sealer(1), Recipient::All, &bytes), None);
            let token = sealer(1).seal(TokenKind::Relay, "relay:all", &bytes);
            // Sealed with the key, but no message: refused as well.
            prop_assert_eq!(Envelope::open(&sealer(1), Recipient::All, token.as_bytes()), None);
        }

        #[test]
        fn messages_open_as_they_were_sealed(session: [u8; 16], body in prop::collection::vec(any::<u8>(), 0..99), text in ".{0,20}") {
            for message in [
                RelayMessage::Response { session, body: body.clone() },
                RelayMessage::Cancelled { session, request: text.clone() },
                RelayMessage::Question { body: body.clone() },
                RelayMessage::Hint { upstream: text.clone(), accepted: None },
                RelayMessage::Hint { upstream: text.clone(), accepted: Some(session.len()) },
                RelayMessage::Rollback { body: body.clone() },
            ] {
                let sent = envelope(EnvelopeContent::Message(message));
                let sealed = sent.clone().seal(&sealer(1), Recipient::All);
                prop_assert_eq!(Envelope::open(&sealer(1), Recipient::All, sealed.as_bytes()), Some(sent));
            }
        }
    }
}
