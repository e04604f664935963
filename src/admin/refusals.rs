//! `/api/refusals`: the last refusals with their reasons, and the same as they come.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::keys::number;
use super::reply::{ApiError, EventStream};
use super::route::parameter;
use crate::telemetry::{REFUSALS, RefusalRecord, panics};

#[derive(Debug, Serialize)]
pub(super) struct RefusalRow {
    refusals: Vec<RefusalRecord>,
    skipped: u64,
}

/// `GET /api/refusals`
pub(super) fn list(query: Option<&str>) -> Result<RefusalRow, ApiError> {
    let after = parameter(query, "after").map_or(Ok(0), |text| text.parse());
    let after = after.map_err(|_| ApiError::bad("`after` is the id of a refusal"))?;
    Ok(RefusalRow {
        refusals: REFUSALS.last(after, number(query, "limit", 100)?),
        skipped: REFUSALS.skipped(),
    })
}

/// `GET /api/refusals/stream`
pub(super) fn stream(listeners: &Arc<Semaphore>) -> Result<EventStream, ApiError> {
    let seat = Arc::clone(listeners).try_acquire_owned().map_err(|_| {
        let why = "as many listen already as may; /api/refusals can be asked by anybody";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why)
    })?;
    let (sender, receiver) = mpsc::channel(1);
    let telling = Box::pin(tell(sender, seat));
    tokio::spawn(panics::isolated(telling, |panic| {
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
            let json = serde_json::to_string(&refused).unwrap_or_default();
            let _written = write!(text, "event: refusal\nid: {after}\ndata: {json}\n\n");
        }
        let now = REFUSALS.skipped();
        if now > skipped {
            let more = now - std::mem::replace(&mut skipped, now);
            let _written = write!(text, "event: skipped\ndata: {{\"skipped\":{more}}}\n\n");
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
