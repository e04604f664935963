//! The TLS settings towards servers of upstreams, and the handshake with them.

use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConfig};

use super::files::{Error, ReloadResult, Reloadable};
use super::socket::Socket;
use super::stream::{TlsSession, TlsStream};
use super::verify::ServerVerifier;
use super::{files, stream};
use crate::config::plan::{HttpVersion, UpstreamTls};
use crate::net::Stream;

/// The TLS settings towards servers of upstreams, renewed when their files change.
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
            // A name that is not valid is refused at the handshake.
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
    pub fn file(&self) -> PathBuf {
        watched(&self.plan).into_iter().next().unwrap_or_default()
    }

    /// The name that the server's certificate has to have.
    pub fn name(&self) -> &str {
        &self.plan.name
    }

    /// Performs the handshake with the server at the other end of a connection.
    ///
    /// # Errors
    /// When it closes, cannot agree, or has another certificate; the last two carry a [`rustls::Error`].
    pub async fn connect(&self, stream: Stream) -> io::Result<Socket> {
        let tls = UnbufferedClientConnection::new(self.config.get(), self.name.clone())
            .map_err(io::Error::other)?;
        let session = TlsSession::Client(tls);
        let mut stream = Box::new(TlsStream::new(stream, session, &[], true));
        poll_fn(|context| stream.poll_handshake(context)).await?;
        let agreed = stream.session.alpn_protocol();
        if self.plan.version == HttpVersion::Two && agreed != Some(HTTP2) {
            return Err(io::Error::other(rustls::Error::NoApplicationProtocol));
        }
        Ok(Socket::Tls(stream))
    }
}

/// Why the handshake with a server failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerCertError {
    /// Its certificate is no good.
    Certificate(String),
    /// It does not speak HTTP/2.
    Http1,
    /// Its certificate has another name.
    Name,
    /// It does not speak as it should, or not as we do.
    Protocol(String),
}

/// What a handshake failed for, where that was not the connection.
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
        .map_err(|error| files::refused(error, plan.trusted.as_ref().or(plan.crl.as_ref())))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ServerVerifier::read(plan, provider)?));
    let mut config = match &plan.certificate {
        None => builder.with_no_client_auth(),
        Some(certificate) => {
            let own = Arc::new(files::certified_key(certificate)?);
            let only = rustls::sign::SingleCertAndKey::from(own);
            builder.with_client_cert_resolver(Arc::new(only))
        }
    };
    if plan.version == HttpVersion::Two {
        // Nothing else: no other protocol would be understood.
        config.alpn_protocols = vec![HTTP2.to_vec()];
    }
    config.enable_sni = plan.server_name;
    config.resumption = match plan.session_reuse {
        false => Resumption::disabled(),
        true => Resumption::in_memory_sessions(SESSIONS),
    };
    Ok(config)
}

fn watched(plan: &UpstreamTls) -> Vec<PathBuf> {
    let own = plan
        .certificate
        .iter()
        .flat_map(|own| [&own.chain, &own.key]);
    let files = own.chain(&plan.trusted).chain(&plan.crl);
    files.map(|file| file.path.clone()).collect()
}

/// Its name in ALPN.
const HTTP2: &[u8] = b"h2";

/// Sessions kept for each connector: more than an upstream has servers.
const SESSIONS: usize = 256;
