//! Variables as parts of a key: a client that gives a value twice, or in another spelling, gets no second key.
//!
//! Elsewhere a variable is what nginx makes of it, to the byte. A key identifies the client as the backend does. A backend may
//! read the first of two values or the last one, decodes arguments, and ignores white space around cookies. So more than one
//! value is an error here, unless the zone asks for nginx's reading, and each value is brought into one form.

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::{append, is_single, request, single, with_buffer};
use crate::config::plan::{OnAmbiguousKey, Part, Template, Variable};
use crate::message::record::RequestRecord;
use crate::message::variables;
use crate::text::hex_byte;

/// A part of the key was given more than once, with different values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a part of the key is given more than once")]
pub struct AmbiguousKey;

/// How the parts of a key are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyReader {
    /// What several values are.
    pub on_ambiguous: OnAmbiguousKey,
    /// Whether backends get to see header fields with underscores. They take `X_Key` for `X-Key`.
    pub underscores: bool,
}

impl KeyReader {
    /// Appends what a template stands for in a key.
    ///
    /// # Errors
    /// A part of it is ambiguous, and the zone does not join such parts.
    pub fn render(
        self,
        template: &Template,
        record: &RequestRecord,
        out: &mut Vec<u8>,
    ) -> Result<(), AmbiguousKey> {
        for part in &template.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                Part::Variable(variable) => self.append(variable, record, out)?,
            }
        }
        Ok(())
    }

    /// Appends what a variable stands for in a key.
    ///
    /// # Errors
    /// It is ambiguous, and the zone does not join such parts.
    pub fn append(
        self,
        variable: &Variable,
        record: &RequestRecord,
        out: &mut Vec<u8>,
    ) -> Result<(), AmbiguousKey> {
        let head = &record.head;
        match variable {
            Variable::Arg(name) => self.argument(head.uri.query().unwrap_or_default(), name, out),
            Variable::ContentType => self.field(&head.headers, &header::CONTENT_TYPE, out),
            Variable::Cookie(name) => self.cookie(&head.headers, name, out),
            Variable::Http(name) => self.field(&head.headers, name, out),
            Variable::Map(index) => {
                let map = &record.plan.maps[*index];
                let fill = |out: &mut Vec<u8>| self.render(&map.source, record, out);
                self.render(variables::find(map, record, fill)?, record, out)
            }
            Variable::RemoteUser => {
                // Only counted: the name of the first is what nginx takes.
                with_buffer(|all| self.field(&head.headers, &header::AUTHORIZATION, all))?;
                request::user(head, out);
                Ok(())
            }
            other => {
                append(other, record, out);
                Ok(())
            }
        }
    }

    /// Whether a value may be taken as it stands in the request.
    pub fn takes_as_is(self, variable: &Variable) -> bool {
        match variable {
            Variable::Http(name) => !self.underscores && *name != header::AUTHORIZATION,
            _ => true,
        }
    }

    fn field(
        self,
        headers: &HeaderMap,
        name: &HeaderName,
        out: &mut Vec<u8>,
    ) -> Result<(), AmbiguousKey> {
        if !self.underscores && is_single(headers) {
            push_field(name, single(headers, name), out);
            return Ok(());
        }
        let same = |found: &HeaderName| match self.underscores {
            false => found == name,
            true => is_same_to_a_backend(found, name),
        };
        let mut values = headers.iter().filter(|(found, _)| same(found));
        push_field(name, values.next().map(|(_, value)| value), out);
        for (_, value) in values {
            let between: &[u8] = match *name == header::COOKIE {
                true => b"; ",
                false
                    if self.on_ambiguous == OnAmbiguousKey::Join
                        || LISTS.binary_search(&name.as_str()).is_ok() =>
                {
                    b", "
                }
                false => return Err(AmbiguousKey),
            };
            out.extend_from_slice(between);
            out.extend_from_slice(value.as_bytes());
        }
        Ok(())
    }

    fn argument(self, query: &str, name: &str, out: &mut Vec<u8>) -> Result<(), AmbiguousKey> {
        let mut first = None;
        for argument in query.split('&') {
            let (found, value) = match argument.split_once('=') {
                Some((found, value)) => (found, value),
                // No value to us and an empty one to others.
                None => (argument, ""),
            };
            if !is_named(found.as_bytes(), name) {
                continue;
            }
            let value = value.as_bytes();
            match first {
                None => first = Some(value),
                Some(_) if self.on_ambiguous == OnAmbiguousKey::Join => break,
                Some(first) if decoded(first).eq(decoded(value)) => {}
                Some(_) => return Err(AmbiguousKey),
            }
        }
        out.extend(first.into_iter().flat_map(decoded));
        Ok(())
    }

    fn cookie(
        self,
        headers: &HeaderMap,
        name: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), AmbiguousKey> {
        let lines = headers.get_all(header::COOKIE).iter();
        let mut values = lines.flat_map(|line| cookies(line.as_bytes(), name.as_bytes()));
        let Some(first) = values.next() else {
            return Ok(());
        };
        if self.on_ambiguous == OnAmbiguousKey::Refuse && values.any(|value| value != first) {
            return Err(AmbiguousKey);
        }
        out.extend_from_slice(first);
        Ok(())
    }
}

fn push_field(name: &HeaderName, value: Option<&HeaderValue>, out: &mut Vec<u8>) {
    let value = value.map_or(&b""[..], HeaderValue::as_bytes);
    let scheme = value.iter().position(|byte| *byte == b' ');
    match scheme.filter(|_| *name == header::AUTHORIZATION) {
        // RFC 9110, 11.1: its case makes no difference, nor does the number of spaces behind it.
        Some(end) => {
            out.extend(value[..end].iter().map(u8::to_ascii_lowercase));
            out.push(b' ');
            out.extend_from_slice(value[end..].trim_ascii_start());
        }
        None => out.extend_from_slice(value),
    }
}

/// Whether a backend that makes variables of header fields, as CGI does, takes one for the other.
fn is_same_to_a_backend(found: &HeaderName, name: &HeaderName) -> bool {
    let folded = |byte: u8| if byte == b'_' { b'-' } else { byte };
    let (found, name) = (found.as_str().bytes(), name.as_str().bytes());
    found.map(folded).eq(name.map(folded))
}

/// Whether this is the name of an argument, in any case and however it is encoded.
fn is_named(found: &[u8], name: &str) -> bool {
    if !found.contains(&b'%') {
        return found.eq_ignore_ascii_case(name.as_bytes());
    }
    let found = decoded(found).map(|byte| byte.to_ascii_lowercase());
    found.eq(name.bytes().map(|byte| byte.to_ascii_lowercase()))
}

/// The bytes of a part of a query, as a form decodes it.
// Not control characters: a key that begins with one is never one that a client chose.
fn decoded(text: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let byte;
        (byte, rest) = match rest {
            [] => return None,
            [b'+', after @ ..] => (b' ', after),
            [b'%', high, low, after @ ..] => {
                match hex_byte(*high, *low).filter(|byte| !byte.is_ascii_control()) {
                    Some(byte) => (byte, after),
                    None => (b'%', &rest[1..]),
                }
            }
            [byte, after @ ..] => (*byte, after),
        };
        Some(byte)
    })
}

/// The values of all cookies of a name in one line, which stand behind a `;`, or a comma as in nginx.
fn cookies<'l>(line: &'l [u8], name: &[u8]) -> impl Iterator<Item = &'l [u8]> {
    let separators = line.iter().enumerate();
    let separators = separators.filter(|(_, byte)| matches!(byte, b';' | b','));
    let starts = std::iter::once(0).chain(separators.map(|(at, _)| at + 1));
    starts.filter_map(move |start| {
        let (found, rest) = line[start..]
            .trim_ascii_start()
            .split_at_checked(name.len())?;
        let rest = rest.trim_ascii_start().strip_prefix(b"=")?;
        found.eq_ignore_ascii_case(name).then(|| {
            // Only here, where the name is right: a line full of commas is read once.
            let end = rest.iter().position(|byte| *byte == b';');
            unquoted(rest[..end.unwrap_or(rest.len())].trim_ascii())
        })
    })
}

fn unquoted(value: &[u8]) -> &[u8] {
    match value {
        [b'"', inside @ .., b'"'] => inside,
        value => value,
    }
}

/// Request header fields that are lists by definition, so that several lines are one value (RFC 9110, 5.3), in order.
const LISTS: [&str; 36] = [
    "a-im",
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-signature",
    "access-control-request-headers",
    "baggage",
    "cache-control",
    "cdn-loop",
    "connection",
    "content-digest",
    "content-encoding",
    "content-language",
    "expect",
    "forwarded",
    "if-match",
    "if-none-match",
    "pragma",
    "prefer",
    "priority",
    "repr-digest",
    "sec-ch-ua",
    "sec-websocket-extensions",
    "sec-websocket-protocol",
    "signature",
    "signature-input",
    "te",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "want-content-digest",
    "want-repr-digest",
    "x-forwarded-for",
];

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn lists_are_in_order() {
        assert!(LISTS.is_sorted());
    }

    #[test]
    fn arguments_are_decoded_but_for_control_characters() {
        let text = |text: &str| String::from_utf8(decoded(text.as_bytes()).collect()).unwrap();
        assert_eq!(text("a%20b+c%2Bd%e2%82%ac"), "a b c+d€");
        assert_eq!(text("%00%1f%7F%zz%2"), "%00%1f%7F%zz%2");
        assert!(is_named(b"%4Bey", "key"));
        assert!(!is_named(b"%4Bey", "keys"));
    }

    #[test]
    fn every_cookie_of_a_name_is_found() {
        let found = |line: &str| {
            let values = cookies(line.as_bytes(), b"sid");
            let values: Vec<_> = values.map(|value| value.to_vec()).collect();
            String::from_utf8(values.join(&b'|')).unwrap()
        };
        assert_eq!(found("sid=a; b=c;sid = \"d\" ; SID=e"), "a|d|e");
        assert_eq!(found("a=b,sid=c,sid=d"), "c,sid=d|d");
        assert_eq!(found("asid=1; sid; sida=2; sid="), "");
        assert_eq!(found("nosid=1"), "");
    }

    /// A line of separators costs one look at each byte.
    #[test]
    fn a_line_full_of_separators_is_read_once() {
        let line = [b"sid=k;".repeat(5_000), b",".repeat(30_000)].concat();
        assert_eq!(cookies(&line, b"sid").count(), 5_000);
    }
}
