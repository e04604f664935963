//! `${NAME}` in a scalar, filled in from the environment.
//!
//! nginx writes its variables `$name` or `${name}`, always in lower case; environment variables are written in
//! upper case everywhere. So the case decides: `${HOME}` is the environment, `${remote_addr}` is left for the
//! templates. `$HOME` without braces is never the environment.

use std::borrow::Cow;

/// What became of a scalar.
pub(super) struct Interpolated<'a> {
    /// Its text.
    pub(super) text: Cow<'a, str>,
    /// Names that are not set, each with its place in the original text.
    pub(super) unset: Vec<(String, std::ops::Range<usize>)>,
}

/// Fills in what is named in `text`.
pub(super) fn fill<'a>(text: &'a str, env: &dyn Fn(&str) -> Option<String>) -> Interpolated<'a> {
    let mut filled = String::new();
    let mut unset = Vec::new();
    let mut rest = text;
    let mut found = false;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((reference, behind)) = parse(after) else {
            filled.push_str(before);
            filled.push_str("${");
            rest = after;
            continue;
        };
        found = true;
        filled.push_str(before);
        match (env(reference.name), reference.default) {
            // As in a shell, `:-` stands in for a variable that is empty, too.
            (Some(value), default) if !value.is_empty() || default.is_none() => {
                filled.push_str(&value);
            }
            (_, Some(default)) => filled.push_str(default),
            (_, None) => {
                let start = text.len() - rest.len() + before.len();
                unset.push((reference.name.to_owned(), start..text.len() - behind.len()));
            }
        }
        rest = behind;
    }
    filled.push_str(rest);
    Interpolated {
        text: if found {
            Cow::Owned(filled)
        } else {
            Cow::Borrowed(text)
        },
        unset,
    }
}

struct EnvReference<'a> {
    name: &'a str,
    default: Option<&'a str>,
}

/// What stands behind `${`, and what comes after its brace.
fn parse(after: &str) -> Option<(EnvReference<'_>, &str)> {
    let (inside, behind) = after.split_once('}')?;
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let well_named = name
        .bytes()
        .all(|byte| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'_'))
        && name.starts_with(|first: char| first.is_ascii_uppercase() || first == '_');
    well_named.then_some((EnvReference { name, default }, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "PORT" => Some("8080".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn upper_case_is_the_environment_and_lower_case_is_not() {
        assert_eq!(fill("*:${PORT}", &env).text, "*:8080");
        assert_eq!(
            fill("${remote_addr}x$PORT", &env).text,
            "${remote_addr}x$PORT"
        );
        assert_eq!(fill("${", &env).text, "${");
    }

    #[test]
    fn a_default_stands_in_for_what_is_unset_or_empty() {
        assert_eq!(
            fill("${NONE:-a}${EMPTY:-b}${PORT:-c}${EMPTY}", &env).text,
            "ab8080"
        );
        assert!(fill("${NONE:-}", &env).unset.is_empty());
    }

    #[test]
    fn what_is_unset_is_told_with_its_place() {
        assert_eq!(fill("a${NONE}b", &env).unset, [("NONE".to_owned(), 1..8)]);
    }
}
