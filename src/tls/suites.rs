//! Versions, cipher suites and groups: our names for rustls's.

use std::sync::{Arc, LazyLock};

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{CipherSuite, NamedGroup, ProtocolVersion, SupportedProtocolVersion, version};

use crate::config::plan::{Cipher, Protocol};

/// Everything there is.
static PROVIDER: LazyLock<Arc<CryptoProvider>> =
    LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));

/// The cryptography, with only these suites; where none of a version's suites are named, all of that version.
pub(super) fn provider(ciphers: &[Cipher]) -> Arc<CryptoProvider> {
    if ciphers.is_empty() {
        return Arc::clone(&PROVIDER);
    }
    let suites = |tls13: bool| {
        let named: Vec<_> = ciphers
            .iter()
            .filter(|cipher| cipher.is_tls13() == tls13)
            .filter_map(|cipher| {
                let mut known = PROVIDER.cipher_suites.iter();
                known
                    .find(|suite| name(suite.suite()) == cipher.name)
                    .copied()
            })
            .collect();
        match named.is_empty() {
            true => PROVIDER
                .cipher_suites
                .iter()
                .filter(|suite| suite.tls13().is_some() == tls13)
                .copied()
                .collect(),
            false => named,
        }
    };
    Arc::new(CryptoProvider {
        cipher_suites: [suites(true), suites(false)].concat(),
        ..CryptoProvider::clone(&PROVIDER)
    })
}

/// rustls's versions.
pub(super) fn versions(protocols: &[Protocol]) -> Vec<&'static SupportedProtocolVersion> {
    [
        (Protocol::Tls13, &version::TLS13),
        (Protocol::Tls12, &version::TLS12),
    ]
    .into_iter()
    .filter(|(protocol, _)| protocols.contains(protocol))
    .map(|(_, version)| version)
    .collect()
}

/// nginx's name of a version.
pub(super) fn protocol(version: Option<ProtocolVersion>) -> &'static str {
    match version {
        Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
        _ => "TLSv1.2",
    }
}

/// OpenSSL's name of a cipher suite.
pub(super) fn name(suite: CipherSuite) -> &'static str {
    let standard = suite.as_str().unwrap_or_default();
    let known = Cipher::ALL.iter().find(|cipher| {
        // rustls writes TLS13_ where the standard has TLS_.
        cipher.standard == standard
            || standard.strip_prefix("TLS13_") == cipher.standard.strip_prefix("TLS_")
    });
    known.map_or(standard, |cipher| cipher.name)
}

/// OpenSSL's name of a group.
pub(super) fn curve(group: NamedGroup) -> &'static str {
    match group {
        NamedGroup::secp256r1 => "prime256v1",
        other => other.as_str().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_has_openssls_name() {
        let mut names: Vec<_> = PROVIDER
            .cipher_suites
            .iter()
            .map(|suite| name(suite.suite()))
            .collect();
        let mut known: Vec<_> = Cipher::ALL.iter().map(|cipher| cipher.name).collect();
        names.sort_unstable();
        known.sort_unstable();
        assert_eq!(names, known);
    }

    #[test]
    fn naming_suites_of_one_version_leaves_the_other_alone() {
        let only = provider(&Cipher::ALL[4..5]);
        let names: Vec<_> = only
            .cipher_suites
            .iter()
            .map(|suite| name(suite.suite()))
            .collect();
        assert_eq!(names.len(), 4, "{names:?}");
        assert_eq!(names[3], "ECDHE-ECDSA-AES128-GCM-SHA256");
    }
}
