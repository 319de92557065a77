//! The unit of all comparisons: a minimal reverse proxy with hyper, which forwards each request and
//! its response as they are.

use std::convert::Infallible;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

/// Serves until it is killed. Each client connection has an upstream connection of its own.
pub async fn serve(target: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("{}", listener.local_addr().expect("an address"));
    while let Ok((stream, _)) = listener.accept().await {
        let target = target.to_owned();
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            let upstream = TcpStream::connect(&target).await.expect("the upstream listens");
            let _ = upstream.set_nodelay(true);
            let handshake = hyper::client::conn::http1::handshake(TokioIo::new(upstream)).await;
            let (sender, connection) = handshake.expect("a connection");
            tokio::spawn(connection);
            let sender = tokio::sync::Mutex::new(sender);
            let forward = service_fn(|request: Request<Incoming>| {
                let sender = &sender;
                async move {
                    let mut sender = sender.lock().await;
                    let response = match sender.ready().await {
                        Ok(()) => sender.send_request(request).await,
                        Err(error) => Err(error),
                    };
                    Ok::<Response<Incoming>, Infallible>(response.expect("the upstream responds"))
                }
            });
            let served = hyper::server::conn::http1::Builder::new();
            let _ = served.serve_connection(TokioIo::new(stream), forward).await;
        });
    }
}
