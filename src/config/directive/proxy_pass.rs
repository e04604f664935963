//! `proxy_pass` and what belongs to it: `proxy_set_header`, `proxy_next_upstream`, and `proxy_redirect`, which rewrites the
//! redirects of upstreams.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, StatusCode, header};
use regex::bytes::Regex;

use super::client::raw::RealIp;
use super::client::{ProxyProtocolVersion, RealIpHeader};
use super::settings::{Buffering, Inherited, ProxyDirectives, ProxySettings, raw};
use super::syntax::{HeaderText, RedirectRule};
use super::tls::{TlsFile, UpstreamTls};
use super::upstream::{Upstream, UpstreamServer};
use super::zones::ReqZone;
use crate::config::compile::{Compiler, PathRule, Resolved, bytes_expression, split_expression};
use crate::config::decode::units::{self, UpstreamAddress};
use crate::config::decode::value::{HttpVersion, NamedMap, Text};
use crate::config::decode::{Field, Spanned};
use crate::config::report::{self, Report};
use crate::config::secret::is_credential;
use crate::config::template::{Part, Template, TemplatePhase, TemplateToken, Variable, tokens};

/// `proxy_pass` and what belongs to it.
#[derive(Debug, Clone)]
pub struct ProxyPass {
    /// Index of the upstream.
    pub upstream: usize,
    /// Behind `https://`: index of the TLS settings for its servers.
    pub tls: Option<usize>,
    /// What `$proxy_host` gives: the upstream's name, or host and port of the address.
    pub host: Arc<str>,
    /// The URI part of `proxy_pass`, which takes the place of the first `replaces` bytes of the normalised path; `None`
    /// sends the target on as the client wrote it.
    pub uri: Option<Box<str>>,
    /// Length of the location's prefix.
    pub replaces: usize,
    /// `proxy_set_header`, defaults included (`Host`, and the `X-Forwarded-` family), in order. An empty value removes.
    pub set_headers: Vec<SetHeader>,
    /// `proxy_redirect`, in order; none for `off`.
    pub redirects: Box<[Redirect]>,
    /// How it is sent on.
    pub settings: ProxySettings,
    /// `proxy_http_version`
    pub version: HttpVersion,
    /// `proxy_protocol`
    pub proxy_protocol: ProxyProtocolVersion,
    /// `proxy_next_upstream`
    pub next_upstream: NextUpstream,
    /// `proxy_request_buffering` and `proxy_buffering`
    pub buffering: Buffering,
}

/// One header towards the upstream.
#[derive(Clone)]
pub struct SetHeader {
    /// Its name.
    pub name: HeaderName,
    /// Its value.
    pub value: Template,
}

impl fmt::Debug for SetHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("SetHeader");
        shown.field("name", &self.name);
        match is_credential(self.name.as_str()) && self.value.as_variable().is_none() {
            true => shown.finish_non_exhaustive(),
            false => shown.field("value", &self.value).finish(),
        }
    }
}

/// When the next server is tried.
#[derive(Debug, Clone)]
pub struct NextUpstream {
    /// `error`: no connection, or it broke before the response's headers.
    pub error: bool,
    /// `timeout`
    pub timeout: bool,
    /// `invalid_header`: the response was invalid.
    pub invalid_header: bool,
    /// `non_idempotent`: also for requests that must not be sent twice.
    pub non_idempotent: bool,
    /// `http_500`, `http_502`, `http_503`, `http_504`, `http_403`, `http_404`, `http_429`.
    pub statuses: Vec<StatusCode>,
    /// `proxy_next_upstream_tries`
    pub tries: MaxTries,
    /// `proxy_next_upstream_timeout`; `None` for no limit (written 0).
    pub within: Option<Duration>,
}

/// How many servers may be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxTries {
    /// Each once (written 0).
    Each,
    /// At most so many, the first included.
    Most(u32),
}

/// One rule of `proxy_redirect`; the first that matches is applied.
#[derive(Debug, Clone)]
pub enum Redirect {
    /// `default`: the location's path replaces the URL of `proxy_pass`.
    Default {
        /// The URL of `proxy_pass`, with `$proxy_host` for its host.
        url: Box<str>,
        /// The location's path.
        path: Box<str>,
    },
    /// Replaces the whole URL that an expression matches.
    Expression {
        /// The expression.
        from: Regex,
        /// The replacement.
        to: Box<[Replacement]>,
    },
    /// Replaces the beginning of a URL.
    Prefix {
        /// The beginning.
        from: Template,
        /// The replacement.
        to: Template,
    },
}

/// A part of the text that replaces a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replacement {
    /// What a group of the expression matched, by its number.
    Group(usize),
    /// A text or a variable.
    Part(Part),
}

/// What locations share while they are compiled: what they name, and what they add to the plan.
pub(crate) struct LocationPool<'a> {
    /// `limit_req_zones`
    pub(crate) req_zones: &'a [ReqZone],
    /// `buffers`
    pub(crate) buffers: &'a raw::BufferBounds,
    /// Those of `upstreams`, then those of addresses in `proxy_pass`.
    pub(crate) upstreams: Vec<Upstream>,
    /// The index of each of the latter by name.
    pub(crate) addresses: HashMap<String, usize>,
    /// TLS settings towards upstreams, each once.
    pub(crate) upstream_tls: Vec<UpstreamTls>,
    /// Directories for temporary files.
    pub(crate) temp_paths: Vec<TlsFile>,
}

impl LocationPool<'_> {
    /// The upstream for an address, the same one for the same address.
    fn upstream_at(&mut self, name: String, address: UpstreamAddress) -> usize {
        if let Some(known) = self.addresses.get(&name) {
            return *known;
        }
        let server = UpstreamServer::at(address);
        self.upstreams.push(Upstream::of(&name, vec![server]));
        let index = self.upstreams.len() - 1;
        self.addresses.insert(name, index);
        index
    }

    /// The index of these TLS settings, the same for the same settings.
    fn tls(&mut self, tls: UpstreamTls) -> usize {
        let known = self.upstream_tls.iter().position(|known| *known == tls);
        known.unwrap_or_else(|| {
            self.upstream_tls.push(tls);
            self.upstream_tls.len() - 1
        })
    }
}

/// The target of a `proxy_pass`.
struct ProxyTarget {
    upstream: usize,
    host: Arc<str>,
    uri: Option<Box<str>>,
    /// Whether the host is a host name, and neither an upstream nor an address.
    is_host_name: bool,
}

/// The scheme of a `proxy_pass`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

/// Headers that apply to one connection; the next connection has its own.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

impl ProxyPass {
    /// A `proxy_pass` under this path, `None` for a server's own; in `version` unless `proxy_http_version` is given.
    pub(crate) fn compile(
        pass: &Spanned<Text>,
        version: HttpVersion,
        path: Option<&PathRule>,
        inherited: &Inherited,
        pool: &mut LocationPool<'_>,
        compiler: &mut Compiler<'_>,
    ) -> Option<Self> {
        let settings = &inherited.settings;
        let scheme = match pass.value.text.starts_with("https://") {
            true => Scheme::Https,
            false => Scheme::Http,
        };
        let target = target(pass, scheme, pool, compiler);
        let has_path = target.as_ref().is_some_and(|target| target.uri.is_some());
        let replaces = replaced(pass, path, has_path, compiler.report);
        let host = match &target {
            // A host that serves many sites expects its own name.
            Some(target) if scheme == Scheme::Https && target.is_host_name => Variable::ProxyHost,
            _ => Variable::PassedHost,
        };
        let set_headers = set_headers(host, inherited, compiler);
        let proxy = &settings.proxy;
        let version = *proxy.proxy_http_version.value().unwrap_or(&version);
        let proxy_protocol = send_proxy(version, &proxy.proxy_protocol, compiler.report);
        let target = target?;
        let url = match scheme {
            Scheme::Http => format!("http://{}", target.host),
            Scheme::Https => format!("https://{}", target.host),
        };
        let (ssl, report) = (&settings.proxy_ssl, &mut *compiler.report);
        let tls = (scheme == Scheme::Https)
            .then(|| pool.tls(UpstreamTls::compile(&target.host, version, ssl, report)));
        Some(Self {
            upstream: target.upstream,
            tls,
            redirects: redirects(proxy, &url, target.uri.as_deref(), path, compiler),
            host: target.host,
            uri: target.uri,
            replaces,
            set_headers,
            settings: ProxySettings::new(proxy, compiler.report),
            version,
            proxy_protocol,
            next_upstream: NextUpstream::new(proxy),
            buffering: Buffering::compile(
                &settings.buffering,
                pool.buffers,
                &mut pool.temp_paths,
                compiler.report,
            ),
        })
    }
}

/// The number of bytes of a path under this one that the path of a `proxy_pass` replaces, if it has one.
fn replaced(
    pass: &Spanned<Text>,
    path: Option<&PathRule>,
    has_path: bool,
    report: &mut Report,
) -> usize {
    match path {
        // A server's own stands where nginx has `location /`.
        None => 1,
        Some(PathRule::Exact(text) | PathRule::Prefix(text) | PathRule::PrefixFirst(text)) => {
            text.len()
        }
        Some(PathRule::Expression(_)) => {
            if has_path {
                let sentence = "`proxy_pass` with a path cannot stand under a regular expression";
                let hint = "there is no prefix for it to replace: leave the path out, the `/` too";
                report.error_with(pass.span, sentence, hint);
            }
            0
        }
    }
}

/// `proxy_protocol`
fn send_proxy(
    version: HttpVersion,
    given: &Field<ProxyProtocolVersion>,
    report: &mut Report,
) -> ProxyProtocolVersion {
    let Some(given) = given.get() else {
        return ProxyProtocolVersion::default();
    };
    if version == HttpVersion::Two && given.value != ProxyProtocolVersion::Off {
        let sentence = "`proxy_protocol` cannot be used with HTTP/2 to the same upstream";
        let hint = "it names one client for a whole connection, which HTTP/2 clients share";
        report.error_with(given.span, sentence, hint);
    }
    given.value
}

fn target(
    pass: &Spanned<Text>,
    scheme: Scheme,
    pool: &mut LocationPool<'_>,
    compiler: &mut Compiler<'_>,
) -> Option<ProxyTarget> {
    let text = pass.value.text.as_str();
    let (sentence, hint) = if text.contains('$') {
        let sentence = "variables in `proxy_pass` are not supported by this version";
        compiler.report.error(pass.span, sentence);
        return None;
    } else {
        match text.split_once("://") {
            Some(("http" | "https", rest)) => return url(pass, rest, scheme, pool, compiler),
            Some((scheme, _)) => (
                format!("`{scheme}://` is not a scheme of `proxy_pass`"),
                "expected `http://` or `https://`".to_owned(),
            ),
            None => match compiler.upstreams.find(text) {
                Resolved::At(upstream) => {
                    return Some(ProxyTarget {
                        upstream,
                        host: text.into(),
                        uri: None,
                        is_host_name: false,
                    });
                }
                Resolved::Broken => return None,
                Resolved::Nowhere if text.contains('/') && !text.starts_with("unix:") => (
                    format!("`{text}` is neither an upstream nor an address"),
                    format!("with a path it needs a scheme: `http://{text}`"),
                ),
                Resolved::Nowhere if text.contains(':') => {
                    return address(pass, text, None, scheme, pool, compiler);
                }
                Resolved::Nowhere => (
                    format!("unknown upstream `{text}`"),
                    report::hint(text, compiler.upstreams.all()).unwrap_or_else(|| {
                        format!("expected one of `upstreams`, or an address such as `http://{text}:8080`")
                    }),
                ),
            },
        }
    };
    compiler.report.error_with(pass.span, sentence, hint);
    None
}

/// The target behind `http://` or `https://`.
fn url(
    pass: &Spanned<Text>,
    rest: &str,
    scheme: Scheme,
    pool: &mut LocationPool<'_>,
    compiler: &mut Compiler<'_>,
) -> Option<ProxyTarget> {
    let (authority, uri) = if let Some(path) = rest.strip_prefix("unix:") {
        match path.split_once(':') {
            Some((path, uri)) => (format!("unix:{path}"), (!uri.is_empty()).then_some(uri)),
            None => (rest.to_owned(), None),
        }
    } else {
        match rest.find(['/', '?']) {
            Some(at) => {
                let (authority, uri) = rest.split_at(at);
                (authority.to_owned(), Some(uri))
            }
            None => (rest.to_owned(), None),
        }
    };
    let is_path =
        |uri: &str| uri.starts_with('/') && uri.bytes().all(|byte| byte.is_ascii_graphic());
    if uri.is_some_and(|uri| !is_path(uri)) {
        let sentence = format!("`{}` has an invalid path", pass.value.text);
        let hint = "a path begins with `/` and is percent-encoded";
        compiler.report.error_with(pass.span, sentence, hint);
        return None;
    }
    match compiler.upstreams.find(&authority) {
        Resolved::At(upstream) => Some(ProxyTarget {
            upstream,
            host: authority.into(),
            uri: uri.map(Into::into),
            is_host_name: false,
        }),
        Resolved::Broken => None,
        Resolved::Nowhere => address(pass, &authority, uri, scheme, pool, compiler),
    }
}

fn address(
    pass: &Spanned<Text>,
    text: &str,
    uri: Option<&str>,
    scheme: Scheme,
    pool: &mut LocationPool<'_>,
    compiler: &mut Compiler<'_>,
) -> Option<ProxyTarget> {
    let port = match scheme {
        Scheme::Http => units::HTTP,
        Scheme::Https => units::HTTPS,
    };
    let address = compiler
        .report
        .parsed(pass.span, units::host_port(text, port))?;
    let mut is_host_name = false;
    let (name, host) = match &address {
        UpstreamAddress::Unix(path) => (format!("unix:{}", path.display()), "localhost"),
        UpstreamAddress::Tcp { host, port } if host.contains(':') => {
            (format!("[{host}]:{port}"), text)
        }
        UpstreamAddress::Tcp { host, port } => {
            let names = &compiler.upstreams;
            if let Resolved::At(_) = names.find(host) {
                let sentence =
                    format!("`{host}` is an upstream: its servers have ports of their own");
                let hint = format!("write `http://{host}`");
                compiler.report.error_with(pass.span, sentence, hint);
                return None;
            }
            let one_word = !host.contains('.') && &**host != "localhost" && !text.contains(':');
            if let Some(meant) = report::near(host, names.all()).filter(|_| one_word) {
                let sentence = format!("`{host}` is taken as a host name");
                let hint = format!("did you mean the upstream `{meant}`?");
                compiler.report.warn(pass.span, sentence, hint);
            }
            is_host_name = host.parse::<IpAddr>().is_err();
            (format!("{host}:{port}"), text)
        }
    };
    Some(ProxyTarget {
        host: host.into(),
        uri: uri.map(Into::into),
        is_host_name,
        upstream: pool.upstream_at(name, address),
    })
}

/// weir's own headers, `Host` with this value among them, and the user's over them.
fn set_headers(
    host: Variable,
    inherited: &Inherited,
    compiler: &mut Compiler<'_>,
) -> Vec<SetHeader> {
    // Behind a trusted proxy these are as that proxy received them.
    let passed_on = |name, known| {
        let name = HeaderName::from_static(name);
        Variable::TrustedOr(name, Box::new(known))
    };
    let own_host = Variable::Http(header::HOST);
    let mut headers: Vec<SetHeader> = [
        ("host", host),
        (
            "x-forwarded-proto",
            passed_on("x-forwarded-proto", Variable::Scheme),
        ),
        ("x-forwarded-host", passed_on("x-forwarded-host", own_host)),
    ]
    .into_iter()
    .map(|(name, variable)| SetHeader {
        name: HeaderName::from_static(name),
        value: Template::variable(variable),
    })
    .collect();
    headers.extend(client_headers(&inherited.real_ip));
    for header in user_headers(&inherited.settings.proxy.proxy_set_header, compiler) {
        match headers.iter_mut().find(|known| known.name == header.name) {
            Some(known) => *known = header,
            None => headers.push(header),
        }
    }
    headers
}

/// The headers about the client's address. One that names it is passed on from a trusted proxy only: a backend would trust
/// what a client wrote.
fn client_headers(real_ip: &RealIp) -> Vec<SetHeader> {
    let has_proxies = !real_ip.from.items().is_empty();
    let trusted = has_proxies.then(|| RealIpHeader::of(real_ip));
    let set = |name, value| SetHeader { name, value };
    let forwarded_for = match trusted {
        Some(RealIpHeader::XForwardedFor) => Variable::ForwardedFor,
        _ => Variable::RemoteAddr,
    };
    let mut headers = vec![set(
        HeaderName::from_static("x-forwarded-for"),
        Template::variable(forwarded_for),
    )];
    let named = match trusted {
        Some(RealIpHeader::Forwarded) => Some(header::FORWARDED),
        Some(RealIpHeader::Other(name)) => Some(name),
        Some(RealIpHeader::ProxyProtocol | RealIpHeader::XForwardedFor) | None => None,
    };
    for name in [HeaderName::from_static("x-real-ip"), header::FORWARDED] {
        if named.as_ref() != Some(&name) {
            headers.push(set(name, Template::default()));
        }
    }
    headers.extend(named.map(|name| {
        let value = Template::variable(Variable::Trusted(name.clone()));
        set(name, value)
    }));
    headers
}

fn user_headers(
    given: &Field<NamedMap<HeaderText>>,
    compiler: &mut Compiler<'_>,
) -> Vec<SetHeader> {
    let mut headers: Vec<SetHeader> = Vec::new();
    for (key, value) in given.entries() {
        let value = &Spanned {
            value: value.value.0.clone(),
            span: value.span,
        };
        let Ok(name) = HeaderName::try_from(key.value.as_str()) else {
            let sentence = format!("`{}` is not the name of a header", key.value);
            compiler.report.error(key.span, sentence);
            continue;
        };
        if HOP_BY_HOP.contains(&name.as_str()) {
            if !is_set_anyway(&name, value, compiler) {
                let sentence = format!(
                    "`{}` belongs to one connection and cannot be set",
                    key.value
                );
                let hint = "weir writes it as the connection to the upstream needs it";
                compiler.report.error_with(key.span, sentence, hint);
            }
            continue;
        }
        if headers.iter().any(|known| known.name == name) {
            let sentence = format!("the header `{}` is given twice", key.value);
            let hint = "names are compared without regard to case";
            compiler.report.error_with(key.span, sentence, hint);
        }
        headers.push(SetHeader {
            name,
            value: Template::compile_header(value, compiler),
        });
    }
    headers
}

/// Whether a header only asks for what nginx needs it for and weir does by itself: keep-alive to the upstream, and upgrades.
fn is_set_anyway(name: &HeaderName, value: &Spanned<Text>, compiler: &mut Compiler<'_>) -> bool {
    let text = value.value.text.as_str();
    match name.as_str() {
        "connection" if text.starts_with('$') => {
            // Mostly a map of the user's; it has to be one.
            Template::compile(value, TemplatePhase::Before, compiler);
            text.ends_with("_upgrade") || text == "$http_connection"
        }
        "connection" => text.is_empty() || text.eq_ignore_ascii_case("upgrade"),
        "upgrade" => text == "$http_upgrade",
        _ => false,
    }
}

impl NextUpstream {
    /// `proxy_next_upstream`, `proxy_next_upstream_tries` and `proxy_next_upstream_timeout`
    fn new(given: &ProxyDirectives) -> Self {
        let words = given.proxy_next_upstream();
        let has = |word: &str| words.iter().any(|given| given == word);
        let statuses = words.iter().filter_map(|word| {
            let status = word.strip_prefix("http_")?;
            StatusCode::from_bytes(status.as_bytes()).ok()
        });
        Self {
            error: has("error"),
            timeout: has("timeout"),
            invalid_header: has("invalid_header"),
            non_idempotent: has("non_idempotent"),
            statuses: statuses.collect(),
            tries: match given.proxy_next_upstream_tries() {
                0 => MaxTries::Each,
                most => MaxTries::Most(most),
            },
            within: given.proxy_next_upstream_timeout(),
        }
    }
}

/// The rules for a `proxy_pass` to this URL under this path.
fn redirects(
    given: &ProxyDirectives,
    url: &str,
    uri: Option<&str>,
    path: Option<&PathRule>,
    compiler: &mut Compiler<'_>,
) -> Box<[Redirect]> {
    let rules = given.proxy_redirect();
    let rules = rules.iter().filter_map(|rule| match rule {
        RedirectRule::Default => Some(default_redirect(url, uri, path)),
        RedirectRule::Pair { from, to } => redirect(from, to, compiler),
    });
    rules.collect()
}

fn redirect(
    from: &Spanned<Text>,
    to: &Spanned<Text>,
    compiler: &mut Compiler<'_>,
) -> Option<Redirect> {
    let text = from.value.text.as_str();
    if text.is_empty() {
        let sentence = "the text to replace is empty";
        compiler.report.error(from.span, sentence);
        return None;
    }
    let Some((expression, ignore_case)) = split_expression(text) else {
        return Some(Redirect::Prefix {
            from: Template::compile(from, TemplatePhase::Before, compiler),
            to: Template::compile_header(to, compiler),
        });
    };
    let expression = bytes_expression(expression, ignore_case);
    let from = compiler.report.parsed(from.span, expression)?;
    let to = replacement(to, &from, compiler);
    Some(Redirect::Expression { from, to })
}

/// A template in which `$1` and `$name` are groups of an expression.
fn replacement(
    to: &Spanned<Text>,
    from: &Regex,
    compiler: &mut Compiler<'_>,
) -> Box<[Replacement]> {
    let mut parts = Vec::new();
    for (token, range) in tokens(&to.value.text) {
        if let TemplateToken::Name(name) = token
            && let Some(group) = group(from, name)
        {
            parts.push(Replacement::Group(group));
            continue;
        }
        let part = to.value.text.get(range.clone()).unwrap_or_default();
        let part = Spanned {
            value: to.value.slice(part, range.start),
            span: to.span,
        };
        let template = Template::compile_header(&part, compiler);
        parts.extend(template.parts.into_iter().map(Replacement::Part));
    }
    parts.into()
}

/// The number of a group of an expression with this name or number.
fn group(expression: &Regex, name: &str) -> Option<usize> {
    let number = name.parse().ok();
    number
        .filter(|number| *number < expression.captures_len())
        .or_else(|| {
            let mut names = expression.capture_names();
            names.position(|known| known == Some(name))
        })
}

/// nginx's `default`: where `proxy_pass` has a path it is replaced by the location's, else `/` by `/`.
fn default_redirect(url: &str, uri: Option<&str>, path: Option<&PathRule>) -> Redirect {
    let path = match (uri, path) {
        (
            Some(_),
            Some(PathRule::Exact(path) | PathRule::Prefix(path) | PathRule::PrefixFirst(path)),
        ) => path,
        _ => "/",
    };
    Redirect::Default {
        url: format!("{url}{}", uri.unwrap_or("/")).into(),
        path: path.into(),
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn groups_have_numbers_and_may_have_names() {
        let expression = Regex::new("(?<first>a)(b)").expect("an expression");
        assert_eq!(group(&expression, "first"), Some(1));
        assert_eq!(group(&expression, "2"), Some(2));
        assert_eq!(group(&expression, "3"), None);
        assert_eq!(group(&expression, "host"), None);
    }
}
