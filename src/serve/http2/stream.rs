//! One stream: a request on the road, then its answer, until the last byte has left or the client gives it up.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Method, Request, Response, header};
use http_body::Body as _;

use super::head;
use super::roster::StreamTable;
use crate::clock::{MinRateTimer, TooSlow};
use crate::message::{ClientConnection, CloseConnection, ConnectionPhase, IncomingBody, headers};
use crate::serve::Handler;
use crate::telemetry::{COUNTERS, SlowPart, about_connection};

/// A request that has come, and where its answer goes.
pub(super) struct Http2Stream {
    pub(super) request: Request<RecvStream>,
    pub(super) respond: SendResponse<Bytes>,
    /// The client, as on a connection of its own.
    pub(super) peer: Arc<ClientConnection>,
    /// The client's connection.
    pub(super) connection: Arc<ClientConnection>,
    pub(super) roster: Arc<StreamTable>,
}

/// A stream under way, over when dropped.
struct StreamGuard {
    number: u32,
    peer: Arc<ClientConnection>,
    connection: Arc<ClientConnection>,
    roster: Arc<StreamTable>,
}

/// The client has reset the stream, or the connection is gone, or what came on it was malformed.
struct StreamReset;

impl Http2Stream {
    /// Answers it.
    pub(super) async fn run<H: Handler>(self, handler: H) {
        let mut respond = self.respond;
        let number = respond.stream_id().as_u32();
        let peer = Arc::clone(&self.peer);
        let _stay = StreamGuard {
            number,
            peer: self.peer,
            connection: self.connection,
            roster: self.roster,
        };
        let Some(request) = understood(self.request, &peer) else {
            return respond.send_reset(Reason::PROTOCOL_ERROR);
        };
        let asked = request.method().clone();
        peer.line.begin();
        let response = match handled(&handler, request, &peer, &mut respond).await {
            Ok(Ok(response)) => response,
            Ok(Err(CloseConnection)) => return respond.send_reset(Reason::CANCEL),
            Err(StreamReset) => return,
        };
        peer.line.decide();
        // An error here is a stream that is gone: who waits for it is told by the drop of the body.
        drop(answer(response, &asked, &peer, &mut respond).await);
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        let (line, connection) = (&self.peer.line, &self.connection.line);
        connection.adopt_timeouts(line);
        self.roster.leave(self.number, line.closes_after_answer());
        if line.closes_after_answer() {
            connection.wake();
        }
        line.closed();
    }
}

/// The request in the form the road knows.
fn understood(
    request: Request<RecvStream>,
    peer: &Arc<ClientConnection>,
) -> Option<Request<IncomingBody>> {
    if peer.line.refused().is_some() {
        return None;
    }
    let (head, body) = request.into_parts();
    let head = head::request(head)?;
    // h2 has read it already, and holds the body to it.
    let length = head.headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    let waits = head.headers.get(header::EXPECT);
    let waits = waits.filter(|what| what.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    let incoming = IncomingBody::stream(body, length, waits.map(|_| Arc::clone(peer)));
    Some(Request::from_parts(head, incoming))
}

/// What the road makes of a request; given up when the client gives it up.
async fn handled<H: Handler>(
    handler: &H,
    request: Request<IncomingBody>,
    peer: &Arc<ClientConnection>,
    respond: &mut SendResponse<Bytes>,
) -> Result<Result<Response<H::Body>, CloseConnection>, StreamReset> {
    let mut handling = pin!(handler.handle(Arc::clone(peer), request));
    let mut known = false;
    poll_fn(|context| {
        // Once is enough: a stream stays in its task.
        if !std::mem::replace(&mut known, true) {
            peer.line.driven_by(context.waker());
        }
        // Before anybody can see the end of a body that has no good end.
        if peer.line.refused().is_some() {
            respond.send_reset(Reason::PROTOCOL_ERROR);
            return Poll::Ready(Err(StreamReset));
        }
        if respond.poll_reset(context).is_ready() {
            return Poll::Ready(Err(StreamReset));
        }
        let handled = handling.as_mut().poll(context);
        let interims = match peer.line.has_interim() {
            true => peer.line.take_interim(),
            false => Vec::new(),
        };
        for interim in interims {
            let mut response = Response::new(());
            *response.status_mut() = interim.status;
            *response.headers_mut() = interim.headers;
            respond
                .send_informational(response)
                .map_err(|_| StreamReset)?;
        }
        handled.map(Ok)
    })
    .await
}

/// Sends an answer until its last byte has left.
async fn answer<B>(
    response: Response<B>,
    asked: &Method,
    peer: &ClientConnection,
    respond: &mut SendResponse<Bytes>,
) -> Result<(), StreamReset>
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    let (mut head, mut body) = response.into_parts();
    head::answer(&mut head, asked, &body.size_hint());
    let ends = body.is_end_stream();
    let sending = respond.send_response(Response::from_parts(head, ()), ends);
    let mut sending = ResponseSender {
        stream: sending.map_err(|_| StreamReset)?,
        peer,
        pace: MinRateTimer::default(),
        sent: 0,
    };
    if !ends {
        poll_fn(|context| sending.poll_body(&mut body, context)).await?;
    }
    // What lasts as long as the answer now waits for its last byte.
    drop(body);
    peer.line.answered();
    poll_fn(|context| sending.poll_left(context)).await
}

/// An answer on its way.
struct ResponseSender<'s> {
    stream: SendStream<Bytes>,
    peer: &'s ClientConnection,
    pace: MinRateTimer,
    // How much of it had left when it was last looked at.
    sent: u64,
}

impl ResponseSender<'_> {
    /// Hands the body over as fast as the client takes it.
    fn poll_body<B>(
        &mut self,
        body: &mut B,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), StreamReset>>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
    {
        if self.peer.line.refused().is_some() {
            self.stream.send_reset(Reason::PROTOCOL_ERROR);
            return Poll::Ready(Err(StreamReset));
        }
        if self.stream.poll_reset(context).is_ready() {
            return Poll::Ready(Err(StreamReset));
        }
        loop {
            ready!(self.poll_room(context))?;
            let frame = match ready!(Pin::new(&mut *body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(_)) => {
                    // The client must see that the rest is missing.
                    self.stream.send_reset(Reason::INTERNAL_ERROR);
                    return Poll::Ready(Err(StreamReset));
                }
                None => {
                    let ended = self.stream.send_data(Bytes::new(), true);
                    return Poll::Ready(ended.map_err(|_| StreamReset));
                }
            };
            match frame.into_data() {
                Ok(data) => {
                    let ends = body.is_end_stream();
                    self.stream.send_data(data, ends).map_err(|_| StreamReset)?;
                    if ends {
                        return Poll::Ready(Ok(()));
                    }
                }
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    return Poll::Ready(self.end(trailers));
                }
            }
        }
    }

    fn end(&mut self, mut trailers: HeaderMap) -> Result<(), StreamReset> {
        headers::clean_for_streams(&mut trailers);
        self.stream.send_trailers(trailers).map_err(|_| StreamReset)
    }

    /// Ready when the client takes more.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamReset>> {
        if self.stream.capacity() > 0 {
            return Poll::Ready(Ok(()));
        }
        self.stream.reserve_capacity(1);
        match self.stream.poll_capacity(context) {
            Poll::Ready(Some(Ok(_))) => {
                self.note_sent();
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Some(Err(_)) | None) => Poll::Ready(Err(StreamReset)),
            Poll::Pending => {
                self.peer.line.refill.run(context);
                self.poll_stalled(context).map(Err)
            }
        }
    }

    /// Ready when the last byte has left.
    fn poll_left(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamReset>> {
        if self.peer.line.phase() == ConnectionPhase::Idle {
            return Poll::Ready(Ok(()));
        }
        if self.stream.poll_reset(context).is_ready() {
            return Poll::Ready(Err(StreamReset));
        }
        self.poll_stalled(context).map(Err)
    }

    /// Ready when the client has taken nothing for too long, or too little; then it gets no more.
    fn poll_stalled(&mut self, context: &mut Context<'_>) -> Poll<StreamReset> {
        let line = &self.peer.line;
        loop {
            if line.sent() != self.sent {
                self.note_sent();
            }
            let (timeout, rate) = (line.send_timeout(), line.send_rate());
            let late = ready!(self.pace.poll_late(timeout, rate, context));
            if line.sent() != self.sent {
                continue;
            }
            if late == TooSlow::Slow {
                COUNTERS.give_up(SlowPart::Answer);
                let message =
                    format_args!("client takes its answer too slowly while sending to client");
                tracing::info!("{}", about_connection(message, self.peer));
            }
            self.stream.send_reset(Reason::CANCEL);
            return Poll::Ready(StreamReset);
        }
    }

    fn note_sent(&mut self) {
        let sent = self.peer.line.sent();
        let more = usize::try_from(sent - self.sent).unwrap_or(usize::MAX);
        self.pace.moved(more, self.peer.line.send_rate());
        self.sent = sent;
    }
}
