//! Who the client is, and what is put up with from it.

mod caps;
mod half_closed;
mod introduced;
mod real_ip;
mod slow;
