//! The reverse proxies whose word about the address of a client counts.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

/// The addresses and networks of the reverse proxies in front of the gateway.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TrustedProxies(Vec<IpNet>);

/// The shortest prefixes of networks that one organisation has: `10.0.0.0/8`, and `fd00::/8`.
const SHORTEST_PREFIX: u8 = 8;

impl TrustedProxies {
    /// Adds an address or a network, whose bits behind its prefix do not count. Returns `false`,
    /// and adds nothing, for any other text.
    pub fn add(&mut self, text: &str) -> bool {
        let network = text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        self.0.extend(network.map(|network: IpNet| canonical(network.trunc())));
        network.is_some()
    }

    /// Whether an address is that of a trusted proxy.
    pub fn contains(&self, address: IpAddr) -> bool {
        // Addresses of peers may be IPv4 mapped into IPv6.
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Returns the networks that hold more than one organisation: strangers may be in them, who
    /// would choose their own addresses.
    pub fn too_wide(&self) -> impl Iterator<Item = IpNet> {
        self.0.iter().filter(|network| network.prefix_len() < SHORTEST_PREFIX).copied()
    }
}

/// Returns the network of IPv4 for one that is mapped into IPv6 (RFC 4291, section 2.5.5.2).
fn canonical(network: IpNet) -> IpNet {
    let IpNet::V6(v6) = network else { return network };
    let length = v6.prefix_len().checked_sub(96);
    let v4 = v6.addr().to_ipv4_mapped().zip(length);
    v4.and_then(|(v4, length)| Ipv4Net::new(v4, length).ok()).map_or(network, IpNet::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_networks_are_trusted_in_both_notations() {
        for (trusted, inside, outside) in [
            ("10.0.0.5", "10.0.0.5", "10.0.0.6"),
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("10.1.2.3/16", "10.1.0.1", "10.2.0.1"),
            ("::ffff:10.0.0.0/104", "10.0.0.1", "11.0.0.1"),
            ("::ffff:10.0.0.5", "::ffff:10.0.0.5", "::10.0.0.5"),
            ("fd00::/8", "fd12::1", "fe80::1"),
            ("0.0.0.0/0", "8.8.8.8", "::1"),
        ] {
            let mut proxies = TrustedProxies::default();
            assert!(proxies.add(trusted), "{trusted}");
            assert!(proxies.contains(inside.parse().unwrap()), "{trusted}");
            assert!(!proxies.contains(outside.parse().unwrap()), "{trusted}");
            assert!(!TrustedProxies::default().contains(inside.parse().unwrap()));
        }
        for text in ["", "proxy", "10.0.0.0/33", "10.0.0.0/", "10.0.0", "10.0.0.1-10.0.0.9", "*"] {
            let mut proxies = TrustedProxies::default();
            assert!(!proxies.add(text) && proxies == TrustedProxies::default(), "{text}");
        }
    }

    #[test]
    fn a_network_that_holds_strangers_is_known() {
        let mut proxies = TrustedProxies::default();
        for text in ["10.0.0.0/8", "0.0.0.0/0", "128.0.0.0/1", "fd00::/8", "::/0", "2001:db8::/32"]
        {
            assert!(proxies.add(text));
        }
        let wide: Vec<_> = proxies.too_wide().map(|network| network.to_string()).collect();
        assert_eq!(wide, ["0.0.0.0/0", "128.0.0.0/1", "::/0"]);
    }
}
