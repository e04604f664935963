//! Networks that contain each other become ranges that do not overlap.

use ipnet::IpNet;

use crate::config::plan::{Geo, Template};

/// First and last address of a network, IPv4 in its mapped form.
fn range(network: &IpNet) -> (u128, u128) {
    match network {
        IpNet::V4(v4) => (
            u128::from(v4.network().to_ipv6_mapped()),
            u128::from(v4.broadcast().to_ipv6_mapped()),
        ),
        IpNet::V6(v6) => (u128::from(v6.network()), u128::from(v6.broadcast())),
    }
}

/// Flattens networks with their values; no network may be there twice.
pub(super) fn flatten(networks: Vec<(IpNet, Template)>) -> Geo {
    let mut geo = Geo::default();
    let mut ranges = vec![];
    // As in nginx, `::/0` says nothing about IPv4: the mapped addresses are a world of their own.
    let all_v4 = IpNet::V4(ipnet::Ipv4Net::default());
    if !networks.iter().any(|(network, _)| *network == all_v4) {
        let (first, last) = range(&all_v4);
        ranges.push((first, last, None));
    }
    for (index, (network, value)) in networks.into_iter().enumerate() {
        let (first, last) = range(&network);
        ranges.push((first, last, Some(index)));
        geo.values.push(value);
    }
    // Wider before narrower where they begin together, so that the narrower comes to lie on top.
    ranges.sort_by_key(|(first, last, _)| (*first, std::cmp::Reverse(*last)));
    let mut open: Vec<(u128, Option<usize>)> = Vec::new();
    for (first, last, owner) in ranges {
        close(&mut geo, &mut open, Some(first));
        mark(&mut geo, first, owner);
        open.push((last, owner));
    }
    close(&mut geo, &mut open, None);
    geo
}

/// Ends the ranges that end before `next`; behind each goes on the one around it.
fn close(geo: &mut Geo, open: &mut Vec<(u128, Option<usize>)>, next: Option<u128>) {
    while let Some((last, _)) = open.last().copied() {
        if next.is_some_and(|next| last >= next) {
            return;
        }
        open.pop();
        if let Some(behind) = last.checked_add(1) {
            mark(geo, behind, open.last().and_then(|(_, owner)| *owner));
        }
    }
}

fn mark(geo: &mut Geo, start: u128, owner: Option<usize>) {
    if geo.starts.last() == Some(&start) {
        geo.starts.pop();
        geo.owners.pop();
    }
    geo.starts.push(start);
    geo.owners.push(owner);
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    fn geo(networks: &[&str]) -> Geo {
        flatten(
            networks
                .iter()
                .map(|text| (text.parse().unwrap(), Template::literal(text)))
                .collect(),
        )
    }

    fn find<'a>(geo: &'a Geo, address: &str) -> Option<&'a str> {
        geo.find(address.parse().unwrap())
            .and_then(Template::as_literal)
    }

    #[test]
    fn the_longest_prefix_wins() {
        let geo = geo(&["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "0.0.0.0/0"]);
        assert_eq!(find(&geo, "10.1.2.3"), Some("10.1.2.3/32"));
        assert_eq!(find(&geo, "10.1.2.4"), Some("10.1.0.0/16"));
        assert_eq!(find(&geo, "10.2.0.0"), Some("10.0.0.0/8"));
        assert_eq!(find(&geo, "192.0.2.1"), Some("0.0.0.0/0"));
        assert_eq!(find(&geo, "255.255.255.255"), Some("0.0.0.0/0"));
        assert_eq!(find(&geo, "2001:db8::1"), None);
    }

    #[test]
    fn all_of_ipv6_is_not_all_of_ipv4() {
        let geo = geo(&["::/0", "10.0.0.0/8"]);
        assert_eq!(find(&geo, "2001:db8::1"), Some("::/0"));
        assert_eq!(
            find(&geo, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            Some("::/0")
        );
        assert_eq!(find(&geo, "192.0.2.1"), None);
        assert_eq!(find(&geo, "10.0.0.1"), Some("10.0.0.0/8"));
    }

    proptest! {
        #[test]
        fn agrees_with_looking_at_every_network(
            networks in prop::collection::hash_map((any::<u8>(), 0u8..=8), any::<u16>(), 0..20),
            probe in any::<u8>(),
        ) {
            let networks: Vec<(IpNet, Template)> = networks
                .into_iter()
                .map(|((first, length), value)| {
                    let address = IpAddr::from([first, 0, 0, 0]);
                    (IpNet::new(address, length).unwrap().trunc(), Template::literal(&value.to_string()))
                })
                .collect::<std::collections::HashMap<_, _>>()
                .into_iter()
                .collect();
            let probe = IpAddr::from([probe, 1, 2, 3]);
            let expected = networks
                .iter()
                .filter(|(network, _)| network.contains(&probe))
                .max_by_key(|(network, _)| network.prefix_len())
                .map(|(_, value)| value.clone());
            prop_assert_eq!(flatten(networks).find(probe).cloned(), expected);
        }
    }
}
