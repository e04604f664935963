//! The verbs about zones and keys: `weir zones` shows what is limited, to what, and with which verdicts; `weir set` gives a
//! zone other numbers until the next reload; `weir keys` shows busy and refused keys and the state of one; `weir block`,
//! `unblock`, `exempt`, `grant` and `forget` change what holds for one key.

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use serde_json::Value;

use super::AdminArgs;
use crate::api::{
    KeyAction, KeyActionRequest, KeyActions, KeyReset, KeySort, KeyState, NumberOrText, TimeOrText,
    TopKey, Zone, ZoneChange, ZoneDetail, ZoneOverride, ZoneRule,
};
use crate::cli::client::{ApiRequest, escape};
use crate::cli::output::{
    BAD, Column, DOUBTFUL, FAINT, Output, STRONG, TableCell, TextTable, requests, span, verdicts,
};
use crate::replay::number;
use crate::text::visible;

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
                        page.table(&list_zones(&zones));
                    }
                    Ok(())
                }),
            Some(zone) => {
                let call = ApiRequest::get(format!("/api/zones/{}", escape(zone)));
                self.ask.show(&call, |zone: ZoneDetail, page| {
                    detail(&zone, page);
                    Ok(())
                })
            }
        }
    }
}

fn list_zones(zones: &[Zone]) -> TextTable {
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
                .styled_if(zone.r#override.is_some(), DOUBTFUL),
            TableCell::from(number(zone.keys)),
            TableCell::from(number(counts.pass)),
            TableCell::from(number(counts.delay)).styled_if(counts.delay > 0, DOUBTFUL),
            TableCell::from(number(counts.refuse)).styled_if(counts.refuse > 0, BAD),
        ]);
    }
    table
}

/// One zone in full.
pub(super) fn detail(detail: &ZoneDetail, page: &mut Output) {
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
    if let Some(change) = &zone.r#override {
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
    if let Some(dropped @ 1..) = zone.penalties_dropped {
        let dropped = number(dropped);
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

fn changed(change: &ZoneOverride, was: Option<&str>) -> String {
    let parts = [
        ("rate", &change.rate),
        ("limit", &change.limit),
        ("burst", &change.burst),
    ];
    let parts = parts.into_iter().filter_map(|(name, value)| {
        Some(match value.as_ref()? {
            Value::String(text) => format!("{name} {text}"),
            number => format!("{name} {number}"),
        })
    });
    let parts: Vec<_> = parts.collect();
    let was = was.map_or_else(String::new, |was| format!(" (in the file: {was})"));
    format!("changed  {} until the next reload{was}", parts.join(", "))
}

fn rules(rules: &[ZoneRule]) -> TextTable {
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
pub(super) fn marked(marks: &[KeyAction]) -> TextTable {
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

#[derive(Debug, Args)]
#[group(skip)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub(in crate::cli) struct SetArgs {
    /// The zone
    zone: String,
    /// Another rate, as in 20r/s; or unlimited
    #[arg(long, group = "what")]
    rate: Option<String>,
    /// Another burst, for every rule that uses the zone
    #[arg(long, value_name = "N", group = "what")]
    burst: Option<u64>,
    /// Another limit, of a zone that counts in windows or of a limit_conn zone; or unlimited
    #[arg(long, value_name = "N", group = "what")]
    limit: Option<String>,
    /// Back to what the file says
    #[arg(long, group = "what", conflicts_with_all = ["rate", "burst", "limit"])]
    reset: bool,
    #[command(flatten)]
    ask: AdminArgs,
}

impl SetArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let path = format!("/api/zones/{}", escape(&self.zone));
        let call = match self.reset {
            true => ApiRequest::delete(format!("{path}/override")),
            false => ApiRequest::patch(path, &self.change()),
        };
        self.ask.show(&call, |zone: ZoneDetail, page| {
            detail(&zone, page);
            Ok(())
        })
    }

    fn change(&self) -> ZoneChange {
        let limit = self.limit.as_ref().map(|text| {
            text.parse()
                .map_or_else(|_| NumberOrText::Text(text.clone()), NumberOrText::Number)
        });
        ZoneChange {
            rate: self.rate.clone(),
            burst: self.burst,
            limit,
        }
    }
}

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

impl ValueEnum for KeySort {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Now => {
                "Requests refused a second, of late; of equals those made to wait, and then all"
            }
            Self::Refuse => "Requests refused",
            Self::Pass => "Requests let pass",
            Self::Delay => "Requests made to wait",
            Self::Excess => "How far above its rate a key is now",
            Self::Demand => "All requests together",
        };
        Some(PossibleValue::new(self.as_str()).help(help))
    }
}

/// The call for the first keys of a zone.
pub(in crate::cli) fn busiest(zone: &str, sort: KeySort, limit: u16) -> ApiRequest {
    let (zone, sort) = (escape(zone), sort.as_str());
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
                    key_status(&self.zone, &key, page);
                    Ok(())
                },
            ),
            None => {
                let call = busiest(&self.zone, self.sort, self.limit);
                self.ask.show(&call, |keys: Vec<TopKey>, page| {
                    if keys.is_empty() {
                        page.line(visible(&format!("nobody has met {} of late", self.zone)));
                    } else {
                        list_keys(&keys, page);
                    }
                    Ok(())
                })
            }
        }
    }
}

fn list_keys(keys: &[TopKey], page: &mut Output) {
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
fn key_status(zone: &str, key: &KeyState, page: &mut Output) {
    page.line(visible(&format!("{} in zone {zone}", key.key)));
    for line in describe(key) {
        page.line(format!("  {line}"));
    }
    if !key.marks.is_empty() {
        page.line("");
        page.table(&marked(&key.marks));
    }
}

/// Where a key stands, in sentences that are safe to show.
pub(in crate::cli) fn describe(key: &KeyState) -> Vec<String> {
    let key_status = &key.key_status;
    let mut lines = Vec::new();
    if !key.known {
        lines.push("the zone does not know it: it has all it may have".to_owned());
    }
    lines.push(format!(
        "{} of {} left, excess {}",
        number(key_status.remaining),
        number(key_status.limit),
        requests(key_status.excess)
    ));
    if key_status.remaining == 0 && key_status.retry_after > 0.0 {
        lines.push(format!(
            "one more passes in {}",
            span(key_status.retry_after)
        ));
    }
    if key_status.reset_after > 0.0 {
        lines.push(format!(
            "all of it is there again in {}",
            span(key_status.reset_after)
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

/// Which key of which zone.
#[derive(Debug, Args)]
struct KeyArgs {
    /// The zone
    zone: String,
    /// The key, as `weir keys` shows it
    key: String,
}

/// For how long, and why.
#[derive(Debug, Args)]
struct DurationArgs {
    /// For how long, as in 10m; 1h if it is not given
    #[arg(long = "for", value_name = "TIME")]
    time: Option<String>,
    /// Shown to whoever asks why
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Take it back
    #[arg(long, conflicts_with_all = ["time", "reason"])]
    off: bool,
}

/// A mark that lasts for a time.
#[derive(Debug, Args)]
pub(in crate::cli) struct BlockArgs {
    #[command(flatten)]
    target: KeyArgs,
    #[command(flatten)]
    spec: DurationArgs,
    #[command(flatten)]
    ask: AdminArgs,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct UnblockArgs {
    #[command(flatten)]
    target: KeyArgs,
    #[command(flatten)]
    ask: AdminArgs,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct GrantArgs {
    #[command(flatten)]
    target: KeyArgs,
    /// How many it may have
    #[arg(required_unless_present = "off", conflicts_with = "off", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    #[command(flatten)]
    spec: DurationArgs,
    #[command(flatten)]
    ask: AdminArgs,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct ResetArgs {
    #[command(flatten)]
    target: KeyArgs,
    #[command(flatten)]
    ask: AdminArgs,
}

impl BlockArgs {
    pub(super) fn run(self, mark: &str) -> anyhow::Result<()> {
        put(&self.ask, &self.target, mark, &self.spec, None)
    }
}

impl UnblockArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        tell(
            &self.ask,
            &self.target,
            &ApiRequest::delete(self.target.path("block")),
        )
    }
}

impl GrantArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        put(&self.ask, &self.target, "grant", &self.spec, self.requests)
    }
}

impl ResetArgs {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let (zone, key) = (&self.target.zone, &self.target.key);
        self.ask.show(&forget(zone, key), |answer: KeyReset, page| {
            page.line(visible(&match answer.forgotten {
                true => format!("{} begins anew in {zone}", answer.key),
                false => format!("{zone} knew nothing of {}", answer.key),
            }));
            Ok(())
        })
    }
}

impl KeyArgs {
    fn path(&self, mark: &str) -> String {
        format!("{}/{mark}", path(&self.zone, &self.key))
    }
}

/// The call that makes a zone forget a key.
pub(in crate::cli) fn forget(zone: &str, key: &str) -> ApiRequest {
    ApiRequest::delete(path(zone, key))
}

/// The call that marks a key; a time that is not given is the API's.
pub(in crate::cli) fn mark(zone: &str, key: &str, mark: &str, time: Option<&str>) -> ApiRequest {
    let body = KeyActionRequest {
        r#for: time.map(|time| TimeOrText::Text(time.to_owned())),
        ..KeyActionRequest::default()
    };
    ApiRequest::put(format!("{}/{mark}", path(zone, key)), &body)
}

fn put(
    ask: &AdminArgs,
    target: &KeyArgs,
    mark: &str,
    spec: &DurationArgs,
    requests: Option<u64>,
) -> anyhow::Result<()> {
    let path = target.path(mark);
    if spec.off {
        return tell(ask, target, &ApiRequest::delete(path));
    }
    let body = KeyActionRequest {
        r#for: spec.time.clone().map(TimeOrText::Text),
        reason: spec.reason.clone(),
        requests,
    };
    tell(ask, target, &ApiRequest::put(path, &body))
}

/// Says what holds for the key now.
fn tell(ask: &AdminArgs, target: &KeyArgs, call: &ApiRequest) -> anyhow::Result<()> {
    ask.show(call, |answer: KeyActions, page| {
        let (key, zone) = (&answer.key, &target.zone);
        if answer.marks.is_empty() {
            page.line(visible(&format!(
                "{key} is limited in {zone} as everybody is"
            )));
        } else {
            page.line(visible(&format!("in zone {zone}")));
            page.table(&marked(&answer.marks));
        }
        Ok(())
    })
}
