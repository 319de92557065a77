//! JSON-RPC error responses: code, message and the stable `data.reason` of each fault.

use crate::session::MessageRefusal;
use crate::session::dialect::Dialect;
use domain::calls::error_code;
use domain::fault::{
    Fault, RequestFault, TransportFault, UpstreamFault, UpstreamFaultKind as Kind,
};
use domain::json::jsonrpc::{self, Id};
use domain::json::object::ObjectWriter;
use domain::json::write_str;
use domain::protocol::revision::Revision;

/// Returns the JSON-RPC error response for a fault. Without an `id` the revision of `dialect`
/// decides whether the response has `"id":null` or no `id`.
pub(crate) fn error_message(fault: &Fault, id: Option<&Id>, dialect: Dialect) -> String {
    jsonrpc::message(256, |response| {
        if let Some(id) = id {
            response.json("id", id.text());
        } else if dialect.writes_null_id() {
            response.json("id", "null");
        }
        response.object("error", |error| {
            error
                .display("code", error_code::of(fault))
                .text("message", &error_code::message(fault));
            match upstream_data(fault) {
                Some(data) => error.json("data", data),
                None => error.object("data", |data| write_data(fault, data)),
            };
        });
    })
}

/// Returns the JSON-RPC error response for a refused message.
pub(crate) fn refusal_message(refusal: &MessageRefusal) -> String {
    error_message(&refusal.fault, refusal.id.as_ref(), refusal.dialect)
}

/// Returns the `error.data` of an upstream's error as JSON text; `None` where the error is not
/// passed on.
fn upstream_data(fault: &Fault) -> Option<&str> {
    let Fault::Upstream(UpstreamFault { kind, .. }) = fault else {
        return None;
    };
    match kind {
        Kind::Error { code, data, .. } if error_code::passes(*code) => data.as_deref(),
        Kind::UrlElicitationRequired { data, .. } => Some(data),
        _ => None,
    }
}

/// Writes the members of the gateway's own `error.data`: the stable reason and its details.
fn write_data(fault: &Fault, data: &mut ObjectWriter<'_>) {
    data.text("reason", fault.reason());
    match fault {
        Fault::Upstream(UpstreamFault { upstream, kind, correlation }) => {
            if !upstream.is_empty() {
                data.text("upstream", upstream);
            }
            if let Some(correlation) = correlation {
                data.text("correlationId", &correlation.to_string());
            }
            if let Kind::SignInNeeded { url, code, .. } = kind {
                data.text("url", url).text("code", code);
            }
            if let Kind::Error { code, .. } = kind
                && !error_code::passes(*code)
            {
                data.display("upstreamCode", code);
            }
        }
        Fault::Request(RequestFault::UnsupportedVersion { requested }) => {
            data.array("supported", Revision::modern().map(Revision::as_str), write_str);
            data.text("requested", requested);
        }
        Fault::Transport(TransportFault::RateLimited { limit, retry_after }) => {
            data.display("retryAfterMs", retry_after.as_nanos().div_ceil(1_000_000));
            data.text("limit", limit);
        }
        Fault::Request(RequestFault::UnknownResource { uri, .. }) if !uri.is_empty() => {
            data.text("uri", uri);
        }
        Fault::Request(RequestFault::DeniedByGuard { guard, code, .. }) => {
            data.text("guard", guard).text("code", code);
        }
        Fault::Request(RequestFault::CapabilityMissing { required }) => {
            data.json("requiredCapabilities", required);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use domain::json::JsonError;

    fn error(fault: Fault) -> Value {
        let id = Id::number(7);
        let text = error_message(&fault, Some(&id), Dialect::new(Revision::NEWEST_MODERN));
        serde_json::from_str(&text).unwrap()
    }

    fn upstream_error(code: i64) -> Fault {
        let message = "no \"such\"".to_owned();
        let data = Some("[1]".to_owned());
        Fault::upstream("up", Kind::Error { code, message, data })
    }

    #[test]
    fn upstream_error_codes_pass_only_where_they_mean_the_same_to_the_client() {
        for code in [-32602, -32603, 1, -31999, -32769] {
            let expected = json!({"code": code, "message": "no \"such\"", "data": [1]});
            assert_eq!(error(upstream_error(code))["error"], expected);
        }
        for code in [-32600, -32601, -32700, -32000, -32020, -32022, -32042, -32768] {
            let error = error(upstream_error(code));
            assert_eq!(error["error"]["code"], -32603);
            assert_eq!(error["error"]["data"]["upstreamCode"], code);
            assert_eq!(error["error"]["data"]["reason"], "upstream_error");
        }
    }

    #[test]
    fn an_error_without_a_request_has_null_or_no_id() {
        let fault = Fault::from(JsonError::Syntax { at: 0 });
        let id = |revision| {
            let text = error_message(&fault, None, Dialect::new(revision));
            let error: Value = serde_json::from_str(&text).unwrap();
            error.get("id").cloned()
        };
        assert_eq!(id(Revision::V2025_06_18), Some(Value::Null));
        assert_eq!(id(Revision::V2025_11_25), None);
        assert_eq!(id(Revision::V2026_07_28), None);
    }

    #[test]
    fn w9_an_unsupported_version_error_names_the_supported_versions() {
        let error = error(RequestFault::UnsupportedVersion { requested: "1\"".into() }.into());
        assert_eq!(error["error"]["code"], -32022);
        let data = &error["error"]["data"];
        assert_eq!(
            (&data["supported"], &data["requested"]),
            (&json!(["2026-07-28"]), &json!("1\""))
        );
    }
}
