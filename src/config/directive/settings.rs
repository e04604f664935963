//! Settings of the top level, a server and a location.
//!
//! Each stands in one of the lists of `settings!` below, with its type, default, check and description. Those without a type
//! that runs are compiled by functions of their own, of which bandwidth (`limit_rate`) and buffering stand here.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::client::raw::{AccessWord, RealIp};
use super::client::{AccessRules, ProxyProtocolVersion};
use super::content::raw::Fallback;
use super::health::raw::Breaker;
use super::limits::LogLevel;
use super::limits::raw::{ConnRule, LimitHeaders, ReqRule};
use super::syntax::{
    Buffers, HeaderText, NextUpstreamWords, ProxyRedirect, RedirectRule, SizeText,
};
use super::tls;
use super::tls::raw::ProxySsl;
use crate::config::compile::Compiler;
#[cfg(test)]
use crate::config::decode::record::SettingRow;
use crate::config::decode::record::{Record, record};
use crate::config::decode::value::{
    Flag, HeaderCount, HttpVersion, List, NamedMap, OrOff, RefusalStatus, RequestCount, Size,
    Streams, Text, Time, Tries, nonzero,
};
use crate::config::decode::{Field, Spanned, settings, units};
use crate::config::report::{ParseError, Report};
use crate::config::template::{Template, TemplatePhase, Variable};

pub(crate) mod raw {
    //! The bounds of buffers, as the user writes them.
    use crate::config::decode::Field;
    use crate::config::decode::record::record;
    use crate::config::decode::value::{Size, Text};
    use crate::config::report::ParseError;

    record! {
        /// Bounds of what is buffered, of all requests together.
        pub(crate) struct BufferBounds {
            /// How much may be kept in memory.
            memory: Field<Size> = "64m" => u64; if at_least_1m,
            /// How much may be kept in files.
            disk: Field<Size> = "1g" => u64,
            /// The directory for the files, which are unnamed. `/tmp` is often memory.
            path: Field<Text> = "/var/tmp" => Box<str>,
        }
    }

    /// A handful of slow clients uses up less.
    fn at_least_1m(memory: &Size, _: &str) -> Result<(), ParseError> {
        match memory.0 < 1 << 20 {
            true => Err(ParseError::new("too little memory to buffer anything").help(
                "must be at least 1m; `proxy_buffering: off` and `proxy_request_buffering: off` disable buffering",
            )),
            false => Ok(()),
        }
    }
}

record! {
    /// Settings of the top level, of a server and of a location; the inner one holds.
    pub(crate) struct Settings {
        /// Which proxies are trusted to name the client's address. Each of its keys is inherited by itself.
        real_ip: Field<RealIp>,
    }
    with limits: LimitDirectives, client: ClientDirectives, proxy: ProxyDirectives, buffering: BufferingDirectives, proxy_ssl: ProxySsl,
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
        limit_req_log_level: LogLevel => LogLevel = "error";
        /// The level at which a refusal by `limit_conn` is logged: `info`, `notice`, `warn` or `error`.
        limit_conn_log_level: LogLevel => LogLevel = "error";
        /// Which header fields tell clients of their limits besides `Retry-After`: `ietf` for `RateLimit` and `RateLimit-Policy`, `legacy` for `X-RateLimit-Limit`, `-Remaining` and `-Reset`, or `off`. They stand on refusals; a mapping (`form`, `on`) also says on which responses.
        limit_headers: LimitHeaders, default "ietf", see "[what a client is told](limits.md#what-a-client-is-told)";
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
        proxy_redirect: ProxyRedirect, default "default" as Vec<RedirectRule>, see "[redirects](#redirects)";
        /// What upstreams are spoken to in: `1.1`, or `2` with many requests on one connection, which `grpc_pass` means where nothing is said.
        proxy_http_version: HttpVersion, default "1.1", see "[HTTP/2](http2.md#upstreams)";
        /// Whether upstreams are told the client's address by a PROXY header: `on` or `v1`, `v2`, or `off`. Each request then has a connection of its own.
        proxy_protocol: ProxyProtocolVersion, default "off", see "[clients](clients.md#proxy-protocol)";
        /// How long connecting to an upstream may take.
        proxy_connect_timeout: Time => Duration = "60s", check nonzero;
        /// How long an upstream may take between two pieces of the request.
        proxy_send_timeout: Time => Duration = "60s", check nonzero;
        /// How long an upstream may take between two pieces of its response; in a tunnel, how long neither side may be silent.
        proxy_read_timeout: Time => Duration = "60s", check nonzero;
        /// How many header fields an upstream's response may have; all together 64k.
        proxy_max_headers: HeaderCount => usize = "1000";
        /// When the next server is tried: `error`, `timeout`, `invalid_header`, `non_idempotent`, `http_500`, `http_502`, `http_503`, `http_504`, `http_403`, `http_404`, `http_429`, or `off`; a list, or one text with spaces.
        proxy_next_upstream: NextUpstreamWords, default "error timeout" as Vec<String>;
        /// How many servers are tried at most; 0 for each once.
        proxy_next_upstream_tries: Tries, default "0" as u32;
        /// For how long another server may be tried; 0 for no limit.
        proxy_next_upstream_timeout: Time, default "0" as Option<Duration>;
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
    pub(crate) struct BufferingSettings, written BufferingDirectives in "top level, server, location" {
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
    pub(crate) struct ServerSettings, written ServerDirectives in "top level, server" {
        /// How long a client may take for the headers of a request.
        client_header_timeout: Time => Duration = "60s", check nonzero;
        /// The first piece of memory for a request's headers; it grows as needed.
        client_header_buffer_size: Size, default "1k";
        /// How large a request's headers may be: number and size, multiplied; also `{ number: 4, size: 8k }`. There may be at most 100 fields.
        large_client_header_buffers: Buffers => usize = "4 8k", check header_buffers;
        /// Whether clients may speak HTTP/2, which they choose with TLS or say first.
        http2: Flag => bool = "on", see "[HTTP/2](http2.md)";
        /// How many requests a client may have under way at once on an HTTP/2 connection.
        http2_max_concurrent_streams: Streams => u32 = "128";
        /// How many requests a client may reset at once on an HTTP/2 connection; a tenth of that it may reset every second.
        http2_max_resets: Streams, otherwise "twice `http2_max_concurrent_streams`, at least 200", see "[floods](http2.md#floods)";
    }
}

/// The settings that `settings!` declares: the name of a table in docs/configuration.md, where they may stand, its rows.
#[cfg(test)]
pub(crate) const REFERENCE: [(&str, &str, &[SettingRow]); 5] = [
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

/// The settings that hold at a server or a location.
pub(crate) struct Inherited {
    /// Each as the innermost level gives it.
    pub(crate) settings: Settings,
    /// `real_ip`, each of its keys as the innermost level gives it.
    pub(crate) real_ip: RealIp,
    /// `allow` and `deny`: both from the innermost level that gives either, as in nginx.
    pub(crate) access: AccessRules,
}

impl Inherited {
    /// Of these levels, the innermost first.
    pub(crate) fn new(levels: &[&Settings]) -> Self {
        let mut clients = levels.iter().map(|level| &level.client);
        let access = clients.find(|it| it.allow.get().is_some() || it.deny.get().is_some());
        Self {
            settings: Record::inherit(levels.iter().copied()),
            real_ip: Record::inherit(levels.iter().filter_map(|level| level.real_ip.value())),
            access: access.map_or_else(AccessRules::default, |client| {
                AccessRules::compile(&client.allow, &client.deny)
            }),
        }
    }
}

/// The largest memory of one request or response.
const MAX_MEMORY: u64 = 1 << 30;

/// Every connection may keep as much.
const MAX_HEADERS: u64 = 16 << 20;

fn up_to_1g(size: &Size, _: &str) -> Result<(), ParseError> {
    match size.0 > MAX_MEMORY {
        true => Err(ParseError::new("more than 1g of memory for each request")
            .help("longer bodies are kept in a file")),
        false => Ok(()),
    }
}

fn response_buffers(buffers: &Buffers, default: &str) -> Result<(), ParseError> {
    match (1..=MAX_MEMORY).contains(&buffers.bytes) {
        true => Ok(()),
        false => Err(
            ParseError::new("the buffers must be larger than 0 and at most 1g in all")
                .help(format!("the default is `{default}`")),
        ),
    }
}

fn header_buffers(buffers: &Buffers, _: &str) -> Result<(), ParseError> {
    match (1024..=MAX_HEADERS).contains(&buffers.bytes) {
        true => Ok(()),
        false => Err(ParseError::new("invalid size for the headers of a request")
            .help("number and size multiplied must be 1k to 16m")),
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
    /// The same for every response.
    Fixed(u64),
    /// The value of a template, once there is a response.
    Template(Template),
}

impl LimitRate {
    /// Whether it depends on a variable like this.
    #[must_use]
    pub fn may_use(&self, like: impl Fn(&Variable) -> bool) -> bool {
        [&self.rate, &self.after].into_iter().any(|it| match it {
            SizeTemplate::Fixed(_) => false,
            SizeTemplate::Template(template) => template.may_use(&like),
        })
    }
}

impl SizeTemplate {
    /// Reads the value of a template: a size, and 0 for an empty text.
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
        Self::new(&raw::BufferBounds::default())
    }
}

impl BufferBounds {
    /// `buffers`
    pub(crate) fn new(given: &raw::BufferBounds) -> Self {
        Self {
            memory: given.memory(),
            disk: given.disk(),
        }
    }
}

/// How requests and responses are buffered.
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

/// How responses are buffered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseBuffering {
    /// `proxy_buffering`: whether responses are buffered that do not ask for it themselves.
    pub on: bool,
    /// `proxy_buffers`, in bytes.
    pub memory: usize,
    /// `proxy_max_temp_file_size`, in bytes.
    pub disk: u64,
    /// `path` of `buffers`.
    pub path: Arc<Path>,
}

impl ServerDirectives {
    /// `http2_max_resets`; a web page that is left resets all its streams, twice.
    pub(crate) fn max_resets(&self, max_streams: u32) -> u32 {
        let given = self.http2_max_resets.value();
        given.map_or_else(|| max_streams.saturating_mul(2).max(200), |most| most.0)
    }
}

impl LimitRate {
    /// `limit_rate` and `limit_rate_after`
    pub(crate) fn compile(given: &ClientDirectives, compiler: &mut Compiler<'_>) -> Self {
        Self {
            rate: SizeTemplate::compile(&given.limit_rate, compiler),
            after: SizeTemplate::compile(&given.limit_rate_after, compiler),
        }
    }
}

impl SizeTemplate {
    fn compile(given: &Field<SizeText>, compiler: &mut Compiler<'_>) -> Self {
        let Some(Spanned { value, span }) = given.get() else {
            return Self::default();
        };
        let text = Spanned {
            value: value.0.clone(),
            span: *span,
        };
        let template = Template::compile(&text, TemplatePhase::After, compiler);
        match template.as_literal() {
            Some("") => Self::default(),
            Some(size) => {
                let bytes = compiler.report.parsed(*span, units::size(size));
                Self::Fixed(bytes.unwrap_or(0))
            }
            None => Self::Template(template),
        }
    }
}

impl Buffering {
    /// How requests are buffered where these settings hold; `temp_paths` gathers the directories that are named.
    pub(crate) fn compile(
        given: &BufferingDirectives,
        bounds: &raw::BufferBounds,
        temp_paths: &mut Vec<tls::TlsFile>,
        report: &mut Report,
    ) -> Self {
        let settings = BufferingSettings::new(given, report);
        let mut directory = |given: &Spanned<Text>| -> Arc<Path> {
            if let Some(known) = temp_paths.iter().find(|it| it.span == given.span) {
                return Arc::from(&*known.path);
            }
            let directory = tls::file(given, report);
            let path = Arc::from(&*directory.path);
            temp_paths.push(directory);
            path
        };
        let path = match bounds.path.get() {
            Some(given) => directory(given),
            None => Arc::from(Path::new(&*bounds.path())),
        };
        let body_path = given.client_body_temp_path.get();
        let body_path = body_path.map_or_else(|| path.clone(), directory);
        Self {
            request: settings
                .proxy_request_buffering
                .then_some(RequestBuffering {
                    memory: settings.client_body_buffer_size,
                    path: body_path,
                }),
            response: ResponseBuffering {
                on: settings.proxy_buffering,
                memory: settings.proxy_buffers,
                disk: settings.proxy_max_temp_file_size,
                path,
            },
        }
    }
}

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
