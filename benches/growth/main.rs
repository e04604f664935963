//! What growth costs: one lookup, one decision, one pick, with little configured and with much.
//!
//! ```console
//! $ cargo bench --bench growth
//! ```
//!
//! Times are of this thread's own processor time, so that neighbours on the machine count only by what they do to its
//! caches. `tests/instructions` asserts what this prints.
#![expect(clippy::print_stdout, reason = "it is what a bench is for")]

mod cpu;
mod keys;
mod limits;
mod routes;
#[expect(dead_code, reason = "nobody fails in a bench")]
#[path = "../../src/upstream/balance/round_robin/tournament.rs"]
mod tournament;

use std::hint::black_box;

use cpu::Cpu;
use tournament::Tournament;

fn main() {
    routes::names();
    routes::locations();
    limits::zones();
    servers("of equal weight", |_| 1);
    servers("of the weights 1 to 10", |server| {
        1 + i64::from(server) % 10
    });
    servers("of weights all different", |server| 1 + i64::from(server));
    keys::known();
    keys::flood();
    keys::hot();
}

/// How often something is done to be measured.
const TIMES: u32 = 200_000;

/// Measures something at several sizes.
fn axis<T>(title: &str, sizes: &[usize], make: impl Fn(usize) -> T, act: impl Fn(&mut T, u32)) {
    println!("\n{title}");
    let mut first = None;
    for &size in sizes {
        let mut subject = make(size);
        for number in 0..TIMES / 4 {
            act(&mut subject, number);
        }
        let start = Cpu::now();
        for number in 0..TIMES {
            act(&mut subject, number);
        }
        let each = start.elapsed().as_secs_f64() * 1e9 / f64::from(TIMES);
        let ratio = each / *first.get_or_insert(each);
        println!("{size:>10}  {each:8.1} ns  {ratio:5.2}");
    }
}

/// A pick by round robin, without the lock.
fn servers(what: &str, weight: impl Fn(u32) -> i64) {
    let make = |size: usize| {
        let ranks = 0..u32::try_from(size).unwrap_or(u32::MAX);
        let mut tournament = Tournament::new(ranks.map(|rank| (weight(rank), rank)));
        let places: Vec<usize> = tournament.ranks().map(|rank| rank as usize).collect();
        let mut by_rank = vec![0; size];
        for (place, rank) in places.into_iter().enumerate() {
            by_rank[rank] = place;
            tournament.enter(place, 0);
        }
        (tournament, by_rank)
    };
    axis(
        &format!("upstream servers {what}, one pick"),
        &[2, 10, 100, 1_000, 10_000],
        make,
        |(tournament, by_rank), _| {
            tournament.advance();
            let total = tournament.total();
            if let Some((rank, _)) = tournament.best(|_| false) {
                tournament.charge(by_rank[rank], total);
                tournament.settle(by_rank[rank]);
                black_box(rank);
            }
        },
    );
}
