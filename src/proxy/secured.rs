//! What the connection has to say against a request before anything else has: nginx's 495, 496, 497 and 421.

use http::Version;

use super::Live;
use super::failure::Failure;
use crate::config::plan::{Carrier, Http2, Listener, VerifyClient};
use crate::message::tls::Verdict;
use crate::message::{Exchange, Tls};

/// Why this request may not go on, if it may not.
pub(super) fn objection(live: &Live, listener: usize, exchange: &Exchange) -> Option<Failure> {
    if exchange.head.version == Version::HTTP_2 && !speaks_http2(live, listener, exchange.server) {
        return Some(Failure::Http2Off);
    }
    let carrier = live
        .plan
        .listeners
        .get(listener)
        .map(|listener| listener.carrier);
    match (carrier, exchange.peer.tls()) {
        (Some(Carrier::Tls), None) => Some(Failure::PlainToTls),
        (_, Some(tls)) => certificate(live, listener, exchange, tls),
        (_, None) => None,
    }
}

/// Whether HTTP/2 reaches a server over a connection of this listener. Connections on which it was begun before a reload
/// turned it off for the whole listener are served to their end.
fn speaks_http2(live: &Live, listener: usize, server: usize) -> bool {
    let plan = &live.plan;
    let Some(Listener { default_server, .. }) = plan.listeners.get(listener) else {
        return true;
    };
    plan.http2(listener, server) == Http2::On || plan.http2(listener, *default_server) == Http2::Off
}

fn certificate(live: &Live, listener: usize, exchange: &Exchange, tls: &Tls) -> Option<Failure> {
    let verify = exchange.server().tls.as_ref()?.verify_client;
    if verify == VerifyClient::Off {
        return None;
    }
    // Who was not asked for a certificate by the server it named must not reach another one that asks.
    if live.named(listener, tls.server_name.as_deref()) != Some(exchange.server) {
        return Some(Failure::Misdirected);
    }
    match (verify, tls.verdict()) {
        (_, Some(Verdict::Good)) => None,
        (VerifyClient::OptionalNoCa, Some(Verdict::Unknown(_))) => None,
        (_, Some(Verdict::Unknown(reason))) => Some(Failure::BadCertificate((*reason).into())),
        (_, Some(Verdict::Bad(reason))) => Some(Failure::BadCertificate(reason.clone())),
        (VerifyClient::On, None) => Some(Failure::NoCertificate),
        (_, None) => None,
    }
}
