//! A library in a repository on an https server with an authority of its own: reached directly, and
//! through a proxy.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::git::{Repository, fails, serves, text};
use crate::support::{Gateway, eventually};

/// A name that only the proxy of these tests finds.
const FAR: &str = "git.example.test";

/// A git server: `git http-backend` behind https.
struct GitServer {
    port: u16,
    /// The file of its authority.
    ca: PathBuf,
    /// The heads of its requests.
    heads: Arc<Mutex<Vec<String>>>,
}

impl GitServer {
    fn start(repository: &Repository) -> Self {
        Self::start_within(repository, usize::MAX)
    }

    /// A server that stops in the middle of an answer of more than so many bytes.
    fn start_within(repository: &Repository, most: usize) -> Self {
        let root = repository.folder().to_owned();
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.distinguished_name.push(DnType::CommonName, "authority");
        let authority =
            CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let ca = root.join("ca.pem");
        fs::write(&ca, authority.pem()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = ["localhost", "127.0.0.1", FAR].map(str::to_owned);
        let cert = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
        let cert = CertificateDer::from_pem_slice(cert.pem().as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(base::seal::provider::tls())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert], key)
            .unwrap();
        let (config, heads) = (Arc::new(config), Arc::<Mutex<Vec<String>>>::default());
        let seen = heads.clone();
        let port = listen(move |stream| {
            let connection = ServerConnection::new(config.clone()).unwrap();
            // One that refuses the certificate goes away.
            if let Some(head) = answer(StreamOwned::new(connection, stream), &root, most) {
                seen.lock().unwrap().push(head);
            }
        });
        Self { port, ca, heads }
    }
}

/// Serves each connection on a thread of its own; returns the port.
fn listen(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream.unwrap()));
        }
    });
    port
}

/// Reads lines up to an empty one; nothing if there is none.
fn head(reader: &mut impl BufRead) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    Some(head)
}

/// Answers one request as a CGI host does (RFC 3875), and returns its head.
fn answer(stream: impl Read + Write, root: &Path, most: usize) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let head = head(&mut reader)?;
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
    };
    let mut words = head.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut body = vec![0; header("content-length").parse().unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    let mut git = Command::new("git")
        .arg("http-backend")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REQUEST_METHOD", method)
        .env("PATH_INFO", path)
        .env("QUERY_STRING", query)
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("GIT_PROTOCOL", header("git-protocol"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    git.stdin.take().unwrap().write_all(&body).unwrap();
    let output = git.wait_with_output().unwrap().stdout;
    let end = output.windows(4).position(|four| four == b"\r\n\r\n").expect("the head of a CGI");
    let fields = String::from_utf8_lossy(&output[..end]);
    let status = fields.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK");
    let length = output.len() - end - 4;
    let head_back = format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{fields}\r\n\r\n"
    );
    let stream = reader.get_mut();
    stream.write_all(head_back.as_bytes()).ok()?;
    let body = &output[end + 4..];
    stream.write_all(&body[..most.min(length)]).ok()?;
    stream.flush().ok()?;
    if most < length {
        // Until the client gives up.
        let _ = reader.read_exact(&mut [0]);
    }
    Some(head)
}

/// A proxy that leads every name to the server, for a user `ada` with the password `pr0xy pass`;
/// returns its port and the heads of its requests.
fn proxy(server: u16) -> (u16, Arc<Mutex<Vec<String>>>) {
    let heads = Arc::<Mutex<Vec<String>>>::default();
    let seen = heads.clone();
    let port = listen(move |stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let Some(head) = head(&mut reader) else { return };
        // ada:pr0xy pass
        let is_allowed = head.contains("Proxy-Authorization: Basic YWRhOnByMHh5IHBhc3M=\r\n");
        seen.lock().unwrap().push(head);
        if !is_allowed {
            let refused = b"HTTP/1.1 407 no\r\nProxy-Authenticate: Basic realm=\"x\"\r\n\
                            Content-Length: 0\r\nConnection: close\r\n\r\n";
            reader.get_mut().write_all(refused).unwrap();
            return;
        }
        let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
        let mut client = stream;
        client.write_all(b"HTTP/1.1 200 connected\r\n\r\n").unwrap();
        let mut back = (server.try_clone().unwrap(), client);
        thread::spawn(move || {
            let _ = std::io::copy(&mut back.0, &mut back.1);
            let _ = back.1.shutdown(std::net::Shutdown::Both);
        });
        let _ = std::io::copy(&mut reader, &mut &server);
        let _ = server.shutdown(std::net::Shutdown::Both);
    });
    (port, heads)
}

/// The table of the upstream, with this URL and these keys.
fn table(repository: &Repository, url: &str, keys: &str) -> String {
    let table = repository.table(keys);
    let file = table.lines().find(|line| line.starts_with("url = ")).unwrap();
    table.replace(file, &format!("url = \"{url}\""))
}

const CREDENTIAL: &str = "credential = { password = { value = \"s3cret-token\" } }\n";

#[tokio::test]
async fn a_repository_behind_https_is_fetched_shallow_from_the_server_that_ca_vouches_for() {
    let repository = Repository::new();
    repository.commit("two");
    let server = GitServer::start(&repository);
    let url = format!("https://localhost:{}/work/.git", server.port);
    let gateway = Gateway::start(&table(&repository, &url, CREDENTIAL)).await;
    fails(&gateway, "certificate").await;
    assert_eq!(text(&gateway).await, None);
    assert!(server.heads.lock().unwrap().is_empty(), "no secret for a server nobody vouches for");
    gateway.drain().await;
    let keys = format!("{CREDENTIAL}ca = \"{}\"\n", server.ca.display());
    let gateway = Gateway::start(&table(&repository, &url, &keys)).await;
    serves(&gateway, "two").await;
    repository.commit("three");
    serves(&gateway, "three").await;
    gateway.drain().await;
    let heads = server.heads.lock().unwrap();
    // x-access-token:s3cret-token
    let expected = "Authorization: Basic eC1hY2Nlc3MtdG9rZW46czNjcmV0LXRva2Vu";
    assert!(heads.iter().all(|head| head.contains(expected)), "{heads:?}");
    let state = repository.folder().join("state/team/repository");
    assert!(state.join("shallow").is_file(), "without the commits below");
    let kept = fs::read_dir(state.join("objects/pack")).unwrap().count();
    assert!(kept > 0, "{kept}");
}

#[tokio::test]
async fn a_repository_that_takes_too_long_is_said_so_with_its_size_and_the_limits() {
    let repository = Repository::new();
    // Nothing of it can be compressed.
    let mut state = 1_u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    let large: Vec<u8> = (0..4 << 20).map(|_| noise()).collect();
    fs::write(repository.work().join("prompts/large.bin"), large).unwrap();
    repository.commit("large");
    let server = GitServer::start_within(&repository, 3 << 20);
    let url = format!("https://localhost:{}/work/.git", server.port);
    let keys = format!("ca = \"{}\"\nwalk_timeout = \"3s\"\n", server.ca.display());
    let gateway = Gateway::start(&table(&repository, &url, &keys)).await;
    let shown = fails(&gateway, "was not complete within walk_timeout = 3s").await;
    let message = shown["error"]["message"].as_str().unwrap();
    assert!(message.contains("2 MiB so far") && message.contains("at most 256 MiB"), "{message}");
    // Each attempt begins without the rest of the one before.
    let asked = server.heads.lock().unwrap().len();
    eventually(async || server.heads.lock().unwrap().len(), |now| *now > asked + 6).await;
    let shown = fails(&gateway, "was not complete within walk_timeout = 3s").await;
    assert!(shown.to_string().contains("2 MiB so far"), "{shown}");
    gateway.drain().await;
}

#[tokio::test]
async fn a_public_repository_needs_no_credential() {
    let repository = Repository::new();
    let server = GitServer::start(&repository);
    let url = format!("https://localhost:{}/work/.git", server.port);
    let keys = format!("ca = \"{}\"\n", server.ca.display());
    let gateway = Gateway::start(&table(&repository, &url, &keys)).await;
    serves(&gateway, "one").await;
    gateway.drain().await;
    assert!(!server.heads.lock().unwrap().concat().contains("Authorization"));
}

#[tokio::test]
async fn a_repository_that_only_the_proxy_finds_is_fetched_through_it() {
    let repository = Repository::new();
    let server = GitServer::start(&repository);
    let (proxy, asked) = proxy(server.port);
    let url = format!("https://{FAR}/work/.git");
    let keys = format!("{CREDENTIAL}ca = \"{}\"\n", server.ca.display());
    let net = format!("[net]\nproxy = \"http://ada:pr0xy%20pass@127.0.0.1:{proxy}\"\n");
    let gateway = Gateway::start(&(net + &table(&repository, &url, &keys))).await;
    serves(&gateway, "one").await;
    gateway.drain().await;
    let asked = asked.lock().unwrap();
    let expected = format!("CONNECT {FAR}:443 HTTP/1.1\r\n");
    assert!(!asked.is_empty() && asked.iter().all(|head| head.starts_with(&expected)), "{asked:?}");
    assert!(!asked.concat().contains("s3cret") && !asked.concat().contains("eC1hY2Nlc3M"));
}
