//! The body of a response, and what waits for its end.
//!
//! The body is an enum, never boxed: every response passes through here. What has to last as long as the response (the slot in
//! a `limit_conn`, the access-log line) travels with it as its [`ResponseGuard`], and is released when the last byte has left
//! the socket or the client is gone, in every way a response can end.
//!
//! [`Throttle`] is nginx's `limit_rate`. nginx sends a second's worth and then waits out that second. Here the pieces are a
//! tenth of it, so that a film or a progress bar flows steadily; over a few seconds the bytes are the same. What may not leave
//! yet is not read either: unless the response is buffered, a backend is read no faster than its client is written to.

#[cfg(test)]
#[path = "tests/response_body.rs"]
mod tests;

use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use tokio::time::Instant;

use super::connection::ClientConnection;
use super::connection_state::{ResponseEnd, ResponseGuard};
use crate::clock::Deadline;

/// The body of a response; `D` is the type of one from upstream.
#[derive(Debug)]
pub struct ResponseBody<D: http_body::Body<Error: std::fmt::Debug>> {
    source: BodySource<D>,
    // Boxed: hardly any response has one, and all are moved about.
    failure: Option<Box<D::Error>>,
    // Boxed for the same reason.
    throttle: Option<Box<Throttle>>,
    // With the connection that the response leaves over.
    guard: Option<(Box<dyn ResponseGuard>, Arc<ClientConnection>)>,
}

#[derive(Debug)]
enum BodySource<D> {
    Upstream(D),
    /// This many bytes that lie ready at the connection.
    Prebuilt(usize),
    Whole(Bytes),
}

impl<D: http_body::Body<Error: std::fmt::Debug>> ResponseBody<D> {
    /// A body that is complete.
    pub fn whole(bytes: Bytes) -> Self {
        Self::new(BodySource::Whole(bytes))
    }

    /// A body of this length, with which the connection completes a prebuilt response.
    pub fn prebuilt(length: usize) -> Self {
        Self::new(BodySource::Prebuilt(length))
    }

    /// A body that comes from upstream.
    pub fn upstream(body: D) -> Self {
        Self::new(BodySource::Upstream(body))
    }

    fn new(source: BodySource<D>) -> Self {
        Self {
            source,
            failure: None,
            throttle: None,
            guard: None,
        }
    }

    /// Gives it what has to last as long as it does, and the connection that it leaves over.
    pub fn set_guard(&mut self, guard: Box<dyn ResponseGuard>, connection: Arc<ClientConnection>) {
        self.guard = Some((guard, connection));
    }

    /// It leaves no faster than this.
    pub fn set_throttle(&mut self, throttle: Throttle) {
        self.throttle = Some(Box::new(throttle));
    }

    fn has_ended(&self) -> bool {
        let all_taken = match &self.source {
            BodySource::Upstream(body) => body.is_end_stream(),
            BodySource::Prebuilt(_) => true,
            BodySource::Whole(bytes) => bytes.is_empty(),
        };
        all_taken && self.held_back() == 0
    }

    /// Bytes that were taken from the source and may not leave yet.
    fn held_back(&self) -> u64 {
        let throttle = self.throttle.as_ref();
        throttle.map_or(0, |throttle| throttle.held.len() as u64)
    }

    fn end(&mut self, ending: ResponseEnd) {
        let Some((mut guard, connection)) = self.guard.take() else {
            return;
        };
        match ending {
            ResponseEnd::Complete => {
                if let BodySource::Prebuilt(length) = self.source {
                    guard.sent(length);
                }
                guard.taken();
                connection.state.finish_when_flushed(guard);
            }
            ResponseEnd::Aborted => guard.finish(ResponseEnd::Aborted),
        }
    }
}

impl<D> http_body::Body for ResponseBody<D>
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
            if matches!(&this.guard, Some((_, connection)) if connection.state.unsent.get()) {
                this.failure = Some(failure);
                return Poll::Pending;
            }
            this.end(ResponseEnd::Aborted);
            return Poll::Ready(Some(Err(*failure)));
        }
        let frame = match &mut this.throttle {
            None => ready!(this.source.poll_frame(context)),
            Some(throttle) => {
                let frame = throttle.poll_frame(&mut this.source, context);
                if frame.is_pending()
                    && let Some((_, connection)) = &this.guard
                {
                    connection.state.read_ahead(context);
                }
                ready!(frame)
            }
        };
        match frame {
            Some(Ok(frame)) => {
                if let (Some(data), Some((guard, _))) = (frame.data_ref(), &mut this.guard) {
                    guard.sent(data.remaining());
                }
                Poll::Ready(Some(Ok(frame)))
            }
            // hyper would drop the connection with all it has not written yet, perhaps the headers. It
            // writes when there is nothing more for now: then the client sees how far the response came.
            Some(Err(failure)) => {
                this.failure = Some(Box::new(failure));
                context.waker().wake_by_ref();
                Poll::Pending
            }
            None => {
                this.end(ResponseEnd::Complete);
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended()
    }

    fn size_hint(&self) -> SizeHint {
        let hint = match &self.source {
            BodySource::Upstream(body) => body.size_hint(),
            BodySource::Prebuilt(_) => SizeHint::with_exact(0),
            BodySource::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
        };
        match self.held_back() {
            0 => hint,
            held_back => extended(hint, held_back),
        }
    }
}

/// A hint about a body with this many bytes before it.
pub(super) fn extended(mut hint: SizeHint, bytes: u64) -> SizeHint {
    if let Some(upper) = hint.upper() {
        hint.set_upper(upper.saturating_add(bytes));
    }
    hint.set_lower(hint.lower().saturating_add(bytes));
    hint
}

impl<D> BodySource<D>
where
    D: http_body::Body<Data = Bytes> + Unpin,
{
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, D::Error>>> {
        match self {
            Self::Upstream(body) => Pin::new(body).poll_frame(context),
            Self::Prebuilt(_) => Poll::Ready(None),
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
        }
    }
}

impl<D: http_body::Body<Error: std::fmt::Debug>> Drop for ResponseBody<D> {
    fn drop(&mut self) {
        // hyper drops a body that it knows to be finished without polling for the end.
        self.end(if self.has_ended() {
            ResponseEnd::Complete
        } else {
            ResponseEnd::Aborted
        });
    }
}

/// How fast a response may leave, and how far it has come.
#[derive(Debug)]
pub struct Throttle {
    /// In bytes a second.
    rate: NonZeroU64,
    /// Bytes that leave at any speed before the rate holds.
    free: u64,
    /// When what has left so far would have left at just this rate; `None` until something has.
    due: Option<Instant>,
    wait: Deadline,
    held: Bytes,
}

impl Throttle {
    /// So many bytes a second, once the first `after` have left.
    pub fn new(rate: NonZeroU64, after: u64) -> Self {
        Self {
            rate,
            free: after,
            due: None,
            wait: Deadline::default(),
            held: Bytes::new(),
        }
    }

    /// The next piece of a body, when it is time for it.
    fn poll_frame<D>(
        &mut self,
        source: &mut BodySource<D>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, D::Error>>>
    where
        D: http_body::Body<Data = Bytes> + Unpin,
    {
        if let Some(due) = self.due
            && due > Instant::now() + TIMER_PRECISION
        {
            self.wait.set(due);
            ready!(self.wait.poll_passed(context));
        }
        if self.held.is_empty() {
            let frame = match ready!(source.poll_frame(context)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            match frame.into_data() {
                Ok(data) => self.held = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let piece = self.take_piece(Instant::now());
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    /// Takes what may leave now from what waits, and sets when more may.
    fn take_piece(&mut self, now: Instant) -> Bytes {
        let most = self.free.saturating_add(self.piece());
        let length =
            usize::try_from(most).map_or(self.held.len(), |most| most.min(self.held.len()));
        let piece = self.held.split_to(length);
        let free = self.free.min(length as u64);
        self.free -= free;
        // A backend that paused for long does not make up for all of it.
        let earliest = now.checked_sub(MAX_CATCH_UP).unwrap_or(now);
        let from = self.due.map_or(now, |due| due.max(earliest));
        self.due = from.checked_add(self.time_for(length as u64 - free));
        piece
    }

    /// What may leave at once: a tenth of a second's worth, unless that were crumbs.
    fn piece(&self) -> u64 {
        let rate = self.rate.get();
        (rate / 10).max(rate.min(MIN_PIECE))
    }

    fn time_for(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate.get());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Waits shorter than the runtime's timers can tell are made up for by the next.
const TIMER_PRECISION: Duration = Duration::from_millis(1);

/// How far a response that was delayed elsewhere may run ahead to make up for it.
const MAX_CATCH_UP: Duration = Duration::from_secs(1);

/// Bytes that are hardly worth a packet.
const MIN_PIECE: u64 = 512;

#[cfg(test)]
mod throttle_tests {

    use std::pin::Pin;

    use http_body::Body as _;
    use http_body_util::{BodyExt as _, Empty};

    use super::{ResponseBody, *};

    type Plain = ResponseBody<Empty<Bytes>>;

    fn throttled(length: usize, rate: u64, after: u64) -> Plain {
        let mut body = ResponseBody::whole(Bytes::from(vec![b'x'; length]));
        body.set_throttle(Throttle::new(NonZeroU64::new(rate).unwrap(), after));
        body
    }

    /// When each piece came, in milliseconds, and how long it was.
    async fn pieces(mut body: Plain) -> Vec<(u64, usize)> {
        let began = Instant::now();
        let mut pieces = Vec::new();
        while let Some(frame) = body.frame().await {
            let millis = u64::try_from(began.elapsed().as_millis()).unwrap();
            pieces.push((millis, frame.unwrap().into_data().unwrap().len()));
        }
        pieces
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_leaves_evenly_at_its_rate() {
        let came = pieces(throttled(100_000, 10_000, 0)).await;
        assert_eq!(came.len(), 100);
        for (number, (millis, length)) in (0..).zip(came) {
            assert_eq!((millis, length), (number * 100, 1000));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_bytes_leave_at_once() {
        let came = pieces(throttled(50_000, 10_000, 40_000)).await;
        assert_eq!(came.first(), Some(&(0, 41_000)));
        assert_eq!(came.last(), Some(&(900, 1000)));
        assert_eq!(pieces(throttled(500, 10_000, 500)).await, [(0, 500)]);
    }

    #[tokio::test(start_paused = true)]
    async fn low_rates_are_not_cut_into_crumbs() {
        assert_eq!(
            pieces(throttled(1000, 400, 0)).await,
            [(0, 400), (1000, 400), (2000, 200)]
        );
        assert_eq!(pieces(throttled(2, 1, 0)).await, [(0, 1), (1000, 1)]);
    }

    /// Timers are cut to milliseconds; the rate is not.
    #[tokio::test(start_paused = true)]
    async fn odd_rates_are_kept_over_time() {
        for rate in [3, 777, 123_457, 1_000_003] {
            let length = usize::try_from(rate * 60).unwrap();
            let (last, _) = *pieces(throttled(length, rate, 0)).await.last().unwrap();
            assert!((58_900..=60_000).contains(&last), "{rate}: {last}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_high_rate_does_not_wait_for_the_clock() {
        let came = pieces(throttled(1 << 20, u64::MAX, 0)).await;
        assert_eq!(came, [(0, 1 << 20)]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_held_back_is_still_to_come() {
        let mut body = throttled(3000, 10_000, 0);
        assert_eq!(body.size_hint().exact(), Some(3000));
        body.frame().await.unwrap().unwrap();
        assert_eq!(body.size_hint().exact(), Some(2000));
        assert!(!body.is_end_stream());
        body.frame().await.unwrap().unwrap();
        body.frame().await.unwrap().unwrap();
        assert!(body.is_end_stream());
    }

    /// A pause of ten seconds lets a second's worth run ahead, not ten.
    #[tokio::test(start_paused = true)]
    async fn a_pause_elsewhere_is_not_made_up_for_in_full() {
        let mut body = throttled(100_000, 10_000, 0);
        body.frame().await.unwrap().unwrap();
        tokio::time::advance(Duration::from_secs(10)).await;
        let mut at_once = 0;
        std::future::poll_fn(|context| {
            while let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(context) {
                at_once += frame.unwrap().unwrap().into_data().unwrap().len();
            }
            Poll::Ready(())
        })
        .await;
        assert_eq!(at_once, 11_000);
    }
}
