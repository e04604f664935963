//! Where to listen and where to connect: `8080`, `127.0.0.1:8080`, `[::1]:8080`, `unix:/run/weir.sock`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use super::ParseError;
use crate::config::plan::{SocketAddress, UpstreamAddress};

/// nginx's port where none is given.
pub(in crate::config) const HTTP: u16 = 80;

/// And behind `https://`.
pub(in crate::config) const HTTPS: u16 = 443;

/// Where DNS servers listen.
const DNS: u16 = 53;

/// Where to listen. A port alone is one on `any`.
pub(in crate::config) fn listen(text: &str, any: Ipv4Addr) -> Result<SocketAddress, ParseError> {
    let wrong = || {
        ParseError::new(format!("`{text}` is not an address to listen on")).help(
            "expected `8080`, `127.0.0.1:8080`, `*:8080`, `[::1]:8080` or `unix:/run/weir.sock`",
        )
    };
    if let Some(path) = text.strip_prefix("unix:") {
        return unix(path).map(SocketAddress::Unix).ok_or_else(wrong);
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let port = port(text)?;
        return Ok(SocketAddress::Tcp(SocketAddr::from((any, port))));
    }
    let (host, port) = split(text).ok_or_else(wrong)?;
    let port = port.map_or(Ok(HTTP), self::port)?;
    let address = match host {
        "*" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        host => host.parse().map_err(|_| wrong())?,
    };
    Ok(SocketAddress::Tcp(SocketAddr::new(address, port)))
}

/// Where to connect: name or address, and a port, `usual` where none is given; or a unix socket.
pub(in crate::config) fn host_port(text: &str, usual: u16) -> Result<UpstreamAddress, ParseError> {
    let wrong = || {
        ParseError::new(format!("`{text}` is not the address of a server"))
            .help("expected `host:port`, `127.0.0.1:9001`, `[::1]:9001` or `unix:/run/app.sock`")
    };
    if let Some(path) = text.strip_prefix("unix:") {
        return unix(path).map(UpstreamAddress::Unix).ok_or_else(wrong);
    }
    let (host, port) = split(text).ok_or_else(wrong)?;
    let port = port.map_or(Ok(usual), self::port)?;
    if port == 0 {
        return Err(ParseError::new(format!(
            "`{text}`: nothing can be reached on port 0"
        )));
    }
    let is_name = !host.is_empty()
        && host.len() <= 253
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
    if !is_name && host.parse::<IpAddr>().is_err() {
        return Err(wrong());
    }
    Ok(UpstreamAddress::Tcp {
        host: host.to_ascii_lowercase().into(),
        port,
    })
}

/// Where a DNS server is: an address, and the port where it is another than DNS's own.
pub(in crate::config) fn name_server(text: &str) -> Result<SocketAddr, ParseError> {
    let wrong = || {
        ParseError::new(format!("`{text}` is not the address of a DNS server"))
            .help("expected `10.0.0.2`, `10.0.0.2:53` or `[::1]:53`")
    };
    let (host, port) = split(text).ok_or_else(wrong)?;
    let port = port.map_or(Ok(DNS), self::port)?;
    let address = host.parse().map_err(|_| wrong())?;
    match port {
        0 => Err(wrong()),
        port => Ok(SocketAddr::new(address, port)),
    }
}

fn unix(path: &str) -> Option<PathBuf> {
    // The kernel's bound on the name of a socket, its closing zero included.
    const MOST: usize = 108;
    (path.starts_with('/') && path.len() < MOST).then(|| PathBuf::from(path))
}

/// Host, without the brackets of IPv6, and port.
fn split(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, behind) = rest.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        return match behind.strip_prefix(':') {
            Some(port) => Some((host, Some(port))),
            None => behind.is_empty().then_some((host, None)),
        };
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => Some((host, Some(port))),
        Some(_) => None,
        None => Some((text, None)),
    }
}

fn port(text: &str) -> Result<u16, ParseError> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
        .ok_or_else(|| {
            ParseError::new(format!("`{text}` is not a port")).help("expected a number up to 65535")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_takes_the_forms_of_nginx() {
        let tcp = |text: &str| match listen(text, Ipv4Addr::UNSPECIFIED) {
            Ok(SocketAddress::Tcp(address)) => address.to_string(),
            other => format!("{other:?}"),
        };
        assert_eq!(tcp("8080"), "0.0.0.0:8080");
        assert_eq!(tcp("*:8080"), "0.0.0.0:8080");
        assert_eq!(tcp("127.0.0.1:8080"), "127.0.0.1:8080");
        assert_eq!(tcp("127.0.0.1"), "127.0.0.1:80");
        assert_eq!(tcp("[::1]:8080"), "[::1]:8080");
        assert_eq!(tcp("localhost:1"), "127.0.0.1:1");
        assert_eq!(
            listen("unix:/run/weir.sock", Ipv4Addr::UNSPECIFIED),
            Ok(SocketAddress::Unix("/run/weir.sock".into()))
        );
        for wrong in [
            "",
            "x",
            "99999",
            "127.0.0.1:x",
            "::1:80",
            "[::1",
            "unix:run",
            "a.b:1:2",
            "127.0.0.1:",
        ] {
            assert!(listen(wrong, Ipv4Addr::UNSPECIFIED).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_dns_server_is_an_address() {
        let address = |text: &str| name_server(text).map(|address| address.to_string());
        assert_eq!(address("10.0.0.2").as_deref(), Ok("10.0.0.2:53"));
        assert_eq!(address("10.0.0.2:5353").as_deref(), Ok("10.0.0.2:5353"));
        assert_eq!(address("[::1]").as_deref(), Ok("[::1]:53"));
        for wrong in ["", "dns", "dns:53", "::1", "10.0.0.2:0", "10.0.0.2:x"] {
            assert!(name_server(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn connecting_takes_names_and_addresses() {
        let tcp = |text: &str| match host_port(text, HTTP) {
            Ok(UpstreamAddress::Tcp { host, port }) => format!("{host} {port}"),
            other => format!("{other:?}"),
        };
        assert_eq!(tcp("127.0.0.1:9001"), "127.0.0.1 9001");
        assert_eq!(tcp("App.internal"), "app.internal 80");
        assert_eq!(tcp("[::1]:9001"), "::1 9001");
        assert_eq!(
            host_port("unix:/a", HTTP),
            Ok(UpstreamAddress::Unix("/a".into()))
        );
        for wrong in ["", "a b", "http://x", "x:0", "x:", ":80", "x/y", "::1"] {
            assert!(host_port(wrong, HTTP).is_err(), "{wrong}");
        }
    }
}
