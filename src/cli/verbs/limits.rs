//! The commands about zones and keys: `weir zones` and `weir keys` show them, `weir set` changes the numbers of a zone until
//! the next reload; `weir block`, `unblock`, `exempt`, `grant` and `forget` change the treatment of one key.

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};

use crate::api::{
    KeyAction, KeyActionRequest, KeyActions, KeyReset, KeySort, KeyState, NumberOrText, TopKey,
    Zone, ZoneChange, ZoneDetail, ZoneOverride, ZoneRule,
};
use crate::cli::client::{AdminArgs, ApiRequest, escape};
use crate::cli::output::{
    BAD, DOUBTFUL, FAINT, Output, STRONG, TableCell, TextTable, number, requests, span, verdicts,
};
use crate::text::visible;

#[derive(Debug, Args)]
pub(in crate::cli) struct ZonesArgs {
    /// The zone to show
    zone: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
}

impl ZonesArgs {
    pub(in crate::cli) fn run(self) -> anyhow::Result<()> {
        if let Some(zone) = &self.zone {
            return self.admin.show(&zone_detail(zone), draw_zone);
        }
        let request = ApiRequest::get("/api/zones");
        self.admin.show(&request, |zones: Vec<Zone>, output| {
            match zones.is_empty() {
                true => output.line("the configuration has no zones"),
                false => output.table(&list_zones(&zones)),
            }
        })
    }
}

fn zone_path(zone: &str) -> String {
    format!("/api/zones/{}", escape(zone))
}

/// The request for a zone in full.
pub(in crate::cli) fn zone_detail(zone: &str) -> ApiRequest {
    ApiRequest::get(zone_path(zone))
}

fn list_zones(zones: &[Zone]) -> TextTable {
    let mut table = TextTable::new("ZONE  KIND  >RATE  >KEYS  >PASS  >DELAY  >REFUSE");
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

fn draw_zone(detail: ZoneDetail, output: &mut Output) {
    let zone = &detail.zone;
    let algorithm = zone.algorithm.as_deref().map(|name| format!(", {name}"));
    output.line(visible(&format!(
        "zone {} ({}{}) by {}",
        zone.name,
        zone.kind,
        algorithm.unwrap_or_default(),
        detail.key
    )));
    if let Some(rate) = &zone.rate {
        output.line(visible(&format!("  rate     {rate}")));
    }
    if let Some(change) = &zone.r#override {
        let was = detail.configured.as_deref();
        output.line(visible(&format!("  {}", changed(change, was))));
    }
    output.line(format!("  verdicts {}", verdicts(zone.verdicts)));
    let lost = match zone.evictions {
        0 => String::new(),
        lost => format!("; {} were evicted: the zone is too small", number(lost)),
    };
    let (keys, capacity) = (number(zone.keys), number(zone.capacity));
    output.line(format!("  keys     {keys}, room for {capacity}{lost}"));
    if let Some(dropped @ 1..) = zone.penalties_dropped {
        let dropped = number(dropped);
        output.line(format!(
            "  penalty  {dropped} were not recorded: the zone is too small"
        ));
    }
    if let Some(store) = &zone.store {
        output.line(visible(&format!(
            "  store    {store}, shared with other gateways"
        )));
    }
    if !detail.rules.is_empty() {
        output.line("");
        output.table(&rules(&detail.rules));
    }
    if !detail.marked.is_empty() {
        output.line("");
        output.table(&marked(&detail.marked));
    }
}

fn changed(change: &ZoneOverride, was: Option<&str>) -> String {
    let parts = [
        ("rate", &change.rate),
        ("limit", &change.limit),
        ("burst", &change.burst),
    ];
    let parts = parts.into_iter().filter_map(|(name, value)| {
        let value = value.as_ref()?;
        let text = value.as_str().map(str::to_owned);
        Some(format!(
            "{name} {}",
            text.unwrap_or_else(|| value.to_string())
        ))
    });
    let parts: Vec<_> = parts.collect();
    let was = was.map_or_else(String::new, |was| format!(" (in the file: {was})"));
    format!("changed  {} until the next reload{was}", parts.join(", "))
}

fn rules(rules: &[ZoneRule]) -> TextTable {
    let mut table = TextTable::new("SERVER  LOCATION  >BURST  >LIMIT  ");
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

fn marked(marks: &[KeyAction]) -> TextTable {
    let mut table = TextTable::new("MARKED KEY  MARK  >FOR  >REQUESTS  REASON");
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
    /// The new rate, such as 20r/s, or unlimited
    #[arg(long, group = "what")]
    rate: Option<String>,
    /// The new burst, for every rule that uses the zone
    #[arg(long, value_name = "N", group = "what")]
    burst: Option<u64>,
    /// The new limit, of a zone that counts in windows or of a limit_conn zone, or unlimited
    #[arg(long, value_name = "N", group = "what")]
    limit: Option<String>,
    /// Restore the values of the configuration
    #[arg(long, group = "what", conflicts_with_all = ["rate", "burst", "limit"])]
    reset: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

impl SetArgs {
    pub(in crate::cli) fn run(self) -> anyhow::Result<()> {
        let path = zone_path(&self.zone);
        let limit = self.limit.map(|text| match text.parse() {
            Ok(number) => NumberOrText::Number(number),
            Err(_) => NumberOrText::Text(text),
        });
        let change = ZoneChange {
            rate: self.rate,
            burst: self.burst,
            limit,
        };
        let request = match self.reset {
            true => ApiRequest::delete(format!("{path}/override")),
            false => ApiRequest::with_body("PATCH", path, &change),
        };
        self.admin.show(&request, draw_zone)
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct KeysArgs {
    /// The zone
    zone: String,
    /// The key to show, as in the list
    key: Option<String>,
    /// The order, the largest first
    #[arg(long, value_enum, default_value_t = KeySort::Refuse, conflicts_with = "key")]
    sort: KeySort,
    /// The maximum number of keys
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000), conflicts_with = "key")]
    limit: u16,
    #[command(flatten)]
    admin: AdminArgs,
}

impl ValueEnum for KeySort {
    fn value_variants<'a>() -> &'a [Self] {
        Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Now => "Requests refused a second of late; among equals delayed, then all",
            Self::Refuse => "Requests refused",
            Self::Pass => "Requests passed",
            Self::Delay => "Requests delayed",
            Self::Excess => "How far a key is above its rate now",
            Self::Demand => "All requests together",
        };
        Some(PossibleValue::new(self.as_str()).help(help))
    }
}

/// The request for the first keys of a zone.
pub(in crate::cli) fn busiest(zone: &str, sort: KeySort, limit: u16) -> ApiRequest {
    let (zone, sort) = (escape(zone), sort.as_str());
    ApiRequest::get(format!("/api/zones/{zone}/keys?sort={sort}&limit={limit}"))
}

/// The path of a key in the API.
pub(in crate::cli) fn path(zone: &str, key: &str) -> String {
    format!("/api/zones/{}/keys/{}", escape(zone), escape(key))
}

impl KeysArgs {
    pub(in crate::cli) fn run(self) -> anyhow::Result<()> {
        let zone = &self.zone;
        if let Some(key) = &self.key {
            let request = ApiRequest::get(path(zone, key));
            return self.admin.show(&request, |key: KeyState, output| {
                output.line(visible(&format!("{} in zone {zone}", key.key)));
                for line in describe(&key) {
                    output.line(format!("  {line}"));
                }
                if !key.marks.is_empty() {
                    output.line("");
                    output.table(&marked(&key.marks));
                }
            });
        }
        let request = busiest(zone, self.sort, self.limit);
        self.admin.show(&request, |keys: Vec<TopKey>, output| {
            match keys.is_empty() {
                true => output.line(visible(&format!("no recent requests in {zone}"))),
                false => list_keys(&keys, output),
            }
        })
    }
}

fn list_keys(keys: &[TopKey], output: &mut Output) {
    let mut table = TextTable::new("KEY  >PASS  >DELAY  >REFUSE  >EXCESS  MARK");
    for key in keys {
        let counts = key.verdicts;
        let mark = key.mark.as_deref().unwrap_or_default();
        table.row([
            TableCell::from(&key.key).styled(STRONG),
            TableCell::from(number(counts.pass)),
            TableCell::from(number(counts.delay)).styled_if(counts.delay > 0, DOUBTFUL),
            TableCell::from(number(counts.refuse)).styled_if(counts.refuse > 0, BAD),
            TableCell::from(requests(key.excess)),
            TableCell::from(mark).styled(match mark {
                "exempt" | "grant" => DOUBTFUL,
                _ => BAD,
            }),
        ]);
    }
    output.table(&table);
    let missed = keys.iter().map(|key| key.missed).max().unwrap_or_default();
    if missed > 0 {
        output.line(format!(
            "a key may have had up to {} more requests before it was listed",
            number(missed)
        ));
    }
}

/// The state of a key in lines that are safe to show.
pub(in crate::cli) fn describe(key: &KeyState) -> Vec<String> {
    let status = &key.key_status;
    let mut lines = Vec::new();
    if !key.known {
        lines.push("not in the zone: its whole limit is left".to_owned());
    }
    lines.push(format!(
        "{} of {} left, excess {}",
        number(status.remaining),
        number(status.limit),
        requests(status.excess)
    ));
    if status.remaining == 0 && status.retry_after > 0.0 {
        lines.push(format!(
            "next request passes in {}",
            span(status.retry_after)
        ));
    }
    if status.reset_after > 0.0 {
        lines.push(format!("whole limit left in {}", span(status.reset_after)));
    }
    lines.push(match key.listed {
        true => verdicts(key.verdicts),
        false => "not listed: its requests are not counted individually".to_owned(),
    });
    if let Some(own) = &key.own {
        lines.push(visible(&format!("rate of its own in the file: {own}")));
    }
    if let Some(seconds) = key.penalty {
        lines.push(format!("penalty for another {}", span(seconds)));
    }
    if key.shared {
        lines.push("shared with other gateways; as this one last saw it".to_owned());
    }
    lines
}

/// A key of a zone.
#[derive(Debug, Args)]
pub(in crate::cli) struct KeyArgs {
    /// The zone
    zone: String,
    /// The key, as `weir keys` shows it
    key: String,
    #[command(flatten)]
    admin: AdminArgs,
}

/// How long a mark lasts, and why.
#[derive(Debug, Args)]
struct DurationArgs {
    /// Duration, such as 10m; 1h by default
    #[arg(long = "for", value_name = "TIME")]
    time: Option<String>,
    /// Reason, shown to operators
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Revoke it
    #[arg(long, conflicts_with_all = ["time", "reason"])]
    off: bool,
}

/// A mark that lasts for a time.
#[derive(Debug, Args)]
pub(in crate::cli) struct BlockArgs {
    #[command(flatten)]
    spec: DurationArgs,
    #[command(flatten)]
    target: KeyArgs,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct GrantArgs {
    #[command(flatten)]
    spec: DurationArgs,
    #[command(flatten)]
    target: KeyArgs,
    /// Number of requests
    #[arg(required_unless_present = "off", conflicts_with = "off", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
}

impl BlockArgs {
    pub(in crate::cli) fn run(self, mark: &str) -> anyhow::Result<()> {
        self.target.put(mark, self.spec, None)
    }
}

impl GrantArgs {
    pub(in crate::cli) fn run(self) -> anyhow::Result<()> {
        self.target.put("grant", self.spec, self.requests)
    }
}

impl KeyArgs {
    pub(in crate::cli) fn unblock(self) -> anyhow::Result<()> {
        self.remove("block")
    }

    pub(in crate::cli) fn forget(self) -> anyhow::Result<()> {
        let Self { zone, key, admin } = &self;
        admin.show(&forget(zone, key), |reset: KeyReset, output| {
            output.line(visible(&match reset.forgotten {
                true => format!("Reset {} in {zone}.", reset.key),
                false => format!("{} has no state in {zone}.", reset.key),
            }));
        })
    }

    fn put(self, kind: &str, spec: DurationArgs, requests: Option<u64>) -> anyhow::Result<()> {
        if spec.off {
            return self.remove(kind);
        }
        let body = KeyActionRequest {
            r#for: spec.time.map(NumberOrText::Text),
            reason: spec.reason,
            requests,
        };
        let done = match kind {
            "block" => "Blocked",
            "exempt" => "Exempted",
            _ => "Granted requests to",
        };
        self.show_marks(&mark(&self.zone, &self.key, kind, &body), done)
    }

    fn remove(&self, kind: &str) -> anyhow::Result<()> {
        let done = match kind {
            "block" => "Unblocked",
            "exempt" => "Removed the exemption of",
            _ => "Removed the grant of",
        };
        let path = format!("{}/{kind}", path(&self.zone, &self.key));
        self.show_marks(&ApiRequest::delete(path), done)
    }

    /// Shows what was done, and the marks on the key now.
    fn show_marks(&self, request: &ApiRequest, done: &str) -> anyhow::Result<()> {
        self.admin.show(request, |key: KeyActions, output| {
            output.line(visible(&format!("{done} {} in {}.", key.key, self.zone)));
            if !key.marks.is_empty() {
                output.table(&marked(&key.marks));
            }
        })
    }
}

/// The request that resets a key.
pub(in crate::cli) fn forget(zone: &str, key: &str) -> ApiRequest {
    ApiRequest::delete(path(zone, key))
}

/// The request that marks a key; without a duration, the API's default holds.
pub(in crate::cli) fn mark(
    zone: &str,
    key: &str,
    mark: &str,
    body: &KeyActionRequest,
) -> ApiRequest {
    ApiRequest::with_body("PUT", format!("{}/{mark}", path(zone, key)), body)
}
