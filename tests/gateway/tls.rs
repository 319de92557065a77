//! TLS, and callers who prove who they are by certificates.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use config::{Config, Limits};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::documents::toml_blocks;
use crate::support::client::{Reply, modern};
use crate::support::gateway::api_key;
use crate::support::{Gateway, Upstream, eventually, metrics};

/// Someone whose signature is trusted, or not.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
struct Pair {
    cert: String,
    key: String,
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(["localhost", "127.0.0.1"].map(str::to_owned)).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

impl Authority {
    fn new() -> Self {
        let mut params = params("authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self, name: &str) -> Pair {
        self.issue_until(name, (4096, 1, 1))
    }

    fn issue_until(&self, name: &str, (year, month, day): (i32, u8, u8)) -> Pair {
        let key = KeyPair::generate().unwrap();
        let mut params = params(name);
        params.not_after = rcgen::date_time_ymd(year, month, day);
        let cert = params.signed_by(&key, &self.0).unwrap().pem();
        Pair { cert, key: key.serialize_pem() }
    }
}

impl Pair {
    fn write(&self, folder: &Path) {
        std::fs::write(folder.join("key.pem"), &self.key).unwrap();
        std::fs::write(folder.join("cert.pem"), &self.cert).unwrap();
    }
}

/// A folder with the gateway's pair, and the authority that signed it and signs callers.
fn folder() -> (TempDir, Authority) {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.issue("gateway").write(folder.path());
    std::fs::write(folder.path().join("ca.pem"), authority.0.pem()).unwrap();
    (folder, authority)
}

fn server(folder: &TempDir, rest: &str, takes_certificates: bool) -> String {
    let path = folder.path().display();
    let client_ca = if takes_certificates { format!("{path}/ca.pem") } else { String::new() };
    format!(
        "[server]\ntls = {{ cert = \"{path}/cert.pem\", key = \"{path}/key.pem\", client_ca = \"{client_ca}\" }}\n{rest}"
    )
}

fn client(authority: &Authority, pair: Option<&Pair>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(authority.0.der().clone()).unwrap();
    let provider = base::seal::provider::tls();
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let Some(pair) = pair else {
        return builder.with_no_client_auth();
    };
    let cert = CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
    builder.with_client_auth_cert(vec![cert], key).unwrap()
}

/// One list of prompts over a connection of its own; nothing if there is no connection.
async fn list(gateway: &Gateway, config: ClientConfig, headers: &str) -> Option<Reply> {
    let json = format!("Accept: application/json\r\n{headers}");
    ask(gateway.addr, config, modern(1, "prompts/list", json!({})), &json).await
}

/// One modern request over a connection of its own, up to the proper end of that.
async fn ask(
    addr: SocketAddr,
    config: ClientConfig,
    (body, own): (Value, Vec<(&'static str, String)>),
    headers: &str,
) -> Option<Reply> {
    let own: String = own.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let body = body.to_string();
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n{own}{headers}\r\n{body}",
        body.len()
    );
    let stream = TcpStream::connect(addr).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.ok()?;
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok()?;
    Reply::parse(&answer)
}

#[tokio::test]
async fn a_client_is_served_over_tls_and_plain_text_is_not_answered() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let (folder, authority) = folder();
    let gateway = Gateway::start(&(server(&folder, "", false) + &upstream.table("up"))).await;
    let reply = list(&gateway, client(&authority, None), "").await.expect("an answer");
    assert_eq!(reply.json()["result"]["prompts"][0]["name"], "up__p");
    assert!(list(&gateway, client(&Authority::new(), None), "").await.is_none());
    let plain = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    assert!(gateway.client().raw(plain).await.is_none());
}

#[tokio::test]
async fn x1_a_stream_over_tls_ends_properly_at_drain() {
    let (folder, authority) = folder();
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    let gateway = Gateway::start(&server(&folder, admin, false)).await;
    let params = json!({"notifications": {"promptsListChanged": true}});
    let (listen, config) = (modern(1, "subscriptions/listen", params), client(&authority, None));
    let addr = gateway.addr;
    let listening = tokio::spawn(async move { ask(addr, config, listen, "").await });
    let names = ["promptgate_streams"];
    eventually(
        async || metrics(&gateway.admin(), &names).await,
        |open| open["promptgate_streams"] == 1.,
    )
    .await;
    gateway.drain().await;
    let text = String::from_utf8(listening.await.unwrap().expect("its proper end").body).unwrap();
    assert!(text.contains("notifications/subscriptions/acknowledged"), "{text}");
    assert!(text.contains("\"resultType\":\"complete\""), "{text}");
}

#[tokio::test]
async fn w18_where_http2_was_agreed_on_no_other_beginning_is_taken() {
    let (folder, authority) = folder();
    let gateway = Gateway::start(&server(&folder, "", false)).await;
    let mut config = client(&authority, None);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(gateway.addr).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn the_authorities_of_an_upstream_are_followed() {
    let (folder, _) = folder();
    let listed = Upstream::with_prompts(&["p"]).await;
    let behind = Gateway::start(&(server(&folder, "", false) + &listed.table("up"))).await;
    let ca = folder.path().join("authorities.pem");
    let table = format!(
        "[upstreams.gate]\ntransport = \"http\"\nurl = \"https://localhost:{}/mcp\"\nca = {ca:?}\n",
        behind.addr.port()
    );
    std::fs::write(&ca, Authority::new().0.pem()).unwrap();
    let gateway = Gateway::start(&table).await;
    let failure = async || gateway.summary().await.remove(0).2;
    assert_eq!(failure().await, Some("upstream_unavailable"));
    // In place, as whoever renews it does.
    std::fs::copy(folder.path().join("ca.pem"), &ca).unwrap();
    gateway.reload(&table).await;
    eventually(async || failure().await.is_none(), |seen| *seen).await;
    assert_eq!(gateway.client().names().await.0, ["gate__up__p"]);
    // A certificate that cannot be used is reported before the configuration is applied.
    for (text, why) in
        [("", "no certificate"), ("-----BEGIN CERTIFICATE-----\nx", "no certificate")]
    {
        std::fs::write(&ca, text).unwrap();
        let told = Config::parse("g", &table, Path::new(""), &[]).unwrap_err().to_string();
        assert!(told.contains("upstreams.gate.ca") && told.contains(why), "{told}");
    }
}

#[tokio::test]
async fn a1_the_subject_of_a_certificate_is_the_caller() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let (folder, authority) = folder();
    let rules = "[[access.rules]]\nallow = [\"list\"]\ncallers = [\"CN=ci\", \"key\"]\n";
    let toml = server(&folder, rules, true) + &api_key("key", "pg_key") + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    let status = async |pair: Option<&Pair>, headers: &str| {
        let reply = list(&gateway, client(&authority, pair), headers).await?;
        let prompts = reply.json()["result"]["prompts"].as_array().map(Vec::len);
        Some((reply.status, prompts))
    };
    let (ci, other) = (authority.issue("ci"), authority.issue("other"));
    assert_eq!(status(Some(&ci), "").await, Some((200, Some(1))));
    assert_eq!(status(Some(&other), "").await, Some((200, Some(0))));
    assert_eq!(status(None, "").await, Some((401, None)));
    assert_eq!(status(None, "X-API-Key: pg_key\r\n").await, Some((200, Some(1))));
    assert_eq!(status(Some(&ci), "X-API-Key: pg_bad\r\n").await, Some((401, None)));
    // Signed by somebody else: no connection.
    assert_eq!(status(Some(&Authority::new().issue("ci")), "").await, None);
}

#[tokio::test]
async fn a2_where_subjects_are_listed_no_other_is_a_caller() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let (folder, authority) = folder();
    let listed = "[[auth.mtls]]\nsubject = \"CN=ci\"\nid = \"ci\"\n";
    let toml = server(&folder, listed, true) + "[auth]\nrequired = false\n" + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    for (name, status) in [("ci", 200), ("other", 401)] {
        let pair = authority.issue(name);
        let reply = list(&gateway, client(&authority, Some(&pair)), "").await.expect("an answer");
        assert_eq!(reply.status, status, "{name}");
    }
    let toml = server(&folder, "", true) + &upstream.table("up");
    let gateway = Gateway::start(&toml).await;
    let reply = list(&gateway, client(&authority, None), "").await.expect("an answer");
    let message = reply.json()["error"]["message"].to_string();
    assert!(message.contains("with a certificate"), "{message}");
}

#[tokio::test]
async fn certificates_are_read_again_when_they_change() {
    let upstream = Upstream::with_prompts(&["p"]).await;
    let (folder, authority) = folder();
    let gateway = Gateway::start(&(server(&folder, "", false) + &upstream.table("up"))).await;
    let trusts =
        async |authority: &Authority| list(&gateway, client(authority, None), "").await.is_some();
    assert!(trusts(&authority).await);
    let next = Authority::new();
    next.issue("gateway").write(folder.path());
    eventually(async || trusts(&next).await, |seen| *seen).await;
    assert!(!trusts(&authority).await);
}

#[tokio::test]
async fn certificates_that_end_soon_are_named_for_the_gateway_and_the_servers_that_it_calls() {
    let (folder, authority) = folder();
    // Its midnight is more than ten and less than eleven days away.
    let soon = SystemTime::now() + Duration::from_secs(11 * 86_400);
    let date = humantime::format_rfc3339_seconds(soon).to_string();
    let part = |range: Range<usize>| date[range].parse::<u8>().unwrap();
    let year = date[..4].parse().unwrap();
    authority.issue_until("short", (year, part(5..7), part(8..10))).write(folder.path());
    let listed = Upstream::with_prompts(&["p"]).await;
    let behind = Gateway::start(&(server(&folder, "", false) + &listed.table("up"))).await;
    let table = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n\
         [upstreams.gate]\ntransport = \"http\"\nurl = \"https://127.0.0.1:{}/mcp\"\nca = {:?}\n",
        behind.addr.port(),
        folder.path().join("ca.pem"),
    );
    let gateway = Gateway::start(&(server(&folder, "", true) + &table)).await;
    assert_eq!(gateway.summary().await[0].2, None, "the upstream was called");
    let status = gateway.admin().send("GET", "/api/v1/status", &[], b"").await.json();
    let rows = status["certificates"].as_array().unwrap();
    let row = |owner: &str| rows.iter().find(|row| row["owner"] == owner).unwrap();
    assert_eq!(row("gateway")["warning"], "server.tls.cert CN=short expires in 10 days: renew it");
    assert_eq!(row("client_authority")["warning"], Value::Null);
    let server = rows.iter().find(|row| row["name"] == "127.0.0.1").unwrap();
    assert_eq!(server["warning"], "the certificate of 127.0.0.1 expires in 10 days: renew it");
    let metrics = metrics(&gateway.admin(), &["promptgate_certificate_remaining_seconds"]).await;
    let own = metrics.iter().find(|(name, _)| name.contains("CN=short")).unwrap();
    assert!((864_000.0..950_400.0).contains(own.1), "{metrics:?}");
}

#[tokio::test]
async fn w12_a_handshake_that_stalls_ends_in_time() {
    let (folder, authority) = folder();
    let set = |limits: &mut Limits| limits.tls_handshake = Duration::from_millis(50);
    let gateway = Gateway::start_with(&server(&folder, "", false), set).await;
    let mut silent = TcpStream::connect(gateway.addr).await.unwrap();
    let mut rest = Vec::new();
    let _ = silent.read_to_end(&mut rest).await;
    assert_eq!(rest, b"", "it was closed, and nothing was said");
    let listed = async || list(&gateway, client(&authority, None), "").await.is_some();
    eventually(listed, |seen| *seen).await;
}

#[test]
fn the_documented_subject_is_valid() {
    let (folder, _) = folder();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let blocks = toml_blocks(&std::fs::read_to_string(path).unwrap());
    let block = blocks.iter().find(|block| block.contains("[[auth.mtls]]")).expect("the block");
    let config = Config::parse("docs", &server(&folder, block, true), Path::new(""), &[]).unwrap();
    assert_eq!(config.auth.certificates[0].subject, "CN=ci,O=Example");
    assert!(config.auth.required);
}

#[test]
fn k1_what_is_wrong_with_the_files_is_a_mistake_of_the_configuration() {
    let (folder, _) = folder();
    let mistake = |toml: &str| {
        Config::parse("g", toml, Path::new(""), &[]).expect_err("a mistake").to_string()
    };
    let whole = server(&folder, "", true);
    let path = |name: &str| folder.path().join(name);
    assert!(mistake("[server]\ntls = { cert = \"c\" }\n").contains("must have both cert and key"));
    let lost = whole.replace("cert.pem", "lost.pem");
    assert!(mistake(&lost).contains("lost.pem"));
    std::fs::write(path("ca.pem"), "nothing").unwrap();
    assert!(mistake(&whole).contains("client_ca: holds no certificate"));
    let without = server(&folder, "", false);
    Authority::new().issue("x").write(&path(""));
    std::fs::write(path("cert.pem"), Authority::new().issue("x").cert).unwrap();
    assert!(mistake(&without).contains("cert and key: "));
    std::fs::write(path("key.pem"), "").unwrap();
    assert!(mistake(&without).contains("key: holds no private key"));
    let listed = "[[auth.mtls]]\nsubject = \"CN=ci\"\nid = \"ci\"\n";
    assert!(mistake(listed).contains("set server.tls.client_ca too"));
}
