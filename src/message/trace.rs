//! W3C trace context: which trace a request is part of, and what upstreams are sent of it.
//!
//! A client's trace context is used only if all of it is valid, as the specification asks: half an identity would join a
//! request to the wrong trace.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::clock::Millis;
use crate::text::{hex_byte, push_hex};

/// A request's place in a trace.
#[derive(Debug)]
pub struct Trace {
    /// The whole trace.
    pub id: TraceId,
    /// weir's part in it.
    pub span: SpanId,
    /// The part that sent the request, where the client named one.
    pub parent: Option<SpanId>,
    /// Whether it is exported.
    pub sampled: bool,
    /// What goes on to the upstream.
    pub passes: Propagation,
    /// Where it waited on its way.
    pub waits: Vec<LimitWait>,
}

/// Identifies a trace: not all zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceId(pub [u8; 16]);

/// Identifies a part of one: not all zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanId(pub [u8; 8]);

/// What goes on to the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// The client's fields.
    AsItCame,
    /// Our own `traceparent`, and the client's `tracestate` where that is sound.
    Ours {
        /// Whether it is.
        state: bool,
    },
}

/// A wait at a limit.
#[derive(Debug, Clone)]
pub struct LimitWait {
    /// The zone of the limit.
    pub zone: Arc<str>,
    /// When it began.
    pub from: Millis,
    /// When it ended.
    pub until: Millis,
}

/// A `traceparent` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// Which trace.
    pub id: TraceId,
    /// Which part of it leads here.
    pub parent: SpanId,
    /// Whether the parent is exported.
    pub sampled: bool,
}

impl Trace {
    /// The `traceparent` header for the upstream.
    pub fn traceparent(&self) -> HeaderValue {
        let mut text = b"00-".to_vec();
        push_hex(&self.id.0, &mut text);
        text.push(b'-');
        push_hex(&self.span.0, &mut text);
        text.extend_from_slice(if self.sampled { b"-01" } else { b"-00" });
        // Digits and hyphens: a field can always carry them.
        HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
    }

    /// Whether a field of the client's stays here because ours goes on instead.
    pub fn replaces(&self, name: &HeaderName) -> bool {
        match self.passes {
            Propagation::AsItCame => false,
            Propagation::Ours { state } => *name == TRACEPARENT || (!state && *name == TRACESTATE),
        }
    }
}

impl TraceParent {
    /// A request's `traceparent`; `None` if there is none, or none that is valid.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut fields = headers.get_all(&TRACEPARENT).iter();
        let only = fields.next().filter(|_| fields.next().is_none())?;
        Self::parse(only.as_bytes())
    }

    /// Reads a `traceparent`. A version that is not known yet is read as far as this one goes.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (known, more) = text.split_at_checked(LENGTH)?;
        let [version] = hex(&known[..2])?;
        let goes_on = match more {
            [] => version != 0xff,
            [b'-', ..] => !matches!(version, 0 | 0xff),
            _ => false,
        };
        let hyphens = [2, 35, 52].iter().all(|at| known[*at] == b'-');
        let (id, parent) = (hex(&known[3..35])?, hex(&known[36..52])?);
        let [flags] = hex(&known[53..])?;
        let sound = goes_on && hyphens && id != [0; 16] && parent != [0; 8];
        sound.then_some(Self {
            id: TraceId(id),
            parent: SpanId(parent),
            sampled: flags & 1 == 1,
        })
    }
}

/// Whether a request's `tracestate` is valid and can be passed on: at most 32 entries `key=value`.
pub fn has_sound_state(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(&TRACESTATE).iter();
    let entries = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let mut entries = entries
        .map(<[u8]>::trim_ascii)
        .filter(|entry| !entry.is_empty());
    let sound = entries.by_ref().take(MOST_ENTRIES).all(is_entry);
    sound && entries.next().is_none()
}

fn is_entry(entry: &[u8]) -> bool {
    let Some(at) = entry.iter().position(|byte| *byte == b'=') else {
        return false;
    };
    let (key, value) = (&entry[..at], &entry[at + 1..]);
    let letter =
        |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(byte);
    let starts = key
        .first()
        .is_some_and(|first| first.is_ascii_lowercase() || first.is_ascii_digit());
    let tenants = key.iter().filter(|byte| **byte == b'@').count();
    let printable = |byte: &u8| matches!(byte, b' '..=b'~') && *byte != b'=';
    starts
        && tenants <= 1
        && key.len() <= LONGEST
        && key.iter().all(letter)
        && (1..=LONGEST).contains(&value.len())
        && value.iter().all(printable)
}

/// Reads lower-case digits; others are none, as the specification has it.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    for (byte, digits) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        let is_upper = digits.iter().any(u8::is_ascii_uppercase);
        *byte = hex_byte(digits[0], digits[1]).filter(|_| !is_upper)?;
    }
    Some(bytes)
}

/// The trace, and the part of it that sent the request.
pub static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// What tracing systems add for each other.
pub(super) static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Of a `traceparent` of the first version.
const LENGTH: usize = 55;
const MOST_ENTRIES: usize = 32;
/// Of a key and of a value in `tracestate`.
const LONGEST: usize = 256;

#[cfg(test)]
mod tests {

    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn parse(text: &str) -> Option<TraceParent> {
        TraceParent::parse(text.as_bytes())
    }

    #[test]
    fn a_traceparent_is_read_as_the_specification_has_it() {
        let context = parse(GOOD).unwrap();
        assert_eq!(context.id.0[..2], [0x0a, 0xf7]);
        assert_eq!(context.parent.0[6..], [0x33, 0x31]);
        assert!(context.sampled);
        assert!(!parse(&GOOD.replace("-01", "-00")).unwrap().sampled);
        assert!(parse(&GOOD.replace("-01", "-03")).unwrap().sampled);
        // Of a version to come.
        assert!(parse(&GOOD.replace("00-", "cc-")).is_some());
        assert!(parse(&format!("{}-what-comes", GOOD.replace("00-", "cc-"))).is_some());
    }

    #[test]
    fn what_is_not_sound_is_nothing() {
        for wrong in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "0x-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319-cb7ad6b7169203331-01",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn two_of_them_are_none() {
        let mut headers = HeaderMap::new();
        headers.append(&TRACEPARENT, HeaderValue::from_static(GOOD));
        assert!(TraceParent::of(&headers).is_some());
        headers.append(&TRACEPARENT, HeaderValue::from_static(GOOD));
        assert_eq!(TraceParent::of(&headers), None);
    }

    #[test]
    fn a_tracestate_is_a_list_of_keys_and_values() {
        let sound = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(&TRACESTATE, HeaderValue::from_str(line).unwrap());
            }
            has_sound_state(&headers)
        };
        let many = |count: usize| vec!["a=1"; count].join(",");
        for good in [&[][..], &[""], &["a=1, b@c=2 ,", "9x=!\"#"], &[&many(32)]] {
            assert!(sound(good), "{good:?}");
        }
        for bad in [
            "a",
            "A=1",
            "=1",
            "a=",
            "a=b=c",
            "a@b@c=1",
            "@a=1",
            "a=\t1",
            &many(33),
        ] {
            assert!(!sound(&[bad]), "{bad}");
        }
    }

    #[test]
    fn ours_can_be_read_again() {
        let trace = Trace {
            id: TraceId([0xab; 16]),
            span: SpanId([0x01; 8]),
            parent: None,
            sampled: true,
            passes: Propagation::Ours { state: true },
            waits: Vec::new(),
        };
        let read = TraceParent::parse(trace.traceparent().as_bytes()).unwrap();
        assert_eq!(
            (read.id, read.parent, read.sampled),
            (trace.id, trace.span, true)
        );
        assert!(trace.replaces(&TRACEPARENT) && !trace.replaces(&TRACESTATE));
    }
}
