//! TLS: certificates and keys from files, the handshake with clients and with servers of upstreams, and the stream inside.
//!
//! The cryptography and the protocol are rustls's, over aws-lc-rs. What is ours is around it: every complaint about a
//! file names the place in the configuration that named the file, files are looked at again while weir runs, and a
//! stream gives its memory back when nothing passes.
//!
//! A client's certificate never fails the handshake. As in nginx it is judged afterwards, so that a client without a
//! good one gets an answer it can show to somebody.

mod accept;
mod bare;
mod bounded;
mod check;
mod client;
mod der;
mod dn;
mod files;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod kit;
mod pinned;
mod server;
mod session;
mod sessions;
mod stream;
mod suites;
#[cfg(test)]
mod tests;
mod verify;
mod watch;

pub use accept::{Handshake, HandshakeError, greet};
pub use bare::Bare;
pub use check::{ExpiryPolicy, check};
pub use client::{ServerCertError, TlsConnector, objection};
pub use files::{Error, FileErrorKind};
pub use kit::TlsContexts;
pub use server::TlsAcceptor;
pub use stream::{CloseMode, TlsStream};
pub use watch::ReloadResult;
