//! `tls` of a server, and `proxy_ssl_…` towards upstreams.

use super::values::{Flag, Time};
use crate::config::decode::{Field, List, Text, choice, number, record, scalar};
use crate::config::near;
use crate::config::plan::{Cipher, TlsVersion, VerifyClient};
use crate::config::units::ParseError;

record! {
    /// What clients are met with on addresses that listen with TLS.
    pub struct Tls {
        /// PEM files: the certificate, then those that lead from it towards a root. Several for several kinds of keys.
        certificate: Field<List<Text>>,
        /// PEM files with the keys, in the order of the certificates.
        key: Field<List<Text>>,
        /// What the issuer says about each certificate (OCSP, DER), in their order.
        stapling_file: Field<List<Text>>,
        /// TLSv1.2 and TLSv1.3. Default: both.
        protocols: Field<List<Protocols>>,
        /// Cipher suites by OpenSSL's names, the preferred first; those of TLS 1.3 stay unless some of them are named. Default: all that are safe.
        ciphers: Field<List<Ciphers>>,
        /// Whether clients have to show a certificate: off, optional, on, or optional_no_ca. Default: off.
        verify_client: Field<VerifyClientWord>,
        /// A PEM file with the roots that clients' certificates have to lead to.
        client_ca: Field<Text>,
        /// How many intermediate certificates may stand between a client's and a root. Default: 1.
        verify_depth: Field<Depth>,
        /// A PEM file with lists of revoked certificates.
        crl: Field<Text>,
        /// For how long a session can be taken up again. Default: 5m.
        session_timeout: Field<Time>,
        /// Whether clients keep their sessions themselves, sealed. Default: on.
        session_tickets: Field<Flag>,
    }
}

record! {
    /// How servers of upstreams are met behind `https://`.
    pub struct ProxySsl {
        /// Whether the server's certificate is verified. Default: on (nginx: off).
        proxy_ssl_verify: Field<Flag>,
        /// A PEM file with the roots to trust in place of the system's.
        proxy_ssl_trusted_certificate: Field<Text>,
        /// How many intermediate certificates may stand between the server's and a root. Default: as many as there are, up to 6 (nginx: 1).
        proxy_ssl_verify_depth: Field<Depth>,
        /// A PEM file with lists of revoked certificates.
        proxy_ssl_crl: Field<Text>,
        /// A PEM file with the certificate to show.
        proxy_ssl_certificate: Field<Text>,
        /// A PEM file with its key.
        proxy_ssl_certificate_key: Field<Text>,
        /// Whether the server is told which name is asked for (SNI). Default: on (nginx: off).
        proxy_ssl_server_name: Field<Flag>,
        /// Whom the certificate has to be for. Default: the host in `proxy_pass`.
        proxy_ssl_name: Field<Text>,
        /// TLSv1.2 and TLSv1.3. Default: both.
        proxy_ssl_protocols: Field<List<Protocols>>,
        /// Cipher suites by OpenSSL's names, the preferred first. Default: all that are safe.
        proxy_ssl_ciphers: Field<List<Ciphers>>,
        /// Whether sessions are taken up again. Default: on.
        proxy_ssl_session_reuse: Field<Flag>,
    }
}

scalar! {
    /// Versions of TLS, as nginx lists them in one text.
    pub struct Protocols(Vec<TlsVersion>);
    "versions of TLS such as `TLSv1.3`", |text| text.split_whitespace().map(protocol).collect(),
    { "description": "TLSv1.2, TLSv1.3 or both.", "type": "string", "pattern": r"^(TLSv1\.[23] *)+$" }
}

scalar! {
    /// Cipher suites, as OpenSSL lists them in one text.
    pub struct Ciphers(Vec<Cipher>);
    "cipher suites by name", |text| text.split([':', ',', ' ']).filter(|name| !name.is_empty()).map(cipher).collect(),
    { "description": "Cipher suites by OpenSSL's names, with : between them.", "type": "string" }
}

choice! {
    /// Whether clients show certificates.
    pub struct VerifyClientWord(VerifyClient) = "a way to verify clients" {
        "off" => VerifyClient::Off,
        "optional" => VerifyClient::Optional,
        "on" => VerifyClient::On,
        "optional_no_ca" => VerifyClient::OptionalNoCa,
        "false" => VerifyClient::Off,
        "true" => VerifyClient::On,
    }
}

number! {
    /// How many intermediate certificates.
    pub struct Depth(usize) = "a number of certificates", 0..=6
}

fn protocol(word: &str) -> Result<TlsVersion, ParseError> {
    match word {
        "TLSv1.2" => Ok(TlsVersion::Tls12),
        "TLSv1.3" => Ok(TlsVersion::Tls13),
        "SSLv2" | "SSLv3" | "TLSv1" | "TLSv1.0" | "TLSv1.1" => {
            Err(ParseError::new(format!("`{word}` is too old to be safe"))
                .help("TLSv1.2 and TLSv1.3 are spoken"))
        }
        _ => Err(ParseError::new(format!("`{word}` is not a version of TLS"))
            .help("expected `TLSv1.2` or `TLSv1.3`")),
    }
}

fn cipher(word: &str) -> Result<Cipher, ParseError> {
    let known = Cipher::ALL.into_iter();
    known
        .clone()
        .find(|cipher| cipher.name == word || cipher.standard == word)
        .ok_or_else(|| {
            let names: Vec<_> = known.map(|cipher| cipher.name).collect();
            let hint = near::hint(word, names.iter().copied())
                .unwrap_or_else(|| format!("expected some of {}", names.join(", ")));
            ParseError::new(format!("`{word}` is not a cipher suite that is spoken")).help(hint)
        })
}
