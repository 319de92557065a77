//! `[telemetry]`: log, spans and metrics.

use http::Uri;

use super::net::Proxies;
use super::reader::{Section, optional, table};

table! {
    /// The configuration of log, spans and metrics.
    #[derive(Clone, Debug, PartialEq)]
    pub struct TelemetrySettings(section, key, proxies: Proxies) {
        /// Filter of the log on standard error.
        #[default = "info"] #[example = "promptgate=debug,info"]
        pub log: String = section.parsed(key, FILTER_RULE, filter).unwrap_or_else(|| "info".to_owned());
        /// `text`, `json`, or `auto`: text on a terminal, JSON elsewhere.
        pub log_format: LogFormat = section.choice(key, LogFormat::Auto, &FORMATS);
        /// Base URL of an OpenTelemetry collector (OTLP over HTTP, protobuf) for traces, metrics
        /// and logs. Not set: the variable `OTEL_EXPORTER_OTLP_ENDPOINT`. `/v1/traces` at its end
        /// is understood. `""`, or `OTEL_SDK_DISABLED=true` in the environment, exports nothing.
        #[example = "http://127.0.0.1:4318"]
        let otlp_endpoint: Option<Option<String>> =
            section.parsed(key, COLLECTOR_RULE, |text| optional(text, collector));
        /// Base URL of the collector, without a slash at the end. `None`: nothing is exported.
        field pub otlp: Option<String> = exported_to(section, otlp_endpoint);
        /// Part of the recorded traces among those that start at the gateway. For others the client
        /// has decided.
        pub trace_sample: f64 = section.fraction(key, 1.0);
        /// `service.name` of all telemetry.
        pub service_name: String = section.text(key, "promptgate");
        /// Prompts with a metric label of their own, half of them after 16 or 256 uses. The rest is
        /// counted as `_other`.
        pub max_prompts: usize = section.count(key, 2_000, 1..=100_000);
        field pub proxies: Proxies = proxies;
    }
}

/// Format of the log on standard error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// One JSON object per line.
    Json,
    Text,
}

/// Environment variable with the collector, for all programs that use OpenTelemetry (OTLP exporter
/// specification).
pub(super) const ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// Environment variable that switches off the export of all such programs (OpenTelemetry, general
/// SDK configuration).
const DISABLED_VARIABLE: &str = "OTEL_SDK_DISABLED";

/// The paths of the kinds of data, which follow the base URL (OTLP specification).
const SIGNAL_PATHS: [&str; 3] = ["/v1/traces", "/v1/metrics", "/v1/logs"];

const FORMATS: [(&str, LogFormat); 3] =
    [("auto", LogFormat::Auto), ("json", LogFormat::Json), ("text", LogFormat::Text)];

const FILTER_RULE: &str = "a filter such as \"info\" or \"promptgate=debug,info\"";

pub(super) const COLLECTOR_RULE: &str =
    "\"\" or the base URL of a collector with http or https, such as \"http://127.0.0.1:4318\"";

fn filter(text: &str) -> Option<String> {
    let is_filter = text.parse::<tracing_subscriber::filter::Targets>().is_ok();
    is_filter.then(|| text.to_owned())
}

/// Returns the collector from the file or the environment, which may switch off the export.
fn exported_to(section: &Section<'_>, configured: Option<Option<String>>) -> Option<String> {
    let from_variable = || section.variable(ENDPOINT_VARIABLE).and_then(|text| collector(&text));
    let is_off =
        section.variable(DISABLED_VARIABLE).is_some_and(|v| v.eq_ignore_ascii_case("true"));
    configured.unwrap_or_else(from_variable).filter(|_| !is_off)
}

pub(super) fn collector(text: &str) -> Option<String> {
    let url: Uri = text.parse().ok()?;
    let is_http = matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some();
    let base = text.trim_end_matches('/');
    let base = SIGNAL_PATHS.iter().find_map(|path| base.strip_suffix(path)).unwrap_or(base);
    is_http.then(|| base.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::schema_check;

    #[test]
    fn the_collector_in_the_file_takes_precedence_over_the_variable() {
        let env = [("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), "http://env:4318/".to_owned())];
        let parse = |toml: &str, env: &[(String, String)]| {
            schema_check::parse("g", &format!("[telemetry]\n{toml}"), Path::new(""), env)
        };
        let otlp = |toml: &str, env: &[(String, String)]| parse(toml, env).unwrap().telemetry.otlp;
        assert_eq!(otlp("", &[]), None);
        assert_eq!(otlp("", &env).as_deref(), Some("http://env:4318"));
        for path in ["/v1/traces", "/v1/metrics/", "//v1/logs", "/"] {
            let toml = format!("otlp_endpoint = \"http://c:4318/otlp{path}\"\n");
            assert_eq!(otlp(&toml, &env).as_deref(), Some("http://c:4318/otlp"), "{path}");
        }
        let off = ("OTEL_SDK_DISABLED".to_owned(), " TRUE".to_owned());
        assert_eq!(otlp("otlp_endpoint = \"http://c:4318\"\n", &[off]), None);
        assert_eq!(otlp("otlp_endpoint = \"\"\n", &env), None, "the export is disabled");
        let file = "otlp_endpoint = \"https://file:4318/x\"\ntrace_sample = 0.25\n";
        assert_eq!(otlp(file, &env).as_deref(), Some("https://file:4318/x"));
        for wrong in ["otlp_endpoint = \"grpc://x\"", "trace_sample = 1.1", "max_prompts = 0"] {
            assert!(parse(wrong, &[]).is_err(), "{wrong}");
        }
    }
}
