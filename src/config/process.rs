//! What is told of requests to those who collect traces.
//!
//! What there is one of: workers, the log, the admin listener.
//!
//! `tracing`.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use super::compile::Compiler;
use super::decode::{Spanned, units, value};
use super::plan::{AccessLog, Admin, Log, LogFormat, LogPath};
use super::report;
use super::secret::Secret;
use super::template::TemplatePhase;
use crate::config::decode::value::{NamedMap, OrOff, Text, mistaken};
use crate::config::directive::health::CallShare;
use crate::config::directive::location::HttpVersion;
use crate::config::directive::tls::{TlsVersion, UpstreamTls};
use crate::config::directive::upstream::UpstreamAddress;

pub(super) mod raw {
    //! The file as a whole.
    //! `tracing`: who is told of requests, span by span.
    use crate::config::decode::record::record;
    use crate::config::decode::value::{
        AdminAddress, ErrorLogLevel, List, NamedMap, OrOff, Shorthand, Size, Text, Time, Workers,
        choice, number,
    };
    use crate::config::decode::{Field, Required};
    use crate::config::directive::client::raw::ConnectionCount;
    use crate::config::directive::content::raw::DegradeMode;
    use crate::config::directive::health::raw::Percent;
    use crate::config::directive::limits::raw::{ConnZone, ReqZone};
    use crate::config::directive::server::raw::Server;
    use crate::config::directive::settings::raw::{BufferBounds, ServerDirectives, Settings};
    use crate::config::directive::store::raw::Store;
    use crate::config::directive::tls::raw::Tls;
    use crate::config::directive::upstream::raw::{Resolver, Upstream};
    use crate::config::maps::raw::MapDirective;
    use crate::config::process;
    use crate::config::secret::Secret;

    record! {
        /// The configuration of weir.
        pub struct Config {
            /// Event loops, each a thread; `auto` for one per core. Default: auto.
            workers: Field<Workers>,
            /// How long requests in flight may go on after a stop was asked for. Default: 30s.
            shutdown_timeout: Field<Time>,
            /// Where log lines go.
            log: Field<Log>,
            /// The listener for metrics and whoever looks in from outside. Default: none; `admin: {}` for one on 127.0.0.1:9900.
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
            /// Groups of locations that are degraded together: `auto`, `on` to give everybody the fallback, `off` for nobody.
            degrade_groups: Field<NamedMap<DegradeMode>>,
            /// How much memory last good answers may take, of all fallbacks with `stale`. Default: 32m.
            stale_size: Field<Size>,
            /// Bounds of what is buffered, of all requests together.
            buffers: Field<BufferBounds>,
            /// Whom to ask for the addresses of names that are looked up again, see `resolve`. Default: the system.
            resolver: Field<Shorthand<Resolver>>,
            /// Groups of servers to forward to, by name.
            upstreams: Field<NamedMap<Upstream>>,
            /// What holds for TLS in every server that does not say otherwise.
            tls: Field<Tls>,
            /// Virtual servers.
            servers: Required<List<Server>>,
        }
        with settings: Settings, connection: ServerDirectives,
    }

    record! {
        /// Where log lines go.
        pub struct Log {
            /// The least severe level that is written: error, warn, info or debug. Default: info.
            level: Field<ErrorLogLevel>,
            /// Where everything but the access log goes. Default: standard error.
            error: Field<ErrorLog>,
            /// One line per request; `off` for none.
            access: Field<OrOff<AccessLog>>,
        }
    }

    record! {
        /// The error log.
        pub struct ErrorLog {
            /// A file, or `-` for standard error. Default: -.
            path: Field<Text>,
            /// The least severe level that is written, as `log.level`, which it takes the place of.
            level: Field<ErrorLogLevel>,
        }
    }

    record! {
        /// The access log.
        pub struct AccessLog {
            /// A file, or `-` for standard output. Default: -.
            path: Field<Text>,
            /// `combined` as nginx's, `json`, or a text of variables. Default: combined.
            format: Field<Text>,
        }
    }

    record! {
        /// The admin listener.
        pub struct Admin {
            /// Where it listens. Default: 127.0.0.1:9900.
            listen: Field<AdminAddress>,
            /// What has to be shown for every call that changes something, and for every call from off this machine.
            token: Field<Secret>,
        }
    }

    record! {
        /// Traces of requests for an OpenTelemetry collector.
        pub struct Tracing {
            /// The collector, spoken to in OTLP over HTTP: `http://127.0.0.1:4318`. Without a path it is /v1/traces.
            otlp: Required<Text>,
            /// How many of those requests are traced that bring no decision with them. Default: 1%.
            sample: Field<Percent>,
            /// What this weir is called in traces. Default: weir.
            service_name: Field<Text>,
            /// What becomes of the trace context of a request, as nginx's `otel_trace_context`: extract, inject, propagate or ignore. Default: propagate.
            context: Field<TraceContext>,
            /// Header fields for the collector, by name.
            headers: Field<NamedMap<Secret>>,
            /// How long spans wait to be sent together. Default: 5s.
            interval: Field<Time>,
            /// How many are sent together at most. Default: 512.
            batch_size: Field<BatchSize>,
        }
    }

    choice! {
        /// What becomes of the trace context of a request.
        pub struct TraceContext(process::TraceContext) = "a way to treat trace context" {
            "extract" => process::TraceContext::Extract,
            "inject" => process::TraceContext::Inject,
            "propagate" => process::TraceContext::Propagate,
            "ignore" => process::TraceContext::Ignore,
        }
    }

    number! {
        /// A number of spans.
        pub struct BatchSize(u32) = "a number of spans", 1..=10_000
    }
}

/// `tracing`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracing {
    /// The collector's host, an IPv6 address without brackets.
    pub host: Box<str>,
    /// Its port.
    pub port: u16,
    /// Where it takes them.
    pub path: Box<str>,
    /// How it is met, if that is inside TLS.
    pub tls: Option<UpstreamTls>,
    /// Fields to send along.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Who we are there.
    pub service_name: Box<str>,
    /// How many of those requests are told that bring no decision with them.
    pub sample: CallShare,
    /// What becomes of the context a request brings.
    pub context: TraceContext,
    /// How long spans may wait for others.
    pub interval: Duration,
    /// For how many at most.
    pub batch_size: u32,
}

/// What becomes of the context a request brings: nginx's `otel_trace_context`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TraceContext {
    /// It is taken up, and goes on as it came.
    Extract,
    /// It goes on as it came, and is not looked at.
    Ignore,
    /// Nobody is believed: ours goes on instead.
    Inject,
    /// It is taken up, and goes on with us in it.
    #[default]
    Propagate,
}

impl Compiler<'_> {
    /// `workers`
    pub(super) fn workers(&self) -> usize {
        self.config
            .workers
            .value()
            .and_then(|workers| workers.0)
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// `log`
    pub(super) fn log(&mut self) -> Log {
        let log = self.config.log.value();
        let access = log.and_then(|log| log.access.value());
        let error = log.and_then(|log| log.error.value());
        let level = log.and_then(|log| log.level.get());
        let own = error.and_then(|error| error.level.get());
        if let (Some(_), Some(second)) = (level, own) {
            let sentence = "`log.level` and `log.error.level` mean the same; give one of them";
            self.complain(second.span, sentence);
        }
        let path = error.and_then(|error| error.path.get());
        Log {
            level: own
                .or(level)
                .map_or(tracing::Level::INFO, |level| level.value.0),
            error: match path.map(|path| self.log_path(path, "`-` is standard error")) {
                None | Some(LogPath::Stdout) => None,
                Some(LogPath::File(path)) => Some(path),
            },
            access: match access {
                None => Some(self.access_log(&raw::AccessLog::default())),
                Some(OrOff::Off) => None,
                Some(OrOff::On(access)) => Some(self.access_log(access)),
            },
        }
    }

    fn access_log(&mut self, access: &raw::AccessLog) -> AccessLog {
        let path = match access.path.get() {
            None => LogPath::Stdout,
            Some(path) => self.log_path(
                path,
                "`-` is standard output; `access: off` is no log at all",
            ),
        };
        let format = access
            .format
            .get()
            .map_or(LogFormat::Combined, |format| self.log_format(format));
        AccessLog { path, format }
    }

    /// A file, or the stream that is written `-`.
    fn log_path(&mut self, path: &Spanned<Text>, hint: &str) -> LogPath {
        match path.value.text.as_str() {
            "-" => LogPath::Stdout,
            text => {
                if text.is_empty() {
                    self.complain_with(path.span, "an empty path", hint);
                }
                LogPath::File(text.into())
            }
        }
    }

    fn log_format(&mut self, format: &Spanned<Text>) -> LogFormat {
        match format.value.text.as_str() {
            "combined" => LogFormat::Combined,
            "json" => LogFormat::Json,
            text => {
                // A text without variables would write the same line for ever; a name was meant.
                if !text.contains('$') {
                    let hint = report::hint(text, ["combined", "json"]).unwrap_or_else(|| {
                        "expected `combined`, `json` or a text of variables".to_owned()
                    });
                    self.complain_with(format.span, format!("unknown log format `{text}`"), hint);
                }
                LogFormat::Text(self.template(format, TemplatePhase::After))
            }
        }
    }

    /// `admin`
    pub(super) fn admin(&mut self) -> Option<Admin> {
        let admin = self.config.admin.value()?;
        let listen = admin.listen.value().map_or_else(
            || SocketAddr::from((Ipv4Addr::LOCALHOST, 9900)),
            |listen| listen.0,
        );
        let token = admin.token.get();
        if let Some(token) = token.filter(|token| token.value.expose().trim().is_empty()) {
            self.complain_with(
                token.span,
                "an empty token",
                "leave `token` out, or give one nobody can guess",
            );
        }
        if let Some(given) = admin
            .listen
            .get()
            .filter(|_| !listen.ip().is_loopback() && token.is_none())
        {
            self.warn(
                given.span,
                "nobody off this machine can use this listener",
                "calls from elsewhere have to show a `token`, and there is none",
            );
        }
        Some(Admin {
            listen,
            token: token.map(|token| token.value.clone()),
        })
    }
}

/// Where a collector is.
struct OtlpEndpoint {
    host: Box<str>,
    port: u16,
    path: Box<str>,
    tls: bool,
}

impl Compiler<'_> {
    /// `tracing`
    pub(super) fn tracing(&mut self) -> Option<Tracing> {
        let given = self.config.tracing.get()?;
        if !cfg!(feature = "otel") {
            let sentence = "this weir was built without tracing";
            let hint = "build it with `--features otel`, or leave `tracing` out";
            self.complain_with(given.span, sentence, hint);
        }
        let tracing = &given.value;
        let headers = tracing.headers.value();
        let headers = headers.map_or_else(Vec::new, |headers| self.collector_headers(headers));
        let interval = self.batch_interval(tracing.interval.get());
        let name = tracing.service_name.value();
        let endpoint = self.endpoint(tracing.otlp.get()?)?;
        Some(Tracing {
            tls: endpoint.tls.then(|| met_as(&endpoint.host)),
            host: endpoint.host,
            port: endpoint.port,
            path: endpoint.path,
            headers,
            service_name: name.map_or("weir", |name| &name.text).into(),
            sample: tracing
                .sample
                .value()
                .map_or(CallShare(10), |share| share.0),
            context: tracing
                .context
                .value()
                .map(|word| word.0)
                .unwrap_or_default(),
            interval,
            batch_size: tracing.batch_size.value().map_or(512, |size| size.0),
        })
    }

    fn endpoint(&mut self, otlp: &Spanned<Text>) -> Option<OtlpEndpoint> {
        let text = otlp.value.text.as_str();
        let (tls, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            _ => {
                let sentence = format!("`{text}` is not the address of a collector");
                let hint = "expected for example `http://127.0.0.1:4318`: OTLP over HTTP";
                self.complain_with(otlp.span, sentence, hint);
                return None;
            }
        };
        let (host, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let (host, port) = match units::host_port(host, if tls { 443 } else { 80 }) {
            Ok(UpstreamAddress::Tcp { host, port }) => (host, port),
            Ok(UpstreamAddress::Unix(_)) => {
                let sentence = "a collector on a unix socket is not supported by this version";
                self.complain(otlp.span, sentence);
                return None;
            }
            Err(mistake) => {
                self.report.add(mistaken(otlp.span, mistake));
                return None;
            }
        };
        if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            self.complain(otlp.span, format!("`{path}` cannot be asked for"));
        }
        if port == 4317 {
            let hint = "collectors take OTLP over HTTP on port 4318";
            self.warn(otlp.span, "4317 is where gRPC is spoken", hint);
        }
        let path = if path == "/" { "/v1/traces" } else { path };
        Some(OtlpEndpoint {
            host,
            port,
            path: path.into(),
            tls,
        })
    }

    fn collector_headers(&mut self, named: &NamedMap<Secret>) -> Vec<(HeaderName, HeaderValue)> {
        let mut headers = Vec::new();
        for (key, value) in &named.entries {
            let name = HeaderName::try_from(key.value.as_str());
            let text = HeaderValue::try_from(value.value.expose());
            match (name, text) {
                (Ok(name), _) if OWN.contains(&name.as_str()) => {
                    let sentence = format!("`{name}` is written by weir itself");
                    self.complain(key.span, sentence);
                }
                (Ok(name), Ok(mut text)) => {
                    text.set_sensitive(true);
                    headers.push((name, text));
                }
                (Err(_), _) => {
                    let sentence = format!("`{}` is not the name of a header", key.value);
                    self.complain(key.span, sentence);
                }
                // Not repeated: it may be a secret.
                (_, Err(_)) => self.complain(value.span, "this cannot stand in a header"),
            }
        }
        headers
    }

    fn batch_interval(&mut self, given: Option<&Spanned<value::Time>>) -> Duration {
        let Some(given) = given else { return INTERVAL };
        let wanted = Duration::from_millis(10)..=Duration::from_secs(600);
        if !wanted.contains(&given.value.0) {
            let hint = "expected 10ms to 10m; the default is 5s";
            self.complain_with(given.span, "no useful time to send spans together", hint);
        }
        given.value.0
    }
}

/// A collector is who its certificate says, by the system's roots.
fn met_as(host: &str) -> UpstreamTls {
    UpstreamTls {
        name: host.into(),
        verify: true,
        depth: None,
        trusted: None,
        crl: None,
        certificate: None,
        server_name: true,
        protocols: vec![TlsVersion::Tls12, TlsVersion::Tls13],
        ciphers: Vec::new(),
        session_reuse: true,
        version: HttpVersion::One,
    }
}

/// nginx's.
const INTERVAL: Duration = Duration::from_secs(5);

/// Fields that say how a message is framed.
const OWN: [&str; 5] = [
    "connection",
    "content-length",
    "content-type",
    "host",
    "transfer-encoding",
];
