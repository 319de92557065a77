//! Requests of one session to the origin of an upstream, with its cookies and credentials.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{COOKIE, LOCATION};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;

use super::cookies::CookieJar;
use crate::auth::authorization::Authorization;
use base::platform::wall_clock;
use domain::fault::UpstreamFaultKind as Kind;
use domain::time::unix_time::UnixSeconds;
use net::egress::{Egress, ResponseBody};
use net::origin;

/// Most redirects (307, 308) that are followed per request, within the same origin only: enough for
/// a server that adds a slash.
const MAX_REDIRECTS: usize = 2;

/// Sends the requests of one session.
#[derive(Clone)]
pub(super) struct RequestSender {
    egress: Arc<Egress>,
    /// The credentials that may change from one request to the next.
    authorization: Option<Arc<Authorization>>,
    cookies: Arc<CookieJar>,
}

impl RequestSender {
    pub(super) fn new(egress: Egress, authorization: Option<Authorization>) -> Self {
        let authorization = authorization.map(Arc::new);
        Self { egress: egress.into(), authorization, cookies: Arc::default() }
    }

    /// Returns the sender for another session, which has no cookies yet.
    pub(super) fn for_session(&self) -> Self {
        Self { cookies: Arc::default(), ..self.clone() }
    }

    /// Returns the credentials that may change from one request to the next.
    pub(super) fn authorization(&self) -> Option<&Authorization> {
        self.authorization.as_deref()
    }

    /// Sends a request, with an access token if configured. A request that is refused with 401, or
    /// with 403 for an insufficient scope, was not processed: it is retried once with another
    /// token.
    pub(super) async fn send(
        &self,
        method: Method,
        url: &Uri,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Response<ResponseBody>, Kind> {
        match &self.authorization {
            None => self.send_once(method, url, headers, body).await,
            Some(tokens) => {
                Box::pin(self.send_authorized(tokens, method, url, headers, body)).await
            }
        }
    }

    async fn send_authorized(
        &self,
        tokens: &Authorization,
        method: Method,
        url: &Uri,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Response<ResponseBody>, Kind> {
        let token = tokens.header().await?;
        let mut headers = headers.clone();
        headers.extend(token.clone().map(|token| (tokens.name().clone(), token)));
        let response = self.send_once(method.clone(), url, &headers, body.clone()).await?;
        let another = match response.status() {
            StatusCode::UNAUTHORIZED => tokens.refused(token.as_ref(), response.headers()).await?,
            StatusCode::FORBIDDEN => {
                tokens.insufficient(token.as_ref(), response.headers()).await?
            }
            _ => None,
        };
        let Some(another) = another else { return Ok(response) };
        headers.insert(tokens.name(), another);
        self.send_once(method, url, &headers, body).await
    }

    async fn send_once(
        &self,
        method: Method,
        url: &Uri,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Response<ResponseBody>, Kind> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = Request::new(Full::new(body.clone()));
            *request.method_mut() = method.clone();
            *request.uri_mut() = url.clone();
            *request.headers_mut() = headers.clone();
            let now = UnixSeconds::from(wall_clock());
            if let Some(cookies) = self.cookies.header(&url, headers.get(COOKIE), now) {
                request.headers_mut().insert(COOKIE, cookies);
            }
            let response = self.egress.send(request).await?;
            self.cookies.keep(&url, response.headers(), now);
            match same_origin_redirect(&url, &response) {
                Some(next) => url = next,
                None => return Ok(response),
            }
        }
        Err(Kind::Protocol("more than two redirects".into()))
    }
}

/// Returns the target of a 307 or 308, if it has the same origin.
fn same_origin_redirect(url: &Uri, response: &Response<ResponseBody>) -> Option<Uri> {
    let status = response.status();
    if !matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT) {
        return None;
    }
    origin::resolve(url, response.headers().get(LOCATION)?.to_str().ok()?)
}
