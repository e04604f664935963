//! The handshake with a client.
//!
//! Whoever connects and stays silent costs a socket; the memory for a handshake is taken when the first byte has come.
//! That byte also tells somebody who speaks plain HTTP here, and who gets a plain answer then.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use rustls::pki_types::CertificateDer;
use rustls::server::{Acceptor, UnbufferedServerConnection};
use rustls::{CipherSuite, HandshakeKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::bare::Bare;
use super::server::{LoadedServer, TlsAcceptor};
use super::session::TlsSession;
use super::stream::{CloseMode, TlsStream};
use super::{der, dn, files, suites};
use crate::config::plan::Http2;
use crate::message::TlsInfo;
use crate::message::tls::{AlpnProtocol, ClientCertificate};

/// How a connection begins on an address that speaks TLS.
#[derive(Debug)]
pub enum Handshake<IO> {
    /// Without TLS.
    Plain(IO),
    /// With TLS, and with what is known of it.
    Secured(Box<TlsStream<IO>>, TlsInfo),
}

/// A handshake that came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The client went before it was over, most often a scanner or a health check.
    #[error("the client left")]
    Gone(#[source] io::Error),
    /// The two could not agree, or one of them does not speak TLS as it should.
    #[error("{0}")]
    Refused(#[source] rustls::Error),
}

/// Meets a client; `choose` gives the server for the name it asks for, and says whether HTTP/2 may be spoken with it.
///
/// # Errors
/// When it leaves, or there is nothing to agree on.
pub async fn greet<IO: Bare>(
    mut io: IO,
    choose: impl Fn(Option<&str>) -> Option<(Arc<TlsAcceptor>, Http2)>,
) -> Result<Handshake<IO>, HandshakeError> {
    let speaks = poll_fn(|context| io.poll_waiting(context)).await;
    if !speaks.map_err(HandshakeError::Gone)? {
        return Err(HandshakeError::Gone(io::ErrorKind::UnexpectedEof.into()));
    }
    match io.first() {
        // A record of a handshake, or what no request begins with: TLS will say what is wrong with it.
        None | Some(HANDSHAKE | 0x80..) => {}
        Some(_) => return Ok(Handshake::Plain(io)),
    }
    let ParsedClientHello { name, suites, read } = hello(&mut io).await?;
    let Some((server, http2)) = choose(name.as_deref()) else {
        let refused = rustls::Error::General("no server for this name".into());
        return Err(HandshakeError::Refused(refused));
    };
    let made = server.made();
    let tls = UnbufferedServerConnection::new(made.config(http2, &suites))
        .map_err(HandshakeError::Refused)?;
    let mut stream = Box::new(TlsStream::new(
        io,
        TlsSession::Server(tls),
        &read,
        CloseMode::Taken,
    ));
    poll_fn(|context| stream.poll_handshake(context))
        .await
        .map_err(failure)?;
    let known = known(&stream, &made, name);
    Ok(Handshake::Secured(stream, known))
}

/// What a client says first.
struct ParsedClientHello {
    // Whom it wants.
    name: Option<Box<str>>,
    suites: Box<[CipherSuite]>,
    // What was read: the server it names reads it again.
    read: BytesMut,
}

/// Reads until the client has said whom it wants.
async fn hello<IO: Bare>(io: &mut IO) -> Result<ParsedClientHello, HandshakeError> {
    let mut acceptor = Acceptor::default();
    let mut read = BytesMut::with_capacity(HELLO);
    loop {
        let known = read.len();
        if io.read_buf(&mut read).await.map_err(HandshakeError::Gone)? == 0 {
            return Err(HandshakeError::Gone(io::ErrorKind::UnexpectedEof.into()));
        }
        let mut unseen = &read[known..];
        while !unseen.is_empty() {
            acceptor
                .read_tls(&mut unseen)
                .map_err(HandshakeError::Gone)?;
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                let name = hello.server_name().map(str::to_ascii_lowercase);
                return Ok(ParsedClientHello {
                    name: name.map(Into::into),
                    suites: hello.cipher_suites().into(),
                    read,
                });
            }
            Ok(None) => {}
            Err((error, mut alert)) => {
                let mut told = Vec::new();
                // Into memory, which cannot fail.
                let _written = alert.write_all(&mut told);
                return Err(refuse(io, error, &told).await);
            }
        }
    }
}

/// Tells the client what is wrong; it may be gone.
async fn refuse<IO: Bare>(io: &mut IO, error: rustls::Error, alert: &[u8]) -> HandshakeError {
    match io.write_all(alert).await {
        Ok(()) => HandshakeError::Refused(error),
        Err(gone) => HandshakeError::Gone(gone),
    }
}

fn failure(error: io::Error) -> HandshakeError {
    match error.downcast::<rustls::Error>() {
        Ok(refused) => HandshakeError::Refused(refused),
        Err(gone) => HandshakeError::Gone(gone),
    }
}

fn known<IO: Bare>(stream: &TlsStream<IO>, made: &LoadedServer, name: Option<Box<str>>) -> TlsInfo {
    let tls = stream.session().state();
    let chain = tls.peer_certificates().unwrap_or_default();
    TlsInfo {
        protocol: suites::protocol(tls.protocol_version()),
        cipher: tls
            .negotiated_cipher_suite()
            .map_or("", |suite| suites::name(suite.suite())),
        curve: tls
            .negotiated_key_exchange_group()
            .map(|group| suites::curve(group.name())),
        server_name: name,
        inner: match tls.alpn_protocol() {
            None => AlpnProtocol::Unsaid,
            Some(b"h2") => AlpnProtocol::Http2,
            Some(_) => AlpnProtocol::Http1,
        },
        resumed: tls.handshake_kind() == Some(HandshakeKind::Resumed),
        client: shown(chain, made),
    }
}

fn shown(chain: &[CertificateDer<'_>], made: &LoadedServer) -> Option<Box<ClientCertificate>> {
    let own = chain.first()?;
    let clients = made.clients.as_ref()?;
    let parsed = der::X509Parts::parse(own)?;
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, own);
    Some(Box::new(ClientCertificate {
        verdict: clients.judge(chain, files::now()),
        subject: dn::text(parsed.subject).into(),
        issuer: dn::text(parsed.issuer).into(),
        serial: dn::serial(parsed.serial).into(),
        fingerprint: dn::hex(digest.as_ref()).to_ascii_lowercase().into(),
        der: own.as_ref().into(),
    }))
}

/// As much as a client says first, mostly.
const HELLO: usize = 2048;

/// The kind of record a handshake begins with.
const HANDSHAKE: u8 = 0x16;
