//! The verbs that speak to a running weir: each makes one call of its API and shows the response. Those about the process
//! as a whole stand here: `weir status`, `weir reload`, `weir refusals` and `weir explain`.

pub(super) mod limits;
pub(super) mod upstreams;

use std::collections::BTreeMap;
use std::time::Duration;

use anstyle::Style;
use clap::{Args, Subcommand};
use http::Uri;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr as _;

use super::client::{AdminClient, AdminOptions, ApiRequest};
use super::output::{
    BAD, Column, DOUBTFUL, FAINT, Output, STRONG, TableCell, TextTable, cut, lag, requests, span,
    verdict, verdicts,
};
use super::{UsageError, output, top};
use crate::api::{
    BackendState, Explanation, Refusal, Refusals, ReloadFailure, ReloadReport, RuleExplanation,
    SkippedRefusals, Status, Store,
};
use crate::replay::number;
use crate::text::visible;

/// What can be asked of a running weir, and told to it.
#[derive(Debug, Subcommand)]
pub(super) enum AdminCommand {
    /// Have a running weir read its configuration again, and say what came of it
    Reload(ReloadArgs),
    /// Show how a running weir is: connections, requests, verdicts, event loops
    Status(StatusArgs),
    /// Watch zones, keys, upstreams and refusals live
    Top(top::TopArgs),
    /// List zones, or show one with its rules and marked keys
    Zones(limits::ZonesArgs),
    /// List a zone's busiest or most refused keys, or show where one stands
    Keys(limits::KeysArgs),
    /// Show the last refusals with the reason for each
    Refusals(RefusalsArgs),
    /// Tell what would happen to a request, rule by rule; nothing is charged
    Explain(ExplainArgs),
    /// List upstreams, their servers and how they are
    Upstreams(upstreams::UpstreamsArgs),
    /// Refuse all requests of a key for a time
    Block(limits::BlockArgs),
    /// Take a block back
    Unblock(limits::UnblockArgs),
    /// Do not limit a key for a time
    Exempt(limits::BlockArgs),
    /// Let a key have so many requests more
    Grant(limits::GrantArgs),
    /// Let a key begin anew: forget its count and its penalty
    Forget(limits::ResetArgs),
    /// Change a zone's rate, limit or burst until the next reload
    Set(limits::SetArgs),
    /// Send a server no new requests; those it has go on
    Drain(upstreams::ServerArgs),
    /// Send a server requests again
    Enable(upstreams::ServerArgs),
    /// Take a server for down
    Disable(upstreams::ServerArgs),
    /// List circuit breakers, force one, or let it judge again
    Breaker(upstreams::BreakerArgs),
    /// List degrade groups, or switch one
    Degrade(upstreams::DegradeArgs),
}

impl AdminCommand {
    pub(super) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Reload(flags) => flags.run(),
            Self::Status(flags) => flags.run(),
            Self::Top(flags) => flags.run(),
            Self::Zones(flags) => flags.run(),
            Self::Keys(flags) => flags.run(),
            Self::Refusals(flags) => flags.run(),
            Self::Explain(flags) => flags.run(),
            Self::Upstreams(flags) => flags.run(),
            Self::Block(flags) => flags.run("block"),
            Self::Unblock(flags) => flags.run(),
            Self::Exempt(flags) => flags.run("exempt"),
            Self::Grant(flags) => flags.run(),
            Self::Forget(flags) => flags.run(),
            Self::Set(flags) => flags.run(),
            Self::Drain(flags) => flags.run(BackendState::Drain),
            Self::Enable(flags) => flags.run(BackendState::Up),
            Self::Disable(flags) => flags.run(BackendState::Down),
            Self::Breaker(flags) => flags.run(),
            Self::Degrade(flags) => flags.run(),
        }
    }
}

/// What all of them can be told.
#[derive(Debug, Args)]
struct AdminArgs {
    #[command(flatten)]
    reach: AdminOptions,
    /// Print what the API answers, as JSON
    #[arg(long)]
    json: bool,
}

impl AdminArgs {
    /// Makes a call, and prints what is answered: as it is, or as `draw` shows it.
    fn show<T: DeserializeOwned>(
        &self,
        call: &ApiRequest,
        draw: impl FnOnce(T, &mut Output) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let admin = self.reach.admin()?;
        let text = admin.text(call)?;
        if self.json {
            // Only what is JSON is passed on as such.
            admin.read::<serde::de::IgnoredAny>(&text)?;
            return Ok(output::print_json(&text)?);
        }
        let mut page = Output::new();
        draw(admin.read(&text)?, &mut page)?;
        Ok(page.print()?)
    }
}

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    ask: AdminArgs,
}

impl StatusArgs {
    fn run(self) -> anyhow::Result<()> {
        self.ask
            .show(&ApiRequest::get("/api/status"), |status: Status, page| {
                let stores: Vec<Store> = self
                    .ask
                    .reach
                    .admin()?
                    .ask(&ApiRequest::get("/api/store"))?;
                for line in lines(&status, &stores) {
                    page.line(visible(&line));
                }
                Ok(())
            })
    }
}

fn lines(status: &Status, stores: &[Store]) -> Vec<String> {
    let ready = match status.ready {
        true => "takes requests",
        false => "is starting or stopping",
    };
    let reloaded = match status.generation.saturating_sub(1) {
        0 => "never reloaded".to_owned(),
        1 => "reloaded once".to_owned(),
        times => format!("reloaded {} times", number(times)),
    };
    let mut lines = vec![
        format!("weir {}, pid {}: {ready}", status.version, status.pid),
        format!("up           {}, {reloaded}", span(status.uptime)),
        format!(
            "connections  {} open, {} accepted",
            number(status.connections.active),
            number(status.connections.accepted)
        ),
        format!("requests     {}", number(status.requests.total)),
        format!("limits       {}", verdicts(status.limits)),
        format!(
            "event loops  {}, at most {} late; {} in the last minute",
            status.loops.len(),
            lag(status.lag()),
            lag(status.worst_lag())
        ),
    ];
    for store in stores {
        let how = match (store.degraded, &store.why) {
            (false, _) => "well".to_owned(),
            (true, Some(why)) => format!("degraded: {why}"),
            (true, None) => "degraded".to_owned(),
        };
        lines.push(format!("store        {}: {how}", store.name));
    }
    lines
}

#[derive(Debug, Args)]
pub(super) struct ReloadArgs {
    #[command(flatten)]
    ask: AdminArgs,
}

impl ReloadArgs {
    /// Fails if everything is as it was.
    fn run(self) -> anyhow::Result<()> {
        let admin = self.ask.reach.admin()?;
        let (status, text) =
            admin.answer(&ApiRequest::post("/api/reload", &json!({})), PATIENCE)?;
        if self.ask.json && matches!(status, 200 | 422) {
            output::print_json(&text)?;
        }
        match status {
            200 if self.ask.json => Ok(()),
            200 => {
                let reloaded: ReloadReport = admin.read(&text)?;
                for warning in &reloaded.warnings {
                    anstream::eprintln!("warning: {}", visible(warning));
                }
                let generation = reloaded.generation;
                Ok(output::print(&format!(
                    "configuration {generation} is in force\n"
                ))?)
            }
            422 => {
                let refused: ReloadFailure = admin.read(&text)?;
                let mut lines: Vec<_> = refused.report.lines().map(visible).collect();
                if lines.is_empty() {
                    lines.extend(refused.problems.iter().map(|problem| visible(problem)));
                }
                if !self.ask.json && !lines.is_empty() {
                    anstream::eprintln!("{}\n", lines.join("\n"));
                }
                Err(anyhow::anyhow!(visible(&refused.error)))
            }
            status => Err(admin.refused(status, &text)),
        }
    }
}

/// Files are read, names are looked up, logs opened.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Args)]
pub(super) struct RefusalsArgs {
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
pub(super) fn last(limit: u16) -> ApiRequest {
    ApiRequest::get(format!("/api/refusals?limit={limit}"))
}

impl RefusalsArgs {
    fn run(self) -> anyhow::Result<()> {
        if self.follow {
            return self.follow(&self.ask.reach.admin()?);
        }
        self.ask.show(&last(self.limit), |answer: Refusals, page| {
            if answer.refusals.is_empty() {
                page.line("nobody was refused");
            }
            draw_refusal(&answer, page);
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
            draw_refusal(&before, &mut page);
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
                "skipped" => only_counted(admin.read::<SkippedRefusals>(data)?.skipped),
                _ => continue,
            };
            match self.json() {
                true => output::print_json(data)?,
                false => output::print(&format!("{line}\n"))?,
            }
        }
        anyhow::bail!("{} has ended the stream", admin.address())
    }

    fn json(&self) -> bool {
        self.ask.json
    }
}

fn draw_refusal(answer: &Refusals, page: &mut Output) {
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
pub(super) fn sentence(refusal: &Refusal, room: Option<usize>) -> String {
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
fn moment(millis: u64) -> String {
    let millis = i64::try_from(millis).unwrap_or_default();
    let moment = jiff::Timestamp::from_millisecond(millis).unwrap_or_default();
    let here = moment.to_zoned(jiff::tz::TimeZone::system());
    here.strftime("%H:%M:%S").to_string()
}

#[derive(Debug, Args)]
#[command(override_usage = "weir explain [OPTIONS] [METHOD] <URL>")]
pub(super) struct ExplainArgs {
    /// The request, as in GET http://example.com/login; GET if no method is given
    #[arg(value_name = "REQUEST", num_args = 1..=2, required = true)]
    request: Vec<String>,
    /// The address of the client; 127.0.0.1 if it is not given
    #[arg(long, value_name = "ADDR")]
    from: Option<String>,
    /// A header field it has; may be given several times
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = field)]
    headers: Vec<(String, String)>,
    /// The listener it comes to, where there are several, as in the file
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    #[command(flatten)]
    ask: AdminArgs,
}

impl ExplainArgs {
    fn run(self) -> anyhow::Result<()> {
        let (method, url) = match &self.request[..] {
            [method, url] => (method.as_str(), url.as_str()),
            [url] => ("GET", url.as_str()),
            _ => {
                return Err(
                    UsageError("which request? As in GET http://example.com/".to_owned()).into(),
                );
            }
        };
        let (host, path) = split(url).ok_or_else(|| {
            UsageError(format!(
                "`{url}` is no URL; expected one as in http://example.com/login"
            ))
        })?;
        let body = self.body(method, host.as_deref(), &path);
        self.ask.show(
            &ApiRequest::post("/api/explain", &body),
            |answer: Explanation, page| {
                let host = host.as_deref().unwrap_or_default();
                page.line(visible(&format!(
                    "{method} {host}{path} from {}",
                    answer.client
                )));
                draw_explanation(&answer, page);
                Ok(())
            },
        )
    }

    fn body(&self, method: &str, host: Option<&str>, path: &str) -> Value {
        let mut headers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, value) in &self.headers {
            headers.entry(name).or_default().push(value);
        }
        let mut body = json!({ "method": method, "path": path, "headers": headers });
        let given = [
            ("host", host),
            ("remote_addr", self.from.as_deref()),
            ("listen", self.listen.as_deref()),
        ];
        for (name, value) in given {
            if let Some(value) = value {
                body[name] = value.into();
            }
        }
        body
    }
}

/// The host, if one is named, and the path with its query.
fn split(url: &str) -> Option<(Option<String>, String)> {
    let whole = match url.starts_with('/') || url.contains("://") {
        true => url.to_owned(),
        false => format!("http://{url}"),
    };
    let uri: Uri = whole.parse().ok()?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let host = uri
        .authority()
        .map(|authority| authority.as_str().to_owned());
    Some((host, path.to_owned()))
}

/// `Name: value`
fn field(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once(':')
        .filter(|(name, _)| !name.trim().is_empty())
        .ok_or_else(|| format!("`{text}` is no header field; expected one as in `Name: value`"))?;
    Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
}

fn draw_explanation(answer: &Explanation, page: &mut Output) {
    let style = match is_stopped(answer) {
        true => BAD,
        false => verdict(&answer.verdict),
    };
    page.line(format!("{style}{}{style:#}", visible(&outcome(answer))));
    let name = |name: &str| if name.is_empty() { "(none)" } else { name }.to_owned();
    page.line(visible(&format!(
        "  by server {}, location {}, at {}; {}",
        name(&answer.server),
        name(&answer.location),
        answer.listen,
        answer.action
    )));
    // Of one that is stopped by them they are in the first line.
    for obstacle in answer.obstacles.iter().filter(|_| !is_stopped(answer)) {
        page.line(format!("  {DOUBTFUL}{}{DOUBTFUL:#}", visible(obstacle)));
    }
    if !answer.rules.is_empty() {
        page.line("");
        page.table(&rules(&answer.rules));
    }
}

/// Whether limits let it pass, now or later, and something else does not.
fn is_stopped(answer: &Explanation) -> bool {
    answer.verdict != "refuse" && !answer.obstacles.is_empty()
}

fn outcome(answer: &Explanation) -> String {
    let but = match is_stopped(answer) {
        true => format!(", but: {}", answer.obstacles.join("; ")),
        false => String::new(),
    };
    let why = match answer.reason.as_str() {
        "" => String::new(),
        why => format!(": {why}"),
    };
    match &*answer.verdict {
        "refuse" => {
            let status = answer
                .status
                .map_or_else(String::new, |status| format!(" with {status}"));
            let retry = answer.retry_after.map_or_else(String::new, |seconds| {
                format!("; a retry passes in {}", span(seconds))
            });
            format!("would be refused{status}{why}{retry}")
        }
        "delay" => format!("would wait for {}{why}{but}", span(answer.wait)),
        _ if is_stopped(answer) => format!("limits let it pass{but}"),
        _ => format!("would pass{why}"),
    }
}

fn rules(rules: &[RuleExplanation]) -> TextTable {
    let mut table = TextTable::new([
        Column::Left("VERDICT"),
        Column::Left("RULE"),
        Column::Left("KEY"),
        Column::Left("ALLOWS"),
        Column::Right("LEFT"),
        Column::Right("WAIT"),
    ]);
    for rule in rules {
        let left = rule
            .state
            .as_ref()
            .map(|state| format!("{} of {}", number(state.remaining), number(state.limit)));
        let wait = (rule.wait > 0.0).then(|| span(rule.wait));
        let word = match rule.dry_run {
            true => format!("({})", rule.verdict),
            false => rule.verdict.to_string(),
        };
        table.row_with(
            [
                TableCell::from(word).styled(verdict(&rule.verdict)),
                TableCell::from(format!("{} {}", rule.kind, rule.zone)),
                TableCell::from(rule.key.as_deref().unwrap_or("(none)")).styled(STRONG),
                TableCell::from(allows(rule)),
                TableCell::from(left.unwrap_or_else(|| "-".to_owned())),
                TableCell::from(wait.unwrap_or_else(|| "-".to_owned())),
            ],
            &rule.reason,
        );
    }
    table
}

fn allows(rule: &RuleExplanation) -> String {
    let parts = [
        rule.rate.clone(),
        rule.burst.map(|burst| format!("burst {}", requests(burst))),
        rule.limit.map(number),
        rule.r#override
            .as_ref()
            .map(|name| format!("override `{name}`")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_request_is_named_as_people_name_it() {
        let host = |name: &str| Some(name.to_owned());
        for (url, expected) in [
            (
                "http://example.com/a?b",
                (host("example.com"), "/a?b".to_owned()),
            ),
            (
                "https://example.com:8443",
                (host("example.com:8443"), "/".to_owned()),
            ),
            ("example.com/x", (host("example.com"), "/x".to_owned())),
            ("/only/a/path", (None, "/only/a/path".to_owned())),
        ] {
            assert_eq!(split(url), Some(expected), "{url}");
        }
        for url in ["", "http://", "http://a b/", "\n"] {
            assert_eq!(split(url), None, "{url}");
        }
    }

    #[test]
    fn a_field_has_a_name() {
        assert_eq!(
            field("X-Api-Key: a:b"),
            Ok(("x-api-key".into(), "a:b".into()))
        );
        assert_eq!(field("Empty:"), Ok(("empty".into(), String::new())));
        assert!(field(": x").is_err());
        assert!(field("nothing").is_err());
    }
}
