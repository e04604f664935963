//! The root of the configuration: workers, logs, the admin listener and tracing.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use super::compile::Compiler;
use super::decode::units::{self, CallShare, UpstreamAddress};
use super::decode::value::{HttpVersion, NamedMap, OrOff, Text, choice};
use super::decode::{Field, Spanned};
use super::directive::tls;
use super::directive::tls::UpstreamTls;
use super::report::{self, Report};
use super::secret::Secret;
use super::template::{Template, TemplatePhase};

pub(crate) mod raw {
    //! The file as a whole.
    use std::net::SocketAddr;
    use std::time::Duration;

    use tracing::Level;

    use super::TraceContext;
    use crate::config::decode::record::record;
    use crate::config::decode::units::CallShare;
    use crate::config::decode::value::{
        AdminAddress, ErrorLogLevel, List, NamedMap, OrOff, Shorthand, Size, Text, Time, Workers,
        number,
    };
    use crate::config::decode::{Field, Required};
    use crate::config::directive::client::raw::ConnectionCount;
    use crate::config::directive::content::raw::DegradeMode;
    use crate::config::directive::health::raw::Percent;
    use crate::config::directive::server::raw::Server;
    use crate::config::directive::settings::raw::BufferBounds;
    use crate::config::directive::settings::{ServerDirectives, Settings};
    use crate::config::directive::store::raw::Store;
    use crate::config::directive::tls::raw::Tls;
    use crate::config::directive::upstream::raw::{Resolver, Upstream};
    use crate::config::directive::zones::raw::{ConnZone, ReqZone};
    use crate::config::maps::raw::MapDirective;
    use crate::config::report::ParseError;
    use crate::config::secret::Secret;

    record! {
        /// The configuration of weir.
        pub(crate) struct Config {
            /// Event loops, each a thread; `auto` for one per core.
            workers: Field<Workers> = "auto" => Option<usize>,
            /// How long requests in progress may continue after a stop is requested.
            shutdown_timeout: Field<Time> = "30s" => Duration,
            /// Where log lines go.
            log: Field<Log>,
            /// The listener for metrics and the API. Default: none; `admin: {}` for one on 127.0.0.1:9900.
            admin: Field<Admin>,
            /// Traces of requests for an OpenTelemetry collector. Default: none.
            tracing: Field<Tracing>,
            /// How many client connections may be open at once, in all. Default: no limit but the system's.
            max_connections: Field<ConnectionCount>,
            /// How many of them may come from one address, or from one /64 of IPv6. Default: no limit.
            max_connections_per_address: Field<ConnectionCount>,
            /// Variables made from others, nginx's `map` and `geo`; the names begin with `$`.
            maps: Field<NamedMap<MapDirective>>,
            /// Where zones may keep their counters instead of in this process, by name.
            stores: Field<NamedMap<Store>>,
            /// Zones of `limit_req`, by name.
            limit_req_zones: Field<NamedMap<ReqZone>>,
            /// Zones of `limit_conn`, by name.
            limit_conn_zones: Field<NamedMap<ConnZone>>,
            /// Groups of locations that are degraded together: `auto`, `on` to always use the fallback, `off` to never use it.
            degrade_groups: Field<NamedMap<DegradeMode>>,
            /// How much memory the last good responses may take, of all fallbacks with `stale`.
            stale_size: Field<Size> = "32m" => usize; if at_least_64k,
            /// Bounds of what is buffered, of all requests together.
            buffers: Field<BufferBounds>,
            /// DNS servers for names that are resolved again, see `resolve`. Default: the system.
            resolver: Field<Shorthand<Resolver>>,
            /// Groups of servers to forward to, by name.
            upstreams: Field<NamedMap<Upstream>>,
            /// TLS settings of every server that has none of its own.
            tls: Field<Tls>,
            /// Virtual servers.
            servers: Required<List<Server>>,
        }
        with settings: Settings, connection: ServerDirectives,
    }

    record! {
        /// Where log lines go.
        pub(crate) struct Log {
            /// The least severe level that is written: error, warn, info or debug.
            level: Field<ErrorLogLevel> = "info" => Level,
            /// Where everything but the access log goes. Default: standard error.
            error: Field<ErrorLog>,
            /// One line per request; `off` for none.
            access: Field<OrOff<AccessLog>>,
        }
    }

    record! {
        /// The error log.
        pub(crate) struct ErrorLog {
            /// A file, or `-` for standard error.
            path: Field<Text> = "-" => Box<str>; if some_path,
            /// The same as `log.level`, which it replaces.
            level: Field<ErrorLogLevel>,
        }
    }

    record! {
        /// The access log.
        pub(crate) struct AccessLog {
            /// A file, or `-` for standard output.
            path: Field<Text> = "-" => Box<str>; if some_path,
            /// `combined` as nginx's, `json`, or a template.
            format: Field<Text> = "combined" => Box<str>,
        }
    }

    record! {
        /// The admin listener.
        pub(crate) struct Admin {
            /// Where it listens.
            listen: Field<AdminAddress> = "127.0.0.1:9900" => SocketAddr,
            /// Required for every call that changes something, and for every call from another machine.
            token: Field<Secret>,
        }
    }

    record! {
        /// Traces of requests for an OpenTelemetry collector.
        pub(crate) struct Tracing {
            /// The collector, spoken to in OTLP over HTTP: `http://127.0.0.1:4318`. Without a path it is /v1/traces.
            otlp: Required<Text>,
            /// How many requests are traced, of those that are not part of a trace already.
            sample: Field<Percent> = "1%" => CallShare,
            /// The name of this service in traces.
            service_name: Field<Text> = "weir" => Box<str>,
            /// What happens to the trace context of a request, as nginx's `otel_trace_context`: extract, inject, propagate or ignore.
            context: Field<TraceContext> = "propagate" => TraceContext,
            /// Header fields for the collector, by name.
            headers: Field<NamedMap<Secret>>,
            /// How long spans wait to be sent together.
            interval: Field<Time> = "5s" => Duration; if batch_interval,
            /// How many are sent together at most.
            batch_size: Field<BatchSize> = "512" => u32,
        }
    }

    number! {
        /// A number of spans.
        pub(crate) struct BatchSize(u32) = "a number of spans", 1..=10_000
    }

    /// Less holds no response worth keeping.
    fn at_least_64k(size: &Size, _: &str) -> Result<(), ParseError> {
        match size.0 < 64 << 10 {
            true => Err(ParseError::new("too little memory to keep responses in")
                .help("must be at least 64k")),
            false => Ok(()),
        }
    }

    fn some_path(path: &Text, _: &str) -> Result<(), ParseError> {
        match path.text.is_empty() {
            true => Err(ParseError::new("the path of a log is empty").help(
                "`-` is standard error or standard output; `access: off` disables the access log",
            )),
            false => Ok(()),
        }
    }

    fn batch_interval(time: &Time, default: &str) -> Result<(), ParseError> {
        let useful = Duration::from_millis(10)..=Duration::from_secs(600);
        match useful.contains(&time.0) {
            true => Ok(()),
            false => Err(ParseError::new("invalid interval of span exports")
                .help(format!("expected 10ms to 10m; the default is {default}"))),
        }
    }
}

/// Where log lines go.
#[derive(Debug, Clone)]
pub struct Log {
    /// The least severe level that is written.
    pub level: tracing::Level,
    /// The error log's file, which USR1 opens again; `None` for standard error, written `-`.
    pub error: Option<PathBuf>,
    /// `None` for `access: off`.
    pub access: Option<AccessLog>,
}

/// The access log.
#[derive(Debug, Clone)]
pub struct AccessLog {
    /// Where its lines go.
    pub path: LogPath,
    /// What a line looks like.
    pub format: LogFormat,
}

/// Where a log goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogPath {
    /// Appended to a file, which USR1 opens again.
    File(PathBuf),
    /// Standard output, written `-`.
    Stdout,
}

/// What an access-log line looks like.
#[derive(Debug, Clone)]
pub enum LogFormat {
    /// nginx's `combined`.
    Combined,
    /// One JSON object a line.
    Json,
    /// The user's own template.
    Text(Template),
}

/// The admin listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The credential of callers, where one is required.
    pub token: Option<Secret>,
}

/// `tracing`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracing {
    /// The collector's host, an IPv6 address without brackets.
    pub host: Box<str>,
    /// Its port.
    pub port: u16,
    /// The path for spans.
    pub path: Box<str>,
    /// TLS settings, if it is reached over TLS.
    pub tls: Option<UpstreamTls>,
    /// Additional headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The name of this service.
    pub service_name: Box<str>,
    /// How many requests are traced, of those that are not part of a trace already.
    pub sample: CallShare,
    /// What happens to the context of a request.
    pub context: TraceContext,
    /// How long spans may wait for others.
    pub interval: Duration,
    /// How many are sent together at most.
    pub batch_size: u32,
}

choice! {
    /// What happens to the trace context of a request: nginx's `otel_trace_context`.
    #[derive(Default)]
    pub enum TraceContext as "TraceContext" = "a trace context mode" {
        /// The request joins its trace, and the context is sent on unchanged.
        Extract = "extract",
        /// A new trace begins, whose context is sent on.
        Inject = "inject",
        /// The request joins its trace, and a context with this span is sent on.
        #[default]
        Propagate = "propagate",
        /// The context is sent on unread.
        Ignore = "ignore",
    }
}

/// Headers that weir writes itself in exports.
const OWN_HEADERS: [&str; 5] = [
    "connection",
    "content-length",
    "content-type",
    "host",
    "transfer-encoding",
];

impl Log {
    /// `log`
    pub(super) fn compile(given: &Field<raw::Log>, compiler: &mut Compiler<'_>) -> Self {
        let default = raw::Log::default();
        let log = given.value().unwrap_or(&default);
        let default = raw::ErrorLog::default();
        let error = log.error.value().unwrap_or(&default);
        if let (Some(_), Some(second)) = (log.level.get(), error.level.get()) {
            let sentence = "`log.level` and `log.error.level` mean the same; give one of them";
            compiler.report.error(second.span, sentence);
        }
        let default = raw::AccessLog::default();
        Self {
            level: error
                .level
                .value()
                .map_or_else(|| log.level(), |level| level.0),
            error: match log_path(&error.path()) {
                LogPath::Stdout => None,
                LogPath::File(path) => Some(path),
            },
            access: match log.access.value() {
                None => Some(AccessLog::compile(&default, compiler)),
                Some(OrOff::Off) => None,
                Some(OrOff::On(access)) => Some(AccessLog::compile(access, compiler)),
            },
        }
    }
}

impl AccessLog {
    fn compile(given: &raw::AccessLog, compiler: &mut Compiler<'_>) -> Self {
        let format = match (&*given.format(), given.format.get()) {
            ("json", _) => LogFormat::Json,
            (text, Some(format)) if text != "combined" => {
                // A text without variables would write the same line for ever; a name was meant.
                if !text.contains('$') {
                    let hint = report::hint(text, ["combined", "json"])
                        .unwrap_or_else(|| "expected `combined`, `json` or a template".to_owned());
                    let sentence = format!("unknown log format `{text}`");
                    compiler.report.error_with(format.span, sentence, hint);
                }
                LogFormat::Text(Template::compile(format, TemplatePhase::After, compiler))
            }
            _ => LogFormat::Combined,
        };
        Self {
            path: log_path(&given.path()),
            format,
        }
    }
}

/// A file, or the stream that is written `-`.
fn log_path(path: &str) -> LogPath {
    match path {
        "-" => LogPath::Stdout,
        path => LogPath::File(path.into()),
    }
}

impl Admin {
    /// `admin`
    pub(super) fn compile(given: &raw::Admin, report: &mut Report) -> Self {
        let listen = given.listen();
        let token = given.token.get();
        if let Some(token) = token.filter(|token| token.value.expose().trim().is_empty()) {
            let hint = "leave `token` out, or give one that cannot be guessed";
            report.error_with(token.span, "the token is empty", hint);
        }
        if let Some(given) = given.listen.get()
            && !listen.ip().is_loopback()
            && token.is_none()
        {
            let sentence = "this listener cannot be used from other machines";
            let hint = "calls from other machines need a `token`, and there is none";
            report.warn(given.span, sentence, hint);
        }
        Self {
            listen,
            token: token.map(|token| token.value.clone()),
        }
    }
}

/// The address of a collector.
struct OtlpEndpoint {
    host: Box<str>,
    port: u16,
    path: Box<str>,
    tls: bool,
}

impl Tracing {
    /// `tracing`
    pub(super) fn compile(given: &Field<raw::Tracing>, report: &mut Report) -> Option<Self> {
        let Spanned { value: given, span } = given.get()?;
        if !cfg!(feature = "otel") {
            let sentence = "this weir was built without tracing";
            let hint = "build it with `--features otel`, or leave `tracing` out";
            report.error_with(*span, sentence, hint);
        }
        let headers = collector_headers(&given.headers, report);
        let endpoint = endpoint(given.otlp.get()?, report)?;
        // The certificate is verified by the system's roots.
        let ssl = tls::raw::ProxySsl::default();
        let tls = endpoint
            .tls
            .then(|| UpstreamTls::compile(&endpoint.host, HttpVersion::One, &ssl, report));
        Some(Self {
            tls,
            host: endpoint.host,
            port: endpoint.port,
            path: endpoint.path,
            headers,
            service_name: given.service_name(),
            sample: given.sample(),
            context: given.context(),
            interval: given.interval(),
            batch_size: given.batch_size(),
        })
    }
}

fn endpoint(otlp: &Spanned<Text>, report: &mut Report) -> Option<OtlpEndpoint> {
    let text = otlp.value.text.as_str();
    let (tls, rest) = match text.split_once("://") {
        Some(("http", rest)) => (false, rest),
        Some(("https", rest)) => (true, rest),
        _ => {
            let sentence = format!("`{text}` is not the address of a collector");
            let hint = "expected for example `http://127.0.0.1:4318`: OTLP over HTTP";
            report.error_with(otlp.span, sentence, hint);
            return None;
        }
    };
    let (host, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let port = if tls { units::HTTPS } else { units::HTTP };
    let UpstreamAddress::Tcp { host, port } =
        report.parsed(otlp.span, units::host_port(host, port))?
    else {
        let sentence = "a collector on a unix socket is not supported by this version";
        report.error(otlp.span, sentence);
        return None;
    };
    if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        report.error(
            otlp.span,
            format!("`{path}` is not a path that can be requested"),
        );
    }
    if port == 4317 {
        let hint = "collectors take OTLP over HTTP on port 4318";
        report.warn(otlp.span, "4317 is the port of OTLP over gRPC", hint);
    }
    let path = if path == "/" { "/v1/traces" } else { path };
    Some(OtlpEndpoint {
        host,
        port,
        path: path.into(),
        tls,
    })
}

fn collector_headers(
    given: &Field<NamedMap<Secret>>,
    report: &mut Report,
) -> Vec<(HeaderName, HeaderValue)> {
    let mut headers = Vec::new();
    for (key, value) in given.entries() {
        let name = HeaderName::try_from(key.value.as_str());
        let text = HeaderValue::try_from(value.value.expose());
        match (name, text) {
            (Ok(name), _) if OWN_HEADERS.contains(&name.as_str()) => {
                report.error(key.span, format!("`{name}` is written by weir itself"));
            }
            (Ok(name), Ok(mut text)) => {
                text.set_sensitive(true);
                headers.push((name, text));
            }
            (Err(_), _) => {
                let sentence = format!("`{}` is not the name of a header", key.value);
                report.error(key.span, sentence);
            }
            // Not repeated: it may be a secret.
            (_, Err(_)) => report.error(value.span, "this cannot be the value of a header"),
        }
    }
    headers
}
