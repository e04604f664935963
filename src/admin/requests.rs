//! `/api/explain`: what would happen to a request, rule by rule; and `/api/refusals`: the last refusals with their
//! reasons, and the same as they come.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, StatusCode, Uri, Version, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::endpoints::{ApiError, EventStream, parameter};
use super::keys::number;
use super::{endpoints, keys};
use crate::algorithm::VerdictKind;
use crate::api::{
    self, ExplainRequest, Explanation, HeaderLines, Refusal, Refusals, SkippedRefusals,
};
use crate::clock::Millis;
use crate::limits::RuleExplanation;
use crate::proxy::Generation;
use crate::telemetry::{self, REFUSALS, RefusalRecord};

/// `POST /api/explain`
pub(super) fn explain(
    generation: &Generation,
    body: &[u8],
    now: Millis,
) -> Result<Explanation, ApiError> {
    let asked: ExplainRequest = endpoints::parse(body)?;
    let listener = asked
        .listen
        .as_deref()
        .map(|text| listener(generation, text));
    let listener = listener.transpose()?;
    let remote = asked
        .remote_addr
        .unwrap_or_else(|| Ipv4Addr::LOCALHOST.into());
    let request = request(asked)?;
    let explanation = generation
        .explain(request, SocketAddr::new(remote, 0), listener, now)
        .map_err(|why| ApiError::bad(format!("no such request is answered: {why}")))?;
    let rules = &explanation.rules;
    let refusals = || {
        let refusing = rules
            .iter()
            .filter(|rule| rule.verdict == VerdictKind::Refuse);
        refusing.filter(|rule| !rule.dry_run)
    };
    let refusal = refusals()
        .find(|rule| rule.is_first)
        .or_else(|| refusals().next());
    let delaying = rules.iter().filter(|rule| !rule.dry_run);
    let delay = delaying
        .filter(|rule| matches!(rule.verdict, VerdictKind::Delay(_)))
        .max_by_key(|rule| rule.verdict.wait());
    let decisive = refusal.or(delay);
    let by = |rule: &RuleExplanation| format!("zone `{}`: {}", rule.zone, rule.reason);
    Ok(Explanation {
        server: explanation.server.into(),
        listen: explanation.listen,
        location: explanation.location.into(),
        client: explanation.client,
        action: explanation.action,
        verdict: decisive.map_or("pass", |rule| rule.verdict.as_str()).into(),
        status: refusal.map(|rule| rule.status.as_u16()),
        wait: decisive.map_or(0.0, |rule| rule.verdict.wait().as_secs_f64()),
        retry_after: refusal.and_then(|rule| seconds(rule.retry_after)),
        reason: match (decisive, rules.is_empty()) {
            (Some(rule), _) => by(rule),
            (None, true) => "no limit holds here".to_owned(),
            (None, false) => "every limit lets it pass".to_owned(),
        },
        rules: explanation.rules.iter().map(shown).collect(),
        obstacles: explanation.obstacles,
    })
}

fn shown(rule: &RuleExplanation) -> api::RuleExplanation {
    api::RuleExplanation {
        kind: rule.kind.as_str().into(),
        zone: rule.zone.to_string(),
        key: rule.key.clone(),
        r#override: rule.overridden_by.clone(),
        rate: rule.rate.clone(),
        burst: rule.burst,
        limit: rule.limit.map(u64::from),
        dry_run: rule.dry_run,
        state: rule.key_status.as_ref().map(keys::status),
        verdict: rule.verdict.as_str().into(),
        wait: rule.verdict.wait().as_secs_f64(),
        retry_after: seconds(rule.retry_after),
        reason: rule.reason.clone(),
    }
}

fn seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| time.as_secs_f64())
}

/// The listener at an address, or at a port.
fn listener(generation: &Generation, text: &str) -> Result<usize, ApiError> {
    let listeners = || {
        generation
            .plan
            .listeners
            .iter()
            .map(|it| it.address.to_string())
    };
    let port = format!(":{text}");
    let found = listeners().position(|address| address == text || address.ends_with(&port));
    found.ok_or_else(|| {
        let known: Vec<_> = listeners().take(20).collect();
        ApiError::bad(format!(
            "nobody listens on `{text}`; there is {}",
            known.join(", ")
        ))
    })
}

/// The request as it would have come.
fn request(asked: ExplainRequest) -> Result<Request<()>, ApiError> {
    let wrong = |what: &str, text: &str| ApiError::bad(format!("`{text}` is no {what}"));
    let method = asked.method.as_deref().unwrap_or("GET");
    let path = asked.path.as_deref().unwrap_or("/");
    let uri: Uri = path.parse().map_err(|_| wrong("path", path))?;
    if !path.starts_with('/') && uri.authority().is_none() && path != "*" {
        return Err(wrong("path", path));
    }
    let mut request = Request::new(());
    *request.method_mut() = method.parse().map_err(|_| wrong("method", method))?;
    let named = asked.host.is_some() || uri.authority().is_some();
    *request.uri_mut() = uri;
    for (name, lines) in &asked.headers {
        let field: HeaderName = name.parse().map_err(|_| wrong("header field", name))?;
        let values = match lines {
            HeaderLines::One(value) => std::slice::from_ref(value),
            HeaderLines::Several(values) => values,
        };
        for text in values {
            let value = HeaderValue::from_str(text).map_err(|_| wrong("value of a field", text))?;
            request.headers_mut().append(&field, value);
        }
    }
    if let Some(host) = &asked.host {
        let host = HeaderValue::from_str(host).map_err(|_| wrong("host", host))?;
        request.headers_mut().insert(header::HOST, host);
    }
    // Only HTTP/1.0 may come without a host.
    let hosted = named || request.headers().contains_key(header::HOST);
    *request.version_mut() = match hosted && request.headers().contains_key(header::HOST) {
        true => Version::HTTP_11,
        false if hosted => Version::HTTP_2,
        false => Version::HTTP_10,
    };
    Ok(request)
}

/// `GET /api/refusals`
pub(super) fn list(query: Option<&str>) -> Result<Refusals, ApiError> {
    let after = parameter(query, "after").map_or(Ok(0), |text| text.parse());
    let after = after.map_err(|_| ApiError::bad("`after` is the id of a refusal"))?;
    let refusals = REFUSALS.last(after, number(query, "limit", 100)?);
    Ok(Refusals {
        refusals: refusals.into_iter().map(refusal).collect(),
        skipped: REFUSALS.skipped(),
    })
}

/// A refusal as it is shown.
fn refusal(record: RefusalRecord) -> Refusal {
    Refusal {
        id: record.id,
        time: record.time,
        kind: record.kind.into(),
        zone: record.zone.into(),
        key: record.key.map(Into::into),
        reason: record.reason.into(),
        detail: record.detail.into(),
        excess: record.excess,
        retry_after: record.retry_after,
        status: record.status,
        dry_run: record.dry_run,
        client: record.client.into(),
        server: record.server.into(),
        method: record.method.into(),
        host: record.host.into(),
        path: record.path.into(),
    }
}

/// `GET /api/refusals/stream`
pub(super) fn stream(listeners: &Arc<Semaphore>) -> Result<EventStream, ApiError> {
    let seat = Arc::clone(listeners).try_acquire_owned().map_err(|_| {
        let why = "as many listen already as may; /api/refusals can be asked by anybody";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why)
    })?;
    let (sender, receiver) = mpsc::channel(1);
    let telling = Box::pin(tell(sender, seat));
    tokio::spawn(telemetry::isolated(telling, |panic| {
        tracing::error!("stream of refusals panicked: {panic}");
    }));
    Ok(EventStream(receiver))
}

/// Looks again and again, until nobody reads.
async fn tell(sender: mpsc::Sender<Bytes>, _seat: OwnedSemaphorePermit) {
    let latest = REFUSALS.last(0, 1);
    let mut after = latest.last().map_or(0, |refused| refused.id);
    let mut skipped = REFUSALS.skipped();
    let mut silence = Duration::ZERO;
    // At once, so that whoever listens knows that it works.
    let mut text = String::from("retry: 1000\n\n");
    loop {
        for refused in REFUSALS.last(after, MOST) {
            after = refused.id;
            // Only numbers and texts: there is nothing in it that could fail.
            let json = serde_json::to_string(&refusal(refused)).unwrap_or_default();
            let _written = write!(text, "event: refusal\nid: {after}\ndata: {json}\n\n");
        }
        let now = REFUSALS.skipped();
        if now > skipped {
            let more = now - std::mem::replace(&mut skipped, now);
            let json =
                serde_json::to_string(&SkippedRefusals { skipped: more }).unwrap_or_default();
            let _written = write!(text, "event: skipped\ndata: {json}\n\n");
        }
        if text.is_empty() && silence >= STILL_THERE {
            text.push_str(": still there\n\n");
        }
        if text.is_empty() {
            silence += PAUSE;
        } else {
            silence = Duration::ZERO;
            let told = sender.send(Bytes::from(std::mem::take(&mut text)));
            if told.await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = sender.closed() => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

/// How many may listen at once.
pub(super) const LISTENERS: usize = 16;

/// How many are told at once.
const MOST: usize = 1000;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// After so long without a word, one is said.
const STILL_THERE: Duration = Duration::from_secs(15);
