//! Responses without the upstream: `return`, and the parts of `fallback` that are such responses; `degrade_groups`.

use std::time::Duration;

use http::StatusCode;

use super::refusal::{BodyFormat, RefusalBody, check_content_type};
use crate::config::compile::{Compiler, Resolved};
use crate::config::decode::value::{NamedMap, Text};
use crate::config::decode::{Field, Spanned, units};
use crate::config::report::{self, ParseError, Report};
use crate::config::source::Span;
use crate::config::template::{Template, TemplatePhase, Variable};

pub(crate) mod raw {
    //! `return`, `fallback` and `degrade_groups` as the user writes them.
    use std::time::Duration;

    use schemars::json_schema;

    use crate::config::decode::record::record;
    use crate::config::decode::value::{
        Flag, HasShorthand, List, Shorthand, Text, Time, nonzero, one_of, scalar, schema,
    };
    use crate::config::decode::{Decode, DecodeContext, Field};
    use crate::config::directive::content;
    use crate::config::source::{Node, NodeKind};

    record! {
        /// What is sent when the upstream's response is not available; of several kinds the first that is available.
        pub(crate) struct Fallback {
            /// When: open, no_server, timeout, error, limited, or statuses of 400 to 599.
            on: Field<List<Text>> = "open, no_server, timeout, error, 500, 502, 503, 504" => Vec<Box<str>>,
            /// First: another upstream, written as for a location. Only for requests that may be sent again.
            proxy_pass: Field<Text>,
            /// Second: the last good response, no older than this time, of those that HTTP allows a shared cache to keep; or a mapping.
            stale: Field<Shorthand<Stale>>,
            /// Third: a fixed response.
            r#return: Field<Return>,
        }
        instead fixed;
    }

    record! {
        /// Which last good responses are sent again.
        pub(crate) struct Stale {
            /// The greatest age of a response.
            max_age: Field<Time> = "10m" => Duration; if nonzero,
            /// Distinguishes requests in addition to virtual server, scheme, host and target: a template.
            key: Field<Text>,
            /// Responses to requests with credentials are kept, too, each for requests with the same `key`.
            private: Field<Flag> = "false" => bool,
        }
    }

    impl HasShorthand for Stale {
        const KEY: &'static str = "max_age";
    }

    /// A text that reads like a `return` is meant as one.
    fn fixed(text: &str) -> Option<String> {
        let is_status = text.starts_with(|first: char| first.is_ascii_digit());
        is_status.then(|| format!("write `{{ return: \"{text}\" }}`"))
    }

    scalar! {
        /// Whether a group is degraded.
        pub(crate) struct DegradeMode(content::DegradeMode);
        "`auto`, `on` or `off`",
        // Both are also flags of YAML's older dialect.
        |text| {
            let text = match text {
                "true" | "yes" => "on",
                "false" | "no" => "off",
                text => text,
            };
            let modes = [content::DegradeMode::Auto, content::DegradeMode::On, content::DegradeMode::Off];
            one_of(text, "a degrade mode", &modes.map(|mode| (mode.as_str(), mode)))
        },
        { "enum": ["auto", "on", "off", true, false] }
    }

    /// `return`, as nginx writes it or in parts.
    #[derive(Debug, Clone)]
    pub(crate) enum Return {
        /// In parts.
        Parts(Box<ReturnParts>),
        /// `204`, `200 text`, `301 https://…` or `https://…`.
        Text(Text),
    }

    record! {
        /// A response without an upstream.
        pub(crate) struct ReturnParts {
            /// Its status; 444 closes the connection without a response. Default: 302 with `url`, else 200.
            status: Field<Text>,
            /// Its text. Default: a page about the status.
            body: Field<Text>,
            /// The type of the text.
            content_type: Field<Text> = "text/plain" => Box<str>,
            /// Where a redirect leads.
            url: Field<Text>,
            /// The same as `url`.
            location: Field<Text>,
        }
    }

    impl Decode for Return {
        fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
            match node.kind {
                NodeKind::Mapping(_) => context
                    .record(node)
                    .map(|parts| Self::Parts(Box::new(parts))),
                NodeKind::Scalar(_) => Text::decode(node, context).map(Self::Text),
                NodeKind::Null | NodeKind::Sequence(_) | NodeKind::Unset => {
                    let what = "a status, or a mapping with `status` and `body` or `url`";
                    context.type_error(node, what);
                    None
                }
            }
        }
    }

    schema! {
        Return = "Return", |generator| {
            let parts = generator.subschema_for::<ReturnParts>();
            json_schema!({ "anyOf": [{ "type": ["integer", "string"] }, parts] })
        };
    }
}

/// Which last good responses are sent again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stale {
    /// Those no older than this.
    pub max_age: Duration,
    /// Distinguishes requests in addition to server, scheme, host and target.
    pub key: Option<Template>,
    /// Whether responses to one client are kept, too, for that client.
    pub private: bool,
}

/// When a fallback is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FallbackTriggers {
    /// `error`: no connection, or it broke, or the response was invalid.
    pub error: bool,
    /// `limited`: a limit refused.
    pub limited: bool,
    /// `no_server`: no server was available.
    pub no_server: bool,
    /// `open`: a breaker is open.
    pub open: bool,
    /// `timeout`
    pub timeout: bool,
    /// Responses with these statuses.
    pub statuses: Vec<StatusCode>,
}

/// One of `degrade_groups`.
#[derive(Debug, Clone)]
pub struct DegradeGroup {
    /// Its name.
    pub name: Box<str>,
    /// Its mode, until the API changes it.
    pub mode: DegradeMode,
}

/// Whether a group of locations is degraded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DegradeMode {
    /// Fallbacks are used where there is a reason to.
    #[default]
    Auto,
    /// Fallbacks are never used: clients see the errors.
    Off,
    /// Fallbacks are always used: the upstream gets no requests.
    On,
}

impl DegradeMode {
    /// As it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::On => "on",
        }
    }
}

/// `return`
#[derive(Debug, Clone)]
pub struct Return {
    /// The status; 444 closes without a response.
    pub status: u16,
    /// The body.
    pub body: ReturnBody,
}

/// The body of a `return`.
#[derive(Debug, Clone)]
pub enum ReturnBody {
    /// A redirect to this address.
    Location(Template),
    /// weir's own page for the status.
    Page,
    /// This text.
    Text {
        /// The text.
        text: RefusalBody,
        /// Its `Content-Type`.
        content_type: Box<str>,
    },
}

/// The words of `on`; statuses may stand beside them.
const TRIGGERS: [&str; 5] = ["open", "no_server", "timeout", "error", "limited"];

/// The statuses of redirects.
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

/// Closes the connection without a response, as nginx's.
const CLOSE: u16 = 444;

/// `degrade_groups`, in the file's order.
pub(crate) fn degrade_groups(named: &Field<NamedMap<raw::DegradeMode>>) -> Vec<DegradeGroup> {
    let groups = named.entries().iter().map(|(name, mode)| DegradeGroup {
        name: name.value.as_str().into(),
        mode: mode.value.0,
    });
    groups.collect()
}

/// The group a location belongs to.
pub(crate) fn degrade_group(given: &Field<Text>, compiler: &mut Compiler<'_>) -> Option<usize> {
    let given = given.get()?;
    let name = given.value.text.as_str();
    match compiler.degrade_groups.find(name) {
        Resolved::At(index) => Some(index),
        Resolved::Broken => None,
        Resolved::Nowhere => {
            let hint = report::hint(name, compiler.degrade_groups.all())
                .unwrap_or_else(|| format!("define it: `degrade_groups: {{ {name}: auto }}`"));
            let sentence = format!("unknown group `{name}`");
            compiler.report.error_with(given.span, sentence, hint);
            None
        }
    }
}

impl Stale {
    /// `stale`
    pub(crate) fn compile(given: &raw::Stale, compiler: &mut Compiler<'_>) -> Self {
        let key = given.key.get();
        let template = key.map(|key| Template::compile(key, TemplatePhase::Before, compiler));
        let private = given.private.get().filter(|private| private.value.0);
        if let Some(private) = private {
            let secret = "a variable whose value only one client knows, such as `$http_authorization`, \
                          `$cookie_session` or `$ssl_client_fingerprint`";
            match (key, &template) {
                (Some(key), Some(template)) => {
                    if !template.variables().any(Variable::is_secret) {
                        let sentence = "this `key` does not distinguish clients";
                        let hint = format!("add {secret}");
                        compiler.report.error_with(key.span, sentence, hint);
                    }
                }
                _ => {
                    let sentence = "`private: true` without a `key` would show one client's responses to others";
                    let hint = format!("add a `key` with {secret}");
                    compiler.report.error_with(private.span, sentence, hint);
                }
            }
        }
        Self {
            max_age: given.max_age(),
            key: template,
            private: given.private(),
        }
    }
}

impl FallbackTriggers {
    /// `on` of a `fallback`
    pub(crate) fn compile(given: &raw::Fallback, report: &mut Report) -> Self {
        let mut on = Self::default();
        for (index, word) in given.on().iter().enumerate() {
            match &**word {
                "error" => on.error = true,
                "limited" => on.limited = true,
                "no_server" => on.no_server = true,
                "open" => on.open = true,
                "timeout" => on.timeout = true,
                text => {
                    // The words of the default stand in no file, and are right.
                    let span = given
                        .on
                        .items()
                        .get(index)
                        .map_or(Span::NOWHERE, |it| it.span);
                    let status = report.parsed(span, trigger_status(text));
                    on.statuses.extend(status);
                }
            }
        }
        on
    }
}

fn trigger_status(text: &str) -> Result<StatusCode, ParseError> {
    let text = text.strip_prefix("http_").unwrap_or(text);
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        let hint = report::hint(text, TRIGGERS)
            .unwrap_or_else(|| format!("expected some of {}, or statuses", TRIGGERS.join(", ")));
        return Err(ParseError::new(format!("`{text}` is not a trigger of fallbacks")).help(hint));
    }
    let status = units::whole(text, "a status", 400, 599)?;
    let status = u16::try_from(status)
        .ok()
        .and_then(|it| StatusCode::from_u16(it).ok());
    Ok(status.unwrap_or_default())
}

impl Return {
    /// A `return`.
    pub(crate) fn compile(
        given: &Spanned<raw::Return>,
        compiler: &mut Compiler<'_>,
    ) -> Option<Self> {
        match &given.value {
            raw::Return::Parts(parts) => Self::from_parts(parts, given.span, compiler),
            raw::Return::Text(text) => Self::from_text(text, given.span, compiler),
        }
    }

    /// nginx's form: `204`, `200 text`, `301 https://…` or `https://…` alone.
    fn from_text(text: &Text, span: Span, compiler: &mut Compiler<'_>) -> Option<Self> {
        let whole = text.text.trim();
        let is_url = |start: &&str| whole.starts_with(start);
        if ["http://", "https://", "$scheme"].iter().any(is_url) {
            let value = text.clone();
            let url = Template::compile_header(&Spanned { value, span }, compiler);
            return Some(Self {
                status: 302,
                body: ReturnBody::Location(url),
            });
        }
        let (status, rest) = whole.split_once(' ').unwrap_or((whole, ""));
        let status = return_status(status, span, compiler.report)?;
        let rest = Spanned {
            value: text.tail(rest.trim_start()),
            span,
        };
        let rest = Some(&rest).filter(|rest| !rest.value.text.is_empty());
        let is_redirect = REDIRECTS.contains(&status);
        let parts = ReturnFields {
            body: rest.filter(|_| !is_redirect),
            url: rest.filter(|_| is_redirect),
        };
        let content_type = raw::ReturnParts::default().content_type();
        Self::new(status, parts, content_type, span, compiler)
    }

    fn from_parts(
        given: &raw::ReturnParts,
        span: Span,
        compiler: &mut Compiler<'_>,
    ) -> Option<Self> {
        let report = &mut *compiler.report;
        let parts = ReturnFields {
            body: given.body.get(),
            url: given.url.get().or_else(|| given.location.get()),
        };
        if let (Some(_), Some(second)) = (given.url.get(), given.location.get()) {
            let sentence = "`url` and `location` mean the same; give one of them";
            report.error(second.span, sentence);
        }
        let status = match given.status.get() {
            Some(status) => return_status(&status.value.text, status.span, report)?,
            None if parts.url.is_some() => 302,
            None => 200,
        };
        if let Some(content_type) = given.content_type.get() {
            check_content_type(content_type, parts.body.is_some(), report);
        }
        Self::new(status, parts, given.content_type(), span, compiler)
    }

    fn new(
        status: u16,
        ReturnFields { body, url }: ReturnFields<'_>,
        content_type: Box<str>,
        span: Span,
        compiler: &mut Compiler<'_>,
    ) -> Option<Self> {
        let is_redirect = REDIRECTS.contains(&status);
        let report = &mut *compiler.report;
        let body = match (body, url) {
            (Some(body), Some(_)) => {
                report.error(body.span, "a redirect has no `body`");
                return None;
            }
            (None, Some(url)) if !is_redirect => {
                let sentence = format!("{status} is not the status of a redirect");
                report.error_with(
                    url.span,
                    sentence,
                    "expected one of 301, 302, 303, 307, 308",
                );
                return None;
            }
            (None, Some(url)) => ReturnBody::Location(Template::compile_header(url, compiler)),
            (_, None) if is_redirect => {
                let sentence = format!("a redirect with status {status} needs a `url`");
                let hint = "write `{ status: 301, url: \"https://$host$request_uri\" }`";
                report.error_with(span, sentence, hint);
                return None;
            }
            (Some(body), None) if matches!(status, 204 | 304 | CLOSE) => {
                let sentence = format!("a response with status {status} has no body");
                report.error(body.span, sentence);
                return None;
            }
            (Some(body), None) => ReturnBody::Text {
                text: RefusalBody {
                    text: Template::compile(body, TemplatePhase::After, compiler),
                    form: BodyFormat::of(&content_type),
                },
                content_type,
            },
            (None, None) => ReturnBody::Page,
        };
        Some(Self { status, body })
    }
}

/// The parts of a `return` that are templates.
struct ReturnFields<'a> {
    body: Option<&'a Spanned<Text>>,
    url: Option<&'a Spanned<Text>>,
}

fn return_status(text: &str, span: Span, report: &mut Report) -> Option<u16> {
    let status = report.parsed(span, units::whole(text, "a status", 200, 599))?;
    u16::try_from(status).ok()
}
