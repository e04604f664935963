//! A request's body on its way out, watched: the answer is awaited from its end on, and a connection is only kept
//! if it had one.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use crate::message::{Upload, upload};

/// What hyper sends.
#[derive(Debug)]
pub(super) struct Sending {
    upload: Upload,
    // Nothing to watch where there is no body: no allocation for most requests.
    watch: Option<Arc<Watch>>,
}

/// How far it has come.
#[derive(Debug, Default)]
pub(super) struct Watch {
    ended: OnceLock<Instant>,
    failed: AtomicBool,
}

impl Sending {
    pub(super) fn new(upload: Upload) -> Self {
        Self {
            watch: (!upload.is_none()).then(Arc::default),
            upload,
        }
    }

    pub(super) fn watch(&self) -> Option<Arc<Watch>> {
        self.watch.clone()
    }

    pub(super) fn into_upload(self) -> Upload {
        self.upload
    }
}

impl Watch {
    /// When its last byte was handed to the connection.
    pub(super) fn ended(&self) -> Option<Instant> {
        self.ended.get().copied()
    }

    /// Whether the client failed to bring it to its end.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

impl Body for Sending {
    type Data = Bytes;
    type Error = upload::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, upload::Error>>> {
        let frame = ready!(Pin::new(&mut self.upload).poll_frame(context));
        if let Some(watch) = &self.watch {
            match &frame {
                Some(Err(_)) => watch.failed.store(true, Ordering::Relaxed),
                Some(Ok(_)) if !self.upload.is_end_stream() => {}
                Some(Ok(_)) | None => {
                    watch.ended.get_or_init(Instant::now);
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.upload.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.upload.size_hint()
    }
}
