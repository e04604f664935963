//! `weir explain`: what would happen to a request, rule by rule.

use std::collections::BTreeMap;

use clap::Args;
use http::Uri;
use serde_json::{Value, json};

use super::AdminArgs;
use crate::cli::UsageError;
use crate::cli::admin::ApiRequest;
use crate::cli::admin::answers::{Explained, ExplainedRule};
use crate::cli::page::Output;
use crate::cli::table::{BAD, Column, DOUBTFUL, STRONG, TableCell, TextTable, verdict};
use crate::cli::words::{number, requests, span};
use crate::replay::plot::visible;

#[derive(Debug, Args)]
#[command(override_usage = "weir explain [OPTIONS] [METHOD] <URL>")]
pub(in crate::cli) struct ExplainArgs {
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
    pub(super) fn run(self) -> anyhow::Result<()> {
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
            &ApiRequest::post("/api/explain", body),
            |answer: Explained, page| {
                let host = host.as_deref().unwrap_or_default();
                page.line(visible(&format!(
                    "{method} {host}{path} from {}",
                    answer.client
                )));
                draw(&answer, page);
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

fn draw(answer: &Explained, page: &mut Output) {
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
fn is_stopped(answer: &Explained) -> bool {
    answer.verdict != "refuse" && !answer.obstacles.is_empty()
}

fn outcome(answer: &Explained) -> String {
    let but = match is_stopped(answer) {
        true => format!(", but: {}", answer.obstacles.join("; ")),
        false => String::new(),
    };
    let why = match answer.reason.as_str() {
        "" => String::new(),
        why => format!(": {why}"),
    };
    match answer.verdict.as_str() {
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

fn rules(rules: &[ExplainedRule]) -> TextTable {
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
            false => rule.verdict.clone(),
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

fn allows(rule: &ExplainedRule) -> String {
    let parts = [
        rule.rate.clone(),
        rule.burst.map(|burst| format!("burst {}", requests(burst))),
        rule.limit.map(number),
        rule.overridden_by
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
