//! A server's certificate that is trusted by itself, because it stands in the file of those that are.
//!
//! webpki takes what stands there for authorities, and no certificate of an authority for a server's. But what
//! `openssl req -x509` makes is both, and OpenSSL accepts it. So a certificate that stands in the file byte by byte is
//! accepted, if its name and its dates are right. With lists of revoked certificates it is not: nobody could revoke it.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct};
use webpki::EndEntityCert;

use super::files::{self, FileErrorKind};

/// Believes what another verifier believes, and these certificates by themselves.
#[derive(Debug)]
pub(super) struct PinnedVerifier {
    pub(super) verifier: Arc<dyn ServerCertVerifier>,
    pub(super) certificates: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        staple: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self
            .verifier
            .verify_server_cert(own, others, name, staple, now);
        if verified.is_ok() || !self.certificates.contains(own) {
            return verified;
        }
        match files::untimely(own, now) {
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
        self.verifier
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}
