//! Warnings of what is defined and never used: most often a name was changed in one place only.

use super::Compiler;
use super::limits::entries;
use crate::config::decode::{Field, NamedMap};
use crate::config::plan::{LocationConf, Plan};
use crate::config::span::Span;

impl Compiler<'_> {
    /// Warns of zones and upstreams nobody uses.
    pub(super) fn warn_of_unused(&mut self, plan: &Plan) {
        // Where something could not be understood, what it would have used is unknown.
        if self.report.errors() > 0 {
            return;
        }
        let config = self.config;
        let idle = unused(&config.limit_req_zones, plan, |site, zone| {
            let mut rules = site.limit_req.iter().chain(&site.shadow);
            rules.any(|rule| rule.zone == zone)
        });
        for (name, span) in idle {
            let sentence = format!("no `limit_req` uses the zone `{name}`");
            self.warn(span, sentence, "name it where it should hold");
        }
        let idle = unused(&config.limit_conn_zones, plan, |site, zone| {
            site.limit_conn.iter().any(|rule| rule.zone == zone)
        });
        for (name, span) in idle {
            let sentence = format!("no `limit_conn` uses the zone `{name}`");
            self.warn(span, sentence, "name it where it should hold");
        }
        let idle = unused(&config.upstreams, plan, |site, upstream| {
            site.forwards().any(|forward| forward.upstream == upstream)
        });
        for (name, span) in idle {
            let sentence = format!("no `proxy_pass` uses the upstream `{name}`");
            self.warn(span, sentence, "name it where its requests come from");
        }
        self.warn_of_unresolved(&plan.upstreams);
    }
}

/// Those that no site uses.
fn unused<'a, T>(
    named: &'a Field<NamedMap<T>>,
    plan: &Plan,
    uses: impl Fn(&LocationConf, usize) -> bool,
) -> Vec<(&'a str, Span)> {
    let sites: Vec<&LocationConf> = plan.sites().collect();
    entries(named)
        .iter()
        .enumerate()
        .filter(|(index, _)| !sites.iter().any(|site| uses(site, *index)))
        .map(|(_, (name, _))| (name.value.as_str(), name.span))
        .collect()
}
