//! The admin side of the gateway, as an operator sees it.

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use crate::plan::GATEWAY;
use crate::world::World;

/// The metrics, as text.
pub async fn metrics(world: &World) -> String {
    let Ok(socket) = world.machine.network.dial(GATEWAY, (GATEWAY, 9877).into()).await else {
        return String::new();
    };
    let Ok((mut sender, driver)) = http1::handshake(TokioIo::new(socket)).await else {
        return String::new();
    };
    let driver = tokio::spawn(async move { drop(driver.await) });
    let request = Request::get("/metrics").header(header::HOST, "127.0.0.1:9877");
    let request = request.body(Empty::<Bytes>::new()).expect("a request");
    let text = async {
        let body = sender.send_request(request).await.ok()?.into_body().collect().await.ok()?;
        String::from_utf8(body.to_bytes().to_vec()).ok()
    };
    let text = text.await.unwrap_or_default();
    driver.abort();
    text
}
