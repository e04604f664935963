//! Draws the state of `weir top` as lines of a terminal: on top two sentences that suffice by themselves (what is being
//! limited and by which zone, and whether the backends are well), below them the tables.

use std::collections::HashMap;

use anstyle::Style;

use super::line;
use super::poll::{RateHistory, rate};
use super::state::{Notice, Overlay, TopPane, TopState, joined};
use crate::api::{Backend, KeySort, Refusal, VerdictRates, ZoneDetail, ZoneRule};
use crate::cli::output::{
    BAD, Column, DOUBTFUL, FAINT, GOOD, STRONG, TableCell, TextTable, lag, requests, span,
};
use crate::cli::verbs::upstreams::condition;
use crate::cli::verbs::{self, limits, upstreams};
use crate::replay::number;
use crate::text::visible;

/// The whole screen: exactly as many lines as there are rows.
pub(super) fn frame(view: &TopState, (width, height): (usize, usize)) -> Vec<String> {
    let mut lines = head(view, width);
    let foot = foot(view, width);
    let room = height.saturating_sub(lines.len() + 1);
    let body = match &view.cover {
        Overlay::Help => help(width),
        Overlay::Inspect(zone, key) => {
            let mut lines = vec![
                String::new(),
                line(
                    &visible(&format!("{} in zone {zone}", key.key)),
                    STRONG,
                    width,
                ),
            ];
            lines.extend(
                limits::describe(key)
                    .iter()
                    .map(|text| line(&format!("  {text}"), Style::new(), width)),
            );
            lines
        }
        Overlay::Ask { .. } | Overlay::None => tables(view, width, room),
    };
    lines.extend(body);
    lines.truncate(height.saturating_sub(1));
    lines.resize(height.saturating_sub(1), String::new());
    lines.push(foot);
    lines
}

fn head(view: &TopState, width: usize) -> Vec<String> {
    let status = &view.look.status;
    let ready = if status.ready { "" } else { " · not ready" };
    let text = format!(
        "weir up {}{ready} · {} requests/s · {} connections · loop lag {} (worst {})",
        span(status.uptime.floor()),
        rate(view.requests),
        number(status.connections.active),
        lag(status.lag()),
        lag(status.worst_lag())
    );
    let sentence = |(text, style): (String, Style)| line(&format!("● {text}"), style, width);
    let mut lines = vec![line(&text, STRONG, width)];
    match &view.lost {
        Some(why) => {
            lines.push(sentence((visible(why), BAD)));
            lines.push(sentence((
                "what is below is as it was before".to_owned(),
                FAINT,
            )));
        }
        None => {
            lines.push(sentence(limits(view)));
            lines.push(sentence(backends(view)));
        }
    }
    lines
}

fn foot(view: &TopState, width: usize) -> String {
    if let Overlay::Ask { question, .. } = &view.cover {
        return line(
            &format!("{question}  y: yes, any other key: no"),
            DOUBTFUL.bold(),
            width,
        );
    }
    match &view.message {
        Some(Notice::Failed(why)) => line(&visible(why), BAD, width),
        Some(Notice::Done(what)) => line(&visible(what), GOOD, width),
        None => line(KEYS, FAINT, width),
    }
}

/// All four, in the room there is.
fn tables(view: &TopState, width: usize, room: usize) -> Vec<String> {
    let parts = [
        (zones(view), Some(view.zone), TopPane::Zones),
        (busy_keys(view), Some(view.key), TopPane::Keys),
        (upstreams(view), Some(view.server), TopPane::Servers),
    ];
    let last = gathered(&view.look.refusals);
    let wanted = [
        view.look.zones.len(),
        view.keys_shown().count(),
        view.servers_shown().count(),
        last.len(),
    ];
    // A title each, and heads for those that have columns.
    let rooms = share(room.saturating_sub(4 + 3), wanted);
    let mut lines = Vec::with_capacity(room);
    for ((((title, table), selected, pane), rows), empty) in parts.into_iter().zip(rooms).zip(EMPTY)
    {
        let active = view.pane == pane;
        lines.push(rule(&title, active, width));
        let drawn = table.lines(Some(width.saturating_sub(2)));
        let mut drawn = drawn.into_iter();
        let heads = drawn.next().unwrap_or_default();
        let rest: Vec<_> = drawn.collect();
        if rest.is_empty() {
            lines.push(line(&format!("  {empty}"), FAINT, width));
            continue;
        }
        lines.push(format!("  {heads}"));
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
        lines.push(line("  nobody was refused", FAINT, width));
    }
    let room = room.saturating_sub(lines.len());
    lines.extend(last.iter().take(room).map(|(refusal, count)| {
        let times = match count {
            1 => String::new(),
            count => format!(" × {count}"),
        };
        let room = width.saturating_sub(2 + times.chars().count());
        let sentence = verbs::sentence(refusal, Some(room));
        format!("  {sentence}{FAINT}{times}{FAINT:#}")
    }));
    lines
}

/// The latest first, and the same thing once: a flood of one client must not hide all others.
fn gathered(refusals: &[Refusal]) -> Vec<(&Refusal, usize)> {
    fn what(refusal: &Refusal) -> impl PartialEq + '_ {
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
            .find(|(known, _)| what(known) == what(refusal))
        {
            Some((_, count)) => *count += 1,
            None => found.push((refusal, 1)),
        }
    }
    found
}

/// How many rows each gets: those that want few get what they want, the others the same.
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

fn zones(view: &TopState) -> (String, TextTable) {
    let mut table = TextTable::new([
        Column::Left("ZONE"),
        Column::Right("LIMIT"),
        Column::Right("DEMAND/S"),
        Column::Right("PASS"),
        Column::Right("DELAY"),
        Column::Right("REFUSE"),
        Column::Left("LAST 20 S"),
    ]);
    for zone in &view.look.zones {
        let pace = view.zones.now(&zone.name);
        table.row([
            TableCell::from(&zone.name).styled(STRONG),
            TableCell::from(zone.rate.as_deref().unwrap_or("limit_conn"))
                .styled_if(zone.r#override.is_some(), DOUBTFUL),
            TableCell::from(rate(pace.total())),
            TableCell::from(rate(pace.pass)),
            TableCell::from(rate(pace.delay)).styled_if(pace.delay > 0.0, DOUBTFUL),
            TableCell::from(rate(pace.refuse)).styled_if(pace.refuse > 0.0, BAD),
            spark(&view.zones, &zone.name),
        ]);
    }
    (
        "zones: what each key may have, and requests a second".to_owned(),
        table,
    )
}

fn busy_keys(view: &TopState) -> (String, TextTable) {
    let mut table = TextTable::new([
        Column::Left("KEY"),
        Column::Right("DEMAND/S"),
        Column::Right("PASS"),
        Column::Right("REFUSE"),
        Column::Right("EXCESS"),
        Column::Left("MARK"),
        Column::Left("LAST 20 S"),
    ]);
    let Some(open) = &view.look.open else {
        return ("keys".to_owned(), table);
    };
    let zone = &open.detail.zone.name;
    for key in &open.keys {
        let name = joined(zone, &key.key);
        let pace = view.keys.now(&name);
        table.row([
            TableCell::from(&key.key).styled(STRONG),
            TableCell::from(rate(pace.total())),
            TableCell::from(rate(pace.pass + pace.delay)),
            TableCell::from(rate(pace.refuse)).styled_if(pace.refuse > 0.0, BAD),
            TableCell::from(requests(key.excess)),
            TableCell::from(key.mark.as_deref().unwrap_or("-"))
                .styled_if(key.mark.is_some(), DOUBTFUL),
            spark(&view.keys, &name),
        ]);
    }
    let order = match view.sort {
        KeySort::Now => "most refused now".to_owned(),
        sort => format!("most {} first", sort.as_str()),
    };
    (
        format!("keys of {} · {order}", allowance(&open.detail)),
        table,
    )
}

/// A zone and what its rules give a key.
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

fn upstreams(view: &TopState) -> (String, TextTable) {
    let paces = ["REQ/S", "5XX/S", "LATENCY"].map(Column::Right);
    let mut table = TextTable::new([&upstreams::HEADS[..], &paces].concat());
    for (upstream, server) in view.servers_shown() {
        let name = joined(upstream, &server.address);
        let pace = view.servers.now(&name);
        let mut row = upstreams::cells(upstream, server);
        row.push(TableCell::from(rate(pace.total())));
        row.push(TableCell::from(rate(pace.refuse)).styled_if(pace.refuse > 0.0, BAD));
        row.push(TableCell::from(lag(view.latencies.now(&name))));
        table.row(row);
    }
    ("backends".to_owned(), table)
}

fn spark(tracks: &RateHistory, name: &str) -> TableCell {
    let (plain, painted) = tracks.spark(name, SPARK);
    TableCell::painted(plain, painted)
}

fn help(width: usize) -> Vec<String> {
    HELP.lines()
        .map(|text| line(text, Style::new(), width))
        .collect()
}

const SPARK: usize = 20;

const EMPTY: [&str; 3] = [
    "there are no zones in the configuration",
    "nobody has met this zone of late",
    "there are no upstreams in the configuration",
];

const KEYS: &str =
    "↑↓ select  tab next  ⏎ look  b block  x exempt  f forget  s sort  ? help  q quit";

const HELP: &str = "
  ↑ ↓ j k     select a zone, a key or a server
  tab         go to the next table: zones, keys, servers
  enter       show where the selected key stands
  s           sort keys by now, refuse, demand, excess, delay, pass
  b           block the selected key for ten minutes
  x           exempt it from the zone's limits for ten minutes
  f           forget it: it begins anew, and without a penalty
  d  u        drain the selected server; up: send it requests again
  q           quit

  What changes something is asked for first, and takes the token:
  WEIR_TOKEN, --token-file or --config.

  Bars are demand: green what passed, yellow where some had to wait,
  red where some were refused.

  Any key goes back.";

/// Who is being limited, and by what.
pub(super) fn limits(view: &TopState) -> (String, Style) {
    let paces = view
        .look
        .zones
        .iter()
        .map(|zone| (zone, view.zones.recent(&zone.name, LOOKS)));
    let worst = |of: fn(&VerdictRates) -> f64| {
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
            rate(pace.total())
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
                .recent(&joined(upstream, &server.address), LOOKS);
            pace.refuse > 0.0 && pace.refuse * 10.0 >= pace.total()
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
fn trouble(server: &Backend) -> Option<String> {
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
const RECENT: u64 = 10_000;

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn what_keys_do_fits_the_smallest_usual_window() {
        for text in HELP.lines().chain([KEYS]) {
            let width = unicode_width::UnicodeWidthStr::width(text);
            assert!(width <= 80, "{text}");
        }
    }

    #[test]
    fn rows_go_to_those_who_want_them() {
        assert_eq!(share(13, [2, 100, 1, 100]), [2, 5, 1, 5]);
        assert_eq!(share(100, [2, 3, 1, 4]), [2, 3, 1, 4]);
        assert_eq!(share(0, [1; 4]), [0; 4]);
    }
}
