//! `real_ip`, the caps on connections, and what follows for the headers that are sent on.

use std::num::NonZeroU32;

use http::{HeaderName, header};

use super::Compiler;
use super::sites::SettingLevels;
use crate::config::decode::{Field, Spanned, Text};
use crate::config::model;
use crate::config::plan::{
    ClientMatch, ConnectionLimits, Listener, RealIp, RealIpHeader, SetHeader, Template, Variable,
};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

impl Compiler<'_> {
    /// `max_connections`, `max_connections_per_address`
    pub(super) fn caps(&self) -> ConnectionLimits {
        let number = |given: &Field<model::ConnectionCount>| {
            given.value().and_then(|given| NonZeroU32::new(given.0))
        };
        ConnectionLimits {
            all: number(&self.config.max_connections),
            per_address: number(&self.config.max_connections_per_address),
        }
    }

    /// `real_ip`, each of its keys from the innermost level that gives it; `None` where nobody is believed.
    pub(super) fn real_ip(&mut self, levels: SettingLevels<'_>) -> Option<RealIp> {
        let from = given(levels, |real_ip| &real_ip.from)?;
        let mut networks = Vec::new();
        for whom in &from.value.0 {
            match whom.value {
                model::AccessWord::Network(network) => networks.push(ClientMatch::Ip(network)),
                model::AccessWord::Unix => networks.push(ClientMatch::Unix),
                model::AccessWord::All => self.complain_with(
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
    pub(super) fn check_real_ip(&mut self, levels: SettingLevels<'_>) {
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
    pub(super) fn warn_of_no_proxy_header(&mut self, listeners: &[Listener]) {
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
pub(super) fn headers(levels: SettingLevels<'_>) -> Vec<SetHeader> {
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
    pick: impl Fn(&'a model::RealIp) -> &'a Field<T>,
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
