//! What one server meets its clients with.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::{ClientHello, ProducesTickets, ResolvesServerCert, StoresServerSessions};
use rustls::sign::CertifiedKey;

use super::files::{self, Error, Flaw};
use super::sessions::{Sessions, Tickets};
use super::suites;
use super::verify::Clients;
use super::watch::{Refreshed, Watched};
use crate::config::plan::{self, Http2, SessionTickets, VerifyClient};

/// One server's certificates and settings, renewed when their files change.
#[derive(Debug)]
pub struct Server {
    plan: plan::Tls,
    http2: Http2,
    keeps: Keeps,
    made: Watched<Made>,
}

/// What is made from the files.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) config: Arc<ServerConfig>,
    /// Whom to believe about clients, where they are asked.
    pub(super) clients: Option<Arc<Clients>>,
}

/// What outlives the files: sessions of clients go on after a certificate was renewed.
#[derive(Debug, Clone)]
struct Keeps {
    sessions: Arc<dyn StoresServerSessions>,
    tickets: Option<Arc<dyn ProducesTickets>>,
}

impl Server {
    /// Reads the files and makes it; `http2` says whether that may be spoken inside.
    ///
    /// # Errors
    /// When one of the files cannot be used.
    pub fn build(plan: &plan::Tls, http2: Http2) -> Result<Self, Error> {
        let keeps = Keeps {
            sessions: Arc::new(Sessions::new(plan.session_timeout)),
            tickets: match plan.session_tickets {
                SessionTickets::Off => None,
                SessionTickets::On => Some(tickets(plan)?),
            },
        };
        let made = Watched::new(watched(plan), || make(plan, http2, &keeps))?;
        Ok(Self {
            plan: plan.clone(),
            http2,
            keeps,
            made,
        })
    }

    /// Looks at the files again.
    pub fn refresh(&self) -> Refreshed {
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
            make(&self.plan, self.http2, &self.keeps)
        })
    }

    /// The file that names it best in a log.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        let first = self.plan.certificates.first();
        first.map_or_else(PathBuf::new, |certificate| certificate.chain.path.clone())
    }

    pub(super) fn made(&self) -> Arc<Made> {
        self.made.get()
    }
}

fn make(plan: &plan::Tls, http2: Http2, keeps: &Keeps) -> Result<Made, Error> {
    let certificates = plan
        .certificates
        .iter()
        .map(|certificate| files::certified(certificate).map(Arc::new))
        .collect::<Result<Vec<_>, _>>()?;
    let clients = match plan.verify_client {
        VerifyClient::Off => None,
        _ => Some(Arc::new(Clients::read(plan)?)),
    };
    let builder = ServerConfig::builder_with_provider(suites::provider(&plan.ciphers))
        .with_protocol_versions(&suites::versions(&plan.protocols))
        .map_err(|error| refused(plan, error))?;
    let builder = match &clients {
        Some(clients) => builder.with_client_cert_verifier(Arc::clone(clients) as Arc<_>),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(Certificates::new(certificates)));
    config.session_storage = Arc::clone(&keeps.sessions);
    if let Some(tickets) = &keeps.tickets {
        config.ticketer = Arc::clone(tickets);
    }
    if plan.session_timeout.is_zero() {
        config.send_tls13_tickets = 0;
    }
    // The preferred first.
    config.alpn_protocols = match http2 {
        Http2::Off => vec![b"http/1.1".to_vec()],
        Http2::On => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
    };
    config.ignore_client_order = !plan.ciphers.is_empty();
    Ok(Made {
        config: Arc::new(config),
        clients,
    })
}

fn tickets(plan: &plan::Tls) -> Result<Arc<dyn ProducesTickets>, Error> {
    let tickets = Tickets::new(plan.session_timeout).map_err(|error| refused(plan, error))?;
    Ok(Arc::new(tickets))
}

/// What rustls does not like is told of the first certificate: there is no better place.
fn refused(plan: &plan::Tls, error: rustls::Error) -> Error {
    let file = plan.certificates.first();
    let file = file.map_or_else(plan::File::nowhere, |certificate| certificate.chain.clone());
    Flaw::Refused(error).of(&file)
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
struct Certificates(Vec<Arc<CertifiedKey>>);

impl Certificates {
    fn new(mut certificates: Vec<Arc<CertifiedKey>>) -> Self {
        // RSA last: its signatures cost fifty times as much, and whoever knows the others can do without.
        certificates.sort_by_key(|certificate| {
            certificate.key.algorithm() == rustls::SignatureAlgorithm::RSA
        });
        Self(certificates)
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let schemes = hello.signature_schemes();
        let mut all = self.0.iter();
        all.find(|certificate| certificate.key.choose_scheme(schemes).is_some())
            .or_else(|| self.0.first())
            .map(Arc::clone)
    }
}
