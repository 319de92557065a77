//! Checks of Host and Origin against DNS rebinding and requests of foreign web pages (MCP
//! 2025-11-25, transports, security warning), and the CORS headers of allowed origins.

use std::net::IpAddr;
use std::sync::OnceLock;

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, HOST, ORIGIN, VARY,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Uri};

use config::Server;
use domain::fault::TransportFault;

/// The hosts and origins whose requests are served. Loopback is always among them.
#[derive(Clone, Debug)]
pub struct OriginGuard {
    /// In lower case; with a port only where the configuration has one.
    hosts: Vec<String>,
    /// In lower case, as browsers send them.
    origins: Vec<String>,
    /// The first Host that was allowed: nearly all clients of a gateway name it alike.
    usual_host: OnceLock<HeaderValue>,
}

/// The `Origin` of a request, allowed by the configuration. It is sent back in CORS headers.
#[derive(Clone, Debug)]
pub struct AllowedOrigin(HeaderValue);

/// An origin as browsers send it: in lower case, without the default port of its scheme (RFC 6454,
/// section 6.2).
fn as_sent(origin: &str) -> String {
    let origin = origin.to_lowercase();
    let default = [("https://", ":443"), ("http://", ":80")];
    let port = default.into_iter().find(|(scheme, _)| origin.starts_with(scheme));
    port.and_then(|(_, port)| origin.strip_suffix(port)).unwrap_or(&origin).to_owned()
}

impl OriginGuard {
    /// Allows the hosts and origins of `[server]`, its public URL and its listen address.
    pub(crate) fn new(server: &Server) -> Self {
        let mut hosts = server.allowed_hosts.clone();
        let mut origins = server.allowed_origins.clone();
        if let Some(url) = &server.public_url
            && let (Some(scheme), Some(authority)) = (url.scheme_str(), url.authority())
        {
            hosts.push(authority.host().to_lowercase());
            origins.push(format!("{scheme}://{authority}"));
        }
        let origins = origins.iter().map(|origin| as_sent(origin)).collect();
        hosts.extend(listen_host(server.listen.ip()));
        Self { hosts, origins, usual_host: OnceLock::new() }
    }

    /// Allows this listen address and these hosts, and no origin but loopback.
    pub fn at(listen: IpAddr, hosts: &[String]) -> Self {
        let hosts = hosts.iter().cloned().chain(listen_host(listen)).collect();
        Self { hosts, origins: Vec::new(), usual_host: OnceLock::new() }
    }

    /// Checks that a request names one host, and an allowed one. HTTP/2 has the host in the URI;
    /// where a request has both, both must be allowed.
    ///
    /// # Errors
    /// `host_rejected`.
    pub fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), TransportFault> {
        let mut values = headers.get_all(HOST).iter();
        let header = values.next();
        let is_repeated = values.next().is_some();
        let authority = uri.authority().map(Authority::as_str);
        if is_repeated || (header.is_none() && authority.is_none()) {
            return Err(TransportFault::HostRejected);
        }
        let is_allowed = header.is_none_or(|host| self.allows_header(host))
            && authority.is_none_or(|authority| self.allows_host(authority));
        if is_allowed { Ok(()) } else { Err(TransportFault::HostRejected) }
    }

    fn allows_header(&self, host: &HeaderValue) -> bool {
        if self.usual_host.get() == Some(host) {
            return true;
        }
        let is_allowed = host.to_str().is_ok_and(|name| self.allows_host(name));
        if is_allowed {
            // A copy: the value itself keeps the whole head in memory.
            let copy = HeaderValue::from_bytes(host.as_bytes());
            let _ = copy.map(|copy| self.usual_host.set(copy));
        }
        is_allowed
    }

    /// Checks `Origin`. Only requests of web pages have it; others return `None`.
    ///
    /// # Errors
    /// `origin_rejected` when it is not allowed, or repeated.
    pub fn check_origin(
        &self,
        headers: &HeaderMap,
    ) -> Result<Option<AllowedOrigin>, TransportFault> {
        let mut values = headers.get_all(ORIGIN).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(origin), None) if origin.to_str().is_ok_and(|o| self.allows_origin(o)) => {
                Ok(Some(AllowedOrigin(origin.clone())))
            }
            _ => Err(TransportFault::OriginRejected),
        }
    }

    fn allows_host(&self, name: &str) -> bool {
        let Some(host) = host_of(name) else {
            return false;
        };
        let name = name.to_lowercase();
        is_loopback(&host) || self.hosts.iter().any(|allowed| *allowed == host || *allowed == name)
    }

    fn allows_origin(&self, origin: &str) -> bool {
        let origin = as_sent(origin);
        let authority = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
        let host = authority.and_then(host_of);
        host.is_some_and(|host| is_loopback(&host)) || self.origins.contains(&origin)
    }
}

impl AllowedOrigin {
    /// Adds the headers that let the page read the response (Fetch standard, CORS protocol). Never
    /// `*`, which would allow every page.
    pub(crate) fn allow(&self, headers: &mut HeaderMap) {
        let expose = HeaderValue::from_static("Mcp-Session-Id, WWW-Authenticate");
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.0.clone());
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, expose);
        headers.insert(VARY, HeaderValue::from_static("Origin"));
    }

    /// Adds the headers of the response to a preflight request (Fetch standard, CORS protocol).
    pub(crate) fn allow_preflight(&self, headers: &mut HeaderMap) {
        self.allow(headers);
        let methods = HeaderValue::from_static("GET, POST, DELETE");
        let names = HeaderValue::from_static(
            "Accept, Authorization, Baggage, Content-Type, Last-Event-ID, MCP-Protocol-Version, \
             Mcp-Method, Mcp-Name, Mcp-Session-Id, Traceparent, Tracestate, X-API-Key",
        );
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names);
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    }
}

/// Returns the host of `host` or `host:port` in lower case. `None` for a name that a proxy could
/// read in another way: with user information, or a colon without a port.
fn host_of(name: &str) -> Option<String> {
    let authority: Authority = name.parse().ok()?;
    let rest = name.strip_prefix(authority.host())?;
    (rest.is_empty() || authority.port_u16().is_some()).then(|| authority.host().to_lowercase())
}

/// Whether a host is loopback. It is allowed with any port, so that port mappings of containers
/// work.
fn is_loopback(host: &str) -> bool {
    matches!(host, "localhost" | "127.0.0.1" | "[::1]")
}

/// Returns a listen address as a host (RFC 3986, section 3.2.2). `None` for the unspecified
/// address: 0.0.0.0 is an address to bind, not a host that clients may name.
fn listen_host(ip: IpAddr) -> Option<String> {
    match ip {
        ip if ip.is_unspecified() => None,
        IpAddr::V4(ip) => Some(ip.to_string()),
        IpAddr::V6(ip) => Some(format!("[{ip}]")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use config::Config;

    fn guard() -> OriginGuard {
        let text = "[server]\npublic_url = \"https://Prompts.example.com:443/mcp\"\n\
                    allowed_hosts = [\"alias.example\", \"ported.example:81\"]\n\
                    allowed_origins = [\"https://app.example.com:443\"]\n";
        OriginGuard::new(&Config::parse("g", text, Path::new(""), &[]).unwrap().server)
    }

    fn is_allowed(hosts: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, host.parse().unwrap());
        }
        guard().check_host(&Uri::from_static("/mcp"), &headers).is_ok()
    }

    #[test]
    fn w1_only_allowed_hosts_are_served() {
        for good in [
            "localhost",
            "LOCALHOST:9",
            "127.0.0.1:8080",
            "[::1]:80",
            "alias.example:7",
            "prompts.example.com",
            "ported.example:81",
        ] {
            assert!(is_allowed(&[good]), "{good}");
        }
        for bad in [
            "evil.com",
            "127.0.0.1.evil.com",
            "localhost.evil.com",
            "ported.example",
            "evil.com:8080",
            "localhost@evil.com",
            "a@localhost",
            "localhost:",
            "",
            "localhost:x",
        ] {
            assert!(!is_allowed(&[bad]), "{bad}");
        }
        assert!(!is_allowed(&[]));
        assert!(!is_allowed(&["localhost", "localhost"]));
        let mut headers = HeaderMap::new();
        headers.append(HOST, "localhost".parse().unwrap());
        let foreign = Uri::from_static("http://evil.com/mcp");
        assert!(guard().check_host(&foreign, &headers).is_err());
        let own = Uri::from_static("https://prompts.example.com/mcp");
        assert!(guard().check_host(&own, &HeaderMap::new()).is_ok());
    }

    #[test]
    fn w2_only_allowed_origins_are_served() {
        let check = |origins: &[&str]| {
            let mut headers = HeaderMap::new();
            for origin in origins {
                headers.append(ORIGIN, origin.parse().unwrap());
            }
            guard().check_origin(&headers).map(|allowed| allowed.is_some())
        };
        assert_eq!(check(&[]), Ok(false));
        for good in [
            "http://localhost:5173",
            "https://127.0.0.1",
            "http://[::1]:3000",
            "https://app.example.com",
            "https://prompts.example.com",
        ] {
            assert_eq!(check(&[good]), Ok(true), "{good}");
        }
        for bad in [
            "null",
            "https://evil.com",
            "https://app.example.com.evil.com",
            "http://app.example.com",
            "https://localhost.evil.com",
            "file://",
            "localhost",
        ] {
            assert_eq!(check(&[bad]), Err(TransportFault::OriginRejected), "{bad}");
        }
        assert!(check(&["http://localhost", "http://localhost"]).is_err());
    }
}
