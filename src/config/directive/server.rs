//! `servers`: their addresses, host names and locations.

use std::collections::HashMap;
use std::time::Duration;

use super::client::{self, RealIp};
use super::location::{ContentDirectives, LocationConf};
use super::proxy_pass::LocationPool;
use super::settings::{ClientSettings, Inherited, ServerDirectives, ServerSettings, Settings};
use super::tls::{self, Tls};
use crate::config::compile::{self, Compiler, LocationPath, PathRule, ServerName};
use crate::config::decode::record::Record;
use crate::config::decode::units::SocketAddress;
use crate::config::decode::value::{List, Shorthand, Text};
use crate::config::decode::{Field, Required, Spanned};
use crate::config::report::Report;
use crate::config::source::Span;

pub(crate) mod raw {
    //! `servers` and their `locations`, as the user writes them.
    use crate::config::decode::record::record;
    use crate::config::decode::value::{Flag, HasShorthand, List, ListenAddress, Shorthand, Text};
    use crate::config::decode::{Field, Required};
    use crate::config::directive::content::raw::Return;
    use crate::config::directive::settings::{ServerDirectives, Settings};
    use crate::config::directive::tls::raw::Tls;

    record! {
        /// A virtual server.
        pub(crate) struct Server {
            /// Where it listens: `8080`, `127.0.0.1:8080`, `[::1]:8080`, `unix:/run/weir.sock`; `8443 ssl` for TLS.
            listen: Field<List<Shorthand<Listen>>> = "*:80" => Vec<Shorthand<Listen>>,
            /// Its host names: `example.com`, `*.example.com`, `.example.com`, `www.example.*`, `~expr`. None given: all hosts that no other server has.
            server_name: Field<List<Text>>,
            /// Its certificate and how TLS is spoken on its addresses; what is not given here holds as at the top level.
            tls: Field<Tls>,
            /// Where requests go that no location handles: an upstream's name or `http://host:port[/uri]`, `https://…`.
            proxy_pass: Field<Text>,
            /// The same for gRPC: an upstream's name or `grpc://host:port`, spoken to in HTTP/2.
            grpc_pass: Field<Text>,
            /// The response to requests that no location handles.
            r#return: Field<Return>,
            /// Paths with rules of their own.
            locations: Field<List<Location>>,
        }
        with settings: Settings, connection: ServerDirectives,
    }

    record! {
        /// One address to listen on.
        pub(crate) struct Listen {
            /// Where.
            address: Required<ListenAddress>,
            /// Clients speak TLS here.
            tls: Field<Flag> = "false" => bool,
            /// Every connection begins with a PROXY header, version 1 or 2; `real_ip` decides whether it is trusted.
            proxy_protocol: Field<Flag> = "false" => bool,
            /// Whether clients may speak HTTP/2 here, whatever `http2` of its servers. Default: that of the address's default server.
            http2: Field<Flag>,
            /// This server handles hosts that no server has on this address.
            default_server: Field<Flag> = "false" => bool,
        }
    }

    impl HasShorthand for Listen {
        const KEY: &'static str = "address";
    }

    record! {
        /// A path and what holds there.
        pub(crate) struct Location {
            /// Which paths: a prefix such as `/api/`, `= /exact`, `^~ /prefix`, `~ expr` or `~* expr`, in nginx's order of preference.
            path: Required<Text>,
            /// Where requests go: an upstream's name or `http://host:port[/uri]`. Default: as the server says.
            proxy_pass: Field<Text>,
            /// The same for gRPC: an upstream's name or `grpc://host:port`, spoken to in HTTP/2.
            grpc_pass: Field<Text>,
            /// The response to requests, in place of sending them on.
            r#return: Field<Return>,
        }
        with settings: Settings,
    }
}

/// One address to listen on, and the servers behind it.
#[derive(Debug, Clone)]
pub struct Listener {
    /// Where.
    pub address: SocketAddress,
    /// Whether clients speak TLS here.
    pub tls: bool,
    /// Whether every connection begins with a PROXY header.
    pub proxy_protocol: bool,
    /// `http2` of the address itself.
    pub http2: Option<bool>,
    /// Those that name this address, in the file's order.
    pub servers: Vec<usize>,
    /// The one for hosts that no server has: the server marked `default_server`, else one without a name, else the first.
    pub default_server: usize,
}

/// A virtual server.
#[derive(Debug, Clone)]
pub struct Server {
    /// What `$server_name` gives: the first name, or nothing.
    pub name: Box<str>,
    /// Its host names.
    pub names: Vec<ServerName>,
    /// Connection-level settings, in force from the moment the server is known (the listener's default server before).
    pub client: ClientSettings,
    /// `client_header_timeout`
    pub header_timeout: Duration,
    /// TLS settings; there for every server of a listener with TLS.
    pub tls: Option<Tls>,
    /// `real_ip`
    pub real_ip: Option<RealIp>,
    /// The largest size of a request's headers, `large_client_header_buffers` multiplied out.
    pub max_head: usize,
    /// `http2`
    pub http2: bool,
    /// `http2_max_concurrent_streams`
    pub max_streams: u32,
    /// `http2_max_resets`
    pub max_resets: u32,
    /// Its locations in the file's order.
    pub locations: Vec<Location>,
    /// For requests without a location: the server's own settings.
    pub fallback: LocationConf,
}

/// A path and what holds there.
#[derive(Debug, Clone)]
pub struct Location {
    /// Which paths.
    pub path: LocationPath,
    /// What holds there.
    pub conf: LocationConf,
}

/// What all servers are compiled with.
pub(crate) struct TopLevel<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) connection: &'a ServerDirectives,
    pub(crate) tls: &'a Field<tls::raw::Tls>,
}

/// The listeners as they are gathered.
#[derive(Default)]
struct ListenerTable {
    listeners: Vec<Listener>,
    places: Vec<ListenerPlaces>,
}

/// Where the parts of a listener were given.
struct ListenerPlaces {
    first: Span,
    default_server: Option<Span>,
    /// Host names of its servers.
    names: HashMap<String, Span>,
}

/// An address as a server gives it.
struct ListenSpec {
    address: SocketAddress,
    span: Span,
    default_server: bool,
    tls: bool,
    http2: Option<bool>,
    proxy_protocol: bool,
}

/// `servers` and the addresses they share.
pub(crate) fn servers(
    given: &Required<List<raw::Server>>,
    top: &TopLevel<'_>,
    pool: &mut LocationPool<'_>,
    compiler: &mut Compiler<'_>,
) -> (Vec<Server>, Vec<Listener>) {
    if let Some(list) = given.get().filter(|list| list.value.0.is_empty()) {
        compiler
            .report
            .error(list.span, "`servers` is empty: there is nothing to do");
    }
    let mut table = ListenerTable::default();
    let mut servers = Vec::new();
    for (index, given) in given.items().iter().enumerate() {
        let tls = listen(index, given, &mut table, compiler.report);
        servers.push(Server::compile(given, tls, top, pool, compiler));
    }
    for (listener, places) in table.listeners.iter_mut().zip(&table.places) {
        if places.default_server.is_none() {
            let mut indices = listener.servers.iter();
            let is_nameless = |index: &&usize| {
                let server: Option<&Server> = servers.get(**index);
                server.is_some_and(|server| server.names.is_empty())
            };
            let first = indices
                .find(is_nameless)
                .or_else(|| listener.servers.first());
            listener.default_server = first.copied().unwrap_or(0);
        }
    }
    warn_of_no_proxy_header(given, top, &table.listeners, compiler.report);
    (servers, table.listeners)
}

/// Adds a server to its listeners; where it listens with TLS, if it does.
fn listen(
    index: usize,
    server: &Spanned<raw::Server>,
    table: &mut ListenerTable,
    report: &mut Report,
) -> Option<Span> {
    let listed = &server.value.listen;
    if listed.key().is_some() && listed.value().is_none() {
        return None;
    }
    let mut tls = None;
    for Shorthand(entry) in server.value.listen() {
        let Some(address) = entry.address.get() else {
            continue;
        };
        let text = &address.value.0;
        let spec = ListenSpec {
            address: text.address.clone(),
            span: listed.value().map_or(server.span, |_| address.span),
            default_server: text.default_server || entry.default_server(),
            tls: entry.tls() || (text.ssl && entry.tls.value().is_none()),
            http2: match entry.http2.value() {
                Some(flag) => Some(flag.0),
                None => text.http2.then_some(true),
            },
            proxy_protocol: entry.proxy_protocol(),
        };
        if spec.tls {
            tls = tls.or(Some(spec.span));
        }
        join(index, server, table, spec, report);
    }
    if let Some(list) = listed.get().filter(|list| list.value.0.is_empty()) {
        let place = listed.key().unwrap_or(list.span);
        let hint = "leave `listen` out for `*:80`";
        report.error_with(place, "a server that listens on nothing", hint);
    }
    tls
}

/// Makes a server one of those behind an address.
fn join(
    index: usize,
    server: &Spanned<raw::Server>,
    table: &mut ListenerTable,
    spec: ListenSpec,
    report: &mut Report,
) {
    let ListenSpec { address, span, .. } = spec;
    let mut known = table.listeners.iter();
    let at = known.position(|listener| listener.address == address);
    let at = at.unwrap_or_else(|| {
        table.listeners.push(Listener {
            address,
            tls: spec.tls,
            proxy_protocol: false,
            http2: spec.http2,
            servers: Vec::new(),
            default_server: index,
        });
        table.places.push(ListenerPlaces {
            first: span,
            default_server: None,
            names: HashMap::new(),
        });
        table.listeners.len() - 1
    });
    let (listener, places) = (&mut table.listeners[at], &mut table.places[at]);
    // One server that gives `proxy_protocol` gives it for all, as in nginx: the header is read before the server is known.
    listener.proxy_protocol |= spec.proxy_protocol;
    if listener.servers.contains(&index) {
        report.error(span, "this server listens here already");
        return;
    }
    listener.servers.push(index);
    if listener.tls != spec.tls {
        let place = report.sources().place(places.first);
        let sentence = "an address cannot be with TLS for one server and without for another";
        report.error_with(span, sentence, format!("the other is at {place}"));
    }
    listener.http2 = listener.http2.or(spec.http2);
    if spec.http2.is_some() && listener.http2 != spec.http2 {
        let sentence = "an address cannot be with HTTP/2 for one server and without for another";
        report.error(span, sentence);
    }
    if spec.default_server {
        if let Some(first) = places.default_server.replace(span) {
            let place = report.sources().place(first);
            let sentence = "a second `default_server` for this address";
            report.error_with(span, sentence, format!("the first is at {place}"));
        }
        listener.default_server = index;
    }
    check_names(server, span, &mut places.names, report);
}

/// Reports names that another server on the same address has, too.
fn check_names(
    server: &Spanned<raw::Server>,
    listen: Span,
    names: &mut HashMap<String, Span>,
    report: &mut Report,
) {
    let given = &server.value.server_name;
    if given.key().is_some() && given.value().is_none() {
        return;
    }
    let items = given.items().iter();
    let mut own: Vec<_> = items
        .map(|name| (folded(&name.value.text), name.span))
        .collect();
    if own.is_empty() {
        own.push((String::new(), listen));
    }
    for (name, span) in own {
        let Some(first) = names.insert(name.clone(), span) else {
            continue;
        };
        let place = report.sources().place(first);
        let sentence = match name.is_empty() {
            true => "another server without a name listens here".to_owned(),
            false => {
                format!("conflicting server name `{name}`: another server on this address has it")
            }
        };
        report.error_with(span, sentence, format!("it is at {place}"));
    }
}

impl Server {
    fn compile(
        given: &Spanned<raw::Server>,
        listens_with_tls: Option<Span>,
        top: &TopLevel<'_>,
        pool: &mut LocationPool<'_>,
        compiler: &mut Compiler<'_>,
    ) -> Self {
        let server = &given.value;
        let texts = server.server_name.items();
        let names = texts.iter().filter_map(|name| {
            let read = compile::server_name(&name.value.text);
            compiler.report.parsed(name.span, read)
        });
        let names = names.collect();
        let connection: ServerDirectives =
            Record::inherit([&server.connection, top.connection].into_iter());
        let settings = ServerSettings::new(&connection, compiler.report);
        let levels = [&server.settings, top.settings];
        let inherited = Inherited::new(&levels);
        let own = ContentDirectives {
            proxy_pass: &server.proxy_pass,
            grpc_pass: &server.grpc_pass,
            r#return: &server.r#return,
        };
        let max_streams = settings.http2_max_concurrent_streams;
        Self {
            name: texts
                .first()
                .map_or_else(String::new, |name| folded(&name.value.text))
                .into(),
            names,
            client: ClientSettings::new(&inherited.settings.client, compiler.report),
            header_timeout: settings.client_header_timeout,
            tls: server_tls(given, listens_with_tls, top, compiler.report),
            real_ip: real_ip(&levels, &inherited, compiler.report),
            max_head: settings.large_client_header_buffers,
            http2: settings.http2,
            max_streams,
            max_resets: connection.max_resets(max_streams),
            locations: locations(server, own, top, pool, compiler),
            fallback: LocationConf::compile(inherited, own, None, pool, compiler),
        }
    }
}

/// The `real_ip` of a server or a location that gives one.
fn real_ip(levels: &[&Settings], inherited: &Inherited, report: &mut Report) -> Option<RealIp> {
    let given = levels.iter().filter_map(|level| level.real_ip.get());
    let given: Vec<_> = given.map(|given| (&given.value, given.span)).collect();
    client::check_real_ip(&given, &inherited.real_ip, report);
    RealIp::compile(&inherited.real_ip, report)
}

/// The `tls` of a server; `listens` is where it listens with TLS.
fn server_tls(
    server: &Spanned<raw::Server>,
    listens: Option<Span>,
    top: &TopLevel<'_>,
    report: &mut Report,
) -> Option<Tls> {
    let given = &server.value.tls;
    let Some(listens) = listens else {
        if let Some(key) = given.key().filter(|_| given.value().is_some()) {
            report.warn(
                key,
                "this server has a certificate and never listens with TLS",
                "write `listen: { address: …, tls: true }`",
            );
        }
        return None;
    };
    let levels: Vec<_> = given.value().into_iter().chain(top.tls.value()).collect();
    if levels.is_empty() {
        // A `tls` that could not be understood is reported already.
        if given.key().or_else(|| top.tls.key()).is_none() {
            let sentence = "this server listens with TLS and has no `tls`";
            let hint = "add `tls: { certificate: fullchain.pem, key: key.pem }` to it";
            report.error_with(listens, sentence, hint);
        }
        return None;
    }
    Some(Tls::compile(&levels, listens, report))
}

fn locations(
    server: &raw::Server,
    own: ContentDirectives<'_>,
    top: &TopLevel<'_>,
    pool: &mut LocationPool<'_>,
    compiler: &mut Compiler<'_>,
) -> Vec<Location> {
    let mut seen = HashMap::new();
    let locations = server.locations.items().iter().filter_map(|given| {
        let Spanned {
            value: location,
            span,
        } = given;
        let path = location_path(&location.path, &mut seen, compiler.report);
        let levels = [&location.settings, &server.settings, top.settings];
        let inherited = Inherited::new(&levels);
        let content = ContentDirectives {
            proxy_pass: &location.proxy_pass,
            grpc_pass: &location.grpc_pass,
            r#return: &location.r#return,
        };
        let own_real_ip = location.settings.real_ip.get();
        let real_ip = own_real_ip.and_then(|_| real_ip(&levels, &inherited, compiler.report));
        // Without content of its own it has that of its server, which is under no path.
        let mut conf = if content.is_given() {
            let rule = path.as_ref().map(|path| &path.rule);
            LocationConf::compile(inherited, content, rule, pool, compiler)
        } else {
            if !own.is_given() {
                let sentence = "every request here gets a 404";
                let hint = "add `proxy_pass` or `return`";
                compiler.report.warn(*span, sentence, hint);
            }
            LocationConf::compile(inherited, own, None, pool, compiler)
        };
        conf.warn_of_unused(&location.settings, compiler.report);
        conf.real_ip = real_ip;
        path.map(|path| Location { path, conf })
    });
    locations.collect()
}

fn location_path(
    given: &Required<Text>,
    seen: &mut HashMap<String, Span>,
    report: &mut Report,
) -> Option<LocationPath> {
    let given = given.get()?;
    let path = compile::location_path(given, report)?;
    let (kind, text) = match &path.rule {
        PathRule::Exact(text) => ("=", text),
        PathRule::Prefix(text) | PathRule::PrefixFirst(text) => ("", text),
        PathRule::Expression(_) => ("~", &path.text),
    };
    if let Some(first) = seen.insert(format!("{kind}{text}"), given.span) {
        let place = report.sources().place(first);
        let sentence = format!("a second location for `{}`", path.text);
        report.error_with(given.span, sentence, format!("the first is at {place}"));
    }
    Some(path)
}

/// Warns of a `real_ip` that reads PROXY headers where no listener expects any.
fn warn_of_no_proxy_header(
    servers: &Required<List<raw::Server>>,
    top: &TopLevel<'_>,
    listeners: &[Listener],
    report: &mut Report,
) {
    if listeners.iter().any(|listener| listener.proxy_protocol) {
        return;
    }
    let servers = servers.items().iter().map(|server| &server.value.settings);
    for level in servers.chain([top.settings]) {
        let header = level.real_ip.value().and_then(|it| it.header.get());
        if let Some(header) = header.filter(|it| it.value.text == "proxy_protocol") {
            report.warn(
                header.span,
                "no listener expects a PROXY header",
                "add it to a listener: `listen: { address: …, proxy_protocol: true }`",
            );
        }
    }
}

/// A name as it is compared; the case of an expression is kept.
fn folded(name: &str) -> String {
    match name.starts_with('~') {
        true => name.to_owned(),
        false => name.to_ascii_lowercase(),
    }
}
