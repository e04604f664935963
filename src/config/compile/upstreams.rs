//! `upstreams`, and those that a `proxy_pass` with an address brings with it.

use std::time::Duration;

use super::Compiler;
use super::templates::TemplatePhase;
use crate::config::decode::{OrOff, Shorthand, Spanned, mistaken};
use crate::config::model;
use crate::config::plan::{
    Backoff, Balance, RetryBudget, Upstream, UpstreamAddress, UpstreamQueue, UpstreamServer,
};
use crate::config::units;

impl Compiler<'_> {
    /// `upstreams`, in the file's order.
    pub(super) fn upstreams(&mut self) {
        let named = self.config.upstreams.value();
        let resolver = self.resolver();
        for (name, group) in named.map_or(&[][..], |named| &named.entries) {
            let wrong = |c: char| c.is_whitespace() || matches!(c, '/' | ':' | '$');
            if name.value.is_empty() || name.value.contains(wrong) {
                let sentence = format!("`{}` cannot be the name of an upstream", name.value);
                self.complain_with(name.span, sentence, "no spaces, `/`, `:` or `$` in it");
            }
            let mut upstream = self.upstream(name, &group.value);
            upstream.resolver.clone_from(&resolver);
            self.upstreams.push(upstream);
        }
    }

    fn upstream(&mut self, name: &Spanned<String>, group: &model::Upstream) -> Upstream {
        let listed = group.servers.value().map_or(&[][..], |list| &list.0);
        let balance = self.balance(group.balance.get());
        let mut servers = Vec::new();
        let breaker = match group.breaker.value() {
            Some(OrOff::On(given)) => Some(self.breaker(given)),
            Some(OrOff::Off) | None => None,
        };
        // Where there is a breaker, it judges alone unless told otherwise.
        let max_fails = u32::from(breaker.is_none());
        for server in listed {
            servers.extend(self.upstream_server(&server.value.0, group, &balance, max_fails));
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
            check.map(|Shorthand(given)| self.health_check(given, &name.value, &servers));
        let mut upstream = Upstream::of(&name.value, servers);
        upstream.health_check = health_check;
        upstream.breaker = breaker;
        upstream.balance = balance;
        upstream.retry_budget = self.retry_budget(group);
        upstream.queue = self.upstream_queue(group, &upstream.servers);
        if let Some(most) = group.keepalive.value() {
            upstream.keepalive = most.0;
        }
        upstream.keepalive_timeout = self.some_time(group.keepalive_timeout.get(), 60);
        if let Some(most) = group.keepalive_requests.value() {
            upstream.keepalive_requests = most.0;
        }
        upstream
    }

    fn retry_budget(&mut self, group: &model::Upstream) -> Option<RetryBudget> {
        let Shorthand(budget) = group.retry_budget.value()?;
        let most = budget.backoff_max.get();
        if let Some(most) = most.filter(|_| budget.backoff.key().is_none()) {
            self.complain_with(
                most.span,
                "`backoff_max` bounds a `backoff`, and there is none",
                "expected { share: 20%, backoff: 25ms, backoff_max: 1s }",
            );
        }
        let backoff = budget.backoff.get().map(|base| Backoff {
            base: self.some_time(Some(base), 1),
            max: self.some_time(most, 1),
        });
        Some(RetryBudget {
            percent: budget.share.value()?.0,
            least: budget.min_per_second.value().map_or(3, |least| least.0),
            backoff,
        })
    }

    fn upstream_queue(
        &mut self,
        group: &model::Upstream,
        servers: &[UpstreamServer],
    ) -> Option<UpstreamQueue> {
        let queue = &group.queue.get()?.value;
        if let Some(key) = group.queue.key()
            && servers.iter().all(|server| server.max_conns == 0)
        {
            self.warn(
                key,
                "nobody ever waits here: no server has a `max_conns`",
                "give the servers of this upstream a `max_conns`",
            );
        }
        let fair = queue.fair.get();
        let fair = fair.map(|key| self.template(key, TemplatePhase::Before));
        let timeout = self.some_time(queue.timeout.get(), 60);
        Some(UpstreamQueue {
            size: queue.size.value()?.0,
            timeout,
            order: queue.order.value().map(|order| order.0).unwrap_or_default(),
            fair,
        })
    }

    fn balance(&mut self, given: Option<&Spanned<Shorthand<model::Balance>>>) -> Balance {
        let Some(given) = given else {
            return Balance::default();
        };
        let Shorthand(balance) = &given.value;
        let consistent = balance.consistent.value().is_some_and(|flag| flag.0);
        if balance.hash.get().is_none()
            && let Some(key) = balance.consistent.key()
        {
            let sentence = "`consistent` says how a key is hashed, and there is none";
            self.complain_with(key, sentence, "expected { hash: KEY, consistent: true }");
        }
        if let (Some(hash), Some(_)) = (balance.hash.key(), balance.method.key()) {
            self.complain(hash, "a server is picked either by a method or by a hash");
        }
        match (balance.hash.get(), balance.method.value()) {
            (Some(key), _) => {
                if key.value.text.is_empty() {
                    self.complain(key.span, "an empty key leads to no server");
                }
                let template = self.template(key, TemplatePhase::Before);
                match consistent {
                    true => Balance::ConsistentHash(template),
                    false => Balance::Hash(template),
                }
            }
            (None, Some(method)) => method.0.clone(),
            (None, None) => {
                let keys = [
                    balance.hash.key(),
                    balance.method.key(),
                    balance.consistent.key(),
                ];
                if keys.iter().all(Option::is_none) {
                    self.complain(given.span, "this does not say how a server is picked");
                }
                Balance::default()
            }
        }
    }

    fn upstream_server(
        &mut self,
        server: &model::UpstreamServer,
        group: &model::Upstream,
        balance: &Balance,
        max_fails: u32,
    ) -> Option<UpstreamServer> {
        if !balance.has_backups() {
            let backup = server.backup.get().filter(|flag| flag.value.0);
            let slow = server.slow_start.get().map(|time| time.span);
            for (at, what) in [
                (backup.map(|flag| flag.span), "backup"),
                (slow, "slow_start"),
            ] {
                if let Some(at) = at {
                    let sentence = format!("this way to pick a server knows no `{what}`");
                    self.complain_with(at, sentence, "round_robin and least_conn do");
                }
            }
        }
        let given = server.address.get()?;
        let address = units::host_port(&given.value.text, units::HTTP)
            .map_err(|mistake| self.report.add(mistaken(given.span, mistake)))
            .ok()?;
        Some(UpstreamServer {
            resolve: self.resolve(server, group, &address),
            weight: server.weight.value().map_or(1, |weight| weight.0),
            max_fails: server.max_fails.value().map_or(max_fails, |fails| fails.0),
            fail_timeout: self.some_time(server.fail_timeout.get(), 10),
            backup: server.backup.value().is_some_and(|flag| flag.0),
            down: server.down.value().is_some_and(|flag| flag.0),
            max_conns: server.max_conns.value().map_or(0, |most| most.0),
            slow_start: server
                .slow_start
                .value()
                .map_or(Duration::ZERO, |time| time.0),
            name: given.value.text.as_str().into(),
            ..UpstreamServer::at(address)
        })
    }

    /// The upstream for an address, the same one for the same address.
    pub(super) fn upstream_at(&mut self, name: String, address: UpstreamAddress) -> usize {
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
