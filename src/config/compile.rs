//! The user's model becomes the plan: names are resolved, rules checked, defaults and inheritance filled in.
//!
//! Like decoding, compiling goes on after a mistake, with whatever stands in for the wrong value; the plan that
//! comes out is only used when the report stayed without errors.
//!
//! Host names, paths and expressions as nginx writes them.
//!
//! What requests are sorted by: host names and paths.

#[cfg(test)]
#[path = "tests/compile.rs"]
mod tests;

use std::collections::HashMap;
use std::time::Duration;

use regex::{Regex, RegexBuilder, bytes};

use super::decode::{Field, Spanned};
use super::plan::Plan;
use super::report::{Diagnostic, Report};
use super::source::Span;
use crate::algorithm::AlgorithmParams;
use crate::config::decode::units::ParseError;
use crate::config::decode::value::{NamedMap, Text, Time, mistaken};
use crate::config::directive::limits::OverrideLimits;
use crate::config::directive::limits::raw::Override;
use crate::config::directive::tls::{TlsFile, UpstreamTls};
use crate::config::directive::upstream::Upstream;
use crate::config::process::raw::Config;

/// Makes the plan.
pub(super) fn compile(config: &Config, report: &mut Report) -> Plan {
    let mut compiler = Compiler::new(config, report);
    compiler.hide_credential_keys();
    let maps = compiler.maps();
    compiler.upstreams();
    let stores = compiler.stores();
    let req_zones = compiler.req_zones(&maps);
    let conn_zones = compiler.conn_zones();
    let (servers, listeners) = compiler.servers();
    compiler.meet_checked(&servers);
    let plan = Plan {
        workers: compiler.workers(),
        shutdown_timeout: config
            .shutdown_timeout
            .value()
            .map_or(Duration::from_secs(30), |time| time.0),
        log: compiler.log(),
        admin: compiler.admin(),
        tracing: compiler.tracing(),
        caps: compiler.caps(),
        maps,
        stores,
        req_zones,
        conn_zones,
        degrade_groups: compiler.degrade_groups(),
        stale_size: compiler.stale_size(),
        buffers: compiler.buffer_bounds(),
        temp_paths: std::mem::take(&mut compiler.temp_paths),
        upstreams: std::mem::take(&mut compiler.upstreams),
        upstream_tls: std::mem::take(&mut compiler.upstream_tls),
        listeners,
        servers,
        source: Box::default(),
    };
    compiler.warn_of_unused(&plan);
    compiler.warn_of_ipv6(&plan);
    plan
}

/// What holds instead of the numbers of a zone that counts like this in so many bytes; `None` for unlimited.
pub(super) fn own_numbers(
    own: &Override,
    zone: AlgorithmParams,
    size: usize,
    report: &mut Report,
) -> Option<OverrideLimits> {
    let config = Config::default();
    let mut compiler = Compiler::new(&config, report);
    let numbers = compiler.own_numbers(own, zone)?;
    compiler.room_for_a_key(own.limit.key(), numbers.algorithm, size);
    Some(numbers)
}

/// What is needed to make one part of the plan refer to another.
pub(super) struct Compiler<'a> {
    pub(super) config: &'a Config,
    pub(super) report: &'a mut Report,
    pub(super) maps: NameTable,
    pub(super) req_zones: NameTable,
    pub(super) conn_zones: NameTable,
    pub(super) stores: NameTable,
    /// Names of `upstreams`.
    pub(super) groups: NameTable,
    /// Names of `degrade_groups`.
    pub(super) degraded: NameTable,
    /// Which maps need something that is not known before the answer.
    pub(super) late_maps: Vec<bool>,
    /// Of the `limit_req_zones`.
    pub(super) algorithms: Vec<AlgorithmParams>,
    /// Those of `upstreams`, then those of addresses in `proxy_pass`.
    pub(super) upstreams: Vec<Upstream>,
    /// How servers behind `https://` are met, each way once.
    pub(super) upstream_tls: Vec<UpstreamTls>,
    /// The latter by name.
    pub(super) addresses: HashMap<String, usize>,
    /// Directories for temporary files, each where it is named.
    pub(super) temp_paths: Vec<TlsFile>,
}

impl<'a> Compiler<'a> {
    fn new(config: &'a Config, report: &'a mut Report) -> Self {
        Self {
            config,
            report,
            maps: NameTable::of(&config.maps, |name| name.trim_start_matches('$')),
            req_zones: NameTable::of(&config.limit_req_zones, |name| name),
            conn_zones: NameTable::of(&config.limit_conn_zones, |name| name),
            stores: NameTable::of(&config.stores, |name| name),
            groups: NameTable::of(&config.upstreams, |name| name),
            degraded: NameTable::of(&config.degrade_groups, |name| name),
            late_maps: Vec::new(),
            algorithms: Vec::new(),
            upstreams: Vec::new(),
            upstream_tls: Vec::new(),
            addresses: HashMap::new(),
            temp_paths: Vec::new(),
        }
    }
}

/// Names that may be referred to.
pub(super) struct NameTable {
    pub(super) known: HashMap<String, usize>,
    /// Defined, but not understood: nobody is wrong to refer to them.
    broken: Vec<String>,
}

/// What a name stands for.
pub(super) enum Resolved {
    /// This index.
    At(usize),
    /// Something that was complained about already.
    Broken,
    /// Nothing.
    Nowhere,
}

impl NameTable {
    fn of<T>(named: &Field<NamedMap<T>>, trim: fn(&str) -> &str) -> Self {
        let (entries, broken) = named
            .value()
            .map_or((&[][..], &[][..]), |named| (&named.entries, &named.broken));
        Self {
            known: entries
                .iter()
                .enumerate()
                .map(|(index, (name, _))| (trim(&name.value).to_owned(), index))
                .collect(),
            broken: broken.iter().map(|name| trim(name).to_owned()).collect(),
        }
    }

    pub(super) fn find(&self, name: &str) -> Resolved {
        match self.known.get(name) {
            Some(index) => Resolved::At(*index),
            None if self.broken.iter().any(|broken| broken == name) => Resolved::Broken,
            None => Resolved::Nowhere,
        }
    }

    /// All of them in one order, so that of two equally near misses always the same is offered.
    pub(super) fn all(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.known.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }
}

impl Compiler<'_> {
    pub(super) fn complain(&mut self, span: Span, sentence: impl Into<String>) {
        self.report.add(Diagnostic::new(span, sentence));
    }

    pub(super) fn complain_with(
        &mut self,
        span: Span,
        sentence: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.report.add(Diagnostic::new(span, sentence).help(hint));
    }

    pub(super) fn warn(
        &mut self,
        span: Span,
        sentence: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.report
            .add(Diagnostic::new(span, sentence).help(hint).warning());
    }

    /// A time that must not be nothing.
    pub(super) fn some_time(&mut self, given: Option<&Spanned<Time>>, default: u64) -> Duration {
        let Some(given) = given else {
            return Duration::from_secs(default);
        };
        if given.value.0.is_zero() {
            self.complain_with(
                given.span,
                "a timeout of nothing would end everything at once",
                format!("the default is {default}s"),
            );
        }
        given.value.0
    }
}

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
    /// As in the file, for people.
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
