//! The commands about requests: `weir refusals` shows the last refused requests, `weir explain` what would happen to one.

use std::collections::BTreeMap;

use anstyle::Style;
use clap::Args;
use http::Uri;
use serde_json::json;
use unicode_width::UnicodeWidthStr as _;

use crate::api::{Explanation, Refusal, Refusals, RuleExplanation, SkippedRefusals};
use crate::cli::client::{AdminArgs, ApiRequest};
use crate::cli::output::{
    self, BAD, DOUBTFUL, FAINT, Output, STRONG, TableCell, TextTable, cut, number, requests, span,
    usage_error, verdict,
};
use crate::text::visible;

#[derive(Debug, Args)]
pub(in crate::cli) struct RefusalsArgs {
    /// Continue with new refusals as they come
    #[arg(short, long)]
    follow: bool,
    /// The maximum number, the latest
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    #[command(flatten)]
    admin: AdminArgs,
}

/// The request for the last refusals.
pub(in crate::cli) fn last(limit: u16) -> ApiRequest {
    ApiRequest::get(format!("/api/refusals?limit={limit}"))
}

impl RefusalsArgs {
    pub(in crate::cli) fn run(self) -> anyhow::Result<()> {
        if self.follow {
            return self.follow();
        }
        self.admin
            .show(&last(self.limit), |last: Refusals, output| {
                if last.refusals.is_empty() {
                    output.line("no refusals");
                }
                draw_refusals(&last, output);
            })
    }

    /// The last refusals, and then new ones. With --json, a line for each.
    fn follow(&self) -> anyhow::Result<()> {
        let admin = self.admin.options.client()?;
        // The stream first: what comes while the last ones are fetched is not missed.
        let stream = admin.stream(&ApiRequest::get("/api/refusals/stream"))?;
        let before: Refusals = admin.fetch(&last(self.limit))?;
        let seen = before.refusals.last().map_or(0, |refusal| refusal.id);
        if !self.admin.json {
            let mut output = Output::new();
            draw_refusals(&before, &mut output);
            output.print()?;
        }
        let mut event = String::new();
        for line in stream {
            let line = line.map_err(|error| anyhow::anyhow!("lost {}: {error}", admin.address))?;
            if let Some(name) = line.strip_prefix("event:") {
                name.trim().clone_into(&mut event);
            }
            let Some(data) = line.strip_prefix("data:").map(str::trim) else {
                continue;
            };
            let line = match event.as_str() {
                "refusal" => {
                    let refusal: Refusal = admin.parse(data)?;
                    if refusal.id <= seen {
                        continue;
                    }
                    sentence(&refusal, None)
                }
                "skipped" => only_counted(admin.parse::<SkippedRefusals>(data)?.skipped),
                _ => continue,
            };
            match self.admin.json {
                true => output::print_json(data)?,
                false => output::print(&format!("{line}\n"))?,
            }
        }
        anyhow::bail!("{} has ended the stream", admin.address)
    }
}

fn draw_refusals(last: &Refusals, output: &mut Output) {
    for refusal in &last.refusals {
        output.line(sentence(refusal, None));
    }
    if last.skipped > 0 {
        output.line(only_counted(last.skipped));
    }
}

fn only_counted(skipped: u64) -> String {
    let skipped = number(skipped);
    format!("{FAINT}{skipped} more were only counted{FAINT:#}")
}

/// A refusal in a line: time, zone, key, reason, status and request. The request is cut where the line exceeds `room`.
pub(in crate::cli) fn sentence(refusal: &Refusal, room: Option<usize>) -> String {
    let refused = verdict("refuse");
    let (time, zone) = (moment(refusal.time), visible(&refusal.zone));
    let key = visible(refusal.key.as_deref().unwrap_or("no key"));
    let detail = visible(&refusal.detail);
    let (status, style) = match refusal.dry_run {
        true => ("dry run".to_owned(), DOUBTFUL),
        false => (refusal.status.to_string(), Style::new()),
    };
    let from = match refusal.key.as_deref() == Some(&refusal.client) {
        true => String::new(),
        false => format!(" from {}", refusal.client),
    };
    let (method, host, path) = (&refusal.method, &refusal.host, &refusal.path);
    let request = visible(&format!("{method} {host}{path}{from}"));
    let before = format!("{time} {zone} {key}: {detail} → {status} ").width();
    let room = room.map_or(usize::MAX, |room| room.saturating_sub(before));
    let request = cut(&request, room);
    format!(
        "{time} {zone} {STRONG}{key}{STRONG:#}: {refused}{detail}{refused:#} → {style}{status}{style:#} {request}"
    )
}

/// The local time of day.
fn moment(millis: u64) -> String {
    let millis = i64::try_from(millis).unwrap_or_default();
    let moment = jiff::Timestamp::from_millisecond(millis).unwrap_or_default();
    let here = moment.to_zoned(jiff::tz::TimeZone::system());
    here.strftime("%H:%M:%S").to_string()
}

#[derive(Debug, Args)]
#[command(override_usage = "weir explain [OPTIONS] [METHOD] <URL>")]
pub(in crate::cli) struct ExplainArgs {
    /// The request, such as GET http://example.com/login; the method is GET by default
    #[arg(value_name = "REQUEST", num_args = 1..=2, required = true)]
    request: Vec<String>,
    /// Address of the client; 127.0.0.1 by default
    #[arg(long, value_name = "ADDR")]
    from: Option<String>,
    /// A header field; may be given several times
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = field)]
    headers: Vec<(String, String)>,
    /// Address of the listener as in the configuration, if there are several
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
}

impl ExplainArgs {
    pub(in crate::cli) fn run(self) -> anyhow::Result<()> {
        let (method, url) = match &self.request[..] {
            [url] => ("GET", url.as_str()),
            [method, url, ..] => (method.as_str(), url.as_str()),
            [] => ("GET", ""),
        };
        let (host, path) = split(url).ok_or_else(|| {
            usage_error(format!(
                "`{url}` is not a URL; expected one such as http://example.com/login"
            ))
        })?;
        let mut headers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, value) in &self.headers {
            headers.entry(name).or_default().push(value);
        }
        // As texts: the server checks the address, and says what is wrong with it.
        let mut body = json!({ "method": method, "path": path, "headers": headers });
        for (name, value) in [
            ("host", &host),
            ("remote_addr", &self.from),
            ("listen", &self.listen),
        ] {
            if let Some(value) = value {
                body[name] = value.as_str().into();
            }
        }
        let request = ApiRequest::with_body("POST", "/api/explain", &body);
        self.admin
            .show(&request, |explanation: Explanation, output| {
                let (host, client) = (host.unwrap_or_default(), &explanation.client);
                output.line(visible(&format!("{method} {host}{path} from {client}")));
                draw_explanation(&explanation, output);
            })
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
        .ok_or_else(|| format!("`{text}` is not a header field; expected `Name: value`"))?;
    Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
}

fn draw_explanation(explanation: &Explanation, output: &mut Output) {
    let stopped = is_stopped(explanation);
    let style = match stopped {
        true => BAD,
        false => verdict(&explanation.verdict),
    };
    output.line(format!(
        "{style}{}{style:#}",
        visible(&outcome(explanation))
    ));
    let name = |name: &str| if name.is_empty() { "(none)" } else { name }.to_owned();
    output.line(visible(&format!(
        "  by server {}, location {}, at {}; {}",
        name(&explanation.server),
        name(&explanation.location),
        explanation.listen,
        explanation.action
    )));
    // Where they stop the request, they are in the first line.
    for obstacle in explanation.obstacles.iter().filter(|_| !stopped) {
        output.line(format!("  {DOUBTFUL}{}{DOUBTFUL:#}", visible(obstacle)));
    }
    if !explanation.rules.is_empty() {
        output.line("");
        output.table(&rules(&explanation.rules));
    }
}

/// Whether limits let the request pass, now or later, and something else stops it.
fn is_stopped(explanation: &Explanation) -> bool {
    explanation.verdict != "refuse" && !explanation.obstacles.is_empty()
}

fn outcome(explanation: &Explanation) -> String {
    let but = match is_stopped(explanation) {
        true => format!(", but: {}", explanation.obstacles.join("; ")),
        false => String::new(),
    };
    let why = match explanation.reason.as_str() {
        "" => String::new(),
        why => format!(": {why}"),
    };
    match &*explanation.verdict {
        "refuse" => {
            let status = explanation
                .status
                .map_or_else(String::new, |status| format!(" with {status}"));
            let retry = explanation.retry_after.map_or_else(String::new, |seconds| {
                format!("; a retry passes in {}", span(seconds))
            });
            format!("would be refused{status}{why}{retry}")
        }
        "delay" => format!("would wait for {}{why}{but}", span(explanation.wait)),
        _ if is_stopped(explanation) => format!("limits let it pass{but}"),
        _ => format!("would pass{why}"),
    }
}

fn rules(rules: &[RuleExplanation]) -> TextTable {
    let mut table = TextTable::new("VERDICT  RULE  KEY  ALLOWS  >LEFT  >WAIT");
    for rule in rules {
        let left = rule.state.as_ref().map_or_else(
            || "-".to_owned(),
            |state| format!("{} of {}", number(state.remaining), number(state.limit)),
        );
        let wait = match rule.wait > 0.0 {
            true => span(rule.wait),
            false => "-".to_owned(),
        };
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
                TableCell::from(left),
                TableCell::from(wait),
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
    fn a_url_is_split_into_host_and_path() {
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
