//! TLS on both sides: what clients are met with, and how servers of upstreams are.
//!
//! Only names of files stand here: reading them is the work of the `tls` room, which also says what is wrong with
//! them. So every file carries the place where it was named.
//!
//! `tls` of servers and `proxy_ssl_…` of upstreams: what is written about files, not what stands in them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::location::{HttpVersion, SettingLevels};
use super::server;
use crate::config::compile::Compiler;
use crate::config::decode::value::{List, Text};
use crate::config::decode::{Field, Spanned, value};
use crate::config::source::Span;

pub(crate) mod raw {
    //! `tls` of a server, and `proxy_ssl_…` towards upstreams.
    use super::{Cipher, TlsVersion, VerifyClient};
    use crate::config::decode::Field;
    use crate::config::decode::record::record;
    use crate::config::decode::units::ParseError;
    use crate::config::decode::value::{Flag, List, Text, Time, choice, number, scalar};
    use crate::config::report;

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
    /// Where that was said.
    pub span: Span,
}

impl TlsFile {
    /// For what is wrong with no file in particular.
    #[must_use]
    pub fn nowhere() -> Self {
        Self {
            path: PathBuf::new(),
            span: Span {
                file: 0,
                start: 0,
                end: 0,
            },
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

/// Whether clients show certificates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VerifyClient {
    /// They are not asked.
    #[default]
    Off,
    /// They have to, and it has to be good.
    On,
    /// They may; if they do, it has to be good.
    Optional,
    /// They may, and whoever issued it is fine.
    OptionalNoCa,
}

/// `proxy_ssl_…`: how a server of an upstream is met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamTls {
    /// `proxy_ssl_name`: whom its certificate has to be for, and what it is asked for.
    pub name: Box<str>,
    /// `proxy_ssl_verify`
    pub verify: bool,
    /// `proxy_ssl_verify_depth`
    pub depth: Option<usize>,
    /// `proxy_ssl_trusted_certificate`; `None` for the system's roots.
    pub trusted: Option<TlsFile>,
    /// `proxy_ssl_crl`
    pub crl: Option<TlsFile>,
    /// `proxy_ssl_certificate` and its key: who we are.
    pub certificate: Option<Certificate>,
    /// `proxy_ssl_server_name`: whether it is told the name.
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

impl Compiler<'_> {
    /// What a server meets clients with that come over TLS; `listens` says where it was told that some do.
    pub(in crate::config) fn tls(
        &mut self,
        server: &Spanned<server::raw::Server>,
        listens: Option<Span>,
    ) -> Option<Tls> {
        let config = self.config;
        let own = server.value.tls.value();
        match (own, listens) {
            (_, Some(listens)) => {
                let levels: Vec<&raw::Tls> = own.into_iter().chain(config.tls.value()).collect();
                if levels.is_empty() {
                    // One that is there and could not be understood was complained about.
                    if server
                        .value
                        .tls
                        .key()
                        .or_else(|| config.tls.key())
                        .is_none()
                    {
                        self.complain_with(
                            listens,
                            "this server listens with TLS and has no `tls`",
                            "add `tls: { certificate: fullchain.pem, key: key.pem }` to it",
                        );
                    }
                    return None;
                }
                self.server_tls(&levels, listens)
            }
            (Some(_), None) => {
                if let Some(key) = server.value.tls.key() {
                    self.warn(
                        key,
                        "this server has a certificate and never listens with TLS",
                        "write `listen: { address: …, tls: true }`",
                    );
                }
                None
            }
            (None, None) => None,
        }
    }

    fn server_tls(&mut self, levels: &[&raw::Tls], listens: Span) -> Option<Tls> {
        let certificates = self.certificates(levels, listens);
        let verify_client =
            find(levels, |tls| &tls.verify_client).map_or(VerifyClient::Off, |word| word.value.0);
        let client_ca = find(levels, |tls| &tls.client_ca).map(|text| self.file(text));
        let crl = find(levels, |tls| &tls.crl).map(|text| self.file(text));
        if let Some(word) = find(levels, |tls| &tls.verify_client)
            && client_ca.is_none()
            && matches!(verify_client, VerifyClient::On | VerifyClient::Optional)
        {
            self.complain_with(
                word.span,
                "clients cannot be verified without roots to trust",
                "name a PEM file with `client_ca`",
            );
        }
        if let Some(crl) = crl.as_ref().filter(|_| client_ca.is_none()) {
            self.complain_with(
                crl.span,
                "`crl` without `client_ca` has nothing to apply to",
                "it is about clients' certificates",
            );
        }
        Some(Tls {
            certificates,
            protocols: protocols(find(levels, |tls| &tls.protocols)),
            ciphers: ciphers(find(levels, |tls| &tls.ciphers)),
            verify_client,
            client_ca,
            verify_depth: find(levels, |tls| &tls.verify_depth).map_or(1, |depth| depth.value.0),
            crl,
            session_timeout: find(levels, |tls| &tls.session_timeout)
                .map_or(Duration::from_secs(300), |time| time.value.0),
            session_tickets: find(levels, |tls| &tls.session_tickets)
                .is_none_or(|flag| flag.value.0),
        })
    }

    fn certificates(&mut self, levels: &[&raw::Tls], listens: Span) -> Vec<Certificate> {
        // A certificate and its key come from one level: half of each would never fit.
        let Some(level) = levels
            .iter()
            .find(|tls| tls.certificate.key().or_else(|| tls.key.key()).is_some())
        else {
            let hint = "add `certificate: fullchain.pem` and `key: key.pem` to its `tls`";
            self.complain_with(listens, "this server has no certificate for TLS", hint);
            return Vec::new();
        };
        let chains = list(&level.certificate);
        let keys = list(&level.key);
        let staples = list(&level.stapling_file);
        let place = level.certificate.key().or_else(|| level.key.key());
        let place = place.unwrap_or(listens);
        if level.certificate.key().is_none() || level.key.key().is_none() {
            let (there, missing) = match level.certificate.key() {
                Some(_) => ("certificate", "key"),
                None => ("key", "certificate"),
            };
            self.complain(place, format!("`{there}` without a `{missing}`"));
        } else if chains.len() != keys.len() {
            let sentence = format!(
                "{} certificates and {} keys cannot belong together",
                chains.len(),
                keys.len()
            );
            self.complain_with(
                place,
                sentence,
                "each certificate has its key at the same place in the list",
            );
        }
        if let Some(stray) = staples.get(chains.len()) {
            self.complain(
                stray.span,
                "a `stapling_file` more than there are certificates",
            );
        }
        chains
            .iter()
            .zip(keys)
            .enumerate()
            .map(|(index, (chain, key))| Certificate {
                chain: self.file(chain),
                key: self.file(key),
                staple: staples.get(index).map(|staple| self.file(staple)),
            })
            .collect()
    }

    /// How a server behind `https://` is met, as a place in the plan: the same for the same settings.
    pub(in crate::config) fn upstream_tls(
        &mut self,
        host: &str,
        version: HttpVersion,
        levels: SettingLevels<'_>,
    ) -> usize {
        let flag = |given: Option<&Spanned<value::Flag>>| given.is_none_or(|flag| flag.value.0);
        let certificate = levels.find(|s| &s.proxy_ssl.proxy_ssl_certificate);
        let key = levels.find(|s| &s.proxy_ssl.proxy_ssl_certificate_key);
        if let (Some(alone), None) | (None, Some(alone)) = (certificate, key) {
            let sentence =
                "`proxy_ssl_certificate` and `proxy_ssl_certificate_key` belong together";
            self.complain(alone.span, sentence);
        }
        let certificate = certificate.zip(key).map(|(chain, key)| Certificate {
            chain: self.file(chain),
            key: self.file(key),
            staple: None,
        });
        let mut file = |given: Option<&Spanned<Text>>| given.map(|text| self.file(text));
        let tls = UpstreamTls {
            trusted: file(levels.find(|s| &s.proxy_ssl.proxy_ssl_trusted_certificate)),
            crl: file(levels.find(|s| &s.proxy_ssl.proxy_ssl_crl)),
            name: self.upstream_name(host, levels),
            verify: flag(levels.find(|s| &s.proxy_ssl.proxy_ssl_verify)),
            depth: levels
                .find(|s| &s.proxy_ssl.proxy_ssl_verify_depth)
                .map(|depth| depth.value.0),
            certificate,
            server_name: flag(levels.find(|s| &s.proxy_ssl.proxy_ssl_server_name)),
            protocols: protocols(levels.find(|s| &s.proxy_ssl.proxy_ssl_protocols)),
            ciphers: ciphers(levels.find(|s| &s.proxy_ssl.proxy_ssl_ciphers)),
            session_reuse: flag(levels.find(|s| &s.proxy_ssl.proxy_ssl_session_reuse)),
            version,
        };
        let known = self.upstream_tls.iter().position(|known| *known == tls);
        known.unwrap_or_else(|| {
            self.upstream_tls.push(tls);
            self.upstream_tls.len() - 1
        })
    }

    fn upstream_name(&mut self, host: &str, levels: SettingLevels<'_>) -> Box<str> {
        let given = levels.find(|s| &s.proxy_ssl.proxy_ssl_name);
        if let Some(given) = given {
            let text = given.value.text.as_str();
            if text.contains('$') {
                let sentence = "variables in `proxy_ssl_name` are not supported by this version";
                self.complain(given.span, sentence);
            } else if text.is_empty() || text.contains(['/', ' ']) {
                let sentence = format!("`{text}` cannot be the name in a certificate");
                self.complain(given.span, sentence);
            }
        }
        let host = given.map_or(host, |given| given.value.text.as_str());
        without_port(host).to_ascii_lowercase().into()
    }

    /// A file as it is named: relative to the file that names it.
    pub(in crate::config) fn file(&mut self, text: &Spanned<Text>) -> TlsFile {
        if text.value.text.is_empty() {
            self.complain(text.span, "an empty name of a file");
        }
        let home = Path::new(self.report.sources().name(text.span.file)).parent();
        TlsFile {
            path: home.unwrap_or_else(|| Path::new("")).join(&text.value.text),
            span: text.span,
        }
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

fn find<'a, T>(
    levels: &[&'a raw::Tls],
    pick: impl Fn(&'a raw::Tls) -> &'a Field<T>,
) -> Option<&'a Spanned<T>> {
    levels.iter().find_map(|tls| pick(tls).get())
}

fn list(field: &Field<List<Text>>) -> &[Spanned<Text>] {
    field.value().map_or(&[], |list| &list.0)
}

fn protocols(given: Option<&Spanned<List<raw::Protocols>>>) -> Vec<TlsVersion> {
    let given: Vec<_> = given
        .into_iter()
        .flat_map(|given| &given.value.0)
        .flat_map(|words| words.value.0.iter().copied())
        .collect();
    match given.is_empty() {
        true => vec![TlsVersion::Tls12, TlsVersion::Tls13],
        false => given,
    }
}

fn ciphers(given: Option<&Spanned<List<raw::Ciphers>>>) -> Vec<Cipher> {
    given
        .into_iter()
        .flat_map(|given| &given.value.0)
        .flat_map(|words| words.value.0.iter().copied())
        .collect()
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
