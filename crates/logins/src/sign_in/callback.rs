//! The page on this machine to which the operator's browser returns (RFC 8252, section 7.3).

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;

/// The path of the page.
pub const PATH: &str = "/callback";

/// The listener of one sign-in.
pub struct Callback {
    listener: TcpListener,
    address: SocketAddr,
    arrivals: mpsc::Sender<Arrival>,
}

/// A browser that has returned, and waits for a page.
pub struct Arrival {
    /// The query of the address.
    pub query: String,
    answer: oneshot::Sender<(StatusCode, CallbackPage)>,
}

/// The page that the browser shows. Both members are texts of the gateway.
struct CallbackPage {
    title: &'static str,
    text: String,
}

impl Arrival {
    /// Shows that the sign-in has succeeded.
    pub fn succeed(self, upstream: &str) {
        let text = format!("The gateway may now use {upstream}. You can close this page.");
        let _ = self.answer.send((StatusCode::OK, CallbackPage { title: "Signed in", text }));
    }

    /// Shows why the sign-in has failed.
    pub fn refuse(self, why: &str) {
        let text = format!("{why}. The terminal in which you began says more.");
        let _ = self
            .answer
            .send((StatusCode::BAD_REQUEST, CallbackPage { title: "Not signed in", text }));
    }
}

impl Callback {
    /// Listens on a loopback address; on a free port for 0. Returns the receiver of browsers that
    /// return.
    ///
    /// # Errors
    /// When the port is taken.
    pub async fn listen(port: u16) -> std::io::Result<(Self, mpsc::Receiver<Arrival>)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let address = listener.local_addr()?;
        let (arrivals, receiver) = mpsc::channel(1);
        Ok((Self { listener, address, arrivals }, receiver))
    }

    pub fn redirect_uri(&self) -> String {
        format!("http://{}{PATH}", self.address)
    }

    /// Answers browsers, until it is dropped.
    pub async fn serve(self, tasks: &TaskTracker) -> Infallible {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else { continue };
            let arrivals = self.arrivals.clone();
            let address = self.address;
            let service = service_fn(move |request| answer(request, arrivals.clone(), address));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            tasks.spawn(async move {
                let _ = connection.await;
            });
        }
    }
}

async fn answer(
    request: Request<Incoming>,
    arrivals: mpsc::Sender<Arrival>,
    address: SocketAddr,
) -> Result<Response<Full<Bytes>>, Infallible> {
    // A page of another site may use another name for this address, to be taken for this page (DNS
    // rebinding).
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let is_here = host.is_some_and(|host| host == address.to_string());
    if !is_here || request.method() != Method::GET || request.uri().path() != PATH {
        let text = "There is nothing here.".to_owned();
        return Ok(page(StatusCode::NOT_FOUND, &CallbackPage { title: "Not found", text }));
    }
    let (answer, answered) = oneshot::channel();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let _ = arrivals.send(Arrival { query, answer }).await;
    let over = || {
        let text = "The sign-in is over.".to_owned();
        (StatusCode::GONE, CallbackPage { title: "Not signed in", text })
    };
    let (status, shown) = answered.await.unwrap_or_else(|_| over());
    Ok(page(status, &shown))
}

fn page(status: StatusCode, CallbackPage { title, text }: &CallbackPage) -> Response<Full<Bytes>> {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title} · promptgate</title>\
         <h1>{title}</h1><p>{text}</p></html>"
    );
    let mut response = Response::new(Full::new(Bytes::from(html)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    // The address contains the code: browsers must neither store it nor hand it on.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let policy = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    response
}
