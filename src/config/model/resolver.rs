//! `resolver`: whom to ask for the addresses of names.

use std::net::SocketAddr;

use super::values::{Flag, Time};
use crate::config::decode::{Field, HasShorthand, List, Required, record, scalar};
use crate::config::units;

record! {
    /// Whom to ask for the addresses of names, as nginx's `resolver`.
    pub struct Resolver {
        /// DNS servers, asked in turn: `10.0.0.2`, `10.0.0.2:5353` or `[::1]:53`.
        address: Required<List<NameServer>>,
        /// How long an answer holds, whatever it says of itself. Default: as it says, one second at least.
        valid: Field<Time>,
        /// How long a look-up may take. Default: 5s.
        timeout: Field<Time>,
        /// Whether IPv4 addresses are asked for. Default: true.
        ipv4: Field<Flag>,
        /// Whether IPv6 addresses are asked for. Default: true.
        ipv6: Field<Flag>,
    }
}

scalar! {
    /// A DNS server.
    pub struct NameServer(SocketAddr);
    "the address of a DNS server", units::name_server,
    { "description": "10.0.0.2, 10.0.0.2:53 or [::1]:53.", "type": "string" }
}

impl HasShorthand for Resolver {
    const KEY: &'static str = "address";
}
