//! `servers`: what they listen on, whom they answer for, and their locations.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};

use super::location::{ContentDirectives, SettingLevels};
use super::settings::{self, ClientSettings, ServerSettings, spoken};
use crate::config::compile::{self, Compiler, PathRule};
use crate::config::decode::value::Text;
use crate::config::decode::{Required, Spanned};
use crate::config::plan::{Listener, Location, Server, SocketAddress};
use crate::config::source::Span;

pub(crate) mod raw {
    //! `servers` and their `locations`.
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use crate::config::decode::record::record;
    use crate::config::decode::value::{Flag, HasShorthand, List, ListenAddress, Shorthand, Text};
    use crate::config::decode::{Decode, DecodeContext, Field, Required};
    use crate::config::directive::settings::raw::{ServerDirectives, Settings};
    use crate::config::directive::tls::raw::Tls;
    use crate::config::source::{Node, NodeKind};

    record! {
        /// A virtual server.
        pub struct Server {
            /// Where it listens: `8080`, `127.0.0.1:8080`, `[::1]:8080`, `unix:/run/weir.sock`; `8443 ssl` for TLS. Default: *:80.
            listen: Field<List<Shorthand<Listen>>>,
            /// Hosts it answers for: `example.com`, `*.example.com`, `.example.com`, `www.example.*`, `~expr`. None given: whatever no other server claims.
            server_name: Field<List<Text>>,
            /// Its certificate and how TLS is spoken on its addresses; what is not given here holds as at the top level.
            tls: Field<Tls>,
            /// Where requests go that no location of their own sends elsewhere: an upstream's name or `http://host:port[/uri]`, `https://…`.
            proxy_pass: Field<Text>,
            /// The same for gRPC: an upstream's name or `grpc://host:port`, spoken to in HTTP/2.
            grpc_pass: Field<Text>,
            /// What requests are answered with that no location of their own sends elsewhere.
            r#return: Field<Return>,
            /// Paths with rules of their own.
            locations: Field<List<Location>>,
        }
        with settings: Settings, connection: ServerDirectives,
    }

    record! {
        /// One address to listen on.
        pub struct Listen {
            /// Where.
            address: Required<ListenAddress>,
            /// Clients speak TLS here. Default: false.
            tls: Field<Flag>,
            /// Every connection begins with a PROXY header, version 1 or 2; `real_ip` says whether it is believed. Default: false.
            proxy_protocol: Field<Flag>,
            /// Whether clients may speak HTTP/2 here, whatever its servers say. Default: as the address's default server says.
            http2: Field<Flag>,
            /// This server answers for hosts that nobody claims on this address. Default: false.
            default_server: Field<Flag>,
        }
    }

    impl HasShorthand for Listen {
        const KEY: &'static str = "address";
    }

    record! {
        /// A path and what holds there.
        pub struct Location {
            /// Which paths: a prefix such as `/api/`, `= /exact`, `^~ /prefix`, `~ expr` or `~* expr`, in nginx's order of preference.
            path: Required<Text>,
            /// Where requests go: an upstream's name or `http://host:port[/uri]`. Default: as the server says.
            proxy_pass: Field<Text>,
            /// The same for gRPC: an upstream's name or `grpc://host:port`, spoken to in HTTP/2.
            grpc_pass: Field<Text>,
            /// What requests are answered with, in place of being sent on.
            r#return: Field<Return>,
        }
        with settings: Settings,
    }

    /// `return`, as nginx writes it or in parts.
    #[derive(Debug, Clone)]
    pub enum Return {
        /// In parts.
        Parts(Box<ReturnParts>),
        /// `204`, `200 text`, `301 https://…` or `https://…`.
        Text(Text),
    }

    record! {
        /// An answer without an upstream.
        pub struct ReturnParts {
            /// Its status; 444 closes the connection without an answer. Default: 302 with `url`, else 200.
            status: Field<Text>,
            /// Its text. Default: a page about the status.
            body: Field<Text>,
            /// The type of the text. Default: text/plain.
            content_type: Field<Text>,
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
                    context.expected(
                        node,
                        "a status, or a mapping with `status` and `body` or `url`",
                    );
                    None
                }
            }
        }
    }

    impl JsonSchema for Return {
        fn schema_name() -> Cow<'static, str> {
            "Return".into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            let parts = generator.subschema_for::<ReturnParts>();
            json_schema!({ "anyOf": [{ "type": ["integer", "string"] }, parts] })
        }
    }
}

/// The listeners as they are gathered.
#[derive(Default)]
struct ListenerTable {
    listeners: Vec<Listener>,
    /// Where each listener's `default_server` was said, if it was.
    defaults: Vec<Option<Span>>,
    /// Where each was first named.
    said: Vec<Span>,
    /// Which names were claimed on which listener, and where.
    claimed: HashMap<(usize, String), Span>,
}

/// An address as a server asks for it.
struct ListenSpec {
    address: SocketAddress,
    span: Span,
    is_default: bool,
    tls: bool,
    http2: Option<bool>,
}

impl Compiler<'_> {
    /// `servers` and the addresses they share.
    pub(in crate::config) fn servers(&mut self) -> (Vec<Server>, Vec<Listener>) {
        let config = self.config;
        let given: &[Spanned<raw::Server>] = config.servers.value().map_or(&[], |list| &list.0);
        if let Some(list) = config.servers.get().filter(|list| list.value.0.is_empty()) {
            self.complain(list.span, "no servers: there is nothing to do");
        }
        let mut gathered = ListenerTable::default();
        let mut servers = Vec::new();
        for (index, server) in given.iter().enumerate() {
            let tls = self.listen(index, server, &mut gathered);
            servers.push(self.server(server, tls));
        }
        for (listener, marked) in gathered.listeners.iter_mut().zip(&gathered.defaults) {
            if marked.is_none() {
                let nameless = |index: &&usize| {
                    servers
                        .get(**index)
                        .is_some_and(|server| server.names.is_empty())
                };
                let first = listener
                    .servers
                    .iter()
                    .find(nameless)
                    .or_else(|| listener.servers.first());
                listener.default_server = first.copied().unwrap_or(0);
            }
        }
        self.warn_of_no_proxy_header(&gathered.listeners);
        (servers, gathered.listeners)
    }

    /// Gathers what a server listens on, and says where it was told to do so with TLS, if it was.
    fn listen(
        &mut self,
        index: usize,
        server: &Spanned<raw::Server>,
        gathered: &mut ListenerTable,
    ) -> Option<Span> {
        let any = SocketAddress::Tcp(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 80)));
        let mut addresses: Vec<ListenSpec> = Vec::new();
        match server.value.listen.value() {
            None if server.value.listen.key().is_none() => {
                addresses.push(ListenSpec {
                    address: any,
                    span: server.span,
                    is_default: false,
                    tls: false,
                    http2: None,
                });
            }
            None => {}
            Some(list) => {
                for entry in &list.0 {
                    let Some(address) = entry.value.0.address.get() else {
                        continue;
                    };
                    let entry = &entry.value.0;
                    let text = &address.value.0;
                    let tls = entry.tls.value().map_or(text.ssl, |flag| flag.0);
                    addresses.push(ListenSpec {
                        address: text.address.clone(),
                        span: address.span,
                        is_default: text.default_server
                            || entry.default_server.value().is_some_and(|flag| flag.0),
                        tls,
                        http2: spoken(entry.http2.value().map(|flag| flag.0), text.http2),
                    });
                }
                if list.0.is_empty() {
                    self.complain_with(
                        server.value.listen.key().unwrap_or(server.span),
                        "a server that listens on nothing",
                        "leave `listen` out for `*:80`",
                    );
                }
            }
        }
        let tls = addresses.iter().find(|asked| asked.tls);
        let tls = tls.map(|asked| asked.span);
        for asked in addresses {
            self.join(index, server, gathered, asked);
        }
        begin_with_proxy_header(&server.value, &mut gathered.listeners);
        tls
    }

    /// Makes a server one of those behind an address.
    fn join(
        &mut self,
        index: usize,
        server: &Spanned<raw::Server>,
        gathered: &mut ListenerTable,
        asked: ListenSpec,
    ) {
        let span = asked.span;
        let known = gathered
            .listeners
            .iter()
            .position(|listener| listener.address == asked.address);
        let at = known.unwrap_or_else(|| {
            gathered.listeners.push(Listener {
                address: asked.address,
                tls: asked.tls,
                proxy_protocol: false,
                http2: asked.http2,
                servers: Vec::new(),
                default_server: index,
            });
            gathered.defaults.push(None);
            gathered.said.push(span);
            gathered.listeners.len() - 1
        });
        let (Some(listener), Some(default)) = (
            gathered.listeners.get_mut(at),
            gathered.defaults.get_mut(at),
        ) else {
            return;
        };
        if listener.servers.contains(&index) {
            self.complain(span, "this server listens here already");
            return;
        }
        listener.servers.push(index);
        if listener.tls != asked.tls {
            let place = gathered
                .said
                .get(at)
                .map(|first| self.report.sources().place(*first));
            self.complain_with(
                span,
                "one address cannot be with TLS for one server and without for another",
                format!("the other is at {}", place.unwrap_or_default()),
            );
        }
        listener.http2 = listener.http2.or(asked.http2);
        if asked.http2.is_some() && listener.http2 != asked.http2 {
            let sentence = "one address cannot speak HTTP/2 for one server and not for another";
            self.complain(span, sentence);
        }
        if asked.is_default {
            if let Some(first) = default.replace(span) {
                let place = self.report.sources().place(first);
                self.complain_with(
                    span,
                    "a second `default_server` for this address",
                    format!("the first is at {place}"),
                );
            }
            listener.default_server = index;
        }
        self.claim(at, server, span, &mut gathered.claimed);
    }

    /// Complains about names that another server on the same address has, too.
    fn claim(
        &mut self,
        at: usize,
        server: &Spanned<raw::Server>,
        listen: Span,
        claimed: &mut HashMap<(usize, String), Span>,
    ) {
        let names = server.value.server_name.value();
        if server.value.server_name.key().is_some() && names.is_none() {
            return;
        }
        let mut own: Vec<(String, Span)> = names
            .map_or(&[][..], |list| &list.0)
            .iter()
            .map(|name| (folded(&name.value.text), name.span))
            .collect();
        if own.is_empty() {
            own.push((String::new(), listen));
        }
        for (name, span) in own {
            if let Some(first) = claimed.insert((at, name.clone()), span) {
                let place = self.report.sources().place(first);
                let sentence = if name.is_empty() {
                    "another server without a name listens here".to_owned()
                } else {
                    format!(
                        "conflicting server name `{name}`: another server on this address has it"
                    )
                };
                self.complain_with(span, sentence, format!("it is at {place}"));
            }
        }
    }

    fn server(&mut self, given: &Spanned<raw::Server>, tls: Option<Span>) -> Server {
        let server = &given.value;
        let texts: &[Spanned<Text>] = server.server_name.value().map_or(&[], |list| &list.0);
        let names = texts
            .iter()
            .filter_map(|name| self.server_name(&name.value.text, name.span))
            .collect();
        let config = self.config;
        let levels = [&server.connection, &config.connection];
        let connection = ServerSettings::merge(levels.into_iter(), self);
        let outer = [&server.settings, &config.settings];
        let client = ClientSettings::merge(outer.iter().map(|s| &s.client), self);
        self.check_real_ip(SettingLevels(&outer));
        let own = ContentDirectives {
            pass: &server.proxy_pass,
            grpc: &server.grpc_pass,
            answer: &server.r#return,
        };
        let max_streams = connection.http2_max_concurrent_streams;
        let locations = self.locations(server, own);
        Server {
            name: texts
                .first()
                .map_or_else(String::new, |name| folded(&name.value.text))
                .into(),
            names,
            client,
            header_timeout: connection.client_header_timeout,
            tls: self.tls(given, tls),
            real_ip: self.real_ip(SettingLevels(&outer)),
            max_head: connection.large_client_header_buffers,
            http2: settings::http2(levels.into_iter()),
            max_streams,
            max_resets: settings::max_resets(levels.into_iter(), max_streams),
            locations,
            fallback: self.conf(SettingLevels(&outer), own, None),
        }
    }

    fn locations(&mut self, server: &raw::Server, own: ContentDirectives<'_>) -> Vec<Location> {
        let config = self.config;
        let mut seen = HashMap::new();
        let listed: &[Spanned<raw::Location>] =
            server.locations.value().map_or(&[], |list| &list.0);
        let mut locations = Vec::new();
        for location in listed {
            let given = self.location_path(&location.value.path, &mut seen);
            let inner = [&location.value.settings, &server.settings, &config.settings];
            let does = ContentDirectives {
                pass: &location.value.proxy_pass,
                grpc: &location.value.grpc_pass,
                answer: &location.value.r#return,
            };
            // Without an action of its own it does what its server does, from the server's point of view.
            let (does, rule) = if does.something() {
                (does, given.as_ref().map(|path| &path.rule))
            } else {
                if !own.something() {
                    self.warn(
                        location.span,
                        "every request here is answered 404",
                        "say what becomes of them: `proxy_pass` or `return`",
                    );
                }
                (own, None)
            };
            let mut conf = self.conf(SettingLevels(&inner), does, rule);
            self.warn_of_nothing_sent(&location.value.settings, &conf);
            if location.value.settings.real_ip.get().is_some() {
                self.check_real_ip(SettingLevels(&inner));
                conf.real_ip = self.real_ip(SettingLevels(&inner));
            }
            locations.extend(given.map(|path| Location { path, conf }));
        }
        locations
    }

    fn location_path(
        &mut self,
        given: &Required<Text>,
        seen: &mut HashMap<String, Span>,
    ) -> Option<compile::LocationPath> {
        let given = given.get()?;
        let path = self.path(given)?;
        let (kind, text) = match &path.rule {
            PathRule::Exact(text) => ("=", text.to_string()),
            PathRule::Prefix(text) | PathRule::PrefixFirst(text) => ("", text.to_string()),
            PathRule::Expression(_) => ("~", path.text.to_string()),
        };
        if let Some(first) = seen.insert(format!("{kind}{text}"), given.span) {
            let place = self.report.sources().place(first);
            let sentence = format!("a second location for `{}`", path.text);
            self.complain_with(given.span, sentence, format!("the first is at {place}"));
        }
        Some(path)
    }
}

/// One server that says `proxy_protocol` of an address says it for all, as in nginx: the header comes before anybody
/// knows which server is meant.
fn begin_with_proxy_header(server: &raw::Server, listeners: &mut [Listener]) {
    let entries = server.listen.value().map_or(&[][..], |list| &list.0);
    for entry in entries {
        let entry = &entry.value.0;
        let said = entry.proxy_protocol.value().is_some_and(|flag| flag.0);
        let address = entry.address.value().filter(|_| said);
        for listener in listeners.iter_mut() {
            listener.proxy_protocol |= address.is_some_and(|it| it.0.address == listener.address);
        }
    }
}

/// A name as it is compared; an expression's letters mean what they are.
fn folded(name: &str) -> String {
    if name.starts_with('~') {
        name.to_owned()
    } else {
        name.to_ascii_lowercase()
    }
}
