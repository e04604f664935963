//! Keys and clients with numbers of their own.
//!
//! A text names a key. An address or a network names clients, whatever the key is made of: what is written for
//! `192.0.2.7` must not depend on whether the zone's key is the address, a map of it or something else.
//!
//! A zone may have thousands of them, one for every paying customer, so both kinds are found by hashing:
//! a text at once, a network with one try for each prefix length that is in use.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use smallvec::SmallVec;

use crate::config::plan::{Override, OverrideKey, OverrideLimits};

/// The overrides of one zone.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    /// In the order of the file.
    list: Box<[Override]>,
    /// By index into the list.
    texts: HashMap<Box<[u8]>, u32>,
    networks: HashMap<IpNet, u32>,
    /// Prefix lengths in use, longest first.
    lengths_v4: Vec<u8>,
    lengths_v6: Vec<u8>,
}

/// What holds for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OverrideMatch {
    /// Numbers of its own, by the override with this index.
    Own(u32),
    /// What holds for everybody.
    Same,
    /// Nothing, by the override with this index.
    Unlimited(u32),
}

impl Overrides {
    pub(super) fn new(overrides: &[Override]) -> Self {
        let mut all = Self {
            list: overrides.into(),
            ..Self::default()
        };
        for (index, one) in (0..).zip(overrides) {
            match &one.key {
                OverrideKey::Network(network) => {
                    let network = network.trunc();
                    match network {
                        IpNet::V4(v4) => all.lengths_v4.push(v4.prefix_len()),
                        IpNet::V6(v6) => all.lengths_v6.push(v6.prefix_len()),
                    }
                    all.networks.insert(network, index);
                }
                OverrideKey::Text(text) => {
                    all.texts.insert(text.as_bytes().into(), index);
                }
            }
        }
        for lengths in [&mut all.lengths_v4, &mut all.lengths_v6] {
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            lengths.dedup();
        }
        all
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// What holds for a key, and for a client where the key has nothing of its own.
    pub(super) fn find(&self, key: Option<&[u8]>, client: Option<IpAddr>) -> OverrideMatch {
        let text = key.and_then(|key| self.texts.get(key));
        self.held(text.or_else(|| self.network(client?)))
    }

    /// What holds for the clients of exactly this network.
    pub(super) fn of(&self, network: &IpNet) -> OverrideMatch {
        self.held(self.networks.get(network))
    }

    /// The numbers of an [override that has some](Held::Own).
    pub(super) fn own(&self, index: u32) -> Option<&OverrideLimits> {
        self.list.get(index as usize)?.own.as_ref()
    }

    /// The clients that an override names, if it does not name a key.
    pub(super) fn clients(&self, index: u32) -> Option<IpNet> {
        match self.list.get(index as usize)?.key {
            OverrideKey::Network(network) => Some(network.trunc()),
            OverrideKey::Text(_) => None,
        }
    }

    /// What an override is written under.
    pub(super) fn name(&self, index: u32) -> Option<String> {
        Some(match &self.list.get(index as usize)?.key {
            OverrideKey::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                network.addr().to_string()
            }
            OverrideKey::Network(network) => network.to_string(),
            OverrideKey::Text(text) => text.to_string(),
        })
    }

    fn held(&self, found: Option<&u32>) -> OverrideMatch {
        match found.map(|index| (*index, self.own(*index))) {
            None => OverrideMatch::Same,
            Some((index, None)) => OverrideMatch::Unlimited(index),
            Some((index, Some(_))) => OverrideMatch::Own(index),
        }
    }

    fn network(&self, address: IpAddr) -> Option<&u32> {
        let lengths = match address {
            IpAddr::V4(_) => &self.lengths_v4,
            IpAddr::V6(_) => &self.lengths_v6,
        };
        lengths.iter().find_map(|length| {
            let network = IpNet::new(address, *length).ok()?;
            self.networks.get(&network.trunc())
        })
    }
}

/// The bytes of the bucket that the clients of a network have of their own where others have the same key.
// The others must not pay for what these may do beyond them, nor these for the others.
pub(super) fn apart(network: IpNet, key: &[u8]) -> SmallVec<[u8; 64]> {
    let mut bytes = SmallVec::new();
    bytes.push(APART);
    bytes.extend_from_slice(network.to_string().as_bytes());
    bytes.push(APART);
    bytes.extend_from_slice(key);
    bytes
}

/// The network and the key of such a bucket.
pub(super) fn parted(bytes: &[u8]) -> Option<(IpNet, &[u8])> {
    let rest = bytes.strip_prefix(&[APART])?;
    let end = rest.iter().position(|byte| *byte == APART)?;
    let network = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
    Some((network, &rest[end + 1..]))
}

/// No header, cookie, argument or path can hold this byte: no client can send the key of another one's bucket.
const APART: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::plan::{AlgorithmParams, Excess, Rate};

    fn network(text: &str, own: Option<(u64, Option<u32>)>) -> Override {
        Override {
            key: OverrideKey::Network(text.parse().unwrap()),
            own: own.map(|(milli, burst)| numbers(milli, burst)),
        }
    }

    fn numbers(milli: u64, burst: Option<u32>) -> OverrideLimits {
        OverrideLimits {
            algorithm: AlgorithmParams::LeakyBucket {
                rate: Rate::per_second(milli),
            },
            burst: burst.map(Excess::requests),
        }
    }

    fn held(overrides: &Overrides, address: &str) -> OverrideMatch {
        overrides.find(None, Some(address.parse().unwrap()))
    }

    #[test]
    fn the_longest_network_wins() {
        let overrides = Overrides::new(&[
            network("10.0.0.0/8", Some((10_000, Some(50)))),
            network("10.1.2.3/32", None),
            network("10.1.0.0/16", Some((20_000, None))),
            network("2001:db8::/32", Some((30_000, None))),
        ]);
        let own = |address, milli, burst| {
            let OverrideMatch::Own(index) = held(&overrides, address) else {
                panic!("{address} has no numbers of its own");
            };
            assert_eq!(overrides.own(index), Some(&numbers(milli, burst)));
        };
        own("10.9.9.9", 10_000, Some(50));
        own("10.1.9.9", 20_000, None);
        own("2001:db8:5::1", 30_000, None);
        assert_eq!(held(&overrides, "10.1.2.3"), OverrideMatch::Unlimited(1));
        assert_eq!(held(&overrides, "192.0.2.1"), OverrideMatch::Same);
    }

    #[test]
    fn a_text_is_for_exactly_that_key() {
        let overrides = Overrides::new(&[Override {
            key: OverrideKey::Text("gold".into()),
            own: None,
        }]);
        assert_eq!(
            overrides.find(Some(b"gold"), None),
            OverrideMatch::Unlimited(0)
        );
        assert_eq!(overrides.find(Some(b"golden"), None), OverrideMatch::Same);
    }
    #[test]
    fn a_text_comes_before_a_network() {
        let text = Override {
            key: OverrideKey::Text("gold".into()),
            own: Some(numbers(1_000, None)),
        };
        let overrides = Overrides::new(&[network("10.0.0.0/8", None), text]);
        let client = Some("10.1.2.3".parse().unwrap());
        assert_eq!(overrides.find(Some(b"gold"), client), OverrideMatch::Own(1));
        assert_eq!(
            overrides.find(Some(b"other"), client),
            OverrideMatch::Unlimited(0)
        );
        assert_eq!(overrides.name(0).as_deref(), Some("10.0.0.0/8"));
        assert_eq!(overrides.name(1).as_deref(), Some("gold"));
    }

    #[test]
    fn a_bucket_apart_tells_its_network_and_its_key() {
        let network = "2001:db8::/32".parse().unwrap();
        assert_eq!(parted(&apart(network, b"k")), Some((network, &b"k"[..])));
        assert_eq!(parted(b"k"), None);
        assert_eq!(parted(b"\x01k\x01"), None);
    }
}
