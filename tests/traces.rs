//! Traces at the collector, and the trace context that backends get.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::{Client, Metrics, Origin, Weir, eventually, metric};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// A weir that tells `collector` of its requests.
fn traced(origin: &Origin, collector: &Origin, tracing: &str) -> Weir {
    let collector = collector.address();
    let interval = if tracing.contains("interval") {
        ""
    } else {
        "interval: 20ms,"
    };
    Weir::before(
        origin,
        &format!(
            "workers: 1
admin: {{ listen: ADMIN }}
log: {{ access: {{ path: '-', format: json }} }}
tracing: {{ otlp: 'http://{collector}', {interval} {tracing} }}
limit_req_zones:
  slow: {{ key: $server_name, size: 1m, rate: 1r/s }}
  strict: {{ key: $server_name, size: 1m, rate: 1r/d }}
upstreams: {{ app: {{ servers: [ ORIGIN ] }} }}
servers:
- listen: LISTEN
  server_name: a.example
  locations:
  - {{ path: /, proxy_pass: app }}
  - {{ path: /slow/, limit_req: {{ zone: slow, burst: 9 }}, proxy_pass: app }}
  - {{ path: /strict/, limit_req: {{ zone: strict }}, proxy_pass: app }}
"
        ),
    )
}

fn ask(weir: &Weir, path: &str, fields: &str) -> u16 {
    let mut client = Client::connect(weir.address());
    client.send(format!(
        "GET {path} HTTP/1.1\r\nHost: a.example\r\nUser-Agent: test\r\n{fields}Connection: close\r\n\r\n"
    ));
    client.response().status
}

/// Two requests of which the second has to wait.
fn ask_twice(weir: &Weir) {
    let fields = "HTTP/1.1\r\nHost: a.example\r\nUser-Agent: test\r\n\r\n";
    let mut client = Client::connect(weir.address());
    client.send(
        [1, 2]
            .map(|q| format!("GET /slow/ok?q={q} {fields}"))
            .concat(),
    );
    assert_eq!([(); 2].map(|()| client.response().status), [200; 2]);
}

/// A span as a collector reads it.
#[derive(Debug)]
struct Span {
    name: String,
    kind: u64,
    trace: String,
    id: String,
    parent: String,
    times: (u64, u64),
    failed: bool,
    attributes: BTreeMap<String, String>,
}

impl Span {
    fn read(value: &Value) -> Self {
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let time = |name: &str| text(name).parse().expect("nanoseconds");
        Self {
            name: text("name"),
            kind: value["kind"].as_u64().expect("a number"),
            trace: text("traceId"),
            id: text("spanId"),
            parent: text("parentSpanId"),
            times: (time("startTimeUnixNano"), time("endTimeUnixNano")),
            failed: value["status"]["code"] == 2,
            attributes: attributes(&value["attributes"]),
        }
    }

    fn says(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

fn attributes(list: &Value) -> BTreeMap<String, String> {
    let list = list.as_array().expect("a list");
    let read = |pair: &Value| {
        let value = &pair["value"];
        let text = value["stringValue"].as_str();
        let value = text.or_else(|| value["intValue"].as_str());
        let value = value.expect("a text, or a number as a text");
        let key = pair["key"].as_str().expect("a name");
        (key.to_owned(), value.to_owned())
    };
    list.iter().map(read).collect()
}

/// Every span the collector has been sent, once there are so many.
fn spans(collector: &Origin, count: usize) -> Vec<Span> {
    let read = || -> Vec<Span> {
        let seen = collector.seen().into_iter().filter(|seen| seen.complete);
        seen.flat_map(|seen| {
            let page: Value = serde_json::from_slice(&seen.body).expect("JSON");
            let scope = &page["resourceSpans"][0]["scopeSpans"][0];
            let spans = scope["spans"].as_array().expect("a list").clone();
            spans.iter().map(Span::read).collect::<Vec<_>>()
        })
        .collect()
    };
    eventually(&format!("{count} spans"), || read().len() >= count);
    let spans = read();
    assert_eq!(spans.len(), count, "{spans:#?}");
    spans
}

#[test]
fn a_trace_has_a_span_for_the_wait_and_the_attempt() {
    let (origin, collector) = (Origin::start(), Origin::start());
    let weir = traced(&origin, &collector, "sample: 100%");
    ask_twice(&weir);
    let spans = spans(&collector, 5);
    let request = &spans[2];
    assert_eq!(
        (request.name.as_str(), request.kind, request.parent.as_str()),
        ("GET", 2, "")
    );
    for (name, value) in [
        ("http.request.method", "GET"),
        ("http.response.status_code", "200"),
        ("url.scheme", "http"),
        ("url.path", "/slow/ok"),
        ("url.query", "q=2"),
        ("server.address", "a.example"),
        ("client.address", "127.0.0.1"),
        ("network.protocol.version", "1.1"),
        ("user_agent.original", "test"),
        ("http.response.body.size", "2"),
        ("weir.verdict", "delay"),
        ("weir.zone", "slow"),
    ] {
        assert_eq!(request.says(name), value, "{name}");
    }
    let (wait, tried) = (&spans[3], &spans[4]);
    for child in [wait, tried] {
        assert_eq!((&child.trace, &child.parent), (&request.trace, &request.id));
        assert!(child.times.0 >= request.times.0 && child.times.1 <= request.times.1);
        assert!(child.times.0 <= child.times.1 && !child.failed);
    }
    assert_eq!((wait.name.as_str(), wait.kind), ("limit wait", 1));
    assert_eq!(
        (wait.says("weir.zone"), wait.says("weir.verdict")),
        ("slow", "delay")
    );
    assert!(wait.times.1 > wait.times.0, "{wait:?}");
    assert_eq!((tried.name.as_str(), tried.kind), ("GET", 3));
    assert_eq!(tried.says("weir.upstream"), "app");
    assert_eq!(tried.says("weir.server"), origin.address().to_string());
    assert_eq!(
        tried.says("server.port"),
        origin.address().port().to_string()
    );
}

#[test]
fn log_backend_and_collector_hear_of_the_same_span() {
    let (origin, collector) = (Origin::start(), Origin::start());
    let weir = traced(
        &origin,
        &collector,
        "sample: 100%, service_name: edge, headers: { X-Team: a }",
    );
    ask_twice(&weir);
    let spans = spans(&collector, 5);
    let request = &spans[2];
    let line: Value = serde_json::from_str(&weir.access_line("q=2")).expect("JSON");
    assert_eq!(line["trace_id"], request.trace.as_str());
    assert_eq!(line["span_id"], request.id.as_str());
    assert_eq!(line["request_id"], request.says("weir.request_id"));
    assert_eq!(
        (&line["limit_verdict"], &line["limit_zone"]),
        (&"delay".into(), &"slow".into())
    );
    let told = format!("00-{}-{}-01", request.trace, request.id);
    assert_eq!(
        origin.seen()[1].head.get("traceparent"),
        Some(told.as_str())
    );
    let sent = &collector.seen()[0];
    assert_eq!(sent.head.word(1), "/v1/traces");
    assert_eq!(sent.head.get("content-type"), Some("application/json"));
    assert_eq!(sent.head.get("x-team"), Some("a"));
    let page: Value = serde_json::from_slice(&sent.body).expect("JSON");
    let resource = attributes(&page["resourceSpans"][0]["resource"]["attributes"]);
    assert_eq!(resource["service.name"], "edge");
    eventually("all are counted", || {
        metric(&weir, "weir_spans_exported_total") == 5
    });
    assert_eq!(metric(&weir, "weir_spans_dropped_total"), 0);
}

#[test]
fn spans_have_the_verdicts_and_errors_of_requests() {
    let (origin, collector) = (Origin::start(), Origin::start());
    let weir = traced(&origin, &collector, "sample: 100%");
    assert_eq!(ask(&weir, "/strict/ok", ""), 200);
    assert_eq!(ask(&weir, "/strict/ok", ""), 429);
    assert_eq!(ask(&weir, "/garbage", ""), 502);
    let spans = spans(&collector, 5);
    let [passed, _, refused, failed, tried] = &spans[..] else {
        panic!("{spans:#?}");
    };
    assert_eq!(
        (passed.says("weir.verdict"), passed.says("weir.zone")),
        ("pass", "")
    );
    assert_eq!(
        (refused.says("weir.verdict"), refused.says("weir.zone")),
        ("refuse", "strict")
    );
    // A client's doing is no error of the server's.
    assert!(!refused.failed);
    assert_eq!(refused.says("http.response.status_code"), "429");
    assert!(failed.failed && tried.failed);
    assert_eq!(
        (failed.says("error.type"), tried.says("error.type")),
        ("502", "502")
    );
    let metrics = Metrics::of(&weir);
    for span in [passed, refused] {
        let series = "weir_limit_verdicts_total{zone=\"strict\",verdict=\"VERDICT\"}";
        let series = series.replace("VERDICT", span.says("weir.verdict"));
        assert_eq!(metrics.value(&series), Some(1.0), "{series}");
    }
}

#[test]
fn a_client_that_is_part_of_a_trace_stays_in_it() {
    let (origin, collector) = (Origin::start(), Origin::start());
    let weir = traced(&origin, &collector, "sample: 0%");
    let state = "Tracestate: a=1,b=2\r\n";
    assert_eq!(
        ask(&weir, "/one", &format!("Traceparent: {PARENT}\r\n{state}")),
        200
    );
    let unsampled = PARENT.replace("-01", "-00");
    assert_eq!(
        ask(
            &weir,
            "/two",
            &format!("Traceparent: {unsampled}\r\n{state}")
        ),
        200
    );
    for malformed in [
        PARENT.replace('b', "B"),
        format!("{PARENT}-x"),
        "junk".to_owned(),
    ] {
        assert_eq!(
            ask(
                &weir,
                "/three",
                &format!("Traceparent: {malformed}\r\n{state}")
            ),
            200
        );
    }
    assert_eq!(
        ask(
            &weir,
            "/four",
            &format!("Traceparent: {PARENT}\r\nTracestate: no good\r\n")
        ),
        200
    );
    let spans = spans(&collector, 4);
    assert_eq!(
        (spans[0].trace.as_str(), spans[0].parent.as_str()),
        (TRACE, "b7ad6b7169203331")
    );
    let seen = origin.seen();
    let told = |index: usize, name: &str| seen[index].head.get(name).map(str::to_owned);
    let ours = format!("00-{TRACE}-{}-01", spans[0].id);
    assert_eq!(told(0, "traceparent"), Some(ours));
    assert_eq!(told(0, "tracestate").as_deref(), Some("a=1,b=2"));
    // Where we are not part of it, nothing is changed.
    assert_eq!(told(1, "traceparent"), Some(unsampled));
    assert_eq!(told(1, "tracestate").as_deref(), Some("a=1,b=2"));
    // What cannot be understood is not passed on: a new one begins.
    for index in 2..5 {
        let begun = told(index, "traceparent").expect("a context");
        assert!(
            begun.len() == 55 && !begun.contains(TRACE) && begun.ends_with("-00"),
            "{begun}"
        );
        assert_eq!(told(index, "tracestate"), None);
    }
    assert_eq!(told(5, "tracestate"), None);
}

#[test]
fn the_trusted_sources_of_client_addresses_are_a_setting() {
    let (origin, collector) = (Origin::start(), Origin::start());
    let fields = format!("Traceparent: {PARENT}\r\nTracestate: a=1\r\n");
    for (context, passes, joins) in [
        ("extract", Some(PARENT), true),
        ("ignore", Some(PARENT), false),
        ("inject", None, false),
    ] {
        let weir = traced(
            &origin,
            &collector,
            &format!("sample: 100%, context: {context}"),
        );
        let before = (origin.count(), collector.count());
        assert_eq!(ask(&weir, "/ok", &fields), 200);
        let told = origin.seen()[before.0]
            .head
            .get("traceparent")
            .map(str::to_owned);
        match passes {
            Some(passes) => assert_eq!(told.as_deref(), Some(passes), "{context}"),
            None => assert!(told.is_some_and(|told| !told.contains(TRACE)), "{context}"),
        }
        eventually("it is told", || {
            collector.count() > before.1 && collector.seen()[before.1].complete
        });
        let body = String::from_utf8(collector.seen()[before.1].body.clone()).expect("text");
        assert_eq!(body.contains(TRACE), joins, "{context}: {body}");
    }
}

#[test]
fn without_tracing_a_context_passes_as_it_came() {
    let origin = Origin::start();
    let weir = Weir::before(
        &origin,
        "log: { access: { path: '-', format: '$uri $trace_id $span_id $otel_trace_id' } }
servers: [{ listen: LISTEN, proxy_pass: 'http://ORIGIN' }]
",
    );
    assert_eq!(
        ask(
            &weir,
            "/one",
            &format!("Traceparent: {PARENT}\r\nTracestate: x y\r\n")
        ),
        200
    );
    assert_eq!(ask(&weir, "/two", ""), 200);
    let seen = origin.seen();
    assert_eq!(seen[0].head.get("traceparent"), Some(PARENT));
    assert_eq!(seen[0].head.get("tracestate"), Some("x y"));
    assert_eq!(seen[1].head.get("traceparent"), None);
    assert_eq!(weir.access_line("/one"), format!("/one {TRACE} - {TRACE}"));
    assert_eq!(weir.access_line("/two"), "/two - - -");
}

#[test]
fn a_collector_that_is_away_costs_spans_and_nothing_else() {
    let (origin, collector) = (Origin::start(), Origin::start());
    collector.behave("/status?code=400");
    let weir = traced(&origin, &collector, "sample: 100%");
    assert_eq!(ask(&weir, "/one", ""), 200);
    let dropped = "weir_spans_dropped_total{reason=\"export\"}";
    eventually("they are given up", || metric(&weir, dropped) == 2);
    weir.error_line("the collector does not take spans: it answers 400");
    // One that only has no time is asked again.
    collector.behave("/status?code=503");
    let before = collector.count();
    assert_eq!(ask(&weir, "/two", ""), 200);
    collector.await_count(before + 1);
    collector.recover();
    eventually("it takes them", || {
        metric(&weir, "weir_spans_exported_total") == 2
    });
    weir.error_line("the collector takes spans again");
}

#[test]
fn the_last_spans_are_sent_before_weir_ends() {
    let (origin, collector) = (Origin::start(), Origin::start());
    let mut weir = traced(&origin, &collector, "sample: 100%, interval: 10m");
    assert_eq!(ask(&weir, "/ok", ""), 200);
    weir.signal("QUIT");
    assert_eq!(weir.wait().code(), Some(0));
    assert_eq!(spans(&collector, 2)[0].says("url.path"), "/ok");
}
