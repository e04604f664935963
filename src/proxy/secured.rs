//! What TLS has to say against a request before anything else has: nginx's 495, 496, 497 and 421.

use super::Live;
use super::failure::Failure;
use crate::config::plan::{Carrier, VerifyClient};
use crate::message::tls::Verdict;
use crate::message::{Exchange, Tls};

/// Why this request may not go on, if it may not.
pub(super) fn objection(live: &Live, listener: usize, exchange: &Exchange) -> Option<Failure> {
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
