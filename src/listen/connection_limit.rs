//! How many connections may be open at once, in all and from one address.
//!
//! A connection above the limit is accepted and closed at once: left in the kernel's queue it would be in the way of the
//! next one. Before the limit on all connections closes one, idle connections make room, the longest idle first, as in
//! nginx. Counting costs a lock when a connection opens and when it closes, and nothing where nothing is limited.

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

/// Counts open connections for all event loops.
#[derive(Debug, Default)]
pub struct ConnectionLimiter {
    open: Mutex<OpenConnections>,
    addresses: Mutex<HashMap<IpAddr, u32>>,
    warned: [OncePerSecond; 2],
}

/// Limits a line of the log to one a second.
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
    connections: BTreeMap<u64, Arc<ClientConnection>>,
    /// How many were asked to close and have not yet.
    leaving: usize,
    /// Until when idle connections are not looked for: a moment ago there were none.
    none_idle_until: Millis,
}

/// Counts an open connection until it is dropped.
// Not `Clone`: the connection would be uncounted twice.
#[derive(Debug)]
pub struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    client: Arc<ClientConnection>,
    counted: bool,
    address: Option<IpAddr>,
}

impl ConnectionLimiter {
    /// Admits a connection that has just been accepted; `None` if too many are open, of this address or in all.
    #[must_use]
    pub fn admit(
        self: &Arc<Self>,
        limits: &ConnectionLimits,
        client: &Arc<ClientConnection>,
        address: Option<IpAddr>,
    ) -> Option<ConnectionPermit> {
        let mut permit = ConnectionPermit {
            limiter: Arc::clone(self),
            client: Arc::clone(client),
            counted: false,
            address: None,
        };
        // The address first: no connection makes room for one that is closed anyway.
        if !permit.count_address(limits, address) {
            return None;
        }
        let Some(max) = limits.all else {
            return Some(permit);
        };
        let max = max.get() as usize;
        if !self.open.lock().add(client, max) {
            COUNTERS.refuse_connection(LimitedBy::All);
            if self.warned[LimitedBy::All as usize].is_due(client.opened) {
                tracing::warn!(
                    most = max,
                    "max_connections are open and busy: more are closed unserved"
                );
            }
            return None;
        }
        permit.counted = true;
        Some(permit)
    }
}

impl ConnectionPermit {
    /// The connection.
    #[must_use]
    pub fn client(&self) -> &Arc<ClientConnection> {
        &self.client
    }

    /// Counts the connection as one of this address; false if that has too many.
    #[must_use]
    pub fn count_address(&mut self, limits: &ConnectionLimits, address: Option<IpAddr>) -> bool {
        let (Some(max), Some(address)) = (limits.per_address, address) else {
            return true;
        };
        let network = network(address);
        {
            let mut addresses = self.limiter.addresses.lock();
            let open = addresses.entry(network).or_insert(0);
            if *open < max.get() {
                *open += 1;
                self.address = Some(network);
                return true;
            }
        }
        COUNTERS.refuse_connection(LimitedBy::Address);
        if self.limiter.warned[LimitedBy::Address as usize].is_due(self.client.opened) {
            tracing::warn!(
                client = %address,
                most = max,
                "max_connections_per_address are open from here: more are closed unserved"
            );
        }
        false
    }

    /// Runs a connection, or a part of it, to its end; `None` if it was idle and had to make room.
    // Pinned by the caller: an `async fn` would keep room for it twice.
    pub fn run<T>(
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
            if !self.counted || !self.client.asked_to_close.get() {
                return Poll::Pending;
            }
            if self.client.idle_since().is_some() {
                COUNTERS.evict_connection();
                return Poll::Ready(None);
            }
            // It is busy after all.
            self.limiter.open.lock().keep(&self.client);
            Poll::Pending
        })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if self.counted {
            self.limiter.open.lock().remove_client(&self.client);
        }
        if let Some(address) = self.address {
            let mut addresses = self.limiter.addresses.lock();
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
    /// Adds a connection; false if too many are open and none makes room.
    fn add(&mut self, client: &Arc<ClientConnection>, max: usize) -> bool {
        if self.connections.len() - self.leaving >= max && !self.make_room(client.opened) {
            return false;
        }
        self.connections.insert(client.serial, Arc::clone(client));
        true
    }

    /// Asks the connections to close that have been idle longest: several at once, so that a flood does not look through
    /// all of them for each of its connections.
    fn make_room(&mut self, now: Millis) -> bool {
        if now < self.none_idle_until {
            return false;
        }
        let mut idle: Vec<_> = self
            .connections
            .values()
            .filter(|client| !client.asked_to_close.get())
            .filter_map(|client| Some((client.idle_since()?, client)))
            .collect();
        if idle.is_empty() {
            self.none_idle_until = now.after(RETRY_PAUSE);
            return false;
        }
        let wanted = (self.connections.len() / 64).clamp(1, idle.len());
        idle.select_nth_unstable_by_key(wanted - 1, |(since, client)| (*since, client.serial));
        for (_, client) in &idle[..wanted] {
            client.ask_to_close();
        }
        self.leaving += wanted;
        true
    }

    fn keep(&mut self, client: &ClientConnection) {
        if client.asked_to_close.take() {
            self.leaving -= 1;
        }
    }

    fn remove_client(&mut self, client: &ClientConnection) {
        self.keep(client);
        self.connections.remove(&client.serial);
    }
}

/// The network that an address counts for: in IPv6 one household has a whole /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

/// For how long idle connections are not looked for after none was found.
const RETRY_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

#[cfg(test)]
mod tests {

    use std::net::SocketAddr;
    use std::num::NonZeroU32;
    use std::pin::pin;

    use super::*;
    use crate::message::{ConnectionPhase, RemoteAddr};

    fn limits(all: u32, per_address: u32) -> ConnectionLimits {
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
        let (limiter, limits) = (Arc::new(ConnectionLimiter::default()), limits(0, 2));
        let add = |address: &str| limiter.admit(&limits, &client(1, 0), address.parse().ok());
        let first = add("192.0.2.7");
        let second = add("::ffff:192.0.2.7");
        assert!(first.is_some() && second.is_some());
        assert!(add("192.0.2.7").is_none());
        assert!(add("192.0.2.8").is_some());
        drop(first);
        assert!(add("192.0.2.7").is_some());
        let household = [add("2001:db8::1"), add("2001:db8::ffff:0:0:1")];
        assert!(household.iter().all(Option::is_some));
        assert!(add("2001:db8::2").is_none());
        assert!(add("2001:db8:0:1::2").is_some());
        drop((second, household));
        assert!(
            limiter.addresses.lock().is_empty(),
            "nothing is kept of closed connections"
        );
    }

    #[test]
    fn busy_connections_stay() {
        let (limiter, limits) = (Arc::new(ConnectionLimiter::default()), limits(2, 0));
        let first = limiter.admit(&limits, &busy(1, 0), None);
        let second = limiter.admit(&limits, &busy(2, 0), None);
        assert!(first.is_some() && second.is_some());
        assert!(limiter.admit(&limits, &busy(3, 0), None).is_none());
        drop(first);
        assert!(limiter.admit(&limits, &busy(4, 0), None).is_some());
    }

    #[tokio::test]
    async fn the_longest_idle_connection_makes_room() {
        let (limiter, limits) = (Arc::new(ConnectionLimiter::default()), limits(3, 0));
        let connections = [busy(1, 0), busy(2, 0), busy(3, 0)];
        let permits: Vec<_> = connections
            .iter()
            .map(|client| limiter.admit(&limits, client, None))
            .collect();
        for (client, asked) in [(&connections[1], 500), (&connections[2], 400)] {
            client.count_request(Millis(asked));
            client.state.set_phase(ConnectionPhase::Idle);
        }
        let fourth = limiter.admit(&limits, &busy(4, 1000), None);
        assert!(fourth.is_some());
        let asked: Vec<_> = connections
            .iter()
            .map(|client| client.asked_to_close.get())
            .collect();
        assert_eq!(asked, [false, false, true]);

        // A connection that turns out to be busy stays, and another one makes room for the next.
        connections[2].state.begin_request();
        let mut permits = permits.into_iter().flatten();
        let (_first, second, third) = (permits.next(), permits.next(), permits.next());
        let third = third.unwrap();
        let forever = pin!(std::future::pending::<()>());
        let mut staying = pin!(third.run(forever));
        assert!(poll_once(staying.as_mut()).await.is_pending());
        assert!(!connections[2].asked_to_close.get());
        assert!(limiter.admit(&limits, &busy(5, 1000), None).is_some());
        let second = second.unwrap();
        let forever = pin!(std::future::pending::<()>());
        let mut leaving = pin!(second.run(forever));
        assert_eq!(poll_once(leaving.as_mut()).await, Poll::Ready(None));
    }

    async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
        poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
    }

    #[test]
    fn without_limits_nothing_is_counted() {
        let limiter = Arc::new(ConnectionLimiter::default());
        let address = Some([192, 0, 2, 7].into());
        let _permit = limiter
            .admit(&ConnectionLimits::default(), &client(1, 0), address)
            .unwrap();
        assert!(limiter.open.lock().connections.is_empty());
        assert!(limiter.addresses.lock().is_empty());
    }
}
