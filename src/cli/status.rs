//! `promptgate status`: how a running gateway and its upstreams are.

use std::path::Path;

use http::header::AUTHORIZATION;
use http::{HeaderValue, Request, Uri};
use http_body_util::Full;
use serde_json::{Value, json};

use super::text::{columns, print, printable};
use super::{Failure, load, runtime};
use crate::config::is_safe;
use crate::domain::address_policy::AddressPolicy;
use crate::net::egress::{CONNECT, Egress, NoDocument};

/// Where the token comes from: on the command line everybody on the machine could read it.
const TOKEN_VARIABLE: &str = "PROMPTGATE_ADMIN_TOKEN";

const DEFAULT: &str = "http://127.0.0.1:9090";

pub(super) fn run(url: Option<&str>, config: &Path, as_json: bool) -> Result<(), Failure> {
    let url = match url {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None if config.exists() => {
            let admin = load(config)?.admin;
            let off = "the configuration has no admin side (admin.listen is \"\")";
            format!("http://{}", admin.ok_or_else(|| Failure::new(off))?.listen)
        }
        None => DEFAULT.to_owned(),
    };
    let (status, upstreams) = runtime()?.block_on(async {
        let egress =
            Egress::new(CONNECT, None, AddressPolicy::BeyondTheLink).map_err(Failure::new)?;
        let status = fetch(&egress, &url, "/api/v1/status").await?;
        Ok::<_, Failure>((status, fetch(&egress, &url, "/api/v1/upstreams").await?))
    })?;
    match as_json {
        true => {
            let all = json!({"status": status, "upstreams": upstreams["upstreams"]});
            print(&format!("{all:#}"))?;
        }
        false => print(&text(&status, &upstreams))?,
    }
    match status["ready"] == true {
        true => Ok(()),
        false => Err(Failure::new("the gateway is not ready")),
    }
}

async fn fetch(egress: &Egress, url: &str, path: &str) -> Result<Value, Failure> {
    let full = format!("{url}{path}");
    let uri: Uri = full.parse().map_err(|_| Failure::usage(format!("{url} is no URL")))?;
    let mut request = Request::new(Full::default());
    if let Ok(token) = std::env::var(TOKEN_VARIABLE) {
        if !is_safe(&uri) {
            let what = format!(
                "{TOKEN_VARIABLE} is not sent to {url}, where others can read it: use https or a tunnel"
            );
            return Err(Failure::usage(what));
        }
        let value = HeaderValue::from_str(&format!("Bearer {token}"));
        let value = value.map_err(|_| Failure::usage(format!("{TOKEN_VARIABLE} is no token")))?;
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    *request.uri_mut() = uri;
    egress.json(request).await.map_err(|error| {
        let hint = match &error {
            NoDocument::Status { status, .. } if status.as_u16() == 401 => {
                format!("; set {TOKEN_VARIABLE} to admin.token")
            }
            NoDocument::Status { .. } => String::new(),
            NoDocument::Broken(_) => {
                "; is `promptgate serve` running, with this admin.listen?".into()
            }
        };
        Failure::new(format!("{full}: {error}{hint}"))
    })
}

fn text(status: &Value, upstreams: &Value) -> String {
    let word = |value: &Value| value.as_str().map(printable).unwrap_or_default();
    let state = if status["ready"] == true { "ready" } else { "not ready" };
    let mut out = format!(
        "promptgate {}, {state}, up {} s, audit {}\nconfiguration {}\n",
        word(&status["version"]),
        status["uptimeSecs"],
        word(&status["audit"]),
        word(&status["configDigest"])
    );
    for why in status["why"].as_array().into_iter().flatten() {
        out.push_str(&format!("  {}\n", word(why)));
    }
    for mistake in status["reloads"]["mistakes"].as_array().into_iter().flatten() {
        out.push_str(&format!("  the file cannot be used: {}\n", word(mistake)));
    }
    for key in status["reloads"]["needsRestart"].as_array().into_iter().flatten() {
        out.push_str(&format!("  needs a restart: {}\n", word(key)));
    }
    let names =
        ["upstream", "transport", "state", "revision", "listed", "ageSecs", "inFlight", "breaker"];
    let rows = upstreams["upstreams"].as_array().map_or(&[][..], Vec::as_slice);
    out.push('\n');
    out.push_str(&columns(&names, rows));
    let mut lead = "\n\n";
    for row in rows {
        if let Some(message) = row["error"]["message"].as_str() {
            let upstream = word(&row["upstream"]);
            out.push_str(&format!("{lead}{upstream}: {}", printable(message)));
            lead = "\n";
        }
    }
    out
}
