//! `proxy_pass` and what belongs to it: `proxy_set_header`, `proxy_next_upstream`, and `proxy_redirect`, which says what is
//! changed about where a backend's redirects lead.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode, header};
use regex::bytes::Regex;

use self::raw::RedirectRule;
use super::client::{self, ProxyProtocolVersion};
use super::location::{HttpVersion, MaxTries, NextUpstream, ProxyPass, SetHeader, SettingLevels};
use super::settings::ProxySettings;
use super::upstream::UpstreamAddress;
use crate::config::compile::{Compiler, PathRule, RegexCase, Resolved, bytes_expression};
use crate::config::decode::value::{NamedMap, Text, mistaken};
use crate::config::decode::{Spanned, units};
use crate::config::directive::store::raw::HeaderText;
use crate::config::report::{self, Diagnostic};
use crate::config::template::{Part, Template, TemplatePhase, TemplateToken, Variable, pieces};

pub(crate) mod raw {
    //! `proxy_redirect`: pairs of what a redirect begins with and what it begins with instead.
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use crate::config::decode::value::{List, Text};
    use crate::config::decode::{Decode, DecodeContext, Spanned};
    use crate::config::report::Diagnostic;
    use crate::config::source::{Node, NodeKind};

    /// `proxy_redirect`: its rules in order; none for `off`.
    #[derive(Debug, Clone)]
    pub struct ProxyRedirect(pub Vec<RedirectRule>);

    /// A rule of `proxy_redirect`.
    #[derive(Debug, Clone)]
    pub enum RedirectRule {
        /// `default`
        Default,
        /// What is looked for, and what takes its place.
        Pair {
            /// A URL's beginning, or an expression behind `~` or `~*`.
            from: Spanned<Text>,
            /// What takes its place.
            to: Spanned<Text>,
        },
    }

    impl Decode for ProxyRedirect {
        fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
            match &node.kind {
                NodeKind::Scalar(scalar)
                    if matches!(scalar.text.as_str(), "off" | "false" | "no") =>
                {
                    Some(Self(Vec::new()))
                }
                _ if is_pair(node) => {
                    RedirectRule::decode(node, context).map(|rule| Self(vec![rule]))
                }
                _ => {
                    let rules = List::<RedirectRule>::decode(node, context)?;
                    Some(Self(rules.0.into_iter().map(|rule| rule.value).collect()))
                }
            }
        }
    }

    impl Decode for RedirectRule {
        fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
            match &node.kind {
                NodeKind::Scalar(scalar) if scalar.text == DEFAULT => Some(Self::Default),
                NodeKind::Scalar(_) => {
                    let whole = Text::decode(node, context)?;
                    pair(&whole, node, context)
                }
                NodeKind::Sequence(_) => {
                    match <[_; 2]>::try_from(List::<Text>::decode(node, context)?.0) {
                        Ok([from, to]) => Some(Self::Pair { from, to }),
                        Err(_) => {
                            context.expected(node, EXPECTED);
                            None
                        }
                    }
                }
                NodeKind::Mapping(_) | NodeKind::Null | NodeKind::Unset => {
                    context.expected(node, EXPECTED);
                    None
                }
            }
        }
    }

    /// A pair as nginx writes it: two words.
    fn pair(whole: &Text, node: &Node, context: &mut DecodeContext<'_>) -> Option<RedirectRule> {
        let text = whole.text.trim();
        if let Some((from, to)) = text.split_once(' ') {
            let to = to.trim_start();
            if !to.contains(' ') {
                let spanned = |value| Spanned {
                    value,
                    span: node.span,
                };
                return Some(RedirectRule::Pair {
                    from: spanned(whole.head(from)),
                    to: spanned(whole.tail(to)),
                });
            }
        }
        let sentence = format!("`{text}` does not say what takes the place of what");
        context.complain(Diagnostic::new(node.span, sentence).help(format!("expected {EXPECTED}")));
        None
    }

    /// Whether it is one pair and not a list of rules: two texts, neither of which is a rule.
    fn is_pair(node: &Node) -> bool {
        let NodeKind::Sequence(items) = &node.kind else {
            return false;
        };
        let is_word = |node: &Node| {
            let text = node.text();
            text.is_some_and(|text| text != DEFAULT && !text.trim().contains(' '))
        };
        items.len() == 2 && items.iter().all(is_word)
    }

    const DEFAULT: &str = "default";
    const EXPECTED: &str =
        "`default`, `off`, or a pair such as `[\"http://app:8000/two/\", /one/]`";

    impl JsonSchema for ProxyRedirect {
        fn schema_name() -> Cow<'static, str> {
            "ProxyRedirect".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            let pair = json_schema!({
                "type": "array", "items": { "type": "string" }, "minItems": 2, "maxItems": 2,
            });
            json_schema!({
                "anyOf": [
                    { "type": "string" },
                    { "const": false },
                    { "type": "array", "items": { "anyOf": [{ "type": "string" }, pair] } },
                ],
            })
        }
    }
}

/// One rule of `proxy_redirect`; the first that matches is applied.
#[derive(Debug, Clone)]
pub enum Redirect {
    /// `default`: the location's path takes the place of what `proxy_pass` names.
    Default {
        /// The URL of `proxy_pass`, with `$proxy_host` for its host.
        url: Box<str>,
        /// The location's path.
        path: Box<str>,
    },
    /// Takes the place of the whole URL that an expression matches.
    Expression {
        /// The expression.
        from: Regex,
        /// What takes its place.
        to: Box<[Replacement]>,
    },
    /// Takes the place of the beginning of a URL.
    Prefix {
        /// The beginning.
        from: Template,
        /// What takes its place.
        to: Template,
    },
}

/// A piece of what takes a URL's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replacement {
    /// What a group of the expression matched, by its number.
    Group(usize),
    /// A text or a variable.
    Part(Part),
}

/// Where a `proxy_pass` leads.
struct ProxyTarget {
    upstream: usize,
    host: Arc<str>,
    uri: Option<Box<str>>,
    /// Whether the host is the name of a machine, and neither an upstream nor an address.
    is_machine: bool,
}

/// What a server of an upstream is spoken to in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

/// Headers that say how one connection carries a message; the next connection has its own.
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

impl Compiler<'_> {
    /// A `proxy_pass` under this path, `None` for a server's own; spoken to in `version` unless something else is said.
    pub(in crate::config) fn proxy_pass(
        &mut self,
        pass: &Spanned<Text>,
        version: HttpVersion,
        path: Option<&PathRule>,
        levels: SettingLevels<'_>,
    ) -> Option<ProxyPass> {
        let scheme = match pass.value.text.starts_with("https://") {
            true => Scheme::Https,
            false => Scheme::Http,
        };
        let target = self.target(pass, scheme);
        let has_path = target.as_ref().is_some_and(|target| target.uri.is_some());
        let replaces = self.replaced(pass, path, has_path);
        let host = match &target {
            // One that serves many sites goes by the name it is asked for, which is its own.
            Some(target) if scheme == Scheme::Https && target.is_machine => Variable::ProxyHost,
            _ => Variable::PassedHost,
        };
        let set_headers = self.set_headers(host, levels);
        let version = levels
            .find(|settings| &settings.proxy.proxy_http_version)
            .map_or(version, |given| given.value.0);
        let proxy_protocol = self.send_proxy(version, levels);
        let target = target?;
        let url = match scheme {
            Scheme::Http => format!("http://{}", target.host),
            Scheme::Https => format!("https://{}", target.host),
        };
        Some(ProxyPass {
            upstream: target.upstream,
            tls: (scheme == Scheme::Https)
                .then(|| self.upstream_tls(&target.host, version, levels)),
            redirects: self.redirects(levels, &url, target.uri.as_deref(), path),
            host: target.host,
            uri: target.uri,
            replaces,
            set_headers,
            settings: ProxySettings::merge(levels.iter().map(|s| &s.proxy), self),
            version,
            proxy_protocol,
            next_upstream: compile(levels),
            buffering: self.buffering(levels),
        })
    }

    /// How many bytes of a path under this one make way for the path of a `proxy_pass` that has one.
    fn replaced(&mut self, pass: &Spanned<Text>, path: Option<&PathRule>, has_path: bool) -> usize {
        match path {
            // A server's own stands where nginx has `location /`.
            None => 1,
            Some(PathRule::Exact(text) | PathRule::Prefix(text) | PathRule::PrefixFirst(text)) => {
                text.len()
            }
            Some(PathRule::Expression(_)) => {
                if has_path {
                    let sentence =
                        "`proxy_pass` with a path cannot stand under a regular expression";
                    self.complain_with(pass.span, sentence, "there is no prefix for it to take the place of: leave the path out, the `/` too");
                }
                0
            }
        }
    }

    /// `proxy_protocol`
    fn send_proxy(
        &mut self,
        version: HttpVersion,
        levels: SettingLevels<'_>,
    ) -> ProxyProtocolVersion {
        let Some(given) = levels.find(|settings| &settings.proxy.proxy_protocol) else {
            return ProxyProtocolVersion::Off;
        };
        if version == HttpVersion::Two && given.value.0 != ProxyProtocolVersion::Off {
            self.complain_with(
                given.span,
                "`proxy_protocol` and HTTP/2 to the same upstream",
                "it names one client for a whole connection, and over HTTP/2 all share one",
            );
        }
        given.value.0
    }

    fn target(&mut self, pass: &Spanned<Text>, scheme: Scheme) -> Option<ProxyTarget> {
        let text = pass.value.text.as_str();
        if text.contains('$') {
            self.complain(
                pass.span,
                "variables in `proxy_pass` are not supported by this version",
            );
            return None;
        }
        match text.split_once("://") {
            Some(("http" | "https", rest)) => self.url(pass, rest, scheme),
            Some((scheme, _)) => {
                let sentence = format!("`{scheme}://` is no scheme for `proxy_pass`");
                self.complain_with(pass.span, sentence, "expected `http://` or `https://`");
                None
            }
            None => match self.groups.find(text) {
                Resolved::At(upstream) => Some(ProxyTarget {
                    upstream,
                    host: text.into(),
                    uri: None,
                    is_machine: false,
                }),
                Resolved::Broken => None,
                Resolved::Nowhere if text.contains('/') && !text.starts_with("unix:") => {
                    let sentence = format!("`{text}` is neither an upstream nor an address");
                    self.complain_with(
                        pass.span,
                        sentence,
                        format!("with a path it needs a scheme: `http://{text}`"),
                    );
                    None
                }
                Resolved::Nowhere if text.contains(':') => self.address(pass, text, None, scheme),
                Resolved::Nowhere => {
                    let hint = report::hint(text, self.groups.all())
                        .unwrap_or_else(|| format!("expected one of `upstreams`, or an address such as `http://{text}:8080`"));
                    self.complain_with(pass.span, format!("unknown upstream `{text}`"), hint);
                    None
                }
            },
        }
    }

    /// What stands behind `http://` or `https://`.
    fn url(&mut self, pass: &Spanned<Text>, rest: &str, scheme: Scheme) -> Option<ProxyTarget> {
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
        if uri.is_some_and(|uri| {
            !uri.starts_with('/') || !uri.bytes().all(|byte| byte.is_ascii_graphic())
        }) {
            let sentence = format!("`{}` has no path that could be sent", pass.value.text);
            self.complain_with(
                pass.span,
                sentence,
                "a path begins with `/` and is percent-encoded",
            );
            return None;
        }
        match self.groups.find(&authority) {
            Resolved::At(upstream) => Some(ProxyTarget {
                upstream,
                host: authority.into(),
                uri: uri.map(Into::into),
                is_machine: false,
            }),
            Resolved::Broken => None,
            Resolved::Nowhere => self.address(pass, &authority, uri, scheme),
        }
    }

    fn address(
        &mut self,
        pass: &Spanned<Text>,
        text: &str,
        uri: Option<&str>,
        scheme: Scheme,
    ) -> Option<ProxyTarget> {
        let port = match scheme {
            Scheme::Http => units::HTTP,
            Scheme::Https => units::HTTPS,
        };
        let address = units::host_port(text, port)
            .map_err(|mistake| self.report.add(mistaken(pass.span, mistake)))
            .ok()?;
        let (name, host) = match &address {
            UpstreamAddress::Unix(path) => (format!("unix:{}", path.display()), "localhost"),
            UpstreamAddress::Tcp { host, port } if host.contains(':') => {
                (format!("[{host}]:{port}"), text)
            }
            UpstreamAddress::Tcp { host, port } => {
                if let Resolved::At(_) = self.groups.find(host) {
                    let sentence =
                        format!("`{host}` is an upstream, whose servers have ports of their own");
                    self.complain_with(pass.span, sentence, format!("write `http://{host}`"));
                    return None;
                }
                let one_word = !host.contains('.') && &**host != "localhost" && !text.contains(':');
                if let Some(meant) = report::near(host, self.groups.all()).filter(|_| one_word) {
                    self.warn(
                        pass.span,
                        format!("`{host}` is taken for the name of a machine"),
                        format!("did you mean the upstream `{meant}`?"),
                    );
                }
                (format!("{host}:{port}"), text)
            }
        };
        Some(ProxyTarget {
            host: host.into(),
            uri: uri.map(Into::into),
            is_machine: matches!(&address, UpstreamAddress::Tcp { host, .. } if host.parse::<IpAddr>().is_err()),
            upstream: self.upstream_at(name, address),
        })
    }

    /// weir's own headers, `Host` with this value among them, and the user's over them.
    fn set_headers(&mut self, host: Variable, levels: SettingLevels<'_>) -> Vec<SetHeader> {
        // Behind a proxy that is believed, what the client asked for is what that proxy was asked for.
        let passed_on = |name, known| {
            let name = HeaderName::from_static(name);
            Variable::TrustedOr(name, Box::new(known))
        };
        let asked = Variable::Http(header::HOST);
        let mut headers: Vec<SetHeader> = [
            ("host", host),
            (
                "x-forwarded-proto",
                passed_on("x-forwarded-proto", Variable::Scheme),
            ),
            ("x-forwarded-host", passed_on("x-forwarded-host", asked)),
        ]
        .into_iter()
        .map(|(name, variable)| SetHeader {
            name: HeaderName::from_static(name),
            value: Template::variable(variable),
        })
        .collect();
        headers.extend(client::headers(levels));
        let own = levels.find(|settings| &settings.proxy.proxy_set_header);
        for header in own.map_or_else(Vec::new, |own| self.own_headers(&own.value)) {
            match headers.iter_mut().find(|known| known.name == header.name) {
                Some(known) => *known = header,
                None => headers.push(header),
            }
        }
        headers
    }

    fn own_headers(&mut self, named: &NamedMap<HeaderText>) -> Vec<SetHeader> {
        let mut headers: Vec<SetHeader> = Vec::new();
        for (key, value) in &named.entries {
            let value = &Spanned {
                value: value.value.0.clone(),
                span: value.span,
            };
            let Ok(name) = HeaderName::try_from(key.value.as_str()) else {
                let sentence = format!("`{}` is not the name of a header", key.value);
                self.complain(key.span, sentence);
                continue;
            };
            if HOP_BY_HOP.contains(&name.as_str()) {
                if !self.is_so_anyway(&name, value) {
                    let sentence = format!(
                        "`{}` belongs to one connection and cannot be set",
                        key.value
                    );
                    self.complain_with(
                        key.span,
                        sentence,
                        "weir writes it as the connection to the upstream needs it",
                    );
                }
                continue;
            }
            if headers.iter().any(|known| known.name == name) {
                let sentence = format!("the header `{}` is given twice", key.value);
                self.complain_with(key.span, sentence, "case makes no difference here");
            }
            let header = SetHeader {
                name,
                value: self.header_value(value),
            };
            self.hide_credential_value(&header, value);
            headers.push(header);
        }
        headers
    }

    /// Whether it only says what nginx has to be told and is done here without: keep-alive to the upstream, and
    /// upgrades.
    fn is_so_anyway(&mut self, name: &HeaderName, value: &Spanned<Text>) -> bool {
        let text = value.value.text.as_str();
        match name.as_str() {
            "connection" if text.starts_with('$') => {
                // A map of the user's, mostly; it has to be one.
                self.template(value, TemplatePhase::Before);
                text.ends_with("_upgrade") || text == "$http_connection"
            }
            "connection" => text.is_empty() || text.eq_ignore_ascii_case("upgrade"),
            "upgrade" => text == "$http_upgrade",
            _ => false,
        }
    }

    /// A template whose own text can stand in a header.
    pub(in crate::config) fn header_value(&mut self, text: &Spanned<Text>) -> Template {
        let template = self.template(text, TemplatePhase::Before);
        let sound = template.parts.iter().all(|part| match part {
            Part::Text(text) => HeaderValue::from_str(text).is_ok(),
            Part::Variable(_) => true,
        });
        if !sound {
            let complaint = Diagnostic::new(
                text.span,
                "a header cannot hold line breaks or control characters",
            );
            self.report.add(complaint);
        }
        template
    }
}

/// When the next server may be tried.
pub(in crate::config) fn compile(levels: SettingLevels<'_>) -> NextUpstream {
    let default = ["error".to_owned(), "timeout".to_owned()];
    let words = levels
        .find(|settings| &settings.proxy.proxy_next_upstream)
        .map_or(&default[..], |given| &given.value.0);
    let has = |word: &str| words.iter().any(|given| given == word);
    NextUpstream {
        error: has("error"),
        timeout: has("timeout"),
        invalid_header: has("invalid_header"),
        non_idempotent: has("non_idempotent"),
        statuses: words
            .iter()
            .filter_map(|word| StatusCode::from_bytes(word.strip_prefix("http_")?.as_bytes()).ok())
            .collect(),
        tries: match levels
            .find(|s| &s.proxy.proxy_next_upstream_tries)
            .map(|tries| tries.value.0)
        {
            None | Some(0) => MaxTries::Each,
            Some(most) => MaxTries::Most(most),
        },
        within: levels
            .find(|s| &s.proxy.proxy_next_upstream_timeout)
            .map(|time| time.value.0)
            .filter(|time| *time > Duration::ZERO),
    }
}

impl Compiler<'_> {
    /// The rules for a `proxy_pass` to this URL under this path; `default` where nothing is said, as in nginx.
    pub(in crate::config) fn redirects(
        &mut self,
        levels: SettingLevels<'_>,
        url: &str,
        uri: Option<&str>,
        path: Option<&PathRule>,
    ) -> Box<[Redirect]> {
        let given = levels.find(|settings| &settings.proxy.proxy_redirect);
        let rules = given.map_or(&[RedirectRule::Default][..], |given| &given.value.0);
        let rules = rules.iter().filter_map(|rule| match rule {
            RedirectRule::Default => Some(default(url, uri, path)),
            RedirectRule::Pair { from, to } => self.redirect(from, to),
        });
        rules.collect()
    }

    fn redirect(&mut self, from: &Spanned<Text>, to: &Spanned<Text>) -> Option<Redirect> {
        let text = from.value.text.as_str();
        let expression = match (text.strip_prefix("~*"), text.strip_prefix('~')) {
            (Some(expression), _) => (expression, RegexCase::Ignored),
            (None, Some(expression)) => (expression, RegexCase::Matters),
            (None, None) if text.is_empty() => {
                self.complain(from.span, "an empty text begins every redirect");
                return None;
            }
            (None, None) => {
                return Some(Redirect::Prefix {
                    from: self.template(from, TemplatePhase::Before),
                    to: self.header_value(to),
                });
            }
        };
        let from = bytes_expression(expression.0, expression.1)
            .map_err(|mistake| self.report.add(mistaken(from.span, mistake)))
            .ok()?;
        let to = self.replacement(to, &from);
        Some(Redirect::Expression { from, to })
    }

    /// A text with variables in which `$1` and `$name` are groups of an expression.
    fn replacement(&mut self, to: &Spanned<Text>, from: &Regex) -> Box<[Replacement]> {
        let mut parts = Vec::new();
        for (piece, range) in pieces(&to.value.text) {
            if let TemplateToken::Name(name) = piece
                && let Some(group) = group(from, name)
            {
                parts.push(Replacement::Group(group));
                continue;
            }
            let piece = to.value.text.get(range.clone()).unwrap_or_default();
            let piece = Spanned {
                value: to.value.slice(piece, range.start),
                span: to.span,
            };
            let template = self.header_value(&piece);
            parts.extend(template.parts.into_iter().map(Replacement::Part));
        }
        parts.into()
    }
}

/// The number of a group of an expression that goes by this name or number.
fn group(expression: &Regex, name: &str) -> Option<usize> {
    let number = name.parse().ok();
    number
        .filter(|number| *number < expression.captures_len())
        .or_else(|| {
            let mut names = expression.capture_names();
            names.position(|known| known == Some(name))
        })
}

/// nginx's `default`: where `proxy_pass` has a path it is replaced by the location's, else the root by the root.
fn default(url: &str, uri: Option<&str>, path: Option<&PathRule>) -> Redirect {
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
