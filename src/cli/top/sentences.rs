//! The two sentences on top: who is being limited and by what, and whether the backends are well. Whoever reads only these
//! knows enough.

use std::collections::HashMap;

use anstyle::Style;

use super::pace::rate;
use super::view::TopState;
use crate::cli::admin::answers::Server;
use crate::cli::table::{BAD, DOUBTFUL, GOOD};
use crate::cli::verbs::servers::condition;
use crate::replay::plot::visible;

/// Who is being limited, and by what.
pub(super) fn limits(view: &TopState) -> (String, Style) {
    let paces = view
        .look
        .zones
        .iter()
        .map(|zone| (zone, view.zones.recent(&zone.name, LOOKS)));
    let worst = |of: fn(&super::pace::VerdictRates) -> f64| {
        let most = paces
            .clone()
            .max_by(|(_, one), (_, other)| of(one).total_cmp(&of(other)));
        most.filter(|(_, pace)| of(pace) > 0.0)
    };
    if let Some((zone, pace)) = worst(|pace| pace.refuse) {
        let held = zone
            .rate
            .as_deref()
            .map_or_else(String::new, |rate| format!(" ({rate})"));
        let whom =
            busiest(view, &zone.name).map_or_else(String::new, |key| format!(", mostly of {key}"));
        let text = format!(
            "{}{held} refuses {} of {} requests/s{whom}",
            zone.name,
            rate(pace.refuse),
            rate(pace.demand())
        );
        return (visible(&text), BAD);
    }
    if let Some((zone, pace)) = worst(|pace| pace.delay) {
        let text = format!("{} makes {} requests/s wait", zone.name, rate(pace.delay));
        return (visible(&text), DOUBTFUL);
    }
    ("nobody is being limited".to_owned(), GOOD)
}

/// The key with the most of a zone's last refusals, if that is most of them.
fn busiest<'a>(view: &'a TopState, zone: &str) -> Option<&'a str> {
    let last = view.look.refusals.last()?.time;
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let mut all = 0;
    for refusal in view
        .look
        .refusals
        .iter()
        .filter(|refusal| refusal.zone == zone)
    {
        if let Some(key) = refusal
            .key
            .as_deref()
            .filter(|_| refusal.time + RECENT >= last)
        {
            *counts.entry(key).or_default() += 1;
            all += 1;
        }
    }
    let (key, count) = counts
        .into_iter()
        .max_by_key(|(key, count)| (*count, *key))?;
    (count * 2 > all).then_some(key)
}

/// Whether the backends are well.
pub(super) fn backends(view: &TopState) -> (String, Style) {
    let servers: Vec<_> = view.servers_shown().collect();
    let bad: Vec<_> = servers
        .iter()
        .filter_map(|(upstream, server)| Some((*upstream, *server, trouble(server)?)))
        .collect();
    let failing: Vec<_> = servers
        .iter()
        .filter(|(upstream, server)| {
            let pace = view
                .servers
                .recent(&super::view::joined(upstream, &server.address), LOOKS);
            pace.refuse > 0.0 && pace.refuse * 10.0 >= pace.demand()
        })
        .collect();
    let alone = view.look.upstreams.iter().find(|upstream| {
        !upstream.servers.is_empty() && !upstream.servers.iter().any(|server| server.up)
    });
    if let Some(upstream) = alone {
        return (
            visible(&format!(
                "{} has no server that could answer",
                upstream.name
            )),
            BAD,
        );
    }
    if let Some((upstream, server, what)) = bad.first() {
        let more = match bad.len() {
            1 => String::new(),
            count => format!(", and {} more", count - 1),
        };
        let text = format!(
            "{} of {upstream} is {what}{more}; the others go on",
            server.address
        );
        return (visible(&text), DOUBTFUL);
    }
    if let Some((upstream, server)) = failing.first() {
        let text = format!("{} of {upstream} answers with errors (5xx)", server.address);
        return (visible(&text), BAD);
    }
    match servers.len() {
        0 => ("there are no backends".to_owned(), GOOD),
        1 => ("the backend is well".to_owned(), GOOD),
        2 => ("both backends are well".to_owned(), GOOD),
        count => (format!("all {count} backends are well"), GOOD),
    }
}

/// What is wrong with a server.
fn trouble(server: &Server) -> Option<String> {
    if !server.up || server.healthy == Some(false) {
        if server.breaker.as_deref() == Some("open") && !server.down && !server.draining {
            return Some("kept out by its breaker".to_owned());
        }
        return Some(condition(server).0.to_owned());
    }
    let open = server.breaker.as_deref().filter(|state| *state != "closed");
    open.map(|state| format!("behind a breaker that is {}", state.replace('_', " ")))
}

/// Looks that a sentence is about: one alone would flicker.
const LOOKS: usize = 3;

/// Milliseconds of refusals that count for who is busiest.
const RECENT: i64 = 10_000;
