//! The true client address, given whom we trust.
//!
//! As nginx's realip module: addresses are read from the right, where the proxy next to us has written, and only as
//! far as each was written by somebody trusted. What stands further left anybody may have sent. Whatever is not an
//! address ends the reading; what was found before it stays.

mod forwarded;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderValue, header};

use super::ClientConnection;
use crate::config::plan::{RealIp, RealIpHeader};

/// Who the client is; `None` where the other end is not trusted to say, `Some(None)` where it is and does not.
pub(super) fn find(
    rule: &RealIp,
    peer: &ClientConnection,
    headers: &HeaderMap,
) -> Option<Option<SocketAddr>> {
    let near = peer.client.ip();
    if !trusts(rule, near) {
        return None;
    }
    Some(match &rule.header {
        RealIpHeader::Forwarded => {
            let lines = headers.get_all(header::FORWARDED).iter().rev();
            walk(
                rule,
                lines
                    .map(HeaderValue::as_bytes)
                    .flat_map(forwarded::elements),
            )
        }
        RealIpHeader::Other(name) => {
            let line = headers.get(name).map(HeaderValue::as_bytes);
            walk(rule, line.into_iter().flat_map(listed))
        }
        RealIpHeader::ProxyProtocol => peer.proxied().map(|proxied| canonical(proxied.from)),
        RealIpHeader::XForwardedFor => {
            let lines = headers.get_all("x-forwarded-for").iter().rev();
            walk(rule, lines.map(HeaderValue::as_bytes).flat_map(listed))
        }
    })
}

/// Whether this address may say who the client is; `None` is a unix socket.
pub(super) fn trusts(rule: &RealIp, address: Option<IpAddr>) -> bool {
    rule.from.iter().any(|network| network.contains(address))
}

/// Reads addresses from the right, the nearest first.
fn walk(rule: &RealIp, addresses: impl Iterator<Item = Option<SocketAddr>>) -> Option<SocketAddr> {
    let mut found: Option<SocketAddr> = None;
    for address in addresses {
        let Some(address) = address.map(canonical) else {
            break;
        };
        found = Some(address);
        if !rule.recursive || !trusts(rule, Some(address.ip())) {
            break;
        }
    }
    found
}

/// One form for each address: IPv4 mapped into IPv6 would otherwise be a second key for the same client.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The addresses of a list, from the right; `None` for what is none.
// nginx's way of cutting, to the byte: a comma or a blank separates, and a list's first byte never does.
fn listed(line: &[u8]) -> impl Iterator<Item = Option<SocketAddr>> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let line = rest.take()?;
        let separates = |byte: &u8| matches!(byte, b' ' | b',');
        let end = line.iter().rposition(|byte| !separates(byte));
        let line = &line[..end.map_or_else(|| line.len().min(1), |end| end + 1)];
        let start = line
            .iter()
            .rposition(separates)
            .filter(|separator| *separator > 0);
        rest = start.map(|separator| &line[..separator]);
        Some(address(&line[start.map_or(0, |separator| separator + 1)..]))
    })
}

/// An address, with or without a port; one of IPv6 with a port stands in brackets.
fn address(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(address) = text.parse() {
        return Some(SocketAddr::new(address, 0));
    }
    let (host, behind) = match text.strip_prefix('[') {
        Some(inside) => inside.split_once("]:")?,
        None => text.split_once(':')?,
    };
    Some(SocketAddr::new(host.parse().ok()?, port(behind)?))
}

fn port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0)
}
