//! How fast answers may leave.
//!
//! What of requests and responses is buffered, and within which bounds.
//!
//! What holds for a connection before the location of its first request is known.
//!
//! `limit_rate` and `limit_rate_after`.
//!
//! `buffers`, and what is buffered at a location.

use std::path::Path;
use std::sync::Arc;

use self::raw::SizeText;
use super::location::SettingLevels;
use crate::config::compile::Compiler;
use crate::config::decode::value::{Size, Text, mistaken};
use crate::config::decode::{Field, Spanned, units};
use crate::config::plan::Http2;
use crate::config::template::{Template, TemplatePhase, Variable};

pub(crate) mod raw {
    //! What may stand at the top level, in a server and in a location, written once for all three.
    //! What `limit_rate` may say.
    //! What of requests and responses is buffered, and within which bounds.
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use crate::config::decode::record::record;
    use crate::config::decode::units::ParseError;
    use crate::config::decode::value::{
        Flag, HeaderCount, HttpVersion, List, LogLevel, NamedMap, OrOff, RefusalStatus,
        RequestCount, Size, Streams, Text, Time, Tries, scalar_from,
    };
    use crate::config::decode::{Decode, DecodeContext, Field, Required, Spanned, units};
    use crate::config::directive::client::raw::{AccessWord, ProxyProtocol, RealIp};
    use crate::config::directive::content::raw::Fallback;
    use crate::config::directive::health::raw::Breaker;
    use crate::config::directive::limits::raw::{ConnRule, LimitHeaders, ReqRule};
    use crate::config::directive::proxy_pass::raw::ProxyRedirect;
    use crate::config::directive::store::raw::HeaderText;
    use crate::config::directive::tls::raw::ProxySsl;
    use crate::config::report;
    use crate::config::report::Diagnostic;
    use crate::config::source::{Node, NodeKind};

    record! {
        /// Settings of the top level, of a server and of a location; the inner one holds.
        pub struct Settings {
            /// Rates to keep to, all of them. An inner list takes the place of an outer one; `off` for none.
            limit_req: Field<OrOff<List<ReqRule>>>,
            /// Rates that are proposed: asked and counted beside `limit_req`, and not enforced. An inner list takes the place of an outer one; `off` for none.
            shadow: Field<OrOff<List<ReqRule>>>,
            /// Numbers of requests at once to keep to, all of them. An inner list takes the place of an outer one; `off` for none.
            limit_conn: Field<OrOff<List<ConnRule>>>,
            /// The status of a request that `limit_req` refuses, 400 to 599. Default: 429 (nginx: 503).
            limit_req_status: Field<RefusalStatus>,
            /// The status of a request that `limit_conn` refuses, 400 to 599. Default: 503.
            limit_conn_status: Field<RefusalStatus>,
            /// Only report what `limit_req` would do. Default: false.
            limit_req_dry_run: Field<Flag>,
            /// Only report what `limit_conn` would do. Default: false.
            limit_conn_dry_run: Field<Flag>,
            /// At which level a refusal by `limit_req` is logged; a delay goes one lower. Default: error.
            limit_req_log_level: Field<LogLevel>,
            /// At which level a refusal by `limit_conn` is logged. Default: error.
            limit_conn_log_level: Field<LogLevel>,
            /// Which header fields tell clients of their limits besides Retry-After: `ietf` for RateLimit and RateLimit-Policy, `legacy` for X-RateLimit-*, or `off`; a mapping also says on which responses. Default: ietf, on refusals.
            limit_headers: Field<LimitHeaders>,
            /// Who may come in: addresses, networks, `all` or `unix:`. Where it is given, everybody else may not.
            allow: Field<List<AccessWord>>,
            /// Who may not come in. Of `allow` and `deny` the longest prefix holds.
            deny: Field<List<AccessWord>>,
            /// Whose word is taken for the client's address. Each of its keys is inherited by itself.
            real_ip: Field<RealIp>,
            /// The largest request body; 0 for no limit. Default: 1m.
            client_max_body_size: Field<Size>,
            /// How long a client may take between two pieces of its body. Default: 60s.
            client_body_timeout: Field<Time>,
            /// How many bytes a second a client's body has to come with, on average over client_body_timeout; 0 for any speed. Default: 100.
            client_body_min_rate: Field<Size>,
            /// How long a connection may idle between requests; 0 closes it after each. Default: 75s.
            keepalive_timeout: Field<Time>,
            /// How many requests a connection carries. Default: 1000.
            keepalive_requests: Field<RequestCount>,
            /// How long a client may take between two pieces of the answer. Default: 60s.
            send_timeout: Field<Time>,
            /// How many bytes a second of the answer a client has to take, on average over send_timeout; 0 for any speed. Default: 100.
            send_min_rate: Field<Size>,
            /// How fast an answer leaves, in bytes a second: a size as 100k, or a text of variables that gives one; 0 or nothing for any speed. Default: 0.
            limit_rate: Field<SizeText>,
            /// How much of an answer leaves before limit_rate holds: a size, or a text of variables that gives one. Default: 0.
            limit_rate_after: Field<SizeText>,
            /// How long to wait for more of what a client sends after its answer, before closing. Default: 5s.
            lingering_timeout: Field<Time>,
            /// Headers to send on, in place of the client's; an empty value removes one. An inner mapping takes the place of an outer one.
            proxy_set_header: Field<NamedMap<HeaderText>>,
            /// What is changed about `Location` and `Refresh` of responses: `default` to put the location's path in place of the URL of `proxy_pass`, pairs of what they begin with and what takes its place, or `off`. An inner list takes the place of an outer one. Default: default.
            proxy_redirect: Field<ProxyRedirect>,
            /// What upstreams are spoken to in: `1.1`, or `2` with many requests on one connection. Default: 1.1, and 2 with `grpc_pass`.
            proxy_http_version: Field<HttpVersion>,
            /// Whether upstreams are told the client's address by a PROXY header: on or v1, v2, or off. Each request then has a connection of its own. Default: off.
            proxy_protocol: Field<ProxyProtocol>,
            /// How long connecting to an upstream may take. Default: 60s.
            proxy_connect_timeout: Field<Time>,
            /// How long an upstream may take between two pieces of the request. Default: 60s.
            proxy_send_timeout: Field<Time>,
            /// How long an upstream may take between two pieces of its answer. Default: 60s.
            proxy_read_timeout: Field<Time>,
            /// How many header fields an upstream's response may have; all together 64k. Default: 1000.
            proxy_max_headers: Field<HeaderCount>,
            /// When the next server is tried: error, timeout, invalid_header, non_idempotent, http_500, http_502, http_503, http_504, http_403, http_404, http_429, or off. Default: error timeout.
            proxy_next_upstream: Field<NextUpstream>,
            /// How many servers are tried at most; 0 for each once. Default: 0.
            proxy_next_upstream_tries: Field<Tries>,
            /// For how long another server may be tried; 0 for no limit. Default: 0.
            proxy_next_upstream_timeout: Field<Time>,
            /// Answers 503 at once for a while where the location's requests fail too often; `{}` for one with all defaults. Default: off.
            breaker: Field<OrOff<Breaker>>,
            /// What is answered when the answer proper is not to be had. Default: off.
            fallback: Field<OrOff<Fallback>>,
            /// One of `degrade_groups`, with which this is turned off and on.
            degrade_group: Field<Text>,
            /// Whether a client's `Upgrade` (WebSocket and others, never h2c) is sent on, and a tunnel made where the upstream agrees. Default: on.
            proxy_upgrade: Field<Flag>,
            /// Whether header fields with an underscore in their name are sent on. Default: off.
            underscores_in_headers: Field<Flag>,
            /// Whether upstreams are sent a `Via` header. Default: on.
            via: Field<Flag>,
        }
        with buffering: Buffering, proxy_ssl: ProxySsl,
    }

    record! {
        /// Settings that hold before the location is known, hence at the top level and in a server only.
        pub struct Connection {
            /// How long a client may take for the head of a request. Default: 60s.
            client_header_timeout: Field<Time>,
            /// The first piece of memory for a request's head; it grows as needed. Default: 1k.
            client_header_buffer_size: Field<Size>,
            /// How large a request's head may be: number and size, multiplied. Default: 4 8k.
            large_client_header_buffers: Field<Buffers>,
            /// Whether clients may speak HTTP/2, which they choose with TLS or say first. Default: on.
            http2: Field<Flag>,
            /// How many requests a client may have under way at once on an HTTP/2 connection. Default: 128.
            http2_max_concurrent_streams: Field<Streams>,
            /// How many requests a client may reset at once on an HTTP/2 connection; a tenth of that it may reset every second. Default: twice `http2_max_concurrent_streams`, at least 200.
            http2_max_resets: Field<Streams>,
        }
    }

    /// `large_client_header_buffers`: a number and a size.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Buffers {
        /// How many.
        pub number: u64,
        /// How large each.
        pub size: u64,
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
        /// Buffering between clients and upstreams.
        pub struct Buffering {
            /// Whether a request's body is read whole before an upstream is asked. Default: on.
            proxy_request_buffering: Field<Flag>,
            /// How much of a request's body is kept in memory; what is longer goes to a file. Default: 16k.
            client_body_buffer_size: Field<Size>,
            /// The directory for files with request bodies; no file in it ever has a name. Default: `path` of `buffers`.
            client_body_temp_path: Field<Text>,
            /// Whether a response is read as fast as the upstream sends it; what the client cannot take yet is kept. Default: on.
            proxy_buffering: Field<Flag>,
            /// How much of a response is kept in memory for a slow client: number and size, multiplied. Default: 8 4k.
            proxy_buffers: Field<Buffers>,
            /// How much of a response is kept in a file beyond that; 0 for no file. Default: 1024m.
            proxy_max_temp_file_size: Field<Size>,
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

/// nginx's default of `large_client_header_buffers`, multiplied out.
const MAX_HEAD: u64 = 4 * (8 << 10);

/// Largest head accepted in a configuration: every connection may make us keep as much.
const MOST_HEAD: u64 = 16 << 20;

/// nginx's default of `http2_max_concurrent_streams`.
const MAX_STREAMS: u32 = 128;

/// A page that is left takes all its streams with it, twice; so many resets are allowed at least.
const MAX_RESETS: u32 = 200;

/// A server's settings, and those it inherits.
type Levels<'c> = [&'c raw::Connection; 2];

impl Compiler<'_> {
    /// How large a head may be.
    pub(in crate::config) fn max_head(&mut self, levels: Levels<'_>) -> usize {
        let given = levels
            .iter()
            .find_map(|level| level.large_client_header_buffers.get());
        let bytes = given.map_or(MAX_HEAD, |given| {
            given.value.number.saturating_mul(given.value.size)
        });
        if let Some(given) = given.filter(|_| !(1024..=MOST_HEAD).contains(&bytes)) {
            self.complain_with(
                given.span,
                "no sensible size for a request's head",
                "number and size multiplied give 1k to 16m",
            );
        }
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

/// `http2`
pub(in crate::config) fn http2(levels: Levels<'_>) -> Http2 {
    let flag = said(levels, |level| &level.http2).map(|flag| flag.0);
    spoken(flag, false).unwrap_or_default()
}

/// `http2_max_concurrent_streams`
pub(in crate::config) fn max_streams(levels: Levels<'_>) -> u32 {
    said(levels, |level| &level.http2_max_concurrent_streams).map_or(MAX_STREAMS, |most| most.0)
}

/// `http2_max_resets`
pub(in crate::config) fn max_resets(levels: Levels<'_>) -> u32 {
    let most = said(levels, |level| &level.http2_max_resets);
    most.map_or_else(
        || max_streams(levels).saturating_mul(2).max(MAX_RESETS),
        |most| most.0,
    )
}

/// What the innermost level says that says anything.
fn said<'c, T>(
    levels: Levels<'c>,
    of: impl Fn(&'c raw::Connection) -> &'c Field<T>,
) -> Option<&'c T> {
    levels.iter().find_map(|level| of(level).value())
}

/// Whether HTTP/2 is spoken, by a flag or else by the word.
pub(in crate::config) fn spoken(flag: Option<bool>, word: bool) -> Option<Http2> {
    match flag {
        Some(false) => Some(Http2::Off),
        Some(true) => Some(Http2::On),
        None => word.then_some(Http2::On),
    }
}

impl Compiler<'_> {
    /// How fast answers may leave where `levels` hold.
    pub(in crate::config) fn bandwidth(&mut self, levels: SettingLevels<'_>) -> LimitRate {
        LimitRate {
            rate: self.volume(levels.find(|s| &s.limit_rate)),
            after: self.volume(levels.find(|s| &s.limit_rate_after)),
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
        Buffering {
            request: self.request_buffering(levels),
            response: self.response_buffering(levels),
        }
    }

    /// `proxy_request_buffering` and what belongs to it; `None` for off.
    fn request_buffering(&mut self, levels: SettingLevels<'_>) -> Option<RequestBuffering> {
        let memory = self.size_up_to_1g(levels.find(|s| &s.buffering.client_body_buffer_size));
        let path = match levels.find(|s| &s.buffering.client_body_temp_path) {
            Some(given) => self.directory(given),
            None => self.buffers_path(),
        };
        let on = levels.find(|s| &s.buffering.proxy_request_buffering);
        on.is_none_or(|on| on.value.0).then(|| RequestBuffering {
            memory: memory.unwrap_or(BODY_BUFFER),
            path,
        })
    }

    /// `proxy_buffering` and what belongs to it.
    fn response_buffering(&mut self, levels: SettingLevels<'_>) -> ResponseBuffering {
        let on = levels.find(|s| &s.buffering.proxy_buffering);
        let memory = levels.find(|s| &s.buffering.proxy_buffers);
        let disk = levels.find(|s| &s.buffering.proxy_max_temp_file_size);
        ResponseBuffering {
            on: on.is_none_or(|on| on.value.0),
            memory: memory.map_or(BUFFERS, |given| self.buffers_size(given)),
            disk: disk.map_or(MAX_TEMP_FILE, |given| given.value.0),
            path: self.buffers_path(),
        }
    }

    /// Number and size multiplied.
    fn buffers_size(&mut self, given: &Spanned<raw::Buffers>) -> usize {
        let bytes = given.value.number.saturating_mul(given.value.size);
        if bytes == 0 || bytes > MOST_MEMORY {
            let sentence = "buffers of nothing, or of more than 1g";
            self.complain_with(given.span, sentence, "the default is `8 4k`");
        }
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    fn size_up_to_1g(&mut self, given: Option<&Spanned<Size>>) -> Option<usize> {
        let given = given?;
        if given.value.0 > MOST_MEMORY {
            let sentence = "more than 1g of memory for each request";
            self.complain_with(given.span, sentence, "what is longer is kept in a file");
        }
        usize::try_from(given.value.0).ok()
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

/// nginx's default of `client_body_buffer_size`.
const BODY_BUFFER: usize = 16 << 10;

/// nginx's default of `proxy_buffers`, multiplied.
const BUFFERS: usize = 8 * 4096;

/// nginx's default of `proxy_max_temp_file_size`.
const MAX_TEMP_FILE: u64 = 1 << 30;

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
