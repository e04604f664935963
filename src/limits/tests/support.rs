//! A plan, a request and rules, as short as a test wants to write them.

use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, Request};

use crate::algorithm::{AlgorithmParams, Cost, Delay, Excess, Rate};
use crate::clock::{Clock, Millis};
use crate::config::plan::{
    ConnRule, ConnZone, Content, CostSource, LocationConf, OnAmbiguousKey, OnEmptyKey, Plan,
    RefusalAction, ReqRule, ReqZone, Template, Variable,
};
use crate::limits::{Limits, Permit, Refusal, Zones};
use crate::message::{ClientConnection, RemoteAddr, RequestRecord};

pub(in crate::limits) fn req_zone(name: &str, milli_per_second: u64) -> ReqZone {
    ReqZone {
        name: name.into(),
        key: Template::variable(Variable::BinaryRemoteAddr),
        size: 32 << 10,
        algorithm: AlgorithmParams::LeakyBucket {
            rate: Rate::per_second(milli_per_second),
        },
        count_refused: false,
        store: None,
        on_empty_key: OnEmptyKey::Skip,
        on_ambiguous_key: OnAmbiguousKey::Refuse,
        ipv6_prefix: 128,
        overrides: vec![],
    }
}

pub(in crate::limits) fn conn_zone(name: &str) -> ConnZone {
    ConnZone {
        name: name.into(),
        key: Template::variable(Variable::BinaryRemoteAddr),
        size: 32 << 10,
        store: None,
        on_empty_key: OnEmptyKey::Skip,
        on_ambiguous_key: OnAmbiguousKey::Refuse,
        ipv6_prefix: 128,
    }
}

/// `nodelay`.
pub(in crate::limits) fn req_rule(zone: usize, burst: u32) -> ReqRule {
    ReqRule {
        zone,
        burst: Excess::requests(burst),
        delay: Delay::Never,
        weight: CostSource::Fixed(Cost::ONE),
        action: RefusalAction::default(),
    }
}

/// Without `nodelay`.
pub(in crate::limits) fn delaying(zone: usize, burst: u32) -> ReqRule {
    ReqRule {
        delay: Delay::After(Excess(0)),
        ..req_rule(zone, burst)
    }
}

pub(in crate::limits) fn conn_rule(zone: usize, limit: u32) -> ConnRule {
    ConnRule {
        zone,
        limit,
        queue: None,
        action: RefusalAction::default(),
    }
}

pub(in crate::limits) fn conf(req: &[ReqRule], conn: &[ConnRule]) -> LocationConf {
    LocationConf {
        limit_req: req.to_vec(),
        limit_conn: conn.to_vec(),
        ..crate::message::testing::conf(Content::NotFound)
    }
}

pub(in crate::limits) fn limits(plan: &Plan, req: &[ReqRule], conn: &[ConnRule]) -> Limits {
    Limits::compile(&conf(req, conn), &Zones::build(plan))
}

/// Admits a request that comes now.
pub(in crate::limits) async fn admit(
    limits: &Limits,
    record: &mut RequestRecord,
    clock: &Clock,
) -> Result<Permit, Refusal> {
    let mut permit = Permit::default();
    limits
        .admit(record, &mut permit, clock.now(), clock)
        .await?;
    Ok(permit)
}

pub(in crate::limits) fn plan(req_zones: Vec<ReqZone>, conn_zones: Vec<ConnZone>) -> Plan {
    Plan {
        req_zones,
        conn_zones,
        servers: vec![crate::message::testing::server("front")],
        ..crate::message::testing::plan()
    }
}

pub(in crate::limits) fn header(name: &str, value: &str) -> (HeaderName, HeaderValue) {
    (name.parse().unwrap(), value.parse().unwrap())
}

/// The template of a request header.
pub(in crate::limits) fn key(name: &str) -> Template {
    Template::variable(Variable::Http(name.parse().unwrap()))
}

pub(in crate::limits) fn record(headers: &[(HeaderName, HeaderValue)]) -> RequestRecord {
    exchange_from("127.0.0.1", headers)
}

pub(in crate::limits) fn exchange_from(
    address: &str,
    headers: &[(HeaderName, HeaderValue)],
) -> RequestRecord {
    let mut request = Request::get("/r10/f?k=b").body(()).unwrap();
    request.headers_mut().extend(headers.iter().cloned());
    let remote = RemoteAddr::Ip(SocketAddr::new(address.parse().unwrap(), 4711));
    RequestRecord::begin(
        Arc::new(plan(vec![], vec![])),
        0,
        Arc::new(ClientConnection::new(remote, None, 1, Millis(0))),
        request.into_parts().0,
        crate::message::Target::default(),
        Millis(0),
    )
}
