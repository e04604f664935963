//! What a zone costs when it is shared, in bytes, and at its worst moment. `growth` has what a flood costs.

use std::sync::Barrier;
use std::time::Duration;

use criterion::{Criterion, criterion_group};
use tokio::time::Instant;
use weir::algorithm::Cost;
use weir::algorithm::Delay;
use weir::algorithm::Excess;
use weir::algorithm::LeakyBucket;
use weir::algorithm::LimitSpec;
use weir::algorithm::Rate;
use weir::clock::Clock;
use weir::clock::Millis;
use weir::store::{Key, RateZone};

criterion_group!(benches, shared);

fn main() {
    benches();
    Criterion::default().configure_from_args().final_summary();
    bytes_per_key();
    hardest_insert();
}

const TERMS: LimitSpec = LimitSpec::LeakyBucket(LeakyBucket {
    rate: Rate::per_second(1_000),
    burst: Excess::requests(20),
    delay: Delay::Never,
});

/// Time for one decision as each thread sees it, alone and with a second thread on the same zone.
fn shared(criterion: &mut Criterion) {
    for (clients, whose) in [(10_000, "10 000 clients"), (1, "one client")] {
        for threads in [1, 2] {
            let zone = RateZone::new("perip", 10 << 20, &TERMS, false);
            let name = format!("{threads} threads on one zone, {whose}");
            criterion.bench_function(&name, |bencher| {
                bencher.iter_custom(|times| time_threads(&zone, threads, times, clients));
            });
        }
    }
}

fn time_threads(zone: &RateZone, threads: u32, times: u64, clients: u32) -> Duration {
    let barrier = Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let start = Instant::now();
                    decide(zone, thread, times, clients);
                    start.elapsed()
                })
            })
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("a decision does not panic"))
            .max()
            .unwrap_or_default()
    })
}

fn decide(zone: &RateZone, thread: u32, times: u64, clients: u32) {
    let clock = Clock::machine();
    let mut number = thread.wrapping_mul(7_919);
    for _ in 0..times {
        number = number.wrapping_add(1);
        let client = number.wrapping_mul(2_654_435_761) % clients;
        zone.charge(
            &Key::from_bytes(&client.to_be_bytes()),
            clock.now(),
            Cost::ONE,
            &TERMS,
        );
    }
}

#[expect(clippy::print_stdout, reason = "it is what a bench is for")]
fn bytes_per_key() {
    for room in [1_000_000usize, 2_000_000] {
        let before = resident();
        let zone = RateZone::new("perip", room * 64, &TERMS, false);
        for number in 0..1_000_000u32 {
            zone.charge(
                &Key::from_bytes(&number.to_be_bytes()),
                Millis(0),
                Cost::ONE,
                &TERMS,
            );
        }
        println!(
            "{} keys of a million in a zone with room for {}: {:.1} bytes each by count, {:.1} resident",
            zone.len(),
            zone.capacity(),
            per(zone.memory(), zone.len()),
            per(resident().saturating_sub(before), zone.len()),
        );
    }
}

/// The most that one insert can have to do, made to happen: on a busy machine the slowest of a flood tells more of
/// its scheduler. The least of many tries is what the work takes.
#[expect(clippy::print_stdout, reason = "it is what a bench is for")]
fn hardest_insert() {
    const KEYS: u32 = 1792;
    let (mut first_full, mut all_charged) = (Duration::MAX, Duration::MAX);
    for _ in 0..100 {
        let zone = RateZone::new("perip", KEYS as usize * 64, &TERMS, false);
        let charge = |number: u32, now| {
            let key = Key::from_bytes(&number.to_be_bytes());
            let start = Instant::now();
            zone.charge(&key, Millis(now), Cost::ONE, &TERMS);
            start.elapsed()
        };
        for number in 0..KEYS {
            charge(number, 0);
        }
        first_full = first_full.min(charge(KEYS, 0));
        for number in 0..KEYS {
            charge(number, 1);
        }
        all_charged = all_charged.min(charge(KEYS + 1, 1));
    }
    println!(
        "the hardest inserts: the first into a full table {first_full:?}, one after every key was charged {all_charged:?}"
    );
}

fn per(bytes: usize, keys: usize) -> f64 {
    f64::from(u32::try_from(bytes).unwrap_or(u32::MAX))
        / f64::from(u32::try_from(keys).unwrap_or(u32::MAX))
}

/// Memory of this process, in bytes, as Linux counts it.
fn resident() -> usize {
    std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').nth(1)?.parse::<usize>().ok())
        .map_or(0, |pages| pages * 4096)
}
