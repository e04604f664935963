//! What is wrong with the files a plan names, all of it, told as the rest of a configuration's mistakes are.

use rustls::pki_types::{CertificateDer, ServerName};

use super::files::{self, Error};
use super::{TlsAcceptor, TlsConnector};
use crate::config::plan::{self, Certificate, Plan, UpstreamTls};
use crate::config::report::Severity;
use crate::config::{Report, Span};

/// How bad a certificate is whose time is over, or has not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiryPolicy {
    /// As bad as any other mistake.
    Demanded,
    /// Bad, but a gateway that is started again must not stay away for it.
    Wished,
}

/// Looks at all files and adds what is wrong with them to the report.
pub fn check(plan: &Plan, report: &mut Report, validity: ExpiryPolicy) {
    let mut check = FileCheck { report, validity };
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
    validity: ExpiryPolicy,
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
        if let Some(file) = &tls.client_ca {
            self.note(files::roots(file));
        }
        if let Some(file) = &tls.crl {
            self.note(files::lists(file));
        }
        if self.report.errors() == before {
            self.note(TlsAcceptor::build(tls, None));
        }
    }

    fn upstream(&mut self, tls: &UpstreamTls) {
        let before = self.report.errors();
        if let Some(certificate) = &tls.certificate {
            self.certificate(certificate);
        }
        if let Some(file) = &tls.trusted {
            self.note(files::roots(file));
        }
        if let Some(file) = &tls.crl {
            self.note(files::lists(file));
        }
        if self.report.errors() == before {
            self.note(TlsConnector::build(tls));
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
        if let Some(flaw) = files::untimely(own, files::now()) {
            self.note::<()>(Err(flaw.of(&named.chain)));
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
            // `_` and the like are names for nobody.
            if !shown.contains('.') {
                continue;
            }
            let fits = ServerName::try_from(asked)
                .is_ok_and(|asked| certificate.verify_is_valid_for_subject_name(&asked).is_ok());
            if !fits {
                let path = named.chain.path.display();
                let sentence = format!("the certificate in `{path}` is not for `{shown}`");
                let hint = "clients that ask for this name will not trust it";
                self.add(Severity::Warning, named.chain.span, sentence, Some(hint));
            }
        }
    }

    fn note<T>(&mut self, done: Result<T, Error>) -> Option<T> {
        let error = match done {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let severity = match self.validity {
            ExpiryPolicy::Wished if error.flaw.is_untimely() => Severity::Warning,
            _ => Severity::Error,
        };
        self.add(
            severity,
            error.file.span,
            error.to_string(),
            error.flaw.hint(),
        );
        None
    }

    fn add(&mut self, severity: Severity, span: Span, sentence: String, hint: Option<&str>) {
        self.report.note(severity, span, sentence, hint);
    }
}
