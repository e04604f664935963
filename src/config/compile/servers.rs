//! `servers`: what they listen on, whom they answer for, and their locations.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};

use super::Compiler;
use super::sites::{Does, Levels};
use crate::config::decode::{Needed, Spanned, Text};
use crate::config::model;
use crate::config::plan::{ClientTimeouts, Http2, Listen, Listener, Location, PathRule, Server};
use crate::config::span::Span;

/// nginx's default of `large_client_header_buffers`, multiplied out.
const MAX_HEAD: u64 = 4 * (8 << 10);

/// Largest head accepted in a configuration: every connection may make us keep as much.
const MOST_HEAD: u64 = 16 << 20;

/// nginx's default of `http2_max_concurrent_streams`.
const MAX_STREAMS: u32 = 128;

/// The listeners as they are gathered.
#[derive(Default)]
struct Gathered {
    listeners: Vec<Listener>,
    /// Where each listener's `default_server` was said, if it was.
    defaults: Vec<Option<Span>>,
    /// Which names were claimed on which listener, and where.
    claimed: HashMap<(usize, String), Span>,
}

impl Compiler<'_> {
    /// `servers` and the addresses they share.
    pub(super) fn servers(&mut self) -> (Vec<Server>, Vec<Listener>) {
        let config = self.config;
        let given: &[Spanned<model::Server>] = config.servers.value().map_or(&[], |list| &list.0);
        if let Some(list) = config.servers.get().filter(|list| list.value.0.is_empty()) {
            self.complain(list.span, "no servers: there is nothing to do");
        }
        let mut gathered = Gathered::default();
        let mut servers = Vec::new();
        for (index, server) in given.iter().enumerate() {
            self.listen(index, server, &mut gathered);
            servers.push(self.server(&server.value));
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

    fn listen(&mut self, index: usize, server: &Spanned<model::Server>, gathered: &mut Gathered) {
        let any = Listen::Tcp(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 80)));
        let mut addresses: Vec<(Listen, Span, bool)> = Vec::new();
        match server.value.listen.value() {
            None if server.value.listen.key().is_none() => {
                addresses.push((any, server.span, false))
            }
            None => {}
            Some(list) => {
                for entry in &list.0 {
                    let Some(address) = entry.value.0.address.get() else {
                        continue;
                    };
                    let marked = entry
                        .value
                        .0
                        .default_server
                        .value()
                        .is_some_and(|flag| flag.0);
                    addresses.push((address.value.0.clone(), address.span, marked));
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
        for (address, span, marked) in addresses {
            self.join(index, server, gathered, address, span, marked);
        }
        begin_with_proxy_header(&server.value, &mut gathered.listeners);
    }

    /// Makes a server one of those behind an address.
    fn join(
        &mut self,
        index: usize,
        server: &Spanned<model::Server>,
        gathered: &mut Gathered,
        address: Listen,
        span: Span,
        marked: bool,
    ) {
        let known = gathered
            .listeners
            .iter()
            .position(|listener| listener.address == address);
        let at = known.unwrap_or_else(|| {
            gathered.listeners.push(Listener {
                address,
                proxy_protocol: false,
                servers: Vec::new(),
                default_server: index,
            });
            gathered.defaults.push(None);
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
        if marked {
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
        server: &Spanned<model::Server>,
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

    fn server(&mut self, server: &model::Server) -> Server {
        let texts: &[Spanned<Text>] = server.server_name.value().map_or(&[], |list| &list.0);
        let names = texts
            .iter()
            .filter_map(|name| self.server_name(&name.value.text, name.span))
            .collect();
        let config = self.config;
        let connection = [&server.connection, &config.connection];
        let header = connection
            .iter()
            .find_map(|level| level.client_header_timeout.get());
        let header = self.some_time(header, 60);
        let outer = [&server.settings, &config.settings];
        let timeouts = self.client_timeouts(Levels(&outer), header);
        self.check_real_ip(Levels(&outer));
        let own = Does {
            pass: &server.proxy_pass,
            grpc: &server.grpc_pass,
            answer: &server.r#return,
        };
        let locations = self.locations(server, own, timeouts);
        Server {
            name: texts
                .first()
                .map_or_else(String::new, |name| folded(&name.value.text))
                .into(),
            names,
            timeouts,
            real_ip: self.real_ip(Levels(&outer)),
            max_head: self.max_head(connection),
            http2: match connection.iter().find_map(|level| level.http2.get()) {
                Some(flag) if !flag.value.0 => Http2::Off,
                _ => Http2::On,
            },
            max_streams: connection
                .iter()
                .find_map(|level| level.http2_max_concurrent_streams.get())
                .map_or(MAX_STREAMS, |most| most.value.0),
            locations,
            fallback: self.site(Levels(&outer), own, None, timeouts),
        }
    }

    fn locations(
        &mut self,
        server: &model::Server,
        own: Does<'_>,
        timeouts: ClientTimeouts,
    ) -> Vec<Location> {
        let config = self.config;
        let mut seen = HashMap::new();
        let listed: &[Spanned<model::Location>] =
            server.locations.value().map_or(&[], |list| &list.0);
        let mut locations = Vec::new();
        for location in listed {
            let given = self.location_path(&location.value.path, &mut seen);
            let inner = [&location.value.settings, &server.settings, &config.settings];
            let does = Does {
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
            let mut site = self.site(Levels(&inner), does, rule, timeouts);
            if location.value.settings.real_ip.get().is_some() {
                self.check_real_ip(Levels(&inner));
                site.real_ip = self.real_ip(Levels(&inner));
            }
            locations.extend(given.map(|path| Location { path, site }));
        }
        locations
    }

    fn location_path(
        &mut self,
        given: &Needed<Text>,
        seen: &mut HashMap<String, Span>,
    ) -> Option<crate::config::plan::Path> {
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

    fn max_head(&mut self, levels: [&model::Connection; 2]) -> usize {
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

/// One server that says `proxy_protocol` of an address says it for all, as in nginx: the header comes before anybody
/// knows which server is meant.
fn begin_with_proxy_header(server: &model::Server, listeners: &mut [Listener]) {
    let entries = server.listen.value().map_or(&[][..], |list| &list.0);
    for entry in entries {
        let entry = &entry.value.0;
        let said = entry.proxy_protocol.value().is_some_and(|flag| flag.0);
        let address = entry.address.value().filter(|_| said);
        for listener in listeners.iter_mut() {
            listener.proxy_protocol |= address.is_some_and(|it| it.0 == listener.address);
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
