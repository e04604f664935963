//! Zones with many keys: how long one decision takes, and how long the longest.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Duration;

use tokio::time::Instant;
use weir::algorithm::Cost;
use weir::algorithm::Delay;
use weir::algorithm::Excess;
use weir::algorithm::LeakyBucket;
use weir::algorithm::LimitSpec;
use weir::algorithm::Rate;
use weir::clock::Millis;
use weir::store::{BYTES_PER_KEY, Key, RateZone};

use crate::axis;
use crate::cpu::Cpu;

const TERMS: LimitSpec = LimitSpec::LeakyBucket(LeakyBucket {
    rate: Rate::per_second(1_000),
    burst: Excess::requests(20),
    delay: Delay::Never,
});

const MOST: u32 = 10_000_000;

fn charge(zone: &RateZone, number: u32, now: Millis) {
    black_box(zone.charge(
        &Key::from_bytes(&number.to_be_bytes()),
        now,
        Cost::ONE,
        &TERMS,
    ));
}

/// One decision about a known key.
pub(crate) fn known() {
    let full = |size: usize| {
        let zone = RateZone::new("perip", size * BYTES_PER_KEY * 5 / 4, &TERMS, false);
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        (0..size).for_each(|number| charge(&zone, number, Millis(0)));
        (zone, size)
    };
    let sizes = [1, 100, 10_000, 1_000_000, MOST as usize];
    let title =
        "known keys in a zone, one decision (beyond a million they are no longer in the cache)";
    axis(title, &sizes, full, |(zone, size), number| {
        charge(zone, number.wrapping_mul(2_654_435_761) % *size, Millis(1));
    });
}

/// New keys, one after the other: into a zone with room for all of them, and through one that is much too small.
pub(crate) fn flood() {
    for (size, what) in [
        (640 << 20, "into a 640m zone"),
        (10 << 20, "through a 10m zone"),
    ] {
        let zone = RateZone::new("perip", size, &TERMS, false);
        let mut took: Vec<Duration> = Vec::with_capacity(MOST as usize);
        let (mut longest_wall, mut last) = (Duration::ZERO, Instant::now());
        for number in 0..MOST {
            let start = Cpu::now();
            charge(&zone, number, Millis(u64::from(number) / 1000));
            took.push(start.elapsed());
            let now = Instant::now();
            longest_wall = longest_wall.max(now - last);
            last = now;
        }
        took.sort_unstable();
        let at = |thousandths: usize| took[(took.len() - 1) * thousandths / 1000];
        println!(
            "\n10 million new keys {what}, each measured: median {:?}, 99.9 % {:?}, longest {:?}, {} over 1 ms; \
             by the wall clock, which counts what others did on this processor, longest {longest_wall:?}",
            at(500),
            at(999),
            at(1000),
            took.iter().filter(|time| time.as_millis() > 0).count(),
        );
        println!(
            "  {} keys kept, {:.1} bytes each",
            zone.len(),
            to_float(zone.memory()) / to_float(zone.len())
        );
    }
}

/// Two threads that want the same key.
pub(crate) fn hot() {
    println!("\none hot key, decisions a second and thread");
    let alone = rate(1);
    let both = rate(2);
    println!(
        "  1 thread {alone:.0}, 2 threads {both:.0}: {:.2}",
        both / alone
    );
}

fn rate(threads: u32) -> f64 {
    const TIMES: u32 = 3_000_000;
    let zone = RateZone::new("perip", 1 << 20, &TERMS, false);
    let barrier = Barrier::new(threads as usize);
    let slowest = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    let start = Instant::now();
                    (0..TIMES).for_each(|number| charge(&zone, 7, Millis(u64::from(number / 10))));
                    start.elapsed()
                })
            })
            .collect();
        let times = running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_default());
        times.max().unwrap_or_default()
    });
    f64::from(TIMES) / slowest.as_secs_f64()
}

fn to_float(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}
