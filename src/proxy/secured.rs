//! What the connection has to say against a request before anything else has: nginx's 495, 496, 497 and 421.

use http::Version;

use super::Generation;
use super::failure::ProxyError;
use crate::config::plan::{Carrier, Http2, Listener, VerifyClient};
use crate::message::tls::CertificateStatus;
use crate::message::{RequestRecord, TlsInfo};

/// Why this request may not go on, if it may not.
pub(super) fn objection(
    live: &Generation,
    listener: usize,
    exchange: &RequestRecord,
) -> Option<ProxyError> {
    if exchange.head.version == Version::HTTP_2 && !speaks_http2(live, listener, exchange.server) {
        return Some(ProxyError::Http2Off);
    }
    let carrier = live
        .plan
        .listeners
        .get(listener)
        .map(|listener| listener.carrier);
    match (carrier, exchange.peer.tls()) {
        (Some(Carrier::Tls), None) => Some(ProxyError::PlainToTls),
        (_, Some(tls)) => certificate(live, listener, exchange, tls),
        (_, None) => None,
    }
}

/// Whether HTTP/2 reaches a server over a connection of this listener. Connections on which it was begun before a reload
/// turned it off for the whole listener are served to their end.
fn speaks_http2(live: &Generation, listener: usize, server: usize) -> bool {
    let plan = &live.plan;
    let Some(Listener { default_server, .. }) = plan.listeners.get(listener) else {
        return true;
    };
    plan.http2(listener, server) == Http2::On || plan.http2(listener, *default_server) == Http2::Off
}

fn certificate(
    live: &Generation,
    listener: usize,
    exchange: &RequestRecord,
    tls: &TlsInfo,
) -> Option<ProxyError> {
    let verify = exchange.server().tls.as_ref()?.verify_client;
    if verify == VerifyClient::Off {
        return None;
    }
    // Who was not asked for a certificate by the server it named must not reach another one that asks.
    if live.named(listener, tls.server_name.as_deref()) != Some(exchange.server) {
        return Some(ProxyError::Misdirected);
    }
    match (verify, tls.verdict()) {
        (_, Some(CertificateStatus::Good)) => None,
        (VerifyClient::OptionalNoCa, Some(CertificateStatus::Unknown(_))) => None,
        (_, Some(CertificateStatus::Unknown(reason))) => {
            Some(ProxyError::BadCertificate((*reason).into()))
        }
        (_, Some(CertificateStatus::Bad(reason))) => {
            Some(ProxyError::BadCertificate(reason.clone()))
        }
        (VerifyClient::On, None) => Some(ProxyError::NoCertificate),
        (_, None) => None,
    }
}
