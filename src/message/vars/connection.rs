//! Variables of the connection and the machine it ends at.

use std::fmt;
use std::sync::LazyLock;

use super::{shown, text};
use crate::config::plan::ProxyTlv;
use crate::message::{ClientAddr, ClientConnection, ProxyHeader, RequestRecord};

/// `$bytes_sent`
pub(super) fn bytes_sent(exchange: &RequestRecord) -> u64 {
    let sent = exchange.peer.line.sent();
    sent.saturating_sub(exchange.sent_before)
}

/// `$remote_port`, `$realip_remote_port`: known to be none on a unix socket, and where a proxy named none.
pub(super) fn port(client: &ClientAddr, out: &mut Vec<u8>) -> bool {
    client.port().is_none_or(|port| shown(out, port))
}

/// `$proxy_protocol_addr` and its like.
pub(super) fn proxied<T: fmt::Display>(
    exchange: &RequestRecord,
    pick: impl Fn(&ProxyHeader) -> T,
    out: &mut Vec<u8>,
) -> bool {
    let proxied = exchange.peer.proxied();
    proxied.is_some_and(|proxied| shown(out, pick(proxied)))
}

/// `$proxy_protocol_tlv_NAME`
pub(super) fn tlv(exchange: &RequestRecord, tlv: ProxyTlv, out: &mut Vec<u8>) -> bool {
    let Some(proxied) = exchange.peer.proxied() else {
        return false;
    };
    match tlv {
        ProxyTlv::Plain(kind) => proxied.tlv(kind).is_some_and(|value| text(out, value)),
        ProxyTlv::Ssl(kind) => proxied.ssl_tlv(kind).is_some_and(|value| text(out, value)),
        ProxyTlv::SslVerify => proxied.ssl_verify().is_some_and(|it| shown(out, it)),
    }
}

/// `$server_addr`
pub(super) fn server_addr(peer: &ClientConnection, out: &mut Vec<u8>) -> bool {
    match peer.local {
        Some(address) => shown(out, address.ip().to_canonical()),
        None => text(out, "unix:"),
    }
}

/// `$server_port`: known to be none on a unix socket.
pub(super) fn server_port(peer: &ClientConnection, out: &mut Vec<u8>) -> bool {
    peer.local.is_none_or(|address| shown(out, address.port()))
}

/// `$hostname`, asked once.
pub(super) static HOSTNAME: LazyLock<String> = LazyLock::new(|| {
    ["/proc/sys/kernel/hostname", "/etc/hostname"]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok())
        .or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
});
