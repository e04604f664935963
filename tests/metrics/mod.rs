//! `/metrics`: the format, the manual, and the number of series.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::redis::Redis;
use crate::support::{Client, Metrics, Origin, Weir, eventually, get, pipelined};

/// A weir that has everything there is a metric for, and what it stands on.
struct Full {
    weir: Weir,
    _redis: Redis,
    _origin: Origin,
}

impl Full {
    fn start() -> Self {
        let (redis, origin) = (Redis::start(), Origin::start());
        let weir = Weir::before(&origin, &FULL.replace("REDIS", &redis.url()));
        // Of each kind one: asked, delayed, refused, made to wait for a place.
        for path in ["/ok", "/ok", "/slow/ok", "/slow/ok", "/shared/ok", "/none"] {
            get(weir.address(), path);
        }
        Self {
            weir,
            _redis: redis,
            _origin: origin,
        }
    }

    fn metrics(&self) -> Metrics {
        Metrics::of(&self.weir)
    }
}

const FULL: &str = "workers: 2
admin: { listen: ADMIN }
log: { access: { path: '-', format: json } }
tracing: { otlp: 'http://127.0.0.1:9', sample: 100% }
stores: { fleet: { redis: 'REDIS' } }
limit_req_zones:
  one: { key: $binary_remote_addr, size: 1m, rate: 1r/m }
  slow: { key: $host$uri$http_x_key, size: 1m, rate: 100r/s }
  shared: { key: $http_x_key, size: 1m, rate: 100r/s, store: fleet }
limit_conn_zones: { places: { key: $http_x_key, size: 1m } }
degrade_groups: { extras: auto }
upstreams:
  app:
    queue: { size: 10, timeout: 1s }
    retry_budget: { share: 20% }
    health_check: { path: /ok, interval: 50ms }
    breaker: {}
    servers: [ 'ORIGIN' ]
  named: { resolve: 10s, servers: [ 'localhost:9' ] }
servers:
- listen: [ LISTEN, LISTEN2 ]
  limit_conn: { zone: places, limit: 5, queue: { size: 5, timeout: 1s } }
  locations:
  - { path: /, limit_req: { zone: one, burst: 100, nodelay: true }, shadow: { zone: one }, proxy_pass: app }
  - { path: /slow/, limit_req: { zone: slow, burst: 9, penalty: 1s }, proxy_pass: app }
  - path: /shared/
    limit_req: { zone: shared, burst: 9 }
    proxy_pass: app
    breaker: {}
    degrade_group: extras
    fallback: { stale: 10m }
  - { path: /named/, proxy_pass: named }
";

/// The name of a family and its labels, those of the page's own making left out.
fn shapes(metrics: &Metrics) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let mut shapes = BTreeMap::new();
    for sample in &metrics.samples {
        let family = metrics.families.get_key_value(&sample.name);
        let (family, kind) = family.unwrap_or_else(|| {
            let parts = ["_bucket", "_sum", "_count"];
            let mut names = parts
                .iter()
                .filter_map(|part| sample.name.strip_suffix(part));
            let found = names.find_map(|name| metrics.families.get_key_value(name));
            found.expect("read() has looked")
        });
        let labels = sample.labels.keys().filter(|label| *label != "le");
        let shape = (kind.clone(), labels.cloned().collect());
        let known = shapes.insert(family.clone(), shape.clone());
        assert!(known.is_none_or(|known| known == shape), "{sample:?}");
    }
    shapes
}

/// What the manual's table says there is.
fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let text = std::fs::read_to_string(page).expect("the page on metrics");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    let shape = |row: &str| {
        let (series, rest) = row.split_once('`')?;
        let kind = rest.split('|').nth(1)?.trim();
        if !["counter", "gauge", "histogram"].contains(&kind) {
            return None;
        }
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.trim_end_matches('}').split(',');
        let labels = labels.filter(|label| !label.is_empty());
        let labels = labels.map(str::to_owned).collect();
        Some((name.to_owned(), (kind.to_owned(), labels)))
    };
    rows.filter_map(shape).collect()
}

#[test]
fn the_manual_lists_exactly_the_metrics_that_exist() {
    let full = Full::start();
    let (there, told) = (shapes(&full.metrics()), documented());
    let missing: Vec<_> = there
        .iter()
        .filter(|(name, it)| told.get(*name) != Some(it))
        .collect();
    let extra: Vec<_> = told
        .iter()
        .filter(|(name, it)| there.get(*name) != Some(it))
        .collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "docs/metrics.md\nlacks {missing:#?}\nand has {extra:#?}"
    );
}

/// The metrics that a query asks for.
fn asked(query: &str) -> impl Iterator<Item = &str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("weir_") || word.starts_with("process_"))
}

fn shipped(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("conf")
        .join(name);
    std::fs::read_to_string(path).expect("a file that is shipped")
}

/// Dashboard and alerts use only metrics that exist.
#[test]
fn shipped_dashboards_and_alerts_use_existing_metrics() {
    let full = Full::start();
    let metrics = full.metrics();
    let names: BTreeSet<_> = metrics.samples.iter().map(|sample| &*sample.name).collect();
    let dashboard: serde_json::Value =
        serde_json::from_str(&shipped("grafana/weir.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("a list");
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    let queries = targets
        .flatten()
        .map(|target| target["expr"].as_str().expect("a query"));
    let alerts = shipped("prometheus/alerts.yaml");
    let mut count = 0;
    for query in queries.chain([&*alerts]) {
        for name in asked(query) {
            assert!(names.contains(name), "there is no metric {name}: {query}");
            count += 1;
        }
    }
    assert!(count > 40, "only {count}");
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(
        ids.len(),
        panels.len(),
        "each panel has a number of its own"
    );
}

#[test]
fn prometheus_takes_the_alerts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/prometheus");
    let said = Command::new("promtool")
        .args(["check", "rules"])
        .arg(folder.join("alerts.yaml"))
        .output()
        .expect("promtool");
    let text = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
    assert!(said.status.success(), "{text}");
}

#[test]
fn prometheus_own_tool_finds_nothing_to_say() {
    let full = Full::start();
    let mut tool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool");
    let mut input = tool.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut input, full.metrics().page.as_bytes()).expect("it reads");
    drop(input);
    let said = tool.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
    assert!(said.status.success() && text.is_empty(), "{text}");
}

/// A client can say what it likes, in as many ways as it likes: there are as many series as before, and none of its words.
#[test]
fn no_series_comes_from_what_a_client_sends() {
    let full = Full::start();
    let ask = |number: usize| {
        let mut client = Client::connect(full.weir.address());
        client.send(format!(
            "XYZZY{number} /slow/ok?xyzzy{number} HTTP/1.1\r\nHost: xyzzy{number}\r\nX-Key: xyzzy{number}\r\n\
             User-Agent: xyzzy{number}\r\nTraceparent: xyzzy{number}\r\nCookie: xyzzy={number}\r\nConnection: close\r\n\r\n"
        ));
        client.response();
        let mut client = Client::connect(full.weir.address());
        client.send(format!("xyzzy{number}\r\n\r\n"));
        client.response();
    };
    ask(0);
    let series = || -> BTreeSet<String> {
        let samples = full.metrics().samples.into_iter();
        samples
            .map(|sample| format!("{} {:?}", sample.name, sample.labels))
            .collect()
    };
    let before = series();
    for number in 1..50 {
        ask(number);
    }
    let keys = || full.metrics().value("weir_zone_keys{zone=\"slow\"}");
    assert!(keys().is_some_and(|keys| keys >= 50.0), "they were counted");
    assert_eq!(series(), before);
    assert!(!full.metrics().page.to_lowercase().contains("xyzzy"));
}

#[test]
fn each_listener_counts_its_own() {
    let weir = Weir::start(
        "admin: { listen: ADMIN }
servers: [{ listen: [ LISTEN, LISTEN2 ], http2: on, return: 204 }]
",
    );
    let listener = |address: std::net::SocketAddr| format!("listener=\"{address}\"");
    let (one, two) = (listener(weir.address()), listener(weir.second_address()));
    let value = |name: &str, labels: &str| {
        let value = Metrics::of(&weir).value(&format!("{name}{{{labels}}}"));
        value.unwrap_or_else(|| panic!("no {name}{{{labels}}}"))
    };
    // The one that looked whether weir was up.
    eventually("it has come and gone", || {
        let metrics = Metrics::of(&weir);
        let now = |name: &str| metrics.value(&format!("{name}{{{one}}}"));
        now("weir_connections_accepted_total") > Some(0.0)
            && now("weir_connections_active") == Some(0.0)
    });
    let before = value("weir_connections_accepted_total", &one);
    let mut kept = Client::connect(weir.address());
    kept.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(kept.response().status, 204);
    kept.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!(kept.response().status, 204);
    let mut bad = Client::connect(weir.second_address());
    bad.send("not HTTP at all\r\n\r\n");
    assert_eq!(bad.response().status, 400);
    assert_eq!(value("weir_connections_accepted_total", &one) - before, 1.0);
    assert_eq!(value("weir_connections_active", &one), 1.0);
    assert_eq!(value("weir_connections_accepted_total", &two), 1.0);
    let versions = ["1.0", "1.1", "2"].map(|version| {
        value(
            "weir_http_requests_total",
            &format!("{one},version=\"{version}\""),
        )
    });
    assert_eq!(versions, [1.0, 1.0, 0.0]);
    assert_eq!(value("weir_http_requests_total", &two), 0.0);
    let refused = |of: &str| value("weir_heads_refused_total", &format!("{of},status=\"400\""));
    assert_eq!((refused(&one), refused(&two)), (0.0, 1.0));
}

#[test]
fn slow_requests_are_in_the_histograms() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "admin: { listen: ADMIN }
limit_req_zones: { paced: { key: $host, size: 1m, rate: 1r/s } }
limit_conn_zones: { places: { key: $host, size: 1m } }
servers:
- listen: LISTEN
  locations:
  - { path: /, proxy_pass: 'http://ORIGIN' }
  - { path: /paced/, limit_req: { zone: paced, burst: 9 }, return: 204 }
",
    );
    for path in ["/ok", "/slow?ms=150"] {
        get(weir.address(), path);
    }
    pipelined(weir.address(), ["/paced/"; 2]);
    let metrics = Metrics::of(&weir);
    let value = |series: &str| {
        metrics
            .value(series)
            .unwrap_or_else(|| panic!("no {series}"))
    };
    assert_eq!(value("weir_limit_delay_seconds_count{zone=\"paced\"}"), 1.0);
    let waited = value("weir_limit_delay_seconds_sum{zone=\"paced\"}");
    assert!(waited > 0.0 && waited <= 1.0, "{waited}");
    let asked = value("weir_upstream_requests_total");
    assert_eq!(value("weir_upstream_latency_seconds_count"), asked);
    assert_eq!(asked, 2.0, "{:?}", origin.seen());
    let took = value("weir_upstream_latency_seconds_sum");
    assert!(took >= 0.15, "{took}");
    assert!(value("weir_loop_busy_seconds_total") > 0.0);
    eventually("the loops are watched", || {
        let count = Metrics::of(&weir).value("weir_loop_lag_seconds_count{loop=\"0\"}");
        count.is_some_and(|count| count > 0.0)
    });
}
