//! JSON-RPC error codes, and their texts: of JSON-RPC 2.0 (section 5.1) and of MCP (2026-07-28,
//! basic; -32042 of 2025-11-25, elicitation).

use crate::fault::{
    Fault, RequestFault as R, TransportFault, UpstreamFault, UpstreamFaultKind as Kind,
};

/// Returns `error.code` of the response for a fault.
pub fn of(fault: &Fault) -> i64 {
    match fault {
        Fault::Transport(
            TransportFault::Overloaded
            | TransportFault::ShuttingDown
            | TransportFault::AuditUnavailable
            | TransportFault::AuthUnavailable
            | TransportFault::ClusterUnavailable
            | TransportFault::ReplicaUnreachable
            | TransportFault::TooManyStreams
            | TransportFault::RateLimited { .. },
        )
        | Fault::Internal => INTERNAL_ERROR,
        Fault::Transport(_) => INVALID_REQUEST,
        Fault::Request(request) => match request {
            R::NotJson(_) => PARSE_ERROR,
            R::UnsafeJson(_)
            | R::NotJsonRpc(_)
            | R::BatchUnsupported
            | R::EraUnknown
            | R::IdInUse
            | R::LegacyVersionUnknown => INVALID_REQUEST,
            // Every gateway on the way back passes this code on.
            R::Loop => INTERNAL_ERROR,
            R::MethodNotFound => METHOD_NOT_FOUND,
            R::InvalidParams { .. }
            | R::MetaMissing { .. }
            | R::LogLevelUnknown
            | R::MissingArgument { .. }
            | R::PresetArgument { .. }
            | R::NoChoice { .. }
            | R::DeniedByGuard { .. }
            | R::UnknownPrompt
            | R::UnknownTool
            | R::InvalidCursor
            | R::InvalidState => INVALID_PARAMS,
            R::UnknownResource { code, .. } => *code,
            R::CapabilityMissing { .. } => MISSING_CAPABILITY,
            R::HeaderMismatch { .. } => HEADER_MISMATCH,
            R::UnsupportedVersion { .. } => UNSUPPORTED_VERSION,
        },
        Fault::Upstream(UpstreamFault { kind: Kind::Error { code, .. }, .. }) if passes(*code) => {
            *code
        }
        Fault::Upstream(UpstreamFault { kind: Kind::UrlElicitationRequired { .. }, .. }) => {
            URL_ELICITATION_REQUIRED
        }
        Fault::Upstream(_) => INTERNAL_ERROR,
    }
}

/// Returns the text for clients. An upstream's error keeps its message if its code is passed on.
/// The text names an upstream only if the fault does.
pub fn message(fault: &Fault) -> String {
    let Fault::Upstream(UpstreamFault { upstream, kind, .. }) = fault else {
        return fault.to_string();
    };
    match kind {
        Kind::Error { code, message, .. } if passes(*code) => message.clone(),
        Kind::UrlElicitationRequired { message, .. } => message.clone(),
        Kind::Unavailable(_) if upstream.is_empty() => {
            "no upstream can be reached at present".to_owned()
        }
        kind if upstream.is_empty() => kind.to_string(),
        _ => fault.to_string(),
    }
}

/// Whether an upstream's error code is passed on to the client unchanged. Codes of the reserved
/// range describe the request of the *gateway*; only invalid params (-32602) and internal error
/// (-32603) mean the same to the client.
pub fn passes(code: i64) -> bool {
    matches!(code, INVALID_PARAMS | INTERNAL_ERROR) || !is_reserved(code)
}

/// Whether a code is in the range that JSON-RPC reserves (JSON-RPC 2.0, section 5.1).
pub fn is_reserved(code: i64) -> bool {
    (-32768..=-32000).contains(&code)
}

const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const METHOD_NOT_FOUND: i64 = -32601;
pub const INVALID_PARAMS: i64 = -32602;
const INTERNAL_ERROR: i64 = -32603;
const HEADER_MISMATCH: i64 = -32020;
const URL_ELICITATION_REQUIRED: i64 = -32042;
const MISSING_CAPABILITY: i64 = -32021;
const UNSUPPORTED_VERSION: i64 = -32022;
