//! A connection to a backend, made within a time limit.

use std::io;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::error::Elapsed;

use super::backend::{Address, Backend};
use super::error::{Error, Stage};
use super::wire::{Socket, Wire};

/// Connects to a backend.
pub(super) async fn open(backend: &Backend, timeout: Duration) -> Result<Box<Wire>, Error> {
    socket(backend, timeout).await.map(Wire::new)
}

/// The same, for those who speak over it in their own way.
pub(super) async fn socket(backend: &Backend, timeout: Duration) -> Result<Socket, Error> {
    let tried = tokio::time::timeout(timeout, connect(&backend.address)).await;
    opened(backend, tried)
}

/// Connects to a backend and says `first`.
// Apart, and boxed by whoever needs it: every other request would keep room for it.
pub(super) async fn open_with(
    backend: &Backend,
    timeout: Duration,
    first: &[u8],
) -> Result<Box<Wire>, Error> {
    let connecting = async {
        let mut socket = connect(&backend.address).await?;
        match &mut socket {
            Socket::Tcp(socket) => socket.write_all(first).await?,
            Socket::Unix(socket) => socket.write_all(first).await?,
            #[cfg(test)]
            Socket::Test(socket) => socket.write_all(first).await?,
        }
        Ok(socket)
    };
    opened(backend, tokio::time::timeout(timeout, connecting).await).map(Wire::new)
}

fn opened(backend: &Backend, tried: Result<io::Result<Socket>, Elapsed>) -> Result<Socket, Error> {
    let socket = tried
        .map_err(|_| Error::Timeout(Stage::Connect))?
        .map_err(Error::Connect)?;
    backend.count_opened();
    Ok(socket)
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
