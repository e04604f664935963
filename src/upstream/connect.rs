//! A connection to a backend, made within a time limit: with its handshake, where it is inside TLS.

use std::io;
use std::sync::Arc;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use tokio::time::error::Elapsed;

use super::backend::{Backend, BackendAddress};
use super::error::{Error, Stage};
use super::wire::{UpstreamConnection, UpstreamSocket};
use crate::config::plan::ProxyPass;
use crate::tls::TlsConnector;

/// Connects to a backend.
pub(super) async fn open(
    backend: &Backend,
    forward: &ProxyPass,
) -> Result<Box<UpstreamConnection>, Error> {
    let socket = socket(backend, forward).await?;
    Ok(wire(socket, backend, forward))
}

/// The same, for those who speak over it in their own way.
pub(super) async fn socket(
    backend: &Backend,
    forward: &ProxyPass,
) -> Result<UpstreamSocket, Error> {
    if backend.tls(forward).is_some() {
        return Box::pin(socket_with(backend, forward, &[])).await;
    }
    let tried = tokio::time::timeout(forward.connect_timeout, connect(&backend.address)).await;
    Ok(opened(backend, connected(tried)?))
}

/// Connects for somebody who keeps the time themselves, and is not counted.
pub(super) async fn reach(
    address: &BackendAddress,
    client: Option<&Arc<TlsConnector>>,
) -> Result<UpstreamSocket, Error> {
    let socket = connect(address).await.map_err(Error::Connect)?;
    match client {
        Some(client) => secure(client, socket).await,
        None => Ok(socket),
    }
}

/// Connects to a backend, says `first`, and agrees with it if that is to be inside TLS.
// Apart, and boxed by whoever needs it: every other request would keep room for it.
pub(super) async fn open_with(
    backend: &Backend,
    forward: &ProxyPass,
    first: &[u8],
) -> Result<Box<UpstreamConnection>, Error> {
    let socket = socket_with(backend, forward, first).await?;
    Ok(wire(socket, backend, forward))
}

async fn socket_with(
    backend: &Backend,
    forward: &ProxyPass,
    first: &[u8],
) -> Result<UpstreamSocket, Error> {
    let began = Instant::now();
    let timeout = forward.connect_timeout;
    let connecting = async {
        let mut socket = connect(&backend.address).await?;
        match &mut socket {
            UpstreamSocket::Tcp(socket) => socket.write_all(first).await?,
            UpstreamSocket::Unix(socket) => socket.write_all(first).await?,
            // What was just connected is none of the others.
            _ => {}
        }
        Ok(socket)
    };
    let mut socket = connected(tokio::time::timeout(timeout, connecting).await)?;
    if let Some(client) = backend.tls(forward) {
        let left = timeout.saturating_sub(began.elapsed());
        socket = tokio::time::timeout(left, secure(client, socket))
            .await
            .map_err(|_| Error::Timeout(Stage::Handshake))??;
    }
    Ok(opened(backend, socket))
}

fn wire(socket: UpstreamSocket, backend: &Backend, forward: &ProxyPass) -> Box<UpstreamConnection> {
    UpstreamConnection::new(socket, backend.owner(forward), backend.tenure.clone())
}

fn connected(tried: Result<io::Result<UpstreamSocket>, Elapsed>) -> Result<UpstreamSocket, Error> {
    tried
        .map_err(|_| Error::Timeout(Stage::Connect))?
        .map_err(Error::Connect)
}

fn opened(backend: &Backend, socket: UpstreamSocket) -> UpstreamSocket {
    backend.counts.count_opened();
    socket
}

async fn connect(address: &BackendAddress) -> io::Result<UpstreamSocket> {
    match address {
        BackendAddress::Tcp(address) => {
            let socket = TcpStream::connect(address).await?;
            socket.set_nodelay(true)?;
            Ok(UpstreamSocket::Tcp(socket))
        }
        BackendAddress::Unix(path) => Ok(UpstreamSocket::Unix(UnixStream::connect(path).await?)),
    }
}

async fn secure(
    client: &Arc<TlsConnector>,
    socket: UpstreamSocket,
) -> Result<UpstreamSocket, Error> {
    let secured = match socket {
        UpstreamSocket::Tcp(socket) => client
            .connect(socket)
            .await
            .map(Box::new)
            .map(UpstreamSocket::TlsTcp),
        UpstreamSocket::Unix(socket) => client
            .connect(socket)
            .await
            .map(Box::new)
            .map(UpstreamSocket::TlsUnix),
        secured => Ok(secured),
    };
    secured.map_err(|source| Error::Handshake {
        name: client.name().into(),
        source,
    })
}
