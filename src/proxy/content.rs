//! A request that becomes a tunnel.
//!
//! It stays one request: limited once when it came, in its place of a `limit_conn` for as long as the tunnel lasts,
//! and one line in the log when it is over.
//!
//! Takes a request's body in before a backend is asked, so that a slow client holds none.
//!
//! A body that is there in one piece stays that piece. What is longer is copied to memory and beyond that to a file. Where
//! neither has room, what was taken in is sent on and the rest streams behind it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{Method, Response, header};
use http_body::{Body as _, Frame};

use super::context::RequestContext;
use super::error::ProxyError;
use super::location::Location;
use crate::clock::Clock;
use crate::config::plan::{HttpVersion, ProxyPass, RequestBuffering};
use crate::message::{IncomingBody, RequestBody, RequestRecord, ResponseBody, Tunnel, headers};
use crate::spool::{BufferPool, SpoolWriter, WriteSpace};
use crate::telemetry::{COUNTERS, SlowPart};
use crate::upstream::breaker::BreakerOpen;
use crate::upstream::{Error, Upgrade, UpgradedConnection, Upstream, UpstreamBody};
use crate::{message, upstream};

/// The backend's end of a tunnel, until its 101 is on the way to the client.
#[derive(Debug)]
pub(super) struct PendingUpgrade {
    far: Box<UpgradedConnection>,
    idle_timeout: Duration,
    send_timeout: Duration,
}

/// What the client would rather speak, if this location lets it ask.
// With a body, nobody could say for sure where that ends and the other protocol begins.
pub(super) fn asked(
    exchange: &RequestRecord,
    forward: &ProxyPass,
    upload: &RequestBody,
) -> Option<Upgrade> {
    if !forward.settings.proxy_upgrade || !upload.is_none() {
        return None;
    }
    Upgrade::asked(&exchange.head).filter(|_| exchange.head.method != Method::CONNECT)
}

/// The 101 for the client; its other end waits with the visit.
pub(super) fn agree(
    visit: &mut RequestContext,
    mut head: Parts,
    far: Box<UpgradedConnection>,
    forward: &ProxyPass,
) -> Response<ResponseBody<UpstreamBody>> {
    let agreed = head.headers.get(header::UPGRADE).cloned();
    headers::clean_response(&mut head.headers);
    if let Some(agreed) = agreed {
        upstream::restore_upgrade(&mut head.headers, agreed);
    }
    visit.stopwatch = Some(far.stopwatch());
    visit.agreed = Some(PendingUpgrade {
        far,
        idle_timeout: forward.settings.proxy_read_timeout,
        send_timeout: forward.settings.proxy_send_timeout,
    });
    Response::from_parts(head, ResponseBody::whole(Bytes::new()))
}

/// Hands the tunnel to the connection, which begins it when the 101 has left.
pub(super) fn hand_over(agreed: PendingUpgrade, visit: Box<RequestContext>) {
    let peer = Arc::clone(&visit.exchange.peer);
    let grace = visit.exchange.plan.shutdown_timeout;
    peer.line.open_tunnel(Box::new(Tunnel {
        far: agreed.far,
        idle_timeout: agreed.idle_timeout,
        send_timeout: agreed.send_timeout,
        // A little less: its end is told and logged, the end of the process is not.
        grace: grace - (grace / 10).min(FAREWELL),
        tail: visit,
    }));
}

/// How long before the end of everything a tunnel is ended.
const FAREWELL: Duration = Duration::from_millis(250);

/// How a request's body is taken in where it is sent on like this; `None` where it streams.
// Over HTTP/2 a request may go on for as long as its response does.
pub(super) fn buffers(forward: &ProxyPass) -> Option<&RequestBuffering> {
    let buffering = forward.buffering.request.as_ref();
    buffering.filter(|_| forward.version == HttpVersion::One)
}

/// Whether a request could be sent on at all, as far as that is known before its body: nobody is made to send one in vain.
pub(super) fn may_be_sent(
    site: &Location,
    upstream: &Upstream,
    clock: &Clock,
) -> Result<(), ProxyError> {
    if let Some(guard) = &site.guard {
        let now = clock.now();
        if guard.breaker.open_until().is_some_and(|until| now < until) {
            let retry_after = guard.breaker.wait(now).unwrap_or_default();
            return Err(BreakerOpen { retry_after }.into());
        }
    }
    is_available(site, upstream, clock)
}

/// Whether an upstream can be asked, where somebody else would be if not.
pub(super) fn is_available(
    site: &Location,
    upstream: &Upstream,
    clock: &Clock,
) -> Result<(), ProxyError> {
    if site.asks_others()
        && let Some(retry_after) = upstream.unavailable(clock.now())
    {
        return Err(Error::Unavailable { retry_after }.into());
    }
    Ok(())
}

/// A request's body, whole where it is buffered.
pub(super) async fn take_in(
    visit: &mut RequestContext,
    site: &Location,
    forward: &ProxyPass,
    unread: &mut Option<IncomingBody>,
) -> Result<RequestBody, ProxyError> {
    let upload = site.upload(visit, forward, unread);
    let upload = match buffers(forward) {
        Some(plan) => read(upload, plan, &visit.bounds())
            .await
            .inspect_err(count)?,
        None => upload,
    };
    if site.asks_others() {
        visit.spare_upload = upload.again();
    }
    Ok(upload)
}

fn count(error: &message::RequestBodyError) {
    if let message::RequestBodyError::Slow = error {
        COUNTERS.give_up(SlowPart::Body);
    }
}

async fn read(
    mut upload: RequestBody,
    plan: &RequestBuffering,
    bounds: &Arc<BufferPool>,
) -> Result<RequestBody, message::RequestBodyError> {
    let Some(first) = next(&mut upload, None).await? else {
        return Ok(upload.into_piece(Bytes::new()));
    };
    if upload.is_end_stream() {
        return Ok(upload.into_piece(first));
    }
    // The end of a chunked body shows only when it is asked for more.
    let Some(second) = next(&mut upload, None).await? else {
        return Ok(upload.into_piece(first));
    };
    let mut writer = SpoolWriter::new(plan, bounds);
    writer.push(first);
    writer.push(second);
    while !upload.is_end_stream()
        && poll_fn(|context| writer.poll_room(context)).await == WriteSpace::Free
    {
        match next(&mut upload, Some(&mut writer)).await? {
            Some(data) => writer.push(data),
            None => break,
        }
    }
    poll_fn(|context| writer.poll_written(context)).await;
    Ok(upload.into_stored(Box::new(writer.finish())))
}

/// The next piece; `None` at the end. Trailers are dropped, as nginx does: what has a length has no trailers.
async fn next(
    upload: &mut RequestBody,
    mut writer: Option<&mut SpoolWriter>,
) -> Result<Option<Bytes>, message::RequestBodyError> {
    loop {
        let frame = poll_fn(|context| {
            // What has been written is let go of, however long the client takes.
            if let Some(writer) = &mut writer {
                let _written = writer.poll_written(context);
            }
            Pin::new(&mut *upload).poll_frame(context)
        });
        match frame.await.transpose()?.map(Frame::into_data) {
            None => return Ok(None),
            Some(Ok(data)) if !data.is_empty() => return Ok(Some(data)),
            Some(_) => {}
        }
    }
}
