//! Modern clients (MCP 2026-07-28): each request carries its own metadata in `_meta`, and repeats
//! it in headers over HTTP.

use super::dialect::{Dialect, result_message};
use super::endpoints::MethodTable;
use super::headers::{Field, Headers};
use super::message::{InboundMessage, MessageFault, ReplyContext};
use super::notify::notifications::{NotificationStream, Subscriber};
use super::notify::streams::StreamEnd;
use super::token::Nonce;
use super::{Dispatch, RequestContext, TransportContext};
use catalog::view_cache::ListKinds;
use domain::calls::call::ServerRequestMode;
use domain::fault::{Fault, RequestFault};
use domain::json::Json;
use domain::json::jsonrpc::Id;
use domain::protocol::log_level::LogLevel;
use domain::protocol::method::{CANCELLED, DISCOVER, LISTEN, named_member};
use domain::protocol::revision::Revision;
use domain::protocol::server_request::ClientCapabilities;
use domain::{protocol::mcp_name, protocol::meta};
use upstream::passthrough_signals::PassthroughLists;

/// Reads one message of a modern client.
pub(super) fn modern(
    endpoints: &MethodTable,
    inbound: &InboundMessage<'_>,
    id: Option<Id>,
) -> Result<Dispatch, MessageFault> {
    let dialect = Dialect::new(Revision::NEWEST_MODERN);
    let (headers, connection) = match inbound.context.transport {
        TransportContext::Http(headers) => (Some(headers), None),
        TransportContext::Connection(connection) => (None, Some(connection)),
    };
    let Some(id) = id else {
        // Over HTTP the client cancels by closing the response stream, on a connection by
        // `notifications/cancelled`.
        if let Some(connection) = connection.filter(|_| inbound.method == CANCELLED)
            && let Some(id) = inbound.cancelled_request()
        {
            endpoints.shared.in_flight.cancel(connection.nonce, id);
        }
        return Ok(Dispatch::Accepted);
    };
    let client = check(headers, inbound.method, inbound.params);
    let client = client.map_err(|fault: Fault| MessageFault::new(fault, dialect))?;
    let dialect = Dialect::new(client.revision);
    let nonce = connection.map(|connection| connection.nonce);
    if inbound.method == DISCOVER {
        let offer = endpoints.served(inbound.context.endpoint).offer();
        let result =
            dialect.discover(&endpoints.identity, offer, endpoints.discover_ttl.as_millis());
        return Ok(Dispatch::Answer { message: result_message(&id, &result), session: None });
    }
    if inbound.method == LISTEN {
        return Ok(Dispatch::Listen(listen(endpoints, inbound, id, dialect, nonce)?));
    }
    let reply_context = ReplyContext {
        dialect,
        capabilities: client.capabilities,
        mode: ServerRequestMode::InputRequired,
        log_level: client.log_level,
    };
    endpoints.prepare(inbound, id, reply_context, nonce)
}

/// Opens a subscription to the requested notifications, as far as the gateway has them
/// (MCP 2026-07-28, subscriptions).
fn listen(
    endpoints: &MethodTable,
    inbound: &InboundMessage<'_>,
    id: Id,
    dialect: Dialect,
    nonce: Option<Nonce>,
) -> Result<NotificationStream, MessageFault> {
    let reject = |fault: Fault| MessageFault::new(fault, dialect);
    let filter = inbound.params.and_then(|p| p.get("notifications")).filter(|f| f.is_object());
    let Some(filter) = filter else {
        let fault = Fault::invalid_params("`notifications` must be an object");
        return Err(reject(fault));
    };
    let wants = |name| filter.get(name).and_then(Json::as_bool) == Some(true);
    let served = endpoints.served(inbound.context.endpoint).lists();
    let kinds = ListKinds {
        prompts: served.prompts && wants("promptsListChanged"),
        tools: served.tools && wants("toolsListChanged"),
    };
    let result = dialect.listen_result(&id, &endpoints.identity);
    let result = result_message(&id, &result);
    let in_flight = endpoints.register(nonce, &id).map_err(reject)?;
    let subscriber = Subscriber::Subscription { id, kinds, result, in_flight };
    let RequestContext { caller, endpoint, .. } = *inbound.context;
    let changes = endpoints.router.changes(caller, endpoint, kinds);
    let drain = endpoints.shared.drain.clone();
    let end = StreamEnd::new(&endpoints.gate, caller, None, inbound.context.now);
    let stream = NotificationStream::new(changes, None, dialect, subscriber, drain, end);
    let declared = endpoints.served(endpoint).offer().passthrough.unwrap_or_default();
    let passthrough = PassthroughLists {
        tools: declared.tools.is_some() && wants("toolsListChanged"),
        resources: declared.resources.is_some() && wants("resourcesListChanged"),
    };
    let stream = stream.with_passthrough(endpoints.passthrough_notices(endpoint, passthrough));
    Ok(stream.counted(endpoints.gate.telemetry().clone()))
}

/// The client metadata of one request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ClientMetadata {
    pub revision: Revision,
    pub capabilities: ClientCapabilities,
    /// The least severe log messages that the client gets; `None` for none.
    pub log_level: Option<LogLevel>,
}

/// Checks the headers of a request against its body, in the order of the specification (MCP
/// 2026-07-28, Streamable HTTP, standard headers): the required headers are present, the metadata
/// is present, both are equal, and the version is served. Without headers only the metadata is
/// checked.
pub(crate) fn check(
    headers: Option<&Headers<'_>>,
    method: &str,
    params: Option<Json<'_>>,
) -> Result<ClientMetadata, Fault> {
    let named = named_member(method);
    if let Some(headers) = headers {
        require(headers.version, VERSION)?;
        require(headers.method, METHOD)?;
        if named.is_some() {
            require(headers.name, NAME)?;
        }
    }

    let request_meta = params.and_then(|p| p.get("_meta")).filter(|m| m.is_object());
    let member = |key| request_meta.and_then(|m| m.get(key));
    let version = member(meta::PROTOCOL_VERSION).and_then(Json::as_str);
    let version = version.ok_or(RequestFault::MetaMissing { key: meta::PROTOCOL_VERSION })?;
    let capabilities = member(meta::CLIENT_CAPABILITIES).and_then(Json::object);
    if capabilities.is_none() {
        return Err(RequestFault::MetaMissing { key: meta::CLIENT_CAPABILITIES }.into());
    }

    if let Some(headers) = headers {
        require_equal(headers.version, &version, VERSION)?;
        require_equal(headers.method, method, METHOD)?;
        if let Some(member) = named {
            let name = params.and_then(|p| p.get(member)).and_then(Json::as_str);
            let decoded = headers.name.value().and_then(mcp_name::decode);
            if decoded.as_deref() != Some(&*name.unwrap_or_default()) {
                return Err(RequestFault::HeaderMismatch { header: NAME.into() }.into());
            }
        }
    }

    let served = Revision::modern().find(|revision| revision.as_str() == version);
    let requested = version.into_owned();
    let revision = served.ok_or(RequestFault::UnsupportedVersion { requested })?;
    let level = member(meta::LOG_LEVEL)
        .map(|level| LogLevel::read(level).ok_or(RequestFault::LogLevelUnknown));
    Ok(ClientMetadata {
        revision,
        capabilities: ClientCapabilities::declared(capabilities, revision),
        log_level: level.transpose()?,
    })
}

/// Returns whether the body names a protocol version in `_meta`, as only modern clients do.
pub(crate) fn is_modern(params: Option<Json<'_>>) -> bool {
    params
        .and_then(|p| p.get("_meta"))
        .is_some_and(|meta| meta.get(meta::PROTOCOL_VERSION).is_some())
}

const VERSION: &str = "MCP-Protocol-Version";
const METHOD: &str = "Mcp-Method";
const NAME: &str = "Mcp-Name";

fn require(field: Field<'_>, header: &'static str) -> Result<(), Fault> {
    match field {
        Field::Once(_) => Ok(()),
        Field::Absent | Field::Unreadable => {
            Err(RequestFault::HeaderMismatch { header: header.into() }.into())
        }
    }
}

fn require_equal(field: Field<'_>, body: &str, header: &'static str) -> Result<(), Fault> {
    if field.value() == Some(body) {
        Ok(())
    } else {
        Err(RequestFault::HeaderMismatch { header: header.into() }.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: &str = r#"{"name":"né","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",
        "io.modelcontextprotocol/clientCapabilities":{}}}"#;

    fn headers() -> Headers<'static> {
        Headers {
            version: Field::Once("2026-07-28"),
            method: Field::Once("prompts/get"),
            name: Field::Once("=?base64?bsOp?="),
            ..Headers::default()
        }
    }

    fn check_get(headers: Headers<'_>, params: &str) -> Result<Revision, Fault> {
        let params = Json::parse(params.as_bytes(), 64).unwrap();
        check(Some(&headers), "prompts/get", Some(params)).map(|client| client.revision)
    }

    fn mismatch(header: &'static str) -> Result<Revision, Fault> {
        Err(RequestFault::HeaderMismatch { header: header.into() }.into())
    }

    #[test]
    fn w8_headers_must_equal_the_body() {
        assert_eq!(check_get(headers(), PARAMS), Ok(Revision::V2026_07_28));
        for field in [Field::Absent, Field::Unreadable, Field::Once("2025-11-25")] {
            assert_eq!(
                check_get(Headers { version: field, ..headers() }, PARAMS),
                mismatch(VERSION)
            );
        }
        for field in [Field::Absent, Field::Unreadable, Field::Once("Prompts/Get")] {
            assert_eq!(check_get(Headers { method: field, ..headers() }, PARAMS), mismatch(METHOD));
        }
        let names = ["né", "ne", "=?base64?bsOp", "=?base64?PT9iYXNlNjQ/YnNPcD89?="];
        for field in names.map(Field::Once).into_iter().chain([Field::Absent]) {
            let checked = check_get(Headers { name: field, ..headers() }, PARAMS);
            let expected = match field {
                Field::Once("né") => Ok(Revision::V2026_07_28),
                _ => mismatch(NAME),
            };
            assert_eq!(checked, expected, "{field:?}");
        }
    }

    #[test]
    fn w9_metadata_and_version_are_checked_in_the_specified_order() {
        let missing = |key| Err(RequestFault::MetaMissing { key }.into());
        assert_eq!(check_get(headers(), r#"{"name":"x"}"#), missing(meta::PROTOCOL_VERSION));
        let no_capabilities = PARAMS.replace("{}}", "null}");
        assert_eq!(check_get(headers(), &no_capabilities), missing(meta::CLIENT_CAPABILITIES));
        // Missing headers are reported before missing metadata, missing metadata before a mismatch.
        let without = Headers { method: Field::Absent, ..headers() };
        assert_eq!(check_get(without, "{}"), mismatch(METHOD));
        let wrong = Headers { method: Field::Once("x"), ..headers() };
        assert_eq!(check_get(wrong, "{}"), missing(meta::PROTOCOL_VERSION));
        let future = PARAMS.replace("2026-07-28", "2030-01-01");
        let version = Headers { version: Field::Once("2030-01-01"), ..headers() };
        let requested = "2030-01-01".to_owned();
        let unsupported = RequestFault::UnsupportedVersion { requested };
        assert_eq!(check_get(version, &future), Err(unsupported.into()));
        let level = PARAMS.replace("{}}", "{},\"io.modelcontextprotocol/logLevel\":\"loud\"}");
        assert_eq!(check_get(headers(), &level), Err(RequestFault::LogLevelUnknown.into()));
    }
}
