//! The scripts against the functions they copy, on a real server: the same history, the same answers.

mod alone;

mod blocks;

mod clock;

mod late;

mod parts;

mod reserve;

mod waits;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use redis::Value;
use tempfile::TempDir;

use super::script::{self, DECIDING, KeyCheck, LuaScript};
use crate::algorithm::{
    Cost, Delay, Excess, FixedWindow, Gcra, LeakyBucket, LimitSpec, Paced, Rate, SlidingLog,
    SlidingWindow, TokenBucket, Verdict,
};
use crate::clock::Millis;
use crate::store::key::Key;
use crate::store::rate_zone::{RateZone, StoreVerdict};

/// A Redis server of one test, on a socket of its own.
struct Server {
    child: Child,
    directory: TempDir,
}

impl Server {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no"])
            .arg("--unixsocket")
            .arg(directory.path().join("socket"))
            .stdout(Stdio::null())
            .stdin(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        Self { child, directory }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn connection(&self) -> redis::Connection {
        let address = redis::ConnectionAddr::Unix(self.socket());
        let client = redis::Client::open(address).unwrap();
        for _ in 0..2_000 {
            if let Ok(connection) = client.get_connection() {
                return connection;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("redis-server does not start");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// What happens to a key, and when.
#[derive(Debug, Clone, Copy)]
enum Step {
    Charge {
        cost: u64,
    },
    /// The clock is set back.
    Back {
        millis: u64,
    },
    Refund,
}

/// The script as a gateway runs it, except that it is told the time.
struct ScriptRunner {
    program: LuaScript,
    connection: redis::Connection,
}

impl ScriptRunner {
    fn new(server: &Server) -> Self {
        // Time that is told does not pass for the server: nothing may expire by its own.
        let algorithms = script::algorithms();
        let algorithms = algorithms.replace(", 'PX', string.format('%.0f', left + 1)", "");
        Self {
            program: LuaScript::of(GIVEN_CLOCK, &[&algorithms, DECIDING]),
            connection: server.connection(),
        }
    }

    fn run(&mut self, act: &str, checks: &[KeyCheck], now: u64) -> Vec<StoreVerdict> {
        let mut command = self.program.teach();
        command.arg(checks.len());
        for check in checks {
            command.arg(&check.name);
        }
        command.arg(act).arg(0);
        for check in checks {
            check.write(&mut command);
        }
        command.arg(now);
        let answer: Value = command.query(&mut self.connection).unwrap();
        if act == "charge" {
            script::verdicts(checks.iter(), &answer).unwrap()
        } else {
            Vec::new()
        }
    }

    fn forget(&mut self) {
        redis::cmd("FLUSHALL").exec(&mut self.connection).unwrap();
    }
}

fn rates() -> impl Strategy<Value = Rate> {
    prop_oneof![
        (1..2_000_000u64).prop_map(Rate::per_second),
        (1..2_000_000u64).prop_map(Rate::per_minute),
        (1..2_000_000u64).prop_map(Rate::per_hour),
        (1..2_000_000u64).prop_map(Rate::per_day),
    ]
}

fn leaky_buckets() -> impl Strategy<Value = LimitSpec> {
    let delay = prop_oneof![
        Just(Delay::Never),
        (0..20u32).prop_map(|threshold| Delay::After(Excess::requests(threshold))),
    ];
    (rates(), 0..30u32, delay).prop_map(|(rate, burst, delay)| {
        let burst = Excess::requests(burst);
        LimitSpec::LeakyBucket(LeakyBucket { rate, burst, delay })
    })
}

/// Steps, of which so many in thirty set the clock back.
fn steps(backward: u8) -> impl Strategy<Value = Vec<(u64, Step)>> {
    let pause = prop_oneof![
        4 => Just(0u64),
        4 => 1..50u64,
        4 => 1..5_000u64,
        1 => 1..100_000_000u64,
    ];
    let cost = prop_oneof![4 => Just(1_000u64), 1 => 0..5_000u64, 1 => Just(40_000_000u64)];
    let back = prop_oneof![1..60_000u64, 60_000..10_000_000u64];
    let step = (cost, back, 0..30u8).prop_map(move |(cost, millis, kind)| match kind {
        _ if kind < backward => Step::Back { millis },
        0..4 => Step::Refund,
        _ => Step::Charge { cost },
    });
    prop::collection::vec((pause, step), 1..60)
}

/// Holds a script against its function for as many histories as there are cases.
fn hold(spec: impl Strategy<Value = LimitSpec>) {
    hold_through(spec, steps(0));
}

/// The same for histories of one's own.
fn hold_through(
    spec: impl Strategy<Value = LimitSpec>,
    steps: impl Strategy<Value = Vec<(u64, Step)>>,
) {
    let server = Server::start();
    let script_runner = std::cell::RefCell::new(ScriptRunner::new(&server));
    let mut runner = TestRunner::new(ProptestConfig {
        cases: ProptestConfig::default().cases / 2,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let refused = prop_oneof![Just(false), Just(true)];
    runner
        .run(&(spec, steps, refused), |(spec, steps, refused)| {
            let mut script_runner = script_runner.borrow_mut();
            script_runner.forget();
            let zone = RateZone::new("zone", 1 << 20, &spec, refused);
            let key = Key::from_bytes(b"key");
            let mut now = 1_700_000_000_000;
            let mut last = None;
            for (pause, step) in steps {
                now += pause;
                match step {
                    Step::Charge { cost } => {
                        let cost = Cost::milli(cost);
                        let check = KeyCheck::new(b"key".to_vec(), &spec, cost, refused);
                        let (expected, receipt) = zone.charge(&key, Millis(now), cost, &spec);
                        let got = script_runner.run("charge", &[check], now);
                        prop_assert_eq!(got[0].outcome, expected, "at {}", now);
                        if let Some(key_status) = zone.key_status(&key, Millis(now), &spec) {
                            // Times divided by times: of these the script knows the number to one.
                            let slack = match spec {
                                LimitSpec::Bursty(_) | LimitSpec::WarmUp(_) => 1,
                                _ => 0,
                            };
                            let apart = got[0].remaining.abs_diff(key_status.remaining);
                            prop_assert!(apart <= slack, "{} apart at {}", apart, now);
                        }
                        last = match expected {
                            Verdict::Refuse { .. } => None,
                            _ => Some((cost, receipt)),
                        };
                        if last.is_some() || refused {
                            clock::forget_drained(&zone, &key, now, &spec);
                        }
                    }
                    Step::Back { millis } => {
                        now -= millis;
                        // What was charged before is not taken back after.
                        last = None;
                    }
                    Step::Refund => {
                        now -= pause;
                        if let Some((cost, receipt)) = last.take() {
                            let check = KeyCheck::new(b"key".to_vec(), &spec, cost, refused);
                            zone.refund(&key, receipt, Millis(now), cost, &spec);
                            script_runner.run("refund", &[check], now);
                            clock::forget_drained(&zone, &key, now, &spec);
                        }
                    }
                }
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_leaky_bucket_is_the_same_in_redis() {
    hold(leaky_buckets());
}

fn windows() -> impl Strategy<Value = (Excess, Duration)> {
    let window = prop_oneof![Just(1_000u64), Just(60_000), 1..100_000u64];
    (1..40u32, window)
        .prop_map(|(limit, window)| (Excess::requests(limit), Duration::from_millis(window)))
}

fn token_buckets() -> impl Strategy<Value = LimitSpec> {
    (rates(), 1..30u32).prop_map(|(rate, capacity)| {
        let capacity = Excess::requests(capacity);
        LimitSpec::TokenBucket(TokenBucket { rate, capacity })
    })
}

#[test]
fn the_token_bucket_is_the_same_in_redis() {
    hold(token_buckets());
}

fn paced() -> impl Strategy<Value = LimitSpec> {
    (rates(), 0..5_000u64).prop_map(|(rate, longest)| {
        let max_wait = Duration::from_millis(longest);
        LimitSpec::Paced(Paced { rate, max_wait })
    })
}

#[test]
fn paced_is_the_same_in_redis() {
    hold(paced());
}

fn gcra() -> impl Strategy<Value = LimitSpec> {
    let rates = prop_oneof![
        (1_000..2_000_000u64).prop_map(Rate::per_second),
        (1_000..2_000_000u64).prop_map(Rate::per_minute),
    ];
    (rates, 0..30u32)
        .prop_map(|(rate, burst)| LimitSpec::Gcra(Gcra::new(rate, Excess::requests(burst))))
}

#[test]
fn gcra_is_the_same_in_redis() {
    hold(gcra());
}

fn fixed_windows() -> impl Strategy<Value = LimitSpec> {
    windows().prop_map(|(limit, window)| LimitSpec::FixedWindow(FixedWindow { limit, window }))
}

#[test]
fn the_fixed_window_is_the_same_in_redis() {
    hold(fixed_windows());
}

fn sliding_windows() -> impl Strategy<Value = LimitSpec> {
    windows().prop_map(|(limit, window)| LimitSpec::SlidingWindow(SlidingWindow { limit, window }))
}

#[test]
fn the_sliding_window_is_the_same_in_redis() {
    hold(sliding_windows());
}

fn sliding_logs() -> impl Strategy<Value = LimitSpec> {
    windows().prop_map(|(limit, window)| LimitSpec::SlidingLog(SlidingLog { limit, window }))
}

#[test]
fn the_sliding_log_is_the_same_in_redis() {
    hold(sliding_logs());
}

/// A second rule that refuses leaves the first one's key alone.
#[test]
fn all_are_asked_before_any_is_charged() {
    let server = Server::start();
    let mut script_runner = ScriptRunner::new(&server);
    let check = |name: &str, burst| {
        let spec = LimitSpec::LeakyBucket(LeakyBucket {
            rate: Rate::per_minute(1_000),
            burst: Excess::requests(burst),
            delay: Delay::Never,
        });
        KeyCheck::new(name.as_bytes().to_vec(), &spec, Cost::ONE, false)
    };
    let both = [check("wide", 9), check("narrow", 0)];
    let passed = |verdicts: &[StoreVerdict]| {
        verdicts
            .iter()
            .all(|answer| matches!(answer.outcome, Verdict::Pass { .. }))
    };
    assert!(passed(&script_runner.run("charge", &both, 1_000)));
    for _ in 0..20 {
        assert!(!passed(&script_runner.run("charge", &both, 1_000)));
    }
    let left = (0..20).filter(|_| passed(&script_runner.run("charge", &both[..1], 1_000)));
    assert_eq!(left.count(), 9);
}

/// A key is gone when it says nothing any more, and not a moment before.
#[test]
fn a_key_lives_until_it_has_drained() {
    let server = Server::start();
    let mut script_runner = ScriptRunner {
        program: LuaScript::of(GIVEN_CLOCK, &[&script::algorithms(), DECIDING]),
        connection: server.connection(),
    };
    let spec = LimitSpec::LeakyBucket(LeakyBucket {
        rate: Rate::per_second(100),
        burst: Excess::requests(5),
        delay: Delay::Never,
    });
    for _ in 0..6 {
        let check = KeyCheck::new(b"slow".to_vec(), &spec, Cost::ONE, false);
        script_runner.run("charge", &[check], 5_000);
    }
    let mut connection = server.connection();
    let left: u64 = redis::cmd("PTTL")
        .arg("slow")
        .query(&mut connection)
        .unwrap();
    assert!((59_000..=60_001).contains(&left), "{left}");
}

/// In place of the server's clock: the time is the last argument.
const GIVEN_CLOCK: &str = "local now = tonumber(table.remove(ARGV))\n";
