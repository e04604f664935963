//! What of requests and responses is buffered, and within which bounds.

use super::settings::Buffers;
use super::values::{Flag, Size};
use crate::config::decode::{Field, Text, record};

record! {
    /// Buffering between clients and upstreams.
    pub struct Buffering {
        /// Whether a request's body is read whole before an upstream is asked. Default: on.
        proxy_request_buffering: Field<Flag>,
        /// How much of a request's body is kept in memory; what is longer goes to a file. Default: 16k.
        client_body_buffer_size: Field<Size>,
        /// The directory for files with request bodies; no file in it ever has a name. Default: `path` of `buffers`.
        client_body_temp_path: Field<Text>,
        /// Whether a response is read as fast as the upstream sends it; what the client cannot take yet is kept. Default: on.
        proxy_buffering: Field<Flag>,
        /// How much of a response is kept in memory for a slow client: number and size, multiplied. Default: 8 4k.
        proxy_buffers: Field<Buffers>,
        /// How much of a response is kept in a file beyond that; 0 for no file. Default: 1024m.
        proxy_max_temp_file_size: Field<Size>,
    }
}

record! {
    /// Bounds of what is buffered, of all requests together.
    pub struct BufferBounds {
        /// How much may be kept in memory. Default: 64m.
        memory: Field<Size>,
        /// How much may be kept in files. Default: 1g.
        disk: Field<Size>,
        /// The directory for the files; no file in it ever has a name. Default: /var/tmp.
        path: Field<Text>,
    }
}
