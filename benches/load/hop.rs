//! The unit of all comparisons: the cheapest reverse proxy that can be built with hyper, which
//! forwards each request and its response as they are.
//!
//! Each client connection has an upstream connection, and one task drives both: nothing is handed
//! from thread to thread. A small body is read whole and written with its head in one system call.

use std::convert::Infallible;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

type Body = BoxBody<Bytes, hyper::Error>;

/// Bytes of a body that is read whole. A larger body is forwarded in the pieces in which it comes.
const WHOLE: u64 = 64 << 10;

/// Serves until it is killed.
pub async fn serve(target: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("{}", listener.local_addr().expect("an address"));
    while let Ok((stream, _)) = listener.accept().await {
        let target = target.to_owned();
        tokio::spawn(async move { forward_all(stream, &target).await });
    }
}

/// Forwards the requests of one client, one after another.
async fn forward_all(client: TcpStream, target: &str) {
    let _ = client.set_nodelay(true);
    let upstream = TcpStream::connect(target).await.expect("the upstream listens");
    let _ = upstream.set_nodelay(true);
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(upstream)).await;
    let (sender, connection) = handshake.expect("a connection");
    // The lock is free at each request: HTTP/1.1 has one request at a time.
    let sender = tokio::sync::Mutex::new(sender);
    let forward = service_fn(|request: Request<Incoming>| async {
        let (head, body) = request.into_parts();
        let request = Request::from_parts(head, forwarded(body).await);
        let mut sender = sender.lock().await;
        sender.ready().await.expect("the upstream is there");
        let response = sender.send_request(request).await.expect("the upstream responds");
        let (head, body) = response.into_parts();
        Ok::<_, Infallible>(Response::from_parts(head, forwarded(body).await))
    });
    let served = hyper::server::conn::http1::Builder::new();
    tokio::select! {
        _ = served.serve_connection(TokioIo::new(client), forward) => {}
        _ = connection => {}
    }
}

/// The body, read whole if it is announced as small.
async fn forwarded(body: Incoming) -> Body {
    match body.size_hint().exact() {
        Some(length) if length <= WHOLE => {
            let body = body.collect().await.expect("the peer sends it").to_bytes();
            Full::new(body).map_err(|never: Infallible| match never {}).boxed()
        }
        _ => body.boxed(),
    }
}
