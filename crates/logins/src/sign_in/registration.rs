//! Dynamic client registration (RFC 7591).

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Uri};
use http_body_util::Full;
use serde_json::{Value, json};

use super::Registered;
use net::egress::Egress;

/// The path below the sign-in page of the gateway to which browsers of callers come back.
pub const CALLBACK: &str = "/callback";

/// Returns the metadata of a native client (RFC 7591, section 2; RFC 8252), or of a web client if
/// its redirect URI has https. A client without a redirect URI uses the device flow.
pub(super) fn metadata(redirect_uri: Option<&str>) -> Value {
    let mut metadata = json!({
        "client_name": "promptgate",
        "application_type": "native",
        "token_endpoint_auth_method": "none",
        "grant_types": ["urn:ietf:params:oauth:grant-type:device_code", "refresh_token"],
        "response_types": [],
        "redirect_uris": [],
    });
    if let Some(uri) = redirect_uri {
        metadata["grant_types"] = json!(["authorization_code", "refresh_token"]);
        metadata["response_types"] = json!(["code"]);
        metadata["redirect_uris"] = json!([uri]);
        if uri.starts_with("https:") {
            metadata["application_type"] = json!("web");
        }
    }
    metadata
}

/// Returns the document about the gateway whose URL is its client id. Any port of a loopback
/// address must be accepted (RFC 8252, section 7.3); browsers of callers come back to `page`.
pub fn document(url: &str, page: Option<&str>) -> Value {
    let mut document = metadata(Some("http://127.0.0.1/callback"));
    document["client_id"] = json!(url);
    if let (Some(page), Some(uris)) = (page, document["redirect_uris"].as_array_mut()) {
        uris.push(json!(format!("{page}{CALLBACK}")));
    }
    document
}

/// Registers the gateway as a client.
pub(super) async fn register(
    egress: &Egress,
    endpoint: &Uri,
    methods: &[String],
    redirect_uri: Option<&str>,
) -> Result<Registered, String> {
    let mut client = metadata(redirect_uri);
    client["token_endpoint_auth_method"] = json!(method(methods));
    let mut request = Request::new(Full::new(Bytes::from(client.to_string())));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = endpoint.clone();
    let json = HeaderValue::from_static("application/json");
    request.headers_mut().insert(CONTENT_TYPE, json.clone());
    request.headers_mut().insert(ACCEPT, json);
    let response = egress.json(request).await.map_err(|error| {
        format!(
            "{endpoint} does not register the gateway: {error}; register it by hand, and set client_id in the \
             upstream's credential"
        )
    })?;
    read(&response).ok_or_else(|| format!("{endpoint}: the response has no client_id"))
}

/// Returns the authentication method of the client: `none`, unless the authorization server
/// supports only secrets (`token_endpoint_auth_methods_supported`; RFC 8414, section 2).
fn method(supported: &[String]) -> &str {
    let known = ["none", "client_secret_basic", "client_secret_post"];
    known.into_iter().find(|known| supported.iter().any(|own| own == known)).unwrap_or("none")
}

fn read(response: &Value) -> Option<Registered> {
    let text = |name: &str| response.get(name).and_then(Value::as_str);
    let method = text("token_endpoint_auth_method").unwrap_or("client_secret_basic");
    let secret = text("client_secret").filter(|secret| method != "none" && !secret.is_empty());
    Some(Registered {
        id: text("client_id").filter(|id| !id.is_empty())?.to_owned(),
        secret: secret.map(str::to_owned),
        posts_secret: method == "client_secret_post",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_native_client_is_registered_without_a_secret() {
        let code = metadata(Some("http://127.0.0.1:7/callback"));
        assert_eq!(code["redirect_uris"], json!(["http://127.0.0.1:7/callback"]));
        assert_eq!(code["application_type"], "native");
        assert_eq!(metadata(None)["redirect_uris"], json!([]));
        let registered = |response: Value| read(&response);
        let public = registered(json!({"client_id": "c", "client_secret": "s",
            "token_endpoint_auth_method": "none"}));
        assert_eq!(public.unwrap().secret, None);
        let secret = registered(json!({"client_id": "c", "client_secret": "s",
            "token_endpoint_auth_method": "client_secret_post"}));
        let secret = secret.unwrap();
        assert_eq!((secret.secret.as_deref(), secret.posts_secret), (Some("s"), true));
        assert!(registered(json!({"client_id": ""})).is_none());
        assert!(registered(json!({})).is_none());
        let methods = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            method(&methods(&["client_secret_post", "client_secret_basic"])),
            "client_secret_basic"
        );
        assert_eq!(method(&methods(&["client_secret_basic", "none"])), "none");
        assert_eq!(method(&methods(&["private_key_jwt"])), "none");
    }
}
