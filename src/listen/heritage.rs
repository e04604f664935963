//! Listening sockets that were opened before this process was: by systemd, or by the weir it takes over from.
//!
//! They are known by their addresses. What is in their queues are clients who have been greeted already, so all sockets of
//! an address are listened on, however many there are: a loop may have several, and several loops may share one.

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;

use socket2::SockRef;

use super::balance::LoopHandoff;
use super::socket::{BoundSocket, ListenSocket, SocketFile};
use crate::config::plan::SocketAddress;

/// Sockets that nobody has asked for yet.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    sockets: Vec<(SocketAddress, ListenSocket)>,
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
            let tcp = passed.take_tcp_listener(index).ok().flatten();
            let unix = match tcp {
                Some(_) => None,
                None => passed.take_unix_listener(index).ok().flatten(),
            };
            let listening = tcp
                .map(ListenSocket::Tcp)
                .or_else(|| unix.map(ListenSocket::Unix));
            let added = listening.map(|listening| heritage.add(listening));
            heritage.useless += usize::from(!matches!(added, Some(Ok(()))));
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
            let is_unix = SockRef::from(&descriptor)
                .domain()
                .is_ok_and(|domain| domain == socket2::Domain::UNIX);
            let listening = match is_unix {
                true => ListenSocket::Unix(UnixListener::from(descriptor)),
                false => ListenSocket::Tcp(TcpListener::from(descriptor)),
            };
            heritage.useless += usize::from(heritage.add(listening).is_err());
        }
        heritage
    }

    /// A TCP socket with this address, if there is one.
    pub fn take_tcp(&mut self, address: std::net::SocketAddr) -> Option<TcpListener> {
        let wanted = SocketAddress::Tcp(address);
        let index = self.sockets.iter().position(|(at, _)| *at == wanted)?;
        match self.sockets.swap_remove(index).1 {
            ListenSocket::Tcp(socket) => Some(socket),
            ListenSocket::Unix(_) => None,
        }
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
            SocketAddress::Unix(path) if self.files => {
                Some(std::sync::Arc::new(SocketFile::at(path)?))
            }
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

    fn add(&mut self, socket: ListenSocket) -> io::Result<()> {
        let address = match &socket {
            ListenSocket::Tcp(socket) => {
                socket.set_nonblocking(true)?;
                SockRef::from(socket).set_tcp_nodelay(true)?;
                SocketAddress::Tcp(socket.local_addr()?)
            }
            ListenSocket::Unix(socket) => {
                socket.set_nonblocking(true)?;
                let address = socket.local_addr()?;
                let path = address.as_pathname().ok_or(io::ErrorKind::Unsupported)?;
                SocketAddress::Unix(path.to_owned())
            }
        };
        self.sockets.push((address, socket));
        Ok(())
    }
}
