//! `weir zones`: what is limited, to what, and what came of it.

use clap::Args;

use super::AdminArgs;
use crate::cli::admin::answers::{Change, Detail, Mark, Rule, Zone};
use crate::cli::admin::{ApiRequest, escape};
use crate::cli::page::Output;
use crate::cli::table::{BAD, Column, DOUBTFUL, FAINT, STRONG, TableCell, TextTable};
use crate::cli::words::{number, requests, span, verdicts};
use crate::replay::plot::visible;

#[derive(Debug, Args)]
pub(in crate::cli) struct ZonesArgs {
    /// The zone to show
    zone: Option<String>,
    #[command(flatten)]
    ask: AdminArgs,
}

impl ZonesArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        match &self.zone {
            None => self
                .ask
                .show(&ApiRequest::get("/api/zones"), |zones: Vec<Zone>, page| {
                    if zones.is_empty() {
                        page.line("there are no zones in the configuration");
                    } else {
                        page.table(&list(&zones));
                    }
                    Ok(())
                }),
            Some(zone) => {
                let call = ApiRequest::get(format!("/api/zones/{}", escape(zone)));
                self.ask.show(&call, |zone: Detail, page| {
                    detail(&zone, page);
                    Ok(())
                })
            }
        }
    }
}

fn list(zones: &[Zone]) -> TextTable {
    let mut table = TextTable::new([
        Column::Left("ZONE"),
        Column::Left("KIND"),
        Column::Right("RATE"),
        Column::Right("KEYS"),
        Column::Right("PASS"),
        Column::Right("DELAY"),
        Column::Right("REFUSE"),
    ]);
    for zone in zones {
        let counts = zone.verdicts;
        table.row([
            TableCell::from(&zone.name).styled(STRONG),
            TableCell::from(&zone.kind),
            TableCell::from(zone.rate.as_deref().unwrap_or("-"))
                .styled_if(zone.changed.is_some(), DOUBTFUL),
            TableCell::from(number(zone.keys)),
            TableCell::from(number(counts.pass)),
            TableCell::from(number(counts.delay)).styled_if(counts.delay > 0, DOUBTFUL),
            TableCell::from(number(counts.refuse)).styled_if(counts.refuse > 0, BAD),
        ]);
    }
    table
}

/// One zone in full.
pub(super) fn detail(detail: &Detail, page: &mut Output) {
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

fn rules(rules: &[Rule]) -> TextTable {
    let mut table = TextTable::new([
        Column::Left("SERVER"),
        Column::Left("LOCATION"),
        Column::Right("BURST"),
        Column::Right("LIMIT"),
        Column::Left(""),
    ]);
    let or_dash = |text: &str| if text.is_empty() { "-" } else { text }.to_owned();
    for rule in rules {
        table.row([
            TableCell::from(or_dash(&rule.server)),
            TableCell::from(or_dash(&rule.location)),
            TableCell::from(rule.burst.map_or_else(|| "-".to_owned(), requests)),
            TableCell::from(rule.limit.map_or_else(|| "-".to_owned(), number)),
            TableCell::from(if rule.dry_run { "dry run" } else { "" }).styled(FAINT),
        ]);
    }
    table
}

/// Keys that an operator has marked.
pub(super) fn marked(marks: &[Mark]) -> TextTable {
    let mut table = TextTable::new([
        Column::Left("MARKED KEY"),
        Column::Left("MARK"),
        Column::Right("FOR"),
        Column::Right("REQUESTS"),
        Column::Left("REASON"),
    ]);
    for mark in marks {
        table.row([
            TableCell::from(&mark.key).styled(STRONG),
            TableCell::from(&mark.mark).styled(if mark.mark == "block" { BAD } else { DOUBTFUL }),
            TableCell::from(span(mark.seconds)),
            TableCell::from(mark.requests.map_or_else(|| "-".to_owned(), number)),
            TableCell::from(mark.reason.as_deref().unwrap_or_default()),
        ]);
    }
    table
}
