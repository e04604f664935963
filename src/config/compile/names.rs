//! Host names, paths and expressions as nginx writes them.

use regex::{RegexBuilder, bytes};

use super::Compiler;
use crate::config::decode::{Spanned, Text, mistaken};
use crate::config::plan::{LocationPath, PathRule, ServerName};
use crate::config::span::Span;
use crate::config::units::ParseError;

/// Whether an expression tells upper from lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RegexCase {
    Ignored,
    Matters,
}

/// An expression for what clients send, which need not be UTF-8: it works on bytes, as nginx's do.
pub(super) fn bytes_expression(text: &str, case: RegexCase) -> Result<bytes::Regex, ParseError> {
    // Written into the expression, so that nobody has to be told beside it.
    let flag = match case {
        RegexCase::Ignored => "(?i)",
        RegexCase::Matters => "",
    };
    bytes::RegexBuilder::new(&format!("{flag}{text}"))
        .unicode(false)
        .build()
        .map_err(|error| not_an_expression(text, &error))
}

fn not_an_expression(text: &str, error: &regex::Error) -> ParseError {
    let mistake = ParseError::new(format!("`{text}` is not a regular expression"));
    let reason = error.to_string();
    if reason.contains("look-around") || reason.contains("backreferences") {
        return mistake
            .help("look-around and back-references are not supported: they can take for ever");
    }
    // The last line has the reason; those before it draw the expression, which our own marker does.
    match reason.lines().last() {
        Some(line) => mistake.help(line.trim_start_matches("error: ").to_owned()),
        None => mistake,
    }
}

/// What a `server_name` stands for.
fn server_name(text: &str) -> Result<ServerName, ParseError> {
    if let Some(expression) = text.strip_prefix('~') {
        return RegexBuilder::new(expression)
            .case_insensitive(true)
            .build()
            .map(ServerName::Expression)
            .map_err(|error| not_an_expression(expression, &error));
    }
    let wrong =
        |hint: &str| Err(ParseError::new(format!("`{text}` is not a server name")).help(hint));
    if text.contains(char::is_whitespace) {
        return wrong("several names are a list: `[a.example, b.example]`");
    }
    if !text.is_ascii() {
        return wrong(
            "names beyond ASCII have to be written as browsers send them, as in `xn--bcher-kva.example`",
        );
    }
    if text.contains(['/', ':']) {
        return wrong("a name has no scheme, port or path; a port belongs to `listen`");
    }
    let name = text.to_ascii_lowercase();
    let name = name
        .strip_suffix('.')
        .filter(|rest| !rest.is_empty())
        .unwrap_or(&name);
    let made = if let Some(suffix) = name.strip_prefix('*') {
        (suffix.len() > 1 && suffix.starts_with('.')).then(|| ServerName::Suffix(suffix.into()))
    } else if name.starts_with('.') {
        (name.len() > 1).then(|| ServerName::SuffixAndSelf(name.into()))
    } else if let Some(prefix) = name.strip_suffix('*') {
        (prefix.len() > 1 && prefix.ends_with('.')).then(|| ServerName::Prefix(prefix.into()))
    } else {
        Some(ServerName::Exact(name.into()))
    };
    let stars_left = match &made {
        Some(
            ServerName::Suffix(rest)
            | ServerName::SuffixAndSelf(rest)
            | ServerName::Prefix(rest)
            | ServerName::Exact(rest),
        ) => rest.contains('*'),
        _ => false,
    };
    match made {
        Some(made) if !stars_left => Ok(made),
        _ => wrong(
            "a `*` may stand for the first or the last part of a name only: `*.example.com`, `www.example.*`",
        ),
    }
}

/// What a `path` matches.
fn path(text: &str) -> Result<PathRule, ParseError> {
    if let Some(expression) = text.strip_prefix("~*") {
        return bytes_expression(expression.trim_start(), RegexCase::Ignored)
            .map(PathRule::Expression);
    }
    if let Some(expression) = text.strip_prefix('~') {
        return bytes_expression(expression.trim_start(), RegexCase::Matters)
            .map(PathRule::Expression);
    }
    let (rule, plain): (fn(Box<str>) -> PathRule, _) = if let Some(plain) = text.strip_prefix("^~")
    {
        (PathRule::PrefixFirst, plain.trim_start())
    } else if let Some(plain) = text.strip_prefix('=') {
        (PathRule::Exact, plain.trim_start())
    } else {
        (PathRule::Prefix, text)
    };
    if plain.starts_with('@') {
        return Err(ParseError::new(
            "named locations are not supported by this version",
        ));
    }
    if !plain.starts_with('/') {
        return Err(ParseError::new(format!("`{text}` is not a path"))
            .help("a path begins with `/`; before it may stand `=` or `^~`, an expression follows `~` or `~*`"));
    }
    if plain.contains(['?', '#']) {
        return Err(ParseError::new(format!("`{text}` can never match"))
            .help("a location is found by the path alone, without query or fragment"));
    }
    Ok(rule(plain.into()))
}

impl Compiler<'_> {
    /// A `server_name`.
    pub(super) fn server_name(&mut self, text: &str, span: Span) -> Option<ServerName> {
        server_name(text)
            .map_err(|mistake| self.report.add(mistaken(span, mistake)))
            .ok()
    }

    /// A location's path.
    pub(super) fn path(&mut self, given: &Spanned<Text>) -> Option<LocationPath> {
        let text = given.value.text.as_str();
        let rule = path(text)
            .map_err(|mistake| self.report.add(mistaken(given.span, mistake)))
            .ok()?;
        Some(LocationPath {
            text: text.into(),
            rule,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_names_take_the_forms_of_nginx() {
        let shown = |text| format!("{:?}", server_name(text).unwrap());
        assert_eq!(shown("Example.com"), r#"Exact("example.com")"#);
        assert_eq!(shown("*.example.com"), r#"Suffix(".example.com")"#);
        assert_eq!(shown(".example.com"), r#"SuffixAndSelf(".example.com")"#);
        assert_eq!(shown("www.example.*"), r#"Prefix("www.example.")"#);
        assert_eq!(shown("_"), r#"Exact("_")"#);
        assert_eq!(shown(""), r#"Exact("")"#);
        for wrong in [
            "*",
            "a*b.com",
            "*.a.*",
            "www*.a",
            "a b",
            "a.com:80",
            "http://a",
            "bücher.de",
            ".",
            "~(",
            "*a.com",
        ] {
            assert!(server_name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn paths_take_the_forms_of_nginx() {
        let shown = |text| format!("{:?}", path(text).unwrap());
        assert_eq!(shown("/api/"), r#"Prefix("/api/")"#);
        assert_eq!(shown("= /x"), r#"Exact("/x")"#);
        assert_eq!(shown("=/x"), r#"Exact("/x")"#);
        assert_eq!(shown("^~ /x"), r#"PrefixFirst("/x")"#);
        assert!(matches!(path(r"~ \.php$"), Ok(PathRule::Expression(_))));
        let Ok(PathRule::Expression(folded)) = path(r"~* \.PNG$") else {
            panic!("not an expression")
        };
        assert!(folded.is_match(b"/a.png"));
        for wrong in ["api", "", "= x", "~ (", "@name", "/a?b", "~ (?=x)"] {
            assert!(path(wrong).is_err(), "{wrong}");
        }
    }
}
