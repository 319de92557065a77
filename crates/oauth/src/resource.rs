//! Protected-resource metadata (RFC 9728): which authorization server issues tokens for an
//! upstream.

use http::header::WWW_AUTHENTICATE;
use http::{HeaderMap, Uri};
use http_auth::ChallengeParser;
use serde_json::Value;

use domain::fault::excerpt;
use net::egress::{Egress, FetchError};
use net::issuer::{self, IssuerMetadata, safe_url};
use net::origin::{is_same_origin, with_path};

/// The metadata of an upstream as a protected resource.
pub struct UpstreamResource {
    /// Its resource indicator (RFC 8707).
    pub id: String,
    /// Its first authorization server.
    pub issuer: String,
    /// The scope in the challenge, which is enough for the request that was refused.
    pub challenged_scope: Option<String>,
    /// `scopes_supported`
    pub scopes: Vec<String>,
}

/// The parameters of a `Bearer` challenge (RFC 6750, section 3) about token requests.
#[derive(Debug, Default, Eq, PartialEq)]
pub struct BearerChallenge {
    /// URL of the protected-resource metadata (RFC 9728, section 5.1).
    pub resource_metadata: Option<String>,
    pub scope: Option<String>,
    /// Code of the error.
    pub error: Option<String>,
}

impl BearerChallenge {
    /// Returns the scope that the request needs, if the challenge says that its token lacks it (RFC
    /// 6750, section 3.1).
    pub fn insufficient_scope(self) -> Option<String> {
        self.scope.filter(|_| self.error.as_deref() == Some("insufficient_scope"))
    }

    /// Reads the challenges of all `WWW-Authenticate` lines: the first `Bearer` challenge that
    /// names `resource_metadata` counts, else the first `Bearer` challenge. The rest of a malformed
    /// line is skipped.
    pub fn read(headers: &HeaderMap) -> Self {
        let mut first = None;
        let lines = headers.get_all(WWW_AUTHENTICATE).into_iter().filter_map(|v| v.to_str().ok());
        let challenges = lines.flat_map(|line| ChallengeParser::new(line).map_while(Result::ok));
        for challenge in challenges.filter(|c| c.scheme.eq_ignore_ascii_case("bearer")) {
            let parameter = |name: &str| {
                let mut all = challenge.params.iter();
                let (_, value) = all.find(|(key, _)| key.eq_ignore_ascii_case(name))?;
                Some(value.to_unescaped())
            };
            let read = Self {
                resource_metadata: parameter("resource_metadata"),
                scope: parameter("scope"),
                error: parameter("error"),
            };
            if read.resource_metadata.is_some() {
                return read;
            }
            first.get_or_insert(read);
        }
        first.unwrap_or_default()
    }
}

/// Well-known path of protected-resource metadata (RFC 9728, section 3).
const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// Finds the authorization server of an upstream from the headers of its response with the status
/// 401 (MCP 2025-11-25, authorization server discovery).
///
/// # Errors
/// When there is no metadata, or it is that of another resource.
pub async fn discover(
    egress: &Egress,
    upstream: &Uri,
    response: &HeaderMap,
) -> Result<UpstreamResource, String> {
    let challenge = BearerChallenge::read(response);
    let (document, source) = match challenge.resource_metadata {
        Some(url) => (named_metadata(egress, upstream, &url).await?, url),
        None => well_known_metadata(egress, upstream).await?,
    };
    let text = |name: &str| document.get(name).and_then(Value::as_str);
    let id = text("resource").unwrap_or_default();
    if !covers(id, upstream) {
        let id = excerpt(id);
        return Err(format!("{source}: its resource is {id:?}, which does not cover {upstream}"));
    }
    let issuer = document.get("authorization_servers").and_then(|servers| servers.get(0)?.as_str());
    let issuer = issuer.ok_or_else(|| format!("{source}: it names no authorization server"))?;
    let scopes = document.get("scopes_supported").and_then(Value::as_array).into_iter().flatten();
    Ok(UpstreamResource {
        id: id.to_owned(),
        issuer: issuer.to_owned(),
        challenged_scope: challenge.scope,
        scopes: scopes.filter_map(Value::as_str).map(str::to_owned).collect(),
    })
}

impl UpstreamResource {
    /// Fetches the metadata of the authorization server. Then `issuer` is set as the metadata
    /// spells it.
    ///
    /// # Errors
    /// See [`issuer::discover`].
    pub async fn authorization_server(
        &mut self,
        egress: &Egress,
    ) -> Result<IssuerMetadata, String> {
        let metadata = issuer::discover(egress, &self.issuer).await?;
        metadata.issuer.clone_into(&mut self.issuer);
        Ok(metadata)
    }
}

/// Fetches the metadata at the URL that a challenge names, which must have the origin of the
/// upstream (RFC 9728, section 3).
async fn named_metadata(egress: &Egress, upstream: &Uri, named: &str) -> Result<Value, String> {
    let url = safe_url(named).filter(|url| is_same_origin(url, upstream));
    let url = url.ok_or_else(|| {
        format!("{:?} is not at the upstream's own origin, {upstream}", excerpt(named))
    })?;
    egress.get_json(&url).await.map_err(|error| format!("{url}: {error}"))
}

/// Fetches the metadata at its well-known URL, first with the path of the upstream, then without.
/// Returns it with its URL.
async fn well_known_metadata(egress: &Egress, upstream: &Uri) -> Result<(Value, String), String> {
    let path = upstream.path().trim_end_matches('/');
    let mut last = "the upstream names no protected-resource metadata".to_owned();
    for path in [format!("{WELL_KNOWN}{path}"), WELL_KNOWN.to_owned()] {
        let Some(url) = with_path(upstream, &path) else {
            continue;
        };
        match egress.get_json(&url).await {
            Ok(document) => return Ok((document, url.to_string())),
            Err(error @ FetchError::Status { .. }) => last = format!("{url}: {error}"),
            Err(error) => return Err(format!("{url}: {error}")),
        }
    }
    Err(last)
}

/// Returns whether the resource of protected-resource metadata covers a URL: the same origin, and
/// the same path or a parent of it.
fn covers(resource: &str, url: &Uri) -> bool {
    let Ok(resource) = resource.parse::<Uri>() else {
        return false;
    };
    let parent = resource.path().trim_end_matches('/');
    let below = url.path().strip_prefix(parent);
    is_same_origin(&resource, url)
        && below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn challenge(lines: &[&'static str]) -> (Option<String>, Option<String>) {
        let lines = lines.iter().map(|line| (WWW_AUTHENTICATE, HeaderValue::from_static(line)));
        let read = BearerChallenge::read(&lines.collect());
        (read.resource_metadata, read.scope)
    }

    #[test]
    fn the_bearer_challenge_is_found_among_all_header_lines() {
        let expected = (Some("https://a/b?c=d".to_owned()), Some("a b".to_owned()));
        let bearer = r#"Bearer error="a", resource_metadata="https://a/b?c=d", scope = "a b""#;
        assert_eq!(challenge(&[bearer]), expected);
        assert_eq!(challenge(&["Basic realm=\"x\"", bearer]), expected);
        assert_eq!(challenge(&["Negotiate", "Bearer", bearer]), expected);
        let one_line =
            r#"Basic realm="x", bearer resource_metadata="https://a/b?c=d", scope="a b""#;
        assert_eq!(challenge(&[one_line]), expected);
        assert_eq!(challenge(&["Bearer scope=one"]), (None, Some("one".to_owned())));
        assert_eq!(challenge(&[]), (None, None));
    }

    #[test]
    fn parameters_inside_quoted_text_and_of_other_schemes_do_not_count() {
        let quoted =
            r#"Bearer realm="x, resource_metadata=https://evil, scope=all", error="a\" b""#;
        assert_eq!(challenge(&[quoted]), (None, None));
        assert_eq!(challenge(&["Basic scope=all, resource_metadata=\"https://b\""]), (None, None));
        assert_eq!(challenge(&["Bearer scope==="]), (None, None));
    }

    #[test]
    fn a12_metadata_of_another_resource_is_refused() {
        let url: Uri = "https://a.example/team/mcp".parse().unwrap();
        for good in [
            "https://a.example/team/mcp",
            "https://a.example/team",
            "https://a.example/",
            "https://a.example",
        ] {
            assert!(covers(good, &url), "{good}");
        }
        for bad in [
            "https://evil.example/team/mcp",
            "http://a.example/team/mcp",
            "https://a.example:444/team/mcp",
            "https://a.example/team/mc",
            "https://a.example/other",
            "https://a.example/team/mcp/deeper",
            "",
        ] {
            assert!(!covers(bad, &url), "{bad}");
        }
    }
}
