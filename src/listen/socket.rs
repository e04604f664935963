//! Sockets to listen on.
//!
//! Every event loop gets a listening socket of its own (SO_REUSEPORT), and the kernel deals connections
//! out between them. The same option would let a second weir take a share of the first one's connections
//! without a word, so an address is first bound without it: that fails while anybody else listens there.
//!
//! Listening sockets that were opened before this process was: by systemd, or by the weir it takes over from.
//!
//! They are known by their addresses. What is in their queues are clients who have been greeted already, so all sockets of
//! an address are listened on, however many there are: a loop may have several, and several loops may share one.
//!
//! Which event loop serves a connection.
//!
//! The kernel deals connections out by a hash. Of many every loop gets its share, but of eight long ones six may come
//! to the same loop while another has nothing to do. So a loop that has distinctly more than another hands a new
//! connection over to it, once and before anything was read; from then on it stays where it is.

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

    /// The address.
    #[must_use]
    pub fn address(&self) -> &SocketAddress {
        &self.address
    }

    /// What the system said.
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
    pub(super) lane: LoopHandoff,
    // Held for its drop: the last loop to stop takes the file away.
    file: Option<Arc<SocketFile>>,
}

/// A listening socket once more, to be handed to another process. As long as there is one, clients are still greeted.
#[derive(Debug)]
pub struct SharedSocket {
    socket: OwnedFd,
    file: Option<Arc<SocketFile>>,
}

impl BoundSocket {
    pub(super) fn new(
        socket: Socket,
        address: SocketAddress,
        lane: LoopHandoff,
        file: Option<Arc<SocketFile>>,
    ) -> Self {
        Self {
            socket,
            address,
            lane,
            file,
        }
    }

    /// The socket once more.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn lend(&self) -> io::Result<SharedSocket> {
        Ok(SharedSocket {
            socket: self.socket.try_clone()?.into(),
            file: self.file.clone(),
        })
    }

    /// Where it listens; the real port where 0 was asked for.
    #[must_use]
    pub fn address(&self) -> &SocketAddress {
        &self.address
    }
}

impl SharedSocket {
    /// To be handed over.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// It is somebody else's from now on, who also removes its file.
    pub fn give_away(&self) {
        if let Some(file) = &self.file {
            file.given_away.store(true, Ordering::Relaxed);
        }
    }
}

/// The event loops, as those see them who listen for them.
#[derive(Debug, Clone)]
pub struct AcceptShards(Vec<LoopSlot>);

impl AcceptShards {
    /// So many.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| LoopSlot::default()).collect())
    }

    /// Binds all addresses, each once for each event loop, in the order given; those of the `heritage` are not bound but
    /// taken. `ours` are those we listen on already.
    ///
    /// Together, because a wildcard and one address of the same port can both be ours: seen one after the other, the
    /// second would look taken.
    ///
    /// # Errors
    /// When one of the addresses cannot be listened on; then none is.
    pub fn bind_all(
        &self,
        listens: &[&SocketAddress],
        ours: &[&SocketAddress],
        heritage: &mut InheritedSockets,
    ) -> Result<Vec<Vec<BoundSocket>>, Error> {
        for listen in listens {
            if let SocketAddress::Tcp(address) = listen
                && address.port() != 0
                && !heritage.has(listen)
                && !heritage.left().any(|own| overlap(*address, own))
                && !ours.iter().any(|own| overlap(*address, own))
            {
                // Without `SO_REUSEPORT`, so that an address somebody else listens on is noticed. Bound and no
                // more: whoever connected to it would be reset when it is closed a moment later.
                open_tcp(*address, PortSharing::Alone)
                    .map_err(|source| Error::new(listen, source))?;
            }
        }
        listens
            .iter()
            .map(|listen| {
                let lanes = || LoopHandoff::between(&self.0);
                let bound = match listen {
                    listen if heritage.has(listen) => heritage.take(listen, lanes),
                    SocketAddress::Tcp(address) => bind_tcp(*address, lanes()),
                    SocketAddress::Unix(path) => bind_unix(path, lanes()),
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum PortSharing {
    Alone,
    BetweenLoops,
}

fn bind_tcp(mut address: SocketAddr, lanes: Vec<LoopHandoff>) -> io::Result<Vec<BoundSocket>> {
    lanes
        .into_iter()
        .map(|lane| {
            let socket = open_tcp(address, PortSharing::BetweenLoops)?;
            socket.listen(BACKLOG)?;
            // With port 0 the first socket finds one, and the others have to follow it.
            address = socket.local_addr()?.as_socket().unwrap_or(address);
            let listens = SocketAddress::Tcp(address);
            Ok(BoundSocket::new(socket, listens, lane, None))
        })
        .collect()
}

fn open_tcp(address: SocketAddr, sharing: PortSharing) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        // So that [::]:80 and 0.0.0.0:80 can stand side by side, and every client has one form of address.
        socket.set_only_v6(true)?;
    }
    // Lets a restart bind while the last run's connections are still in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if sharing == PortSharing::BetweenLoops {
        socket.set_reuse_port(true)?;
    }
    // What is accepted inherits it: a system call a socket instead of one a connection.
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn bind_unix(path: &Path, lanes: Vec<LoopHandoff>) -> io::Result<Vec<BoundSocket>> {
    remove_stale(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = Arc::new(SocketFile::at(path)?);
    // As nginx does: who may connect is decided by the folder.
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    socket.listen(BACKLOG)?;
    lanes
        .into_iter()
        .map(|lane| {
            let address = SocketAddress::Unix(path.to_owned());
            let file = Some(Arc::clone(&file));
            Ok(BoundSocket::new(socket.try_clone()?, address, lane, file))
        })
        .collect()
}

/// Removes what a run that was killed has left behind; nothing else.
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
        // Somebody else may have put a socket of their own in its place meanwhile.
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|file| file.dev() == self.device && file.ino() == self.inode);
        if is_ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the socket file could not be removed");
        }
    }
}

/// Connections the kernel holds for us until they are accepted; it cuts this to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Sockets that nobody has asked for yet.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    sockets: Vec<(SocketAddress, Socket)>,
    /// Whether files of unix sockets are ours to remove.
    files: bool,
    /// How many descriptors were no listening sockets.
    useless: usize,
}

impl InheritedSockets {
    /// Those that systemd has opened. Files of unix sockets stay its own. To be asked for before there are threads: it
    /// takes the variables away that name them.
    #[must_use]
    pub fn of_systemd() -> Self {
        let mut passed = listenfd::ListenFd::from_env();
        let mut heritage = Self::default();
        for index in 0..passed.len() {
            let socket = match passed.take_tcp_listener(index) {
                Ok(Some(tcp)) => Some(Socket::from(tcp)),
                _ => passed
                    .take_unix_listener(index)
                    .ok()
                    .flatten()
                    .map(Socket::from),
            };
            let added = socket.is_some_and(|socket| heritage.add(socket).is_ok());
            heritage.useless += usize::from(!added);
        }
        heritage
    }

    /// Those of a weir that this one takes over from.
    #[must_use]
    pub fn of_predecessor(descriptors: Vec<OwnedFd>) -> Self {
        let mut heritage = Self {
            files: true,
            ..Self::default()
        };
        for descriptor in descriptors {
            heritage.useless += usize::from(heritage.add(descriptor.into()).is_err());
        }
        heritage
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

    /// All sockets of an address, dealt out to the loops: `lanes` makes a lane for each. Nothing if there are none.
    pub(super) fn take(
        &mut self,
        address: &SocketAddress,
        lanes: impl Fn() -> Vec<LoopHandoff>,
    ) -> io::Result<Vec<BoundSocket>> {
        let mut own = Vec::new();
        let mut others = Vec::new();
        for (at, socket) in std::mem::take(&mut self.sockets) {
            match at == *address {
                true => own.push(socket),
                false => others.push((at, socket)),
            }
        }
        self.sockets = others;
        if own.is_empty() {
            return Ok(Vec::new());
        }
        let file = match address {
            SocketAddress::Unix(path) if self.files => Some(Arc::new(SocketFile::at(path)?)),
            _ => None,
        };
        // So many that every loop has one.
        let loops = lanes().len();
        for copied in 0..loops.saturating_sub(own.len()) {
            let copy = own[copied].try_clone()?;
            own.push(copy);
        }
        let mut bound = Vec::new();
        let mut own = own.into_iter().peekable();
        while own.peek().is_some() {
            for (lane, socket) in lanes().into_iter().zip(own.by_ref().take(loops)) {
                bound.push(BoundSocket::new(
                    socket,
                    address.clone(),
                    lane,
                    file.clone(),
                ));
            }
        }
        Ok(bound)
    }

    /// Says what nobody has asked for, which is closed now.
    pub fn close(self) {
        for address in self.left() {
            tracing::warn!(%address, "a socket that was handed to weir is closed: the configuration does not listen there");
        }
        if self.useless > 0 {
            tracing::warn!(
                "{} of the descriptors handed to weir are no listening sockets",
                self.useless
            );
        }
    }

    /// The addresses of those that nobody has asked for.
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

/// One event loop's end of one listening address.
#[derive(Debug)]
pub(super) struct LoopHandoff {
    me: usize,
    places: Vec<LoopSlot>,
    doors: Vec<mpsc::Sender<HandedConnection>>,
    handed: mpsc::Receiver<HandedConnection>,
    // From whom on the others are asked.
    next: usize,
    allowance: HandoffBudget,
}

/// A place on an event loop: every connection holds one.
// As many as there are holders: that is the count. Those that lanes hold are equally many for every loop.
#[derive(Debug, Clone, Default)]
pub(super) struct LoopSlot(Arc<CachePadded>);

/// Nothing, and no other loop's counter beside it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CachePadded;

/// A connection on its way to another loop.
#[derive(Debug)]
pub(super) struct HandedConnection {
    socket: Socket,
    remote: RemoteAddr,
    local: Option<SocketAddr>,
    place: LoopSlot,
}

impl LoopHandoff {
    /// The lanes of one address; `places` are those of all loops, for all addresses the same.
    pub(super) fn between(places: &[LoopSlot]) -> Vec<Self> {
        let (doors, ends): (Vec<_>, Vec<_>) =
            places.iter().map(|_| mpsc::channel(MOST_AT_ONCE)).unzip();
        let lane = |(me, handed)| Self {
            me,
            places: places.to_vec(),
            doors: doors.clone(),
            handed,
            next: me + 1,
            allowance: HandoffBudget::default(),
        };
        ends.into_iter().enumerate().map(lane).collect()
    }

    /// A place on this loop.
    pub(super) fn own_place(&self) -> LoopSlot {
        self.places[self.me].clone()
    }

    /// Gives a connection just accepted a place: here, unless it was handed over.
    pub(super) fn place(
        &mut self,
        accepted: Accepted,
        now: Millis,
    ) -> io::Result<Option<(Accepted, LoopSlot)>> {
        let Some(to) = self.lighter(now) else {
            return Ok(Some((accepted, self.own_place())));
        };
        let handed = HandedConnection {
            socket: accepted.stream.into_socket()?,
            remote: accepted.remote,
            local: accepted.local,
            place: self.places[to].clone(),
        };
        match self.doors[to].try_send(handed) {
            Ok(()) => Ok(None),
            // It stops, or has its hands full.
            Err(back) => {
                let handed = HandedConnection {
                    place: self.own_place(),
                    ..back.into_inner()
                };
                handed.settle().map(Some)
            }
        }
    }

    /// A connection that another loop has handed over.
    pub(super) fn poll_handed(&mut self, context: &mut Context<'_>) -> Poll<HandedConnection> {
        if self.doors.len() == 1 {
            return Poll::Pending;
        }
        match self.handed.poll_recv(context) {
            Poll::Ready(Some(handed)) => Poll::Ready(handed),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// Lets nobody hand anything over from now on; what already was has to be taken until nothing is left.
    pub(super) async fn last_handed(&mut self) -> Option<HandedConnection> {
        self.handed.close();
        self.handed.recv().await
    }

    /// A loop that has distinctly fewer connections.
    fn lighter(&mut self, now: Millis) -> Option<usize> {
        let loops = self.places.len();
        if loops == 1 {
            return None;
        }
        // Not everybody on a machine with many cores: each look is at what another core has just written.
        let asked = (0..loops.min(MOST_ASKED)).map(|step| (self.next + step) % loops);
        let lightest = asked.min_by_key(|at| self.places[*at].taken())?;
        self.next = (self.next + 1) % loops;
        let distinctly = self.places[lightest].taken() + DISTINCT <= self.places[self.me].taken();
        (distinctly && self.allowance.take(now)).then_some(lightest)
    }
}

impl LoopSlot {
    fn taken(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

impl HandedConnection {
    /// Makes it a connection of the loop that calls this.
    pub(super) fn settle(self) -> io::Result<(Accepted, LoopSlot)> {
        let accepted = Accepted {
            stream: Stream::new(self.socket, self.remote.address())?,
            remote: self.remote,
            local: self.local,
        };
        Ok((accepted, self.place))
    }
}

/// How many connections may be handed over. Where they come and go by the thousand, loops are uneven at any moment
/// and even in the end, and handing over would be for nothing.
#[derive(Debug)]
struct HandoffBudget {
    left: u64,
    since: Millis,
}

impl Default for HandoffBudget {
    fn default() -> Self {
        Self {
            left: MOST_AT_ONCE as u64,
            since: Millis(0),
        }
    }
}

impl HandoffBudget {
    fn take(&mut self, now: Millis) -> bool {
        let earned = now.0.saturating_sub(self.since.0) / EARNED_EVERY;
        if earned > 0 {
            self.left = self.left.saturating_add(earned).min(MOST_AT_ONCE as u64);
            self.since = now;
        }
        let some = self.left > 0;
        self.left = self.left.saturating_sub(1);
        some
    }
}

/// From this difference on a connection is handed over.
const DISTINCT: usize = 2;

/// How many loops are compared.
const MOST_ASKED: usize = 8;

/// How many connections are handed over in one go: enough to even out hundreds.
const MOST_AT_ONCE: usize = 64;

/// Every so many milliseconds another may be handed over.
const EARNED_EVERY: u64 = 4;

#[cfg(test)]
mod tests {

    use super::*;

    /// A client that connects while weir starts would otherwise be reset: the socket is closed again.
    #[test]
    fn looking_whether_an_address_is_free_takes_no_connections() {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let probe = open_tcp(loopback, PortSharing::Alone).unwrap();
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
        let others = bind_tcp(loopback, LoopHandoff::between(&[LoopSlot::default()])).unwrap();
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
        let mut allowance = HandoffBudget::default();
        let taken = |allowance: &mut HandoffBudget, now| {
            (0..1000).filter(|_| allowance.take(Millis(now))).count()
        };
        assert_eq!(taken(&mut allowance, 1_000_000), 64);
        assert_eq!(taken(&mut allowance, 1_000_003), 0);
        assert_eq!(taken(&mut allowance, 1_000_004), 1);
        assert_eq!(taken(&mut allowance, 1_000_100), 24);
        assert_eq!(taken(&mut allowance, 9_000_000), 64);
    }

    #[test]
    fn the_lightest_loop_is_found_when_the_difference_is_real() {
        let places: Vec<LoopSlot> = (0..3).map(|_| LoopSlot::default()).collect();
        let mut lanes = LoopHandoff::between(&places);
        let mut held = vec![places[0].clone()];
        assert_eq!(lanes[0].lighter(Millis(1)), None);
        held.extend([places[0].clone(), places[1].clone()]);
        assert_eq!(lanes[0].lighter(Millis(1)), Some(2));
        assert_eq!(lanes[1].lighter(Millis(1)), None);
        held.push(places[2].clone());
        assert_eq!(lanes[0].lighter(Millis(1)), None);
        drop(held);
        assert_eq!(lanes[0].lighter(Millis(1)), None);
    }
}
