//! The era of an upstream, judged by the outcome of `server/discover`.

use super::{Capabilities, Conversation, NO_COMMON_REVISION, RpcRequest};
use crate::transport::UpstreamTransport;
use domain::fault::UpstreamFaultKind as Kind;
use domain::json::Json;
use domain::json::document::Document;
use domain::json::jsonrpc::Id;
use domain::protocol::method::DISCOVER;
use domain::protocol::revision::{Era, Revision};

const HEADER_MISMATCH: i64 = -32020;
const MISSING_CAPABILITY: i64 = -32021;
const UNSUPPORTED_VERSION: i64 = -32022;

/// Meaning of the outcome of `server/discover`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum DiscoveryVerdict {
    Modern(Capabilities),
    Legacy,
    /// The outcome does not show the era: the handshake fails and is retried.
    Undecided(Kind),
}

/// Sends `server/discover`. Repeats the request if the upstream refuses the version but lists it as
/// supported; the list takes precedence (MCP 2026-07-28, `UnsupportedProtocolVersionError`).
pub(crate) async fn discover(transport: &UpstreamTransport) -> Result<Document, Kind> {
    match send_discover(transport, &Id::number(0)).await {
        Err(refusal) if supports_modern(&refusal) => send_discover(transport, &Id::number(2)).await,
        outcome => outcome,
    }
}

async fn send_discover(transport: &UpstreamTransport, id: &Id) -> Result<Document, Kind> {
    let conversation = Conversation::modern(Capabilities::default(), transport.headers());
    let rpc = RpcRequest { method: DISCOVER, ..RpcRequest::default() };
    let (headers, body) = conversation.encode(id, rpc);
    transport.request(id, headers, body, None).await.map(|(result, _)| result)
}

/// Whether a version error lists a modern revision as supported.
fn supports_modern(refusal: &Kind) -> bool {
    let Kind::Error { code: UNSUPPORTED_VERSION, data: Some(data), .. } = refusal else {
        return false;
    };
    let data = Json::parse(data.as_bytes(), 8).ok();
    matches!(data.and_then(|d| d.get("supported")).map(newest_era), Some(SupportedEra::Modern))
}

/// Decides the era by the outcome of `server/discover`. Legacy servers refuse the unknown method in
/// many ways, also by a broken connection or a 500. A failure that does not depend on the era, such
/// as a refused credential or the 503 of a proxy, decides nothing.
pub(crate) fn judge(outcome: Result<&Document, Kind>) -> DiscoveryVerdict {
    match outcome {
        Ok(result) => {
            let versions = result.json().get("supportedVersions");
            match versions.map(newest_era) {
                Some(SupportedEra::Modern) => {
                    DiscoveryVerdict::Modern(Capabilities::read(result.json()))
                }
                Some(SupportedEra::None) => {
                    DiscoveryVerdict::Undecided(Kind::Protocol(NO_COMMON_REVISION.to_owned()))
                }
                Some(SupportedEra::Legacy) | None => DiscoveryVerdict::Legacy,
            }
        }
        Err(Kind::Error { code: UNSUPPORTED_VERSION, data, .. }) => {
            let data = data.unwrap_or_default();
            let supported = Json::parse(data.as_bytes(), 8).ok().and_then(|d| d.get("supported"));
            match supported.map(newest_era) {
                Some(SupportedEra::Legacy) => DiscoveryVerdict::Legacy,
                Some(SupportedEra::None) => {
                    DiscoveryVerdict::Undecided(Kind::Protocol(NO_COMMON_REVISION.to_owned()))
                }
                Some(SupportedEra::Modern) | None => {
                    DiscoveryVerdict::Modern(Capabilities::ASSUMED)
                }
            }
        }
        Err(Kind::Error { code: HEADER_MISMATCH | MISSING_CAPABILITY, .. }) => {
            DiscoveryVerdict::Modern(Capabilities::ASSUMED)
        }
        Err(
            kind @ (Kind::Unavailable(_)
            | Kind::ChildExited(_)
            | Kind::ChildSilent { .. }
            | Kind::Internal(_)
            | Kind::Timeout
            | Kind::AuthFailed { status: 401 }
            | Kind::NoToken { .. }
            | Kind::RateLimited { .. }
            | Kind::Paused { .. }
            | Kind::Moved { .. }
            | Kind::Status { status: 502..=504, .. }),
        ) => DiscoveryVerdict::Undecided(kind),
        Err(_) => DiscoveryVerdict::Legacy,
    }
}

/// Returns the conversation with a child process whose late outcome shows that it is modern.
pub(crate) fn modern_after_all(
    late: Result<Document, Kind>,
    transport: &UpstreamTransport,
) -> Option<Conversation> {
    match judge(late.as_ref().map_err(Clone::clone)) {
        DiscoveryVerdict::Modern(capabilities) => {
            Some(Conversation::modern(capabilities, transport.headers()))
        }
        DiscoveryVerdict::Legacy | DiscoveryVerdict::Undecided(_) => None,
    }
}

/// Newest era among the revisions that a list of versions has in common with the gateway.
enum SupportedEra {
    Legacy,
    Modern,
    /// No revision in common.
    None,
}

fn newest_era(versions: Json<'_>) -> SupportedEra {
    let has = |era| {
        let mut known = versions.elements().filter_map(|v| Revision::parse(&v.as_str()?));
        known.any(|revision| revision.era() == era)
    };
    if has(Era::Modern) {
        SupportedEra::Modern
    } else if has(Era::Legacy) {
        SupportedEra::Legacy
    } else {
        SupportedEra::None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use domain::calls::passthrough::PassthroughCapabilities;

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
        let passthrough = Some(Arc::new(PassthroughCapabilities::default()));
        let capabilities = Capabilities {
            prompts: true,
            list_changed: true,
            passthrough,
            ..Capabilities::default()
        };
        assert_eq!(judge(Ok(&result)), DiscoveryVerdict::Modern(capabilities));
        let future = document(r#"{"supportedVersions":["2030-01-01"]}"#);
        assert!(matches!(judge(Ok(&future)), DiscoveryVerdict::Undecided(Kind::Protocol(_))));
        let both = document(r#"{"supportedVersions":["2025-11-25"]}"#);
        assert_eq!(judge(Ok(&both)), DiscoveryVerdict::Legacy);
    }

    #[test]
    fn errors_that_only_a_modern_server_gives_mean_modern() {
        for code in [-32020, -32021, -32022] {
            assert_eq!(
                judge(Err(error(code, None))),
                DiscoveryVerdict::Modern(Capabilities::ASSUMED)
            );
        }
        let legacy_only = error(-32022, Some(r#"{"supported":["2025-06-18"],"requested":"x"}"#));
        assert_eq!(judge(Err(legacy_only)), DiscoveryVerdict::Legacy);
    }

    #[test]
    fn refusals_of_legacy_servers_mean_legacy() {
        for kind in [
            error(-32601, None),
            error(-32000, None),
            error(-32600, None),
            Kind::Status { status: 400, shown: String::new() },
            Kind::Status { status: 404, shown: String::new() },
            Kind::Status { status: 405, shown: String::new() },
            Kind::Status { status: 500, shown: String::new() },
            Kind::AuthFailed { status: 403 },
            Kind::Reset("closed".into()),
            Kind::Protocol("the response is neither JSON nor an event stream".into()),
        ] {
            assert_eq!(judge(Err(kind.clone())), DiscoveryVerdict::Legacy, "{kind:?}");
        }
    }

    #[test]
    fn failures_that_do_not_depend_on_the_era_decide_nothing() {
        for kind in [
            Kind::Unavailable("refused".into()),
            Kind::ChildExited(Arc::default()),
            Kind::Internal("failed".into()),
            Kind::Timeout,
            Kind::AuthFailed { status: 401 },
            Kind::RateLimited { retry_after_secs: None },
            Kind::Paused { retry_after_secs: 7 },
            Kind::Status { status: 503, shown: String::new() },
        ] {
            assert_eq!(judge(Err(kind.clone())), DiscoveryVerdict::Undecided(kind));
        }
    }
}
