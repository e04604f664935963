//! Who the client is, and how many of them there may be.

use std::num::NonZeroU32;

use http::HeaderName;

use super::ClientMatch;

/// `real_ip`: whose word is taken for the client's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RealIp {
    /// `from`: those who may say it.
    pub from: Vec<ClientMatch>,
    /// `header`: where they say it.
    pub header: RealIpHeader,
    /// `recursive`: whether those who may say it are passed over when they are named themselves.
    pub recursive: bool,
}

/// Where a proxy says who the client is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RealIpHeader {
    /// `Forwarded` of RFC 7239.
    Forwarded,
    /// A field with nothing but addresses, of which the first line counts.
    Other(HeaderName),
    /// What the connection began with.
    ProxyProtocol,
    /// `X-Forwarded-For`, all lines of it one list.
    XForwardedFor,
}

/// How many client connections may be open at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// `max_connections`
    pub all: Option<NonZeroU32>,
    /// `max_connections_per_address`
    pub per_address: Option<NonZeroU32>,
}

/// Whether upstreams are sent a PROXY header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProxyProtocolVersion {
    /// They are not.
    #[default]
    Off,
    /// The one of version 1, a line of text.
    V1,
    /// The one of version 2, in binary.
    V2,
}
