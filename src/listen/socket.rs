//! Listening sockets: bound here or inherited, and the event loop that serves a connection.
//!
//! Every event loop has a listening socket of its own (SO_REUSEPORT), and the kernel spreads connections over them. The
//! same option would let a second weir silently take a share of the first one's connections, so an address is first bound
//! without it: that fails while another process listens there.
//!
//! Sockets from systemd, or from the weir that this one takes over from, are known by their addresses. Connections wait in
//! their queues, so all sockets of an address are listened on, however many there are: a loop may have several, and
//! several loops may share one.
//!
//! The kernel spreads connections by a hash. Of many every loop gets its share, but of eight long ones six may come to one
//! loop while another has none. So a loop that has more connections than another hands a new one over to it, before
//! anything is read; from then on the connection stays there.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::{fmt, fs, io};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::sync::mpsc;

use crate::clock::Millis;
use crate::config::plan::SocketAddress;
use crate::message::RemoteAddr;
use crate::net::Stream;

/// An address could not be listened on.
#[derive(Debug)]
pub struct Error {
    address: SocketAddress,
    source: io::Error,
}

impl Error {
    pub(super) fn new(address: &SocketAddress, source: io::Error) -> Self {
        Self {
            address: address.clone(),
            source,
        }
    }

    /// The kind of error the system gave.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(text, "cannot listen on {}: ", self.address)?;
        match (self.source.kind(), &self.address) {
            (io::ErrorKind::AddrInUse, _) => text.write_str("address in use"),
            (io::ErrorKind::AddrNotAvailable, _) => {
                text.write_str("this machine does not have that address")
            }
            (io::ErrorKind::PermissionDenied, SocketAddress::Tcp(_)) => {
                text.write_str("permission denied (ports below 1024 need a privilege)")
            }
            _ => self.source.fmt(text),
        }
    }
}

// Without a source: the message has it already.
impl std::error::Error for Error {}

/// An accepted connection and the addresses of its two ends.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) stream: Stream,
    pub(super) remote: RemoteAddr,
    pub(super) local: Option<SocketAddr>,
}

/// A listening socket, one event loop's.
#[derive(Debug)]
pub struct BoundSocket {
    pub(super) socket: Socket,
    pub(super) address: SocketAddress,
    pub(super) handoff: LoopHandoff,
    // Held for its drop: the last loop to stop takes the file away.
    file: Option<Arc<SocketFile>>,
}

/// A copy of a listening socket, to be handed to another process. As long as there is one, clients can connect.
#[derive(Debug)]
pub struct SharedSocket {
    socket: OwnedFd,
    file: Option<Arc<SocketFile>>,
}

impl BoundSocket {
    /// A copy of the socket.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn share(&self) -> io::Result<SharedSocket> {
        Ok(SharedSocket {
            socket: self.socket.try_clone()?.into(),
            file: self.file.clone(),
        })
    }

    /// The address it listens on; with the real port where 0 was asked for.
    #[must_use]
    pub fn address(&self) -> &SocketAddress {
        &self.address
    }
}

impl SharedSocket {
    /// The descriptor to hand over.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// It belongs to another process from now on, which also removes its file.
    pub fn give_away(&self) {
        if let Some(file) = &self.file {
            file.given_away.store(true, Ordering::Relaxed);
        }
    }
}

/// The event loops as listeners see them.
#[derive(Debug, Clone)]
pub struct AcceptShards(Vec<LoopLoad>);

impl AcceptShards {
    /// So many event loops, without connections.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| LoopLoad::default()).collect())
    }

    /// Binds all addresses, each once for each event loop, in the order given; inherited sockets are not bound but taken.
    /// `open_addresses` are listened on already.
    ///
    /// Together, because a wildcard and one address of the same port can both be ours: seen one after the other, the
    /// second would look taken.
    ///
    /// # Errors
    /// When one of the addresses cannot be listened on; then none is.
    pub fn bind_all(
        &self,
        listens: &[&SocketAddress],
        open_addresses: &[&SocketAddress],
        inherited: &mut InheritedSockets,
    ) -> Result<Vec<Vec<BoundSocket>>, Error> {
        for listen in listens {
            if let SocketAddress::Tcp(address) = listen
                && address.port() != 0
                && !inherited.has(listen)
                && !inherited.left().any(|own| overlap(*address, own))
                && !open_addresses.iter().any(|own| overlap(*address, own))
            {
                // Without `SO_REUSEPORT`, so that an address in use by another process is noticed. Not listened on: clients
                // that connected would be reset when it is closed a moment later.
                open_tcp(*address, false).map_err(|source| Error::new(listen, source))?;
            }
        }
        listens
            .iter()
            .map(|listen| {
                let handoffs = || LoopHandoff::between(&self.0);
                let bound = match listen {
                    listen if inherited.has(listen) => inherited.take(listen, handoffs),
                    SocketAddress::Tcp(address) => bind_tcp(*address, handoffs()),
                    SocketAddress::Unix(path) => bind_unix(path, handoffs()),
                };
                bound.map_err(|source| Error::new(listen, source))
            })
            .collect()
    }
}

/// Whether a socket of ours would make an address look taken.
fn overlap(address: SocketAddr, own: &SocketAddress) -> bool {
    let SocketAddress::Tcp(own) = own else {
        return false;
    };
    own.port() == address.port()
        && own.is_ipv4() == address.is_ipv4()
        && (own.ip() == address.ip() || own.ip().is_unspecified() || address.ip().is_unspecified())
}

fn bind_tcp(mut address: SocketAddr, handoffs: Vec<LoopHandoff>) -> io::Result<Vec<BoundSocket>> {
    handoffs
        .into_iter()
        .map(|handoff| {
            let socket = open_tcp(address, true)?;
            socket.listen(BACKLOG)?;
            // With port 0 the first socket finds one, and the others have to follow it.
            address = socket.local_addr()?.as_socket().unwrap_or(address);
            Ok(BoundSocket {
                socket,
                address: SocketAddress::Tcp(address),
                handoff,
                file: None,
            })
        })
        .collect()
}

fn open_tcp(address: SocketAddr, reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        // So that [::]:80 and 0.0.0.0:80 can be bound together, and every client has one form of address.
        socket.set_only_v6(true)?;
    }
    // Lets a restart bind while the last run's connections are still in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if reuse_port {
        socket.set_reuse_port(true)?;
    }
    // What is accepted inherits it: a system call a socket instead of one a connection.
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn bind_unix(path: &Path, handoffs: Vec<LoopHandoff>) -> io::Result<Vec<BoundSocket>> {
    remove_stale(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = Arc::new(SocketFile::at(path)?);
    // As in nginx: the folder's permissions decide which users may connect.
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    socket.listen(BACKLOG)?;
    handoffs
        .into_iter()
        .map(|handoff| {
            Ok(BoundSocket {
                socket: socket.try_clone()?,
                address: SocketAddress::Unix(path.to_owned()),
                handoff,
                file: Some(Arc::clone(&file)),
            })
        })
        .collect()
}

/// Removes a socket file that a killed process has left behind; nothing else.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

/// The file of a unix socket.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
    given_away: AtomicBool,
}

impl SocketFile {
    pub(super) fn at(path: &Path) -> io::Result<Self> {
        let file = fs::symlink_metadata(path)?;
        Ok(Self {
            path: path.to_owned(),
            device: file.dev(),
            inode: file.ino(),
            given_away: AtomicBool::new(false),
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.given_away.load(Ordering::Relaxed) {
            return;
        }
        // Another process may have put its own socket in its place meanwhile.
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|file| file.dev() == self.device && file.ino() == self.inode);
        if is_ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the socket file could not be removed");
        }
    }
}

/// Connections the kernel holds for us until they are accepted; it cuts this to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Inherited sockets that were not taken yet.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    sockets: Vec<(SocketAddress, Socket)>,
    /// Whether files of unix sockets are ours to remove.
    files: bool,
    /// How many descriptors were no listening sockets.
    unusable: usize,
}

impl InheritedSockets {
    /// The sockets that systemd has opened; it keeps the files of unix sockets. Called before there are threads, because it
    /// removes the environment variables that name them.
    #[must_use]
    pub fn from_systemd() -> Self {
        let mut passed = listenfd::ListenFd::from_env();
        let mut inherited = Self::default();
        for index in 0..passed.len() {
            let socket = match passed.take_tcp_listener(index) {
                Ok(Some(tcp)) => Some(Socket::from(tcp)),
                _ => (passed.take_unix_listener(index).ok().flatten()).map(Socket::from),
            };
            let is_usable = socket.is_some_and(|socket| inherited.add(socket).is_ok());
            inherited.unusable += usize::from(!is_usable);
        }
        inherited
    }

    /// The sockets of a weir that this one takes over from.
    #[must_use]
    pub fn from_descriptors(descriptors: Vec<OwnedFd>) -> Self {
        let mut inherited = Self {
            files: true,
            ..Self::default()
        };
        for descriptor in descriptors {
            inherited.unusable += usize::from(inherited.add(descriptor.into()).is_err());
        }
        inherited
    }

    /// A TCP socket with this address, if there is one.
    pub fn take_tcp(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let wanted = SocketAddress::Tcp(address);
        let index = self.sockets.iter().position(|(at, _)| *at == wanted)?;
        Some(self.sockets.swap_remove(index).1.into())
    }

    /// Whether there is a socket with this address.
    pub(super) fn has(&self, address: &SocketAddress) -> bool {
        self.sockets.iter().any(|(at, _)| at == address)
    }

    /// All sockets of an address, of which there is one at least, spread over the loops: `handoffs` makes one for each loop.
    pub(super) fn take(
        &mut self,
        address: &SocketAddress,
        handoffs: impl Fn() -> Vec<LoopHandoff>,
    ) -> io::Result<Vec<BoundSocket>> {
        let own = self.sockets.extract_if(.., |(at, _)| at == address);
        let mut own: Vec<Socket> = own.map(|(_, socket)| socket).collect();
        let file = match address {
            SocketAddress::Unix(path) if self.files => Some(Arc::new(SocketFile::at(path)?)),
            _ => None,
        };
        // Every loop has one at least.
        let loops = handoffs().len();
        for copied in 0..loops.saturating_sub(own.len()) {
            let copy = own[copied].try_clone()?;
            own.push(copy);
        }
        let mut bound = Vec::new();
        let mut own = own.into_iter().peekable();
        while own.peek().is_some() {
            for (handoff, socket) in handoffs().into_iter().zip(own.by_ref().take(loops)) {
                bound.push(BoundSocket {
                    socket,
                    address: address.clone(),
                    handoff,
                    file: file.clone(),
                });
            }
        }
        Ok(bound)
    }

    /// Closes the sockets that were not taken, and logs them.
    pub fn close(self) {
        for address in self.left() {
            tracing::warn!(%address, "a socket that was handed to weir is closed: the configuration does not listen there");
        }
        if self.unusable > 0 {
            tracing::warn!(
                "{} of the descriptors handed to weir are no listening sockets",
                self.unusable
            );
        }
    }

    /// The addresses of the sockets that were not taken.
    pub(super) fn left(&self) -> impl Iterator<Item = &SocketAddress> {
        self.sockets.iter().map(|(address, _)| address)
    }

    fn add(&mut self, socket: Socket) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let address = match (address.as_socket(), address.as_pathname()) {
            (Some(address), _) => {
                socket.set_tcp_nodelay(true)?;
                SocketAddress::Tcp(address)
            }
            (None, Some(path)) => SocketAddress::Unix(path.to_owned()),
            (None, None) => return Err(io::ErrorKind::Unsupported.into()),
        };
        self.sockets.push((address, socket));
        Ok(())
    }
}

/// Hands connections of one listening address over between event loops; one for each loop.
#[derive(Debug)]
pub(super) struct LoopHandoff {
    own_index: usize,
    loads: Vec<LoopLoad>,
    senders: Vec<mpsc::Sender<TransferredConnection>>,
    receiver: mpsc::Receiver<TransferredConnection>,
    // The first loop of the next comparison.
    next: usize,
    budget: HandoffBudget,
}

/// How many connections an event loop has: every connection holds a clone.
// The number of holders is the count. Every loop has equally many that its handoffs hold.
#[derive(Debug, Clone, Default)]
pub(super) struct LoopLoad(Arc<CachePadded>);

/// Keeps the counters of two loops out of one cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CachePadded;

/// A connection on its way to another loop.
#[derive(Debug)]
pub(super) struct TransferredConnection {
    socket: Socket,
    remote: RemoteAddr,
    local: Option<SocketAddr>,
    load: LoopLoad,
}

impl LoopHandoff {
    /// The handoffs of one address; `loads` are those of all loops, the same for all addresses.
    pub(super) fn between(loads: &[LoopLoad]) -> Vec<Self> {
        let (senders, ends): (Vec<_>, Vec<_>) =
            loads.iter().map(|_| mpsc::channel(MAX_HANDOFFS)).unzip();
        let handoff = |(own_index, receiver)| Self {
            own_index,
            loads: loads.to_vec(),
            senders: senders.clone(),
            receiver,
            next: own_index + 1,
            budget: HandoffBudget::default(),
        };
        ends.into_iter().enumerate().map(handoff).collect()
    }

    /// The load of this loop, for one more connection to hold.
    pub(super) fn own_load(&self) -> LoopLoad {
        self.loads[self.own_index].clone()
    }

    /// Counts a new connection for this loop, unless it hands the connection over; `None` where it has.
    pub(super) fn assign(
        &mut self,
        accepted: Accepted,
        now: Millis,
    ) -> io::Result<Option<(Accepted, LoopLoad)>> {
        let Some(target) = self.lighter_loop(now) else {
            return Ok(Some((accepted, self.own_load())));
        };
        let connection = TransferredConnection {
            socket: accepted.stream.into_socket()?,
            remote: accepted.remote,
            local: accepted.local,
            load: self.loads[target].clone(),
        };
        let Err(error) = self.senders[target].try_send(connection) else {
            return Ok(None);
        };
        // The other loop stops, or is busy.
        let connection = TransferredConnection {
            load: self.own_load(),
            ..error.into_inner()
        };
        connection.adopt().map(Some)
    }

    /// A connection handed over by another loop.
    pub(super) fn poll_transferred(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<TransferredConnection> {
        if self.senders.len() == 1 {
            return Poll::Pending;
        }
        match self.receiver.poll_recv(context) {
            Poll::Ready(Some(connection)) => Poll::Ready(connection),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// Stops other loops from handing over; gives what was handed over before, until nothing is left.
    pub(super) async fn drain_transferred(&mut self) -> Option<TransferredConnection> {
        self.receiver.close();
        self.receiver.recv().await
    }

    /// A loop that has fewer connections, by [`MIN_DIFFERENCE`] at least.
    fn lighter_loop(&mut self, now: Millis) -> Option<usize> {
        let loops = self.loads.len();
        if loops == 1 {
            return None;
        }
        // Not all on a machine with many cores: each look is at what another core has just written.
        let asked = (0..loops.min(MAX_COMPARED)).map(|step| (self.next + step) % loops);
        let lightest = asked.min_by_key(|at| self.loads[*at].connections())?;
        self.next = (self.next + 1) % loops;
        let connections = |index: usize| self.loads[index].connections();
        let is_lighter = connections(lightest) + MIN_DIFFERENCE <= connections(self.own_index);
        (is_lighter && self.budget.take(now)).then_some(lightest)
    }
}

impl LoopLoad {
    fn connections(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

impl TransferredConnection {
    /// Makes it a connection of the calling loop.
    pub(super) fn adopt(self) -> io::Result<(Accepted, LoopLoad)> {
        let accepted = Accepted {
            stream: Stream::new(self.socket, self.remote.address())?,
            remote: self.remote,
            local: self.local,
        };
        Ok((accepted, self.load))
    }
}

/// Bounds how many connections are handed over. Where they come and go by the thousand, loops are uneven at any moment and
/// even in the end, and handing over gains nothing.
#[derive(Debug)]
struct HandoffBudget {
    left: u64,
    since: Millis,
}

impl Default for HandoffBudget {
    fn default() -> Self {
        Self {
            left: MAX_HANDOFFS as u64,
            since: Millis(0),
        }
    }
}

impl HandoffBudget {
    fn take(&mut self, now: Millis) -> bool {
        let earned = now.0.saturating_sub(self.since.0) / EARN_INTERVAL;
        if earned > 0 {
            self.left = self.left.saturating_add(earned).min(MAX_HANDOFFS as u64);
            self.since = now;
        }
        let is_left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_left
    }
}

/// The smallest difference at which a connection is handed over.
const MIN_DIFFERENCE: usize = 2;

/// The most loops that are compared.
const MAX_COMPARED: usize = 8;

/// The most connections handed over in one go: enough to even out hundreds.
const MAX_HANDOFFS: usize = 64;

/// The milliseconds after which one more connection may be handed over.
const EARN_INTERVAL: u64 = 4;

#[cfg(test)]
mod tests {

    use super::*;

    /// A client that connects while weir starts would otherwise be reset: the socket is closed again.
    #[test]
    fn looking_whether_an_address_is_free_takes_no_connections() {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let probe = open_tcp(loopback, false).unwrap();
        let address = probe.local_addr().unwrap().as_socket().unwrap();
        let connected = std::net::TcpStream::connect(address);
        assert_eq!(
            connected.unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
    }

    #[test]
    fn an_address_that_others_share_among_themselves_is_taken() {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let others = bind_tcp(loopback, LoopHandoff::between(&[LoopLoad::default()])).unwrap();
        let SocketAddress::Tcp(address) = others[0].address else {
            panic!("a TCP address")
        };
        let error = (AcceptShards::new(1).bind_all(
            &[&SocketAddress::Tcp(address)],
            &[],
            &mut InheritedSockets::default(),
        ))
        .unwrap_err();
        assert!(error.to_string().contains("in use"), "{error}");
    }
}

#[cfg(test)]
mod balance_tests {

    use super::*;

    #[test]
    fn a_flood_is_handed_over_only_in_part() {
        let mut budget = HandoffBudget::default();
        let taken = |budget: &mut HandoffBudget, now| {
            (0..1000).filter(|_| budget.take(Millis(now))).count()
        };
        assert_eq!(taken(&mut budget, 1_000_000), 64);
        assert_eq!(taken(&mut budget, 1_000_003), 0);
        assert_eq!(taken(&mut budget, 1_000_004), 1);
        assert_eq!(taken(&mut budget, 1_000_100), 24);
        assert_eq!(taken(&mut budget, 9_000_000), 64);
    }

    #[test]
    fn the_lightest_loop_is_found_when_the_difference_is_real() {
        let loads: Vec<LoopLoad> = (0..3).map(|_| LoopLoad::default()).collect();
        let mut handoffs = LoopHandoff::between(&loads);
        let mut held = vec![loads[0].clone()];
        assert_eq!(handoffs[0].lighter_loop(Millis(1)), None);
        held.extend([loads[0].clone(), loads[1].clone()]);
        assert_eq!(handoffs[0].lighter_loop(Millis(1)), Some(2));
        assert_eq!(handoffs[1].lighter_loop(Millis(1)), None);
        held.push(loads[2].clone());
        assert_eq!(handoffs[0].lighter_loop(Millis(1)), None);
        drop(held);
        assert_eq!(handoffs[0].lighter_loop(Millis(1)), None);
    }
}
