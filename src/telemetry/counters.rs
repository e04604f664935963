//! Counters of the whole process, of its listeners and of its event loops, and what the system knows of it.
//!
//! A listener is known by its address, and so goes on counting when the configuration is reloaded. What the system knows is
//! read from `/proc` at a scrape, under the names of Prometheus's own libraries; without `/proc`, it is left out.
//!
//! An event loop that is late delays every request on it, and no measurement of a request shows it: a request's time starts
//! when its loop has come to read it. So each loop sets a timer ten times a second and measures how late it fires. A loop
//! that does too much at once, or a machine without a free core, shows here first.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{StatusCode, Version};
use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeMetrics};
use tokio::time::Instant;

use super::metrics::{Exposition, Histogram, PerLoop, count, labels, metrics};

metrics! {
    /// The metrics of [`Counters`].
    pub PROCESS_WIDE_METRICS:
    REQUESTS_TOTAL = counter("weir_requests_total", ["status"], "Requests that are over, by the class of the answer's status; none where the client got no answer.");
    CONNECTIONS_REFUSED_TOTAL = counter("weir_connections_refused_total", ["cap"], "Connections closed at once because there were as many as allowed.");
    CONNECTIONS_EVICTED_TOTAL = counter("weir_connections_evicted_total", [], "Idle connections closed to make room for others.");
    PREBUILT_MISMATCHES_TOTAL = counter("weir_prebuilt_mismatches_total", [], "Responses that hyper wrote in an unknown way; one at start switches prebuilt responses off.");
    SLOW_CLIENTS_TOTAL = counter("weir_slow_clients_total", ["with"], "Clients given up because they fell behind the least rate for what they sent or took.");
}

/// The counters of this process.
pub static COUNTERS: Counters = Counters::new();

/// Counters of requests, connections and slow clients.
#[derive(Debug)]
pub struct Counters {
    cells: PerLoop<ProcessCell>,
}

#[derive(Debug, Default)]
struct ProcessCell {
    requests: [AtomicU64; STATUSES.len()],
    refused_connections: [AtomicU64; LimitedBy::LABELS.len()],
    evicted: AtomicU64,
    mismatched: AtomicU64,
    slow: [AtomicU64; SlowPart::LABELS.len()],
}

labels! {
    /// The limit that a connection was refused by.
    LimitedBy:
    /// `max_connections`
    All = "max_connections",
    /// `max_connections_per_address`
    Address = "max_connections_per_address",
}

labels! {
    /// What a client was too slow with.
    SlowPart:
    /// Receiving the response.
    Answer = "answer",
    /// Sending the request body.
    Body = "body",
}

impl Counters {
    /// Counters at zero.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            cells: PerLoop::new(),
        }
    }

    /// Counts a finished request; `None` where it had no response.
    pub fn finish_request(&self, status: Option<StatusCode>) {
        let class = status.map_or(0, |status| usize::from(status.as_u16() / 100));
        // Statuses of unknown classes count as no response.
        count(&self.cells.mine().requests[if class < STATUSES.len() { class } else { 0 }]);
    }

    /// Counts a connection that was closed at once because of a limit.
    pub fn refuse_connection(&self, limit: LimitedBy) {
        count(&self.cells.mine().refused_connections[limit as usize]);
    }

    /// Counts an idle connection that was closed to make room for another.
    pub fn evict_connection(&self) {
        count(&self.cells.mine().evicted);
    }

    /// Counts a response that hyper wrote in a way that prebuilt responses cannot follow.
    pub fn count_prebuilt_mismatch(&self) {
        count(&self.cells.mine().mismatched);
    }

    /// Counts a client that was disconnected because it fell behind the minimum rate.
    pub fn slow_client(&self, slow: SlowPart) {
        count(&self.cells.mine().slow[slow as usize]);
    }

    /// Finished requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.by_status().map(|(_, count)| count).sum()
    }

    /// Finished requests by the class of the response's status.
    pub fn by_status(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let classes = STATUSES.iter().enumerate();
        classes.map(|(class, status)| (*status, self.cells.sum(|cell| &cell.requests[class])))
    }

    /// Writes all counters.
    pub fn describe(&self, page: &mut Exposition) {
        let cells = &self.cells;
        page.samples(&REQUESTS_TOTAL, &[], &STATUSES, cells, |cell| {
            &cell.requests
        });
        let (limits, slow) = (LimitedBy::LABELS, SlowPart::LABELS);
        page.samples(&CONNECTIONS_REFUSED_TOTAL, &[], limits, cells, |cell| {
            &cell.refused_connections
        });
        let evicted = cells.sum(|cell| &cell.evicted);
        page.sample(&CONNECTIONS_EVICTED_TOTAL, &[], evicted);
        let mismatched = cells.sum(|cell| &cell.mismatched);
        page.sample(&PREBUILT_MISMATCHES_TOTAL, &[], mismatched);
        page.samples(&SLOW_CLIENTS_TOTAL, &[], slow, cells, |cell| &cell.slow);
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

/// By class: the index is the status's first digit.
const STATUSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

metrics! {
    /// The metrics of [`ListenerCounters`].
    pub LISTENER_METRICS:
    CONNECTIONS_ACCEPTED_TOTAL = counter("weir_connections_accepted_total", ["listener"], "Client connections accepted.");
    CONNECTIONS_ACTIVE = gauge("weir_connections_active", ["listener"], "Client connections open now.");
    HTTP_REQUESTS_TOTAL = counter("weir_http_requests_total", ["listener", "version"], "Requests that came, by their version of HTTP.");
    HEADS_REFUSED_TOTAL = counter("weir_heads_refused_total", ["listener", "status"], "Request heads that were malformed (400), late (408), too large (413, 414, 431) or of another version (505).");
    TLS_HANDSHAKES_TOTAL = counter("weir_tls_handshakes_total", ["listener", "result"], "TLS handshakes with clients: with a new session, with one taken up again, or failed.");
    PROXY_HEADERS_REFUSED_TOTAL = counter("weir_proxy_headers_refused_total", ["listener", "reason"], "Connections closed because their PROXY header was malformed, late or not whole.");
    HTTP2_FLOODS_TOTAL = counter("weir_http2_floods_total", ["listener", "kind"], "HTTP/2 connections closed because the client sent too much of what costs it nothing.");
}

/// Counters of one listener; dropped with the last handle to them.
#[derive(Debug)]
pub struct ListenerCounters {
    name: Box<str>,
    cells: PerLoop<ListenerCell>,
}

/// An open connection; counted as active until dropped.
// Not `Clone`: a connection closes once.
#[derive(Debug)]
pub struct ActiveConnection(Arc<ListenerCounters>);

#[derive(Debug, Default)]
struct ListenerCell {
    accepted: AtomicU64,
    closed: AtomicU64,
    requests: [AtomicU64; VERSIONS.len()],
    refused_heads: [AtomicU64; REFUSED_STATUSES.len()],
    handshakes: [AtomicU64; HandshakeResult::LABELS.len()],
    floods: [AtomicU64; FLOODS.len()],
    refused_proxy_headers: [AtomicU64; ProxyHeaderFailure::LABELS.len()],
}

labels! {
    /// Why a connection was closed without a PROXY header.
    ProxyHeaderFailure:
    /// The connection ended first.
    Broken = "broken",
    /// Other bytes came.
    Malformed = "malformed",
    /// It did not come in time.
    TimedOut = "timeout",
}

labels! {
    /// The result of a TLS handshake with a client.
    HandshakeResult:
    /// No session.
    Failed = "failed",
    /// A new session.
    Full = "full",
    /// A resumed session.
    Resumed = "resumed",
}

impl ListenerCounters {
    /// The counters of the listener at this address; the same ones as long as there is a handle to them.
    #[must_use]
    pub fn at(address: &str) -> Arc<Self> {
        let mut known = KNOWN.lock();
        if let Some(listener) = known.iter().find(|listener| *listener.name == *address) {
            return Arc::clone(listener);
        }
        let listener = Arc::new(Self {
            name: address.into(),
            cells: PerLoop::new(),
        });
        known.push(Arc::clone(&listener));
        listener
    }

    /// Counts a connection, active until the returned guard is dropped.
    #[must_use]
    pub fn connect(self: &Arc<Self>) -> ActiveConnection {
        count(&self.cells.mine().accepted);
        ActiveConnection(Arc::clone(self))
    }

    /// Counts a request whose headers were read.
    #[inline]
    pub fn request(&self, version: Version) {
        let index = match version {
            Version::HTTP_2 => 2,
            Version::HTTP_11 => 1,
            _ => 0,
        };
        count(&self.cells.mine().requests[index]);
    }

    /// Counts headers that were refused: 408 (too late), 431 (too large) or 400 (not HTTP).
    pub fn refuse_head(&self, status: StatusCode) {
        let index = REFUSED_STATUSES
            .iter()
            .position(|refused| *refused == status.as_str());
        count(&self.cells.mine().refused_heads[index.unwrap_or(0)]);
    }

    /// Counts a TLS handshake with a client.
    pub fn handshake(&self, handshake: HandshakeResult) {
        count(&self.cells.mine().handshakes[handshake as usize]);
    }

    /// Counts an HTTP/2 connection that was closed because its client sent too many frames of this kind.
    pub fn flood(&self, kind: &str) {
        if let Some(kind) = FLOODS.iter().position(|known| *known == kind) {
            count(&self.cells.mine().floods[kind]);
        }
    }

    /// Counts a connection without the PROXY header that it has to begin with.
    pub fn refuse_proxy_header(&self, why: ProxyHeaderFailure) {
        count(&self.cells.mine().refused_proxy_headers[why as usize]);
    }

    /// Writes the counters of all listeners.
    pub fn describe_all(page: &mut Exposition) {
        let mut known = KNOWN.lock();
        known.retain(|listener| Arc::strong_count(listener) > 1);
        for listener in known.iter() {
            listener.describe(page);
        }
    }

    /// Connections of all listeners: accepted so far, and open now.
    #[must_use]
    pub fn connections() -> (u64, u64) {
        let known = KNOWN.lock();
        let each = known.iter().map(|it| (it.accepted(), it.active()));
        each.fold((0, 0), |(all, open), (accepted, active)| {
            (all + accepted, open + active)
        })
    }

    /// Connections accepted so far.
    fn accepted(&self) -> u64 {
        self.cells.sum(|cell| &cell.accepted)
    }

    /// Connections open now.
    fn active(&self) -> u64 {
        // Closed first: one that opens and closes between the two readings then counts as active, never as minus one.
        let closed = self.cells.sum(|cell| &cell.closed);
        self.accepted().saturating_sub(closed)
    }

    fn describe(&self, page: &mut Exposition) {
        let listener = &*self.name;
        page.sample(&CONNECTIONS_ACCEPTED_TOTAL, &[listener], self.accepted());
        page.sample(&CONNECTIONS_ACTIVE, &[listener], self.active());
        let cells = &self.cells;
        let (results, reasons) = (HandshakeResult::LABELS, ProxyHeaderFailure::LABELS);
        let labels = [listener];
        page.samples(&HTTP_REQUESTS_TOTAL, &labels, &VERSIONS, cells, |cell| {
            &cell.requests
        });
        page.samples(
            &HEADS_REFUSED_TOTAL,
            &labels,
            &REFUSED_STATUSES,
            cells,
            |cell| &cell.refused_heads,
        );
        page.samples(&TLS_HANDSHAKES_TOTAL, &labels, results, cells, |cell| {
            &cell.handshakes
        });
        page.samples(
            &PROXY_HEADERS_REFUSED_TOTAL,
            &labels,
            reasons,
            cells,
            |cell| &cell.refused_proxy_headers,
        );
        page.samples(&HTTP2_FLOODS_TOTAL, &labels, &FLOODS, cells, |cell| {
            &cell.floods
        });
    }
}

impl Drop for ActiveConnection {
    fn drop(&mut self) {
        count(&self.0.cells.mine().closed);
    }
}

static KNOWN: Mutex<Vec<Arc<ListenerCounters>>> = Mutex::new(Vec::new());

/// The versions of HTTP; requests of any other are served as HTTP/1.0.
const VERSIONS: [&str; 3] = ["1.0", "1.1", "2"];

const REFUSED_STATUSES: [&str; 6] = ["400", "408", "413", "414", "431", "505"];

/// The kinds of HTTP/2 floods.
const FLOODS: [&str; 7] = [
    "empty_data",
    "headers",
    "ping",
    "priority",
    "reset",
    "settings",
    "window_update",
];

metrics! {
    /// The metrics of the process itself.
    pub PROCESS_METRICS:
    BUILD_INFO = gauge("weir_build_info", ["version"], "1; which weir this is.");
    PROCESS_CPU_SECONDS_TOTAL = counter("process_cpu_seconds_total", [], "User and system time the process has taken.");
    PROCESS_START_TIME_SECONDS = gauge("process_start_time_seconds", [], "When the process was started, in seconds since 1970.");
    PROCESS_RESIDENT_MEMORY_BYTES = gauge("process_resident_memory_bytes", [], "Memory of the process that is in use.");
    PROCESS_OPEN_FDS = gauge("process_open_fds", [], "Descriptors the process has open.");
    PROCESS_MAX_FDS = gauge("process_max_fds", [], "Descriptors it may have open.");
}

/// Writes what the system knows of this process, and its version.
pub fn describe_process(page: &mut Exposition) {
    page.sample(&BUILD_INFO, &[env!("CARGO_PKG_VERSION")], 1_u32);
    if let Some(times) = times() {
        page.sample(&PROCESS_CPU_SECONDS_TOTAL, &[], times.cpu);
        page.sample(&PROCESS_START_TIME_SECONDS, &[], times.start);
    }
    if let Some(bytes) = resident() {
        page.sample(&PROCESS_RESIDENT_MEMORY_BYTES, &[], bytes);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        page.sample(&PROCESS_OPEN_FDS, &[], open.count());
    }
    if let Some(most) = most_open() {
        page.sample(&PROCESS_MAX_FDS, &[], most);
    }
}

struct CpuTimes {
    cpu: f64,
    start: f64,
}

fn times() -> Option<CpuTimes> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name before it may contain anything, brackets too.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks =
        |field: usize| -> Option<f64> { Some(fields.get(field)?.parse::<f64>().ok()? / HERTZ) };
    let machine = fs::read_to_string("/proc/stat").ok()?;
    let booted = machine
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?;
    Some(CpuTimes {
        cpu: ticks(USER)? + ticks(SYSTEM)?,
        start: booted.trim().parse::<f64>().ok()? + ticks(STARTED)?,
    })
}

fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes * 1024)
}

fn most_open() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The ticks a second in `/proc`, whatever the frequency of the kernel.
const HERTZ: f64 = 100.0;

/// Fields of `/proc/self/stat`, counted from the one after the name.
const USER: usize = 11;
const SYSTEM: usize = 12;
const STARTED: usize = 19;

/// How late an event loop was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoopLag {
    /// At the last timer; `None` before the first.
    pub last: Option<Duration>,
    /// The most in the last minute.
    pub worst: Option<Duration>,
}

#[derive(Debug)]
struct LoopGauge {
    number: usize,
    lag: LagGauge,
    histogram: Histogram,
    runtime: RuntimeMetrics,
}

/// Lags in microseconds, and one more; zero before the first.
#[derive(Debug, Default)]
struct LagGauge {
    last: AtomicU64,
    /// The worst of this half minute, and of the one before.
    worst: [AtomicU64; 2],
}

/// Measures the lag of the event loop that runs this, for as long as it runs.
pub async fn watch_lag(number: usize) {
    let own = Arc::new(LoopGauge {
        number,
        lag: LagGauge::default(),
        histogram: Histogram::new(),
        runtime: Handle::current().metrics(),
    });
    {
        let mut loops = LOOPS.lock();
        loops.push(Arc::clone(&own));
        // Their threads start in any order.
        loops.sort_by_key(|it| it.number);
    }
    let mut half_minute = Instant::now() + HALF_MINUTE;
    loop {
        let due = Instant::now() + PAUSE;
        tokio::time::sleep_until(due).await;
        let now = Instant::now();
        if now >= half_minute {
            half_minute = now + HALF_MINUTE;
            own.lag.rotate();
        }
        let lag = now.saturating_duration_since(due);
        own.lag.record(lag);
        own.histogram.observe(lag);
    }
}

/// How late each event loop was, by their numbers.
#[must_use]
pub fn lags() -> Vec<LoopLag> {
    LOOPS.lock().iter().map(|it| it.lag.read()).collect()
}

metrics! {
    /// The metrics of event loops.
    pub LOOP_METRICS:
    LOOP_LAG_SECONDS = histogram("weir_loop_lag_seconds", ["loop"], "How late an event loop came to what was due, looked at ten times a second.");
    LOOP_BUSY_SECONDS_TOTAL = counter("weir_loop_busy_seconds_total", ["loop"], "How long an event loop has worked and not waited.");
}

/// Writes the metrics of all event loops.
pub fn describe_loops(page: &mut Exposition) {
    for own in LOOPS.lock().iter() {
        let number = own.number.to_string();
        let labels = [&*number];
        page.histogram(&LOOP_LAG_SECONDS, &labels, &own.histogram.snapshot());
        page.sample(
            &LOOP_BUSY_SECONDS_TOTAL,
            &labels,
            own.runtime.worker_total_busy_duration(0).as_secs_f64(),
        );
    }
}

impl LagGauge {
    fn record(&self, lag: Duration) {
        let lag = u64::try_from(lag.as_micros()).unwrap_or(u64::MAX - 1) + 1;
        self.last.store(lag, Ordering::Relaxed);
        self.worst[0].fetch_max(lag, Ordering::Relaxed);
    }

    /// Starts another half minute.
    fn rotate(&self) {
        let worst = self.worst[0].swap(0, Ordering::Relaxed);
        self.worst[1].store(worst, Ordering::Relaxed);
    }

    fn read(&self) -> LoopLag {
        let known = |lag: &AtomicU64| {
            let micros = lag.load(Ordering::Relaxed).checked_sub(1);
            micros.map(Duration::from_micros)
        };
        LoopLag {
            last: known(&self.last),
            worst: self.worst.iter().filter_map(known).max(),
        }
    }
}

static LOOPS: Mutex<Vec<Arc<LoopGauge>>> = Mutex::new(Vec::new());

/// Between two timers.
const PAUSE: Duration = Duration::from_millis(100);

const HALF_MINUTE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn requests_are_counted_by_the_class_of_their_status() {
        let counters = Counters::new();
        for status in [200, 204, 429, 999] {
            counters.finish_request(StatusCode::from_u16(status).ok());
        }
        counters.finish_request(None);
        let mut page = Exposition::new();
        counters.describe(&mut page);
        let text = page.finish();
        for line in [
            "weir_requests_total{status=\"none\"} 2",
            "weir_requests_total{status=\"2xx\"} 2",
            "weir_requests_total{status=\"4xx\"} 1",
            "weir_requests_total{status=\"5xx\"} 0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
        assert_eq!(counters.requests(), 5);
    }
}

#[cfg(test)]
mod listener_tests {

    use super::*;

    #[test]
    fn a_connection_is_active_until_dropped() {
        let listener = ListenerCounters::at("192.0.2.1:1");
        let first = listener.connect();
        let second = listener.connect();
        assert_eq!((listener.accepted(), listener.active()), (2, 2));
        drop(first);
        assert_eq!((listener.accepted(), listener.active()), (2, 1));
        drop(second);
        assert_eq!(listener.active(), 0);
    }

    #[test]
    fn a_connection_may_be_closed_by_another_thread() {
        let listener = ListenerCounters::at("192.0.2.1:2");
        let connection = listener.connect();
        std::thread::scope(|scope| {
            scope.spawn(move || drop(connection));
        });
        assert_eq!((listener.accepted(), listener.active()), (1, 0));
    }

    #[test]
    fn counters_of_an_address_last_as_long_as_its_listener() {
        let listener = ListenerCounters::at("192.0.2.1:3");
        ListenerCounters::at("192.0.2.1:3").request(Version::HTTP_2);
        listener.refuse_head(StatusCode::REQUEST_TIMEOUT);
        let page = || {
            let mut page = Exposition::new();
            ListenerCounters::describe_all(&mut page);
            page.finish()
        };
        let text = page();
        for line in [
            "weir_http_requests_total{listener=\"192.0.2.1:3\",version=\"2\"} 1",
            "weir_http_requests_total{listener=\"192.0.2.1:3\",version=\"1.1\"} 0",
            "weir_heads_refused_total{listener=\"192.0.2.1:3\",status=\"400\"} 0",
            "weir_heads_refused_total{listener=\"192.0.2.1:3\",status=\"408\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
        drop(listener);
        assert!(!page().contains("192.0.2.1:3"));
    }
}

#[cfg(test)]
mod process_tests {

    use super::*;
    use crate::clock::Clock;

    #[test]
    fn figures_of_the_system_are_plausible() {
        let times = times().unwrap();
        assert!(times.cpu >= 0.0);
        let age = Clock::wall().as_secs_f64() - times.start;
        assert!((-2.0..3600.0).contains(&age), "{age}");
        assert!(resident().unwrap() > 100_000);
        assert!(most_open().unwrap() >= 3);
    }
}

#[cfg(test)]
mod lag_tests {

    use super::*;

    #[test]
    fn the_worst_lag_is_kept_for_a_minute() {
        let own = LagGauge::default();
        assert_eq!(own.read(), LoopLag::default());
        let micros = |lag: LoopLag| {
            (
                lag.last.unwrap().as_micros(),
                lag.worst.unwrap().as_micros(),
            )
        };
        for (late, expected) in [(700, (700, 700)), (20, (20, 700))] {
            own.record(Duration::from_micros(late));
            assert_eq!(micros(own.read()), expected);
        }
        own.rotate();
        own.record(Duration::from_micros(30));
        assert_eq!(micros(own.read()), (30, 700));
        own.rotate();
        assert_eq!(micros(own.read()), (30, 30));
    }

    /// A loop that is blocked for 400 ms counts as late and busy.
    #[test]
    fn a_blocked_loop_is_late() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let text = runtime.block_on(async {
            tokio::spawn(watch_lag(77));
            tokio::time::sleep(PAUSE / 2).await;
            std::thread::sleep(4 * PAUSE);
            tokio::time::sleep(PAUSE / 2).await;
            let mut page = Exposition::new();
            describe_loops(&mut page);
            page.finish()
        });
        let value = |series: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(series));
            let value = line.and_then(|line| line.rsplit(' ').next());
            value.and_then(|value| value.parse().ok()).expect(&text)
        };
        assert!(
            value("weir_loop_lag_seconds_sum{loop=\"77\"}") >= 0.2,
            "{text}"
        );
        assert!(
            value("weir_loop_lag_seconds_count{loop=\"77\"}") >= 1.0,
            "{text}"
        );
        assert!(
            value("weir_loop_busy_seconds_total{loop=\"77\"}") >= 0.3,
            "{text}"
        );
        assert!(lags().iter().any(|lag| lag.worst >= Some(2 * PAUSE)));
    }
}
