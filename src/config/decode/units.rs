//! nginx's units and other values with a syntax of their own: text in, value or error out. Pure functions without positions.
//!
//! Addresses (`8080`, `127.0.0.1:8080`, `[::1]:8080`, `unix:/run/weir.sock`), networks (`10.0.0.0/8`), percentages, rates
//! (`10r/s`), sizes (`32k`, `10m`) and times (`60s`, `1h30m`).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use crate::algorithm::Rate;
use crate::config::report::ParseError;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SocketAddress {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl fmt::Display for SocketAddress {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(text),
            Self::Unix(path) => write!(text, "unix:{}", path.display()),
        }
    }
}

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum UpstreamAddress {
    /// A name or an address, and a port; a name with several addresses is several servers.
    Tcp {
        /// Name or address, an IPv6 one without brackets.
        host: Box<str>,
        /// Port.
        port: u16,
    },
    /// A unix socket.
    Unix(PathBuf),
}

/// A part of a whole, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallShare(pub u32);

impl CallShare {
    /// Whether `part` is at least this share of `whole`.
    #[must_use]
    pub fn is_reached(self, part: u32, whole: u32) -> bool {
        u64::from(part) * 1000 >= u64::from(whole) * u64::from(self.0)
    }
}

/// A whole number within bounds.
pub(crate) fn whole(text: &str, what: &str, least: u64, most: u64) -> Result<u64, ParseError> {
    let number: u64 = if text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().ok()
    } else {
        None
    }
    .ok_or_else(|| {
        ParseError::new(format!("`{text}` is not {what}")).help("expected a whole number")
    })?;
    if number < least {
        Err(ParseError::new(format!("`{text}` is too small for {what}"))
            .help(format!("must be at least {least}")))
    } else if number > most {
        Err(ParseError::new(format!("`{text}` is too large for {what}"))
            .help(format!("must be at most {most}")))
    } else {
        Ok(number)
    }
}

/// `on` or `off`, and the other words people write for it.
pub(crate) fn flag(text: &str) -> Result<bool, ParseError> {
    match text {
        "on" | "true" | "yes" => Ok(true),
        "off" | "false" | "no" => Ok(false),
        _ => Err(
            ParseError::new(format!("`{text}` is neither `on` nor `off`"))
                .help("expected `true` or `false` (`on` and `off`, `yes` and `no` mean the same)"),
        ),
    }
}

/// nginx's port where none is given.
pub(crate) const HTTP: u16 = 80;

/// And behind `https://`.
pub(crate) const HTTPS: u16 = 443;

/// Where DNS servers listen.
const DNS: u16 = 53;

/// Where to listen. A port alone is one on `any`.
pub(crate) fn listen(text: &str, any: Ipv4Addr) -> Result<SocketAddress, ParseError> {
    let wrong = || {
        ParseError::new(format!("`{text}` is not an address to listen on")).help(
            "expected `8080`, `127.0.0.1:8080`, `*:8080`, `[::1]:8080` or `unix:/run/weir.sock`",
        )
    };
    if let Some(path) = text.strip_prefix("unix:") {
        return unix(path).map(SocketAddress::Unix).ok_or_else(wrong);
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let port = parse_port(text)?;
        return Ok(SocketAddress::Tcp(SocketAddr::from((any, port))));
    }
    let (host, port) = split_port(text).ok_or_else(wrong)?;
    let port = port.map_or(Ok(HTTP), parse_port)?;
    let address = match host {
        "*" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        host => host.parse().map_err(|_| wrong())?,
    };
    Ok(SocketAddress::Tcp(SocketAddr::new(address, port)))
}

/// Where to connect: name or address, and a port, `usual` where none is given; or a unix socket.
pub(crate) fn host_port(text: &str, usual: u16) -> Result<UpstreamAddress, ParseError> {
    let wrong = || {
        ParseError::new(format!("`{text}` is not the address of a server"))
            .help("expected `host:port`, `127.0.0.1:9001`, `[::1]:9001` or `unix:/run/app.sock`")
    };
    if let Some(path) = text.strip_prefix("unix:") {
        return unix(path).map(UpstreamAddress::Unix).ok_or_else(wrong);
    }
    let (host, port) = split_port(text).ok_or_else(wrong)?;
    let port = port.map_or(Ok(usual), parse_port)?;
    if port == 0 {
        return Err(ParseError::new(format!(
            "`{text}`: port 0 cannot be connected to"
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
pub(crate) fn name_server(text: &str) -> Result<SocketAddr, ParseError> {
    let wrong = || {
        ParseError::new(format!("`{text}` is not the address of a DNS server"))
            .help("expected `10.0.0.2`, `10.0.0.2:53` or `[::1]:53`")
    };
    let (host, port) = split_port(text).ok_or_else(wrong)?;
    let port = port.map_or(Ok(DNS), parse_port)?;
    let address = host.parse().map_err(|_| wrong())?;
    match port {
        0 => Err(wrong()),
        port => Ok(SocketAddr::new(address, port)),
    }
}

fn unix(path: &str) -> Option<PathBuf> {
    // The kernel's bound on the name of a socket, its closing zero included.
    const SUN_PATH: usize = 108;
    (path.starts_with('/') && path.len() < SUN_PATH).then(|| PathBuf::from(path))
}

/// Host, without the brackets of IPv6, and port.
fn split_port(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, behind) = rest.split_once(']')?;
        host.parse::<Ipv6Addr>().ok()?;
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

fn parse_port(text: &str) -> Result<u16, ParseError> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
        .ok_or_else(|| {
            ParseError::new(format!("`{text}` is not a port")).help("expected a number up to 65535")
        })
}

/// A network, or a single address as a network of one; and whether bits are set that its length masks.
pub(crate) fn network(text: &str) -> Result<(IpNet, bool), ParseError> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok((canonical(IpNet::from(address)), false));
    }
    let network: IpNet = text.parse().map_err(|_| {
        ParseError::new(format!("`{text}` is neither an address nor a network"))
            .help("expected an address as in `192.0.2.7`, or a network as in `10.0.0.0/8`")
    })?;
    let masked = network.trunc();
    Ok((canonical(masked), masked != network))
}

/// IPv4 addresses written in their IPv6 form are IPv4.
fn canonical(net: IpNet) -> IpNet {
    let IpNet::V6(v6) = net else { return net };
    let mapped: Option<Ipv4Addr> = Ipv6Addr::to_ipv4_mapped(&v6.addr());
    mapped
        .zip(v6.prefix_len().checked_sub(96))
        .and_then(|(v4, length)| ipnet::Ipv4Net::new(v4, length).ok())
        .map_or(net, IpNet::V4)
}

/// `50%`, `12.5%`: at most one decimal, at most the whole.
pub(crate) fn percent(text: &str) -> Result<CallShare, ParseError> {
    let wrong = || {
        ParseError::new(format!("`{text}` is not a percentage"))
            .help("expected for example `50%` or `12.5%`")
    };
    let number = text.strip_suffix('%').ok_or_else(wrong)?.trim_end();
    let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str, most: usize| {
        let sound = (1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        sound.then(|| text.parse::<u32>().ok()).flatten()
    };
    let thousandths =
        digits(whole, 3).ok_or_else(wrong)? * 10 + digits(tenth, 1).ok_or_else(wrong)?;
    if thousandths > 1000 {
        return Err(ParseError::new(format!("`{text}` is more than the whole"))
            .help("must be at most 100%"));
    }
    Ok(CallShare(thousandths))
}

/// A rate. Without a period it is a second's.
pub(crate) fn rate(text: &str) -> Result<Rate, ParseError> {
    let wrong = || {
        ParseError::new(format!("`{text}` is not a rate"))
            .help("expected a number with r/s, r/m, r/h or r/d behind it, as in `10r/s`")
    };
    type Make = fn(u64) -> Rate;
    let periods: [(&str, Make, u64); 4] = [
        ("r/s", Rate::per_second, 1),
        ("r/m", Rate::per_minute, 60),
        ("r/h", Rate::per_hour, 3600),
        ("r/d", Rate::per_day, 86_400),
    ];
    let (number, make, seconds) = periods
        .into_iter()
        .find_map(|(suffix, make, seconds)| Some((text.strip_suffix(suffix)?, make, seconds)))
        .unwrap_or((text, Rate::per_second, 1));
    let thousandths = thousandths(number).ok_or_else(wrong)?;
    if number
        .split_once('.')
        .is_some_and(|(_, decimals)| decimals.len() > 3)
    {
        return Err(
            ParseError::new(format!("`{text}` has more than three decimals"))
                .help("a slower rate is exact with a longer period: r/m, r/h, r/d"),
        );
    }
    if thousandths == Some(0) {
        return Err(ParseError::new("a rate of 0 would refuse every request")
            .help("to refuse clients use `deny`, or `return` with a status"));
    }
    thousandths
        .filter(|milli| *milli <= Rate::MAX_PER_SECOND * 1000 * seconds)
        .map(make)
        .ok_or_else(|| {
            ParseError::new(format!("`{text}` is too fast a rate"))
                .help(format!("must be at most {}r/s", Rate::MAX_PER_SECOND))
        })
}

/// A decimal in thousandths, what is finer cut off; `Some(None)` when it is one but too large.
pub(crate) fn thousandths(number: &str) -> Option<Option<u64>> {
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) {
        return None;
    }
    let padded: String = decimals.chars().chain("000".chars()).take(3).collect();
    let whole = whole
        .parse::<u64>()
        .ok()
        .and_then(|whole| whole.checked_mul(1000));
    Some(
        whole
            .zip(padded.parse().ok())
            .and_then(|(whole, part): (u64, u64)| whole.checked_add(part)),
    )
}

/// A size in bytes.
pub(crate) fn size(text: &str) -> Result<u64, ParseError> {
    let wrong = || {
        ParseError::new(format!("`{text}` is not a size"))
            .help("expected a whole number of bytes, or with `k`, `m` or `g` behind it")
    };
    let units = [(['k', 'K'], 10), (['m', 'M'], 20), (['g', 'G'], 30)];
    let (digits, shift) = units
        .into_iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)))
        .unwrap_or((text, 0));
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .filter(|bytes| *bytes <= i64::MAX.unsigned_abs())
        .ok_or_else(|| ParseError::new(format!("`{text}` is too large a size")))
}

/// Largest first, the order in which they have to be written.
const UNITS: [(&str, u64); 8] = [
    ("y", 365 * 86_400_000),
    ("M", 30 * 86_400_000),
    ("w", 7 * 86_400_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

/// Longest time accepted: 100 years, far below where timers overflow.
const MAX_MILLIS: u64 = 100 * 365 * 86_400_000;

/// A time. A number without a unit is seconds.
pub(crate) fn time(text: &str) -> Result<Duration, ParseError> {
    let wrong = || {
        let error = ParseError::new(format!("`{text}` is not a time"));
        if text.contains('.') {
            error.help("only whole numbers: write `1500ms` for a second and a half")
        } else {
            error.help("expected a number with a unit: ms, s, m, h, d, w, M (month), y; or several as in `1h30m`")
        }
    };
    let mut total: u64 = 0;
    let mut next_unit = 0;
    let mut rest = text;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let (digits, behind) = split_unit(rest, |c| c.is_ascii_digit());
        let (unit, behind) = split_unit(behind, |c| c.is_ascii_alphabetic());
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        let unit = if unit.is_empty() { "s" } else { unit };
        // Each unit once and the larger before the smaller, or `5m5h` would pass for something.
        let place = UNITS
            .iter()
            .position(|(name, _)| *name == unit)
            .filter(|place| *place >= next_unit)
            .ok_or_else(wrong)?;
        let (_, millis) = UNITS.get(place).copied().unwrap_or(("s", 1000));
        next_unit = place + 1;
        total = number
            .checked_mul(millis)
            .and_then(|part| total.checked_add(part))
            .filter(|total| *total <= MAX_MILLIS)
            .ok_or_else(|| {
                ParseError::new(format!("`{text}` is too long a time")).help("must be at most 100y")
            })?;
        rest = behind.trim_start_matches(' ');
    }
    Ok(Duration::from_millis(total))
}

/// The longest beginning of `text` that `belongs`, and the rest.
fn split_unit(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !belongs(c)).unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn whole_numbers_know_their_bounds() {
        assert_eq!(whole("7", "a weight", 1, 10), Ok(7));
        for wrong in [
            "0",
            "11",
            "-1",
            "+1",
            "1.5",
            "x",
            "",
            "99999999999999999999999",
        ] {
            assert!(whole(wrong, "a weight", 1, 10).is_err(), "{wrong}");
        }
    }

    #[test]
    fn flags_are_the_words_of_nginx_and_of_yaml() {
        assert_eq!(flag("on"), Ok(true));
        assert_eq!(flag("false"), Ok(false));
        assert!(flag("1").is_err());
    }
}

#[cfg(test)]
mod address_tests {

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

#[cfg(test)]
mod network_tests {

    use super::*;

    #[test]
    fn addresses_are_networks_of_one() {
        let of = |text| network(text).map(|(net, _)| net.to_string()).ok();
        assert_eq!(of("192.0.2.7").as_deref(), Some("192.0.2.7/32"));
        assert_eq!(of("::1").as_deref(), Some("::1/128"));
        assert_eq!(of("10.0.0.0/8").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(of("::ffff:10.0.0.0/104").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(of("10.0.0.0/33"), None);
        assert_eq!(of("localhost"), None);
    }

    #[test]
    fn low_bits_are_noticed() {
        let (net, host_bits) = network("10.1.2.3/8").unwrap();
        assert_eq!(net.to_string(), "10.0.0.0/8");
        assert!(host_bits);
    }
}

#[cfg(test)]
mod percent_tests {

    use super::*;

    #[test]
    fn percentages_have_at_most_one_decimal() {
        assert_eq!(percent("50%"), Ok(CallShare(500)));
        assert_eq!(percent("12.5%"), Ok(CallShare(125)));
        assert_eq!(percent("100 %"), Ok(CallShare(1000)));
        assert_eq!(percent("0%"), Ok(CallShare(0)));
        for wrong in [
            "50", "%", "1.25%", "-1%", "100.1%", "1000%", ".5%", "5.%", "x%",
        ] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
    }
}

#[cfg(test)]
mod rate_tests {

    use super::*;

    #[test]
    fn rates_are_exact() {
        assert_eq!(rate("10r/s"), Ok(Rate::per_second(10_000)));
        assert_eq!(rate("10"), Ok(Rate::per_second(10_000)));
        assert_eq!(rate("30r/m"), Ok(Rate::per_minute(30_000)));
        assert_eq!(rate("0.5r/h"), Ok(Rate::per_hour(500)));
        assert_eq!(rate("1.125r/d"), Ok(Rate::per_day(1125)));
    }

    #[test]
    fn what_is_not_a_rate_is_refused() {
        for wrong in [
            "",
            "r/s",
            "0r/s",
            "0.0",
            "-1r/s",
            "1r/w",
            "10 r/s",
            "1.r/s",
            ".5r/s",
            "0.0001r/s",
            "1000000001r/s",
            "99999999999999999999r/d",
            "10rps",
        ] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}

#[cfg(test)]
mod size_tests {

    use super::*;

    #[test]
    fn sizes_are_read_as_nginx_reads_them() {
        assert_eq!(size("512"), Ok(512));
        assert_eq!(size("32k"), Ok(32_768));
        assert_eq!(size("10M"), Ok(10 << 20));
        assert_eq!(size("2g"), Ok(2 << 30));
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for wrong in ["", "k", "10mb", "1.5m", "-1", "10 m", "99999999999g"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}

#[cfg(test)]
mod time_tests {

    use super::*;

    #[test]
    fn times_are_read_as_nginx_reads_them() {
        let millis = |text| time(text).map(|time| time.as_millis()).ok();
        assert_eq!(millis("60s"), Some(60_000));
        assert_eq!(millis("60"), Some(60_000));
        assert_eq!(millis("1h30m"), Some(5_400_000));
        assert_eq!(millis("1h 30m"), Some(5_400_000));
        assert_eq!(millis("1m500ms"), Some(60_500));
        assert_eq!(millis("1M"), Some(2_592_000_000));
        assert_eq!(millis("1y"), Some(31_536_000_000));
        assert_eq!(millis("0"), Some(0));
    }

    #[test]
    fn what_is_not_a_time_is_refused() {
        for wrong in [
            "",
            "s",
            "1.5s",
            "-1s",
            "5m5h",
            "1s1s",
            "1x",
            "10 apples",
            "101y",
            "99999999999999999999s",
        ] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
