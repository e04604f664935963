//! `upstreams`, and those that a `proxy_pass` with an address brings with it.

use super::Compiler;
use crate::config::decode::{Brief, OrOff, Spanned, mistaken};
use crate::config::model;
use crate::config::plan::{Address, Upstream, UpstreamServer};
use crate::config::units;

impl Compiler<'_> {
    /// `upstreams`, in the file's order.
    pub(super) fn upstreams(&mut self) {
        let named = self.config.upstreams.value();
        for (name, group) in named.map_or(&[][..], |named| &named.entries) {
            let wrong = |c: char| c.is_whitespace() || matches!(c, '/' | ':' | '$');
            if name.value.is_empty() || name.value.contains(wrong) {
                let sentence = format!("`{}` cannot be the name of an upstream", name.value);
                self.complain_with(name.span, sentence, "no spaces, `/`, `:` or `$` in it");
            }
            let upstream = self.upstream(name, &group.value);
            self.upstreams.push(upstream);
        }
    }

    fn upstream(&mut self, name: &Spanned<String>, group: &model::Upstream) -> Upstream {
        let listed = group.servers.value().map_or(&[][..], |list| &list.0);
        let mut servers = Vec::new();
        let breaker = match group.breaker.value() {
            Some(OrOff::On(given)) => Some(self.breaker(given)),
            Some(OrOff::Off) | None => None,
        };
        // Where there is a breaker, it judges alone unless told otherwise.
        let max_fails = u32::from(breaker.is_none());
        for server in listed {
            servers.extend(self.upstream_server(&server.value.0, max_fails));
        }
        if group.servers.value().is_some_and(|list| list.0.is_empty()) {
            let sentence = format!("the upstream `{}` has no servers", name.value);
            self.complain(name.span, sentence);
        } else if !servers.is_empty() && servers.len() == listed.len() {
            if servers.iter().all(|server| server.down) {
                let sentence = format!("all servers of the upstream `{}` are down", name.value);
                self.complain_with(
                    name.span,
                    sentence,
                    "to answer without an upstream use `return`",
                );
            } else if servers.iter().all(|server| server.backup) {
                let sentence = format!("all servers of the upstream `{}` are backups", name.value);
                self.complain_with(
                    name.span,
                    sentence,
                    "take `backup` from at least one of them",
                );
            }
        }
        let check = group.health_check.value();
        let health_check =
            check.map(|Brief(given)| self.health_check(given, &name.value, &servers));
        let mut upstream = Upstream::of(&name.value, servers);
        upstream.health_check = health_check;
        upstream.breaker = breaker;
        if let Some(most) = group.keepalive.value() {
            upstream.keepalive = most.0;
        }
        upstream.keepalive_timeout = self.some_time(group.keepalive_timeout.get(), 60);
        if let Some(most) = group.keepalive_requests.value() {
            upstream.keepalive_requests = most.0;
        }
        upstream
    }

    fn upstream_server(
        &mut self,
        server: &model::UpstreamServer,
        max_fails: u32,
    ) -> Option<UpstreamServer> {
        let given = server.address.get()?;
        let address = units::host_port(&given.value.text, units::HTTP)
            .map_err(|mistake| self.report.add(mistaken(given.span, mistake)))
            .ok()?;
        Some(UpstreamServer {
            weight: server.weight.value().map_or(1, |weight| weight.0),
            max_fails: server.max_fails.value().map_or(max_fails, |fails| fails.0),
            fail_timeout: self.some_time(server.fail_timeout.get(), 10),
            backup: server.backup.value().is_some_and(|flag| flag.0),
            down: server.down.value().is_some_and(|flag| flag.0),
            ..UpstreamServer::at(address)
        })
    }

    /// The upstream for an address, the same one for the same address.
    pub(super) fn upstream_at(&mut self, name: String, address: Address) -> usize {
        if let Some(known) = self.addresses.get(&name) {
            return *known;
        }
        let server = UpstreamServer::at(address);
        self.upstreams.push(Upstream::of(&name, vec![server]));
        let index = self.upstreams.len() - 1;
        self.addresses.insert(name, index);
        index
    }
}
