//! Variables of a TLS connection, as nginx fills them.

use http::Version;

use super::{some, text};
use crate::config::plan::TlsVariable;
use crate::message::target::push_escaped;
use crate::message::tls::{CertificateStatus, ClientCertificate, TlsInfo};
use crate::message::{ClientConnection, RequestRecord};

/// `$scheme`
pub(super) fn scheme(peer: &ClientConnection) -> &'static str {
    match peer.tls() {
        Some(_) => "https",
        None => "http",
    }
}

/// `$http2`: what is spoken, by the name it has inside TLS or outside.
pub(super) fn http2(exchange: &RequestRecord) -> Option<&'static str> {
    let name = exchange.peer.tls().map_or("h2c", |_| "h2");
    (exchange.head.version == Version::HTTP_2).then_some(name)
}

/// `$https`: known to be nothing outside TLS.
pub(super) fn https(peer: &ClientConnection, out: &mut Vec<u8>) -> bool {
    text(out, peer.tls().map_or("", |_| "on"))
}

/// `$ssl_…`
pub(super) fn append(what: TlsVariable, peer: &ClientConnection, out: &mut Vec<u8>) -> bool {
    let Some(tls) = peer.tls() else {
        return false;
    };
    match what {
        TlsVariable::AlpnProtocol => {
            some(out, Some(tls.inner.name()).filter(|name| !name.is_empty()))
        }
        TlsVariable::Cipher => text(out, tls.cipher),
        TlsVariable::ClientEscapedCert => shown(tls, |client| {
            escape(client.pem().as_bytes(), out);
        }),
        TlsVariable::ClientFingerprint => shown(tls, |client| {
            text(out, &*client.fingerprint);
        }),
        TlsVariable::ClientIDn => shown(tls, |client| {
            text(out, &*client.issuer);
        }),
        TlsVariable::ClientSDn => shown(tls, |client| {
            text(out, &*client.subject);
        }),
        TlsVariable::ClientSerial => shown(tls, |client| {
            text(out, &*client.serial);
        }),
        TlsVariable::ClientVerify => verify(tls, out),
        TlsVariable::Curve => some(out, tls.curve),
        TlsVariable::Protocol => text(out, tls.protocol),
        TlsVariable::ServerName => some(out, tls.server_name.as_deref()),
        TlsVariable::SessionReused => text(out, if tls.resumed { "r" } else { "." }),
    }
}

fn shown(tls: &TlsInfo, write: impl FnOnce(&ClientCertificate)) -> bool {
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

fn verify(tls: &TlsInfo, out: &mut Vec<u8>) -> bool {
    match tls.verdict() {
        None => text(out, "NONE"),
        Some(CertificateStatus::Good) => text(out, "SUCCESS"),
        Some(CertificateStatus::Unknown(reason)) => text(out, "FAILED:") && text(out, reason),
        Some(CertificateStatus::Bad(reason)) => text(out, "FAILED:") && text(out, &**reason),
    }
}
