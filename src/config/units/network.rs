//! `10.0.0.0/8`, `2001:db8::/32`, `192.0.2.7`: networks.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

use super::ParseError;

/// What to think of a network with bits set that its length says do not matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::config) struct HostBits {
    /// The network that is meant.
    pub(in crate::config) meant: IpNet,
}

/// A network, or a single address as a network of one; and whether it was written loosely.
pub(in crate::config) fn network(text: &str) -> Result<(IpNet, Option<HostBits>), ParseError> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok((canonical(IpNet::from(address)), None));
    }
    let net: IpNet = text.parse().map_err(|_| {
        ParseError::new(format!("`{text}` is neither an address nor a network"))
            .help("expected an address as in `192.0.2.7`, or a network as in `10.0.0.0/8`")
    })?;
    let meant = net.trunc();
    let loose = (meant != net).then_some(HostBits { meant });
    Ok((canonical(meant), loose))
}

/// IPv4 addresses written in their IPv6 form are IPv4.
fn canonical(net: IpNet) -> IpNet {
    let IpNet::V6(v6) = net else { return net };
    let mapped: Option<std::net::Ipv4Addr> = Ipv6Addr::to_ipv4_mapped(&v6.addr());
    mapped
        .zip(v6.prefix_len().checked_sub(96))
        .and_then(|(v4, length)| ipnet::Ipv4Net::new(v4, length).ok())
        .map_or(net, IpNet::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_networks_of_one() {
        let of = |text| network(text).map(|(net, _)| net.to_string()).ok();
        assert_eq!(of("192.0.2.7").as_deref(), Some("192.0.2.7/32"));
        assert_eq!(of("::1").as_deref(), Some("::1/128"));
        assert_eq!(of("10.0.0.0/8").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(of("::ffff:10.0.0.0/104").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(of("10.0.0.0/33"), None);
        assert_eq!(of("localhost"), None);
    }

    #[test]
    fn low_bits_are_noticed() {
        let (net, loose) = network("10.1.2.3/8").unwrap();
        assert_eq!(net.to_string(), "10.0.0.0/8");
        assert!(loose.is_some());
    }
}
