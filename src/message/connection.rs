//! What a PROXY header says: between whom the connection was before a proxy passed it on.
//!
//! Who is calling: everything known of a connection's two ends before it says a word.
//!
//! Made once per connection. Who a request comes from may be somebody else: where a trusted proxy holds the other end,
//! it carries the requests of many.
//!
//! Requests that can be read in two ways.
//!
//! hyper makes up its mind about some of them and shows only the outcome: of two equal lengths it keeps one, next to
//! a transfer coding it drops the length, and what stands behind a `#` it forgets. Whoever stands before or behind
//! us may have made up its mind otherwise, which is what smuggling lives on. `serve` sees the bytes and raises the
//! doubt here, the road asks before it does anything else.
//!
//! What is known of a connection that came inside TLS.
//!
//! Found out once, when the handshake is over, in the words of nginx's variables; a connection without TLS has none.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use http::HeaderMap;
use parking_lot::Mutex;

use super::client_addr::{self, ClientAddr, RemoteAddr};
use super::connection_state::{ConnectionPhase, ConnectionState};
use crate::clock::Millis;
use crate::config::plan::{RealIp, RealIpHeader};
use crate::text::base64;

/// A PROXY header that names both ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyHeader {
    /// The client.
    pub from: SocketAddr,
    /// Where it connected to.
    pub to: SocketAddr,
    /// What else version 2 carries: type, length and value, one after the other.
    pub tlvs: Box<[u8]>,
}

/// The piece that tells of TLS: one byte of flags, four of the certificate's verification, then pieces of its own.
const SSL: u8 = 0x20;

impl ProxyHeader {
    /// The first piece of this type.
    #[must_use]
    pub fn tlv(&self, kind: u8) -> Option<&[u8]> {
        find(&self.tlvs, kind)
    }

    /// The first piece of this type among those of TLS.
    #[must_use]
    pub fn ssl_tlv(&self, kind: u8) -> Option<&[u8]> {
        let (_, inner) = self.tlv(SSL)?.split_at_checked(5)?;
        find(inner, kind)
    }

    /// What came of verifying the client's certificate.
    #[must_use]
    pub fn ssl_verify(&self) -> Option<u32> {
        let verify = self.tlv(SSL)?.get(1..5)?;
        Some(u32::from_be_bytes(verify.try_into().ok()?))
    }
}

/// The value of the first piece of this type; none where the pieces before it do not fit together.
fn find(mut tlvs: &[u8], wanted: u8) -> Option<&[u8]> {
    loop {
        let [kind, high, low, rest @ ..] = tlvs else {
            return None;
        };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let (value, rest) = rest.split_at_checked(length)?;
        if *kind == wanted {
            return Some(value);
        }
        tlvs = rest;
    }
}

/// A client's connection.
#[derive(Debug)]
pub struct ClientConnection {
    /// The other end.
    pub client: ClientAddr,
    /// Our end; `None` on a unix socket.
    pub local: Option<SocketAddr>,
    /// `$connection`: its serial number.
    pub connection: u64,
    /// When it was accepted.
    pub opened: Millis,
    /// What the road and the connection tell each other.
    pub line: ConnectionState,
    // Boxed: a connection without TLS has no room for it.
    tls: OnceLock<Box<TlsInfo>>,
    /// Which of its requests must not be believed.
    pub doubts: AmbiguityFlag,
    // Where this is one of many on a connection.
    stream_of: Option<Arc<Self>>,
    requests: AtomicU64,
    // When its last request came.
    asked: AtomicU64,
    leaving: AtomicBool,
    // What its PROXY header said.
    proxied: OnceLock<Box<ProxyHeader>>,
    // Whom a trusted proxy named last: it often is the same again.
    named: Mutex<Option<Arc<ClientAddr>>>,
}

impl ClientConnection {
    /// A connection that has just been accepted.
    #[must_use]
    pub fn new(
        remote: RemoteAddr,
        local: Option<SocketAddr>,
        connection: u64,
        opened: Millis,
    ) -> Self {
        Self {
            client: ClientAddr::new(remote),
            local,
            connection,
            opened,
            line: ConnectionState::new(),
            tls: OnceLock::new(),
            doubts: AmbiguityFlag::default(),
            stream_of: None,
            requests: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
            proxied: OnceLock::new(),
            named: Mutex::new(None),
        }
    }

    /// Notes that it came inside TLS; once, before its first request.
    pub fn secured(&self, tls: TlsInfo) {
        // A second handshake on one connection does not exist.
        let _first = self.tls.set(Box::new(tls));
    }

    /// What is known of its TLS, if it came inside any.
    pub fn tls(&self) -> Option<&TlsInfo> {
        match &self.stream_of {
            Some(connection) => connection.tls(),
            None => self.tls.get().map(|tls| &**tls),
        }
    }

    /// The same client on one of the streams of its connection: as if it had made a connection for this one request,
    /// except for what is known of the whole.
    #[must_use]
    pub fn stream(connection: &Arc<Self>) -> Self {
        let stream = Self {
            client: connection.client,
            stream_of: Some(Arc::clone(connection)),
            ..Self::new(
                connection.client.remote(),
                connection.local,
                connection.connection,
                connection.opened,
            )
        };
        stream.line.adopt_timeouts(&connection.line);
        stream
    }

    /// Counts one more request and says how many that makes.
    pub fn count_request(&self, now: Millis) -> u64 {
        if let Some(connection) = &self.stream_of {
            return connection.count_request(now);
        }
        self.asked.store(now.0, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// `$connection_requests`
    pub fn requests(&self) -> u64 {
        match &self.stream_of {
            Some(connection) => connection.requests(),
            None => self.requests.load(Ordering::Relaxed),
        }
    }

    /// When a connection that has nothing to do had something to do last; `None` while it has.
    pub fn idle_since(&self) -> Option<Millis> {
        let asked = Millis(self.asked.load(Ordering::Relaxed));
        match self.line.phase() {
            ConnectionPhase::Idle => Some(asked),
            // It has asked nothing yet: a word or two do not keep a place.
            ConnectionPhase::Head => Some(self.opened.max(asked)),
            ConnectionPhase::Busy => None,
        }
    }

    /// Asks it to close if it is idle: somebody else needs the place.
    pub fn ask_to_leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
        self.line.wake();
    }

    /// Whether it was asked to leave.
    pub fn is_asked_to_leave(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// It does not leave; whether it had been asked to.
    pub fn stay(&self) -> bool {
        self.leaving.swap(false, Ordering::Relaxed)
    }

    /// What stands before its first byte: a PROXY header.
    pub fn set_proxied(&self, proxied: ProxyHeader) {
        // A connection begins once.
        let _first = self.proxied.set(Box::new(proxied));
    }

    /// What its PROXY header said, if it had one that says anything.
    pub fn proxied(&self) -> Option<&ProxyHeader> {
        match &self.stream_of {
            Some(connection) => connection.proxied(),
            None => self.proxied.get().map(|proxied| &**proxied),
        }
    }

    /// Whom its PROXY header names, if `rule` wants to know it from there and trusts the other end.
    pub fn introduced_by(&self, rule: &RealIp) -> Option<SocketAddr> {
        let asked = rule.header == RealIpHeader::ProxyProtocol;
        self.named_by(rule, &HeaderMap::new())
            .flatten()
            .filter(|_| asked)
    }

    /// The client that the other end names in `headers` or in its PROXY header; `None` where `rule` does not trust it to,
    /// `Some(None)` where it names none.
    pub(super) fn named_by(
        &self,
        rule: &RealIp,
        headers: &HeaderMap,
    ) -> Option<Option<SocketAddr>> {
        let introduced = self.proxied().map(|proxied| proxied.from);
        client_addr::find(rule, self.client.ip(), introduced, headers)
    }

    /// Whether `rule` trusts the other end to name others.
    pub fn is_trusted_by(&self, rule: &RealIp) -> bool {
        client_addr::trusts(rule, self.client.ip())
    }

    /// Somebody else whose request comes over this connection.
    pub(super) fn speaks_for(&self, address: SocketAddr) -> Arc<ClientAddr> {
        if let Some(connection) = &self.stream_of {
            let client = connection.speaks_for(address);
            *self.named.lock() = Some(Arc::clone(&client));
            return client;
        }
        let mut named = self.named.lock();
        match &*named {
            // Only the very same address: nothing of one client is ever shown as another's.
            Some(last) if last.remote() == RemoteAddr::Ip(address) => Arc::clone(last),
            _ => Arc::clone(named.insert(Arc::new(ClientAddr::new(RemoteAddr::Ip(address))))),
        }
    }

    /// Whom its latest request came from, as far as anybody has said; for the log.
    pub fn caller(&self) -> Box<str> {
        match &*self.named.lock() {
            Some(client) => client.text().into(),
            None => self.text().into(),
        }
    }

    /// The other end's address, whoever it speaks for.
    pub fn text(&self) -> &str {
        self.client.text()
    }
}

/// What is wrong with a request that hyper would take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum Ambiguity {
    /// Whoever goes by the other one sees another request.
    #[error("client sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time")]
    BothLengths = 1,
    /// A target has no such part: some cut it off, others take it for a piece of the path.
    #[error("client sent a target with a \"#\"")]
    Fragment = 2,
    /// Equal or not: nobody sends two by accident.
    #[error("client sent duplicate \"Content-Length\" header")]
    TwoLengths = 3,
}

/// The doubt about one of a connection's requests; the first is the last, the connection ends with it.
// One word, so that asking costs a load: the number of the request, and which doubt.
#[derive(Debug, Default)]
pub struct AmbiguityFlag(AtomicU64);

impl AmbiguityFlag {
    /// Says that the connection's `request`-th request is doubtful.
    pub fn raise(&self, request: u64, doubt: Ambiguity) {
        self.0.store(request << 8 | doubt as u64, Ordering::Relaxed);
    }

    /// What was said of the connection's `request`-th request.
    #[must_use]
    pub fn about(&self, request: u64) -> Option<Ambiguity> {
        let raised = self.0.load(Ordering::Relaxed);
        if raised >> 8 != request {
            return None;
        }
        [
            Ambiguity::BothLengths,
            Ambiguity::Fragment,
            Ambiguity::TwoLengths,
        ]
        .into_iter()
        .find(|doubt| *doubt as u64 == raised & 0xff)
    }
}

/// A client's TLS connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsInfo {
    /// `TLSv1.2` or `TLSv1.3`.
    pub protocol: &'static str,
    /// The cipher suite by OpenSSL's name.
    pub cipher: &'static str,
    /// The group of the key exchange; none in a session that was taken up again without one.
    pub curve: Option<&'static str>,
    /// The name the client asked for.
    pub server_name: Option<Box<str>>,
    /// What is spoken inside.
    pub inner: AlpnProtocol,
    /// Whether an earlier session was taken up again.
    pub resumed: bool,
    /// The certificate the client has shown. Boxed: few do.
    pub client: Option<Box<ClientCertificate>>,
}

/// What is spoken inside TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AlpnProtocol {
    /// Nothing was agreed on, which means HTTP/1.
    #[default]
    Unsaid,
    /// HTTP/1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// A client's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// What was thought of it.
    pub verdict: CertificateStatus,
    /// Whom it names, as RFC 2253 writes it.
    pub subject: Box<str>,
    /// Who issued it, as RFC 2253 writes it.
    pub issuer: Box<str>,
    /// Its number, in hexadecimal.
    pub serial: Box<str>,
    /// Its SHA-1, in hexadecimal.
    pub fingerprint: Box<str>,
    /// All of it.
    pub der: Box<[u8]>,
}

/// What is thought of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateStatus {
    /// It leads to a root that is trusted.
    Good,
    /// It does not lead to one; nothing else is wrong with it.
    Unknown(&'static str),
    /// Something is wrong with it.
    Bad(Box<str>),
}

impl TlsInfo {
    /// What is thought of the client's certificate, if there is one.
    #[must_use]
    pub fn verdict(&self) -> Option<&CertificateStatus> {
        self.client.as_ref().map(|client| &client.verdict)
    }
}

impl AlpnProtocol {
    /// Its name in ALPN; empty where none was agreed on.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unsaid => "",
            Self::Http1 => "http/1.1",
            Self::Http2 => "h2",
        }
    }
}

impl ClientCertificate {
    /// The whole of it in PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
        for line in base64(&self.der).as_bytes().chunks(64) {
            text.extend(line.iter().map(|byte| char::from(*byte)));
            text.push('\n');
        }
        text.push_str("-----END CERTIFICATE-----\n");
        text
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn with(tlvs: &[u8]) -> ProxyHeader {
        ProxyHeader {
            from: SocketAddr::from(([192, 0, 2, 7], 1)),
            to: SocketAddr::from(([192, 0, 2, 8], 2)),
            tlvs: tlvs.into(),
        }
    }

    #[test]
    fn pieces_are_found_by_type_also_inside_that_of_tls() {
        let it =
            with(b"\x01\x00\x02h2\x20\x00\x0c\x07\x00\x00\x01\x02\x21\x00\x04TLSv\x02\x00\x00");
        assert_eq!(it.tlv(1), Some(&b"h2"[..]));
        assert_eq!(it.tlv(2), Some(&b""[..]));
        assert_eq!(it.tlv(5), None);
        assert_eq!(it.ssl_tlv(0x21), Some(&b"TLSv"[..]));
        assert_eq!(it.ssl_tlv(0x22), None);
        assert_eq!(it.ssl_verify(), Some(0x102));
    }

    #[test]
    fn pieces_that_do_not_fit_are_none() {
        assert_eq!(with(b"\x01\x00\x05h2").tlv(1), None);
        assert_eq!(with(b"\x01\x00").tlv(1), None);
        assert_eq!(with(b"\x02\xff\xff\x01\x00\x00").tlv(1), None);
        assert_eq!(with(b"\x20\x00\x02\x01\x00").ssl_verify(), None);
        assert_eq!(with(b"\x20\x00\x02\x01\x00").ssl_tlv(0x21), None);
        assert_eq!(with(b"").ssl_verify(), None);
    }
}

#[cfg(test)]
mod doubt_tests {

    use super::*;

    #[test]
    fn a_doubt_is_about_one_request() {
        let doubts = AmbiguityFlag::default();
        assert_eq!(doubts.about(1), None);
        doubts.raise(2, Ambiguity::TwoLengths);
        assert_eq!(doubts.about(1), None);
        assert_eq!(doubts.about(2), Some(Ambiguity::TwoLengths));
        assert_eq!(doubts.about(3), None);
    }
}
