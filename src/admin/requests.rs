//! `/api/explain`: what would happen to a request, rule by rule; and `/api/refusals`: the last refusals with their
//! reasons, and the same as they come.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version, header};
use serde::Serialize;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::endpoints::{ApiCall, Endpoint};
use super::response::{self, ApiError, EventStream};
use crate::algorithm::VerdictKind;
use crate::api::{
    self, ExplainRequest, Explanation, HeaderLines, Refusal, Refusals, SkippedRefusals,
};
use crate::limits::RuleExplanation;
use crate::proxy::Generation;
use crate::telemetry::{self, REFUSALS, RefusalRecord};

pub(super) fn endpoints() -> Vec<Endpoint> {
    let stream = "The same as they come, as server-sent events: `refusal` with one of them, `skipped` with the number \
                  that was not recorded";
    vec![
        Endpoint::change_to(
            Method::POST,
            "/api/explain",
            "What would happen to this request, rule by rule; nothing is charged",
            explain,
        )
        .optional_body()
        .reads_body(),
        Endpoint::get(
            "/api/refusals",
            "The last refusals, with the reason for each",
            list,
        )
        .limit("The maximum number, the latest. Default: 100.")
        .query(
            "after",
            "Only those after the one with this id.",
            json!({ "type": "integer", "minimum": 0 }),
        ),
        Endpoint::raw("/api/refusals/stream", stream, |call| {
            Ok(response::events(follow(call)?))
        })
        .response(
            200,
            "The stream.",
            "text/event-stream",
            |_| json!({ "type": "string" }),
        )
        .error(503, "The maximum number of clients follows already."),
    ]
}

fn explain(call: &ApiCall, spec: ExplainRequest) -> Result<Explanation, ApiError> {
    let generation = &*call.generation;
    let listener = spec.listen.as_deref();
    let listener = listener.map(|text| listener_at(generation, text));
    let listener = listener.transpose()?;
    let remote = spec
        .remote_addr
        .unwrap_or_else(|| Ipv4Addr::LOCALHOST.into());
    let explanation = generation
        .explain(
            request(spec)?,
            SocketAddr::new(remote, 0),
            listener,
            call.now,
        )
        .map_err(|error| ApiError::bad(format!("no such request is served: {error}")))?;
    let rules = &explanation.rules;
    let enforced = || rules.iter().filter(|rule| !rule.dry_run);
    let mut refusals = enforced().filter(|rule| rule.evaluation.verdict == VerdictKind::Refuse);
    let first = refusals.clone().find(|rule| rule.evaluation.is_first);
    let refusal = first.or_else(|| refusals.next());
    let delay = enforced()
        .filter(|rule| matches!(rule.evaluation.verdict, VerdictKind::Delay(_)))
        .max_by_key(|rule| rule.evaluation.verdict.wait());
    let decisive = refusal.or(delay);
    Ok(Explanation {
        server: explanation.server.into(),
        listen: explanation.listen,
        location: explanation.location.into(),
        client: explanation.client,
        action: explanation.action,
        verdict: decisive
            .map_or("pass", |rule| rule.evaluation.verdict.as_str())
            .into(),
        status: refusal
            .and_then(|rule| rule.evaluation.status)
            .map(|status| status.as_u16()),
        wait: decisive.map_or(0.0, |rule| rule.evaluation.verdict.wait().as_secs_f64()),
        retry_after: refusal.and_then(|rule| seconds(rule.evaluation.retry_after)),
        reason: match decisive {
            Some(rule) => format!("zone `{}`: {}", rule.zone, rule.evaluation.reason),
            None if rules.is_empty() => "no limit applies here".to_owned(),
            None => "every limit lets it pass".to_owned(),
        },
        rules: rules.iter().map(shown).collect(),
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
        state: rule.key_status.as_ref().map(Into::into),
        verdict: rule.evaluation.verdict.as_str().into(),
        wait: rule.evaluation.verdict.wait().as_secs_f64(),
        retry_after: seconds(rule.evaluation.retry_after),
        reason: rule.evaluation.reason.clone(),
    }
}

fn seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| time.as_secs_f64())
}

/// The listener at an address, or at a port.
fn listener_at(generation: &Generation, text: &str) -> Result<usize, ApiError> {
    let listeners = generation.plan.listeners.iter();
    let mut addresses = listeners.map(|listener| listener.address.to_string());
    let port = format!(":{text}");
    let known = addresses.clone().take(20).collect::<Vec<_>>().join(", ");
    let found = addresses.position(|address| address == text || address.ends_with(&port));
    found.ok_or_else(|| {
        ApiError::bad(format!(
            "no listener at `{text}`; the listeners are {known}"
        ))
    })
}

/// The request as a client would send it.
fn request(spec: ExplainRequest) -> Result<Request<()>, ApiError> {
    let wrong = |what: &str, text: &str| ApiError::bad(format!("`{text}` is no {what}"));
    let method = spec.method.as_deref().unwrap_or("GET");
    let path = spec.path.as_deref().unwrap_or("/");
    let uri: Uri = path.parse().map_err(|_| wrong("path", path))?;
    if !path.starts_with('/') && uri.authority().is_none() && path != "*" {
        return Err(wrong("path", path));
    }
    let mut request = Request::new(());
    *request.method_mut() = method.parse().map_err(|_| wrong("method", method))?;
    let named = spec.host.is_some() || uri.authority().is_some();
    *request.uri_mut() = uri;
    for (name, lines) in &spec.headers {
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
    if let Some(host) = &spec.host {
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

fn list(call: &ApiCall) -> Result<Refusals, ApiError> {
    let after = call.query("after").map_or(Ok(0), |text| text.parse());
    let after = after.map_err(|_| ApiError::bad("`after` is the id of a refusal"))?;
    let refusals = REFUSALS.last(after, call.limit(100)?);
    Ok(Refusals {
        refusals: refusals.into_iter().map(refusal).collect(),
        skipped: REFUSALS.skipped(),
    })
}

/// A refusal as the API shows it.
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

fn follow(call: &ApiCall) -> Result<EventStream, ApiError> {
    let permit = Arc::clone(&call.state.streams).try_acquire_owned();
    let permit = permit.map_err(|_| {
        let error =
            "the maximum number of clients follows already; /api/refusals has no such limit";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, error)
    })?;
    let (sender, receiver) = mpsc::channel(1);
    let sending = Box::pin(send(sender, permit));
    tokio::spawn(telemetry::isolated(sending, |panic| {
        tracing::error!("stream of refusals panicked: {panic}");
    }));
    Ok(EventStream(receiver))
}

/// Looks for new refusals again and again, until the client disconnects.
async fn send(sender: mpsc::Sender<Bytes>, _permit: OwnedSemaphorePermit) {
    let latest = REFUSALS.last(0, 1);
    let mut after = latest.last().map_or(0, |record| record.id);
    let mut skipped = REFUSALS.skipped();
    let mut silence = Duration::ZERO;
    // Sent at once, so that the client sees that the stream works.
    let mut text = String::from("retry: 1000\n\n");
    loop {
        for record in REFUSALS.last(after, BATCH_MAX) {
            after = record.id;
            let fields = format!("event: refusal\nid: {after}");
            event(&mut text, &fields, &refusal(record));
        }
        let now = REFUSALS.skipped();
        if now > skipped {
            let skipped = now - std::mem::replace(&mut skipped, now);
            event(&mut text, "event: skipped", &SkippedRefusals { skipped });
        }
        if text.is_empty() && silence >= KEEPALIVE {
            text.push_str(": still there\n\n");
        }
        if text.is_empty() {
            silence += PAUSE;
        } else {
            silence = Duration::ZERO;
            let sent = sender.send(Bytes::from(std::mem::take(&mut text)));
            if sent.await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = sender.closed() => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

fn event(text: &mut String, fields: &str, data: &impl Serialize) {
    // Only numbers and texts: nothing of it can fail, and neither can writing to a string.
    let data = serde_json::to_string(data).unwrap_or_default();
    let _written = write!(text, "{fields}\ndata: {data}\n\n");
}

/// How many clients may follow the stream at once.
pub(super) const STREAMS_MAX: usize = 16;

/// How many refusals are sent at once.
const BATCH_MAX: usize = 1000;

/// Between two looks for new refusals.
const PAUSE: Duration = Duration::from_millis(200);

/// After so long without an event, a comment is sent.
const KEEPALIVE: Duration = Duration::from_secs(15);
