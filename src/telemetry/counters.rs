//! What is counted for the whole process: whatever belongs to no zone, no upstream and no listener.
//!
//! What is counted for each address that clients connect to: connections, handshakes, requests by version, and what was
//! no HTTP.
//!
//! A listener is known by its address, and so goes on counting where it was when the configuration is read again.
//!
//! What the system knows of this process, under the names that Prometheus's own libraries use.
//!
//! Read from `/proc` when somebody asks; where there is none, nothing is said.
//!
//! How event loops keep up: how much of its time each works, and how late it comes to what is due.
//!
//! A loop that is late makes everybody on it wait, and nothing that is measured per request shows it: a request's
//! time starts when its loop has got round to reading it. So each loop sets itself an alarm ten times a second and
//! looks how late it heard it. A loop that does too much at once, or a machine without a free core, shows here first.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{StatusCode, Version};
use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeMetrics};
use tokio::time::Instant;

use super::metrics::{Exposition, Histogram, PerLoop, count, metrics};

metrics! {
    /// The metrics of [`Counters`].
    pub PROCESS_WIDE_METRICS:
    REQUESTS_TOTAL = counter("weir_requests_total", ["status"], "Requests that are over, by the class of the answer's status; none where the client got no answer.");
    CONNECTIONS_REFUSED_TOTAL = counter("weir_connections_refused_total", ["cap"], "Connections closed at once because there were as many as allowed.");
    CONNECTIONS_EVICTED_TOTAL = counter("weir_connections_evicted_total", [], "Idle connections closed to make room for others.");
    PREBUILT_MISMATCHES_TOTAL = counter("weir_prebuilt_mismatches_total", [], "Responses that hyper wrote in an unknown way; one at start switches prebuilt responses off.");
    SLOW_CLIENTS_TOTAL = counter("weir_slow_clients_total", ["with"], "Clients given up because they fell behind the least rate for what they sent or took.");
}

/// The process's own.
pub static COUNTERS: Counters = Counters::new();

/// Counts of requests and of clients that were sent away.
#[derive(Debug)]
pub struct Counters {
    cells: PerLoop<ProcessCell>,
}

#[derive(Debug, Default)]
struct ProcessCell {
    requests: [AtomicU64; STATUSES.len()],
    crowded: [AtomicU64; CROWDS.len()],
    evicted: AtomicU64,
    mismatched: AtomicU64,
    slow: [AtomicU64; SLOW.len()],
}

/// Which cap a connection was one too many for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitedBy {
    /// `max_connections`
    All = 0,
    /// `max_connections_per_address`
    Address = 1,
}

/// What a client was too slow with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlowPart {
    /// Taking its answer.
    Answer = 0,
    /// Sending its body.
    Body = 1,
}

impl Counters {
    /// All at zero.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            cells: PerLoop::new(),
        }
    }

    /// Counts a request that is over; `None` where it was never answered.
    pub fn answer(&self, status: Option<StatusCode>) {
        let class = status.map_or(0, |status| usize::from(status.as_u16() / 100));
        // Statuses of a class nobody has defined stand with the unanswered.
        count(&self.cells.mine().requests[if class < STATUSES.len() { class } else { 0 }]);
    }

    /// Counts a connection that was closed at once because there were enough.
    pub fn turn_away(&self, crowd: LimitedBy) {
        count(&self.cells.mine().crowded[crowd as usize]);
    }

    /// Counts an idle connection that was closed to make room for another.
    pub fn evict(&self) {
        count(&self.cells.mine().evicted);
    }

    /// Counts a response that hyper has written in a way in which a prebuilt one cannot be completed.
    pub fn count_prebuilt_mismatch(&self) {
        count(&self.cells.mine().mismatched);
    }

    /// Counts a client that was given up because it fell behind its least rate.
    pub fn give_up(&self, slow: SlowPart) {
        count(&self.cells.mine().slow[slow as usize]);
    }

    /// Requests that are over.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.by_status().map(|(_, count)| count).sum()
    }

    /// The same by the class of the answer's status.
    pub fn by_status(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let classes = STATUSES.iter().enumerate();
        classes.map(|(class, status)| (*status, self.cells.sum(|cell| &cell.requests[class])))
    }

    /// Writes them all.
    pub fn describe(&self, page: &mut Exposition) {
        for (status, count) in self.by_status() {
            page.sample(&REQUESTS_TOTAL, &[status], count);
        }
        for (index, cap) in CROWDS.iter().enumerate() {
            page.sample(
                &CONNECTIONS_REFUSED_TOTAL,
                &[cap],
                self.cells.sum(|cell| &cell.crowded[index]),
            );
        }
        page.sample(
            &CONNECTIONS_EVICTED_TOTAL,
            &[],
            self.cells.sum(|cell| &cell.evicted),
        );
        page.sample(
            &PREBUILT_MISMATCHES_TOTAL,
            &[],
            self.cells.sum(|cell| &cell.mismatched),
        );
        for (index, what) in SLOW.iter().enumerate() {
            page.sample(
                &SLOW_CLIENTS_TOTAL,
                &[what],
                self.cells.sum(|cell| &cell.slow[index]),
            );
        }
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

/// By class: the index is the status's first digit.
const STATUSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// By [`LimitedBy`], as the configuration calls them.
const CROWDS: [&str; 2] = ["max_connections", "max_connections_per_address"];

/// By [`SlowPart`].
const SLOW: [&str; 2] = ["answer", "body"];

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

/// Counts of one listener. Those that nobody holds any more are forgotten.
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
    refused_heads: [AtomicU64; REFUSALS.len()],
    handshakes: [AtomicU64; HANDSHAKES.len()],
    floods: [AtomicU64; FLOODS.len()],
    refused_proxy_headers: [AtomicU64; PROXY_HEADERS.len()],
}

/// Why a connection was closed for want of a PROXY header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHeaderFailure {
    /// It ended first.
    Broken = 0,
    /// Something else came.
    Malformed = 1,
    /// It did not come in time.
    TimedOut = 2,
}

/// How a TLS handshake with a client ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeResult {
    /// Without an agreement.
    Failed = 0,
    /// With a new session.
    Full = 1,
    /// With an earlier session taken up again.
    Resumed = 2,
}

impl ListenerCounters {
    /// The one at this address, which goes on where it was if it is known.
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

    /// Counts a connection, accepted now and active until what is returned is dropped.
    #[must_use]
    pub fn connect(self: &Arc<Self>) -> ActiveConnection {
        count(&self.cells.mine().accepted);
        ActiveConnection(Arc::clone(self))
    }

    /// Counts a request whose head was read.
    #[inline]
    pub fn request(&self, version: Version) {
        let index = match version {
            Version::HTTP_2 => 2,
            Version::HTTP_11 => 1,
            _ => 0,
        };
        count(&self.cells.mine().requests[index]);
    }

    /// Counts a head that never became a request: 408 (it did not come in time), 431 (too large), or 400 (not HTTP).
    pub fn refuse_head(&self, status: StatusCode) {
        let refusal = REFUSALS
            .iter()
            .position(|(code, _)| *code == status.as_u16());
        count(&self.cells.mine().refused_heads[refusal.unwrap_or(0)]);
    }

    /// Counts a TLS handshake with a client.
    pub fn handshake(&self, handshake: HandshakeResult) {
        count(&self.cells.mine().handshakes[handshake as usize]);
    }

    /// Counts an HTTP/2 connection that was closed because its client went too far with this.
    pub fn flood(&self, kind: &str) {
        if let Some(kind) = FLOODS.iter().position(|known| *known == kind) {
            count(&self.cells.mine().floods[kind]);
        }
    }

    /// Counts a connection that did not begin with the PROXY header it has to begin with.
    pub fn refuse_proxy_header(&self, why: ProxyHeaderFailure) {
        count(&self.cells.mine().refused_proxy_headers[why as usize]);
    }

    /// Writes those of all listeners.
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
        for (index, version) in VERSIONS.iter().enumerate() {
            page.sample(
                &HTTP_REQUESTS_TOTAL,
                &[listener, version],
                self.cells.sum(|cell| &cell.requests[index]),
            );
        }
        for (refusal, (_, status)) in REFUSALS.iter().enumerate() {
            page.sample(
                &HEADS_REFUSED_TOTAL,
                &[listener, status],
                self.cells.sum(|cell| &cell.refused_heads[refusal]),
            );
        }
        for (index, result) in HANDSHAKES.iter().enumerate() {
            page.sample(
                &TLS_HANDSHAKES_TOTAL,
                &[listener, result],
                self.cells.sum(|cell| &cell.handshakes[index]),
            );
        }
        for (index, reason) in PROXY_HEADERS.iter().enumerate() {
            page.sample(
                &PROXY_HEADERS_REFUSED_TOTAL,
                &[listener, reason],
                self.cells.sum(|cell| &cell.refused_proxy_headers[index]),
            );
        }
        for (index, kind) in FLOODS.iter().enumerate() {
            page.sample(
                &HTTP2_FLOODS_TOTAL,
                &[listener, kind],
                self.cells.sum(|cell| &cell.floods[index]),
            );
        }
    }
}

impl Drop for ActiveConnection {
    fn drop(&mut self) {
        count(&self.0.cells.mine().closed);
    }
}

static KNOWN: Mutex<Vec<Arc<ListenerCounters>>> = Mutex::new(Vec::new());

/// What requests come in; whatever is not HTTP/1.1 or HTTP/2 is served as HTTP/1.0.
const VERSIONS: [&str; 3] = ["1.0", "1.1", "2"];

/// In the order of [`HandshakeResult`].
const HANDSHAKES: [&str; 3] = ["failed", "full", "resumed"];

const REFUSALS: [(u16, &str); 6] = [
    (400, "400"),
    (408, "408"),
    (413, "413"),
    (414, "414"),
    (431, "431"),
    (505, "505"),
];

/// What clients go too far with.
const FLOODS: [&str; 7] = [
    "empty_data",
    "headers",
    "ping",
    "priority",
    "reset",
    "settings",
    "window_update",
];

/// By [`ProxyHeaderFailure`].
const PROXY_HEADERS: [&str; 3] = ["broken", "malformed", "timeout"];

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

/// Writes what can be found out, and which weir this is.
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

/// What Linux counts times of processes in, whatever its own clock does.
const HERTZ: f64 = 100.0;

/// Fields of `/proc/self/stat`, counted from the one after the name.
const USER: usize = 11;
const SYSTEM: usize = 12;
const STARTED: usize = 19;

/// How late one event loop was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoopLag {
    /// At its latest alarm; `None` before the first.
    pub last: Option<Duration>,
    /// At most in the last minute.
    pub worst: Option<Duration>,
}

#[derive(Debug)]
struct LoopGauge {
    number: usize,
    late: LagGauge,
    all: Histogram,
    runtime: RuntimeMetrics,
}

/// In microseconds; [`UNKNOWN`] where nothing is known.
#[derive(Debug)]
struct LagGauge {
    last: AtomicU64,
    /// Of this half minute, and of the one before it.
    worst: [AtomicU64; 2],
}

/// Watches the event loop this runs in, for as long as that does.
pub async fn watch_lag(number: usize) {
    let own = Arc::new(LoopGauge {
        number,
        late: LagGauge::default(),
        all: Histogram::new(),
        runtime: Handle::current().metrics(),
    });
    enter(&own);
    let mut turn = Instant::now() + HALF_MINUTE;
    loop {
        let due = Instant::now() + PAUSE;
        tokio::time::sleep_until(due).await;
        let now = Instant::now();
        if now >= turn {
            turn = now + HALF_MINUTE;
            own.late.turn();
        }
        let late = now.saturating_duration_since(due);
        own.late.heard(late);
        own.all.observe(late);
    }
}

/// How late each event loop was, in their order.
#[must_use]
pub fn lags() -> Vec<LoopLag> {
    LOOPS.lock().iter().map(|it| it.late.read()).collect()
}

metrics! {
    /// The metrics of event loops.
    pub LOOP_METRICS:
    LOOP_LAG_SECONDS = histogram("weir_loop_lag_seconds", ["loop"], "How late an event loop came to what was due, looked at ten times a second.");
    LOOP_BUSY_SECONDS_TOTAL = counter("weir_loop_busy_seconds_total", ["loop"], "How long an event loop has worked and not waited.");
}

/// Writes what is known of them.
pub fn describe_loops(page: &mut Exposition) {
    for own in LOOPS.lock().iter() {
        let number = own.number.to_string();
        let labels = [&*number];
        page.histogram(&LOOP_LAG_SECONDS, &labels, &own.all.read());
        page.sample(
            &LOOP_BUSY_SECONDS_TOTAL,
            &labels,
            own.runtime.worker_total_busy_duration(0).as_secs_f64(),
        );
    }
}

fn enter(own: &Arc<LoopGauge>) {
    let mut loops = LOOPS.lock();
    loops.push(Arc::clone(own));
    // Their threads start all at once.
    loops.sort_by_key(|it| it.number);
}

impl LagGauge {
    fn heard(&self, late: Duration) {
        let late = u64::try_from(late.as_micros()).unwrap_or(UNKNOWN - 1);
        self.last.store(late, Ordering::Relaxed);
        let worst = &self.worst[0];
        if worst.load(Ordering::Relaxed) == UNKNOWN {
            worst.store(late, Ordering::Relaxed);
        } else {
            worst.fetch_max(late, Ordering::Relaxed);
        }
    }

    fn turn(&self) {
        let worst = self.worst[0].swap(UNKNOWN, Ordering::Relaxed);
        self.worst[1].store(worst, Ordering::Relaxed);
    }

    fn read(&self) -> LoopLag {
        let known = |micros: &AtomicU64| {
            let micros = micros.load(Ordering::Relaxed);
            (micros != UNKNOWN).then(|| Duration::from_micros(micros))
        };
        LoopLag {
            last: known(&self.last),
            worst: self.worst.iter().filter_map(known).max(),
        }
    }
}

impl Default for LagGauge {
    fn default() -> Self {
        let unknown = || AtomicU64::new(UNKNOWN);
        Self {
            last: unknown(),
            worst: [unknown(), unknown()],
        }
    }
}

static LOOPS: Mutex<Vec<Arc<LoopGauge>>> = Mutex::new(Vec::new());

const UNKNOWN: u64 = u64::MAX;

/// Between two alarms.
const PAUSE: Duration = Duration::from_millis(100);

const HALF_MINUTE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn requests_are_told_apart_by_class() {
        let counters = Counters::new();
        for status in [200, 204, 429, 999] {
            counters.answer(StatusCode::from_u16(status).ok());
        }
        counters.answer(None);
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
    fn an_address_is_one_listener_and_forgotten_when_nobody_listens_there() {
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
    fn what_the_system_says_makes_sense() {
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
    fn the_worst_is_remembered_for_a_minute() {
        let own = LagGauge::default();
        assert_eq!(own.read(), LoopLag::default());
        let micros = |lag: LoopLag| {
            (
                lag.last.unwrap().as_micros(),
                lag.worst.unwrap().as_micros(),
            )
        };
        for (late, expected) in [(700, (700, 700)), (20, (20, 700))] {
            own.heard(Duration::from_micros(late));
            assert_eq!(micros(own.read()), expected);
        }
        own.turn();
        own.heard(Duration::from_micros(30));
        assert_eq!(micros(own.read()), (30, 700));
        own.turn();
        assert_eq!(micros(own.read()), (30, 30));
    }

    /// A loop that something holds up for 400 ms is seen to be late, and to have been busy.
    #[test]
    fn a_loop_that_is_held_up_is_late() {
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
