//! Who is well when: two are at any time, and each time one takes over from another there are three for a while, so that
//! weir can notice. All others are in one bad mood or another, and some of them are not even known to DNS.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::NAME;
use super::backend::{Backend, Mood};
use super::dns::Dns;

/// Plays until told to stop; how many changes it has made.
pub(crate) fn play(backends: &[Arc<Backend>], dns: &Dns, stop: &AtomicBool) -> u64 {
    let mut well = vec![0, 1];
    let mut changes = 0;
    while !stop.load(Ordering::Relaxed) {
        let others: Vec<_> = (0..backends.len())
            .filter(|number| !well.contains(number))
            .collect();
        let Some(&next) = fastrand::choice(&others) else {
            return changes;
        };
        backends[next].set(Mood::Well);
        well.push(next);
        let taken_over = Instant::now() + TAKE_OVER;
        while Instant::now() < taken_over && !stop.load(Ordering::Relaxed) {
            changes += 1;
            trouble(backends, &well);
            publish(backends, &well, dns);
            thread::sleep(Duration::from_millis(fastrand::u64(300..1500)));
        }
        well.remove(0);
    }
    changes
}

/// Gives one of those who are not needed another mood.
fn trouble(backends: &[Arc<Backend>], well: &[usize]) {
    let number = fastrand::usize(..backends.len());
    if well.contains(&number) {
        return;
    }
    if let Some(mood) = fastrand::choice(&Mood::ALL) {
        backends[number].set(*mood);
    }
}

/// Tells DNS of those who are well, and of most others.
fn publish(backends: &[Arc<Backend>], well: &[usize], dns: &Dns) {
    let known = backends.iter().enumerate().filter(|(number, _)| {
        let needed = well.contains(number);
        needed || fastrand::u8(..10) < 7
    });
    let addresses: Vec<_> = known.map(|(_, backend)| backend.address.ip()).collect();
    dns.set(NAME, &addresses, 1);
}

/// Longer than it takes to find a recovered server, check it and send it requests again.
const TAKE_OVER: Duration = Duration::from_secs(6);
