//! Who the client is, and what is put up with from it.

use super::access::AccessWord;
use super::values::Flag;
use crate::config::decode::{Field, List, Text, choice, number, record};
use crate::config::plan::ProxyProtocolVersion;

record! {
    /// Whose word is taken for the client's address, as in nginx's realip module.
    pub struct RealIp {
        /// Addresses and networks of proxies that may say who the client is; `unix:` for those on a unix socket.
        from: Field<List<AccessWord>>,
        /// Where they say it: X-Forwarded-For, Forwarded, X-Real-IP, CF-Connecting-IP or any other header, or proxy_protocol. Default: X-Real-IP.
        header: Field<Text>,
        /// Whether a trusted address in the header is passed over for the one to its left. Default: false.
        recursive: Field<Flag>,
    }
}

number! {
    /// How many connections.
    pub struct ConnectionCount(u32) = "a number of connections", 1..=100_000_000
}

choice! {
    /// Whether upstreams are told the client's address by a PROXY header, and in which version.
    pub struct ProxyProtocol(ProxyProtocolVersion) = "a version of the PROXY protocol" {
        "off" => ProxyProtocolVersion::Off,
        "on" => ProxyProtocolVersion::V1,
        "v1" => ProxyProtocolVersion::V1,
        "v2" => ProxyProtocolVersion::V2,
        "false" => ProxyProtocolVersion::Off,
        "true" => ProxyProtocolVersion::V1,
    }
}
