//! `resolver`, and what `resolve` says of servers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Compiler;
use crate::config::decode::{Shorthand, Spanned};
use crate::config::model;
use crate::config::plan::{Resolver, Upstream, UpstreamAddress};

impl Compiler<'_> {
    /// `resolver`
    pub(super) fn resolver(&mut self) -> Option<Arc<Resolver>> {
        let given = self.config.resolver.get()?;
        let Shorthand(resolver) = &given.value;
        let address = resolver.address.get()?;
        let servers: Vec<_> = address
            .value
            .0
            .iter()
            .map(|server| server.value.0)
            .collect();
        if servers.is_empty() {
            self.complain(address.span, "a resolver without a DNS server to ask");
        }
        let flag = |given: Option<&model::Flag>| given.is_none_or(|flag| flag.0);
        let (ipv4, ipv6) = (flag(resolver.ipv4.value()), flag(resolver.ipv6.value()));
        if !ipv4 && !ipv6 {
            let sentence = "nothing to ask for: both kinds of addresses are off";
            self.complain_with(given.span, sentence, "leave `ipv4` or `ipv6` on");
        }
        let valid = resolver.valid.get();
        Some(Arc::new(Resolver {
            servers,
            valid: valid.map(|valid| self.interval(valid)),
            timeout: self.some_time(resolver.timeout.get(), 5),
            ipv4,
            ipv6,
        }))
    }

    /// How often the name of a server is looked up again.
    pub(super) fn resolve(
        &mut self,
        server: &model::UpstreamServer,
        group: &model::Upstream,
        address: &UpstreamAddress,
    ) -> Option<Duration> {
        let name = is_name(address);
        if let Some(key) = server.resolve.key().filter(|_| !name) {
            let sentence = "only a name is looked up again";
            self.warn(key, sentence, "this server is given by its address");
        }
        let every = server.resolve.get().or_else(|| group.resolve.get());
        let every = every.map(|every| self.interval(every));
        every.filter(|_| name)
    }

    fn interval(&mut self, given: &Spanned<model::Time>) -> Duration {
        if given.value.0.is_zero() {
            let sentence = "a name cannot be looked up all the time";
            self.complain_with(given.span, sentence, "expected a time such as `30s`");
        }
        given.value.0
    }

    /// Warns of a `resolve` without a name, and of a `resolver` without a `resolve`.
    pub(super) fn warn_of_unresolved(&mut self, upstreams: &[Upstream]) {
        let named = self.config.upstreams.value();
        let groups = named.map_or(&[][..], |named| &named.entries);
        let mut keys = Vec::new();
        for ((_, group), upstream) in groups.iter().zip(upstreams) {
            if !looks_up(upstream) {
                keys.extend(group.value.resolve.key());
            }
        }
        for key in keys {
            let sentence = "no server here is looked up again";
            self.warn(key, sentence, "all of them are given by their addresses");
        }
        if let Some(key) = self.config.resolver.key()
            && !upstreams.iter().any(looks_up)
        {
            let sentence = "nobody asks this resolver";
            self.warn(
                key,
                sentence,
                "it is for names of upstreams with `resolve: 30s`",
            );
        }
    }
}

fn looks_up(upstream: &Upstream) -> bool {
    upstream
        .servers
        .iter()
        .any(|server| server.resolve.is_some())
}

fn is_name(address: &UpstreamAddress) -> bool {
    matches!(address, UpstreamAddress::Tcp { host, .. } if host.parse::<IpAddr>().is_err())
}
