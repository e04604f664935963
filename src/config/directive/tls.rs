//! `tls` of servers and `proxy_ssl_…` of upstreams.
//!
//! Only names of files stand here: `tls` reads the files and reports what is wrong with them. So every file carries the place
//! where it was named.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::decode::record::Record;
use crate::config::decode::value::{HttpVersion, List, Text, choice};
use crate::config::decode::{Field, Spanned};
use crate::config::report::Report;
use crate::config::source::Span;

pub(crate) mod raw {
    //! `tls` of a server, and `proxy_ssl_…` towards upstreams.
    use std::time::Duration;

    use super::{Cipher, TlsVersion, VerifyClient};
    use crate::config::decode::Field;
    use crate::config::decode::record::{Setting, record};
    use crate::config::decode::value::{Flag, List, Text, Time, number, scalar};
    use crate::config::report::{self, ParseError};

    record! {
        /// TLS settings of the addresses that listen with TLS.
        pub(crate) struct Tls {
            /// PEM files: the certificate, then those that lead from it towards a root. Several for several kinds of keys.
            certificate: Field<List<Text>>,
            /// PEM files with the keys, in the order of the certificates.
            key: Field<List<Text>>,
            /// What the issuer says about each certificate (OCSP, DER), in their order.
            stapling_file: Field<List<Text>>,
            /// TLSv1.2 and TLSv1.3.
            protocols: Field<List<Protocols>> = "TLSv1.2 TLSv1.3" => Vec<TlsVersion>,
            /// Cipher suites by OpenSSL's names, the preferred first; those of TLS 1.3 stay unless some of them are named. Default: all that are safe.
            ciphers: Field<List<Ciphers>>,
            /// Whether clients have to show a certificate: off, optional, on, or optional_no_ca.
            verify_client: Field<VerifyClient> = "off" => VerifyClient,
            /// A PEM file with the roots that verify clients' certificates.
            client_ca: Field<Text>,
            /// How many intermediate certificates may stand between a client's and a root.
            verify_depth: Field<Depth> = "1" => usize,
            /// A PEM file with lists of revoked certificates.
            crl: Field<Text>,
            /// For how long a session can be resumed.
            session_timeout: Field<Time> = "5m" => Duration,
            /// Whether clients keep their sessions themselves, encrypted.
            session_tickets: Field<Flag> = "on" => bool,
        }
    }

    record! {
        /// TLS settings towards upstreams behind `https://`.
        pub(crate) struct ProxySsl {
            /// Whether the server's certificate is verified (nginx: off).
            proxy_ssl_verify: Field<Flag> = "on" => bool,
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
            /// Whether the requested name is sent to the server (SNI; nginx: off).
            proxy_ssl_server_name: Field<Flag> = "on" => bool,
            /// The name that the certificate must have. Default: the host in `proxy_pass`.
            proxy_ssl_name: Field<Text>,
            /// TLSv1.2 and TLSv1.3.
            proxy_ssl_protocols: Field<List<Protocols>> = "TLSv1.2 TLSv1.3" => Vec<TlsVersion>,
            /// Cipher suites by OpenSSL's names, the preferred first. Default: all that are safe.
            proxy_ssl_ciphers: Field<List<Ciphers>>,
            /// Whether sessions are resumed.
            proxy_ssl_session_reuse: Field<Flag> = "on" => bool,
        }
    }

    scalar! {
        /// Versions of TLS, as nginx lists them in one text.
        pub(crate) struct Protocols(Vec<TlsVersion>);
        "versions of TLS such as `TLSv1.3`", |text| text.split_whitespace().map(protocol).collect(),
        { "description": "TLSv1.2, TLSv1.3 or both.", "type": "string", "pattern": r"^(TLSv1\.[23] *)+$" }
    }

    scalar! {
        /// Cipher suites, as OpenSSL lists them in one text.
        pub(crate) struct Ciphers(Vec<Cipher>);
        "cipher suites by name", |text| text.split([':', ',', ' ']).filter(|name| !name.is_empty()).map(cipher).collect(),
        { "description": "Cipher suites by OpenSSL's names, with : between them.", "type": "string" }
    }

    number! {
        /// How many intermediate certificates.
        pub(crate) struct Depth(usize) = "a number of certificates", 0..=6
    }

    impl Setting<Vec<TlsVersion>> for List<Protocols> {
        fn plan(&self) -> Vec<TlsVersion> {
            let words = self.0.iter().flat_map(|words| words.value.0.clone());
            let versions: Vec<_> = words.collect();
            match versions.is_empty() {
                true => TlsVersion::ALL.to_vec(),
                false => versions,
            }
        }
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
                let hint = report::hint(word, names.iter().copied())
                    .unwrap_or_else(|| format!("expected some of {}", names.join(", ")));
                ParseError::new(format!("`{word}` is not a cipher suite that is spoken")).help(hint)
            })
    }
}

/// A server's `tls`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// At least one; of several the client gets the one it can verify, as with RSA and ECDSA side by side.
    pub certificates: Vec<Certificate>,
    /// `protocols`, at least one.
    pub protocols: Vec<TlsVersion>,
    /// `ciphers`, the preferred first; none given: all there are.
    pub ciphers: Vec<Cipher>,
    /// `verify_client`
    pub verify_client: VerifyClient,
    /// `client_ca`
    pub client_ca: Option<TlsFile>,
    /// `verify_depth`
    pub verify_depth: usize,
    /// `crl`
    pub crl: Option<TlsFile>,
    /// `session_timeout`
    pub session_timeout: Duration,
    /// `session_tickets`
    pub session_tickets: bool,
}

/// A certificate and what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate and those that lead from it towards a root.
    pub chain: TlsFile,
    /// Its key.
    pub key: TlsFile,
    /// What its issuer says about it (OCSP), to be passed on with it.
    pub staple: Option<TlsFile>,
}

/// A file, and where its name stands in the configuration.
#[derive(Debug, Clone)]
pub struct TlsFile {
    /// Where it is.
    pub path: PathBuf,
    /// Where it is named.
    pub span: Span,
}

impl TlsFile {
    /// No file: for errors of no file in particular.
    #[must_use]
    pub fn nowhere() -> Self {
        Self {
            path: PathBuf::new(),
            span: Span::NOWHERE,
        }
    }
}

impl PartialEq for TlsFile {
    // The same file is the same file, wherever it is named.
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for TlsFile {}

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2
    Tls12,
    /// TLS 1.3
    Tls13,
}

impl TlsVersion {
    /// All that are spoken.
    pub(crate) const ALL: [Self; 2] = [Self::Tls12, Self::Tls13];
}

/// A cipher suite by its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cipher {
    /// OpenSSL's name, which nginx uses.
    pub name: &'static str,
    /// The name in the standard.
    pub standard: &'static str,
}

impl Cipher {
    /// All there are, the strongest first.
    pub const ALL: [Self; 9] = [
        Self::of("TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"),
        Self::of("TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"),
        Self::of(
            "TLS_CHACHA20_POLY1305_SHA256",
            "TLS_CHACHA20_POLY1305_SHA256",
        ),
        Self::of(
            "ECDHE-ECDSA-AES256-GCM-SHA384",
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        ),
        Self::of(
            "ECDHE-ECDSA-AES128-GCM-SHA256",
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        ),
        Self::of(
            "ECDHE-ECDSA-CHACHA20-POLY1305",
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        ),
        Self::of(
            "ECDHE-RSA-AES256-GCM-SHA384",
            "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        ),
        Self::of(
            "ECDHE-RSA-AES128-GCM-SHA256",
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        ),
        Self::of(
            "ECDHE-RSA-CHACHA20-POLY1305",
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        ),
    ];

    const fn of(name: &'static str, standard: &'static str) -> Self {
        Self { name, standard }
    }

    /// Whether it belongs to TLS 1.3, whose suites have names of another kind.
    #[must_use]
    pub fn is_tls13(self) -> bool {
        self.name.starts_with("TLS_")
    }
}

choice! {
    /// Whether clients show certificates.
    pub enum VerifyClient as "VerifyClientWord" = "a mode of client verification" {
        /// They are not asked.
        Off = "off",
        /// They may; if they do, it must be valid.
        Optional = "optional",
        /// They must show a valid one.
        On = "on",
        /// They may, and its issuer may be unknown.
        OptionalNoCa = "optional_no_ca",
    }
    also { "false" => Off, "true" => On, }
}

/// `proxy_ssl_…`: TLS settings towards an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamTls {
    /// `proxy_ssl_name`: the name that the certificate must have, and that is requested.
    pub name: Box<str>,
    /// `proxy_ssl_verify`
    pub verify: bool,
    /// `proxy_ssl_verify_depth`
    pub depth: Option<usize>,
    /// `proxy_ssl_trusted_certificate`; `None` for the system's roots.
    pub trusted: Option<TlsFile>,
    /// `proxy_ssl_crl`
    pub crl: Option<TlsFile>,
    /// `proxy_ssl_certificate` and its key: weir's own.
    pub certificate: Option<Certificate>,
    /// `proxy_ssl_server_name`: whether the name is sent to the server.
    pub server_name: bool,
    /// `proxy_ssl_protocols`
    pub protocols: Vec<TlsVersion>,
    /// `proxy_ssl_ciphers`; none given: all there are.
    pub ciphers: Vec<Cipher>,
    /// `proxy_ssl_session_reuse`
    pub session_reuse: bool,
    /// What is spoken inside.
    pub version: HttpVersion,
}

impl Tls {
    /// The `tls` of a server: its own and the top level's, of which at least one is there; `listens` is where the server
    /// listens with TLS.
    pub(crate) fn compile(levels: &[&raw::Tls], listens: Span, report: &mut Report) -> Self {
        let given: raw::Tls = Record::inherit(levels.iter().copied());
        let client_ca = given.client_ca.get().map(|text| file(text, report));
        let crl = given.crl.get().map(|text| file(text, report));
        let verify_client = given.verify_client();
        if let Some(word) = given.verify_client.get()
            && client_ca.is_none()
            && matches!(verify_client, VerifyClient::On | VerifyClient::Optional)
        {
            report.error_with(
                word.span,
                "clients cannot be verified without roots to trust",
                "name a PEM file with `client_ca`",
            );
        }
        if let Some(crl) = crl.as_ref().filter(|_| client_ca.is_none()) {
            report.error_with(
                crl.span,
                "`crl` has no meaning without `client_ca`",
                "it applies to clients' certificates",
            );
        }
        Self {
            certificates: certificates(levels, listens, report),
            protocols: given.protocols(),
            ciphers: ciphers(&given.ciphers),
            verify_client,
            client_ca,
            verify_depth: given.verify_depth(),
            crl,
            session_timeout: given.session_timeout(),
            session_tickets: given.session_tickets(),
        }
    }
}

fn certificates(levels: &[&raw::Tls], listens: Span, report: &mut Report) -> Vec<Certificate> {
    // A certificate and its key come from one level: half of each would never fit.
    let given = levels.iter().find_map(|level| {
        let key = level.certificate.key().or_else(|| level.key.key())?;
        Some((level, key))
    });
    let Some((level, place)) = given else {
        let hint = "add `certificate: fullchain.pem` and `key: key.pem` to its `tls`";
        report.error_with(listens, "this server has no certificate for TLS", hint);
        return Vec::new();
    };
    let (chains, keys) = (level.certificate.items(), level.key.items());
    let staples = level.stapling_file.items();
    if level.certificate.key().is_none() || level.key.key().is_none() {
        let (given, missing) = match level.certificate.key() {
            Some(_) => ("certificate", "key"),
            None => ("key", "certificate"),
        };
        report.error(place, format!("`{given}` without a `{missing}`"));
    } else if chains.len() != keys.len() {
        let (certificates, keys) = (chains.len(), keys.len());
        let sentence = format!("{certificates} certificates and {keys} keys do not match");
        let hint = "each certificate has its key at the same place in the list";
        report.error_with(place, sentence, hint);
    }
    if let Some(stray) = staples.get(chains.len()) {
        report.error(stray.span, "more `stapling_file`s than certificates");
    }
    let pairs = chains.iter().zip(keys).enumerate();
    let certificates = pairs.map(|(index, (chain, key))| Certificate {
        chain: file(chain, report),
        key: file(key, report),
        staple: staples.get(index).map(|staple| file(staple, report)),
    });
    certificates.collect()
}

impl UpstreamTls {
    /// The TLS settings for the servers of this host.
    pub(crate) fn compile(
        host: &str,
        version: HttpVersion,
        given: &raw::ProxySsl,
        report: &mut Report,
    ) -> Self {
        let certificate = given.proxy_ssl_certificate.get();
        let key = given.proxy_ssl_certificate_key.get();
        if let (Some(alone), None) | (None, Some(alone)) = (certificate, key) {
            let sentence =
                "`proxy_ssl_certificate` and `proxy_ssl_certificate_key` must be given together";
            report.error(alone.span, sentence);
        }
        let trusted = given.proxy_ssl_trusted_certificate.get();
        Self {
            name: upstream_name(host, &given.proxy_ssl_name, report),
            verify: given.proxy_ssl_verify(),
            depth: given.proxy_ssl_verify_depth.value().map(|depth| depth.0),
            trusted: trusted.map(|text| file(text, report)),
            crl: given.proxy_ssl_crl.get().map(|text| file(text, report)),
            certificate: certificate.zip(key).map(|(chain, key)| Certificate {
                chain: file(chain, report),
                key: file(key, report),
                staple: None,
            }),
            server_name: given.proxy_ssl_server_name(),
            protocols: given.proxy_ssl_protocols(),
            ciphers: ciphers(&given.proxy_ssl_ciphers),
            session_reuse: given.proxy_ssl_session_reuse(),
            version,
        }
    }
}

fn upstream_name(host: &str, given: &Field<Text>, report: &mut Report) -> Box<str> {
    if let Some(given) = given.get() {
        let text = given.value.text.as_str();
        if text.contains('$') {
            let sentence = "variables in `proxy_ssl_name` are not supported by this version";
            report.error(given.span, sentence);
        } else if text.is_empty() || text.contains(['/', ' ']) {
            let sentence = format!("`{text}` cannot be the name in a certificate");
            report.error(given.span, sentence);
        }
    }
    let host = given.value().map_or(host, |given| given.text.as_str());
    without_port(host).to_ascii_lowercase().into()
}

/// A file as it is named: relative to the file that names it.
pub(crate) fn file(text: &Spanned<Text>, report: &mut Report) -> TlsFile {
    if text.value.text.is_empty() {
        report.error(text.span, "the name of a file is empty");
    }
    let home = Path::new(report.sources().name(text.span.file)).parent();
    TlsFile {
        path: home.unwrap_or_else(|| Path::new("")).join(&text.value.text),
        span: text.span,
    }
}

/// Name or address without a port, an IPv6 one without brackets.
fn without_port(host: &str) -> &str {
    if let Some((address, _)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address;
    }
    match host.split_once(':') {
        Some((name, port)) if !port.contains(':') => name,
        _ => host,
    }
}

fn ciphers(given: &Field<List<raw::Ciphers>>) -> Vec<Cipher> {
    let ciphers = given.items().iter().flat_map(|words| &words.value.0);
    ciphers.copied().collect()
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_name_to_verify_has_no_port() {
        assert_eq!(without_port("app.internal:8443"), "app.internal");
        assert_eq!(without_port("[::1]:8443"), "::1");
        assert_eq!(without_port("::1"), "::1");
        assert_eq!(without_port("app"), "app");
    }
}
