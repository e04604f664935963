//! The commands that talk to a running weir about its parts: each makes one request to the API and shows the response.

pub(super) mod limits;
pub(super) mod requests;
pub(super) mod upstreams;
