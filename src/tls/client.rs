//! How a server of an upstream is met.

use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, UnbufferedClientConnection, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore,
};

use super::files::{Error, FileErrorKind, ReloadResult, Reloadable};
use super::socket::Socket;
use super::stream::{CloseMode, TlsSession, TlsStream};
use super::verify::{DepthVerifier, PinnedVerifier, TrustAnchors};
use super::{files, stream};
use crate::config::plan::{self, HttpVersion, UpstreamTls};
use crate::net::Stream;

/// One way to meet servers of upstreams, renewed when its files change.
#[derive(Debug)]
pub struct TlsConnector {
    plan: UpstreamTls,
    name: ServerName<'static>,
    config: Reloadable<ClientConfig>,
}

impl TlsConnector {
    /// Reads the files and makes it.
    ///
    /// # Errors
    /// When one of the files cannot be used.
    pub fn build(plan: &UpstreamTls) -> Result<Self, Error> {
        Ok(Self {
            // What is no name at all can still be asked for, and is refused for it.
            name: ServerName::try_from(plan.name.to_string())
                .unwrap_or_else(|_| ServerName::from(std::net::Ipv4Addr::UNSPECIFIED)),
            config: Reloadable::new(watched(plan), || make(plan))?,
            plan: plan.clone(),
        })
    }

    /// Looks at the files again.
    pub fn refresh(&self) -> ReloadResult {
        self.config.refresh(|| make(&self.plan))
    }

    /// The file that names it best in a log.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        watched(&self.plan).into_iter().next().unwrap_or_default()
    }

    /// Whom the other side has to be.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.plan.name
    }

    /// Agrees with the server at the other end of a connection.
    ///
    /// # Errors
    /// When it leaves, cannot agree, or is not who it should be; the last two carry a [`rustls::Error`].
    pub async fn connect(&self, stream: Stream) -> io::Result<Socket> {
        let tls = UnbufferedClientConnection::new(self.config.get(), self.name.clone())
            .map_err(io::Error::other)?;
        let session = TlsSession::Client(tls);
        let mut stream = Box::new(TlsStream::new(stream, session, &[], CloseMode::Told));
        poll_fn(|context| stream.poll_handshake(context)).await?;
        let agreed = stream.session().state().alpn_protocol();
        if self.plan.version == HttpVersion::Two && agreed != Some(HTTP2) {
            return Err(io::Error::other(rustls::Error::NoApplicationProtocol));
        }
        Ok(Socket::Tls(stream))
    }
}

/// What is held against a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerCertError {
    /// Its certificate is no good.
    Certificate(String),
    /// It does not speak HTTP/2.
    Http1,
    /// Its certificate is somebody else's.
    Name,
    /// It does not speak as it should, or not as we do.
    Protocol(String),
}

/// What a handshake failed for, where that was not the connection.
#[must_use]
pub fn objection(failure: &io::Error) -> Option<ServerCertError> {
    let reason = failure.get_ref()?.downcast_ref()?;
    Some(match reason {
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => ServerCertError::Name,
        rustls::Error::InvalidCertificate(CertificateError::Other(reason)) => {
            ServerCertError::Certificate(reason.0.to_string())
        }
        rustls::Error::InvalidCertificate(reason) => {
            ServerCertError::Certificate(reason.to_string())
        }
        rustls::Error::NoApplicationProtocol
        | rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            ServerCertError::Http1
        }
        reason => ServerCertError::Protocol(reason.to_string()),
    })
}

fn make(plan: &UpstreamTls) -> Result<ClientConfig, Error> {
    let provider = stream::provider(&plan.ciphers);
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&stream::versions(&plan.protocols))
        .map_err(|error| refused(plan, error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier(plan, provider)?);
    let mut config = match &plan.certificate {
        None => builder.with_no_client_auth(),
        Some(certificate) => {
            let own = Arc::new(files::certified(certificate)?);
            let only = rustls::sign::SingleCertAndKey::from(own);
            builder.with_client_cert_resolver(Arc::new(only))
        }
    };
    if plan.version == HttpVersion::Two {
        // Nothing else: what else it could answer in, nobody would understand.
        config.alpn_protocols = vec![HTTP2.to_vec()];
    }
    config.enable_sni = plan.server_name;
    config.resumption = match plan.session_reuse {
        false => Resumption::disabled(),
        true => Resumption::in_memory_sessions(SESSIONS),
    };
    Ok(config)
}

fn verifier(
    plan: &UpstreamTls,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, Error> {
    let verify = plan.verify;
    if !verify {
        return Ok(Arc::new(NoVerify { verify, provider }));
    }
    let roots = match &plan.trusted {
        Some(file) => files::roots(file)?,
        None => system_roots(),
    };
    if roots.is_empty() {
        // A machine without roots trusts nobody; every handshake will say so.
        return Ok(Arc::new(NoVerify { verify, provider }));
    }
    let lists = match &plan.crl {
        Some(file) => files::lists(file)?,
        None => Vec::new(),
    };
    let bound = plan.depth.map(|depth| TrustAnchors {
        roots: roots.roots.clone(),
        lists: Vec::new(),
        depth,
        algorithms: provider.signature_verification_algorithms,
    });
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .with_crls(lists)
        .enforce_revocation_expiration()
        .build()
        .map_err(|error| refused(plan, rustls::Error::General(error.to_string())))?;
    let verifier: Arc<dyn ServerCertVerifier> = match bound {
        Some(bound) => Arc::new(DepthVerifier { verifier, bound }),
        None => verifier,
    };
    Ok(match &plan.trusted {
        Some(file) if plan.crl.is_none() => Arc::new(PinnedVerifier {
            verifier,
            certificates: files::chain(file)?,
        }),
        _ => verifier,
    })
}

/// What this machine trusts.
fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "some of the system's certificates cannot be read");
    }
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        tracing::warn!(
            "this machine trusts nobody: no upstream can be verified by its certificates"
        );
    }
    roots
}

fn refused(plan: &UpstreamTls, error: rustls::Error) -> Error {
    let file = plan.trusted.clone().or_else(|| plan.crl.clone());
    let file = file.unwrap_or_else(plan::TlsFile::nowhere);
    FileErrorKind::Refused(error).of(&file)
}

fn watched(plan: &UpstreamTls) -> Vec<PathBuf> {
    let own = plan.certificate.as_ref();
    [
        own.map(|own| &own.chain),
        own.map(|own| &own.key),
        plan.trusted.as_ref(),
        plan.crl.as_ref(),
    ]
    .into_iter()
    .flatten()
    .map(|file| file.path.clone())
    .collect()
}

/// Believes whoever answers, or nobody; looks at no certificate either way.
#[derive(Debug)]
struct NoVerify {
    verify: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for NoVerify {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.verify {
            false => Ok(ServerCertVerified::assertion()),
            true => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Its name in ALPN.
const HTTP2: &[u8] = b"h2";

/// Sessions kept for one way to meet servers: more than an upstream has servers.
const SESSIONS: usize = 256;
