//! Which rules apply: host, then path, in nginx's order of preference.
//!
//! A table is built once from a plan and only read afterwards. It is generic in what it finds, so that it need not
//! know the rooms that come after it on the road.

mod expression;
mod host;
mod location;
mod trie;

pub use host::Hosts;
pub use location::Locations;

use crate::config::plan::{LocationConf, Plan};

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
                    locations.map(|location| (location.path.rule.clone(), make(&location.site))),
                ),
                fallback: make(&server.fallback),
            }
        });
        Self {
            hosts: hosts.collect(),
            servers: servers.collect(),
        }
    }

    /// The server for a host in [normal form](crate::message::target::Target::host), by the plan's indices.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::plan::{
        Carrier, Content, Listener, Location, LocationPath, PathRule, SocketAddress,
    };
    use crate::message::testing;

    #[test]
    fn a_table_finds_the_server_by_listener_and_host_and_then_the_site_by_path() {
        let mut plan = testing::plan();
        plan.servers.push(testing::server("b.example"));
        plan.servers[1].locations.push(Location {
            path: LocationPath {
                text: "/api/".into(),
                rule: PathRule::Prefix("/api/".into()),
            },
            site: testing::site(Content::NotFound),
        });
        let listener = |port, default_server| Listener {
            http2: None,
            address: SocketAddress::Tcp(([127, 0, 0, 1], port).into()),
            carrier: Carrier::Plain,
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
