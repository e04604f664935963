//! Clients: their addresses, the limits on their connections, and how slow they may be.

mod connection_limits;
mod half_closed;
mod proxy_protocol;
mod real_ip;
mod slow;
