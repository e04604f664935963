//! TLS: certificates and keys from files, the handshake with clients and with servers of upstreams, and the stream inside.
//!
//! Cryptography and protocol are rustls's, over aws-lc-rs. What is added: every error about a file names the place in the
//! configuration that named the file, files are polled while weir runs, and an idle stream holds no memory.
//!
//! A client's certificate never fails the handshake. As in nginx it is verified afterwards, so that a client without a good
//! one gets a response that explains it.

mod client;
mod files;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod server;
mod socket;
mod stream;
#[cfg(test)]
mod tests;
mod verify;
mod x509;

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};

use crate::config::plan::{Certificate, Plan, TlsFile, UpstreamTls};
use crate::config::{Report, Severity, plan};

pub use self::client::{ServerCertError, TlsConnector, objection};
pub use self::files::{Error, FileErrorKind, ReloadResult};
pub use self::server::{HandshakeError, TlsAcceptor, accept_handshake};
pub use self::socket::Socket;
pub use self::stream::TlsStream;

/// The TLS settings of a plan, towards clients and towards servers of upstreams, read from its files.
#[derive(Debug, Clone, Default)]
pub struct TlsContexts {
    servers: Vec<Option<Arc<TlsAcceptor>>>,
    clients: Arc<[Arc<TlsConnector>]>,
}

impl TlsContexts {
    /// Reads all files. Sessions of servers that are the same in the plan `before` stay valid.
    ///
    /// # Errors
    /// When one of them cannot be used.
    pub fn build(plan: &Plan, before: Option<(&Plan, &Self)>) -> Result<Self, Error> {
        let servers = plan.servers.iter().enumerate().map(|(index, server)| {
            let Some(tls) = &server.tls else {
                return Ok(None);
            };
            // Of several equal servers each inherits from its own: no session is valid at another server.
            let same = |old: &&plan::Server| old.name == server.name && old.tls == server.tls;
            let nth = plan.servers[..index].iter().filter(same).count();
            let old = before.and_then(|(plan, contexts)| {
                let mut all = plan.servers.iter().zip(&contexts.servers);
                let alike = all.by_ref().filter(|(old, _)| same(old));
                alike.map(|(_, kept)| kept).nth(nth)?.as_deref()
            });
            TlsAcceptor::build(tls, old).map(Arc::new).map(Some)
        });
        Ok(Self {
            servers: servers.collect::<Result<_, _>>()?,
            clients: clients(plan, before)?,
        })
    }

    /// The settings towards clients of the plan's server with this index.
    pub fn server(&self, index: usize) -> Option<Arc<TlsAcceptor>> {
        self.servers.get(index)?.clone()
    }

    /// The settings towards servers of upstreams, in the plan's order.
    pub fn clients(&self) -> Arc<[Arc<TlsConnector>]> {
        Arc::clone(&self.clients)
    }

    /// Polls all files, and reports the result for each.
    pub fn refresh(&self, mut tell: impl FnMut(PathBuf, ReloadResult)) {
        for server in self.servers.iter().flatten() {
            tell(server.file(), server.refresh());
        }
        for client in self.clients.iter() {
            tell(client.file(), client.refresh());
        }
    }
}

/// The settings towards servers of upstreams; those of `before` where they are the same.
fn clients(
    plan: &Plan,
    before: Option<(&Plan, &TlsContexts)>,
) -> Result<Arc<[Arc<TlsConnector>]>, Error> {
    if let Some((old, contexts)) = before
        && old.upstream_tls == plan.upstream_tls
    {
        return Ok(contexts.clients());
    }
    let clients = plan.upstream_tls.iter().map(|tls| {
        let known = before.and_then(|(old, contexts)| {
            let index = old.upstream_tls.iter().position(|old| old == tls)?;
            contexts.clients.get(index).map(Arc::clone)
        });
        known.map_or_else(|| TlsConnector::build(tls).map(Arc::new), Ok)
    });
    clients.collect()
}

/// Reads all files and adds what is wrong with them to the report; `expiry` is how bad it is that a certificate has expired or
/// is not yet valid.
pub fn check(plan: &Plan, report: &mut Report, expiry: Severity) {
    let mut check = FileCheck { report, expiry };
    for server in &plan.servers {
        if let Some(tls) = &server.tls {
            check.server(server, tls);
        }
    }
    for tls in &plan.upstream_tls {
        check.upstream(tls);
    }
}

struct FileCheck<'r> {
    report: &'r mut Report,
    expiry: Severity,
}

impl FileCheck<'_> {
    fn server(&mut self, server: &plan::Server, tls: &plan::Tls) {
        let before = self.report.errors();
        for certificate in &tls.certificates {
            let chain = self.certificate(certificate);
            if let Some(own) = chain.as_ref().and_then(|chain| chain.first()) {
                self.names(server, own, certificate);
            }
        }
        self.lists(tls.client_ca.as_ref(), tls.crl.as_ref());
        if self.report.errors() == before {
            self.note(TlsAcceptor::build(tls, None));
        }
    }

    fn upstream(&mut self, tls: &UpstreamTls) {
        let before = self.report.errors();
        if let Some(certificate) = &tls.certificate {
            self.certificate(certificate);
        }
        self.lists(tls.trusted.as_ref(), tls.crl.as_ref());
        if self.report.errors() == before {
            self.note(TlsConnector::build(tls));
        }
    }

    fn lists(&mut self, roots: Option<&TlsFile>, crl: Option<&TlsFile>) {
        if let Some(file) = roots {
            self.note(files::roots(file));
        }
        if let Some(file) = crl {
            self.note(files::lists(file));
        }
    }

    fn certificate(&mut self, named: &Certificate) -> Option<Vec<CertificateDer<'static>>> {
        let chain = self.note(files::chain(&named.chain));
        let key = self.note(files::key(&named.key));
        if let (Some(chain), Some(key)) = (chain.clone(), key) {
            self.note(files::pair(chain, key, named));
        }
        if let Some(staple) = &named.staple {
            self.note(files::staple(staple));
        }
        let own = chain.as_ref()?.first()?;
        if let Some(kind) = files::validity_error(own, files::now()) {
            self.note::<()>(Err(kind.of(&named.chain)));
        }
        chain
    }

    /// Warns of names that browsers would not find in the certificate.
    fn names(&mut self, server: &plan::Server, own: &CertificateDer<'_>, named: &Certificate) {
        let Ok(certificate) = webpki::EndEntityCert::try_from(own) else {
            return;
        };
        for name in &server.names {
            let (shown, asked) = match name {
                plan::ServerName::Exact(name) => (name.to_string(), name.to_string()),
                plan::ServerName::Suffix(end) | plan::ServerName::SuffixAndSelf(end) => {
                    (format!("*{end}"), format!("x{end}"))
                }
                plan::ServerName::Expression(_) | plan::ServerName::Prefix(_) => continue,
            };
            // `_` and the like are placeholders.
            if !shown.contains('.') {
                continue;
            }
            let fits = ServerName::try_from(asked)
                .is_ok_and(|asked| certificate.verify_is_valid_for_subject_name(&asked).is_ok());
            if !fits {
                let path = named.chain.path.display();
                let sentence = format!("the certificate in `{path}` is not for `{shown}`");
                let hint = "clients that ask for this name will not trust it";
                self.report
                    .note(Severity::Warning, named.chain.span, sentence, Some(hint));
            }
        }
    }

    fn note<T>(&mut self, done: Result<T, Error>) -> Option<T> {
        let error = match done {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let severity = match error.kind.is_validity_error() {
            true => self.expiry,
            false => Severity::Error,
        };
        let hint = error.kind.hint();
        self.report
            .note(severity, error.file.span, error.to_string(), hint);
        None
    }
}
