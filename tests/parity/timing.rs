//! `limit_req` where time matters: draining, and how long requests wait.

use std::time::Duration;

use tokio::time::Instant;

use super::{Ask, Pair, Side, ask};
use crate::support::millis_since;

fn pair() -> Pair {
    Pair::start(
        "limit_req_status 429;
        limit_req_zone $arg_k zone=second:1m rate=60r/m;
        limit_req_zone $arg_k zone=half:1m rate=30r/m;
        limit_req_zone $arg_k zone=ten:1m rate=10r/s;
        limit_req_zone $arg_k zone=five:1m rate=5r/s;
        server { listen LISTEN;
            location /second/ { limit_req zone=second; proxy_pass http://ORIGIN; }
            location /half/ { limit_req zone=half burst=1 nodelay; proxy_pass http://ORIGIN; }
            location /all/ { limit_req zone=ten burst=5; proxy_pass http://ORIGIN; }
            location /some/ { limit_req zone=ten burst=5 delay=2; proxy_pass http://ORIGIN; }
            location /none/ { limit_req zone=ten burst=5 nodelay; proxy_pass http://ORIGIN; }
            location /longest/ {
                limit_req zone=ten burst=5; limit_req zone=five burst=5; proxy_pass http://ORIGIN;
            } }",
        "limit_req_zones:
  second: { key: $arg_k, size: 1m, rate: 60r/m }
  half: { key: $arg_k, size: 1m, rate: 30r/m }
  ten: { key: $arg_k, size: 1m, rate: 10r/s }
  five: { key: $arg_k, size: 1m, rate: 5r/s }
servers:
- listen: LISTEN
  locations:
  - { path: /second/, limit_req: { zone: second }, proxy_pass: 'http://ORIGIN' }
  - { path: /half/, limit_req: { zone: half, burst: 1, nodelay: true }, proxy_pass: 'http://ORIGIN' }
  - { path: /all/, limit_req: { zone: ten, burst: 5 }, proxy_pass: 'http://ORIGIN' }
  - { path: /some/, limit_req: { zone: ten, burst: 5, delay: 2 }, proxy_pass: 'http://ORIGIN' }
  - { path: /none/, limit_req: { zone: ten, burst: 5, nodelay: true }, proxy_pass: 'http://ORIGIN' }
  - path: /longest/
    limit_req: [ { zone: ten, burst: 5 }, { zone: five, burst: 5 } ]
    proxy_pass: 'http://ORIGIN'
",
    )
}

/// How far a step of a timetable may be late before its verdict could be another.
const SLACK: u64 = 150;

impl Side<'_> {
    /// Asks at the given milliseconds after the first answer; again with another key whenever a step was late.
    fn timetable(&self, path: &str, steps: &[u64]) -> Vec<u16> {
        for attempt in 0..10 {
            let ask = ask(&format!("{path}?k=try{attempt}"));
            let started = Instant::now();
            let mut verdicts = vec![self.ask(&ask)];
            let mut late = millis_since(started) > SLACK / 2;
            for step in steps {
                let wait = step.saturating_sub(millis_since(started));
                std::thread::sleep(Duration::from_millis(wait));
                verdicts.push(self.ask(&ask));
                late |= millis_since(started) > step + SLACK;
            }
            if !late {
                return verdicts;
            }
        }
        panic!("this machine is too busy to keep a timetable");
    }

    /// Sends `count` requests 20 ms apart without waiting; gives the statuses in the order they were sent, and for each
    /// when its answer came, in milliseconds after the first was sent.
    fn volley(&self, ask: &Ask, count: usize) -> Vec<(u16, u64)> {
        let started = Instant::now();
        std::thread::scope(|scope| {
            let mut waiting = Vec::new();
            for _ in 0..count {
                let mut client = self.begin(ask);
                waiting.push(scope.spawn(move || {
                    let status = client.response().status;
                    (status, millis_since(started))
                }));
                std::thread::sleep(Duration::from_millis(20));
            }
            let answers = waiting.into_iter().map(|answer| answer.join());
            answers.map(|answer| answer.expect("an answer")).collect()
        })
    }

    /// Asserts that the k-th of those that passed came `due[k]` ms after the first, and that the rest were refused; again
    /// with another key whenever one came so late that the machine may have kept it.
    fn waits(&self, path: &str, count: usize, due: &[u64]) {
        for attempt in 0..10 {
            let answers = self.volley(&ask(&format!("{path}?k=volley{attempt}")), count);
            let mut passed: Vec<_> = answers
                .iter()
                .filter(|(status, _)| *status == 200)
                .map(|(_, came)| *came)
                .collect();
            assert_eq!(passed.len(), due.len(), "{answers:?}");
            // On a busy machine one that was sent later may be read earlier.
            passed.sort_unstable();
            // Earlier by the milliseconds that clocks are cut to.
            let early = |(came, due): (&u64, &u64)| *came + 3 < *due;
            assert!(!passed.iter().zip(due).any(early), "{answers:?}");
            if passed.iter().zip(due).all(|(came, due)| *came < *due + 300) {
                return;
            }
        }
        panic!("late ten times out of ten");
    }
}

#[test]
fn one_a_second_comes_free_after_a_second() {
    let verdicts = pair().agree(|side| side.timetable("/second/ok", &[500, 1250, 1750, 2500]));
    assert_eq!(verdicts, [200, 429, 200, 429, 200]);
}

#[test]
fn a_refused_request_does_not_put_off_the_next() {
    let steps = [300, 600, 800, 1250];
    let verdicts = pair().agree(|side| side.timetable("/second/ok", &steps));
    assert_eq!(verdicts, [200, 429, 429, 429, 200]);
}

#[test]
fn thirty_a_minute_is_one_in_two_seconds() {
    let steps = [50, 100, 1500, 2300, 3500, 4300];
    let verdicts = pair().agree(|side| side.timetable("/half/ok", &steps));
    assert_eq!(verdicts, [200, 200, 429, 429, 200, 429, 200]);
}

#[test]
fn excess_waits_for_its_turn() {
    pair().agree(|side| side.waits("/all/ok", 6, &[0, 100, 200, 300, 400, 500]));
}

#[test]
fn requests_within_the_delay_threshold_do_not_wait() {
    // The first three at once, the others as if the two before them had waited too.
    pair().agree(|side| side.waits("/some/ok", 6, &[0, 20, 40, 100, 200, 300]));
}

#[test]
fn nodelay_lets_the_burst_through_at_once() {
    pair().agree(|side| side.waits("/none/ok", 6, &[0, 20, 40, 60, 80, 100]));
}

#[test]
fn the_longest_of_several_waits_counts() {
    pair().agree(|side| side.waits("/longest/ok", 5, &[0, 200, 400, 600, 800]));
}
