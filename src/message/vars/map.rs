//! `maps`: variables made from other variables, nginx's `map` and `geo`.
//!
//! Where the source is the client's address itself, no text is made of it only to be parsed again.

use std::convert::Infallible;
use std::net::IpAddr;

use super::{render, with_buffer};
use crate::config::plan::{Geo, Map, MapLookup, MapValues, ServerName, Template, Variable};
use crate::message::RequestRecord;

/// Appends what a map makes of a request.
pub(super) fn append(index: usize, exchange: &RequestRecord, out: &mut Vec<u8>) -> bool {
    let map = &exchange.plan.maps[index];
    let fill = |source: &mut Vec<u8>| -> Result<(), Infallible> {
        render(&map.source, exchange, source);
        Ok(())
    };
    let Ok(value) = find(map, exchange, fill);
    render(value, exchange, out);
    true
}

/// What a map becomes for a request; `fill` renders the source.
pub(super) fn find<'m, E>(
    map: &'m Map,
    exchange: &RequestRecord,
    fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<&'m Template, E> {
    let value = match &map.lookup {
        MapLookup::Geo(geo) => find_network(geo, &map.source, exchange, fill)?,
        MapLookup::Values(values) => with_buffer(|source| {
            fill(source)?;
            Ok(find_value(values, source))
        })?,
    };
    Ok(value.unwrap_or(&map.default))
}

fn find_network<'g, E>(
    geo: &'g Geo,
    source: &Template,
    exchange: &RequestRecord,
    fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<Option<&'g Template>, E> {
    let address = match source.as_variable() {
        Some(Variable::RemoteAddr | Variable::BinaryRemoteAddr) => exchange.client().ip(),
        _ => with_buffer(|text| {
            fill(text)?;
            let text = std::str::from_utf8(text).ok();
            Ok(text.and_then(|text| text.trim_ascii().parse::<IpAddr>().ok()))
        })?,
    };
    Ok(address.and_then(|address| geo.find(address)))
}

fn find_value<'a>(values: &'a MapValues, source: &[u8]) -> Option<&'a Template> {
    let named = std::str::from_utf8(source).ok().and_then(|source| {
        if !source.bytes().any(|b| b.is_ascii_uppercase()) {
            return find_name(values, source);
        }
        with_buffer(|lower| {
            lower.extend(source.bytes().map(|b| b.to_ascii_lowercase()));
            find_name(values, std::str::from_utf8(lower).ok()?)
        })
    });
    named.or_else(|| {
        let mut expressions = values.expressions.iter();
        expressions
            .find(|(expression, _)| expression.is_match(source))
            .map(|(_, value)| value)
    })
}

fn find_name<'a>(values: &'a MapValues, source: &str) -> Option<&'a Template> {
    let exact = values.exact.get(source);
    if exact.is_some() || values.hostnames.is_empty() {
        return exact;
    }
    let host = source.strip_suffix('.').unwrap_or(source);
    let matching = |wanted: fn(&ServerName, &str) -> bool| {
        let mut names = values.hostnames.iter();
        names
            .find(|(name, _)| wanted(name, host))
            .map(|(_, value)| value)
    };
    // Each kind is sorted by length; a leading star comes before a trailing one whatever the lengths.
    values
        .exact
        .get(host)
        .or_else(|| matching(is_below))
        .or_else(|| matching(is_before))
}

fn is_below(name: &ServerName, host: &str) -> bool {
    let below = |suffix: &str| host.len() > suffix.len() && host.ends_with(suffix);
    match name {
        ServerName::Exact(exact) => **exact == *host,
        ServerName::Suffix(suffix) => below(suffix),
        ServerName::SuffixAndSelf(suffix) => {
            below(suffix) || suffix.strip_prefix('.') == Some(host)
        }
        ServerName::Expression(_) | ServerName::Prefix(_) => false,
    }
}

fn is_before(name: &ServerName, host: &str) -> bool {
    match name {
        ServerName::Prefix(prefix) => host.len() > prefix.len() && host.starts_with(&**prefix),
        _ => false,
    }
}
