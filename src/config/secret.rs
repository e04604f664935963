//! Values that no log line, report or API response may contain.
//!
//! What is a secret follows from its type in the model, not from its name. Names count in two places only, because the
//! type cannot know: header fields and variables that carry credentials.

use std::fmt;

/// A password, a token or another credential.
// No `Display`, no `Serialize`, no `Deref`: `expose` is the only way to the text, and easy to search for.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(Box<str>);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// The text, to be sent or compared, never to be shown.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// What is shown instead.
pub(super) const HIDDEN: &str = "***";

/// Whether a header field or a variable of this name carries a credential.
pub(super) fn is_credential(name: &str) -> bool {
    const WORDS: [&str; 10] = [
        "auth",
        "cookie",
        "credential",
        "jwt",
        "key",
        "passw",
        "secret",
        "session",
        "signature",
        "token",
    ];
    let name = name.to_ascii_lowercase();
    WORDS.iter().any(|word| name.contains(word))
}

/// Whether a text is one variable and nothing else, and so says nothing by itself.
pub(super) fn is_variable(text: &str) -> bool {
    let name = text.strip_prefix('$').unwrap_or_default();
    let name = name
        .strip_prefix('{')
        .and_then(|name| name.strip_suffix('}'))
        .unwrap_or(name);
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A text without these ranges of it, which are in order.
pub(super) fn without(text: &str, ranges: &[std::ops::Range<usize>]) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut at = 0;
    for range in ranges {
        shown.push_str(text.get(at..range.start).unwrap_or_default());
        shown.push_str(HIDDEN);
        at = range.end;
    }
    shown.push_str(text.get(at..).unwrap_or_default());
    shown
}

/// The ranges of all `user:password` before an `@` in a text, such as those of URLs.
pub(super) fn logins(text: &str) -> Vec<std::ops::Range<usize>> {
    let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | ',' | '[' | '{');
    let mut found = Vec::new();
    let mut from = 0;
    for (at, _) in text.match_indices('@') {
        let before = text.get(from..at).unwrap_or_default();
        let word = before.rfind(is_end).map_or(0, |end| end + 1);
        let word = before.get(word..).unwrap_or_default();
        let login = match word.rsplit_once("://") {
            Some((_, login)) => Some(login),
            None => Some(word).filter(|word| word.contains(':')),
        };
        // Behind a slash it is a part of a path.
        if let Some(login) = login.filter(|login| !login.is_empty() && !login.contains('/')) {
            found.push(at - login.len()..at);
        }
        from = at + 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_no_text_to_print() {
        assert_eq!(format!("{:?}", Some(Secret::new("s3cret"))), "Some(***)");
    }

    #[test]
    fn logins_are_found_in_urls_and_without_a_scheme() {
        for (text, expected) in [
            ("redis: redis://user:pass@h:1/0", vec!["user:pass"]),
            ("[redis://:a@h, 'rediss://:b@h']", vec![":a", ":b"]),
            ("otlp: user:pass@collector:4318", vec!["user:pass"]),
            ("proxy_pass: http://a/@b", vec![]),
            ("proxy_pass: http://a/x:y@b", vec![]),
            ("fallback: @named", vec![]),
            ("mail: a@b", vec![]),
        ] {
            let found: Vec<_> = logins(text)
                .into_iter()
                .map(|at| text.get(at).unwrap())
                .collect();
            assert_eq!(found, expected, "{text}");
        }
    }
}
