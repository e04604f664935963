//! Variables of a TLS connection, as nginx fills them.

use http::Version;

use super::{some, text};
use crate::config::plan::Ssl;
use crate::message::target::push_escaped;
use crate::message::tls::{Shown, Tls, Verdict};
use crate::message::{Exchange, Peer};

/// `$scheme`
pub(super) fn scheme(peer: &Peer) -> &'static str {
    match peer.tls() {
        Some(_) => "https",
        None => "http",
    }
}

/// `$http2`: what is spoken, by the name it has inside TLS or outside.
pub(super) fn http2(exchange: &Exchange) -> Option<&'static str> {
    let name = exchange.peer.tls().map_or("h2c", |_| "h2");
    (exchange.head.version == Version::HTTP_2).then_some(name)
}

/// `$https`: known to be nothing outside TLS.
pub(super) fn https(peer: &Peer, out: &mut Vec<u8>) -> bool {
    text(out, peer.tls().map_or("", |_| "on"))
}

/// `$ssl_…`
pub(super) fn append(what: Ssl, peer: &Peer, out: &mut Vec<u8>) -> bool {
    let Some(tls) = peer.tls() else {
        return false;
    };
    match what {
        Ssl::AlpnProtocol => some(out, Some(tls.inner.name()).filter(|name| !name.is_empty())),
        Ssl::Cipher => text(out, tls.cipher),
        Ssl::ClientEscapedCert => shown(tls, |client| {
            escape(client.pem().as_bytes(), out);
        }),
        Ssl::ClientFingerprint => shown(tls, |client| {
            text(out, &*client.fingerprint);
        }),
        Ssl::ClientIDn => shown(tls, |client| {
            text(out, &*client.issuer);
        }),
        Ssl::ClientSDn => shown(tls, |client| {
            text(out, &*client.subject);
        }),
        Ssl::ClientSerial => shown(tls, |client| {
            text(out, &*client.serial);
        }),
        Ssl::ClientVerify => verify(tls, out),
        Ssl::Curve => some(out, tls.curve),
        Ssl::Protocol => text(out, tls.protocol),
        Ssl::ServerName => some(out, tls.server_name.as_deref()),
        Ssl::SessionReused => text(out, if tls.resumed { "r" } else { "." }),
    }
}

fn shown(tls: &Tls, write: impl FnOnce(&Shown)) -> bool {
    tls.client.as_deref().map(write).is_some()
}

/// As for a part of a URI: whatever could mean something there is escaped.
fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        match byte {
            b'-' | b'.' | b'_' | b'~' => out.push(byte),
            _ if byte.is_ascii_alphanumeric() => out.push(byte),
            _ => push_escaped(byte, out),
        }
    }
}

fn verify(tls: &Tls, out: &mut Vec<u8>) -> bool {
    match tls.verdict() {
        None => text(out, "NONE"),
        Some(Verdict::Good) => text(out, "SUCCESS"),
        Some(Verdict::Unknown(reason)) => text(out, "FAILED:") && text(out, reason),
        Some(Verdict::Bad(reason)) => text(out, "FAILED:") && text(out, &**reason),
    }
}
