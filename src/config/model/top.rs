//! The file as a whole.

use super::buffering::BufferBounds;
use super::client::ConnectionCount;
use super::fallback::DegradeMode;
use super::limits::{ConnZone, ReqZone};
use super::maps::MapDirective;
use super::resolver::Resolver;
use super::server::Server;
use super::settings::{Connection, Settings};
use super::store::Store;
use super::tls::Tls;
use super::traces::Tracing;
use super::upstream::Upstream;
use super::values::{AdminAddress, ErrorLogLevel, Size, Time, Workers};
use crate::config::Secret;
use crate::config::decode::{Field, List, NamedMap, OrOff, Required, Shorthand, Text, record};

record! {
    /// The configuration of weir.
    pub struct Config {
        /// Event loops, each a thread; `auto` for one per core. Default: auto.
        workers: Field<Workers>,
        /// How long requests in flight may go on after a stop was asked for. Default: 30s.
        shutdown_timeout: Field<Time>,
        /// Where log lines go.
        log: Field<Log>,
        /// The listener for metrics and whoever looks in from outside. Default: none; `admin: {}` for one on 127.0.0.1:9900.
        admin: Field<Admin>,
        /// Traces of requests for an OpenTelemetry collector. Default: none.
        tracing: Field<Tracing>,
        /// How many client connections may be open at once, in all. Default: no limit but the system's.
        max_connections: Field<ConnectionCount>,
        /// How many of them may come from one address, or from one /64 of IPv6. Default: no limit.
        max_connections_per_address: Field<ConnectionCount>,
        /// Variables made from others, nginx's `map` and `geo`; the names begin with `$`.
        maps: Field<NamedMap<MapDirective>>,
        /// Where zones may keep their counters instead of in this process, by name.
        stores: Field<NamedMap<Store>>,
        /// Zones of `limit_req`, by name.
        limit_req_zones: Field<NamedMap<ReqZone>>,
        /// Zones of `limit_conn`, by name.
        limit_conn_zones: Field<NamedMap<ConnZone>>,
        /// Groups of locations that are degraded together: `auto`, `on` to give everybody the fallback, `off` for nobody.
        degrade_groups: Field<NamedMap<DegradeMode>>,
        /// How much memory last good answers may take, of all fallbacks with `stale`. Default: 32m.
        stale_size: Field<Size>,
        /// Bounds of what is buffered, of all requests together.
        buffers: Field<BufferBounds>,
        /// Whom to ask for the addresses of names that are looked up again, see `resolve`. Default: the system.
        resolver: Field<Shorthand<Resolver>>,
        /// Groups of servers to forward to, by name.
        upstreams: Field<NamedMap<Upstream>>,
        /// What holds for TLS in every server that does not say otherwise.
        tls: Field<Tls>,
        /// Virtual servers.
        servers: Required<List<Server>>,
    }
    with settings: Settings, connection: Connection,
}

record! {
    /// Where log lines go.
    pub struct Log {
        /// The least severe level that is written: error, warn, info or debug. Default: info.
        level: Field<ErrorLogLevel>,
        /// Where everything but the access log goes. Default: standard error.
        error: Field<ErrorLog>,
        /// One line per request; `off` for none.
        access: Field<OrOff<AccessLog>>,
    }
}

record! {
    /// The error log.
    pub struct ErrorLog {
        /// A file, or `-` for standard error. Default: -.
        path: Field<Text>,
        /// The least severe level that is written, as `log.level`, which it takes the place of.
        level: Field<ErrorLogLevel>,
    }
}

record! {
    /// The access log.
    pub struct AccessLog {
        /// A file, or `-` for standard output. Default: -.
        path: Field<Text>,
        /// `combined` as nginx's, `json`, or a text of variables. Default: combined.
        format: Field<Text>,
    }
}

record! {
    /// The admin listener.
    pub struct Admin {
        /// Where it listens. Default: 127.0.0.1:9900.
        listen: Field<AdminAddress>,
        /// What has to be shown for every call that changes something, and for every call from off this machine.
        token: Field<Secret>,
    }
}
