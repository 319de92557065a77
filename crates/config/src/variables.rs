//! Environment variables whose names begin with `PROMPTGATE_` and that have no effect: a misspelt
//! override would otherwise go unnoticed.

use std::collections::HashSet;

use super::reader::raw::{ENV_PREFIX, LEVELS};
use super::telemetry::ENDPOINT_VARIABLE;
use base::platform::processes::GATEWAY_DEPTH;

/// Prefix of all variables of the gateway.
const PREFIX: &str = "PROMPTGATE_";

/// With the value `true`, debuggers may read the memory of the gateway (`cli::process`).
pub const ALLOW_PTRACE: &str = "PROMPTGATE_ALLOW_PTRACE";

/// The protocol of a collector, for all programs that use OpenTelemetry. One is supported.
const PROTOCOL_VARIABLE: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";

/// Variables that commands read, whatever the configuration.
pub(crate) const COMMAND_VARIABLES: [&str; 7] = [
    ALLOW_PTRACE,
    "PROMPTGATE_CONFIG",
    GATEWAY_DEPTH,
    "PROMPTGATE_API_KEY",
    "PROMPTGATE_ADMIN_TOKEN",
    "PROMPTGATE_AUDIT_KEY",
    "PROMPTGATE_SEAL_KEY",
];

/// Returns the names in `env` that nothing reads, sorted. `looked_up` are the variables that the
/// configuration names. Overrides with unknown keys are mistakes, and not reported here.
pub(super) fn unused(env: &[(String, String)], looked_up: &HashSet<String>) -> Vec<String> {
    let has_collector = env.iter().any(|(name, _)| name == ENDPOINT_VARIABLE);
    let is_other_protocol = |(name, value): &&(String, String)| {
        name == PROTOCOL_VARIABLE && has_collector && value.trim() != "http/protobuf"
    };
    let is_unused = |name: &&String| {
        name.starts_with(PREFIX)
            && !name.starts_with(ENV_PREFIX)
            && !COMMAND_VARIABLES.contains(&name.as_str())
            && !looked_up.contains(*name)
            && !is_of_kubernetes(name)
    };
    let protocol = env.iter().filter(is_other_protocol).map(|(name, _)| name);
    let names = env.iter().map(|(name, _)| name).filter(is_unused);
    let mut unused: Vec<_> = names.chain(protocol).cloned().collect();
    unused.sort();
    unused
}

/// Returns the remedy for an unused variable.
pub fn hint(name: &str) -> String {
    if name == PROTOCOL_VARIABLE {
        return format!(
            "{name} has no effect: telemetry is exported over HTTP with protobuf; let {ENDPOINT_VARIABLE} be the \
             port of the collector for that, which is 4318"
        );
    }
    let key = name.strip_prefix(PREFIX).unwrap_or(name).replacen('_', LEVELS, 1);
    format!(
        "{name} is ignored: no secret names it. Did you mean {ENV_PREFIX}{key}, with two underscores between the \
         levels?"
    )
}

/// Whether Kubernetes sets the variable in every pod for a service whose name begins with
/// `promptgate` (Kubernetes documentation, service discovery by environment variables).
fn is_of_kubernetes(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if name.ends_with("_SERVICE_HOST") || name.contains("_SERVICE_PORT") || name.ends_with("_PORT")
    {
        return true;
    }
    // `…_PORT_8080_TCP`, and the same with `_ADDR`, `_PORT` or `_PROTO`.
    let Some((_, rest)) = name.split_once("_PORT_") else {
        return false;
    };
    let mut parts = rest.split('_');
    parts.next().is_some_and(is_number)
        && parts.next().is_some_and(|protocol| ["TCP", "UDP", "SCTP"].contains(&protocol))
        && parts.next().is_none_or(|part| ["ADDR", "PORT", "PROTO"].contains(&part))
        && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_without_effect_are_found_and_those_of_kubernetes_are_not_meant() {
        let names = [
            "PROMPTGATE_SERVER_LISTEN",
            "PROMPTGATE__SERVER__LISTEN",
            "PROMPTGATE_CONFIG",
            "PROMPTGATE_REMOTE_TOKEN",
            "PROMPTGATE_UNNAMED_TOKEN",
            "PROMPTGATE_SERVICE_HOST",
            "PROMPTGATE_SERVICE_PORT_HTTP",
            "PROMPTGATE_PORT",
            "PROMPTGATE_PORT_8080_TCP",
            "PROMPTGATE_PORT_8080_TCP_PROTO",
            "PROMPTGATE_ADMIN_SERVICE_PORT",
            "PROMPTGATE_PORT_8080_TCP_X",
            "OTHER",
        ];
        let env = names.map(|name| (name.to_owned(), "x".to_owned()));
        let looked_up = HashSet::from(["PROMPTGATE_REMOTE_TOKEN".to_owned()]);
        let expected =
            ["PROMPTGATE_PORT_8080_TCP_X", "PROMPTGATE_SERVER_LISTEN", "PROMPTGATE_UNNAMED_TOKEN"];
        assert_eq!(unused(&env, &looked_up), expected);
        let otel = |protocol: &str| {
            let env = [(ENDPOINT_VARIABLE, "http://c:4317"), (PROTOCOL_VARIABLE, protocol)];
            unused(&env.map(|(name, value)| (name.to_owned(), value.to_owned())), &looked_up)
        };
        assert_eq!(otel("grpc"), [PROTOCOL_VARIABLE]);
        assert_eq!(otel("http/protobuf"), Vec::<String>::new());
        assert!(hint(PROTOCOL_VARIABLE).contains("4318"));
        assert!(hint("PROMPTGATE_SERVER_LISTEN").contains("PROMPTGATE__SERVER__LISTEN"));
    }
}
