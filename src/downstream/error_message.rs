//! JSON-RPC error responses: the code, the message and the stable `data.reason` of each fault.

use crate::domain::error_code;
use crate::domain::fault::{
    Fault, RequestFault, TransportFault, UpstreamFault, UpstreamFaultKind as Kind,
};
use crate::domain::json::write_str;
use crate::domain::jsonrpc::Id;
use crate::domain::revision::Revision;
use crate::session::Refusal;
use crate::session::dialect::Dialect;

/// Returns the JSON-RPC error response for a fault. Without an `id` the revision of `dialect` decides
/// whether the response has `"id":null` or no id.
pub(crate) fn error_message(fault: &Fault, id: Option<&Id>, dialect: Dialect) -> String {
    let mut out = String::from("{\"jsonrpc\":\"2.0\",");
    match id {
        Some(id) => out.push_str(&format!("\"id\":{id},")),
        None if dialect.writes_null_id() => out.push_str("\"id\":null,"),
        None => {}
    }
    out.push_str(&format!("\"error\":{{\"code\":{},\"message\":", error_code::of(fault)));
    write_str(&message(fault), &mut out);
    if let Some(data) = data(fault) {
        out.push_str(",\"data\":");
        out.push_str(&data);
    }
    out.push_str("}}");
    out
}

/// Returns the JSON-RPC error response for a message that was refused.
pub(crate) fn refusal_message(refusal: &Refusal) -> String {
    error_message(&refusal.fault, refusal.id.as_ref(), refusal.dialect)
}

/// Returns `error.message`. An upstream's own error keeps its message where its code is passed on. A fault
/// without an upstream's name shows none.
fn message(fault: &Fault) -> String {
    match fault {
        Fault::Upstream(UpstreamFault { kind: Kind::Error { code, message, .. }, .. })
            if error_code::passes(*code) =>
        {
            message.clone()
        }
        Fault::Upstream(UpstreamFault { kind: Kind::PagesFirst { message, .. }, .. }) => {
            message.clone()
        }
        Fault::Upstream(UpstreamFault { upstream, kind }) if upstream.is_empty() => {
            kind.to_string()
        }
        fault => fault.to_string(),
    }
}

/// Returns `error.data`: the stable reason and the details of the fault. An upstream's own error keeps its
/// own data where its code is passed on.
fn data(fault: &Fault) -> Option<String> {
    let reason = fault.reason();
    match fault {
        Fault::Upstream(UpstreamFault { upstream, kind }) => match kind {
            Kind::Error { code, data: Some(data), .. } if error_code::passes(*code) => {
                Some(data.clone())
            }
            Kind::PagesFirst { data, .. } => Some(data.clone()),
            Kind::Error { code, .. } if error_code::passes(*code) => {
                Some(format!(r#"{{"reason":"{reason}","upstream":"{upstream}"}}"#))
            }
            Kind::Error { code, .. } => Some(format!(
                r#"{{"reason":"{reason}","upstream":"{upstream}","upstreamCode":{code}}}"#
            )),
            _ if upstream.is_empty() => Some(format!(r#"{{"reason":"{reason}"}}"#)),
            _ => Some(format!(r#"{{"reason":"{reason}","upstream":"{upstream}"}}"#)),
        },
        Fault::Request(RequestFault::UnsupportedVersion { requested }) => {
            let supported: Vec<_> = Revision::modern().map(|r| format!("\"{r}\"")).collect();
            let supported = supported.join(",");
            let mut data =
                format!(r#"{{"reason":"{reason}","supported":[{supported}],"requested":"#);
            write_str(requested, &mut data);
            Some(data + "}")
        }
        Fault::Transport(TransportFault::RateLimited { limit, retry_after }) => {
            let millis = retry_after.as_nanos().div_ceil(1_000_000);
            let mut data = format!(r#"{{"reason":"{reason}","retryAfterMs":{millis},"limit":"#);
            write_str(limit, &mut data);
            Some(data + "}")
        }
        Fault::Request(RequestFault::CapabilityMissing { required }) => {
            Some(format!(r#"{{"reason":"{reason}","requiredCapabilities":{required}}}"#))
        }
        _ => Some(format!(r#"{{"reason":"{reason}"}}"#)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::json::JsonError;

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
