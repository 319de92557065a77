//! `[telemetry]`: what the gateway says about itself, and to whom.

use http::Uri;

use super::reader::Section;

/// Logs, spans and metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct Telemetry {
    /// A filter of `tracing`, such as `info` or `promptgate=debug,info`.
    pub log: String,
    pub log_format: LogFormat,
    /// Base URL of a collector, without a slash at the end; absent: nothing is sent.
    pub otlp: Option<String>,
    /// Part of the traces that begin here and are recorded, from 0 to 1.
    pub trace_sample: f64,
    pub service_name: String,
    /// Values of one label that are told apart.
    pub label_values: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    Json,
    Text,
}

/// Where the environment names the collector for all programs (OpenTelemetry, OTLP exporter).
const ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

pub(super) fn read(mut section: Section<'_>) -> Telemetry {
    let formats = [("auto", LogFormat::Auto), ("json", LogFormat::Json), ("text", LogFormat::Text)];
    let filter = |text: &str| {
        let valid = text.parse::<tracing_subscriber::filter::Targets>().is_ok();
        valid.then(|| text.to_owned())
    };
    let filters = "a filter such as \"info\" or \"promptgate=debug,info\"";
    let rule = "\"\" or the base URL of a collector, such as \"http://127.0.0.1:4318\"";
    let given = section.parsed("otlp_endpoint", rule, collector);
    let by_environment = || section.variable(ENDPOINT_VARIABLE).and_then(|text| collector(&text)?);
    let otlp = given.unwrap_or_else(by_environment);
    let telemetry = Telemetry {
        log: section.parsed("log", filters, filter).unwrap_or_else(|| "info".to_owned()),
        log_format: section.choice("log_format", LogFormat::Auto, &formats),
        otlp,
        trace_sample: section.fraction("trace_sample", 1.0),
        service_name: section.text("service_name", "promptgate"),
        label_values: section.count("label_values", 1_000, 1..=100_000),
    };
    section.finish();
    telemetry
}

/// Some(None) is the empty text: no collector.
fn collector(text: &str) -> Option<Option<String>> {
    if text.is_empty() {
        return Some(None);
    }
    let uri: Uri = text.parse().ok()?;
    let http = matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
    http.then(|| Some(text.trim_end_matches('/').to_owned()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    #[test]
    fn a_collector_is_named_by_the_file_or_else_by_the_environment() {
        let env = [("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), "http://env:4318/".to_owned())];
        let parse = |toml: &str, env: &[(String, String)]| {
            Config::parse("g", &format!("[telemetry]\n{toml}"), Path::new(""), env)
        };
        let otlp = |toml: &str, env: &[(String, String)]| parse(toml, env).unwrap().telemetry.otlp;
        assert_eq!(otlp("", &[]), None);
        assert_eq!(otlp("", &env).as_deref(), Some("http://env:4318"));
        assert_eq!(otlp("otlp_endpoint = \"\"\n", &env), None, "it is switched off");
        let file = "otlp_endpoint = \"https://file:4318/x\"\ntrace_sample = 0.25\n";
        assert_eq!(otlp(file, &env).as_deref(), Some("https://file:4318/x"));
        for wrong in ["otlp_endpoint = \"grpc://x\"", "trace_sample = 1.1", "label_values = 0"] {
            assert!(parse(wrong, &[]).is_err(), "{wrong}");
        }
    }
}
