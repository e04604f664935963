//! Whether a certificate is trusted: a client's, and a server's of an upstream.
//!
//! During the handshake a client only has to prove that the certificate's key is its own. Whether the certificate is
//! trusted is decided afterwards, also for a resumed session: it may have expired or been revoked since.
//!
//! webpki reads no certificates of version 1 and accepts none of a CA for a client. nginx accepts both, so for these the
//! key is taken from the certificate here, and whether a root has issued it is checked here.
//!
//! webpki takes the certificates of `proxy_ssl_trusted_certificate` for authorities, and accepts no certificate of an
//! authority for a server. But what `openssl req -x509` makes is both, and OpenSSL accepts it. So a server's certificate
//! that stands in the file byte by byte is accepted, if its name and its dates are right. With lists of revoked
//! certificates it is not: no list could revoke it.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, ServerName, SubjectPublicKeyInfoDer, TrustAnchor, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, RootCertStore,
    SignatureScheme,
};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, ExtendedKeyUsageValidator,
    KeyPurposeIdIter, KeyUsage, RawPublicKeyEntity, RevocationOptionsBuilder,
};

use super::files::{Error, FileErrorKind};
use super::x509::X509Parts;
use super::{files, stream, x509};
use crate::config::plan::{self, UpstreamTls};
use crate::message::CertificateStatus;

/// Verifies the certificates of clients.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    hints: Vec<DistinguishedName>,
    trust: TrustAnchors,
}

/// What certificates are verified by.
#[derive(Debug)]
struct TrustAnchors {
    /// Where a chain has to end.
    roots: Vec<TrustAnchor<'static>>,
    /// Which certificates have been revoked.
    lists: Vec<RevocationList>,
    /// How many certificates may stand in between.
    depth: usize,
    /// The signature algorithms that are accepted.
    algorithms: WebPkiSupportedAlgorithms,
}

/// A list of revoked certificates.
#[derive(Debug)]
struct RevocationList {
    list: CertRevocationList<'static>,
    /// From when it holds, in seconds since the epoch. Only OpenSSL looks at it; webpki looks at the end alone.
    since: i64,
}

impl ClientVerifier {
    /// Reads what `plan` names.
    pub(super) fn read(plan: &plan::Tls) -> Result<Self, Error> {
        let roots = plan.client_ca.as_ref();
        let roots = roots.map_or_else(|| Ok(RootCertStore::empty()), files::roots)?;
        let lists = plan
            .crl
            .as_ref()
            .map_or_else(|| Ok(Vec::new()), files::lists)?;
        let lists = lists
            .iter()
            .filter_map(|der| {
                let list = webpki::OwnedCertRevocationList::from_der(der).ok()?;
                Some(RevocationList {
                    list: list.into(),
                    since: x509::list_since(der).unwrap_or(i64::MIN),
                })
            })
            .collect();
        Ok(Self {
            hints: roots.subjects(),
            trust: TrustAnchors {
                roots: roots.roots,
                lists,
                depth: plan.verify_depth,
                algorithms: stream::provider(&[]).signature_verification_algorithms,
            },
        })
    }

    /// What is thought of a chain that a client has shown.
    pub(super) fn verify(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> CertificateStatus {
        let Some((own, others)) = chain.split_first() else {
            return CertificateStatus::Bad("no certificate".into());
        };
        let Some(read) = X509Parts::parse(own) else {
            return CertificateStatus::Bad("certificate cannot be read".into());
        };
        let error = match self.trust.verify(own, others, now, KeyUsage::client_auth()) {
            Ok(()) => return CertificateStatus::Good,
            Err(webpki::Error::UnsupportedCertVersion) if read.is_first_version => {
                return self.verify_first_version(&read, others, now);
            }
            Err(webpki::Error::CaUsedAsEndEntity) if self.trust.is_root(&read) => {
                return CertificateStatus::Good;
            }
            Err(webpki::Error::UnknownRevocationStatus)
                if self.trust.lists.iter().any(|list| !list.holds(now)) =>
            {
                return CertificateStatus::Bad("CRL is not yet valid".into());
            }
            Err(error) => error,
        };
        // As in OpenSSL, what is wrong further up counts only where the chain leads to a root.
        let own_error = self.trust.check_alone(own, &read, now).err();
        match (self.trust.find_root(&read, others), own_error) {
            (Err(missing), None) => CertificateStatus::Unknown(missing),
            (Err(_), Some(own_error)) => CertificateStatus::Bad(reason(&own_error)),
            (Ok(()), _) => CertificateStatus::Bad(reason(&error)),
        }
    }

    /// The same of one of version 1: it has no extensions, so its time and its issuer are all there is to look at.
    fn verify_first_version(
        &self,
        own: &X509Parts<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> CertificateStatus {
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now < own.not_before {
            return CertificateStatus::Bad("certificate is not yet valid".into());
        }
        if now > own.not_after {
            return CertificateStatus::Bad("certificate has expired".into());
        }
        match self.trust.find_root(own, others) {
            Err(missing) => CertificateStatus::Unknown(missing),
            // webpki reads lists for certificates that it can read.
            Ok(()) if !self.trust.lists.is_empty() => {
                CertificateStatus::Bad("unable to get certificate CRL".into())
            }
            Ok(()) if self.trust.has_issued(own) => CertificateStatus::Good,
            Ok(()) => CertificateStatus::Bad("certificate signature failure".into()),
        }
    }
}

/// Takes a certificate whatever it is for.
struct AnyKeyUsage;

impl ExtendedKeyUsageValidator for AnyKeyUsage {
    fn validate(&self, _: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        Ok(())
    }
}

impl TrustAnchors {
    /// Whether a chain may be used for this.
    fn verify(
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

    /// Whether nothing is wrong with a certificate itself, whatever its issuer.
    fn check_alone(
        &self,
        own: &CertificateDer<'_>,
        read: &X509Parts<'_>,
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
            false => own.verify_for_usage(algorithms, &[], &[], now, AnyKeyUsage, None, None),
        };
        match checked.map(|_| ()) {
            Err(webpki::Error::UnknownIssuer | webpki::Error::CaUsedAsEndEntity) => Ok(()),
            checked => checked,
        }
    }

    /// Whether the names of a chain lead to a root within the depth that is allowed; if not, why, in OpenSSL's words, which
    /// nginx's users know.
    fn find_root(
        &self,
        own: &X509Parts<'_>,
        others: &[CertificateDer<'_>],
    ) -> Result<(), &'static str> {
        let others: Vec<_> = others
            .iter()
            .filter_map(|other| X509Parts::parse(other))
            .collect();
        let mut last = own;
        for step in 0..=self.depth {
            if self.roots.iter().any(|root| *root.subject == *last.issuer) {
                return Ok(());
            }
            if last.is_self_issued() {
                return Err(match step {
                    0 => "self-signed certificate",
                    _ => "self-signed certificate in certificate chain",
                });
            }
            match others.iter().find(|other| other.subject == last.issuer) {
                Some(issuer) => last = issuer,
                None if step == 0 => return Err("unable to verify the first certificate"),
                None => break,
            }
        }
        Err("unable to get local issuer certificate")
    }

    /// Whether a certificate is one of the roots.
    fn is_root(&self, own: &X509Parts<'_>) -> bool {
        let mut roots = self.roots.iter();
        own.is_self_issued()
            && self.lists.is_empty()
            && roots.any(|root| *root.subject == *own.subject && key(root) == own.key)
            && self.has_issued(own)
    }

    /// Whether one of the roots has signed a certificate.
    fn has_issued(&self, own: &X509Parts<'_>) -> bool {
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

impl RevocationList {
    fn holds(&self, now: UnixTime) -> bool {
        i64::try_from(now.as_secs()).is_ok_and(|now| now >= self.since)
    }
}

/// A root's public key, with the kind of it.
fn key(root: &TrustAnchor<'_>) -> Vec<u8> {
    x509::element(x509::SEQUENCE, &root.subject_public_key_info)
}

impl ClientCertVerifier for ClientVerifier {
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
    let read = X509Parts::parse(certificate)?;
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

/// Verifies the certificates of a server of an upstream.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    trust: ServerTrust,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Which certificates of servers are trusted.
#[derive(Debug)]
enum ServerTrust {
    Any,
    Nothing,
    Roots {
        chains: Arc<WebPkiServerVerifier>,
        /// The longest chain, where the configuration bounds it.
        depth: Option<TrustAnchors>,
        /// Certificates that are trusted by themselves.
        pinned: Vec<CertificateDer<'static>>,
    },
}

/// In OpenSSL's words.
#[derive(Debug, thiserror::Error)]
#[error("certificate chain too long")]
struct ChainTooLong;

impl ServerVerifier {
    /// Reads the files of `plan`.
    pub(super) fn read(plan: &UpstreamTls, provider: Arc<CryptoProvider>) -> Result<Self, Error> {
        let algorithms = provider.signature_verification_algorithms;
        let trust = match plan.verify {
            false => ServerTrust::Any,
            true => ServerTrust::read(plan, provider)?,
        };
        Ok(Self { trust, algorithms })
    }
}

impl ServerTrust {
    fn read(plan: &UpstreamTls, provider: Arc<CryptoProvider>) -> Result<Self, Error> {
        let roots = plan.trusted.as_ref();
        let roots = roots.map_or_else(|| Ok(system_roots()), files::roots)?;
        if roots.is_empty() {
            // A machine without roots trusts no server; every handshake will say so.
            return Ok(Self::Nothing);
        }
        let depth = plan.depth.map(|depth| TrustAnchors {
            roots: roots.roots.clone(),
            lists: Vec::new(),
            depth,
            algorithms: provider.signature_verification_algorithms,
        });
        let lists = plan.crl.as_ref();
        let lists = lists.map_or_else(|| Ok(Vec::new()), files::lists)?;
        let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .with_crls(lists)
            .enforce_revocation_expiration()
            .build()
            .map_err(|error| {
                let file = plan.trusted.as_ref().or(plan.crl.as_ref());
                files::refused(rustls::Error::General(error.to_string()), file)
            })?;
        let pinned = match &plan.trusted {
            Some(file) if plan.crl.is_none() => files::chain(file)?,
            _ => Vec::new(),
        };
        Ok(Self::Roots {
            chains,
            depth,
            pinned,
        })
    }
}

/// The certificates that this machine trusts.
fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "some of the system's certificates cannot be read");
    }
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        tracing::warn!(
            "this machine has no trusted certificates: no upstream can be verified by them"
        );
    }
    roots
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        staple: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let (chains, depth, pinned) = match &self.trust {
            ServerTrust::Any => return Ok(ServerCertVerified::assertion()),
            ServerTrust::Nothing => return Err(CertificateError::UnknownIssuer.into()),
            ServerTrust::Roots {
                chains,
                depth,
                pinned,
            } => (chains, depth, pinned),
        };
        let mut verified = chains.verify_server_cert(own, others, name, staple, now);
        // A chain that is good without a bound can only be too long with one.
        if verified.is_ok()
            && let Some(depth) = depth
            && let Err(_) = depth.verify(own, others, now, KeyUsage::server_auth())
        {
            verified = Err(CertificateError::Other(OtherError(Arc::new(ChainTooLong))).into());
        }
        if verified.is_ok() || !pinned.contains(own) {
            return verified;
        }
        match files::validity_error(own, now) {
            None => {}
            Some(FileErrorKind::NotYetValid(_)) => return Err(CertificateError::NotValidYet.into()),
            Some(_) => return Err(CertificateError::Expired.into()),
        }
        EndEntityCert::try_from(own)
            .and_then(|own| own.verify_is_valid_for_subject_name(name))
            .map_err(|_| CertificateError::NotValidForName)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
