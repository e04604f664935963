//! `weir refusals`: who was turned away last, and why.

use anstyle::Style;
use clap::Args;
use unicode_width::UnicodeWidthStr as _;

use super::AdminArgs;
use crate::cli::admin::answers::{Refusal, Refusals, Skipped};
use crate::cli::admin::{AdminClient, ApiRequest};
use crate::cli::page::{self, Output};
use crate::cli::table::{DOUBTFUL, FAINT, STRONG, cut, verdict};
use crate::cli::words::number;
use crate::replay::plot::visible;

#[derive(Debug, Args)]
pub(in crate::cli) struct RefusalsArgs {
    /// Go on with those that come
    #[arg(short, long)]
    follow: bool,
    /// How many at most, the latest
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    #[command(flatten)]
    ask: AdminArgs,
}

/// The call for the last refusals.
pub(in crate::cli) fn last(limit: u16) -> ApiRequest {
    ApiRequest::get(format!("/api/refusals?limit={limit}"))
}

impl RefusalsArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        if self.follow {
            return self.follow(&self.ask.reach.admin()?);
        }
        self.ask.show(&last(self.limit), |answer: Refusals, page| {
            if answer.refusals.is_empty() {
                page.line("nobody was refused");
            }
            draw(&answer, page);
            Ok(())
        })
    }

    /// The last ones, and then those that come. With --json, a line for each.
    fn follow(&self, admin: &AdminClient) -> anyhow::Result<()> {
        // First this: what comes while the others are fetched is not missed.
        let stream = admin.stream(&ApiRequest::get("/api/refusals/stream"))?;
        let before: Refusals = admin.ask(&last(self.limit))?;
        let seen = before.refusals.last().map_or(0, |refusal| refusal.id);
        if !self.json() {
            let mut page = Output::new();
            draw(&before, &mut page);
            page.print()?;
        }
        let mut event = String::new();
        for line in stream {
            let line =
                line.map_err(|error| anyhow::anyhow!("{} has gone: {error}", admin.address()))?;
            if let Some(name) = line.strip_prefix("event:") {
                name.trim().clone_into(&mut event);
            }
            let Some(data) = line.strip_prefix("data:").map(str::trim) else {
                continue;
            };
            let line = match event.as_str() {
                "refusal" => {
                    let refusal: Refusal = admin.read(data)?;
                    if refusal.id <= seen {
                        continue;
                    }
                    sentence(&refusal, None)
                }
                "skipped" => only_counted(admin.read::<Skipped>(data)?.skipped),
                _ => continue,
            };
            match self.json() {
                true => page::print_json(data)?,
                false => page::print(&format!("{line}\n"))?,
            }
        }
        anyhow::bail!("{} has ended the stream", admin.address())
    }

    fn json(&self) -> bool {
        self.ask.json
    }
}

fn draw(answer: &Refusals, page: &mut Output) {
    for refusal in &answer.refusals {
        page.line(sentence(refusal, None));
    }
    if answer.skipped > 0 {
        page.line(only_counted(answer.skipped));
    }
}

fn only_counted(skipped: u64) -> String {
    let skipped = number(skipped);
    format!("{FAINT}{skipped} more were only counted{FAINT:#}")
}

/// A refusal in a line: when, who, why and what. Where there is not `room` for all of it, what was asked for is cut.
pub(in crate::cli) fn sentence(refusal: &Refusal, room: Option<usize>) -> String {
    let refused = verdict("refuse");
    let (time, zone) = (moment(refusal.time), visible(&refusal.zone));
    let key = visible(refusal.key.as_deref().unwrap_or("no key"));
    let detail = visible(&refusal.detail);
    let (answer, style) = match refusal.dry_run {
        true => ("dry run".to_owned(), DOUBTFUL),
        false => (refusal.status.to_string(), Style::new()),
    };
    let from = match refusal.key.as_deref() == Some(&refusal.client) {
        true => String::new(),
        false => format!(" from {}", refusal.client),
    };
    let (method, host, path) = (&refusal.method, &refusal.host, &refusal.path);
    let what = visible(&format!("{method} {host}{path}{from}"));
    let before = format!("{time} {zone} {key}: {detail} → {answer} ").width();
    let what = cut(
        &what,
        room.map_or(usize::MAX, |room| room.saturating_sub(before)),
    );
    format!(
        "{time} {zone} {STRONG}{key}{STRONG:#}: {refused}{detail}{refused:#} → {style}{answer}{style:#} {what}"
    )
}

/// The time of day of a moment, here.
fn moment(millis: i64) -> String {
    let moment = jiff::Timestamp::from_millisecond(millis).unwrap_or_default();
    let here = moment.to_zoned(jiff::tz::TimeZone::system());
    here.strftime("%H:%M:%S").to_string()
}
