//! What is thought of a client's certificate.
//!
//! During the handshake the client only has to prove that the certificate's key is its own. Whether the certificate is
//! good is said afterwards, also for a session that is taken up again: it may have expired or been revoked since.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, RevocationOptionsBuilder,
};

use super::der;
use super::files::{self, Error};
use super::suites;
use crate::config::plan;
use crate::message::tls::Verdict;

/// Whom to believe about clients.
#[derive(Debug)]
pub(super) struct Clients {
    hints: Vec<DistinguishedName>,
    trust: Trust,
}

/// Whom to believe about somebody's certificate.
#[derive(Debug)]
pub(super) struct Trust {
    /// Where a chain has to end.
    pub(super) roots: Vec<TrustAnchor<'static>>,
    /// Who has been revoked.
    pub(super) lists: Vec<Revocations>,
    /// How many may stand in between.
    pub(super) depth: usize,
    /// What may be signed with.
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

/// A list of revoked certificates.
#[derive(Debug)]
pub(super) struct Revocations {
    list: CertRevocationList<'static>,
    /// From when it holds, in seconds since the epoch. Only OpenSSL looks at it; webpki looks at the end alone.
    since: i64,
}

impl Clients {
    /// Reads what `plan` names.
    pub(super) fn read(plan: &plan::Tls) -> Result<Self, Error> {
        let roots = match &plan.client_ca {
            Some(file) => files::roots(file)?,
            None => RootCertStore::empty(),
        };
        let lists = match &plan.crl {
            Some(file) => files::lists(file)?,
            None => Vec::new(),
        };
        let lists = lists
            .iter()
            .filter_map(|der| {
                let list = webpki::OwnedCertRevocationList::from_der(der).ok()?;
                Some(Revocations {
                    list: list.into(),
                    since: der::list_since(der).unwrap_or(i64::MIN),
                })
            })
            .collect();
        Ok(Self {
            hints: roots.subjects(),
            trust: Trust {
                roots: roots.roots,
                lists,
                depth: plan.verify_depth,
                algorithms: suites::provider(&[]).signature_verification_algorithms,
            },
        })
    }

    /// What is thought of a chain that a client has shown.
    pub(super) fn judge(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Verdict {
        let Some((own, others)) = chain.split_first() else {
            return Verdict::Bad("no certificate".into());
        };
        match self.trust.verify(own, others, now, KeyUsage::client_auth()) {
            Ok(()) => Verdict::Good,
            Err(webpki::Error::UnknownIssuer) => Verdict::Unknown(unknown(own, others)),
            Err(webpki::Error::UnknownRevocationStatus) if self.trust.is_early(now) => {
                Verdict::Bad("CRL is not yet valid".into())
            }
            Err(error) => Verdict::Bad(reason(&error)),
        }
    }
}

impl Trust {
    /// Whether a chain may be used for this.
    pub(super) fn verify(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<(), webpki::Error> {
        let in_force = self.lists.iter().filter(|one| one.holds(now));
        let lists: Vec<_> = in_force.map(|one| &one.list).collect();
        if lists.is_empty() && !self.lists.is_empty() {
            return Err(webpki::Error::UnknownRevocationStatus);
        }
        let revocation = RevocationOptionsBuilder::new(&lists).ok();
        let revocation = revocation.map(|options| {
            let expired = ExpirationPolicy::Enforce;
            options.with_expiration_policy(expired).build()
        });
        let deep = |path: &webpki::VerifiedPath<'_>| match path.intermediate_certificates().count()
            > self.depth
        {
            true => Err(webpki::Error::MaximumPathDepthExceeded),
            false => Ok(()),
        };
        EndEntityCert::try_from(own)?
            .verify_for_usage(
                self.algorithms.all,
                &self.roots,
                others,
                now,
                usage,
                revocation,
                Some(&deep),
            )
            .map(|_| ())
    }

    /// Whether the time of some list has not come.
    fn is_early(&self, now: UnixTime) -> bool {
        self.lists.iter().any(|one| !one.holds(now))
    }
}

impl Revocations {
    fn holds(&self, now: UnixTime) -> bool {
        i64::try_from(now.as_secs()).is_ok_and(|now| now >= self.since)
    }
}

impl ClientCertVerifier for Clients {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.trust.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.trust.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trust.algorithms.supported_schemes()
    }
}

/// Of a chain that leads nowhere, how; in OpenSSL's words, which nginx's users know.
fn unknown(own: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> &'static str {
    let own = der::Certificate::parse(own);
    if own.is_some_and(|own| own.subject == own.issuer) {
        "self-signed certificate"
    } else if others.is_empty() {
        "unable to verify the first certificate"
    } else {
        "unable to get local issuer certificate"
    }
}

/// What is wrong with a certificate, in OpenSSL's words where it has some.
fn reason(error: &webpki::Error) -> Box<str> {
    use webpki::Error;
    match error {
        Error::CertExpired { .. } => "certificate has expired".into(),
        Error::CertNotValidYet { .. } => "certificate is not yet valid".into(),
        Error::CertRevoked => "certificate revoked".into(),
        Error::CrlExpired { .. } => "CRL has expired".into(),
        Error::InvalidSignatureForPublicKey => "certificate signature failure".into(),
        Error::MaximumPathDepthExceeded => "certificate chain too long".into(),
        Error::PathLenConstraintViolated => "path length constraint exceeded".into(),
        Error::RequiredEkuNotFoundContext(_) => "unsuitable certificate purpose".into(),
        Error::UnknownRevocationStatus => "unable to get certificate CRL".into(),
        other => other.to_string().into(),
    }
}
