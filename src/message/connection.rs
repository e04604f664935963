//! What is known of a client's connection: its two ends, TLS, the PROXY header, and ambiguous requests on it.
//!
//! Made once per connection; over HTTP/2 once more for each stream. The client of a request may be another one: where a
//! trusted proxy holds the other end, it carries the requests of many.
//!
//! [`AmbiguityFlag`] marks requests that two readers delimit differently. hyper resolves some of them and shows only the
//! outcome: of two equal lengths it keeps one, next to a transfer coding it drops the length, and what follows a `#` it
//! forgets. Another server may resolve them otherwise, which is what request smuggling exploits. `downstream` sees the bytes
//! and raises the flag; `proxy` refuses the request.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use http::HeaderMap;
use parking_lot::Mutex;

use super::client_addr::{self, ClientAddr, RemoteAddr};
use super::connection_state::{ConnectionPhase, ConnectionState, LoopCounter, LoopFlag};
use crate::clock::Millis;
use crate::config::plan::{ClientSettings, RealIp, RealIpHeader};
use crate::text::base64;

/// A PROXY header: the two ends of a connection before a proxy passed it on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyHeader {
    /// The client.
    pub from: SocketAddr,
    /// The address it connected to.
    pub to: SocketAddr,
    /// The TLVs of version 2: type, length and value, one after the other.
    pub tlvs: Box<[u8]>,
}

/// The TLV about TLS: one byte of flags, four of the certificate's verification, then TLVs of its own.
const SSL: u8 = 0x20;

impl ProxyHeader {
    /// The value of the first TLV of this type.
    pub fn tlv(&self, kind: u8) -> Option<&[u8]> {
        find_tlv(&self.tlvs, kind)
    }

    /// The value of the first TLV of this type among those about TLS.
    pub fn ssl_tlv(&self, kind: u8) -> Option<&[u8]> {
        let (_, inner) = self.tlv(SSL)?.split_at_checked(5)?;
        find_tlv(inner, kind)
    }

    /// The result of verifying the client's certificate.
    pub fn ssl_verify(&self) -> Option<u32> {
        let verify = self.tlv(SSL)?.get(1..5)?;
        Some(u32::from_be_bytes(verify.try_into().ok()?))
    }
}

/// The value of the first TLV of this type; none where the TLVs before it are malformed.
fn find_tlv(mut tlvs: &[u8], wanted: u8) -> Option<&[u8]> {
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

/// A client's connection, or one of the streams of an HTTP/2 connection.
#[derive(Debug)]
pub struct ClientConnection {
    /// The other end.
    pub addr: ClientAddr,
    /// Our end; `None` on a unix socket.
    pub local: Option<SocketAddr>,
    /// `$connection`: its serial number.
    pub serial: u64,
    /// When it was accepted.
    pub opened: Millis,
    /// What its requests and its socket tell each other.
    pub state: ConnectionState,
    /// Which of its requests is ambiguous.
    pub ambiguity: AmbiguityFlag,
    // The connection, where this is a stream.
    stream_of: Option<Arc<Self>>,
    // Boxed: a connection without TLS has no room for it.
    tls: OnceLock<Box<TlsInfo>>,
    proxy_header: OnceLock<Box<ProxyHeader>>,
    requests: LoopCounter,
    last_request: LoopCounter,
    /// Another connection needs its place: it closes if it is idle.
    pub asked_to_close: LoopFlag,
    // The client that a trusted proxy named last: it often is the same again.
    last_named: Mutex<Option<Arc<ClientAddr>>>,
}

impl ClientConnection {
    /// A connection that has just been accepted.
    pub fn new(remote: RemoteAddr, local: Option<SocketAddr>, serial: u64, opened: Millis) -> Self {
        Self::with_addr(ClientAddr::new(remote), local, serial, opened)
    }

    fn with_addr(addr: ClientAddr, local: Option<SocketAddr>, serial: u64, opened: Millis) -> Self {
        let state = ConnectionState::default();
        state.set_timeouts(&ClientSettings::default());
        Self {
            addr,
            local,
            serial,
            opened,
            state,
            ambiguity: AmbiguityFlag::default(),
            stream_of: None,
            tls: OnceLock::new(),
            proxy_header: OnceLock::new(),
            requests: LoopCounter::default(),
            last_request: LoopCounter::default(),
            asked_to_close: LoopFlag::default(),
            last_named: Mutex::new(None),
        }
    }

    /// A stream of `connection`: as if the client had made a connection for this one request, except for what is known of
    /// the whole connection.
    pub fn for_stream(connection: &Arc<Self>) -> Self {
        let Self { addr, local, .. } = **connection;
        let stream = Self {
            stream_of: Some(Arc::clone(connection)),
            ..Self::with_addr(addr, local, connection.serial, connection.opened)
        };
        stream.state.adopt_timeouts(&connection.state);
        stream
    }

    /// The connection itself, also of a stream.
    fn whole(&self) -> &Self {
        self.stream_of.as_deref().unwrap_or(self)
    }

    /// Notes the TLS connection inside; once, before the first request.
    pub fn set_tls(&self, tls: TlsInfo) {
        // A second handshake on one connection does not exist.
        let _first = self.tls.set(Box::new(tls));
    }

    /// Its TLS connection, if there is one.
    pub fn tls(&self) -> Option<&TlsInfo> {
        self.whole().tls.get().map(|tls| &**tls)
    }

    /// Counts one more request and returns their number.
    pub fn count_request(&self, now: Millis) -> u64 {
        let connection = self.whole();
        connection.last_request.set(now.0);
        connection.requests.add(1);
        connection.requests.get()
    }

    /// `$connection_requests`
    pub fn requests(&self) -> u64 {
        self.whole().requests.get()
    }

    /// Since when the connection is idle; `None` while it is not.
    pub fn idle_since(&self) -> Option<Millis> {
        let last_request = Millis(self.last_request.get());
        match self.state.phase() {
            ConnectionPhase::Idle => Some(last_request),
            // There has been no whole request: a few bytes do not keep a connection open.
            ConnectionPhase::Head => Some(self.opened.max(last_request)),
            ConnectionPhase::Busy => None,
        }
    }

    /// Asks the connection to close if it is idle: another one needs its place.
    pub fn ask_to_close(&self) {
        self.asked_to_close.set(true);
        self.state.wake();
    }

    /// Notes the PROXY header that precedes its first byte.
    pub fn set_proxy_header(&self, header: ProxyHeader) {
        // A connection begins once.
        let _first = self.proxy_header.set(Box::new(header));
    }

    /// Its PROXY header, if it had one with addresses.
    pub fn proxy_header(&self) -> Option<&ProxyHeader> {
        self.whole().proxy_header.get().map(|header| &**header)
    }

    /// The client that its PROXY header names, if `rule` takes the client's address from there and trusts the other end.
    pub fn client_in_proxy_header(&self, rule: &RealIp) -> Option<SocketAddr> {
        if rule.header != RealIpHeader::ProxyProtocol {
            return None;
        }
        self.find_client(rule, &HeaderMap::new()).flatten()
    }

    /// The client that the other end names in `headers` or in its PROXY header; `None` where `rule` does not trust it to,
    /// `Some(None)` where it names none.
    pub(super) fn find_client(
        &self,
        rule: &RealIp,
        headers: &HeaderMap,
    ) -> Option<Option<SocketAddr>> {
        let proxied = self.proxy_header().map(|header| header.from);
        client_addr::find(rule, self.addr.ip(), proxied, headers)
    }

    /// Whether `rule` trusts the other end to name clients.
    pub fn is_trusted_by(&self, rule: &RealIp) -> bool {
        client_addr::trusts(rule, self.addr.ip())
    }

    /// The client at `address`, whose request comes over this connection.
    pub(super) fn named_client(&self, address: SocketAddr) -> Arc<ClientAddr> {
        if let Some(connection) = &self.stream_of {
            let client = connection.named_client(address);
            *self.last_named.lock() = Some(Arc::clone(&client));
            return client;
        }
        let mut named = self.last_named.lock();
        match &*named {
            // Only the very same address: nothing of one client is ever shown as another's.
            Some(last) if last.remote == RemoteAddr::Ip(address) => Arc::clone(last),
            _ => Arc::clone(named.insert(Arc::new(ClientAddr::new(RemoteAddr::Ip(address))))),
        }
    }

    /// The address of the client of the latest request, for the log.
    pub fn latest_client(&self) -> Box<str> {
        match &*self.last_named.lock() {
            Some(client) => client.text().into(),
            None => self.addr.text().into(),
        }
    }
}

/// Why a request is ambiguous that hyper accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum Ambiguity {
    /// Two readers that each go by one of them see two requests.
    #[error("client sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time")]
    BothLengths = 1,
    /// A target has no such part: some servers cut it off, others take it for a part of the path.
    #[error("client sent a target with a \"#\"")]
    Fragment = 2,
    /// Equal or not: no client sends two by accident.
    #[error("client sent duplicate \"Content-Length\" header")]
    TwoLengths = 3,
}

/// Marks one of a connection's requests as ambiguous; the connection ends with it.
// One word, so that reading it costs a load: the number of the request, and the kind of ambiguity.
#[derive(Debug, Default)]
pub struct AmbiguityFlag(LoopCounter);

impl AmbiguityFlag {
    /// Marks the connection's `request`-th request.
    pub fn raise(&self, request: u64, ambiguity: Ambiguity) {
        self.0.set(request << 8 | ambiguity as u64);
    }

    /// Whether and why the connection's `request`-th request is ambiguous.
    pub fn of_request(&self, request: u64) -> Option<Ambiguity> {
        let raised = self.0.get();
        if raised >> 8 != request {
            return None;
        }
        let all = [
            Ambiguity::BothLengths,
            Ambiguity::Fragment,
            Ambiguity::TwoLengths,
        ];
        all.into_iter()
            .find(|ambiguity| *ambiguity as u64 == raised & 0xff)
    }
}

/// A client's TLS connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsInfo {
    /// `TLSv1.2` or `TLSv1.3`.
    pub protocol: &'static str,
    /// The cipher suite by OpenSSL's name.
    pub cipher: &'static str,
    /// The group of the key exchange; none in a session that was resumed without one.
    pub curve: Option<&'static str>,
    /// The name the client asked for (SNI).
    pub server_name: Option<Box<str>>,
    /// The protocol inside.
    pub alpn: AlpnProtocol,
    /// Whether an earlier session was resumed.
    pub resumed: bool,
    /// The certificate the client has shown. Boxed: few do.
    pub client: Option<Box<ClientCertificate>>,
}

/// The protocol inside TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AlpnProtocol {
    /// None was agreed on, which means HTTP/1.
    #[default]
    Absent,
    /// HTTP/1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// A client's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Whether it is trusted.
    pub status: CertificateStatus,
    /// Its subject, as RFC 2253 writes it.
    pub subject: Box<str>,
    /// Its issuer, as RFC 2253 writes it.
    pub issuer: Box<str>,
    /// Its serial number, in hexadecimal.
    pub serial: Box<str>,
    /// Its SHA-1, in hexadecimal.
    pub fingerprint: Box<str>,
    /// All of it, in DER.
    pub der: Box<[u8]>,
}

/// Whether a client's certificate is trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateStatus {
    /// Its chain leads to a trusted root.
    Good,
    /// Its chain does not lead to one; nothing else is wrong with it.
    Unknown(&'static str),
    /// Something is wrong with it.
    Bad(Box<str>),
}

impl TlsInfo {
    /// Whether the client's certificate is trusted, if there is one.
    pub fn certificate_status(&self) -> Option<&CertificateStatus> {
        self.client.as_ref().map(|client| &client.status)
    }
}

impl AlpnProtocol {
    /// Its name in ALPN; empty where none was agreed on.
    pub fn name(self) -> &'static str {
        match self {
            Self::Absent => "",
            Self::Http1 => "http/1.1",
            Self::Http2 => "h2",
        }
    }
}

impl ClientCertificate {
    /// All of it in PEM.
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
    fn tlvs_are_found_by_type_also_inside_that_of_tls() {
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
    fn malformed_tlvs_have_no_value() {
        assert_eq!(with(b"\x01\x00\x05h2").tlv(1), None);
        assert_eq!(with(b"\x01\x00").tlv(1), None);
        assert_eq!(with(b"\x02\xff\xff\x01\x00\x00").tlv(1), None);
        assert_eq!(with(b"\x20\x00\x02\x01\x00").ssl_verify(), None);
        assert_eq!(with(b"\x20\x00\x02\x01\x00").ssl_tlv(0x21), None);
        assert_eq!(with(b"").ssl_verify(), None);
    }

    #[test]
    fn an_ambiguity_is_of_one_request() {
        let flag = AmbiguityFlag::default();
        assert_eq!(flag.of_request(1), None);
        flag.raise(2, Ambiguity::TwoLengths);
        assert_eq!(flag.of_request(1), None);
        assert_eq!(flag.of_request(2), Some(Ambiguity::TwoLengths));
        assert_eq!(flag.of_request(3), None);
    }
}
