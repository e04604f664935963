//! What is thought of a client's certificate.
//!
//! During the handshake the client only has to prove that the certificate's key is its own. Whether the certificate is
//! good is said afterwards, also for a session that is taken up again: it may have expired or been revoked since.
//!
//! webpki reads no certificates of version 1 and takes none of a CA for a client's. nginx takes both, so for these the
//! key is taken from the certificate here, and whether a root has issued it is looked at here.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, ExtendedKeyUsageValidator,
    KeyPurposeIdIter, KeyUsage, RawPublicKeyEntity, RevocationOptionsBuilder,
};

use super::der::{self, Certificate};
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
        let Some(read) = Certificate::parse(own) else {
            return Verdict::Bad("certificate cannot be read".into());
        };
        let error = match self.trust.verify(own, others, now, KeyUsage::client_auth()) {
            Ok(()) => return Verdict::Good,
            Err(webpki::Error::UnsupportedCertVersion) if read.is_first_version => {
                return self.judge_first_version(&read, others, now);
            }
            Err(webpki::Error::CaUsedAsEndEntity) if self.trust.is_root(&read) => {
                return Verdict::Good;
            }
            Err(webpki::Error::UnknownRevocationStatus) if self.trust.is_early(now) => {
                return Verdict::Bad("CRL is not yet valid".into());
            }
            Err(error) => error,
        };
        // As in OpenSSL, what is wrong further up counts only where the chain leads to a root.
        let own_error = self.trust.check_alone(own, &read, now).err();
        match (self.trust.lead(&read, others), own_error) {
            (Lead::Nowhere(words), None) => Verdict::Unknown(words),
            (Lead::Nowhere(_), Some(own_error)) => Verdict::Bad(reason(&own_error)),
            (Lead::Root, _) => Verdict::Bad(reason(&error)),
        }
    }

    /// The same of one of version 1: it has no extensions, so its time and its issuer are all there is to look at.
    fn judge_first_version(
        &self,
        own: &Certificate<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Verdict {
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now < own.not_before {
            return Verdict::Bad("certificate is not yet valid".into());
        }
        if now > own.not_after {
            return Verdict::Bad("certificate has expired".into());
        }
        match self.trust.lead(own, others) {
            Lead::Nowhere(words) => Verdict::Unknown(words),
            // webpki reads lists for certificates that it can read.
            Lead::Root if !self.trust.lists.is_empty() => {
                Verdict::Bad("unable to get certificate CRL".into())
            }
            Lead::Root if self.trust.has_issued(own) => Verdict::Good,
            Lead::Root => Verdict::Bad("certificate signature failure".into()),
        }
    }
}

/// Where a chain leads, by the names in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lead {
    /// Not to a root; how so, in OpenSSL's words, which nginx's users know.
    Nowhere(&'static str),
    Root,
}

/// Takes a certificate whatever it is for.
struct AnyUsage;

impl ExtendedKeyUsageValidator for AnyUsage {
    fn validate(&self, _: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        Ok(())
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

    /// Whether nothing is wrong with a certificate itself, whoever issued it.
    fn check_alone(
        &self,
        own: &CertificateDer<'_>,
        read: &Certificate<'_>,
        now: UnixTime,
    ) -> Result<(), webpki::Error> {
        let own = EndEntityCert::try_from(own)?;
        let algorithms = self.algorithms.all;
        // OpenSSL looks at what it is for only where the chain is complete.
        let checked = match read.is_self_issued() {
            true => {
                let usage = KeyUsage::client_auth();
                own.verify_for_usage(algorithms, &[], &[], now, usage, None, None)
            }
            false => own.verify_for_usage(algorithms, &[], &[], now, AnyUsage, None, None),
        };
        match checked.map(|_| ()) {
            Err(webpki::Error::UnknownIssuer | webpki::Error::CaUsedAsEndEntity) => Ok(()),
            checked => checked,
        }
    }

    /// Where the names of a chain lead, within the depth that is allowed.
    fn lead(&self, own: &Certificate<'_>, others: &[CertificateDer<'_>]) -> Lead {
        let others: Vec<_> = others
            .iter()
            .filter_map(|other| Certificate::parse(other))
            .collect();
        let mut last = own;
        for step in 0..=self.depth {
            if self.roots.iter().any(|root| *root.subject == *last.issuer) {
                return Lead::Root;
            }
            if last.is_self_issued() {
                return Lead::Nowhere(match step {
                    0 => "self-signed certificate",
                    _ => "self-signed certificate in certificate chain",
                });
            }
            match others.iter().find(|other| other.subject == last.issuer) {
                Some(issuer) => last = issuer,
                None if step == 0 => {
                    return Lead::Nowhere("unable to verify the first certificate");
                }
                None => break,
            }
        }
        Lead::Nowhere("unable to get local issuer certificate")
    }

    /// Whether a certificate is one of the roots.
    fn is_root(&self, own: &Certificate<'_>) -> bool {
        let mut roots = self.roots.iter();
        own.is_self_issued()
            && self.lists.is_empty()
            && roots.any(|root| *root.subject == *own.subject && key(root) == own.key)
            && self.has_issued(own)
    }

    /// Whether one of the roots has signed a certificate.
    fn has_issued(&self, own: &Certificate<'_>) -> bool {
        let mut issuers = self
            .roots
            .iter()
            .filter(|root| *root.subject == *own.issuer);
        issuers.any(|root| {
            let key = SubjectPublicKeyInfoDer::from(key(root));
            let Ok(key) = RawPublicKeyEntity::try_from(&key) else {
                return false;
            };
            let known = self.algorithms.all.iter();
            let mut named = known.filter(|known| *known.signature_alg_id() == *own.algorithm);
            named.any(|known| {
                key.verify_signature(*known, own.signed, own.signature)
                    .is_ok()
            })
        })
    }
}

impl Revocations {
    fn holds(&self, now: UnixTime) -> bool {
        i64::try_from(now.as_secs()).is_ok_and(|now| now >= self.since)
    }
}

/// A root's public key, with the kind of it.
fn key(root: &TrustAnchor<'_>) -> Vec<u8> {
    der::element(der::SEQUENCE, &root.subject_public_key_info)
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
        let known = &self.trust.algorithms;
        let Some(key) = unread_key(cert) else {
            return verify_tls12_signature(message, cert, signed, known);
        };
        let bad = || rustls::Error::from(CertificateError::BadSignature);
        let entity = RawPublicKeyEntity::try_from(&key).map_err(|_| bad())?;
        let mut schemes = known.mapping.iter();
        let scheme = schemes.find(|(scheme, _)| *scheme == signed.scheme);
        let mut algorithms = scheme.map_or(&[][..], |(_, algorithms)| algorithms).iter();
        // A scheme of TLS 1.2 does not name a curve, so there are several algorithms for it.
        algorithms
            .any(|known| {
                let verified = entity.verify_signature(*known, message, signed.signature());
                verified.is_ok()
            })
            .then(HandshakeSignatureValid::assertion)
            .ok_or_else(bad)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.trust.algorithms;
        match unread_key(cert) {
            Some(key) => verify_tls13_signature_with_raw_key(message, &key, signed, known),
            None => verify_tls13_signature(message, cert, signed, known),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trust.algorithms.supported_schemes()
    }
}

/// The public key of a certificate that webpki does not read.
fn unread_key(certificate: &CertificateDer<'_>) -> Option<SubjectPublicKeyInfoDer<'static>> {
    if EndEntityCert::try_from(certificate).is_ok() {
        return None;
    }
    let read = Certificate::parse(certificate)?;
    Some(SubjectPublicKeyInfoDer::from(read.key.to_vec()))
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
