//! Who the client is, and how many of them there may be.
//!
//! `real_ip`, the caps on connections, and what follows for the headers that are sent on.
//!
//! `allow` and `deny` become one list in the order it is searched.

use std::num::NonZeroU32;

use http::{HeaderName, header};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::location::{AccessRules, ClientMatch, SetHeader, SettingLevels};
use crate::config::compile::Compiler;
use crate::config::decode::value::{List, Text};
use crate::config::decode::{Field, Spanned};
use crate::config::plan::Listener;
use crate::config::template::{Template, Variable};

pub(crate) mod raw {
    //! Who the client is, and what is put up with from it.
    //! `allow` and `deny`: whom a line of theirs is about.
    use std::borrow::Cow;

    use ipnet::IpNet;
    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::ProxyProtocolVersion;
    use crate::config::decode::record::record;
    use crate::config::decode::value::{Flag, List, Text, choice, number, scalar_from};
    use crate::config::decode::{Decode, DecodeContext, Field, units};
    use crate::config::report::Diagnostic;
    use crate::config::source::Node;

    record! {
        /// Whose word is taken for the client's address, as in nginx's realip module.
        pub struct RealIp {
            /// Addresses and networks of proxies that may say who the client is; `unix:` for those on a unix socket.
            from: Field<List<AccessWord>>,
            /// Where they say it: X-Forwarded-For, Forwarded, X-Real-IP, CF-Connecting-IP or any other header, or proxy_protocol. Default: X-Real-IP.
            header: Field<Text>,
            /// Whether a trusted address in the header is passed over for the one to its left. Default: false.
            recursive: Field<Flag>,
        }
    }

    number! {
        /// How many connections.
        pub struct ConnectionCount(u32) = "a number of connections", 1..=100_000_000
    }

    choice! {
        /// Whether upstreams are told the client's address by a PROXY header, and in which version.
        pub struct ProxyProtocol(ProxyProtocolVersion) = "a version of the PROXY protocol" {
            "off" => ProxyProtocolVersion::Off,
            "on" => ProxyProtocolVersion::V1,
            "v1" => ProxyProtocolVersion::V1,
            "v2" => ProxyProtocolVersion::V2,
            "false" => ProxyProtocolVersion::Off,
            "true" => ProxyProtocolVersion::V1,
        }
    }

    /// Some clients.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum AccessWord {
        /// Everybody.
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
            let (network, loose) = scalar_from(node, context, what, |text| {
                units::network(text).map_err(|mistake| {
                    mistake
                        .help("expected an address, a network as in `10.0.0.0/8`, `all` or `unix:`")
                })
            })?;
            if let Some(loose) = loose {
                let sentence = format!("low address bits of {} are meaningless", node.describe());
                context.complain(
                    Diagnostic::new(node.span, sentence)
                        .help(format!("it is read as `{}`", loose.meant))
                        .warning(),
                );
            }
            Some(Self::Network(network))
        }
    }

    impl JsonSchema for AccessWord {
        fn schema_name() -> Cow<'static, str> {
            "Access".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({ "description": "An address, a network, `all` or `unix:`.", "type": "string" })
        }
    }
}

/// `real_ip`: whose word is taken for the client's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RealIp {
    /// `from`: those who may say it.
    pub from: Vec<ClientMatch>,
    /// `header`: where they say it.
    pub header: RealIpHeader,
    /// `recursive`: whether those who may say it are passed over when they are named themselves.
    pub recursive: bool,
}

/// Where a proxy says who the client is.
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

/// Whether upstreams are sent a PROXY header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProxyProtocolVersion {
    /// They are not.
    #[default]
    Off,
    /// The one of version 1, a line of text.
    V1,
    /// The one of version 2, in binary.
    V2,
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

impl Compiler<'_> {
    /// `max_connections`, `max_connections_per_address`
    pub(in crate::config) fn caps(&self) -> ConnectionLimits {
        let number = |given: &Field<raw::ConnectionCount>| {
            given.value().and_then(|given| NonZeroU32::new(given.0))
        };
        ConnectionLimits {
            all: number(&self.config.max_connections),
            per_address: number(&self.config.max_connections_per_address),
        }
    }

    /// `real_ip`, each of its keys from the innermost level that gives it; `None` where nobody is believed.
    pub(in crate::config) fn real_ip(&mut self, levels: SettingLevels<'_>) -> Option<RealIp> {
        let from = given(levels, |real_ip| &real_ip.from)?;
        let mut networks = Vec::new();
        for whom in &from.value.0 {
            match whom.value {
                raw::AccessWord::Network(network) => networks.push(ClientMatch::Ip(network)),
                raw::AccessWord::Unix => networks.push(ClientMatch::Unix),
                raw::AccessWord::All => self.complain_with(
                    whom.span,
                    "`all` would let every client say who it is",
                    "name the proxies that stand before weir; if really everybody is one, `0.0.0.0/0` and `::/0`",
                ),
            }
        }
        let header = given(levels, |real_ip| &real_ip.header);
        Some(RealIp {
            from: networks,
            header: header_of(header),
            recursive: given(levels, |real_ip| &real_ip.recursive).is_some_and(|flag| flag.value.0),
        })
        .filter(|real_ip| !real_ip.from.is_empty())
    }

    /// Complains about headers that are none, and warns of a `real_ip` that has no effect.
    pub(in crate::config) fn check_real_ip(&mut self, levels: SettingLevels<'_>) {
        for real_ip in levels.iter().filter_map(|level| level.real_ip.value()) {
            if let Some(header) = real_ip.header.get()
                && HeaderName::try_from(&header.value.text).is_err()
            {
                let sentence = format!("`{}` is not the name of a header", header.value.text);
                self.complain_with(
                    header.span,
                    sentence,
                    "expected for example `X-Forwarded-For`, or `proxy_protocol`",
                );
            }
        }
        let innermost = levels.iter().find_map(|level| level.real_ip.get());
        if let Some(own) = innermost
            && given(levels, |real_ip| &real_ip.from).is_none()
        {
            self.warn(
                own.span,
                "`real_ip` without `from` believes nobody",
                "name the proxies that stand before weir, as in `from: 10.0.0.0/8`",
            );
        }
    }

    /// Warns of a `real_ip` that waits for PROXY headers where no listener reads any.
    pub(in crate::config) fn warn_of_no_proxy_header(&mut self, listeners: &[Listener]) {
        if listeners.iter().any(|listener| listener.proxy_protocol) {
            return;
        }
        let config = self.config;
        let servers = config.servers.value().map_or(&[][..], |list| &list.0);
        let levels = servers.iter().map(|server| &server.value.settings);
        for level in levels.chain([&config.settings]) {
            let header = level.real_ip.value().and_then(|it| it.header.get());
            if let Some(header) = header.filter(|it| it.value.text == "proxy_protocol") {
                self.warn(
                    header.span,
                    "no listener expects a PROXY header",
                    "say so where it does: `listen: { address: …, proxy_protocol: true }`",
                );
            }
        }
    }
}

/// What is sent on about the client's address unless the user says otherwise. A field that could say so is taken from
/// a proxy that is believed, and from nobody else: a backend would take a client's own word for ours.
pub(in crate::config) fn headers(levels: SettingLevels<'_>) -> Vec<SetHeader> {
    let believed = given(levels, |real_ip| &real_ip.from)
        .filter(|from| !from.value.0.is_empty())
        .map(|_| header_of(given(levels, |real_ip| &real_ip.header)));
    let mut headers = vec![set(
        X_FORWARDED_FOR,
        match believed {
            Some(RealIpHeader::XForwardedFor) => Template::variable(Variable::ForwardedFor),
            _ => Template::variable(Variable::RemoteAddr),
        },
    )];
    let named = match believed {
        Some(RealIpHeader::Forwarded) => Some(header::FORWARDED),
        Some(RealIpHeader::Other(name)) => Some(name),
        Some(RealIpHeader::ProxyProtocol | RealIpHeader::XForwardedFor) | None => None,
    };
    for name in [X_REAL_IP, header::FORWARDED] {
        if named.as_ref() != Some(&name) {
            headers.push(set(name, Template::default()));
        }
    }
    if let Some(name) = named {
        headers.push(set(
            name.clone(),
            Template::variable(Variable::Trusted(name)),
        ));
    }
    headers
}

fn set(name: HeaderName, value: Template) -> SetHeader {
    SetHeader { name, value }
}

fn given<'a, T: 'a>(
    levels: SettingLevels<'a>,
    pick: impl Fn(&'a raw::RealIp) -> &'a Field<T>,
) -> Option<&'a Spanned<T>> {
    levels
        .iter()
        .filter_map(|level| level.real_ip.value())
        .find_map(|real_ip| pick(real_ip).get())
}

fn header_of(given: Option<&Spanned<Text>>) -> RealIpHeader {
    let name = given.map_or("x-real-ip", |given| given.value.text.as_str());
    if name == "proxy_protocol" {
        return RealIpHeader::ProxyProtocol;
    }
    match HeaderName::try_from(name) {
        Ok(name) if name == X_FORWARDED_FOR => RealIpHeader::XForwardedFor,
        Ok(name) if name == header::FORWARDED => RealIpHeader::Forwarded,
        Ok(name) => RealIpHeader::Other(name),
        Err(_) => RealIpHeader::Other(X_REAL_IP),
    }
}

/// Who may come in. Both lists come from the innermost level that gives either, as in nginx.
pub(in crate::config) fn compile(levels: SettingLevels<'_>) -> AccessRules {
    let Some(level) = levels.iter().find(|settings| {
        settings.client.allow.get().is_some() || settings.client.deny.get().is_some()
    }) else {
        return AccessRules::default();
    };
    let mut networks = Vec::new();
    for (list, permits) in [(&level.client.deny, false), (&level.client.allow, true)] {
        let other = if permits {
            &level.client.deny
        } else {
            &level.client.allow
        };
        for whom in whom(list) {
            match whom {
                raw::AccessWord::Network(network) => {
                    networks.push((ClientMatch::Ip(network), permits))
                }
                raw::AccessWord::Unix => networks.push((ClientMatch::Unix, permits)),
                raw::AccessWord::All => {
                    networks.push((ClientMatch::Ip(IpNet::V4(Ipv4Net::default())), permits));
                    networks.push((ClientMatch::Ip(IpNet::V6(Ipv6Net::default())), permits));
                    // Being named is narrower than being one of all.
                    if !whom_is(other, raw::AccessWord::Unix) {
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
    AccessRules {
        networks,
        refuse_others: level.client.allow.get().is_some(),
    }
}

fn whom(list: &Field<List<raw::AccessWord>>) -> impl Iterator<Item = raw::AccessWord> {
    list.value()
        .map_or(&[][..], |list| &list.0)
        .iter()
        .map(|whom| whom.value)
}

fn whom_is(list: &Field<List<raw::AccessWord>>, wanted: raw::AccessWord) -> bool {
    whom(list).any(|whom| whom == wanted)
}
