//! TLS on both sides: what clients are met with, and how servers of upstreams are.
//!
//! Only names of files stand here: reading them is the work of the `tls` room, which also says what is wrong with
//! them. So every file carries the place where it was named.

use std::path::PathBuf;
use std::time::Duration;

use super::HttpVersion;
use crate::config::Span;

/// How a listener's connections are carried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Carrier {
    /// As they come.
    #[default]
    Plain,
    /// Inside TLS.
    Tls,
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
    pub session_tickets: SessionTickets,
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

/// Whether clients keep their sessions themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SessionTickets {
    /// No: they are kept here.
    Off,
    /// Yes, sealed.
    #[default]
    On,
}

/// `proxy_ssl_…`: how a server of an upstream is met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamTls {
    /// `proxy_ssl_name`: whom its certificate has to be for, and what it is asked for.
    pub name: Box<str>,
    /// `proxy_ssl_verify`
    pub verify: Verify,
    /// `proxy_ssl_verify_depth`
    pub depth: Option<usize>,
    /// `proxy_ssl_trusted_certificate`; `None` for the system's roots.
    pub trusted: Option<TlsFile>,
    /// `proxy_ssl_crl`
    pub crl: Option<TlsFile>,
    /// `proxy_ssl_certificate` and its key: who we are.
    pub certificate: Option<Certificate>,
    /// `proxy_ssl_server_name`: whether it is told the name.
    pub server_name: ServerNameSent,
    /// `proxy_ssl_protocols`
    pub protocols: Vec<TlsVersion>,
    /// `proxy_ssl_ciphers`; none given: all there are.
    pub ciphers: Vec<Cipher>,
    /// `proxy_ssl_session_reuse`
    pub session_reuse: SessionReuse,
    /// What is spoken inside.
    pub version: HttpVersion,
}

/// Whether a certificate is looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verify {
    /// Whoever answers is believed.
    Off,
    /// It has to be good.
    #[default]
    On,
}

/// Whether the name is sent (SNI).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ServerNameSent {
    /// No.
    Off,
    /// Yes.
    #[default]
    On,
}

/// Whether a new connection takes up an old session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SessionReuse {
    /// No.
    Off,
    /// Where the other side allows it.
    #[default]
    On,
}
