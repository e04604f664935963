//! Overrides: keys and clients of a zone with numbers of their own.
//!
//! A text names a key. An address or a network names clients, whatever the key is made of: what is written for
//! `192.0.2.7` must not depend on whether the zone's key is the address, a map of it or something else.
//!
//! A zone may have thousands of them, one for every paying customer, so both kinds are found by hashing: a text at once, a
//! network with one try for each prefix length in use.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;

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

/// The override that applies to a request, by its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OverrideMatch {
    /// One with numbers of its own.
    Limits(u32),
    /// None.
    None,
    /// One that lifts the limit.
    Unlimited(u32),
}

impl OverrideMatch {
    /// The index of the override.
    pub(super) fn index(self) -> Option<u32> {
        match self {
            Self::Limits(index) | Self::Unlimited(index) => Some(index),
            Self::None => None,
        }
    }
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

    /// The override that applies to a key, or to its client where the key has none.
    pub(super) fn find(&self, key: Option<&[u8]>, client: Option<IpAddr>) -> OverrideMatch {
        let text = key.and_then(|key| self.texts.get(key));
        self.matching(text.or_else(|| self.network(client?)))
    }

    /// The override of exactly this network.
    pub(super) fn of_network(&self, network: &IpNet) -> OverrideMatch {
        self.matching(self.networks.get(network))
    }

    /// The numbers of an override that has some.
    pub(super) fn limits(&self, index: u32) -> Option<&OverrideLimits> {
        self.list.get(index as usize)?.own.as_ref()
    }

    /// The clients that an override names, if it does not name a key.
    pub(super) fn clients(&self, index: u32) -> Option<IpNet> {
        match self.list.get(index as usize)?.key {
            OverrideKey::Network(network) => Some(network.trunc()),
            OverrideKey::Text(_) => None,
        }
    }

    /// The name an override is written under.
    pub(super) fn name(&self, index: u32) -> Option<String> {
        Some(match &self.list.get(index as usize)?.key {
            OverrideKey::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                network.addr().to_string()
            }
            OverrideKey::Network(network) => network.to_string(),
            OverrideKey::Text(text) => text.to_string(),
        })
    }

    fn matching(&self, found: Option<&u32>) -> OverrideMatch {
        match found.map(|index| (*index, self.limits(*index))) {
            None => OverrideMatch::None,
            Some((index, None)) => OverrideMatch::Unlimited(index),
            Some((index, Some(_))) => OverrideMatch::Limits(index),
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

#[cfg(test)]
mod tests {

    use super::*;
    use crate::algorithm::{AlgorithmParams, Excess, Rate};

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

    fn matching(overrides: &Overrides, address: &str) -> OverrideMatch {
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
            let OverrideMatch::Limits(index) = matching(&overrides, address) else {
                panic!("{address} has no limits of its own");
            };
            assert_eq!(overrides.limits(index), Some(&numbers(milli, burst)));
        };
        own("10.9.9.9", 10_000, Some(50));
        own("10.1.9.9", 20_000, None);
        own("2001:db8:5::1", 30_000, None);
        assert_eq!(
            matching(&overrides, "10.1.2.3"),
            OverrideMatch::Unlimited(1)
        );
        assert_eq!(matching(&overrides, "192.0.2.1"), OverrideMatch::None);
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
        assert_eq!(overrides.find(Some(b"golden"), None), OverrideMatch::None);
    }

    #[test]
    fn a_text_comes_before_a_network() {
        let text = Override {
            key: OverrideKey::Text("gold".into()),
            own: Some(numbers(1_000, None)),
        };
        let overrides = Overrides::new(&[network("10.0.0.0/8", None), text]);
        let client = Some("10.1.2.3".parse().unwrap());
        assert_eq!(
            overrides.find(Some(b"gold"), client),
            OverrideMatch::Limits(1)
        );
        assert_eq!(
            overrides.find(Some(b"other"), client),
            OverrideMatch::Unlimited(0)
        );
        assert_eq!(overrides.name(0).as_deref(), Some("10.0.0.0/8"));
        assert_eq!(overrides.name(1).as_deref(), Some("gold"));
    }
}
