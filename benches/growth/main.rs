//! What growth costs: one lookup or one decision, with little configured and with much.
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

use cpu::Cpu;

fn main() {
    routes::names();
    routes::locations();
    limits::zones();
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
