//! The client's address: `real_ip`, `allow` and `deny`, bounds of connections, and the PROXY protocol towards upstreams.

use std::net::IpAddr;
use std::num::NonZeroU32;

use http::{HeaderName, header};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::config::decode::Field;
use crate::config::decode::value::{List, choice};
use crate::config::report::Report;
use crate::config::source::Span;

pub(crate) mod raw {
    //! The client's address, as the user writes it.
    use ipnet::IpNet;
    use schemars::json_schema;

    use crate::config::decode::record::record;
    use crate::config::decode::value::{Flag, List, Text, number, scalar_from, schema};
    use crate::config::decode::{Decode, DecodeContext, Field, units};
    use crate::config::report::Diagnostic;
    use crate::config::source::Node;

    record! {
        /// Which proxies are trusted to name the client's address, as in nginx's realip module.
        pub(crate) struct RealIp {
            /// Addresses and networks of trusted proxies; `unix:` for those on a unix socket.
            from: Field<List<AccessWord>>,
            /// Where they name it: X-Forwarded-For, Forwarded, X-Real-IP, CF-Connecting-IP or any other header, or proxy_protocol.
            header: Field<Text> = "X-Real-IP" => Box<str>,
            /// Whether trusted addresses in the header are skipped for the next one to their left.
            recursive: Field<Flag> = "false" => bool,
        }
    }

    number! {
        /// How many connections.
        pub(crate) struct ConnectionCount(u32) = "a number of connections", 1..=100_000_000
    }

    /// Some clients.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum AccessWord {
        /// All clients.
        All,
        /// Those with an address in this network.
        Network(IpNet),
        /// Those on a unix socket.
        Unix,
    }

    impl Decode for AccessWord {
        fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
            match node.text() {
                Some("all") => return Some(Self::All),
                Some("unix:") => return Some(Self::Unix),
                _ => {}
            }
            let what = "an address, a network, `all` or `unix:`";
            let (network, host_bits) = scalar_from(node, context, what, |text| {
                let hint = "expected an address, a network as in `10.0.0.0/8`, `all` or `unix:`";
                units::network(text).map_err(|error| error.help(hint))
            })?;
            if host_bits {
                let sentence = format!("low address bits of {} are meaningless", node.describe());
                let diagnostic = Diagnostic::new(node.span, sentence);
                let hint = format!("it is read as `{network}`");
                context.report(diagnostic.help(hint).warning());
            }
            Some(Self::Network(network))
        }
    }

    schema! {
        AccessWord = "Access", |_generator| {
            json_schema!({ "description": "An address, a network, `all` or `unix:`.", "type": "string" })
        };
    }
}

/// `real_ip`: which proxies are trusted to name the client's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RealIp {
    /// `from`: the trusted proxies.
    pub from: Vec<ClientMatch>,
    /// `header`: where they name it.
    pub header: RealIpHeader,
    /// `recursive`: whether trusted addresses in the header are skipped.
    pub recursive: bool,
}

/// Where a proxy names the client's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RealIpHeader {
    /// `Forwarded` of RFC 7239.
    Forwarded,
    /// A field with nothing but addresses, of which the first line counts.
    Other(HeaderName),
    /// What the connection began with.
    ProxyProtocol,
    /// `X-Forwarded-For`, all lines of it one list.
    XForwardedFor,
}

/// How many client connections may be open at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// `max_connections`
    pub all: Option<NonZeroU32>,
    /// `max_connections_per_address`
    pub per_address: Option<NonZeroU32>,
}

/// `allow` and `deny`.
#[derive(Debug, Clone, Default)]
pub struct AccessRules {
    /// Both lists together, longest prefix first, refusal before permission where they are equal.
    pub networks: Vec<(ClientMatch, bool)>,
    /// Whether all others are refused: where `allow` is given.
    pub refuse_others: bool,
}

/// Clients by address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientMatch {
    /// Those with an address in this network.
    Ip(IpNet),
    /// Those on a unix socket.
    Unix,
}

impl ClientMatch {
    /// Whether a client with this address is one of them; `None` is on a unix socket.
    #[must_use]
    pub fn contains(&self, address: Option<IpAddr>) -> bool {
        match (self, address) {
            (Self::Ip(network), Some(address)) => network.contains(&address),
            (Self::Unix, None) => true,
            (Self::Ip(_), None) | (Self::Unix, Some(_)) => false,
        }
    }
}

choice! {
    /// Whether a PROXY header is sent to upstreams.
    #[derive(Default)]
    pub enum ProxyProtocolVersion as "ProxyProtocol" = "a version of the PROXY protocol" {
        /// None.
        #[default]
        Off = "off",
        /// Version 1, a line of text.
        V1 = "on" | "v1",
        /// Version 2, in binary.
        V2 = "v2",
    }
    also { "false" => Off, "true" => V1, }
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

impl ConnectionLimits {
    /// `max_connections`, `max_connections_per_address`
    pub(crate) fn compile(
        all: &Field<raw::ConnectionCount>,
        per_address: &Field<raw::ConnectionCount>,
    ) -> Self {
        let number = |given: &Field<raw::ConnectionCount>| NonZeroU32::new(given.value()?.0);
        Self {
            all: number(all),
            per_address: number(per_address),
        }
    }
}

impl RealIp {
    /// `real_ip`; `None` where no proxy is trusted.
    pub(crate) fn compile(given: &raw::RealIp, report: &mut Report) -> Option<Self> {
        let mut from = Vec::new();
        for proxy in given.from.items() {
            match proxy.value {
                raw::AccessWord::Network(network) => from.push(ClientMatch::Ip(network)),
                raw::AccessWord::Unix => from.push(ClientMatch::Unix),
                raw::AccessWord::All => report.error_with(
                    proxy.span,
                    "`all` would let every client choose its address",
                    "name the proxies in front of weir; to trust every address write `0.0.0.0/0` and `::/0`",
                ),
            }
        }
        (!from.is_empty()).then(|| Self {
            from,
            header: RealIpHeader::of(given),
            recursive: given.recursive(),
        })
    }
}

impl RealIpHeader {
    pub(crate) fn of(given: &raw::RealIp) -> Self {
        match &*given.header() {
            "proxy_protocol" => Self::ProxyProtocol,
            name => match HeaderName::try_from(name).unwrap_or(X_REAL_IP) {
                name if name == X_FORWARDED_FOR => Self::XForwardedFor,
                name if name == header::FORWARDED => Self::Forwarded,
                name => Self::Other(name),
            },
        }
    }
}

/// Reports headers of `real_ip` that are none, and warns of a `real_ip` that has no effect: `levels` are the ones given, the
/// innermost first, `given` what holds.
pub(crate) fn check_real_ip(
    levels: &[(&raw::RealIp, Span)],
    given: &raw::RealIp,
    report: &mut Report,
) {
    for (level, _) in levels {
        if let Some(header) = level.header.get()
            && HeaderName::try_from(&header.value.text).is_err()
        {
            let sentence = format!("`{}` is not the name of a header", header.value.text);
            let hint = "expected for example `X-Forwarded-For`, or `proxy_protocol`";
            report.error_with(header.span, sentence, hint);
        }
    }
    if let Some((_, span)) = levels.first().filter(|_| given.from.get().is_none()) {
        report.warn(
            *span,
            "`real_ip` without `from` trusts no proxy",
            "name the proxies in front of weir, as in `from: 10.0.0.0/8`",
        );
    }
}

impl AccessRules {
    /// `allow` and `deny` of one level.
    pub(crate) fn compile(
        allow: &Field<List<raw::AccessWord>>,
        deny: &Field<List<raw::AccessWord>>,
    ) -> Self {
        let mut networks = Vec::new();
        for (list, other, permits) in [(deny, allow, false), (allow, deny, true)] {
            for word in list.items() {
                match word.value {
                    raw::AccessWord::Network(network) => {
                        networks.push((ClientMatch::Ip(network), permits));
                    }
                    raw::AccessWord::Unix => networks.push((ClientMatch::Unix, permits)),
                    raw::AccessWord::All => {
                        networks.push((ClientMatch::Ip(IpNet::V4(Ipv4Net::default())), permits));
                        networks.push((ClientMatch::Ip(IpNet::V6(Ipv6Net::default())), permits));
                        // `unix:` is more specific than `all`.
                        let mut others = other.items().iter();
                        if !others.any(|other| other.value == raw::AccessWord::Unix) {
                            networks.push((ClientMatch::Unix, permits));
                        }
                    }
                }
            }
        }
        // Stable, and refusals were put in first: they stay first among equals.
        networks.sort_by_key(|(network, _)| match network {
            ClientMatch::Ip(net) => net.max_prefix_len() - net.prefix_len(),
            ClientMatch::Unix => 0,
        });
        networks.dedup();
        Self {
            networks,
            refuse_others: allow.get().is_some(),
        }
    }
}
