//! What one decision costs on one thread: key, hash, lookup, arithmetic and the clock.

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use http::Request;
use weir::algorithm::Algorithm as _;
use weir::algorithm::AlgorithmParams;
use weir::algorithm::Cost;
use weir::algorithm::Delay;
use weir::algorithm::Excess;
use weir::algorithm::LeakyBucket;
use weir::algorithm::LimitSpec;
use weir::algorithm::Rate;
use weir::clock::Clock;
use weir::clock::Millis;
use weir::config::plan::AccessRules;
use weir::config::plan::BufferBounds;
use weir::config::plan::ClientSettings;
use weir::config::plan::ConnectionLimits;
use weir::config::plan::Content;
use weir::config::plan::CostSource;
use weir::config::plan::LimitHeaders;
use weir::config::plan::LimitRate;
use weir::config::plan::LimitSettings;
use weir::config::plan::LocationConf;
use weir::config::plan::Log;
use weir::config::plan::OnAmbiguousKey;
use weir::config::plan::OnEmptyKey;
use weir::config::plan::Plan;
use weir::config::plan::RefusalAction;
use weir::config::plan::ReqRule;
use weir::config::plan::ReqZone;
use weir::config::plan::Server;
use weir::config::plan::Template;
use weir::config::plan::Variable;
use weir::limits::Limits;
use weir::limits::Zones;
use weir::message::ClientConnection;
use weir::message::RemoteAddr;
use weir::message::RequestRecord;
use weir::message::Target;
use weir::store::{Key, RateZone};

criterion_group!(benches, arithmetic, store, limits);
criterion_main!(benches);

const BUCKET: LeakyBucket = LeakyBucket {
    rate: Rate::per_second(10_000),
    burst: Excess::requests(20),
    delay: Delay::Never,
};

const TERMS: LimitSpec = LimitSpec::LeakyBucket(BUCKET);

/// So much that one thread cannot use it up.
const PLENTY: Rate = Rate::per_second(Rate::MAX_PER_SECOND * 1000);

/// Enough clients that their buckets do not all sit in the nearest cache.
const CLIENTS: u32 = 10_000;

fn arithmetic(criterion: &mut Criterion) {
    let bucket = BUCKET.new_state(Millis(1_000));
    criterion.bench_function("the arithmetic alone", |bencher| {
        bencher.iter(|| BUCKET.peek(black_box(&bucket), black_box(Millis(1_234)), Cost::ONE));
    });
}

fn store(criterion: &mut Criterion) {
    let zone = RateZone::new("perip", 10 << 20, &TERMS, false);
    let clock = Clock::machine();
    let mut number = 0u32;
    let mut decide = |clients: u32| {
        number = number.wrapping_add(1);
        let key = Key::from_bytes(&(number.wrapping_mul(2_654_435_761) % clients).to_be_bytes());
        zone.charge(&key, clock.now(), Cost::ONE, &TERMS)
    };
    criterion.bench_function("key, hash, lookup and clock, one client", |bencher| {
        bencher.iter(|| decide(1));
    });
    criterion.bench_function("key, hash, lookup and clock, 10 000 clients", |bencher| {
        bencher.iter(|| decide(CLIENTS));
    });
}

fn limits(criterion: &mut Criterion) {
    let clock = Clock::machine();
    for (name, address, rate) in [
        ("a limit_req that passes, IPv4", "192.0.2.1:4711", PLENTY),
        (
            "a limit_req that passes, IPv6",
            "[2001:db8::1]:4711",
            PLENTY,
        ),
        ("a limit_req that refuses", "192.0.2.1:4711", BUCKET.rate),
    ] {
        let plan = Arc::new(plan(rate));
        let limits = Limits::compile(&plan.servers[0].fallback, &Zones::build(&plan));
        let mut record = record(&plan, address.parse().expect("an address"));
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| limits.ask_requests(&mut record, clock.now()));
        });
    }
}

fn record(plan: &Arc<Plan>, address: SocketAddr) -> RequestRecord {
    let request = Request::get("/").body(()).expect("a request");
    RequestRecord::begin(
        Arc::clone(plan),
        0,
        Arc::new(ClientConnection::new(
            RemoteAddr::Ip(address),
            None,
            1,
            Millis(0),
        )),
        request.into_parts().0,
        Target::default(),
        Millis(0),
    )
}

fn plan(rate: Rate) -> Plan {
    Plan {
        degrade_groups: Vec::new(),
        stale_size: 1 << 20,
        buffers: BufferBounds::default(),
        temp_paths: Vec::new(),
        workers: 1,
        shutdown_timeout: Duration::ZERO,
        log: Log {
            error: None,
            level: tracing::Level::ERROR,
            access: None,
        },
        admin: None,
        tracing: None,
        caps: ConnectionLimits::default(),
        maps: vec![],
        stores: vec![],
        req_zones: vec![ReqZone {
            name: "perip".into(),
            key: Template::variable(Variable::BinaryRemoteAddr),
            size: 10 << 20,
            algorithm: AlgorithmParams::LeakyBucket { rate },
            count_refused: false,
            store: None,
            on_empty_key: OnEmptyKey::Skip,
            on_ambiguous_key: OnAmbiguousKey::Refuse,
            ipv6_prefix: 128,
            overrides: vec![],
        }],
        conn_zones: vec![],
        upstreams: vec![],
        upstream_tls: vec![],
        listeners: vec![],
        source: Box::default(),
        servers: vec![Server {
            name: "front".into(),
            names: vec![],
            client: ClientSettings::default(),
            header_timeout: Duration::from_secs(60),
            tls: None,
            real_ip: None,
            max_head: 32 << 10,
            http2: true,
            max_streams: 128,
            max_resets: 256,
            locations: vec![],
            fallback: conf(rate),
        }],
    }
}

fn conf(rate: Rate) -> LocationConf {
    LocationConf {
        breaker: None,
        fallback: None,
        degrade_group: None,
        limit_req: vec![ReqRule {
            zone: 0,
            burst: if rate == PLENTY {
                Excess(u64::MAX)
            } else {
                BUCKET.burst
            },
            delay: BUCKET.delay,
            weight: CostSource::Fixed(Cost::ONE),
            action: RefusalAction::default(),
        }],
        shadow: vec![],
        limit_conn: vec![],
        limits: LimitSettings::default(),
        limit_headers: LimitHeaders::default(),
        access: AccessRules::default(),
        real_ip: None,
        client: ClientSettings::default(),
        bandwidth: LimitRate::default(),
        action: Content::NotFound,
    }
}
