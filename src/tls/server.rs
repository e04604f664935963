//! The TLS settings of one server, the handshake with its clients, and their sessions.
//!
//! A client that connects and stays silent costs a socket; the memory for a handshake is allocated when the first byte has come.
//! That byte also shows a client that speaks plain HTTP here, which gets a plain response.
//!
//! rustls seals sessions in tickets or keeps them; a stamp in front of each ends it after `session_timeout`.

use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::pki_types::CertificateDer;
use rustls::server::{
    Acceptor, ClientHello, ProducesTickets, ResolvesServerCert, ServerSessionMemoryCache,
    StoresServerSessions, UnbufferedServerConnection,
};
use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, HandshakeKind, NamedGroup, ProtocolVersion, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::files::{Error, ReloadResult, Reloadable};
use super::socket::Socket;
use super::stream::{TlsSession, TlsStream};
use super::verify::ClientVerifier;
use super::{files, stream, x509};
use crate::clock::Clock;
use crate::config::plan::{self, VerifyClient};
use crate::message::{AlpnProtocol, ClientCertificate, TlsInfo};
use crate::net::Stream;

/// One server's certificates and settings, renewed when their files change.
#[derive(Debug)]
pub struct TlsAcceptor {
    plan: plan::Tls,
    stores: SessionStores,
    loaded: Reloadable<LoadedServer>,
}

/// What is made from the files.
#[derive(Debug)]
pub(super) struct LoadedServer {
    // For each order of suites, ours and the client's.
    server_order: AlpnConfigs,
    client_order: AlpnConfigs,
    /// Verifies clients' certificates, where they are requested.
    pub(super) clients: Option<Arc<ClientVerifier>>,
}

/// For where HTTP/2 is spoken, and where it is not.
#[derive(Debug, Clone)]
struct AlpnConfigs {
    http2: Arc<ServerConfig>,
    http1: Arc<ServerConfig>,
}

/// What outlives the files: sessions of clients stay valid after a certificate was renewed.
#[derive(Debug, Clone)]
struct SessionStores {
    sessions: Arc<dyn StoresServerSessions>,
    tickets: Option<Arc<dyn ProducesTickets>>,
}

impl TlsAcceptor {
    /// Reads the files and makes it. Sessions of the `old` one, of the same plan, stay valid.
    ///
    /// # Errors
    /// When one of the files cannot be used.
    pub fn build(plan: &plan::Tls, old: Option<&Self>) -> Result<Self, Error> {
        let stores = match old {
            Some(old) => old.stores.clone(),
            None => SessionStores {
                sessions: Arc::new(SessionCache {
                    kept: ServerSessionMemoryCache::new(MOST),
                    lifetime: plan.session_timeout,
                }),
                tickets: match plan.session_tickets {
                    false => None,
                    true => Some(Arc::new(TicketKeys {
                        seal: Ticketer::new().map_err(|error| refused(plan, error))?,
                        lifetime: plan.session_timeout,
                    })),
                },
            },
        };
        let loaded = Reloadable::new(watched(plan), || make(plan, &stores))?;
        Ok(Self {
            plan: plan.clone(),
            stores,
            loaded,
        })
    }

    /// Looks at the files again.
    pub fn refresh(&self) -> ReloadResult {
        self.loaded.refresh(|| {
            for certificate in &self.plan.certificates {
                // A valid certificate is not replaced by an expired one.
                let chain = files::chain(&certificate.chain)?;
                let kind = chain
                    .first()
                    .and_then(|own| files::validity_error(own, files::now()));
                if let Some(kind) = kind {
                    return Err(kind.of(&certificate.chain));
                }
            }
            make(&self.plan, &self.stores)
        })
    }

    /// The file that names it best in a log.
    pub fn file(&self) -> PathBuf {
        let first = self.plan.certificates.first();
        first.map_or_else(PathBuf::new, |certificate| certificate.chain.path.clone())
    }
}

impl LoadedServer {
    /// For a client that asks for these suites.
    pub(super) fn config(&self, http2: bool, suites: &[CipherSuite]) -> Arc<ServerConfig> {
        let offer = match stream::prefers_chacha(suites) {
            true => &self.client_order,
            false => &self.server_order,
        };
        Arc::clone(match http2 {
            false => &offer.http1,
            true => &offer.http2,
        })
    }
}

fn make(plan: &plan::Tls, stores: &SessionStores) -> Result<LoadedServer, Error> {
    let certificates = plan.certificates.iter();
    let certificates =
        certificates.map(|certificate| files::certified_key(certificate).map(Arc::new));
    let mut certificates: Vec<_> = certificates.collect::<Result<_, _>>()?;
    // RSA last: its signatures cost fifty times as much, and a client that knows the others can do without.
    certificates
        .sort_by_key(|certificate| certificate.key.algorithm() == rustls::SignatureAlgorithm::RSA);
    let certificates = Arc::new(CertResolver(certificates));
    let clients = match plan.verify_client {
        VerifyClient::Off => None,
        _ => Some(Arc::new(ClientVerifier::read(plan)?)),
    };
    let offer = |provider, server_order| {
        let builder = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&stream::versions(&plan.protocols))
            .map_err(|error| refused(plan, error))?;
        let builder = match &clients {
            Some(clients) => builder.with_client_cert_verifier(Arc::clone(clients) as Arc<_>),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::clone(&certificates) as Arc<_>);
        config.session_storage = Arc::clone(&stores.sessions);
        if let Some(tickets) = &stores.tickets {
            config.ticketer = Arc::clone(tickets);
        }
        if plan.session_timeout.is_zero() {
            config.send_tls13_tickets = 0;
        }
        config.ignore_client_order = server_order;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut http2 = config.clone();
        // The preferred first.
        http2.alpn_protocols.insert(0, b"h2".to_vec());
        Ok(AlpnConfigs {
            http2: Arc::new(http2),
            http1: Arc::new(config),
        })
    };
    let (server_order, client_order) = match plan.ciphers.is_empty() {
        true => (
            offer(stream::server_provider(), true)?,
            offer(stream::provider(&[]), false)?,
        ),
        false => {
            let named = offer(stream::provider(&plan.ciphers), true)?;
            (named.clone(), named)
        }
    };
    Ok(LoadedServer {
        server_order,
        client_order,
        clients,
    })
}

/// An error of rustls, reported at the first certificate: there is no better place.
fn refused(plan: &plan::Tls, error: rustls::Error) -> Error {
    let first = plan.certificates.first();
    files::refused(error, first.map(|certificate| &certificate.chain))
}

fn watched(plan: &plan::Tls) -> Vec<PathBuf> {
    let certificates = plan.certificates.iter().flat_map(|certificate| {
        let pair = [&certificate.chain, &certificate.key].into_iter();
        pair.chain(&certificate.staple)
    });
    let files = certificates.chain(&plan.client_ca).chain(&plan.crl);
    files.map(|file| file.path.clone()).collect()
}

/// Certificates of one server, for keys of several kinds.
#[derive(Debug)]
struct CertResolver(Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for CertResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let schemes = hello.signature_schemes();
        let mut all = self.0.iter();
        all.find(|certificate| certificate.key.choose_scheme(schemes).is_some())
            .or_else(|| self.0.first())
            .map(Arc::clone)
    }
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The client left before it was complete; most often a scanner or a health check.
    #[error("the client left")]
    Gone(#[source] io::Error),
    /// The two could not agree, or one of them does not speak TLS as it should.
    #[error("{0}")]
    Refused(#[source] rustls::Error),
}

/// Performs the handshake with a client. `choose` gives the server for the name it requests, and whether that server offers
/// HTTP/2. A client that does not speak TLS keeps its plain socket.
///
/// # Errors
/// When the client leaves, or the two cannot agree.
pub async fn accept_handshake(
    mut io: Stream,
    choose: impl Fn(Option<&str>) -> Option<(Arc<TlsAcceptor>, bool)>,
) -> Result<(Socket, Option<TlsInfo>), HandshakeError> {
    let speaks = poll_fn(|context| io.poll_waiting(context)).await;
    if !speaks.map_err(HandshakeError::Gone)? {
        return Err(HandshakeError::Gone(io::ErrorKind::UnexpectedEof.into()));
    }
    match io.first_byte() {
        // A record of a handshake, or what no request begins with: TLS reports what is wrong with it.
        None | Some(HANDSHAKE | 0x80..) => {}
        Some(_) => return Ok((Socket::Plain(io), None)),
    }
    let (name, suites, read) = hello(&mut io).await?;
    let Some((server, http2)) = choose(name.as_deref()) else {
        let refused = rustls::Error::General("no server for this name".into());
        return Err(HandshakeError::Refused(refused));
    };
    let loaded = server.loaded.get();
    let tls = UnbufferedServerConnection::new(loaded.config(http2, &suites))
        .map_err(HandshakeError::Refused)?;
    let mut stream = Box::new(TlsStream::new(io, TlsSession::Server(tls), &read, false));
    poll_fn(|context| stream.poll_handshake(context))
        .await
        .map_err(|error| match error.downcast() {
            Ok(refused) => HandshakeError::Refused(refused),
            Err(gone) => HandshakeError::Gone(gone),
        })?;
    let known = known(&stream, &loaded, name);
    Ok((Socket::Tls(stream), Some(known)))
}

/// Reads the client's first message: the server's name (SNI), the cipher suites, and the bytes, which the named server's
/// session reads again.
async fn hello(
    io: &mut Stream,
) -> Result<(Option<Box<str>>, Box<[CipherSuite]>, BytesMut), HandshakeError> {
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
                return Ok((name.map(Into::into), hello.cipher_suites().into(), read));
            }
            Ok(None) => {}
            Err((error, mut alert)) => {
                let mut bytes = Vec::new();
                // Into memory, which cannot fail.
                let _written = alert.write_all(&mut bytes);
                // The client may be gone.
                return Err(match io.write_all(&bytes).await {
                    Ok(()) => HandshakeError::Refused(error),
                    Err(gone) => HandshakeError::Gone(gone),
                });
            }
        }
    }
}

fn known(stream: &TlsStream, loaded: &LoadedServer, name: Option<Box<str>>) -> TlsInfo {
    let tls = &stream.session;
    let chain = tls.peer_certificates().unwrap_or_default();
    TlsInfo {
        protocol: match tls.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
            _ => "TLSv1.2",
        },
        cipher: tls
            .negotiated_cipher_suite()
            .map_or("", |suite| stream::name(suite.suite())),
        curve: tls
            .negotiated_key_exchange_group()
            .map(|group| match group.name() {
                NamedGroup::secp256r1 => "prime256v1",
                other => other.as_str().unwrap_or_default(),
            }),
        server_name: name,
        alpn: match tls.alpn_protocol() {
            None => AlpnProtocol::Absent,
            Some(b"h2") => AlpnProtocol::Http2,
            Some(_) => AlpnProtocol::Http1,
        },
        resumed: tls.handshake_kind() == Some(HandshakeKind::Resumed),
        client: shown(chain, loaded),
    }
}

fn shown(chain: &[CertificateDer<'_>], loaded: &LoadedServer) -> Option<Box<ClientCertificate>> {
    let own = chain.first()?;
    let clients = loaded.clients.as_ref()?;
    let parsed = x509::X509Parts::parse(own)?;
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, own);
    Some(Box::new(ClientCertificate {
        status: clients.verify(chain, files::now()),
        subject: x509::text(parsed.subject).into(),
        issuer: x509::text(parsed.issuer).into(),
        serial: x509::serial(parsed.serial).into(),
        fingerprint: x509::hex(digest.as_ref()).to_ascii_lowercase().into(),
        der: own.as_ref().into(),
    }))
}

/// The usual size of a client's first message.
const HELLO: usize = 2048;

/// The kind of record a handshake begins with.
const HANDSHAKE: u8 = 0x16;

/// Seals sessions; its keys change every six hours and are known to this process alone.
#[derive(Debug)]
struct TicketKeys {
    seal: Arc<dyn ProducesTickets>,
    lifetime: Duration,
}

/// Keeps sessions, so many at most; the oldest make room.
#[derive(Debug)]
struct SessionCache {
    kept: Arc<dyn StoresServerSessions>,
    lifetime: Duration,
}

impl ProducesTickets for TicketKeys {
    fn enabled(&self) -> bool {
        !self.lifetime.is_zero()
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(self.lifetime.as_secs()).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.seal.encrypt(&stamped(plain))
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        fresh(self.seal.decrypt(cipher)?, self.lifetime)
    }
}

impl StoresServerSessions for SessionCache {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.kept.put(key, stamped(&value))
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        fresh(self.kept.get(key)?, self.lifetime)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        fresh(self.kept.take(key)?, self.lifetime)
    }

    fn can_cache(&self) -> bool {
        !self.lifetime.is_zero()
    }
}

fn stamped(bytes: &[u8]) -> Vec<u8> {
    [&Clock::wall().as_secs().to_be_bytes(), bytes].concat()
}

fn fresh(mut stamped: Vec<u8>, lifetime: Duration) -> Option<Vec<u8>> {
    let loaded = u64::from_be_bytes(*stamped.first_chunk()?);
    let age = Clock::wall().as_secs().checked_sub(loaded)?;
    (age < lifetime.as_secs()).then(|| stamped.split_off(8))
}

/// What nginx keeps in 1m.
const MOST: usize = 4000;

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_session_is_over_after_its_time() {
        let minute = Duration::from_secs(60);
        assert_eq!(fresh(stamped(b"session"), minute).unwrap(), b"session");
        let mut old = stamped(b"session");
        old[..8].copy_from_slice(&(Clock::wall().as_secs() - 61).to_be_bytes());
        assert_eq!(fresh(old, minute), None);
        assert_eq!(fresh(b"short".to_vec(), minute), None);
    }

    #[test]
    fn a_ticket_opens_only_what_it_sealed() {
        let [tickets, others] = [Duration::from_secs(60); 2].map(|lifetime| TicketKeys {
            seal: Ticketer::new().unwrap(),
            lifetime,
        });
        let sealed = tickets.encrypt(b"session").unwrap();
        assert_eq!(tickets.decrypt(&sealed).unwrap(), b"session");
        assert_eq!(others.decrypt(&sealed), None);
    }
}
