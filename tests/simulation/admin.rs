//! The admin side of the gateway, as an operator sees it.

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use crate::plan::{GATEWAY, admin_of};
use crate::world::World;

/// The metrics of a replica, as text.
pub async fn metrics(world: &World, replica: usize) -> String {
    let Ok(socket) = world.machine.network.dial(GATEWAY, admin_of(replica)).await else {
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
