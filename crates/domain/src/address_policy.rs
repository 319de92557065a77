//! Egress policy: the IP addresses to which the gateway may connect.

use std::net::IpAddr;
use std::sync::LazyLock;

use ipnet::IpNet;

/// The set of addresses to which the requests of an HTTP client of the gateway may go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AddressPolicy {
    /// All addresses except link-local ones and others where clouds serve credentials (metadata
    /// services).
    NotLinkLocal,
    /// Globally reachable addresses only.
    PublicOnly,
}

/// The reason why an address is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AddressRefused {
    #[error(
        "{0} is a link-local address or a cloud's metadata service, which upstreams must not have"
    )]
    LinkLocal(IpAddr),
    #[error(
        "{0} is not a public address: set allow_private = true if the upstream is meant to be there"
    )]
    Private(IpAddr),
}

impl AddressPolicy {
    /// Checks an address. An IPv6 address that embeds an IPv4 address counts as the IPv4 address.
    ///
    /// # Errors
    /// [`AddressRefused`] if the policy does not allow connections to this address.
    pub fn check(self, address: IpAddr) -> Result<(), AddressRefused> {
        let effective = effective(address);
        if is_in(&LINK_LOCAL, effective) {
            return Err(AddressRefused::LinkLocal(address));
        }
        match self {
            Self::PublicOnly if is_in(&NOT_PUBLIC, effective) => {
                Err(AddressRefused::Private(address))
            }
            _ => Ok(()),
        }
    }

    /// Checks the host of a URL if it is an IP literal. A host name passes: its addresses are
    /// unknown until it is resolved.
    ///
    /// # Errors
    /// As [`AddressPolicy::check`].
    pub fn check_host(self, host: &str) -> Result<(), AddressRefused> {
        let literal = host.trim_matches(['[', ']']).parse();
        literal.map_or(Ok(()), |address| self.check(address))
    }
}

/// Whether the host of a URL is `localhost` or a loopback IP literal. Other names are not resolved.
pub fn is_loopback(host: &str) -> bool {
    let literal: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    host.eq_ignore_ascii_case("localhost") || literal.is_some_and(|ip| effective(ip).is_loopback())
}

/// Returns the address that a connection reaches: the embedded IPv4 address of an IPv4-mapped IPv6
/// address (RFC 4291, section 2.5.5.2) or of a translator's address (`64:ff9b::/96`, RFC 6052).
fn effective(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if v6.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0] => {
            let [.., a, b, c, d] = v6.octets();
            IpAddr::from([a, b, c, d])
        }
        canonical => canonical,
    }
}

fn is_in(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

/// The link-local networks, and the metadata services of clouds at other addresses: unique local
/// IPv6 addresses for AWS and Google, IPv4 addresses for Alibaba and Azure (WireServer).
static LINK_LOCAL: LazyLock<Vec<IpNet>> = LazyLock::new(|| {
    parse(&[
        "169.254.0.0/16",
        "fe80::/10",
        "fd00:ec2::254/128",
        "fd20:ce::254/128",
        "100.100.100.200/32",
        "168.63.129.16/32",
    ])
});

/// The networks of IANA's special-purpose registries (RFC 6890) that are not globally reachable,
/// and tunnels, whose endpoints are unknown.
static NOT_PUBLIC: LazyLock<Vec<IpNet>> = LazyLock::new(|| {
    parse(&[
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fec0::/10",
        "ff00::/8",
    ])
});

fn parse(networks: &[&str]) -> Vec<IpNet> {
    networks.iter().filter_map(|network| network.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_network_of_the_tables_parses() {
        assert_eq!((LINK_LOCAL.len(), NOT_PUBLIC.len()), (6, 25));
    }

    #[test]
    fn a12_f23_link_local_and_metadata_addresses_are_refused_in_every_spelling() {
        for text in [
            "[fd20:ce::254]",
            "100.100.100.200",
            "[::ffff:100.100.100.200]",
            "168.63.129.16",
            "169.254.169.254",
            "[::ffff:169.254.169.254]",
            "[::ffff:a9fe:a9fe]",
            "[64:ff9b::a9fe:a9fe]",
            "[fe80::1]",
            "[febf::1]",
            "[fd00:ec2::254]",
        ] {
            for policy in [AddressPolicy::NotLinkLocal, AddressPolicy::PublicOnly] {
                let refused = policy.check_host(text);
                assert!(matches!(refused, Err(AddressRefused::LinkLocal(_))), "{text}");
            }
        }
    }

    #[test]
    fn a12_only_public_addresses_are_allowed_without_allow_private() {
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "172.31.255.255",
            "192.168.0.1",
            "100.127.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "::1",
            "::",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
            "fd12::1",
            "ff02::1",
        ] {
            let refused = AddressPolicy::PublicOnly.check_host(text);
            assert!(matches!(refused, Err(AddressRefused::Private(_))), "{text}");
            assert_eq!(AddressPolicy::NotLinkLocal.check_host(text), Ok(()), "{text}");
        }
        for text in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::101:101"]
        {
            assert_eq!(AddressPolicy::PublicOnly.check_host(text), Ok(()), "{text}");
        }
        assert_eq!(AddressPolicy::PublicOnly.check_host("localhost"), Ok(()), "not known yet");
    }
}
