//! The types of one HTTP message, shared by the folders that handle it.

mod chunked;
mod client_addr;
mod connection;
mod connection_state;
pub mod grpc;
pub mod headers;
mod http2;
mod local_reply;
pub mod prebuilt;
mod record;
mod request_body;
mod response_body;
mod target;
#[cfg(test)]
#[path = "tests/testing.rs"]
pub(crate) mod testing;
mod trace;
pub mod variables;

pub use self::chunked::{ChunkEvent, ChunkScanner, MalformedChunk};
pub use self::client_addr::{ClientAddr, RemoteAddr};
pub use self::connection::{
    AlpnProtocol, Ambiguity, CertificateStatus, ClientCertificate, ClientConnection, ProxyHeader,
    TlsInfo,
};
pub use self::connection_state::{
    ConnectionPhase, ConnectionState, InterimResponse, ReadAhead, ResponseEnd, ResponseGuard,
    Tunnel,
};
pub use self::http2::{FrameHeader, FrameScanner, FrameType};
pub use self::local_reply::{LocalReply, PageFormat, best_offer, reason};
pub use self::prebuilt::{Prebuilt, PrebuiltResponse, RawHeaders};
pub use self::record::{Attempt, CloseConnection, LimitStatus, RequestRecord};
pub use self::request_body::{
    IncomingBody, ReplayableBody, RequestBody, RequestBodyError, UploadProgress, drain,
};
pub use self::response_body::{ResponseBody, Throttle};
pub use self::target::{Error, Target, encode_path, push_encoded, target_sent, write_target};
pub use self::trace::{
    Propagation, SpanId, TRACEPARENT, Trace, TraceId, TraceParent, has_sound_state,
};
