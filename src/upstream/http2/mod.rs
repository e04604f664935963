//! HTTP/2 to backends: many requests over few connections.
//!
//! The protocol is h2's. A task of its own drives each connection, because it belongs to no single request; timeouts,
//! retries and what counts as a failure of the backend are the same as over HTTP/1.

mod pool;
mod stream;

use self::pool::join;
use super::backend::Backend;
use super::http1::ResponseHead;
use super::retry::{AttemptContext, AttemptError, RetryState};

pub(super) use self::stream::{StreamReader, once};

#[cfg(test)]
pub(super) use self::pool::connections;

/// Sends a request to a backend, and once more over another connection if the backend says that it has not processed
/// it.
pub(super) async fn send(
    backend: &Backend,
    retry: &mut RetryState<'_>,
    cx: &mut AttemptContext<'_>,
) -> Result<(Box<ResponseHead>, StreamReader), AttemptError> {
    let mut refused = false;
    loop {
        let (permit, reused) = join(backend, cx.proxy_pass)
            .await
            .map_err(|error| AttemptError::new(error, false, true))?;
        cx.note_connect_time(reused);
        let failed = match stream::exchange(permit, retry, cx).await {
            Ok(response) => return Ok(response),
            Err(failed) => failed,
        };
        if let Some(body) = failed.unsent {
            retry.put_back(body);
            if !std::mem::replace(&mut refused, true) {
                continue;
            }
        }
        return Err(AttemptError::new(failed.error, reused, failed.silent));
    }
}
