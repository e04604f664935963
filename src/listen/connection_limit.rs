//! How many connections may be open at once, in all and from one address.
//!
//! One too many is accepted and closed at once: left in the kernel's queue it would stand in everybody else's way. In
//! all there is one more try before that, as in nginx: connections that are idle make room, the longest idle first.
//! Counting costs a lock when a connection opens and when it closes, and nothing where nothing is limited.

use std::collections::{BTreeMap, HashMap};
use std::future::{Future, poll_fn};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use parking_lot::Mutex;

use crate::clock::Millis;
use crate::config::plan::ConnectionLimits;
use crate::message::ClientConnection;
use crate::telemetry::{COUNTERS, LimitedBy};

/// Who is connected; shared by all event loops.
#[derive(Debug, Default)]
pub struct ConnectionLimiter {
    everybody: Mutex<OpenConnections>,
    addresses: Mutex<HashMap<IpAddr, u32>>,
    warned: [OncePerSecond; 2],
}

/// Says whether a line is due that is written at most once a second.
#[derive(Debug, Default)]
pub(super) struct OncePerSecond(AtomicU64);

impl OncePerSecond {
    pub(super) fn is_due(&self, now: Millis) -> bool {
        let second = now.0 / 1000 + 1;
        self.0.swap(second, Ordering::Relaxed) != second
    }
}

#[derive(Debug, Default)]
struct OpenConnections {
    // By serial number, so the oldest first.
    peers: BTreeMap<u64, Arc<ClientConnection>>,
    /// Those that were asked to leave and have not yet.
    leaving: usize,
    /// Until when nobody is looked for who could leave: a moment ago there was no one.
    futile: Millis,
}

/// A connection's place, given back when dropped.
// Not `Clone`: two owners of one place would give it back twice.
#[derive(Debug)]
pub struct ConnectionPermit {
    cap: Arc<ConnectionLimiter>,
    client: Arc<ClientConnection>,
    counted: bool,
    address: Option<IpAddr>,
}

impl ConnectionLimiter {
    /// A place for a connection that has just been accepted; `None` if there are enough, of this address or in all.
    #[must_use]
    pub fn admit(
        self: &Arc<Self>,
        caps: &ConnectionLimits,
        client: &Arc<ClientConnection>,
        address: Option<IpAddr>,
    ) -> Option<ConnectionPermit> {
        let mut seat = ConnectionPermit {
            cap: Arc::clone(self),
            client: Arc::clone(client),
            counted: false,
            address: None,
        };
        // First the address: nobody has to leave for somebody who may not stay.
        if !seat.counts_for(caps, address) {
            return None;
        }
        let Some(most) = caps.all else {
            return Some(seat);
        };
        let most = most.get() as usize;
        if !self.everybody.lock().enter(client, most) {
            COUNTERS.turn_away(LimitedBy::All);
            if self.warned[LimitedBy::All as usize].is_due(client.opened) {
                tracing::warn!(
                    most,
                    "max_connections are open and busy: more are closed unserved"
                );
            }
            return None;
        }
        seat.counted = true;
        Some(seat)
    }
}

impl ConnectionPermit {
    /// Whose it is.
    #[must_use]
    pub fn client(&self) -> &Arc<ClientConnection> {
        &self.client
    }

    /// Counts the connection as one of this address; false if that has enough.
    #[must_use]
    pub fn counts_for(&mut self, caps: &ConnectionLimits, address: Option<IpAddr>) -> bool {
        let (Some(most), Some(address)) = (caps.per_address, address) else {
            return true;
        };
        let network = network(address);
        {
            let mut addresses = self.cap.addresses.lock();
            let open = addresses.entry(network).or_insert(0);
            if *open < most.get() {
                *open += 1;
                self.address = Some(network);
                return true;
            }
        }
        COUNTERS.turn_away(LimitedBy::Address);
        if self.cap.warned[LimitedBy::Address as usize].is_due(self.client.opened) {
            tracing::warn!(
                client = %address,
                most,
                "max_connections_per_address are open from here: more are closed unserved"
            );
        }
        false
    }

    /// Runs a connection, or a part of it, to its end; `None` if it was idle and its place is wanted.
    // Pinned by the caller: an `async fn` would keep room for it twice.
    pub fn hold<T>(
        &self,
        mut connection: Pin<&mut impl Future<Output = T>>,
    ) -> impl Future<Output = Option<T>> {
        let mut known = !self.counted;
        poll_fn(move |context| {
            if !std::mem::replace(&mut known, true) {
                self.client.state.set_waker(context.waker());
            }
            if let Poll::Ready(done) = connection.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            if !self.counted || !self.client.is_asked_to_close() {
                return Poll::Pending;
            }
            if self.client.idle_since().is_some() {
                COUNTERS.evict();
                return Poll::Ready(None);
            }
            // It has something to do after all.
            self.cap.everybody.lock().stay(&self.client);
            Poll::Pending
        })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if self.counted {
            self.cap.everybody.lock().leave(&self.client);
        }
        if let Some(address) = self.address {
            let mut addresses = self.cap.addresses.lock();
            if let Some(open) = addresses.get_mut(&address) {
                *open -= 1;
                if *open == 0 {
                    addresses.remove(&address);
                }
            }
        }
    }
}

impl OpenConnections {
    /// Lets one more in; false if there are enough and nobody leaves for it.
    fn enter(&mut self, client: &Arc<ClientConnection>, most: usize) -> bool {
        if self.peers.len() - self.leaving >= most && !self.make_room(client.opened) {
            return false;
        }
        self.peers.insert(client.serial, Arc::clone(client));
        true
    }

    /// Asks those to leave who have been idle longest: several at once, so that a flood does not look through all
    /// of them for each of its connections.
    fn make_room(&mut self, now: Millis) -> bool {
        if now < self.futile {
            return false;
        }
        let mut idle: Vec<_> = self
            .peers
            .values()
            .filter(|client| !client.is_asked_to_close())
            .filter_map(|client| Some((client.idle_since()?, client)))
            .collect();
        if idle.is_empty() {
            self.futile = now.after(REST);
            return false;
        }
        let wanted = (self.peers.len() / 64).clamp(1, idle.len());
        idle.select_nth_unstable_by_key(wanted - 1, |(since, client)| (*since, client.serial));
        for (_, client) in &idle[..wanted] {
            client.ask_to_close();
        }
        self.leaving += wanted;
        true
    }

    fn stay(&mut self, client: &ClientConnection) {
        if client.decline_to_close() {
            self.leaving -= 1;
        }
    }

    fn leave(&mut self, client: &ClientConnection) {
        self.stay(client);
        self.peers.remove(&client.serial);
    }
}

/// Whom an address belongs to: in IPv6 one household has a whole /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

/// How long nobody is looked for again after nobody was found.
const REST: std::time::Duration = std::time::Duration::from_millis(50);

#[cfg(test)]
mod tests {

    use std::net::SocketAddr;
    use std::num::NonZeroU32;
    use std::pin::pin;

    use super::*;
    use crate::message::{ConnectionPhase, RemoteAddr};

    fn caps(all: u32, per_address: u32) -> ConnectionLimits {
        ConnectionLimits {
            all: NonZeroU32::new(all),
            per_address: NonZeroU32::new(per_address),
        }
    }

    fn client(serial: u64, opened: u64) -> Arc<ClientConnection> {
        let remote = RemoteAddr::Ip(SocketAddr::from(([192, 0, 2, 7], 1)));
        Arc::new(ClientConnection::new(remote, None, serial, Millis(opened)))
    }

    fn busy(serial: u64, opened: u64) -> Arc<ClientConnection> {
        let client = client(serial, opened);
        client.state.begin_request();
        client
    }

    #[test]
    fn an_address_has_its_share_and_a_household_shares_one() {
        let (cap, caps) = (Arc::new(ConnectionLimiter::default()), caps(0, 2));
        let enter = |address: &str| cap.admit(&caps, &client(1, 0), address.parse().ok());
        let first = enter("192.0.2.7");
        let second = enter("::ffff:192.0.2.7");
        assert!(first.is_some() && second.is_some());
        assert!(enter("192.0.2.7").is_none());
        assert!(enter("192.0.2.8").is_some());
        drop(first);
        assert!(enter("192.0.2.7").is_some());
        let household = [enter("2001:db8::1"), enter("2001:db8::ffff:0:0:1")];
        assert!(household.iter().all(Option::is_some));
        assert!(enter("2001:db8::2").is_none());
        assert!(enter("2001:db8:0:1::2").is_some());
        drop((second, household));
        assert!(
            cap.addresses.lock().is_empty(),
            "nothing is kept of who has left"
        );
    }

    #[test]
    fn the_busy_keep_their_places() {
        let (cap, caps) = (Arc::new(ConnectionLimiter::default()), caps(2, 0));
        let first = cap.admit(&caps, &busy(1, 0), None);
        let second = cap.admit(&caps, &busy(2, 0), None);
        assert!(first.is_some() && second.is_some());
        assert!(cap.admit(&caps, &busy(3, 0), None).is_none());
        drop(first);
        assert!(cap.admit(&caps, &busy(4, 0), None).is_some());
    }

    #[tokio::test]
    async fn the_longest_idle_makes_room() {
        let (cap, caps) = (Arc::new(ConnectionLimiter::default()), caps(3, 0));
        let peers = [busy(1, 0), busy(2, 0), busy(3, 0)];
        let places: Vec<_> = peers
            .iter()
            .map(|client| cap.admit(&caps, client, None))
            .collect();
        for (client, asked) in [(&peers[1], 500), (&peers[2], 400)] {
            client.count_request(Millis(asked));
            client.state.set_phase(ConnectionPhase::Idle);
        }
        let fourth = cap.admit(&caps, &busy(4, 1000), None);
        assert!(fourth.is_some());
        let asked: Vec<_> = peers
            .iter()
            .map(|client| client.is_asked_to_close())
            .collect();
        assert_eq!(asked, [false, false, true]);

        // Whoever turns out to have something to do stays, and another leaves for the next.
        peers[2].state.begin_request();
        let mut places = places.into_iter().flatten();
        let (_first, second, third) = (places.next(), places.next(), places.next());
        let third = third.unwrap();
        let forever = pin!(std::future::pending::<()>());
        let mut staying = pin!(third.hold(forever));
        assert!(poll_once(staying.as_mut()).await.is_pending());
        assert!(!peers[2].is_asked_to_close());
        assert!(cap.admit(&caps, &busy(5, 1000), None).is_some());
        let second = second.unwrap();
        let forever = pin!(std::future::pending::<()>());
        let mut leaving = pin!(second.hold(forever));
        assert_eq!(poll_once(leaving.as_mut()).await, Poll::Ready(None));
    }

    async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
        poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
    }

    #[test]
    fn without_caps_nothing_is_counted() {
        let cap = Arc::new(ConnectionLimiter::default());
        let address = Some([192, 0, 2, 7].into());
        let _place = cap
            .admit(&ConnectionLimits::default(), &client(1, 0), address)
            .unwrap();
        assert!(cap.everybody.lock().peers.is_empty());
        assert!(cap.addresses.lock().is_empty());
    }
}
