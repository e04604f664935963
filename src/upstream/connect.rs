//! A connection to a backend, made within a time limit: with its handshake, where it is inside TLS.

use std::io;
use std::sync::Arc;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

use super::backend::{Address, Backend};
use super::error::{Error, Stage};
use super::wire::{Socket, Wire};
use crate::config::plan::Forward;
use crate::tls::Client;

/// Connects to a backend and says `first`, if anything: before the handshake, if there is one.
pub(super) async fn open(
    backend: &Backend,
    forward: &Forward,
    first: &[u8],
) -> Result<Box<Wire>, Error> {
    let client = backend.tls(forward);
    let began = client.map(|_| Instant::now());
    let timeout = forward.connect_timeout;
    let connecting = async {
        let mut socket = connect(&backend.address).await?;
        match &mut socket {
            _ if first.is_empty() => {}
            Socket::Tcp(socket) => socket.write_all(first).await?,
            Socket::Unix(socket) => socket.write_all(first).await?,
            // What was just connected is none of the others.
            _ => {}
        }
        Ok(socket)
    };
    let mut socket = tokio::time::timeout(timeout, connecting)
        .await
        .map_err(|_| Error::Timeout(Stage::Connect))?
        .map_err(Error::Connect)?;
    if let (Some(client), Some(began)) = (client, began) {
        let left = timeout.saturating_sub(began.elapsed());
        // Boxed: what most connections do without takes no room in them.
        socket = tokio::time::timeout(left, Box::pin(secure(client, socket)))
            .await
            .map_err(|_| Error::Timeout(Stage::Handshake))??;
    }
    backend.count_opened();
    Ok(Wire::new(socket, backend.owner(forward)))
}

async fn connect(address: &Address) -> io::Result<Socket> {
    match address {
        Address::Tcp(address) => {
            let socket = TcpStream::connect(address).await?;
            socket.set_nodelay(true)?;
            Ok(Socket::Tcp(socket))
        }
        Address::Unix(path) => Ok(Socket::Unix(UnixStream::connect(path).await?)),
    }
}

async fn secure(client: &Arc<Client>, socket: Socket) -> Result<Socket, Error> {
    let secured = match socket {
        Socket::Tcp(socket) => client
            .connect(socket)
            .await
            .map(Box::new)
            .map(Socket::TlsTcp),
        Socket::Unix(socket) => client
            .connect(socket)
            .await
            .map(Box::new)
            .map(Socket::TlsUnix),
        secured => Ok(secured),
    };
    secured.map_err(|source| Error::Handshake {
        name: client.name().into(),
        source,
    })
}
