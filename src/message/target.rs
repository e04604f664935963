//! Host and path in the form that routing and keys use.

/// Host and path of a request, normalised.
#[derive(Debug, Default)]
pub struct Target {
    host: Option<Box<str>>,
    path: Option<Box<[u8]>>,
}
