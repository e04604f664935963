//! A request that becomes a tunnel.
//!
//! It stays one request: limited once when it came, in its place of a `limit_conn` for as long as the tunnel lasts,
//! and one line in the log when it is over.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{Method, Response, header};

use super::visit::RequestContext;
use crate::config::plan::{ProxyPass, Upgrades};
use crate::message::headers::{self, Upgrade};
use crate::message::{RequestBody, RequestRecord, ResponseBody, Tunnel};
use crate::upstream::{UpgradedConnection, UpstreamBody};

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
    if forward.upgrades == Upgrades::Off || !upload.is_none() {
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
        headers::restore_upgrade(&mut head.headers, agreed);
    }
    visit.stopwatch = Some(far.stopwatch());
    visit.agreed = Some(PendingUpgrade {
        far,
        idle_timeout: forward.read_timeout,
        send_timeout: forward.send_timeout,
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
