//! One request on a shared connection, until the head of its answer.
//!
//! One request on a connection of its own: for those who come seldom and share nothing.
//!
//! The body of an answer, off a shared connection.
//!
//! A request's body on its way out, as fast as the backend takes it.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::response::Parts;
use http::{HeaderMap, Request, Response, header};
use http_body::{Body as _, SizeHint};

use super::{SMALL_HEAD, StreamPermit, UpstreamHttp2Io, broken, builder, truncated};
use crate::clock::{Deadline, Millis};
use crate::config::plan::ProxyPass;
use crate::message::{RequestBody, RequestRecord, grpc};
use crate::tls::Socket;
use crate::upstream::attempt::{AttemptResponse, ResponseSource};
use crate::upstream::error::{Error, InvalidResponse, Stage};
use crate::upstream::http1::request::{PendingBody, may_trail};
use crate::upstream::http1::{BodyChunk, ResponseHead};
use crate::upstream::request::InterimRelay;
use crate::upstream::send::{RetryState, SendError};

/// Sends a request and waits for the head of its answer.
pub(super) async fn call(
    mut ride: StreamPermit,
    errand: &mut RetryState<'_>,
    record: &RequestRecord,
    proxy_pass: &ProxyPass,
    now: Millis,
) -> Result<AttemptResponse, SendError> {
    let (request, cargo) = errand.load_stream();
    let head = list_size(&request);
    let ready = async {
        poll_fn(|context| ride.send.poll_ready(context))
            .await
            .map_err(broken)?;
        match ride.takes(head).await {
            true => Ok(()),
            false => Err(Error::TooLarge),
        }
    };
    let ready = tokio::time::timeout(proxy_pass.settings.proxy_send_timeout, ready).await;
    let ready = ready.unwrap_or(Err(Error::Timeout(Stage::Send)));
    let ends = cargo.is_none();
    let begun = ready.and_then(|()| ride.send.send_request(request, ends).map_err(broken));
    let (response, stream) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            if !matches!(error, Error::TooLarge) {
                ride.retire();
            }
            return Err(SendError {
                error,
                unsent: Some(cargo),
                silent: true,
            });
        }
    };
    let mut call = StreamCall {
        response,
        sending: StreamWriter::new(stream, cargo),
        relay: InterimRelay::new(record),
        head,
        proxy_pass,
        patience: Deadline::default(),
        due: grpc::due(record, now).unwrap_or_default(),
    };
    match poll_fn(|context| call.poll_head(context)).await {
        Ok(response) => Ok(call.answer(response, ride, now)),
        Err(error) => Err(call.unanswered(error, &ride)),
    }
}

struct StreamCall<'c> {
    response: ResponseFuture,
    sending: StreamWriter,
    relay: InterimRelay<'c>,
    // How large the request's own is.
    head: usize,
    proxy_pass: &'c ProxyPass,
    patience: Deadline,
    // When the client will not want the answer any more; until there is one, the road sees to it.
    due: Deadline,
}

impl StreamCall<'_> {
    /// Sends the request and waits for the answer's head, both at once: a backend may answer before it has heard
    /// all.
    fn poll_head(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<RecvStream>, Error>> {
        let timeout = self.proxy_pass.settings.proxy_send_timeout;
        if let Poll::Ready(sent) = self.sending.poll(timeout, context) {
            sent?;
        }
        while let Poll::Ready(Some(interim)) = self.response.poll_informational(context) {
            let interim = interim.map_err(broken)?;
            self.relay.pass(interim.status(), interim.headers());
        }
        if let Poll::Ready(response) = Pin::new(&mut self.response).poll(context) {
            let response = response.map_err(broken)?;
            if response.headers().len() > self.proxy_pass.settings.proxy_max_headers {
                return Poll::Ready(Err(Error::InvalidHeader(InvalidResponse::TooLarge)));
            }
            return Poll::Ready(Ok(response));
        }
        if !self.sending.is_over() {
            return Poll::Pending;
        }
        self.patience
            .start(self.proxy_pass.settings.proxy_read_timeout);
        ready!(self.patience.poll_passed(context));
        Poll::Ready(Err(Error::Timeout(Stage::Head)))
    }

    fn answer(
        self,
        response: Response<RecvStream>,
        ride: StreamPermit,
        now: Millis,
    ) -> AttemptResponse {
        let (head, stream) = response.into_parts();
        let sending = (!self.sending.is_over()).then_some(self.sending);
        let receiving = StreamReader::new(stream, sending, &head.headers, self.due, ride);
        AttemptResponse {
            head: ResponseHead::streamed(head.status, head.headers),
            carrier: ResponseSource::Stream(Box::new(receiving)),
            started: now,
            came: now,
            ticket: None,
        }
    }

    fn unanswered(self, error: Error, ride: &StreamPermit) -> SendError {
        let untouched = match &error {
            Error::Rejected(rejected) => is_untouched(rejected),
            _ => false,
        };
        // It is only told to stop making requests, or broken altogether.
        if matches!(&error, Error::Rejected(rejected) if rejected.is_go_away())
            || matches!(error, Error::Broken(_))
        {
            ride.retire();
        }
        let silent = !self.relay.is_used();
        let error = match error {
            Error::Broken(_) | Error::Rejected(_) if ride.is_calmed() => {
                // The backend would do the same again, with others on the connection.
                match self.head > SMALL_HEAD {
                    true => Error::TooLarge,
                    false => Error::Calmed,
                }
            }
            error => error,
        };
        SendError {
            unsent: self.sending.into_unsent().filter(|_| untouched),
            error,
            silent,
        }
    }
}

/// How large a head is, as HTTP/2 counts.
fn list_size(request: &Request<()>) -> usize {
    const EACH: usize = 32;
    let (uri, method) = (request.uri(), request.method().as_str());
    let target = uri
        .path_and_query()
        .map_or(0, |target| target.as_str().len());
    let authority = uri
        .authority()
        .map_or(0, |authority| authority.as_str().len());
    let pseudo = ":method:scheme:path:authority".len() + "https".len() + 4 * EACH;
    let fields = request.headers().iter();
    let fields: usize = fields
        .map(|(name, value)| name.as_str().len() + value.len() + EACH)
        .sum();
    pseudo + method.len() + target + authority + fields
}

/// Whether the backend has said that it did nothing about a request.
fn is_untouched(error: &h2::Error) -> bool {
    let refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    // Only streams that it will not look at end in this way.
    let leaves = error.is_go_away() && error.reason() == Some(Reason::NO_ERROR);
    error.is_remote() && (refused || leaves)
}

/// An answer, and what was read of its body.
#[derive(Debug)]
pub(in crate::upstream) struct ProbeResponse {
    pub(in crate::upstream) head: Parts,
    pub(in crate::upstream) body: Vec<u8>,
    pub(in crate::upstream) trailers: Option<HeaderMap>,
}

/// Asks, and reads no more than about `most` bytes of the answer's body.
pub(in crate::upstream) async fn once(
    socket: Socket,
    request: Request<()>,
    body: Bytes,
    most: usize,
) -> Result<ProbeResponse, Error> {
    let io = UpstreamHttp2Io::new(socket, Default::default());
    let (send, connection) = builder().handshake::<_, Bytes>(io).await.map_err(broken)?;
    let mut asking = pin!(async move {
        let mut send = send.ready().await?;
        let (response, mut stream) = send.send_request(request, body.is_empty())?;
        if !body.is_empty() {
            stream.send_data(body, true)?;
        }
        let (head, mut stream) = response.await?.into_parts();
        let mut body = Vec::new();
        while body.len() < most
            && let Some(data) = stream.data().await
        {
            let data = data?;
            stream.flow_control().release_capacity(data.len())?;
            body.extend_from_slice(&data);
        }
        let trailers = match body.len() < most {
            true => stream.trailers().await?,
            false => None,
        };
        Ok::<_, h2::Error>(ProbeResponse {
            head,
            body,
            trailers,
        })
    });
    let answered = tokio::select! {
        biased;
        answered = &mut asking => answered,
        // What it has read before its end is still there to be asked for.
        _ = connection => asking.await,
    };
    answered.map_err(broken)
}

/// An answer's body, still coming.
#[derive(Debug)]
pub(in crate::upstream) struct StreamReader {
    stream: RecvStream,
    // What is left to send of the request, which the answer overtook.
    sending: Option<StreamWriter>,
    left: Option<u64>,
    data_over: bool,
    failed: bool,
    patience: Deadline,
    due: Deadline,
    _ride: StreamPermit,
}

impl StreamReader {
    pub(super) fn new(
        stream: RecvStream,
        sending: Option<StreamWriter>,
        headers: &HeaderMap,
        due: Deadline,
        ride: StreamPermit,
    ) -> Self {
        let length = headers.get(header::CONTENT_LENGTH);
        Self {
            left: length.and_then(|length| length.to_str().ok()?.parse().ok()),
            stream,
            sending,
            data_over: false,
            failed: false,
            patience: Deadline::default(),
            due,
            _ride: ride,
        }
    }

    /// Whether nothing more comes.
    pub(in crate::upstream) fn is_over(&self) -> bool {
        self.stream.is_end_stream()
    }

    /// Whether its backend has said at the end that it failed.
    pub(in crate::upstream) fn has_failed(&self) -> bool {
        self.failed
    }

    pub(in crate::upstream) fn size_hint(&self) -> SizeHint {
        match self.left {
            _ if self.is_over() => SizeHint::with_exact(0),
            Some(left) => SizeHint::with_exact(left),
            None => SizeHint::default(),
        }
    }

    /// The next piece, as soon as there is one.
    pub(in crate::upstream) fn poll_next(
        &mut self,
        read_timeout: Duration,
        send_timeout: Duration,
        context: &mut Context<'_>,
    ) -> Poll<Result<BodyChunk, Error>> {
        if let Some(sending) = &mut self.sending
            && let Poll::Ready(sent) = sending.poll(send_timeout, context)
        {
            sent?;
        }
        if let Poll::Ready(piece) = self.poll_piece(context) {
            self.patience.clear();
            return Poll::Ready(piece.map_err(truncated));
        }
        if self.due.poll_passed(context).is_ready() {
            // The client has stopped waiting, or is about to: it is told in its own words.
            return Poll::Ready(Ok(BodyChunk::End(Some(grpc::too_late()))));
        }
        self.patience.start(read_timeout);
        ready!(self.patience.poll_passed(context));
        Poll::Ready(Err(Error::Timeout(Stage::Body)))
    }

    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Result<BodyChunk, h2::Error>> {
        if !self.data_over {
            match ready!(self.stream.poll_data(context)).transpose()? {
                Some(data) => {
                    // The client has taken what came before: the backend may send as much again.
                    self.stream.flow_control().release_capacity(data.len())?;
                    self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                    return Poll::Ready(Ok(BodyChunk::Data(data)));
                }
                None => self.data_over = true,
            }
        }
        let trailers = ready!(self.stream.poll_trailers(context))?;
        self.failed = trailers.as_ref().is_some_and(grpc::failed);
        Poll::Ready(Ok(BodyChunk::End(trailers)))
    }
}

/// What is left to send of a request.
#[derive(Debug)]
pub(super) struct StreamWriter {
    stream: SendStream<Bytes>,
    upload: RequestBody,
    piece: Bytes,
    begun: bool,
    over: bool,
    stalled: Deadline,
}

impl StreamWriter {
    pub(super) fn new(stream: SendStream<Bytes>, cargo: PendingBody) -> Self {
        let over = cargo.is_none();
        let (upload, piece) = cargo.into_parts();
        Self {
            stream,
            upload,
            piece,
            begun: false,
            over,
            stalled: Deadline::default(),
        }
    }

    /// Whether there is nothing more to send.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// What was to be sent, if nothing of it has left.
    pub(super) fn into_unsent(self) -> Option<PendingBody> {
        (!self.begun).then(|| PendingBody::from_parts(self.upload, self.piece))
    }

    /// Sends on; ready when all has left, or the backend wants no more.
    pub(super) fn poll(
        &mut self,
        timeout: Duration,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        while !self.over {
            if self.piece.is_empty() {
                ready!(self.poll_piece(context))?;
                continue;
            }
            if !ready!(self.poll_room(timeout, context))? {
                self.over = true;
                break;
            }
            self.begun = true;
            self.over = self.upload.is_end_stream();
            let piece = std::mem::take(&mut self.piece);
            self.over |= self.stream.send_data(piece, self.over).is_err();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let frame = ready!(Pin::new(&mut self.upload).poll_frame(context));
        match frame.transpose().map_err(Error::Client)? {
            None => self.end(None),
            Some(frame) => match frame.into_data() {
                Ok(data) => self.piece = data,
                Err(frame) => self.end(frame.into_trailers().ok()),
            },
        }
        Poll::Ready(Ok(()))
    }

    fn end(&mut self, trailers: Option<HeaderMap>) {
        self.begun = true;
        self.over = true;
        // A backend that takes no more has answered, or is gone: whoever reads finds out.
        drop(match trailers {
            Some(trailers) => self.stream.send_trailers(fit(trailers)),
            None => self.stream.send_data(Bytes::new(), true),
        });
    }

    /// Ready with whether the backend takes more.
    fn poll_room(
        &mut self,
        timeout: Duration,
        context: &mut Context<'_>,
    ) -> Poll<Result<bool, Error>> {
        if self.stream.capacity() == 0 {
            self.stream.reserve_capacity(1);
            let Poll::Ready(room) = self.stream.poll_capacity(context) else {
                self.stalled.start(timeout);
                ready!(self.stalled.poll_passed(context));
                return Poll::Ready(Err(Error::Timeout(Stage::Send)));
            };
            self.stalled.clear();
            return Poll::Ready(Ok(matches!(room, Some(Ok(_)))));
        }
        Poll::Ready(Ok(true))
    }
}

/// The trailers that may follow a request.
fn fit(trailers: HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::with_capacity(trailers.len());
    for (name, value) in &trailers {
        if may_trail(name) {
            kept.append(name, value.clone());
        }
    }
    kept
}
