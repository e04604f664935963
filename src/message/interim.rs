//! An interim (1xx) answer on its way to the client, in neither version's spelling.

use std::io::Write as _;

use http::{HeaderMap, StatusCode};

/// The head of an interim answer, which is all of it.
#[derive(Debug)]
pub struct InterimResponse {
    /// Its status.
    pub status: StatusCode,
    /// Its fields, those of the connection it came over left out.
    pub headers: HeaderMap,
}

impl InterimResponse {
    /// The one that asks for the body.
    #[must_use]
    pub fn go_on() -> Self {
        Self {
            status: StatusCode::CONTINUE,
            headers: HeaderMap::new(),
        }
    }

    /// Appends it as HTTP/1.1 writes it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let reason = self.status.canonical_reason().unwrap_or_default();
        // Writing to memory does not fail.
        drop(write!(
            out,
            "HTTP/1.1 {} {reason}\r\n",
            self.status.as_str()
        ));
        for (name, value) in &self.headers {
            out.extend_from_slice(name.as_str().as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
    }

    /// How long it is, about.
    pub(super) fn length(&self) -> usize {
        let fields = self.headers.iter();
        let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + 4);
        fields.sum::<usize>() + "HTTP/1.1 103 Early Hints\r\n\r\n".len()
    }
}
