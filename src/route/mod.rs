//! Which rules apply: host, then path, in nginx's order of preference.
//!
//! A table is built once from a plan and only read afterwards. It is generic in what it finds, so that it does not depend
//! on what a location is made of.
//!
//! `server_name`: exact, `*.suffix`, `prefix.*`, expression, default.
//!
//! Wildcards are kept in maps and looked up once for every dot of the host, so a thousand names cost what one costs.

mod location;

use std::collections::HashMap;

use regex::Regex;

use crate::config::plan::{LocationConf, Plan, ServerName};

pub use self::location::Locations;

/// From listener, host and path to what holds there.
#[derive(Debug)]
pub struct RouteTable<T> {
    /// By index of the plan's listener.
    hosts: Vec<Hosts>,
    /// By index of the plan's server.
    servers: Vec<ServerPaths<T>>,
}

#[derive(Debug)]
struct ServerPaths<T> {
    locations: Locations<T>,
    fallback: T,
}

impl<T> RouteTable<T> {
    /// A table of all servers of a plan; `make` turns each site into what is to be found.
    pub fn build(plan: &Plan, mut make: impl FnMut(&LocationConf) -> T) -> Self {
        let hosts = plan.listeners.iter().map(|listener| {
            let names = listener.servers.iter().flat_map(|&server| {
                let names = plan.servers[server].names.iter().cloned();
                names.map(move |name| (name, server))
            });
            Hosts::build(names, listener.default_server)
        });
        let servers = plan.servers.iter().map(|server| {
            let locations = server.locations.iter();
            ServerPaths {
                locations: Locations::build(
                    locations.map(|location| (location.path.rule.clone(), make(&location.conf))),
                ),
                fallback: make(&server.fallback),
            }
        });
        Self {
            hosts: hosts.collect(),
            servers: servers.collect(),
        }
    }

    /// The server for a host in [normal form](crate::message::Target::host), by the plan's indices.
    #[must_use]
    pub fn server(&self, listener: usize, host: &[u8]) -> usize {
        self.hosts[listener].find(host)
    }

    /// What holds at a server's normalised path: a location's, or else the server's own.
    #[must_use]
    pub fn find(&self, server: usize, path: &[u8]) -> &T {
        let paths = &self.servers[server];
        paths.locations.find(path).unwrap_or(&paths.fallback)
    }

    /// The location this path names without its last slash; see [`Locations::redirects_to_slash`].
    #[must_use]
    pub fn redirects_to_slash(&self, server: usize, path: &[u8]) -> Option<&T> {
        self.servers[server].locations.redirects_to_slash(path)
    }
}

/// The servers of one listener, by host.
#[derive(Debug)]
pub struct Hosts {
    exact: HashMap<Box<[u8]>, usize>,
    /// With their leading dot: `.example.com`.
    suffixes: Wildcards,
    /// With their last dot: `www.example.`.
    prefixes: Wildcards,
    expressions: Vec<(Regex, usize)>,
    default: usize,
}

#[derive(Debug, Default)]
struct Wildcards {
    servers: HashMap<Box<[u8]>, usize>,
    /// The longest one's length. Nothing longer is looked up, or a host of ten thousand dots would be hashed as often.
    longest: usize,
}

impl Wildcards {
    fn insert(&mut self, name: Box<str>, server: usize) {
        self.longest = self.longest.max(name.len());
        let name = name.into_boxed_bytes();
        self.servers.entry(name).or_insert(server);
    }
}

impl Hosts {
    /// Sorts names by kind. Of two equal names the first wins, as in nginx.
    pub fn build(names: impl IntoIterator<Item = (ServerName, usize)>, default: usize) -> Self {
        let mut hosts = Self {
            exact: HashMap::new(),
            suffixes: Wildcards::default(),
            prefixes: Wildcards::default(),
            expressions: Vec::new(),
            default,
        };
        for (name, server) in names {
            match name {
                ServerName::Exact(name) => hosts.insert_exact(&name, server),
                ServerName::Expression(expression) => hosts.expressions.push((expression, server)),
                ServerName::Prefix(prefix) => hosts.prefixes.insert(prefix, server),
                ServerName::Suffix(suffix) => hosts.suffixes.insert(suffix, server),
                ServerName::SuffixAndSelf(suffix) => {
                    hosts.insert_exact(suffix.strip_prefix('.').unwrap_or(&suffix), server);
                    hosts.suffixes.insert(suffix, server);
                }
            }
        }
        hosts
    }

    /// The server for a host in lower case without port; the default for an empty one.
    #[must_use]
    pub fn find(&self, host: &[u8]) -> usize {
        if let Some(server) = self.exact.get(host) {
            return *server;
        }
        self.find_suffix(host)
            .or_else(|| self.find_prefix(host))
            .or_else(|| self.find_expression(host))
            .unwrap_or(self.default)
    }

    fn insert_exact(&mut self, name: &str, server: usize) {
        self.exact.entry(name.as_bytes().into()).or_insert(server);
    }

    /// The longest first: from the first dot on. The star stands for at least one character.
    fn find_suffix(&self, host: &[u8]) -> Option<usize> {
        let first = host.len().saturating_sub(self.suffixes.longest).max(1);
        (first..host.len())
            .filter(|at| host[*at] == b'.')
            .find_map(|at| self.suffixes.servers.get(&host[at..]).copied())
    }

    /// The longest first: up to the last dot.
    fn find_prefix(&self, host: &[u8]) -> Option<usize> {
        let last = host.len().saturating_sub(1).min(self.prefixes.longest);
        (0..last)
            .rev()
            .filter(|at| host[*at] == b'.')
            .find_map(|at| self.prefixes.servers.get(&host[..=at]).copied())
    }

    fn find_expression(&self, host: &[u8]) -> Option<usize> {
        // A request without a host belongs to the default server, whatever an expression makes of nothing.
        if host.is_empty() || self.expressions.is_empty() {
            return None;
        }
        let host = std::str::from_utf8(host).ok()?;
        let mut expressions = self.expressions.iter();
        expressions
            .find(|(expression, _)| expression.is_match(host))
            .map(|(_, server)| *server)
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::config::plan::{Content, Listener, Location, LocationPath, PathRule, SocketAddress};

    #[test]
    fn a_table_finds_the_server_by_listener_and_host_and_then_the_site_by_path() {
        let mut plan = crate::message::testing::plan();
        plan.servers
            .push(crate::message::testing::server("b.example"));
        plan.servers[1].locations.push(Location {
            path: LocationPath {
                text: "/api/".into(),
                rule: PathRule::Prefix("/api/".into()),
            },
            conf: crate::message::testing::conf(Content::NotFound),
        });
        let listener = |port, default_server| Listener {
            http2: None,
            address: SocketAddress::Tcp(([127, 0, 0, 1], port).into()),
            tls: false,
            proxy_protocol: false,
            servers: vec![0, 1],
            default_server,
        };
        plan.listeners = vec![listener(80, 0), listener(81, 1)];

        // Numbers in the order of asking: each location of a server, then its fallback.
        let mut made = 0..;
        let table = RouteTable::build(&plan, |_| made.next());

        assert_eq!(table.server(0, b"b.example"), 1);
        assert_eq!(table.server(0, b"unknown"), 0);
        assert_eq!(table.server(1, b"unknown"), 1);
        assert_eq!(table.find(0, b"/api/x"), &Some(0));
        assert_eq!(table.find(1, b"/api/x"), &Some(1));
        assert_eq!(table.find(1, b"/"), &Some(2));
        assert_eq!(table.redirects_to_slash(1, b"/api"), Some(&Some(1)));
        assert_eq!(table.redirects_to_slash(0, b"/api"), None);
    }
}

#[cfg(test)]
mod host_tests {

    use super::*;

    fn name(text: &str) -> ServerName {
        if let Some(expression) = text.strip_prefix('~') {
            ServerName::Expression(Regex::new(expression).unwrap())
        } else if let Some(suffix) = text.strip_prefix('*') {
            ServerName::Suffix(suffix.into())
        } else if let Some(prefix) = text.strip_suffix('*') {
            ServerName::Prefix(prefix.into())
        } else if text.starts_with('.') {
            ServerName::SuffixAndSelf(text.into())
        } else {
            ServerName::Exact(text.into())
        }
    }

    fn hosts(names: &[&str]) -> Hosts {
        let names = names.iter().enumerate();
        Hosts::build(names.map(|(server, text)| (name(text), server)), 99)
    }

    /// nginx's document on server names: the order of precedence.
    #[test]
    fn exact_beats_leading_star_beats_trailing_star_beats_expressions() {
        let all = [
            r"~^(?P<user>.+)\.example\.net$",
            "www.example.*",
            "*.example.net",
            "www.example.net",
        ];
        assert_eq!(hosts(&all).find(b"www.example.net"), 3);
        assert_eq!(hosts(&all[..3]).find(b"www.example.net"), 2);
        assert_eq!(hosts(&all[..2]).find(b"www.example.net"), 1);
        assert_eq!(hosts(&all[..1]).find(b"www.example.net"), 0);
        assert_eq!(hosts(&[]).find(b"www.example.net"), 99);
    }

    #[test]
    fn a_star_stands_for_several_labels_but_not_for_none() {
        let hosts = hosts(&["*.example.org", "mail.*"]);
        assert_eq!(hosts.find(b"www.example.org"), 0);
        assert_eq!(hosts.find(b"www.sub.example.org"), 0);
        assert_eq!(hosts.find(b"example.org"), 99);
        assert_eq!(hosts.find(b"badexample.org"), 99);
        assert_eq!(hosts.find(b".example.org"), 99);
        assert_eq!(hosts.find(b"mail.co.uk"), 1);
        assert_eq!(hosts.find(b"mail."), 99);
        assert_eq!(hosts.find(b"mail"), 99);
        assert_eq!(hosts.find(b"webmail.org"), 99);
    }

    #[test]
    fn the_longest_wildcard_wins() {
        let hosts = hosts(&[
            "*.org",
            "*.a.example.org",
            "*.example.org",
            "www.*",
            "www.example.*",
        ]);
        assert_eq!(hosts.find(b"x.a.example.org"), 1);
        assert_eq!(hosts.find(b"a.example.org"), 2);
        assert_eq!(hosts.find(b"example.org"), 0);
        assert_eq!(hosts.find(b"www.example.com"), 4);
        assert_eq!(hosts.find(b"www.other.com"), 3);
    }

    #[test]
    fn a_leading_dot_means_the_name_and_all_below_it() {
        let hosts = hosts(&[".example.com"]);
        assert_eq!(hosts.find(b"example.com"), 0);
        assert_eq!(hosts.find(b"www.example.com"), 0);
        assert_eq!(hosts.find(b"com"), 99);
    }

    #[test]
    fn expressions_are_tried_in_their_order() {
        let hosts = hosts(&[r"~^www\d+\.example\.net$", r"~^www", "~.*"]);
        assert_eq!(hosts.find(b"www7.example.net"), 0);
        assert_eq!(hosts.find(b"www.other"), 1);
        assert_eq!(hosts.find(b"x"), 2);
        assert_eq!(hosts.find(b""), 99);
    }

    #[test]
    fn of_two_equal_names_the_first_wins() {
        assert_eq!(hosts(&["a.example", "a.example"]).find(b"a.example"), 0);
        assert_eq!(hosts(&["*.example", ".example"]).find(b"a.example"), 0);
        assert_eq!(hosts(&["*.example", ".example"]).find(b"example"), 1);
    }
}
