//! What one server meets its clients with.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::server::{ClientHello, ProducesTickets, ResolvesServerCert, StoresServerSessions};
use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, ServerConfig};

use super::files::{self, Error, FileErrorKind};
use super::sessions::{SessionCache, TicketKeys};
use super::suites;
use super::verify::ClientVerifier;
use super::watch::{ReloadResult, Reloadable};
use crate::config::plan::{self, Http2, SessionTickets, VerifyClient};

/// One server's certificates and settings, renewed when their files change.
#[derive(Debug)]
pub struct TlsAcceptor {
    plan: plan::Tls,
    keeps: SessionStores,
    made: Reloadable<LoadedServer>,
}

/// What is made from the files.
#[derive(Debug)]
pub(super) struct LoadedServer {
    // By whose order of suites counts, ours or the client's.
    ours: AlpnConfigs,
    theirs: AlpnConfigs,
    /// Whom to believe about clients, where they are asked.
    pub(super) clients: Option<Arc<ClientVerifier>>,
}

/// For where HTTP/2 is spoken, and where it is not.
#[derive(Debug, Clone)]
struct AlpnConfigs {
    http2: Arc<ServerConfig>,
    http1: Arc<ServerConfig>,
}

/// What outlives the files: sessions of clients go on after a certificate was renewed.
#[derive(Debug, Clone)]
struct SessionStores {
    sessions: Arc<dyn StoresServerSessions>,
    tickets: Option<Arc<dyn ProducesTickets>>,
}

impl TlsAcceptor {
    /// Reads the files and makes it. Sessions that were agreed on with the `old` one, of the same plan, go on.
    ///
    /// # Errors
    /// When one of the files cannot be used.
    pub fn build(plan: &plan::Tls, old: Option<&Self>) -> Result<Self, Error> {
        let keeps = match old {
            Some(old) => old.keeps.clone(),
            None => SessionStores {
                sessions: Arc::new(SessionCache::new(plan.session_timeout)),
                tickets: match plan.session_tickets {
                    SessionTickets::Off => None,
                    SessionTickets::On => Some(tickets(plan)?),
                },
            },
        };
        let made = Reloadable::new(watched(plan), || make(plan, &keeps))?;
        Ok(Self {
            plan: plan.clone(),
            keeps,
            made,
        })
    }

    /// Looks at the files again.
    pub fn refresh(&self) -> ReloadResult {
        self.made.refresh(|| {
            for certificate in &self.plan.certificates {
                // A certificate that holds is not given up for one that does not.
                let chain = files::chain(&certificate.chain)?;
                let flaw = chain
                    .first()
                    .and_then(|own| files::untimely(own, files::now()));
                if let Some(flaw) = flaw {
                    return Err(flaw.of(&certificate.chain));
                }
            }
            make(&self.plan, &self.keeps)
        })
    }

    /// The file that names it best in a log.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        let first = self.plan.certificates.first();
        first.map_or_else(PathBuf::new, |certificate| certificate.chain.path.clone())
    }

    pub(super) fn made(&self) -> Arc<LoadedServer> {
        self.made.get()
    }
}

impl LoadedServer {
    /// For a client that asks for these suites.
    pub(super) fn config(&self, http2: Http2, suites: &[CipherSuite]) -> Arc<ServerConfig> {
        let offer = match suites::dislikes_aes(suites) {
            true => &self.theirs,
            false => &self.ours,
        };
        Arc::clone(match http2 {
            Http2::Off => &offer.http1,
            Http2::On => &offer.http2,
        })
    }
}

impl AlpnConfigs {
    fn new(mut config: ServerConfig) -> Self {
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut http2 = config.clone();
        // The preferred first.
        http2.alpn_protocols.insert(0, b"h2".to_vec());
        Self {
            http2: Arc::new(http2),
            http1: Arc::new(config),
        }
    }
}

fn make(plan: &plan::Tls, keeps: &SessionStores) -> Result<LoadedServer, Error> {
    let certificates: Vec<_> = plan
        .certificates
        .iter()
        .map(|certificate| files::certified(certificate).map(Arc::new))
        .collect::<Result<_, _>>()?;
    let certificates = Arc::new(CertResolver::new(certificates));
    let clients = match plan.verify_client {
        VerifyClient::Off => None,
        _ => Some(Arc::new(ClientVerifier::read(plan)?)),
    };
    let offer = |provider, ours| {
        let builder = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&suites::versions(&plan.protocols))
            .map_err(|error| refused(plan, error))?;
        let builder = match &clients {
            Some(clients) => builder.with_client_cert_verifier(Arc::clone(clients) as Arc<_>),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::clone(&certificates) as Arc<_>);
        config.session_storage = Arc::clone(&keeps.sessions);
        if let Some(tickets) = &keeps.tickets {
            config.ticketer = Arc::clone(tickets);
        }
        if plan.session_timeout.is_zero() {
            config.send_tls13_tickets = 0;
        }
        config.ignore_client_order = ours;
        Ok(AlpnConfigs::new(config))
    };
    let (ours, theirs) = match plan.ciphers.is_empty() {
        true => (
            offer(suites::swift(), true)?,
            offer(suites::provider(&[]), false)?,
        ),
        false => {
            let named = offer(suites::provider(&plan.ciphers), true)?;
            (named.clone(), named)
        }
    };
    Ok(LoadedServer {
        ours,
        theirs,
        clients,
    })
}

fn tickets(plan: &plan::Tls) -> Result<Arc<dyn ProducesTickets>, Error> {
    let tickets = TicketKeys::new(plan.session_timeout).map_err(|error| refused(plan, error))?;
    Ok(Arc::new(tickets))
}

/// What rustls does not like is told of the first certificate: there is no better place.
fn refused(plan: &plan::Tls, error: rustls::Error) -> Error {
    let file = plan.certificates.first();
    let file = file.map_or_else(plan::TlsFile::nowhere, |certificate| {
        certificate.chain.clone()
    });
    FileErrorKind::Refused(error).of(&file)
}

fn watched(plan: &plan::Tls) -> Vec<PathBuf> {
    let certificates = plan.certificates.iter().flat_map(|certificate| {
        [Some(&certificate.chain), Some(&certificate.key)]
            .into_iter()
            .chain([certificate.staple.as_ref()])
    });
    certificates
        .chain([plan.client_ca.as_ref(), plan.crl.as_ref()])
        .flatten()
        .map(|file| file.path.clone())
        .collect()
}

/// Certificates of one server, for keys of several kinds.
#[derive(Debug)]
struct CertResolver(Vec<Arc<CertifiedKey>>);

impl CertResolver {
    fn new(mut certificates: Vec<Arc<CertifiedKey>>) -> Self {
        // RSA last: its signatures cost fifty times as much, and whoever knows the others can do without.
        certificates.sort_by_key(|certificate| {
            certificate.key.algorithm() == rustls::SignatureAlgorithm::RSA
        });
        Self(certificates)
    }
}

impl ResolvesServerCert for CertResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let schemes = hello.signature_schemes();
        let mut all = self.0.iter();
        all.find(|certificate| certificate.key.choose_scheme(schemes).is_some())
            .or_else(|| self.0.first())
            .map(Arc::clone)
    }
}
