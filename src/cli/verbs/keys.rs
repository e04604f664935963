//! `weir keys`: who is busy, who is refused, and where one of them stands.

use clap::{Args, ValueEnum};

use super::{AdminArgs, zones};
use crate::cli::admin::answers::{BusyKey, KeyState};
use crate::cli::admin::{ApiRequest, escape};
use crate::cli::page::Output;
use crate::cli::table::{BAD, Column, DOUBTFUL, STRONG, TableCell, TextTable};
use crate::cli::words::{number, requests, span, verdicts};
use crate::replay::plot::visible;

#[derive(Debug, Args)]
pub(in crate::cli) struct KeysArgs {
    /// The zone
    zone: String,
    /// The key to show, as the list shows it
    key: Option<String>,
    /// By what they are sorted; the most first
    #[arg(long, value_enum, default_value_t = KeySort::Refuse, conflicts_with = "key")]
    sort: KeySort,
    /// How many at most
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000), conflicts_with = "key")]
    limit: u16,
    #[command(flatten)]
    ask: AdminArgs,
}

/// What keys are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum KeySort {
    /// Requests refused a second, of late; of equals those made to wait, and then all
    Now,
    /// Requests refused
    Refuse,
    /// Requests let pass
    Pass,
    /// Requests made to wait
    Delay,
    /// How far above its rate a key is now
    Excess,
    /// All requests together
    Demand,
}

impl KeySort {
    /// The API's word for it.
    pub(in crate::cli) fn word(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::Refuse => "refuse",
            Self::Pass => "pass",
            Self::Delay => "delay",
            Self::Excess => "excess",
            Self::Demand => "demand",
        }
    }
}

/// The call for the first keys of a zone.
pub(in crate::cli) fn busiest(zone: &str, sort: KeySort, limit: u16) -> ApiRequest {
    let (zone, sort) = (escape(zone), sort.word());
    ApiRequest::get(format!("/api/zones/{zone}/keys?sort={sort}&limit={limit}"))
}

/// Where a key is in the API.
pub(in crate::cli) fn path(zone: &str, key: &str) -> String {
    format!("/api/zones/{}/keys/{}", escape(zone), escape(key))
}

impl KeysArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        match &self.key {
            Some(key) => self.ask.show(
                &ApiRequest::get(path(&self.zone, key)),
                |key: KeyState, page| {
                    standing(&self.zone, &key, page);
                    Ok(())
                },
            ),
            None => {
                let call = busiest(&self.zone, self.sort, self.limit);
                self.ask.show(&call, |keys: Vec<BusyKey>, page| {
                    if keys.is_empty() {
                        page.line(visible(&format!("nobody has met {} of late", self.zone)));
                    } else {
                        list(&keys, page);
                    }
                    Ok(())
                })
            }
        }
    }
}

fn list(keys: &[BusyKey], page: &mut Output) {
    let mut table = TextTable::new([
        Column::Left("KEY"),
        Column::Right("PASS"),
        Column::Right("DELAY"),
        Column::Right("REFUSE"),
        Column::Right("EXCESS"),
        Column::Left("MARK"),
    ]);
    for key in keys {
        let counts = key.verdicts;
        let mark = key.mark.as_deref().unwrap_or_default();
        table.row([
            TableCell::from(&key.key).styled(STRONG),
            TableCell::from(number(counts.pass)),
            TableCell::from(number(counts.delay)).styled_if(counts.delay > 0, DOUBTFUL),
            TableCell::from(number(counts.refuse)).styled_if(counts.refuse > 0, BAD),
            TableCell::from(requests(key.excess)),
            TableCell::from(mark).styled(if mark == "exempt" || mark == "grant" {
                DOUBTFUL
            } else {
                BAD
            }),
        ]);
    }
    page.table(&table);
    if let Some(most) = keys
        .iter()
        .map(|key| key.missed)
        .max()
        .filter(|most| *most > 0)
    {
        page.line(format!(
            "there may have been up to {} more of a key before it came into the list",
            number(most)
        ));
    }
}

/// One key in full.
fn standing(zone: &str, key: &KeyState, page: &mut Output) {
    page.line(visible(&format!("{} in zone {zone}", key.key)));
    for line in describe(key) {
        page.line(format!("  {line}"));
    }
    if !key.marks.is_empty() {
        page.line("");
        page.table(&zones::marked(&key.marks));
    }
}

/// Where a key stands, in sentences that are safe to show.
pub(in crate::cli) fn describe(key: &KeyState) -> Vec<String> {
    let standing = &key.standing;
    let mut lines = Vec::new();
    if !key.known {
        lines.push("the zone does not know it: it has all it may have".to_owned());
    }
    lines.push(format!(
        "{} of {} left, excess {}",
        number(standing.remaining),
        number(standing.limit),
        requests(standing.excess)
    ));
    if standing.remaining == 0 && standing.retry_after > 0.0 {
        lines.push(format!("one more passes in {}", span(standing.retry_after)));
    }
    if standing.reset_after > 0.0 {
        lines.push(format!(
            "all of it is there again in {}",
            span(standing.reset_after)
        ));
    }
    lines.push(match key.listed {
        true => verdicts(key.verdicts),
        false => "not among the keys that are counted one by one".to_owned(),
    });
    if let Some(own) = &key.own {
        lines.push(visible(&format!(
            "has a rate of its own in the file: {own}"
        )));
    }
    if let Some(seconds) = key.penalty {
        lines.push(format!(
            "is kept out by a penalty for {} more",
            span(seconds)
        ));
    }
    if key.shared {
        lines.push("other gateways count it, too; this is how this one last saw it".to_owned());
    }
    lines
}
