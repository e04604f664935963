//! What of requests and responses is buffered, and within which bounds.

use std::path::Path;
use std::sync::Arc;

/// `buffers`: bounds over all requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferBounds {
    /// `memory`, in bytes.
    pub memory: u64,
    /// `disk`, in bytes.
    pub disk: u64,
}

impl Default for BufferBounds {
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            disk: 1 << 30,
        }
    }
}

/// What is buffered of requests that are sent on, and of their responses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffering {
    /// `None` for `proxy_request_buffering: off`.
    pub request: Option<RequestBuffering>,
    /// `proxy_buffering`
    pub response: ResponseBuffering,
}

/// `proxy_request_buffering: on`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestBuffering {
    /// `client_body_buffer_size`, in bytes.
    pub memory: usize,
    /// `client_body_temp_path`
    pub path: Arc<Path>,
}

/// What holds for a response that is buffered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseBuffering {
    /// `proxy_buffering`: whether responses are buffered that do not say so themselves.
    pub on: bool,
    /// `proxy_buffers`, in bytes.
    pub memory: usize,
    /// `proxy_max_temp_file_size`, in bytes.
    pub disk: u64,
    /// `path` of `buffers`.
    pub path: Arc<Path>,
}
