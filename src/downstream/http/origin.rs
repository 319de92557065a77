//! Who may reach the endpoint at all: Host and Origin, against DNS rebinding and foreign pages.

use std::net::IpAddr;

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, HOST, ORIGIN, VARY,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Uri};

use crate::config::Server;
use crate::domain::fault::TransportFault;

/// The names and origins that are served.
#[derive(Clone, Debug)]
pub(crate) struct OriginGuard {
    /// Lower case; with a port only where the operator gave one.
    hosts: Vec<String>,
    /// Lower case, as browsers send them.
    origins: Vec<String>,
}

/// An origin that is allowed, to be echoed.
#[derive(Clone, Debug)]
pub(crate) struct AllowedOrigin(HeaderValue);

impl OriginGuard {
    pub(crate) fn new(server: &Server) -> Self {
        let mut hosts = server.allowed_hosts.clone();
        let mut origins: Vec<_> = server.allowed_origins.iter().map(|o| o.to_lowercase()).collect();
        if let Some(url) = &server.public_url
            && let (Some(scheme), Some(authority)) = (url.scheme_str(), url.authority())
        {
            hosts.push(authority.host().to_lowercase());
            origins.push(format!("{scheme}://{authority}").to_lowercase());
        }
        // 0.0.0.0 is an address to bind, not a name that anybody may call us by.
        if !server.listen.ip().is_unspecified() {
            hosts.push(bracketed(server.listen.ip()));
        }
        Self { hosts, origins }
    }

    /// Lets loopback in, this address, and these hosts; no origin but loopback.
    pub(crate) fn at(ip: IpAddr, hosts: &[String]) -> Self {
        let mut hosts = hosts.to_vec();
        if !ip.is_unspecified() {
            hosts.push(bracketed(ip));
        }
        Self { hosts, origins: Vec::new() }
    }

    /// Checks that the request names one host, and one that is served. In HTTP/2 the name is part
    /// of the URI; where both are given both count.
    pub(crate) fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), TransportFault> {
        let mut names: Vec<&str> = Vec::with_capacity(1);
        names.extend(uri.authority().map(Authority::as_str));
        for value in headers.get_all(HOST) {
            names.push(value.to_str().map_err(|_| TransportFault::HostRejected)?);
        }
        let several = headers.get_all(HOST).iter().count() > 1;
        match !several && !names.is_empty() && names.iter().all(|name| self.serves(name)) {
            true => Ok(()),
            false => Err(TransportFault::HostRejected),
        }
    }

    /// Checks the origin of a page, if the request comes from one.
    pub(crate) fn check_origin(
        &self,
        headers: &HeaderMap,
    ) -> Result<Option<AllowedOrigin>, TransportFault> {
        let mut values = headers.get_all(ORIGIN).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(origin), None) if origin.to_str().is_ok_and(|o| self.trusts(o)) => {
                Ok(Some(AllowedOrigin(origin.clone())))
            }
            _ => Err(TransportFault::OriginRejected),
        }
    }

    fn serves(&self, name: &str) -> bool {
        let Some(host) = host_of(name) else {
            return false;
        };
        let name = name.to_lowercase();
        is_loopback(&host) || self.hosts.iter().any(|served| *served == host || *served == name)
    }

    fn trusts(&self, origin: &str) -> bool {
        let origin = origin.to_lowercase();
        let authority = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
        let host = authority.and_then(host_of);
        host.is_some_and(|host| is_loopback(&host)) || self.origins.contains(&origin)
    }
}

impl AllowedOrigin {
    /// Lets the page read the answer (CORS). Never `*`.
    pub(crate) fn allow(&self, headers: &mut HeaderMap) {
        let expose = HeaderValue::from_static("Mcp-Session-Id, WWW-Authenticate");
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.0.clone());
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, expose);
        headers.insert(VARY, HeaderValue::from_static("Origin"));
    }

    /// Answers the preflight.
    pub(crate) fn allow_preflight(&self, headers: &mut HeaderMap) {
        self.allow(headers);
        let methods = HeaderValue::from_static("GET, POST, DELETE");
        let names = HeaderValue::from_static(
            "Accept, Authorization, Content-Type, Last-Event-ID, MCP-Protocol-Version, \
             Mcp-Method, Mcp-Name, Mcp-Session-Id, X-API-Key",
        );
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names);
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    }
}

/// The host of `host` or `host:port`; nothing for what could be read in another way elsewhere:
/// user information, a colon without a number behind it.
fn host_of(name: &str) -> Option<String> {
    let authority: Authority = name.parse().ok()?;
    let rest = name.strip_prefix(authority.host())?;
    (rest.is_empty() || authority.port_u16().is_some()).then(|| authority.host().to_lowercase())
}

/// Loopback names are served on any port, so that port mapping works.
fn is_loopback(host: &str) -> bool {
    matches!(host, "localhost" | "127.0.0.1" | "[::1]")
}

fn bracketed(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn guard() -> OriginGuard {
        let text = "[server]\npublic_url = \"https://Prompts.example.com/mcp\"\n\
                    allowed_hosts = [\"alias.example\", \"ported.example:81\"]\n\
                    allowed_origins = [\"https://app.example.com\"]\n";
        OriginGuard::new(&Config::parse("g", text, Path::new(""), &[]).unwrap().server)
    }

    fn host_ok(hosts: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, host.parse().unwrap());
        }
        guard().check_host(&Uri::from_static("/mcp"), &headers).is_ok()
    }

    #[test]
    fn w1_hosts_that_are_not_ours_are_refused() {
        for good in [
            "localhost",
            "LOCALHOST:9",
            "127.0.0.1:8080",
            "[::1]:80",
            "alias.example:7",
            "prompts.example.com",
            "ported.example:81",
        ] {
            assert!(host_ok(&[good]), "{good}");
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
            assert!(!host_ok(&[bad]), "{bad}");
        }
        assert!(!host_ok(&[]));
        assert!(!host_ok(&["localhost", "localhost"]));
        let mut headers = HeaderMap::new();
        headers.append(HOST, "localhost".parse().unwrap());
        let foreign = Uri::from_static("http://evil.com/mcp");
        assert!(guard().check_host(&foreign, &headers).is_err());
        let own = Uri::from_static("https://prompts.example.com/mcp");
        assert!(guard().check_host(&own, &HeaderMap::new()).is_ok());
    }

    #[test]
    fn w2_origins_are_allowed_one_by_one() {
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
