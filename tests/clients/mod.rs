//! Who the client is, and what is put up with from it.

mod caps;
mod half_closed;
mod introduced;
mod real_ip;
mod slow;

use crate::support::{Weir, get};

/// The value of a metric, labels included in its name.
fn metric(weir: &Weir, name: &str) -> u64 {
    let page = get(weir.admin_address(), "/metrics").text();
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok())
        .unwrap_or_else(|| panic!("no {name} in\n{page}"))
}
