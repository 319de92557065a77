//! What an upstream is, by what it answers to `server/discover`.

use super::{Capabilities, Conversation, RpcRequest, UNSPOKEN};
use crate::domain::document::Document;
use crate::domain::fault::UpstreamFaultKind as Kind;
use crate::domain::json::Json;
use crate::domain::jsonrpc::Id;
use crate::domain::method::DISCOVER;
use crate::domain::revision::{Era, Revision};
use crate::upstream::transport::Transport;

const HEADER_MISMATCH: i64 = -32020;
const MISSING_CAPABILITY: i64 = -32021;
const UNSUPPORTED_VERSION: i64 = -32022;

/// What the answer to `server/discover` means.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    Modern(Capabilities),
    Legacy,
    /// Nothing can be told from it: ask again later.
    Undecided(Kind),
}

/// Asks what the upstream is. One that refuses our version, and names it among its own, is asked once
/// more: its list is what counts (2026-07-28, `UnsupportedProtocolVersionError`).
pub(crate) async fn discover(transport: &Transport) -> Result<Document, Kind> {
    match send_discover(transport, &Id::number(0)).await {
        Err(refused) if names_our_version(&refused) => {
            send_discover(transport, &Id::number(2)).await
        }
        answer => answer,
    }
}

async fn send_discover(transport: &Transport, id: &Id) -> Result<Document, Kind> {
    let asking = Conversation::modern(Capabilities::default());
    let rpc = RpcRequest { method: DISCOVER, ..RpcRequest::default() };
    let (headers, body) = asking.dress(id, rpc);
    transport.request(id, headers, body, None).await.map(|(result, _)| result)
}

fn names_our_version(refused: &Kind) -> bool {
    let Kind::Error { code: UNSUPPORTED_VERSION, data: Some(data), .. } = refused else {
        return false;
    };
    let data = Json::parse(data.as_bytes(), 8).ok();
    matches!(data.and_then(|d| d.get("supported")).map(offers), Some(Offer::Modern))
}

/// Decides the era from the answer to `server/discover`. Servers that don't know the method
/// refuse it in many ways, all of which mean legacy; what says nothing about the era, such as a
/// lost connection or a refused credential, must not be taken for an answer.
pub(crate) fn judge(answer: Result<&Document, Kind>) -> Verdict {
    match answer {
        Ok(result) => {
            let versions = result.json().get("supportedVersions");
            match versions.map(offers) {
                Some(Offer::Modern) => {
                    Verdict::Modern(Capabilities::read(result.json().get("capabilities")))
                }
                Some(Offer::Unknown) => Verdict::Undecided(Kind::Protocol(UNSPOKEN.to_owned())),
                Some(Offer::Legacy) | None => Verdict::Legacy,
            }
        }
        Err(Kind::Error { code: UNSUPPORTED_VERSION, data, .. }) => {
            let data = data.unwrap_or_default();
            let supported = Json::parse(data.as_bytes(), 8).ok().and_then(|d| d.get("supported"));
            match supported.map(offers) {
                Some(Offer::Legacy) => Verdict::Legacy,
                Some(Offer::Unknown) => Verdict::Undecided(Kind::Protocol(UNSPOKEN.to_owned())),
                Some(Offer::Modern) | None => Verdict::Modern(Capabilities::ASSUMED),
            }
        }
        Err(Kind::Error { code: HEADER_MISMATCH | MISSING_CAPABILITY, .. }) => {
            Verdict::Modern(Capabilities::ASSUMED)
        }
        Err(
            kind @ (Kind::Unavailable(_)
            | Kind::Reset(_)
            | Kind::ChildExited
            | Kind::Internal(_)
            | Kind::Timeout
            | Kind::AuthFailed { .. }
            | Kind::NoToken(_)
            | Kind::RateLimited { .. }
            | Kind::Status { status: 500.. }),
        ) => Verdict::Undecided(kind),
        Err(_) => Verdict::Legacy,
    }
}

/// The conversation with a child whose answer came late, if that makes it modern.
pub(crate) fn modern_after_all(late: Result<Document, Kind>) -> Option<Conversation> {
    match judge(late.as_ref().map_err(Clone::clone)) {
        Verdict::Modern(capabilities) => Some(Conversation::modern(capabilities)),
        Verdict::Legacy | Verdict::Undecided(_) => None,
    }
}

/// What a list of versions has for us.
enum Offer {
    Legacy,
    Modern,
    Unknown,
}

fn offers(versions: Json<'_>) -> Offer {
    let spoken = |era| {
        let mut known = versions.elements().filter_map(|v| Revision::parse(&v.as_str()?));
        known.any(|revision| revision.era() == era)
    };
    match (spoken(Era::Modern), spoken(Era::Legacy)) {
        (true, _) => Offer::Modern,
        (false, true) => Offer::Legacy,
        (false, false) => Offer::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Document {
        Document::parse(text.as_bytes().to_vec(), 8).unwrap()
    }

    fn error(code: i64, data: Option<&str>) -> Kind {
        Kind::Error { code, message: String::new(), data: data.map(str::to_owned) }
    }

    #[test]
    fn a_discover_result_with_our_version_means_modern() {
        let result = document(
            r#"{"supportedVersions":["2026-07-28","x"],"capabilities":{"prompts":{"listChanged":true}}}"#,
        );
        let capabilities = Capabilities { prompts: true, list_changed: true, completions: false };
        assert_eq!(judge(Ok(&result)), Verdict::Modern(capabilities));
        let future = document(r#"{"supportedVersions":["2030-01-01"]}"#);
        assert!(matches!(judge(Ok(&future)), Verdict::Undecided(Kind::Protocol(_))));
        let both = document(r#"{"supportedVersions":["2025-11-25"]}"#);
        assert_eq!(judge(Ok(&both)), Verdict::Legacy);
    }

    #[test]
    fn errors_that_only_a_modern_server_gives_mean_modern() {
        for code in [-32020, -32021, -32022] {
            assert_eq!(judge(Err(error(code, None))), Verdict::Modern(Capabilities::ASSUMED));
        }
        let legacy_only = error(-32022, Some(r#"{"supported":["2025-06-18"],"requested":"x"}"#));
        assert_eq!(judge(Err(legacy_only)), Verdict::Legacy);
    }

    #[test]
    fn every_refusal_seen_from_legacy_servers_means_legacy() {
        for kind in [
            error(-32601, None),
            error(-32000, None),
            error(-32600, None),
            Kind::Status { status: 400 },
            Kind::Status { status: 404 },
            Kind::Status { status: 405 },
            Kind::Protocol("the answer is neither JSON nor an event stream".into()),
        ] {
            assert_eq!(judge(Err(kind.clone())), Verdict::Legacy, "{kind:?}");
        }
    }

    #[test]
    fn what_says_nothing_about_the_era_decides_nothing() {
        for kind in [
            Kind::Unavailable("refused".into()),
            Kind::Reset("closed".into()),
            Kind::ChildExited,
            Kind::Internal("failed".into()),
            Kind::Timeout,
            Kind::AuthFailed { status: 401 },
            Kind::RateLimited { retry_after_secs: None },
            Kind::Status { status: 503 },
        ] {
            assert_eq!(judge(Err(kind.clone())), Verdict::Undecided(kind));
        }
    }
}
