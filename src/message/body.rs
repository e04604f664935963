//! The body of an answer, and what waits for its end.
//!
//! An enum, never boxed: every answer passes through here. Whatever must last as long as the answer —
//! the place in a `limit_conn`, the access-log line — travels with it as its [`Tail`], and is let go when
//! the last byte has left the socket or the client is gone, in every way an answer can end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};

use super::{Ending, Peer};

/// What lasts as long as an answer.
pub trait Tail: std::fmt::Debug + Send {
    /// So many bytes of the body were handed to the connection.
    fn sent(&mut self, bytes: usize);
    /// So many bytes came from the client, through a tunnel.
    fn received(&mut self, _bytes: usize) {}
    /// The connection has all of the answer and is about to write it.
    fn taken(&mut self) {}
    /// The connection it belongs to.
    fn peer(&self) -> &Arc<Peer>;
    /// It is over.
    fn finish(self: Box<Self>, ending: Ending);
}

/// The body of an answer; `D` is how one from upstream is read.
#[derive(Debug)]
pub struct Body<D: http_body::Body<Error: std::fmt::Debug>> {
    source: Source<D>,
    // Boxed: hardly any answer has one, and all are moved about.
    failure: Option<Box<D::Error>>,
    tail: Option<Box<dyn Tail>>,
}

#[derive(Debug)]
enum Source<D> {
    Download(D),
    /// So many bytes that lie ready at the connection.
    Stocked(usize),
    Whole(Bytes),
}

impl<D: http_body::Body<Error: std::fmt::Debug>> Body<D> {
    /// A body that is all here.
    #[must_use]
    pub fn whole(bytes: Bytes) -> Self {
        Self {
            source: Source::Whole(bytes),
            failure: None,
            tail: None,
        }
    }

    /// A body of this length, with which the connection completes the answer.
    #[must_use]
    pub fn stocked(length: usize) -> Self {
        Self {
            source: Source::Stocked(length),
            failure: None,
            tail: None,
        }
    }

    /// A body that comes from upstream.
    #[must_use]
    pub fn download(download: D) -> Self {
        Self {
            source: Source::Download(download),
            failure: None,
            tail: None,
        }
    }

    /// Gives it what has to last as long as it does.
    pub fn set_tail(&mut self, tail: Box<dyn Tail>) {
        self.tail = Some(tail);
    }

    fn has_ended(&self) -> bool {
        match &self.source {
            Source::Download(download) => download.is_end_stream(),
            Source::Stocked(_) => true,
            Source::Whole(bytes) => bytes.is_empty(),
        }
    }

    fn end(&mut self, ending: Ending) {
        let Some(mut tail) = self.tail.take() else {
            return;
        };
        match ending {
            Ending::Complete => {
                if let Source::Stocked(length) = self.source {
                    tail.sent(length);
                }
                tail.taken();
                let peer = Arc::clone(tail.peer());
                peer.line.finish_when_flushed(tail);
            }
            Ending::Aborted => tail.finish(Ending::Aborted),
        }
    }
}

impl<D> http_body::Body for Body<D>
where
    D: http_body::Body<Data = Bytes, Error: std::fmt::Debug + Unpin> + Unpin,
{
    type Data = Bytes;
    type Error = D::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        if let Some(failure) = this.failure.take() {
            // What came before it is still on its way to a client that reads slowly: this is asked again then.
            if this
                .tail
                .as_ref()
                .is_some_and(|tail| tail.peer().line.unsent())
            {
                this.failure = Some(failure);
                return Poll::Pending;
            }
            this.end(Ending::Aborted);
            return Poll::Ready(Some(Err(*failure)));
        }
        let frame = match &mut this.source {
            Source::Download(download) => std::task::ready!(Pin::new(download).poll_frame(context)),
            Source::Stocked(_) => None,
            Source::Whole(bytes) if bytes.is_empty() => None,
            Source::Whole(bytes) => Some(Ok(Frame::data(std::mem::take(bytes)))),
        };
        match frame {
            Some(Ok(frame)) => {
                if let (Some(data), Some(tail)) = (frame.data_ref(), &mut this.tail) {
                    tail.sent(data.remaining());
                }
                Poll::Ready(Some(Ok(frame)))
            }
            // hyper would let go of the connection with all it has not written yet, perhaps the head. It
            // writes when there is nothing more for now: then the client sees how far the answer came.
            Some(Err(failure)) => {
                this.failure = Some(Box::new(failure));
                context.waker().wake_by_ref();
                Poll::Pending
            }
            None => {
                this.end(Ending::Complete);
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Download(download) => download.size_hint(),
            Source::Stocked(_) => SizeHint::with_exact(0),
            Source::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}

impl<D: http_body::Body<Error: std::fmt::Debug>> Drop for Body<D> {
    fn drop(&mut self) {
        // hyper lets go of a body it knows to be finished without asking for the end.
        self.end(if self.has_ended() {
            Ending::Complete
        } else {
            Ending::Aborted
        });
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use parking_lot::Mutex;

    use super::*;
    use crate::message::testing;

    /// What an upstream sends before its connection breaks.
    #[derive(Debug)]
    struct Download(Option<Bytes>);

    impl http_body::Body for Download {
        type Data = Bytes;
        type Error = &'static str;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
            Poll::Ready(Some(self.0.take().map(Frame::data).ok_or("gone")))
        }
    }

    /// Remembers what it was told.
    #[derive(Debug)]
    struct Witness {
        peer: Arc<Peer>,
        sent: usize,
        heard: Arc<Mutex<Vec<(usize, Ending)>>>,
    }

    impl Tail for Witness {
        fn sent(&mut self, bytes: usize) {
            self.sent += bytes;
        }

        fn peer(&self) -> &Arc<Peer> {
            &self.peer
        }

        fn finish(self: Box<Self>, ending: Ending) {
            self.heard.lock().push((self.sent, ending));
        }
    }

    struct Scene {
        peer: Arc<Peer>,
        heard: Arc<Mutex<Vec<(usize, Ending)>>>,
    }

    impl Scene {
        fn new() -> Self {
            Self {
                peer: Arc::new(testing::peer()),
                heard: Arc::default(),
            }
        }

        fn watch(&self, mut body: Body<Download>) -> Body<Download> {
            body.set_tail(Box::new(Witness {
                peer: Arc::clone(&self.peer),
                sent: 0,
                heard: Arc::clone(&self.heard),
            }));
            body
        }

        fn heard(&self) -> Vec<(usize, Ending)> {
            self.heard.lock().clone()
        }
    }

    #[tokio::test]
    async fn an_answer_is_over_when_its_bytes_have_left_and_not_before() {
        let scene = Scene::new();
        let mut body = scene.watch(Body::whole(Bytes::from_static(b"hello")));
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "hello");
        // hyper knows it to be finished and does not ask again.
        drop(body);
        assert_eq!(scene.heard(), []);
        scene.peer.line.flushed();
        assert_eq!(scene.heard(), [(5, Ending::Complete)]);
        scene.peer.line.closed();
        assert_eq!(scene.heard().len(), 1);
    }

    #[tokio::test]
    async fn an_answer_whose_bytes_never_left_was_aborted() {
        let scene = Scene::new();
        let body = scene.watch(Body::whole(Bytes::from_static(b"hello")));
        body.collect().await.unwrap();
        scene.peer.line.closed();
        assert_eq!(scene.heard(), [(5, Ending::Aborted)]);
    }

    #[test]
    fn an_answer_nobody_took_was_aborted_but_an_empty_one_is_complete() {
        let scene = Scene::new();
        drop(scene.watch(Body::whole(Bytes::from_static(b"hello"))));
        assert_eq!(scene.heard(), [(0, Ending::Aborted)]);

        let scene = Scene::new();
        drop(scene.watch(Body::whole(Bytes::new())));
        scene.peer.line.flushed();
        assert_eq!(scene.heard(), [(0, Ending::Complete)]);
    }

    #[tokio::test]
    async fn a_download_that_breaks_is_aborted_at_once() {
        let scene = Scene::new();
        let part = Bytes::from_static(b"par");
        let mut body = scene.watch(Body::download(Download(Some(part))));
        assert!(body.frame().await.unwrap().is_ok());
        assert!(body.frame().await.unwrap().is_err());
        assert_eq!(scene.heard(), [(3, Ending::Aborted)]);
        drop(body);
        assert_eq!(scene.heard().len(), 1);
    }

    #[tokio::test]
    async fn pipelined_answers_end_in_their_order() {
        let scene = Scene::new();
        for text in ["a", "bb"] {
            let body = scene.watch(Body::whole(Bytes::from_static(text.as_bytes())));
            body.collect().await.unwrap();
        }
        scene.peer.line.flushed();
        assert_eq!(
            scene.heard(),
            [(1, Ending::Complete), (2, Ending::Complete)]
        );
    }
}
