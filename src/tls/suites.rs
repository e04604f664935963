//! Versions, cipher suites and groups: our names for rustls's.

use std::sync::{Arc, LazyLock};

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{CipherSuite, NamedGroup, ProtocolVersion, SupportedProtocolVersion, version};

use crate::config::plan::{Cipher, TlsVersion};

/// Everything there is.
static PROVIDER: LazyLock<Arc<CryptoProvider>> =
    LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));

/// The same, with what servers rather choose first: AES with 128 bits. Its SHA-256 has instructions of its own where SHA-384
/// has none, which is a tenth of a handshake; Go's and Google's servers choose it, too.
static SWIFT: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    let mut provider = CryptoProvider::clone(&PROVIDER);
    provider.cipher_suites.sort_by_key(|suite| {
        let is_swift = name(suite.suite()).contains("128");
        (suite.tls13().is_none(), !is_swift)
    });
    Arc::new(provider)
});

/// All suites, in the order in which servers would rather have them.
pub(super) fn swift() -> Arc<CryptoProvider> {
    Arc::clone(&SWIFT)
}

/// Whether a client would rather not use AES, for want of instructions for it.
pub(super) fn dislikes_aes(suites: &[CipherSuite]) -> bool {
    let mut names = suites.iter().filter_map(CipherSuite::as_str);
    let first = names.find(|name| name.contains("_AES_") || name.contains("_CHACHA20_"));
    first.is_some_and(|name| name.contains("_CHACHA20_"))
}

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
pub(super) fn versions(protocols: &[TlsVersion]) -> Vec<&'static SupportedProtocolVersion> {
    [
        (TlsVersion::Tls13, &version::TLS13),
        (TlsVersion::Tls12, &version::TLS12),
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
    fn swift_suites_come_first_unless_a_client_has_its_reasons() {
        let swift: Vec<_> = swift().cipher_suites.iter().map(|it| it.suite()).collect();
        assert_eq!(swift[0], CipherSuite::TLS13_AES_128_GCM_SHA256);
        assert_eq!(
            swift[3],
            CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
        );
        let (aes, chacha) = (swift[0], CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
        let grease = CipherSuite::Unknown(0x0a0a);
        assert!(dislikes_aes(&[grease, chacha, aes]));
        assert!(!dislikes_aes(&[grease, aes, chacha]));
        assert!(!dislikes_aes(&[]));
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
