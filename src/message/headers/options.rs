//! The header fields that `Connection` lists: they concern one connection, and end with it.
//!
//! A sender can list thousands of options and send a hundred header fields. Each option is looked up once among the names
//! that are there, so the work grows with the size of the message, not with options times fields.

use std::cmp::Ordering;

use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue};
use smallvec::SmallVec;

/// The header fields of a message that its `Connection` fields list.
#[derive(Debug, Default)]
pub struct ConnectionOptions {
    // Sorted. Nearly always empty, and then nothing is allocated, moved or dropped.
    names: Vec<HeaderName>,
}

impl ConnectionOptions {
    /// Those of a message; only fields that the message has are among them.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let lines = headers.get_all(header::CONNECTION);
        let mut listed = lines.iter().flat_map(options).peekable();
        // Nearly always: nothing else is looked at then.
        if listed.peek().is_none() {
            return Self::default();
        }
        let mut names: SmallVec<[(&HeaderName, bool); 32]> =
            headers.keys().map(|name| (name, false)).collect();
        names.sort_unstable_by_key(|(name, _)| name.as_str());
        for option in listed {
            let found = names.binary_search_by(|(name, _)| compare(name, option));
            if let Ok(at) = found {
                names[at].1 = true;
            }
        }
        let listed = names.into_iter().filter(|(_, listed)| *listed);
        Self {
            names: listed.map(|(name, _)| name.clone()).collect(),
        }
    }

    /// Whether this field is listed.
    #[must_use]
    pub fn list(&self, name: &HeaderName) -> bool {
        !self.names.is_empty()
            && self
                .names
                .binary_search_by_key(&name.as_str(), HeaderName::as_str)
                .is_ok()
    }

    pub(super) fn into_names(self) -> impl Iterator<Item = HeaderName> {
        self.names.into_iter()
    }
}

/// The options in a `Connection` field that may name another; none in the ordinary ones.
fn options(line: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    line.as_bytes()
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|option| {
            !option.is_empty()
                && !option.eq_ignore_ascii_case(b"keep-alive")
                && !option.eq_ignore_ascii_case(b"close")
        })
}

/// The order of a name, which is in lower case, and an option, which may be in any.
fn compare(name: &HeaderName, option: &[u8]) -> Ordering {
    let option = option.iter().map(u8::to_ascii_lowercase);
    name.as_str().bytes().cmp(option)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::testing::map;

    #[test]
    fn fields_are_listed_in_any_case_and_in_any_line() {
        let headers = map(&[
            ("accept", "a"),
            ("connection", "close, X-Second ,, absent"),
            ("connection", "x-first"),
            ("keep-alive", "5"),
            ("x-first", "1"),
            ("x-first-not", "1"),
            ("x-second", "1"),
        ]);
        let options = ConnectionOptions::of(&headers);
        let listed: Vec<_> = headers.keys().filter(|name| options.list(name)).collect();
        assert_eq!(listed, ["x-first", "x-second"]);
    }

    #[test]
    fn a_thousand_options_find_every_field_they_name() {
        let mut headers = HeaderMap::new();
        let name = |number: usize| HeaderName::try_from(format!("x-{number}")).unwrap();
        for number in 0..90 {
            headers.append(name(number), HeaderValue::from_static("1"));
        }
        let listed: Vec<_> = (45..1_000).map(|number| format!("X-{number}")).collect();
        let listed = HeaderValue::try_from(listed.join(",")).unwrap();
        headers.append(header::CONNECTION, listed);
        let options = ConnectionOptions::of(&headers);
        for number in 0..90 {
            assert_eq!(options.list(&name(number)), number >= 45, "x-{number}");
        }
    }
}
