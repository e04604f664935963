//! Draws the state of `weir top` as lines of a terminal: at the top what is being limited and whether the backends are
//! healthy, in a sentence each; below them the tables.

use std::collections::HashMap;

use anstyle::Style;

use super::poll::{RateHistory, joined, rate};
use super::state::{Notice, Overlay, TopPane, TopState};
use crate::api::{Backend, KeySort, Refusal, VerdictRates, ZoneDetail, ZoneRule};
use crate::cli::output::{
    BAD, DOUBTFUL, FAINT, GOOD, STRONG, TableCell, TextTable, cut, lag, number, requests, span,
};
use crate::cli::verbs::{self, limits, upstreams};
use crate::text::visible;

/// The whole screen: exactly as many lines as there are rows.
pub(super) fn frame(state: &TopState, (width, height): (usize, usize)) -> Vec<String> {
    let mut lines = head(state, width);
    let foot = foot(state, width);
    let room = height.saturating_sub(lines.len() + 1);
    let body = match &state.overlay {
        Overlay::Help => help(width),
        Overlay::Inspect(zone, key) => {
            let title = visible(&format!("{} in zone {zone}", key.key));
            let mut lines = vec![String::new(), line(&title, STRONG, width)];
            let text = limits::describe(key);
            lines.extend(text.iter().map(|text| cut(&format!("  {text}"), width)));
            lines
        }
        Overlay::Ask { .. } | Overlay::None => tables(state, width, room),
    };
    lines.extend(body);
    lines.truncate(height.saturating_sub(1));
    lines.resize(height.saturating_sub(1), String::new());
    lines.push(foot);
    lines
}

fn head(state: &TopState, width: usize) -> Vec<String> {
    let status = &state.snapshot.status;
    let ready = if status.ready { "" } else { " · not ready" };
    let text = format!(
        "weir up {}{ready} · {} requests/s · {} connections · loop lag {} (worst {})",
        span(status.uptime.floor()),
        rate(state.requests),
        number(status.connections.active),
        lag(status.lag()),
        lag(status.worst_lag())
    );
    let sentence = |(text, style): (String, Style)| line(&format!("● {text}"), style, width);
    let mut lines = vec![line(&text, STRONG, width)];
    match &state.lost {
        Some(why) => {
            lines.push(sentence((visible(why), BAD)));
            let stale = "the values below are not current".to_owned();
            lines.push(sentence((stale, FAINT)));
        }
        None => {
            lines.push(sentence(limits_summary(state)));
            lines.push(sentence(backends_summary(state)));
        }
    }
    lines
}

fn foot(state: &TopState, width: usize) -> String {
    if let Overlay::Ask { question, .. } = &state.overlay {
        let question = format!("{question}  y: yes, any other key: no");
        return line(&question, DOUBTFUL.bold(), width);
    }
    match &state.message {
        Some(Notice::Failed(why)) => line(&visible(why), BAD, width),
        Some(Notice::Done(what)) => line(&visible(what), GOOD, width),
        None => line(KEYS, FAINT, width),
    }
}

/// All four tables, in this number of rows.
fn tables(state: &TopState, width: usize, room: usize) -> Vec<String> {
    let parts = [
        (zones(state), Some(state.zone), TopPane::Zones),
        (busy_keys(state), Some(state.key), TopPane::Keys),
        (upstreams(state), Some(state.server), TopPane::Servers),
    ];
    let last = grouped(&state.snapshot.refusals);
    let wanted = [
        state.snapshot.zones.len(),
        state.keys_shown().count(),
        state.servers_shown().count(),
        last.len(),
    ];
    // A title each, and headers for those that have columns.
    let rooms = share(room.saturating_sub(4 + 3), wanted);
    let mut lines = Vec::with_capacity(room);
    for ((((title, table), selected, pane), rows), empty) in parts.into_iter().zip(rooms).zip(EMPTY)
    {
        let active = state.pane == pane;
        lines.push(rule(&title, active, width));
        let drawn = table.lines(Some(width.saturating_sub(2)));
        let mut drawn = drawn.into_iter();
        let header = drawn.next().unwrap_or_default();
        let rest: Vec<_> = drawn.collect();
        if rest.is_empty() {
            lines.push(line(&format!("  {empty}"), FAINT, width));
            continue;
        }
        lines.push(format!("  {header}"));
        let first = selected.map_or(0, |at| at.saturating_sub(rows.saturating_sub(1)));
        for (at, text) in rest.iter().enumerate().skip(first).take(rows) {
            lines.push(match (Some(at) == selected, active) {
                (true, true) => format!("{STRONG}▶{STRONG:#} {text}"),
                (true, false) if pane != TopPane::Servers => format!("{FAINT}▷{FAINT:#} {text}"),
                _ => format!("  {text}"),
            });
        }
    }
    lines.push(rule("last refusals", false, width));
    if last.is_empty() {
        lines.push(line("  no refusals", FAINT, width));
    }
    let room = room.saturating_sub(lines.len());
    lines.extend(last.iter().take(room).map(|(refusal, count)| {
        let times = match count {
            1 => String::new(),
            count => format!(" × {count}"),
        };
        let room = width.saturating_sub(2 + times.chars().count());
        let sentence = verbs::requests::sentence(refusal, Some(room));
        format!("  {sentence}{FAINT}{times}{FAINT:#}")
    }));
    lines
}

/// The latest first, equal ones once: a flood of one client must not hide all others.
fn grouped(refusals: &[Refusal]) -> Vec<(&Refusal, usize)> {
    fn identity(refusal: &Refusal) -> impl PartialEq + '_ {
        let Refusal {
            zone,
            key,
            client,
            method,
            host,
            path,
            status,
            ..
        } = refusal;
        (zone, key, client, method, host, path, status)
    }
    let mut found: Vec<(&Refusal, usize)> = Vec::new();
    for refusal in refusals.iter().rev() {
        match found
            .iter_mut()
            .find(|(known, _)| identity(known) == identity(refusal))
        {
            Some((_, count)) => *count += 1,
            None => found.push((refusal, 1)),
        }
    }
    found
}

/// Rows for each table: small ones get what they need, the others equal shares.
fn share(mut room: usize, wanted: [usize; 4]) -> [usize; 4] {
    let mut rows = [0; 4];
    while room > 0 {
        let mut given = false;
        for (row, wanted) in rows.iter_mut().zip(wanted) {
            if *row < wanted && room > 0 {
                *row += 1;
                room -= 1;
                given = true;
            }
        }
        if !given {
            break;
        }
    }
    rows
}

fn rule(title: &str, active: bool, width: usize) -> String {
    let style = if active { STRONG } else { FAINT };
    let text = format!("── {} ", visible(title));
    let dashes = width.saturating_sub(unicode_width::UnicodeWidthStr::width(text.as_str()));
    line(&format!("{text}{}", "─".repeat(dashes)), style, width)
}

fn zones(state: &TopState) -> (String, TextTable) {
    let mut table = TextTable::new("ZONE  >LIMIT  >DEMAND/S  >PASS  >DELAY  >REFUSE  LAST 20 S");
    for zone in &state.snapshot.zones {
        let rates = state.zones.now(&zone.name);
        table.row([
            TableCell::from(&zone.name).styled(STRONG),
            TableCell::from(zone.rate.as_deref().unwrap_or("limit_conn"))
                .styled_if(zone.r#override.is_some(), DOUBTFUL),
            TableCell::from(rate(rates.total())),
            TableCell::from(rate(rates.pass)),
            TableCell::from(rate(rates.delay)).styled_if(rates.delay > 0.0, DOUBTFUL),
            TableCell::from(rate(rates.refuse)).styled_if(rates.refuse > 0.0, BAD),
            spark(&state.zones, &zone.name),
        ]);
    }
    (
        "zones: limit of each key, and requests a second".to_owned(),
        table,
    )
}

fn busy_keys(state: &TopState) -> (String, TextTable) {
    let mut table = TextTable::new("KEY  >DEMAND/S  >PASS  >REFUSE  >EXCESS  MARK  LAST 20 S");
    let Some(open) = &state.snapshot.open else {
        return ("keys".to_owned(), table);
    };
    let zone = &open.detail.zone.name;
    for key in &open.keys {
        let name = joined(zone, &key.key);
        let rates = state.keys.now(&name);
        table.row([
            TableCell::from(&key.key).styled(STRONG),
            TableCell::from(rate(rates.total())),
            TableCell::from(rate(rates.pass + rates.delay)),
            TableCell::from(rate(rates.refuse)).styled_if(rates.refuse > 0.0, BAD),
            TableCell::from(requests(key.excess)),
            TableCell::from(key.mark.as_deref().unwrap_or("-"))
                .styled_if(key.mark.is_some(), DOUBTFUL),
            spark(&state.keys, &name),
        ]);
    }
    let order = match state.sort {
        KeySort::Now => "most refused now".to_owned(),
        sort => format!("most {} first", sort.as_str()),
    };
    (
        format!("keys of {} · {order}", allowance(&open.detail)),
        table,
    )
}

/// A zone and what its rules allow a key.
fn allowance(detail: &ZoneDetail) -> String {
    let zone = &detail.zone;
    let rate = zone
        .rate
        .as_ref()
        .map_or_else(String::new, |rate| format!(": {rate}"));
    let mut spec: Vec<_> = detail.rules.iter().filter_map(spec).collect();
    spec.dedup();
    let spec = match &spec[..] {
        [] => String::new(),
        spec => format!(", {}", spec.join(" or ")),
    };
    format!("{} by {}{rate}{spec}", zone.name, detail.key)
}

fn spec(rule: &ZoneRule) -> Option<String> {
    match (rule.burst, rule.limit) {
        (Some(burst), _) => Some(format!("burst {}", requests(burst))),
        (None, Some(limit)) => Some(format!("{} at once", number(limit))),
        (None, None) => None,
    }
}

fn upstreams(state: &TopState) -> (String, TextTable) {
    let columns = format!("{}  >REQ/S  >5XX/S  >LATENCY", upstreams::COLUMNS);
    let mut table = TextTable::new(&columns);
    for (upstream, server) in state.servers_shown() {
        let name = joined(upstream, &server.address);
        let rates = state.servers.now(&name);
        let mut row = upstreams::cells(upstream, server);
        row.push(TableCell::from(rate(rates.total())));
        row.push(TableCell::from(rate(rates.refuse)).styled_if(rates.refuse > 0.0, BAD));
        row.push(TableCell::from(lag(state.latencies.now(&name))));
        table.row(row);
    }
    ("backends".to_owned(), table)
}

fn spark(history: &RateHistory, name: &str) -> TableCell {
    let (plain, painted) = history.spark(name, SPARK);
    TableCell::painted(plain, painted)
}

fn help(width: usize) -> Vec<String> {
    HELP.lines().map(|text| cut(text, width)).collect()
}

/// A line of one style, at most this wide.
fn line(text: &str, style: Style, width: usize) -> String {
    format!("{style}{}{style:#}", cut(text, width))
}

const SPARK: usize = 20;

const EMPTY: [&str; 3] = [
    "the configuration has no zones",
    "no recent requests in this zone",
    "the configuration has no upstreams",
];

const KEYS: &str =
    "↑↓ select  tab next  ⏎ state  b block  x exempt  f reset  s sort  ? help  q quit";

const HELP: &str = "
  ↑ ↓ j k     select a zone, a key or a server
  tab         go to the next table: zones, keys, servers
  enter       show the state of the selected key
  s           sort keys by now, refuse, demand, excess, delay, pass
  b           block the selected key for ten minutes
  x           exempt it from the zone's limits for ten minutes
  f           reset it: its count and its penalty
  d  u        drain the selected server; send it requests again
  q           quit

  Changes ask for confirmation and need the token:
  WEIR_TOKEN, --token-file or --config.

  Bars show demand: green if all requests passed, yellow if some were
  delayed, red if some were refused.

  Any key goes back.";

/// What is being limited, by which zone.
fn limits_summary(state: &TopState) -> (String, Style) {
    let rates = state
        .snapshot
        .zones
        .iter()
        .map(|zone| (zone, state.zones.recent(&zone.name, POLLS)));
    let worst = |of: fn(&VerdictRates) -> f64| {
        let most = rates
            .clone()
            .max_by(|(_, one), (_, other)| of(one).total_cmp(&of(other)));
        most.filter(|(_, rates)| of(rates) > 0.0)
    };
    if let Some((zone, rates)) = worst(|rates| rates.refuse) {
        let limit = zone
            .rate
            .as_deref()
            .map_or_else(String::new, |rate| format!(" ({rate})"));
        let key =
            busiest(state, &zone.name).map_or_else(String::new, |key| format!(", mostly of {key}"));
        let text = format!(
            "{}{limit} refuses {} of {} requests/s{key}",
            zone.name,
            rate(rates.refuse),
            rate(rates.total())
        );
        return (visible(&text), BAD);
    }
    if let Some((zone, rates)) = worst(|rates| rates.delay) {
        let text = format!("{} delays {} requests/s", zone.name, rate(rates.delay));
        return (visible(&text), DOUBTFUL);
    }
    ("no requests are being limited".to_owned(), GOOD)
}

/// The key with more than half of a zone's recent refusals.
fn busiest<'a>(state: &'a TopState, zone: &str) -> Option<&'a str> {
    let last = state.snapshot.refusals.last()?.time;
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let mut all = 0;
    for refusal in state
        .snapshot
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

/// Whether the backends are healthy.
fn backends_summary(state: &TopState) -> (String, Style) {
    let servers: Vec<_> = state.servers_shown().collect();
    let bad: Vec<_> = servers
        .iter()
        .filter_map(|(upstream, server)| Some((*upstream, *server, trouble(server)?)))
        .collect();
    let failing: Vec<_> = servers
        .iter()
        .filter(|(upstream, server)| {
            let rates = state
                .servers
                .recent(&joined(upstream, &server.address), POLLS);
            rates.refuse > 0.0 && rates.refuse * 10.0 >= rates.total()
        })
        .collect();
    let alone = state.snapshot.upstreams.iter().find(|upstream| {
        !upstream.servers.is_empty() && !upstream.servers.iter().any(|server| server.up)
    });
    if let Some(upstream) = alone {
        return (
            visible(&format!("{} has no available server", upstream.name)),
            BAD,
        );
    }
    if let Some((upstream, server, what)) = bad.first() {
        let more = match bad.len() {
            1 => String::new(),
            count => format!(", and {} more", count - 1),
        };
        let text = format!(
            "{} of {upstream} is {what}{more}; the other servers are available",
            server.address
        );
        return (visible(&text), DOUBTFUL);
    }
    if let Some((upstream, server)) = failing.first() {
        let text = format!(
            "{} of {upstream} responds with errors (5xx)",
            server.address
        );
        return (visible(&text), BAD);
    }
    match servers.len() {
        0 => ("there are no backends".to_owned(), GOOD),
        1 => ("the backend is healthy".to_owned(), GOOD),
        2 => ("both backends are healthy".to_owned(), GOOD),
        count => (format!("all {count} backends are healthy"), GOOD),
    }
}

/// What is wrong with a server.
fn trouble(server: &Backend) -> Option<String> {
    if !server.up || server.healthy == Some(false) {
        if server.breaker.as_deref() == Some("open") && !server.down && !server.draining {
            return Some("excluded by its breaker".to_owned());
        }
        return Some(upstreams::condition(server).0.to_owned());
    }
    let open = server.breaker.as_deref().filter(|state| *state != "closed");
    open.map(|state| format!("behind a breaker that is {}", state.replace('_', " ")))
}

/// Polls that a sentence covers: one alone would flicker.
const POLLS: usize = 3;

/// Milliseconds: refusals that count for the busiest key.
const RECENT: u64 = 10_000;

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn help_fits_a_window_of_80_columns() {
        for text in HELP.lines().chain([KEYS]) {
            let width = unicode_width::UnicodeWidthStr::width(text);
            assert!(width <= 80, "{text}");
        }
    }

    #[test]
    fn rows_go_to_the_tables_that_need_them() {
        assert_eq!(share(13, [2, 100, 1, 100]), [2, 5, 1, 5]);
        assert_eq!(share(100, [2, 3, 1, 4]), [2, 3, 1, 4]);
        assert_eq!(share(0, [1; 4]), [0; 4]);
    }
}
