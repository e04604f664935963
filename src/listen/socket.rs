//! Sockets to listen on.
//!
//! Every event loop gets a listening socket of its own (SO_REUSEPORT), and the kernel deals connections
//! out between them. The same option would let a second weir take a share of the first one's connections
//! without a word, so an address is first bound without it: that fails while anybody else listens there.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::{Domain, SockAddr, Socket, Type};

use super::Error;
use super::balance::{LoopHandoff, LoopSlot};
use super::heritage::InheritedSockets;
use crate::config::plan::SocketAddress;

/// A listening socket, one event loop's.
#[derive(Debug)]
pub struct BoundSocket {
    pub(super) socket: ListenSocket,
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

#[derive(Debug)]
pub(super) enum ListenSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl BoundSocket {
    pub(super) fn new(
        socket: ListenSocket,
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
        let socket = match self.socket.try_clone()? {
            ListenSocket::Tcp(socket) => socket.into(),
            ListenSocket::Unix(socket) => socket.into(),
        };
        Ok(SharedSocket {
            socket,
            file: self.file.clone(),
        })
    }

    /// Where it listens; the real port where 0 was asked for.
    #[must_use]
    pub fn address(&self) -> &SocketAddress {
        &self.address
    }
}

impl ListenSocket {
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(socket) => Self::Tcp(socket.try_clone()?),
            Self::Unix(socket) => Self::Unix(socket.try_clone()?),
        })
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
        let failed = |listen: &SocketAddress, source| Error::new(listen.clone(), source);
        for listen in listens {
            if let SocketAddress::Tcp(address) = listen
                && address.port() != 0
                && !heritage.has(listen)
                && !heritage.left().any(|own| overlap(*address, own))
                && !ours.iter().any(|own| overlap(*address, own))
            {
                // Without `SO_REUSEPORT`, so that an address somebody else listens on is noticed. Bound and no
                // more: whoever connected to it would be reset when it is closed a moment later.
                open_tcp(*address, PortSharing::Alone).map_err(|source| failed(listen, source))?;
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
                bound.map_err(|source| failed(listen, source))
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
            let socket = TcpListener::from(socket);
            // With port 0 the first socket finds one, and the others have to follow it.
            address = socket.local_addr()?;
            Ok(BoundSocket {
                socket: ListenSocket::Tcp(socket),
                address: SocketAddress::Tcp(address),
                lane,
                file: None,
            })
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
            Ok(BoundSocket {
                socket: ListenSocket::Unix(socket.try_clone()?.into()),
                address: SocketAddress::Unix(path.to_owned()),
                lane,
                file: Some(Arc::clone(&file)),
            })
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
