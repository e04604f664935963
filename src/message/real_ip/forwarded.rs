//! `Forwarded`, RFC 7239: `for=192.0.2.7, for="[2001:db8::1]:4711";proto=https;by=_hidden`.
//!
//! Cut from the right like any list of addresses, quotes and all: what a client left open further left must not swallow
//! what a trusted proxy has written behind it.

use std::net::SocketAddr;

use super::port;

/// The addresses of a line, from the right; `None` for an element that names none.
pub(super) fn elements(line: &[u8]) -> impl Iterator<Item = Option<SocketAddr>> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        loop {
            let (left, element) = split_last(rest.take()?);
            rest = left;
            let element = element.trim_ascii();
            // Members of a list may be empty, and a list of nothing says nothing.
            if !element.is_empty() {
                return Some(named(element));
            }
        }
    })
}

/// Cuts at the last comma that is not quoted.
fn split_last(line: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let mut quoted = false;
    for (at, byte) in line.iter().enumerate().rev() {
        match byte {
            b'"' if !quoted => quoted = true,
            b'"' => quoted = is_escaped(&line[..at]),
            b',' if !quoted => return (Some(&line[..at]), &line[at + 1..]),
            _ => {}
        }
    }
    (None, line)
}

/// Whether what follows `before` is escaped by its last byte.
fn is_escaped(before: &[u8]) -> bool {
    let backslashes = before.iter().rev().take_while(|byte| **byte == b'\\');
    backslashes.count() % 2 == 1
}

/// The address in an element's `for`, if it has exactly one.
fn named(element: &[u8]) -> Option<SocketAddr> {
    let mut found = None;
    let mut rest = element;
    while !rest.is_empty() {
        let (pair, behind) = split_first(rest);
        rest = behind;
        let pair = pair.trim_ascii();
        if pair.is_empty() {
            continue;
        }
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        if pair[..equals].eq_ignore_ascii_case(b"for")
            && found.replace(&pair[equals + 1..]).is_some()
        {
            return None;
        }
    }
    node(found?)
}

/// Cuts at the first semicolon that is not quoted.
fn split_first(element: &[u8]) -> (&[u8], &[u8]) {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in element.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b';' if !quoted => return (&element[..at], &element[at + 1..]),
            _ => {}
        }
    }
    (element, &[])
}

/// A node's address; none for `unknown` and for names that were made up to hide it.
fn node(value: &[u8]) -> Option<SocketAddr> {
    let mut plain = [0; LONGEST];
    let text = std::str::from_utf8(unquoted(value, &mut plain)?).ok()?;
    if let Ok(address) = text.parse() {
        return Some(SocketAddr::new(address, 0));
    }
    let (host, behind) = match text.strip_prefix('[') {
        Some(inside) => inside.split_once(']')?,
        None => text.split_at_checked(text.find(':')?)?,
    };
    let number = match behind.strip_prefix(':') {
        None if behind.is_empty() => 0,
        // A port may be hidden, too.
        Some(hidden) if hidden.starts_with('_') => 0,
        Some(number) => port(number)?,
        None => return None,
    };
    Some(SocketAddr::new(host.parse().ok()?, number))
}

/// What a value says, its quotes taken away.
fn unquoted<'a>(value: &'a [u8], plain: &'a mut [u8; LONGEST]) -> Option<&'a [u8]> {
    let Some(inside) = value.strip_prefix(b"\"") else {
        return Some(value);
    };
    let inside = inside.strip_suffix(b"\"")?;
    let (mut length, mut escaped) = (0, false);
    for byte in inside {
        match byte {
            b'\\' if !escaped => escaped = true,
            b'"' if !escaped => return None,
            byte => {
                *plain.get_mut(length)? = *byte;
                (length, escaped) = (length + 1, false);
            }
        }
    }
    (!escaped).then_some(&plain[..length])
}

/// More than the longest address with the longest port.
const LONGEST: usize = 64;
