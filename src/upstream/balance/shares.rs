//! Servers by their shares: a number below the sum of all weights belongs to one of them.
//!
//! nginx's `hash`, `ip_hash` and `random` all choose so. Who is down keeps its share, so that the others keep theirs.

use super::round::{HashSearch, TriedPeers};
use super::standings::PeerStates;
use crate::clock::Millis;

/// The weights of all servers before each server's own and with it.
#[derive(Debug, Default)]
pub(super) struct WeightTable {
    sums: Box<[u64]>,
    indices: Box<[usize]>,
}

impl WeightTable {
    /// Those of these servers, with their weights.
    pub(super) fn new(servers: impl Iterator<Item = (usize, u32)>) -> Self {
        let mut all = 0;
        let sums = servers.map(|(index, weight)| {
            all += u64::from(weight);
            (all, index)
        });
        let (sums, indices): (Vec<_>, Vec<_>) = sums.unzip();
        Self {
            sums: sums.into(),
            indices: indices.into(),
        }
    }

    /// Whose share a number falls into, whatever it is; none where there is nobody.
    pub(super) fn of(&self, number: u64) -> Option<usize> {
        let number = number.checked_rem(*self.sums.last()?)?;
        let at = self.sums.partition_point(|sum| *sum <= number);
        self.indices.get(at).copied()
    }

    /// The server that a key's hash leads to; if that cannot be asked, the hash of the key with a number before it is
    /// added, and so on. As in nginx, and before it in Cache::Memcached.
    pub(super) fn by_hash(
        &self,
        standings: &PeerStates,
        search: &mut HashSearch,
        round: &TriedPeers,
        now: Millis,
    ) -> Option<usize> {
        while !search.is_over() {
            let mut sum = Crc::default();
            if search.hashed > 0 {
                sum.add(search.hashed.to_string().as_bytes());
            }
            sum.add(&search.key);
            search.hash += u64::from(sum.value() >> 16 & 0x7fff);
            search.hashed += 1;
            let index = self.of(search.hash)?;
            if standings.is_usable(index, round, now) {
                return Some(index);
            }
            search.miss();
        }
        None
    }

    /// The server that a client's address leads to.
    pub(super) fn by_address(
        &self,
        standings: &PeerStates,
        search: &mut HashSearch,
        round: &TriedPeers,
        now: Millis,
    ) -> Option<usize> {
        while !search.is_over() {
            let start = match search.hashed {
                0 => 89,
                _ => search.hash,
            };
            let step = |hash, byte: &u8| (hash * 113 + u64::from(*byte)) % 6271;
            search.hash = search.key.iter().fold(start, step);
            search.hashed = 1;
            let index = self.of(search.hash)?;
            if standings.is_usable(index, round, now) {
                return Some(index);
            }
            search.miss();
        }
        None
    }

    /// The less loaded of two who are drawn by lot.
    pub(super) fn by_lot(
        &self,
        standings: &PeerStates,
        search: &mut HashSearch,
        round: &TriedPeers,
        now: Millis,
        lot: &mut Lot,
        less_loaded: impl Fn(usize, usize) -> usize,
    ) -> Option<usize> {
        let mut first = None;
        while !search.is_over() {
            let index = self.of(lot.draw())?;
            if first != Some(index) && standings.is_usable(index, round, now) {
                match first {
                    Some(first) => return Some(less_loaded(first, index)),
                    None => first = Some(index),
                }
            }
            search.miss();
        }
        None
    }
}

/// Numbers nobody needs to guess: xorshift, with Marsaglia's shifts.
#[derive(Debug)]
pub(super) struct Lot(u64);

impl Lot {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(super) fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The lower bits are the weaker ones.
        self.0 >> 11
    }
}

/// The checksum of IEEE 802.3, as in zlib.
#[derive(Debug, Clone, Copy)]
pub(super) struct Crc(u32);

impl Default for Crc {
    fn default() -> Self {
        Self(!0)
    }
}

impl Crc {
    pub(super) fn of(bytes: &[u8]) -> u32 {
        let mut sum = Self::default();
        sum.add(bytes);
        sum.value()
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let at = (self.0 ^ u32::from(*byte)) & 0xff;
            self.0 = TABLE[at as usize] ^ (self.0 >> 8);
        }
    }

    pub(super) fn value(self) -> u32 {
        !self.0
    }
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let mut sum = at as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 {
                sum >> 1 ^ 0xedb8_8320
            } else {
                sum >> 1
            };
            bit += 1;
        }
        table[at] = sum;
        at += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_everybodys() {
        assert_eq!(Crc::of(b"123456789"), 0xcbf4_3926);
        assert_eq!(Crc::of(b""), 0);
    }

    #[test]
    fn a_number_falls_into_the_share_of_one() {
        let shares = WeightTable::new([(0, 2), (2, 1), (1, 3)].into_iter());
        let found: Vec<_> = (0..8).filter_map(|number| shares.of(number)).collect();
        assert_eq!(found, [0, 0, 2, 1, 1, 1, 0, 0]);
        assert_eq!(WeightTable::default().of(5), None);
    }

    #[test]
    fn lots_reach_everybody_by_weight() {
        let shares = WeightTable::new([(0, 1), (1, 8), (2, 1)].into_iter());
        let mut lot = Lot::new(0x9e37_79b9_7f4a_7c15);
        let mut found = [0; 3];
        for _ in 0..10_000 {
            found[shares.of(lot.draw()).unwrap()] += 1;
        }
        assert!(
            found[0] > 800 && found[2] > 800 && found[1] > 7_500,
            "{found:?}"
        );
    }
}
