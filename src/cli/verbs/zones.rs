//! `weir zones`: what is limited, to what, and what came of it.

use clap::Args;

use super::Ask;
use crate::cli::admin::answers::{Change, Detail, Mark, Rule, Zone};
use crate::cli::admin::{Call, escape};
use crate::cli::page::Page;
use crate::cli::table::{BAD, Cell, DOUBTFUL, FAINT, Head, STRONG, Table};
use crate::cli::words::{number, requests, span, verdicts};
use crate::replay::plot::visible;

#[derive(Debug, Args)]
pub(in crate::cli) struct Flags {
    /// The zone to show
    zone: Option<String>,
    #[command(flatten)]
    ask: Ask,
}

impl Flags {
    pub(super) fn run(self) -> anyhow::Result<()> {
        match &self.zone {
            None => self
                .ask
                .show(&Call::get("/api/zones"), |zones: Vec<Zone>, page| {
                    if zones.is_empty() {
                        page.line("there are no zones in the configuration");
                    } else {
                        page.table(&list(&zones));
                    }
                    Ok(())
                }),
            Some(zone) => {
                let call = Call::get(format!("/api/zones/{}", escape(zone)));
                self.ask.show(&call, |zone: Detail, page| {
                    detail(&zone, page);
                    Ok(())
                })
            }
        }
    }
}

fn list(zones: &[Zone]) -> Table {
    let mut table = Table::new([
        Head::Left("ZONE"),
        Head::Left("KIND"),
        Head::Right("RATE"),
        Head::Right("KEYS"),
        Head::Right("PASS"),
        Head::Right("DELAY"),
        Head::Right("REFUSE"),
    ]);
    for zone in zones {
        let counts = zone.verdicts;
        table.row([
            Cell::from(&zone.name).styled(STRONG),
            Cell::from(&zone.kind),
            Cell::from(zone.rate.as_deref().unwrap_or("-"))
                .styled_if(zone.changed.is_some(), DOUBTFUL),
            Cell::from(number(zone.keys)),
            Cell::from(number(counts.pass)),
            Cell::from(number(counts.delay)).styled_if(counts.delay > 0, DOUBTFUL),
            Cell::from(number(counts.refuse)).styled_if(counts.refuse > 0, BAD),
        ]);
    }
    table
}

/// One zone in full.
pub(super) fn detail(detail: &Detail, page: &mut Page) {
    let zone = &detail.zone;
    let algorithm = zone.algorithm.as_deref().map(|name| format!(", {name}"));
    page.line(visible(&format!(
        "zone {} ({}{}) by {}",
        zone.name,
        zone.kind,
        algorithm.unwrap_or_default(),
        detail.key
    )));
    if let Some(rate) = &zone.rate {
        page.line(visible(&format!("  rate     {rate}")));
    }
    if let Some(change) = &zone.changed {
        let was = detail.configured.as_deref();
        page.line(visible(&format!("  {}", changed(change, was))));
    }
    page.line(format!("  verdicts {}", verdicts(zone.verdicts)));
    let lost = match zone.evictions {
        0 => String::new(),
        lost => format!("; {} were pushed out: the zone is too small", number(lost)),
    };
    let (keys, capacity) = (number(zone.keys), number(zone.capacity));
    page.line(format!("  keys     {keys}, room for {capacity}{lost}"));
    if zone.penalties_dropped > 0 {
        let dropped = number(zone.penalties_dropped);
        page.line(format!(
            "  penalty  {dropped} were not given: the zone is too small"
        ));
    }
    if let Some(store) = &zone.store {
        page.line(visible(&format!(
            "  store    {store}, shared with other gateways"
        )));
    }
    if !detail.rules.is_empty() {
        page.line("");
        page.table(&rules(&detail.rules));
    }
    if !detail.marked.is_empty() {
        page.line("");
        page.table(&marked(&detail.marked));
    }
}

fn changed(change: &Change, was: Option<&str>) -> String {
    let limit = change.limit.as_ref().map(|limit| match limit.as_str() {
        Some(text) => text.to_owned(),
        None => limit.to_string(),
    });
    let parts = [
        change.rate.as_ref().map(|rate| format!("rate {rate}")),
        limit.map(|limit| format!("limit {limit}")),
        change.burst.map(|burst| format!("burst {burst}")),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    let was = was.map_or_else(String::new, |was| format!(" (in the file: {was})"));
    format!("changed  {} until the next reload{was}", parts.join(", "))
}

fn rules(rules: &[Rule]) -> Table {
    let mut table = Table::new([
        Head::Left("SERVER"),
        Head::Left("LOCATION"),
        Head::Right("BURST"),
        Head::Right("LIMIT"),
        Head::Left(""),
    ]);
    let or_dash = |text: &str| if text.is_empty() { "-" } else { text }.to_owned();
    for rule in rules {
        table.row([
            Cell::from(or_dash(&rule.server)),
            Cell::from(or_dash(&rule.location)),
            Cell::from(rule.burst.map_or_else(|| "-".to_owned(), requests)),
            Cell::from(rule.limit.map_or_else(|| "-".to_owned(), number)),
            Cell::from(if rule.dry_run { "dry run" } else { "" }).styled(FAINT),
        ]);
    }
    table
}

/// Keys that an operator has marked.
pub(super) fn marked(marks: &[Mark]) -> Table {
    let mut table = Table::new([
        Head::Left("MARKED KEY"),
        Head::Left("MARK"),
        Head::Right("FOR"),
        Head::Right("REQUESTS"),
        Head::Left("REASON"),
    ]);
    for mark in marks {
        table.row([
            Cell::from(&mark.key).styled(STRONG),
            Cell::from(&mark.mark).styled(if mark.mark == "block" { BAD } else { DOUBTFUL }),
            Cell::from(span(mark.seconds)),
            Cell::from(mark.requests.map_or_else(|| "-".to_owned(), number)),
            Cell::from(mark.reason.as_deref().unwrap_or_default()),
        ]);
    }
    table
}
