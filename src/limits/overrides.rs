//! Keys and networks with numbers of their own.
//!
//! A zone may have thousands of them, one for every paying customer, so both kinds are found by hashing:
//! a text at once, a network with one try for each prefix length that is in use.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::config::plan::{Override, OverrideKey, Own};

/// The overrides of one zone.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    /// `None` for unlimited.
    numbers: Vec<Option<Own>>,
    /// By index of their numbers.
    texts: HashMap<Box<[u8]>, u32>,
    networks: HashMap<IpNet, u32>,
    /// Prefix lengths in use, longest first.
    lengths_v4: Vec<u8>,
    lengths_v6: Vec<u8>,
}

/// What holds for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// Numbers of its own, found under this index.
    Own(u32),
    /// What holds for everybody.
    Same,
    /// Nothing.
    Unlimited,
}

impl Overrides {
    pub(super) fn new(overrides: &[Override]) -> Self {
        let mut all = Self::default();
        for (numbers, one) in (0..).zip(overrides) {
            all.numbers.push(one.own);
            match &one.key {
                OverrideKey::Network(network) => {
                    let network = network.trunc();
                    match network {
                        IpNet::V4(v4) => all.lengths_v4.push(v4.prefix_len()),
                        IpNet::V6(v6) => all.lengths_v6.push(v6.prefix_len()),
                    }
                    all.networks.insert(network, numbers);
                }
                OverrideKey::Text(text) => {
                    all.texts.insert(text.as_bytes().into(), numbers);
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
        self.texts.is_empty() && self.networks.is_empty()
    }

    /// What holds for a key; `address` is the client's where the key is its address.
    pub(super) fn find(&self, key: &[u8], address: Option<IpAddr>) -> Held {
        let found = self.texts.get(key).or_else(|| self.network(address?));
        match found.map(|index| (*index, self.numbers[*index as usize])) {
            None => Held::Same,
            Some((_, None)) => Held::Unlimited,
            Some((index, Some(_))) => Held::Own(index),
        }
    }

    /// The numbers of a [key of its own](Held::Own).
    pub(super) fn own(&self, index: u32) -> Option<&Own> {
        self.numbers.get(index as usize)?.as_ref()
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
    use crate::config::plan::{Algorithm, Excess, Rate};

    fn network(text: &str, own: Option<(u64, Option<u32>)>) -> Override {
        Override {
            key: OverrideKey::Network(text.parse().unwrap()),
            own: own.map(|(milli, burst)| numbers(milli, burst)),
        }
    }

    fn numbers(milli: u64, burst: Option<u32>) -> Own {
        Own {
            algorithm: Algorithm::LeakyBucket {
                rate: Rate::per_second(milli),
            },
            burst: burst.map(Excess::requests),
        }
    }

    fn held(overrides: &Overrides, address: &str) -> Held {
        overrides.find(b"", Some(address.parse().unwrap()))
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
            let Held::Own(index) = held(&overrides, address) else {
                panic!("{address} has no numbers of its own");
            };
            assert_eq!(overrides.own(index), Some(&numbers(milli, burst)));
        };
        own("10.9.9.9", 10_000, Some(50));
        own("10.1.9.9", 20_000, None);
        own("2001:db8:5::1", 30_000, None);
        assert_eq!(held(&overrides, "10.1.2.3"), Held::Unlimited);
        assert_eq!(held(&overrides, "192.0.2.1"), Held::Same);
    }

    #[test]
    fn a_text_is_for_exactly_that_key() {
        let overrides = Overrides::new(&[Override {
            key: OverrideKey::Text("gold".into()),
            own: None,
        }]);
        assert_eq!(overrides.find(b"gold", None), Held::Unlimited);
        assert_eq!(overrides.find(b"golden", None), Held::Same);
    }
}
