//! A server's chain of certificates that may not be longer than somebody said.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, OtherError};
use webpki::KeyUsage;

use super::verify::TrustAnchors;

/// Believes what rustls believes, up to a depth.
#[derive(Debug)]
pub(super) struct DepthVerifier {
    pub(super) verifier: Arc<WebPkiServerVerifier>,
    pub(super) bound: TrustAnchors,
}

/// In OpenSSL's words.
#[derive(Debug, thiserror::Error)]
#[error("certificate chain too long")]
struct ChainTooLong;

impl ServerCertVerifier for DepthVerifier {
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
            .verify_server_cert(own, others, name, staple, now)?;
        // What was good without a bound can only be too long with one.
        self.bound
            .verify(own, others, now, KeyUsage::server_auth())
            .map_err(|_| CertificateError::Other(OtherError(Arc::new(ChainTooLong))))?;
        Ok(verified)
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
