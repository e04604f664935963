//! What directives are compiled with: the report, the names that may be referred to, and host names, paths and expressions as
//! nginx writes them.

#[cfg(test)]
#[path = "tests/compile.rs"]
mod tests;

use std::collections::HashMap;

use ipnet::IpNet;
use regex::{Regex, RegexBuilder, bytes};

use super::decode::value::{NamedMap, Text};
use super::decode::{Field, Spanned};
use super::report::{ParseError, Report};

/// The report of errors, and the names that may be referred to.
pub(crate) struct Compiler<'a> {
    pub(crate) report: &'a mut Report,
    pub(crate) maps: NameTable,
    /// Which of the maps need something that is not known before the response.
    pub(crate) late_maps: Vec<bool>,
    pub(crate) req_zones: NameTable,
    pub(crate) conn_zones: NameTable,
    pub(crate) stores: NameTable,
    pub(crate) upstreams: NameTable,
    pub(crate) degrade_groups: NameTable,
}

/// Names that may be referred to.
#[derive(Default)]
pub(crate) struct NameTable {
    known: HashMap<String, usize>,
    /// Defined, but not understood: a reference to them is not reported.
    broken: Vec<String>,
}

/// What a name refers to.
pub(crate) enum Resolved {
    /// The entry with this index.
    At(usize),
    /// An entry that is reported already.
    Broken,
    /// Nothing.
    Nowhere,
}

impl NameTable {
    /// The names of a mapping, without this prefix.
    pub(crate) fn new<T>(named: &Field<NamedMap<T>>, prefix: &str) -> Self {
        let trim = |name: &str| name.trim_start_matches(prefix).to_owned();
        let broken = named.value().map_or(&[][..], |named| &named.broken);
        Self {
            known: named
                .entries()
                .iter()
                .enumerate()
                .map(|(index, (name, _))| (trim(&name.value), index))
                .collect(),
            broken: broken.iter().map(|name| trim(name)).collect(),
        }
    }

    pub(crate) fn find(&self, name: &str) -> Resolved {
        match self.known.get(name) {
            Some(index) => Resolved::At(*index),
            None if self.broken.iter().any(|broken| broken == name) => Resolved::Broken,
            None => Resolved::Nowhere,
        }
    }

    /// All of them, sorted, so that of two equally near misses always the same is offered.
    pub(crate) fn all(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.known.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }
}

/// A network, with a warning where it is written with bits set that its length masks.
pub(crate) fn masked(
    key: &Spanned<String>,
    (network, host_bits): (IpNet, bool),
    report: &mut Report,
) -> IpNet {
    if host_bits {
        let sentence = format!("low address bits of `{}` are meaningless", key.value);
        report.warn(key.span, sentence, format!("it is read as `{network}`"));
    }
    network
}

/// An expression for what clients send, which need not be UTF-8: it works on bytes, as in nginx.
pub(crate) fn bytes_expression(text: &str, ignore_case: bool) -> Result<bytes::Regex, ParseError> {
    // Written into the expression, so that expressions that are written alike are alike.
    let flag = if ignore_case { "(?i)" } else { "" };
    bytes::RegexBuilder::new(&format!("{flag}{text}"))
        .unicode(false)
        .build()
        .map_err(|error| not_an_expression(text, &error))
}

/// The expression behind `~` or `~*`, and whether it ignores case.
pub(crate) fn split_expression(text: &str) -> Option<(&str, bool)> {
    let expression = text.strip_prefix('~')?;
    Some(match expression.strip_prefix('*') {
        Some(expression) => (expression, true),
        None => (expression, false),
    })
}

fn not_an_expression(text: &str, error: &regex::Error) -> ParseError {
    let invalid = ParseError::new(format!("`{text}` is not a regular expression"));
    let reason = error.to_string();
    if reason.contains("look-around") || reason.contains("backreferences") {
        return invalid.help(
            "look-around and back-references are not supported: their run time has no bound",
        );
    }
    // The last line has the reason; those before it draw the expression, which our own marker does.
    match reason.lines().last() {
        Some(line) => invalid.help(line.trim_start_matches("error: ").to_owned()),
        None => invalid,
    }
}

/// Reads a `server_name`.
pub(crate) fn server_name(text: &str) -> Result<ServerName, ParseError> {
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

/// Reads a location's path.
pub(crate) fn location_path(given: &Spanned<Text>, report: &mut Report) -> Option<LocationPath> {
    let text = given.value.text.as_str();
    Some(LocationPath {
        text: text.into(),
        rule: report.parsed(given.span, path(text))?,
    })
}

/// What a location's path matches.
fn path(text: &str) -> Result<PathRule, ParseError> {
    if let Some((expression, ignore_case)) = split_expression(text) {
        return bytes_expression(expression.trim_start(), ignore_case).map(PathRule::Expression);
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

/// A `server_name`.
#[derive(Debug, Clone)]
pub enum ServerName {
    /// `example.com`, in lower case.
    Exact(Box<str>),
    /// `~expr`.
    Expression(Regex),
    /// `www.example.*`: what stands before the last dot, that dot included (`www.example.`).
    Prefix(Box<str>),
    /// `*.example.com`: what stands after the star, its dot included (`.example.com`).
    Suffix(Box<str>),
    /// `.example.com`: the name itself and all below it, kept as `.example.com`.
    SuffixAndSelf(Box<str>),
}

/// A location's `path`: how it was written, and what it matches.
#[derive(Debug, Clone)]
pub struct LocationPath {
    /// As in the file.
    pub text: Box<str>,
    /// What it matches.
    pub rule: PathRule,
}

/// What a location's path matches, after decoding and normalising.
#[derive(Debug, Clone)]
pub enum PathRule {
    /// `= /path`
    Exact(Box<str>),
    /// `~ expr`, and `~* expr` compiled to ignore case.
    Expression(bytes::Regex),
    /// `/path`
    Prefix(Box<str>),
    /// `^~ /path`: a prefix that stops the search for expressions.
    PrefixFirst(Box<str>),
}

#[cfg(test)]
mod names_tests {

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
