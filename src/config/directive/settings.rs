//! Settings of the top level, a server and a location.
//!
//! Each stands in one of the lists of `settings!` below, with its type, default, inheritance and sentence; a plain one needs
//! nothing else but what it is for. Those without a type that runs have a compiler of their own, some of them here:
//! bandwidth (`limit_rate`), buffering, and what holds for a connection before the location is known.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use self::raw::{Buffers, SizeText};
use super::client::raw::{AccessWord, ProxyProtocol};
use super::content::raw::Fallback;
use super::health::raw::Breaker;
use super::limits::raw::{ConnRule, ReqRule};
use super::limits::{LogLevel, raw as raw_limits};
use super::location::SettingLevels;
use super::proxy_pass::raw::ProxyRedirect;
use super::store::raw::HeaderText;
use crate::config::compile::Compiler;
use crate::config::decode::record::Setting;
#[cfg(test)]
use crate::config::decode::record::SettingRow;
use crate::config::decode::value::{
    Flag, HeaderCount, List, NamedMap, OrOff, RefusalStatus, RequestCount, Size, Streams, Text,
    Time, Tries, mistaken,
};
use crate::config::decode::{Spanned, settings, units, value};
use crate::config::template::{Template, TemplatePhase, Variable};

pub(crate) mod raw {
    //! What the user writes: the settings of all three levels together, and values with a syntax of their own.

    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    pub use super::{
        BufferingDirectives, ClientDirectives, LimitDirectives, ProxyDirectives, ServerDirectives,
    };
    use crate::config::decode::record::record;
    use crate::config::decode::units::ParseError;
    use crate::config::decode::value::{List, RequestCount, Size, Text, scalar_from};
    use crate::config::decode::{Decode, DecodeContext, Field, Required, Spanned, units};
    use crate::config::directive::client::raw::RealIp;
    use crate::config::directive::tls::raw::ProxySsl;
    use crate::config::report::{self, Diagnostic};
    use crate::config::source::{Node, NodeKind};

    record! {
        /// Settings of the top level, of a server and of a location; the inner one holds.
        pub struct Settings {
            /// Whose word is taken for the client's address. Each of its keys is inherited by itself.
            real_ip: Field<RealIp>,
        }
        with limits: LimitDirectives, client: ClientDirectives, proxy: ProxyDirectives, buffering: BufferingDirectives, proxy_ssl: ProxySsl,
    }

    /// `large_client_header_buffers`: a number and a size.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Buffers {
        /// How many.
        pub number: u64,
        /// How large each.
        pub size: u64,
    }

    impl Buffers {
        /// Both multiplied.
        #[must_use]
        pub fn bytes(self) -> u64 {
            self.number.saturating_mul(self.size)
        }
    }

    record! {
        /// A number of buffers and the size of each.
        pub struct BuffersParts {
            /// How many.
            number: Required<RequestCount>,
            /// How large each.
            size: Required<Size>,
        }
    }

    impl Decode for Buffers {
        fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
            if let NodeKind::Mapping(_) = node.kind {
                let parts: BuffersParts = context.record(node)?;
                return Some(Self {
                    number: parts.number.value()?.0,
                    size: parts.size.value()?.0,
                });
            }
            scalar_from(
                node,
                context,
                "a number and a size such as `4 8k`",
                |text| {
                    let (number, size) = text.split_once(' ').ok_or_else(|| {
                        ParseError::new(format!("`{text}` is not a number and a size"))
                            .help("expected for example `4 8k`")
                    })?;
                    Ok(Self {
                        number: units::whole(number, "a number of buffers", 1, 1024)?,
                        size: units::size(size.trim())?,
                    })
                },
            )
        }
    }

    impl JsonSchema for Buffers {
        fn schema_name() -> Cow<'static, str> {
            "Buffers".into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            let parts = generator.subschema_for::<BuffersParts>();
            json_schema!({ "anyOf": [{ "type": "string", "pattern": "^[0-9]+ +[0-9]+[kKmMgG]?$" }, parts] })
        }
    }

    /// `proxy_next_upstream`: a list of words, or one text of them as in nginx.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct NextUpstream(pub Vec<String>);

    /// What may stand there.
    const OCCASIONS: [&str; 12] = [
        "error",
        "timeout",
        "invalid_header",
        "non_idempotent",
        "http_500",
        "http_502",
        "http_503",
        "http_504",
        "http_403",
        "http_404",
        "http_429",
        "off",
    ];

    impl Decode for NextUpstream {
        fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
            let texts = List::<Text>::decode(node, context)?;
            let mut words = Vec::new();
            for Spanned { value, span } in &texts.0 {
                let mut at = 0;
                for word in value.text.split(' ') {
                    let place = value.part(*span, at..at + word.len());
                    at += word.len() + 1;
                    // `off` is a flag in YAML's older dialect, and so may come as one of its other names.
                    let word = match word {
                        "" => continue,
                        "false" | "no" => "off",
                        word => word,
                    };
                    if !OCCASIONS.contains(&word) {
                        let hint = report::hint(word, OCCASIONS).unwrap_or_else(|| {
                            format!("expected some of {}", OCCASIONS.join(", "))
                        });
                        let sentence = format!("`{word}` is no reason to try the next server");
                        context.complain(Diagnostic::new(place, sentence).help(hint));
                    }
                    words.push(word.to_owned());
                }
            }
            if words.len() > 1 && words.iter().any(|word| word == "off") {
                let sentence = "`off` cannot stand beside other words";
                context.complain(Diagnostic::new(node.span, sentence));
            }
            Some(Self(words))
        }
    }

    impl JsonSchema for NextUpstream {
        fn schema_name() -> Cow<'static, str> {
            "NextUpstream".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({
                "anyOf": [
                    { "type": "string" },
                    { "const": false },
                    { "type": "array", "items": { "enum": OCCASIONS } },
                ],
            })
        }
    }

    /// A size, or a text of variables that gives one.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SizeText(pub Text);

    impl Decode for SizeText {
        fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
            Text::decode(node, context).map(Self)
        }
    }

    impl JsonSchema for SizeText {
        fn schema_name() -> Cow<'static, str> {
            "SizeText".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({
                "description": "A size in bytes, or with k, m or g behind it; or a text of variables that gives one.",
                "anyOf": [
                    { "type": "integer", "minimum": 0 },
                    { "type": "string", "pattern": r"^([0-9]+[kKmMgG]?)?$|\$" },
                ],
            })
        }
    }

    record! {
        /// Bounds of what is buffered, of all requests together.
        pub struct BufferBounds {
            /// How much may be kept in memory. Default: 64m.
            memory: Field<Size>,
            /// How much may be kept in files. Default: 1g.
            disk: Field<Size>,
            /// The directory for the files; no file in it ever has a name. Default: /var/tmp.
            path: Field<Text>,
        }
    }
}

settings! {
    /// What is done about limits, where they do not say it themselves.
    pub struct LimitSettings, written LimitDirectives in "top level, server, location" {
        /// Rates to keep to, all of them. An inner list takes the place of an outer one; `off` or `[]` for none.
        limit_req: OrOff<List<ReqRule>>, otherwise "none";
        /// Rates that are proposed: asked and counted beside `limit_req`, and not enforced. An inner list takes the place of an outer one; `off` for none.
        shadow: OrOff<List<ReqRule>>, otherwise "none", see "[shadow](limits.md#shadow)";
        /// Numbers of requests at once to keep to, all of them. An inner list takes the place of an outer one; `off` for none.
        limit_conn: OrOff<List<ConnRule>>, otherwise "none";
        /// The status of a request that `limit_req` refuses, 400 to 599 (nginx: 503).
        limit_req_status: RefusalStatus => StatusCode = "429";
        /// The status of a request that `limit_conn` refuses, 400 to 599.
        limit_conn_status: RefusalStatus => StatusCode = "503";
        /// Only report what `limit_req` would do.
        limit_req_dry_run: Flag => bool = "off";
        /// Only report what `limit_conn` would do.
        limit_conn_dry_run: Flag => bool = "off";
        /// The level at which a refusal by `limit_req` is logged: `info`, `notice`, `warn` or `error`; a delay goes one lower.
        limit_req_log_level: value::LogLevel => LogLevel = "error";
        /// The level at which a refusal by `limit_conn` is logged: `info`, `notice`, `warn` or `error`.
        limit_conn_log_level: value::LogLevel => LogLevel = "error";
        /// Which header fields tell clients of their limits besides `Retry-After`: `ietf` for `RateLimit` and `RateLimit-Policy`, `legacy` for `X-RateLimit-Limit`, `-Remaining` and `-Reset`, or `off`. They stand on refusals; a mapping (`form`, `on`) also says on which responses.
        limit_headers: raw_limits::LimitHeaders, default "ietf", see "[what a client is told](limits.md#what-a-client-is-told)";
    }
}

settings! {
    /// What holds between weir and a client.
    pub struct ClientSettings, written ClientDirectives in "top level, server, location" {
        /// Addresses, networks, `all` or `unix:` that may come in. Where it is given, no others may.
        allow: List<AccessWord>, otherwise "none", see "[access by address](#access-by-address)";
        /// Addresses, networks, `all` or `unix:` that may not come in. Of `allow` and `deny` the longest prefix holds.
        deny: List<AccessWord>, otherwise "none", see "[access by address](#access-by-address)";
        /// The largest request body; 0 for no limit.
        client_max_body_size: Size => u64 = "1m";
        /// How long a client may take between two pieces of its body.
        client_body_timeout: Time => Duration = "60s", check nonzero;
        /// How many bytes a second a client's body has to come with, on average over `client_body_timeout`; 0 for any speed.
        client_body_min_rate: Size => u64 = "100", see "[slow clients](clients.md#slow-clients)";
        /// How long a connection may idle between requests; 0 closes it after each.
        keepalive_timeout: Time => Option<Duration> = "75s";
        /// How many requests a connection carries.
        keepalive_requests: RequestCount => u64 = "1000";
        /// How long a client may take between two pieces of the response.
        send_timeout: Time => Duration = "60s", check nonzero;
        /// How many bytes a second of the response a client has to take, on average over `send_timeout`; 0 for any speed.
        send_min_rate: Size => u64 = "100", see "[slow clients](clients.md#slow-clients)";
        /// How fast a response leaves, in bytes a second: a size as `100k`, or a template that gives one; 0 or nothing for any speed.
        limit_rate: SizeText, default "0", see "[bandwidth](bandwidth.md)";
        /// How much of a response leaves before `limit_rate` holds: a size, or a template that gives one.
        limit_rate_after: SizeText, default "0";
        /// How long to wait for more of what a client sends after its response, before closing.
        lingering_timeout: Time => Duration = "5s";
    }
}

impl ClientSettings {
    /// The largest request body; `None` for no limit.
    // Not kept as an `Option`: every idle connection has a copy of these settings, and would be eight bytes larger.
    #[must_use]
    pub fn max_body_size(&self) -> Option<u64> {
        (self.client_max_body_size != 0).then_some(self.client_max_body_size)
    }
}

settings! {
    /// How requests are sent on.
    pub struct ProxySettings, written ProxyDirectives in "top level, server, location" {
        /// Headers to send on, in place of the client's: the values are templates, an empty one removes the header. An inner mapping takes the place of an outer one.
        proxy_set_header: NamedMap<HeaderText>, otherwise "see below";
        /// What is changed about `Location` and `Refresh` of responses: `default` to put the location's path in place of the URL of `proxy_pass`, pairs of what they begin with and what takes its place, or `off`. An inner list takes the place of an outer one.
        proxy_redirect: ProxyRedirect, default "default", see "[redirects](#redirects)";
        /// What upstreams are spoken to in: `1.1`, or `2` with many requests on one connection, which `grpc_pass` means where nothing is said.
        proxy_http_version: value::HttpVersion, default "1.1", see "[HTTP/2](http2.md#upstreams)";
        /// Whether upstreams are told the client's address by a PROXY header: `on` or `v1`, `v2`, or `off`. Each request then has a connection of its own.
        proxy_protocol: ProxyProtocol, default "off", see "[clients](clients.md#proxy-protocol)";
        /// How long connecting to an upstream may take.
        proxy_connect_timeout: Time => Duration = "60s", check nonzero;
        /// How long an upstream may take between two pieces of the request.
        proxy_send_timeout: Time => Duration = "60s", check nonzero;
        /// How long an upstream may take between two pieces of its response; in a tunnel, how long neither side may be silent.
        proxy_read_timeout: Time => Duration = "60s", check nonzero;
        /// How many header fields an upstream's response may have; all together 64k.
        proxy_max_headers: HeaderCount => usize = "1000";
        /// When the next server is tried: `error`, `timeout`, `invalid_header`, `non_idempotent`, `http_500`, `http_502`, `http_503`, `http_504`, `http_403`, `http_404`, `http_429`, or `off`; a list, or one text with spaces.
        proxy_next_upstream: raw::NextUpstream, default "error timeout";
        /// How many servers are tried at most; 0 for each once.
        proxy_next_upstream_tries: Tries, default "0";
        /// For how long another server may be tried; 0 for no limit.
        proxy_next_upstream_timeout: Time, default "0";
        /// Answers 503 at once for a while where the location's requests fail too often; `{}` for one with all defaults.
        breaker: OrOff<Breaker>, default "off", see "[circuit breakers](resilience.md#circuit-breakers)";
        /// What is answered when the upstream's response is not to be had.
        fallback: OrOff<Fallback>, default "off", see "[fallbacks](resilience.md#fallbacks)";
        /// One of `degrade_groups`, with which this is turned off and on.
        degrade_group: Text, otherwise "none", see "[degrade groups](resilience.md#degrade-groups)";
        /// Whether a client's `Upgrade` (WebSocket and others, never h2c) is sent on, and a tunnel made where the upstream agrees.
        proxy_upgrade: Flag => bool = "on", see "[upgrades](http.md#upgrades)";
        /// Whether header fields with an underscore in their name are sent on. Many backends cannot tell them from those with a hyphen.
        underscores_in_headers: Flag => bool = "off";
        /// Whether upstreams are sent a `Via` header.
        via: Flag => bool = "on";
    }
}

settings! {
    /// Buffering between clients and upstreams.
    pub(in crate::config) struct BufferingSettings, written BufferingDirectives in "top level, server, location" {
        /// Whether a request's body is read whole before an upstream is asked.
        proxy_request_buffering: Flag => bool = "on", see "[buffering](buffering.md)";
        /// How much of a request's body is kept in memory; what is longer goes to a file.
        client_body_buffer_size: Size => usize = "16k", check up_to_1g;
        /// The directory for files with request bodies; no file in it ever has a name.
        client_body_temp_path: Text, otherwise "`path` of `buffers`";
        /// Whether a response is read as fast as the upstream sends it; what the client cannot take yet is kept.
        proxy_buffering: Flag => bool = "on", see "[buffering](buffering.md)";
        /// How much of a response is kept in memory for a slow client: number and size, multiplied.
        proxy_buffers: Buffers => usize = "8 4k", check response_buffers;
        /// How much of a response is kept in a file beyond that; 0 for no file.
        proxy_max_temp_file_size: Size => u64 = "1024m";
    }
}

settings! {
    /// Settings that hold before the location is known, hence at the top level and in a server only.
    pub(in crate::config) struct ServerSettings, written ServerDirectives in "top level, server" {
        /// How long a client may take for the headers of a request.
        client_header_timeout: Time => Duration = "60s", check nonzero;
        /// The first piece of memory for a request's headers; it grows as needed.
        client_header_buffer_size: Size, default "1k";
        /// How large a request's headers may be: number and size, multiplied; also `{ number: 4, size: 8k }`. There may be at most 100 fields.
        large_client_header_buffers: Buffers => usize = "4 8k", check header_buffers;
        /// Whether clients may speak HTTP/2, which they choose with TLS or say first.
        http2: Flag, default "on", see "[HTTP/2](http2.md)";
        /// How many requests a client may have under way at once on an HTTP/2 connection.
        http2_max_concurrent_streams: Streams => u32 = "128";
        /// How many requests a client may reset at once on an HTTP/2 connection; a tenth of that it may reset every second.
        http2_max_resets: Streams, otherwise "twice `http2_max_concurrent_streams`, at least 200", see "[floods](http2.md#floods)";
    }
}

/// The settings that `settings!` declares: the name of a table in docs/configuration.md, where they may stand, its rows.
#[cfg(test)]
pub(in crate::config) const REFERENCE: [(&str, &str, &[SettingRow]); 5] = [
    (
        "limits",
        LimitDirectives::CONTEXTS,
        LimitDirectives::REFERENCE,
    ),
    (
        "clients",
        ClientDirectives::CONTEXTS,
        ClientDirectives::REFERENCE,
    ),
    (
        "proxying",
        ProxyDirectives::CONTEXTS,
        ProxyDirectives::REFERENCE,
    ),
    (
        "buffering",
        BufferingDirectives::CONTEXTS,
        BufferingDirectives::REFERENCE,
    ),
    (
        "connections",
        ServerDirectives::CONTEXTS,
        ServerDirectives::REFERENCE,
    ),
];

/// Declares what runs where a value is written.
macro_rules! plan_of {
    ( $( $type:ty => $plan:ty, |$value:ident| $run:expr; )* ) => {
        $( impl Setting<$plan> for $type {
            fn plan(&self) -> $plan {
                let $value = self;
                $run
            }
        } )*
    };
}

plan_of! {
    Flag => bool, |flag| flag.0;
    Time => Duration, |time| time.0;
    Time => Option<Duration>, |time| Some(time.0).filter(|time| !time.is_zero());
    Size => u64, |size| size.0;
    Size => Option<u64>, |size| Some(size.0).filter(|size| *size > 0);
    Size => usize, |size| usize::try_from(size.0).unwrap_or(usize::MAX);
    Buffers => usize, |buffers| usize::try_from(buffers.bytes()).unwrap_or(usize::MAX);
    RequestCount => u64, |count| count.0;
    HeaderCount => usize, |count| count.0;
    Streams => u32, |count| count.0;
    value::LogLevel => LogLevel, |level| level.0;
    // Numbers from 400 to 599 are statuses; the decoder knows no others.
    RefusalStatus => StatusCode, |status| StatusCode::from_u16(status.0).unwrap_or_default();
}

/// A timeout that must not be zero.
fn nonzero(compiler: &mut Compiler<'_>, given: &Spanned<Time>, default: &str) {
    if given.value.0.is_zero() {
        compiler.complain_with(
            given.span,
            "a timeout of nothing would end everything at once",
            format!("the default is {default}"),
        );
    }
}

/// Memory of one request.
fn up_to_1g(compiler: &mut Compiler<'_>, given: &Spanned<Size>, _: &str) {
    if given.value.0 > MOST_MEMORY {
        let sentence = "more than 1g of memory for each request";
        compiler.complain_with(given.span, sentence, "what is longer is kept in a file");
    }
}

/// Memory of one response.
fn response_buffers(compiler: &mut Compiler<'_>, given: &Spanned<Buffers>, default: &str) {
    let bytes = given.value.bytes();
    if bytes == 0 || bytes > MOST_MEMORY {
        let sentence = "buffers of nothing, or of more than 1g";
        compiler.complain_with(given.span, sentence, format!("the default is `{default}`"));
    }
}

/// Memory of one request's headers.
fn header_buffers(compiler: &mut Compiler<'_>, given: &Spanned<Buffers>, _: &str) {
    if !(1024..=MOST_HEAD).contains(&given.value.bytes()) {
        compiler.complain_with(
            given.span,
            "no sensible size for a request's head",
            "number and size multiplied give 1k to 16m",
        );
    }
}

/// `limit_rate` and `limit_rate_after`
#[derive(Debug, Clone, Default)]
pub struct LimitRate {
    /// Bytes a second; 0 for any speed.
    pub rate: SizeTemplate,
    /// Bytes that leave at any speed first.
    pub after: SizeTemplate,
}

/// A number of bytes.
#[derive(Debug, Clone)]
pub enum SizeTemplate {
    /// The same for every answer.
    Fixed(u64),
    /// What this text gives, once there is an answer.
    Told(Template),
}

impl LimitRate {
    /// Whether it depends on a variable like this.
    #[must_use]
    pub fn may_use(&self, like: impl Fn(&Variable) -> bool) -> bool {
        [&self.rate, &self.after].into_iter().any(|it| match it {
            SizeTemplate::Fixed(_) => false,
            SizeTemplate::Told(template) => template.may_use(&like),
        })
    }
}

impl SizeTemplate {
    /// What a text of variables came to: a size, and nothing for an empty one.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<u64> {
        if text.is_empty() {
            return Some(0);
        }
        units::size(std::str::from_utf8(text).ok()?).ok()
    }
}

impl Default for SizeTemplate {
    fn default() -> Self {
        Self::Fixed(0)
    }
}

/// `buffers`: bounds over all requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferBounds {
    /// `memory`, in bytes.
    pub memory: u64,
    /// `disk`, in bytes.
    pub disk: u64,
}

impl Default for BufferBounds {
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            disk: 1 << 30,
        }
    }
}

/// What is buffered of requests that are sent on, and of their responses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffering {
    /// `None` for `proxy_request_buffering: off`.
    pub request: Option<RequestBuffering>,
    /// `proxy_buffering`
    pub response: ResponseBuffering,
}

/// `proxy_request_buffering: on`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestBuffering {
    /// `client_body_buffer_size`, in bytes.
    pub memory: usize,
    /// `client_body_temp_path`
    pub path: Arc<Path>,
}

/// What holds for a response that is buffered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseBuffering {
    /// `proxy_buffering`: whether responses are buffered that do not say so themselves.
    pub on: bool,
    /// `proxy_buffers`, in bytes.
    pub memory: usize,
    /// `proxy_max_temp_file_size`, in bytes.
    pub disk: u64,
    /// `path` of `buffers`.
    pub path: Arc<Path>,
}

/// Largest head accepted in a configuration: every connection may make us keep as much.
const MOST_HEAD: u64 = 16 << 20;

/// A page that is left takes all its streams with it, twice; so many resets are allowed at least.
const MAX_RESETS: u32 = 200;

/// `http2`
pub(in crate::config) fn http2<'c>(mut levels: impl Iterator<Item = &'c ServerDirectives>) -> bool {
    let flag = levels.find_map(|level| level.http2.value());
    spoken(flag.map(|flag| flag.0), false).unwrap_or(true)
}

/// `http2_max_resets`
pub(in crate::config) fn max_resets<'c>(
    mut levels: impl Iterator<Item = &'c ServerDirectives>,
    max_streams: u32,
) -> u32 {
    let most = levels.find_map(|level| level.http2_max_resets.value());
    most.map_or_else(
        || max_streams.saturating_mul(2).max(MAX_RESETS),
        |most| most.0,
    )
}

/// Whether HTTP/2 is spoken, by a flag or else by the word.
pub(in crate::config) fn spoken(flag: Option<bool>, word: bool) -> Option<bool> {
    flag.or_else(|| word.then_some(true))
}

impl Compiler<'_> {
    /// How fast answers may leave where `levels` hold.
    pub(in crate::config) fn bandwidth(&mut self, levels: SettingLevels<'_>) -> LimitRate {
        LimitRate {
            rate: self.volume(levels.find(|s| &s.client.limit_rate)),
            after: self.volume(levels.find(|s| &s.client.limit_rate_after)),
        }
    }

    fn volume(&mut self, given: Option<&Spanned<SizeText>>) -> SizeTemplate {
        let Some(Spanned { value, span }) = given else {
            return SizeTemplate::default();
        };
        let text = Spanned {
            value: value.0.clone(),
            span: *span,
        };
        let template = self.template(&text, TemplatePhase::After);
        match template.as_literal() {
            Some("") => SizeTemplate::default(),
            Some(size) => {
                let bytes = units::size(size).map_err(|mistake| {
                    self.report.add(mistaken(*span, mistake));
                });
                SizeTemplate::Fixed(bytes.unwrap_or(0))
            }
            None => SizeTemplate::Told(template),
        }
    }
}

impl Compiler<'_> {
    /// `buffers`, but for its path.
    pub(in crate::config) fn buffer_bounds(&mut self) -> BufferBounds {
        let default = BufferBounds::default();
        let Some(given) = self.config.buffers.value() else {
            return default;
        };
        let memory = given.memory.get();
        if let Some(memory) = memory.filter(|memory| memory.value.0 < LEAST_MEMORY) {
            self.complain_with(
                memory.span,
                "too little memory to buffer anything",
                "the least is 1m; `proxy_buffering: off` and `proxy_request_buffering: off` buffer nothing",
            );
        }
        BufferBounds {
            memory: memory.map_or(default.memory, |memory| memory.value.0),
            disk: given.disk.value().map_or(default.disk, |disk| disk.0),
        }
    }

    /// What is buffered where `levels` hold.
    pub(in crate::config) fn buffering(&mut self, levels: SettingLevels<'_>) -> Buffering {
        let settings = BufferingSettings::merge(levels.iter().map(|s| &s.buffering), self);
        let path = match levels.find(|s| &s.buffering.client_body_temp_path) {
            Some(given) => self.directory(given),
            None => self.buffers_path(),
        };
        Buffering {
            request: settings
                .proxy_request_buffering
                .then_some(RequestBuffering {
                    memory: settings.client_body_buffer_size,
                    path,
                }),
            response: ResponseBuffering {
                on: settings.proxy_buffering,
                memory: settings.proxy_buffers,
                disk: settings.proxy_max_temp_file_size,
                path: self.buffers_path(),
            },
        }
    }

    /// `path` of `buffers`.
    fn buffers_path(&mut self) -> Arc<Path> {
        let buffers = self.config.buffers.value();
        match buffers.and_then(|buffers| buffers.path.get()) {
            Some(given) => self.directory(given),
            None => Arc::from(Path::new(DEFAULT_PATH)),
        }
    }

    /// A directory for temporary files, to be looked at later.
    fn directory(&mut self, given: &Spanned<Text>) -> Arc<Path> {
        if let Some(known) = self.temp_paths.iter().find(|it| it.span == given.span) {
            return Arc::from(&*known.path);
        }
        let directory = self.file(given);
        let path = Arc::from(&*directory.path);
        self.temp_paths.push(directory);
        path
    }
}

/// Where temporary files are that nobody has named a place for: on a disk, where `/tmp` is often memory.
const DEFAULT_PATH: &str = "/var/tmp";

/// Less is used up by a handful of slow clients.
const LEAST_MEMORY: u64 = 1 << 20;

/// Of one request.
const MOST_MEMORY: u64 = 1 << 30;

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_text_gives_a_size_or_nothing() {
        assert_eq!(SizeTemplate::parse(b""), Some(0));
        assert_eq!(SizeTemplate::parse(b"10k"), Some(10_240));
        for wrong in [&b"fast"[..], b"-1", b"1.5k", b"\xff"] {
            assert_eq!(SizeTemplate::parse(wrong), None);
        }
    }
}
