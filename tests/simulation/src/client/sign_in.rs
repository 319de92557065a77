//! A person in a browser, who signs in to an upstream as the caller of a client.

use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::Value;

use super::Client;
use crate::machine::trace;
use crate::plan::address_of;

const PAGE: &str = "/mcp/sign_in";

/// Signs in with the link and the code of an error or of a list. Any step may fail, and may be at
/// another replica.
pub async fn sign_in(client: &mut Client, asked: &Value) -> Option<()> {
    let link = asked["url"].as_str()?.split_once("link=")?.1;
    let form = format!("link={link}&code={}", asked["code"].as_str()?);
    let clicked = browse(client, Method::POST, PAGE, "", form).await?;
    let header = |name| clicked.headers().get(name)?.to_str().ok();
    let cookie = header(header::SET_COOKIE)?.split(';').next()?.to_owned();
    let away = header(header::LOCATION)?;
    let caller = &client.caller.id;
    let query = client.world.upstreams().iter().find_map(|own| own.agree(away, caller))?;
    let back = format!("{PAGE}/callback?{query}");
    let ended = browse(client, Method::GET, &back, &cookie, String::new()).await?;
    trace::note(&client.plan.name, &format!("signs in: {}", ended.status()));
    Some(())
}

async fn browse(
    client: &mut Client,
    method: Method,
    path: &str,
    cookie: &str,
    form: String,
) -> Option<Response<Incoming>> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, address_of(0).to_string())
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header(header::COOKIE, cookie)
        .body(Full::from(Bytes::from(form)))
        .expect("a request");
    let mut connection = client.connect().await?;
    connection.sender.send_request(request).await.ok()
}
