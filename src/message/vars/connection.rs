//! Variables of the connection and the machine it ends at.

use std::sync::LazyLock;

use super::{shown, text};
use crate::message::{Exchange, Peer, Remote};

/// `$bytes_sent`
pub(super) fn bytes_sent(exchange: &Exchange) -> u64 {
    let sent = exchange.peer.line.sent();
    sent.saturating_sub(exchange.sent_before)
}

/// `$remote_port`: known to be none on a unix socket.
pub(super) fn remote_port(peer: &Peer, out: &mut Vec<u8>) -> bool {
    match peer.remote {
        Remote::Ip(address) => shown(out, address.port()),
        Remote::Unix => true,
    }
}

/// `$server_addr`
pub(super) fn server_addr(peer: &Peer, out: &mut Vec<u8>) -> bool {
    match peer.local {
        Some(address) => shown(out, address.ip().to_canonical()),
        None => text(out, "unix:"),
    }
}

/// `$server_port`: known to be none on a unix socket.
pub(super) fn server_port(peer: &Peer, out: &mut Vec<u8>) -> bool {
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
