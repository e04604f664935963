//! One request over HTTP/2: its headers, its body and those of the response.

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

use super::pool::{SMALL_HEAD, StreamPermit, broken, handshake, into_io};
use crate::clock::Deadline;
use crate::config::plan::ProxyPass;
use crate::message::{RequestBody, grpc};
use crate::tls::Socket;
use crate::upstream::error::{Error, InvalidResponse, Stage};
use crate::upstream::http1::request::{PendingBody, may_trail};
use crate::upstream::http1::{BodyChunk, ResponseHead};
use crate::upstream::request::InterimRelay;
use crate::upstream::retry::{AttemptContext, RetryState, SendError};

/// Sends a request and reads the response headers.
pub(super) async fn exchange(
    mut permit: StreamPermit,
    retry: &mut RetryState<'_>,
    cx: &AttemptContext<'_>,
) -> Result<(Box<ResponseHead>, StreamReader), SendError> {
    let proxy_pass = cx.proxy_pass;
    let (request, body) = retry.stream();
    let head = header_list_size(&request);
    let ready = async {
        poll_fn(|context| permit.send.poll_ready(context))
            .await
            .map_err(broken)?;
        match permit.accepts(head).await {
            true => Ok(()),
            false => Err(Error::TooLarge),
        }
    };
    let ready = tokio::time::timeout(proxy_pass.settings.proxy_send_timeout, ready).await;
    let ready = ready.unwrap_or(Err(Error::Timeout(Stage::Send)));
    let ends = body.upload.is_none();
    let begun = ready.and_then(|()| permit.send.send_request(request, ends).map_err(broken));
    let (response, stream) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            if !matches!(error, Error::TooLarge) {
                permit.close_connection();
            }
            return Err(SendError {
                error,
                unsent: Some(body),
                silent: true,
            });
        }
    };
    let mut call = StreamCall {
        response,
        writer: StreamWriter::new(stream, body),
        relay: InterimRelay::new(cx.record),
        head,
        proxy_pass,
        read_timeout: Deadline::default(),
        due: grpc::due(cx.record, cx.now).unwrap_or_default(),
    };
    match poll_fn(|context| call.poll_head(context)).await {
        Ok(response) => Ok(call.into_response(response, permit)),
        Err(error) => Err(call.into_error(error, &permit)),
    }
}

struct StreamCall<'c> {
    response: ResponseFuture,
    writer: StreamWriter,
    relay: InterimRelay<'c>,
    /// The size of the request's headers.
    head: usize,
    proxy_pass: &'c ProxyPass,
    read_timeout: Deadline,
    // The deadline of a gRPC call, for the response's body; before that, the proxy enforces it.
    due: Deadline,
}

impl StreamCall<'_> {
    /// Sends the request and reads the response headers, both at once: a backend may respond before it has the whole
    /// request.
    fn poll_head(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<RecvStream>, Error>> {
        let timeout = self.proxy_pass.settings.proxy_send_timeout;
        if let Poll::Ready(sent) = self.writer.poll(timeout, context) {
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
        if !self.writer.over {
            return Poll::Pending;
        }
        self.read_timeout
            .start(self.proxy_pass.settings.proxy_read_timeout);
        ready!(self.read_timeout.poll_passed(context));
        Poll::Ready(Err(Error::Timeout(Stage::Head)))
    }

    fn into_response(
        self,
        response: Response<RecvStream>,
        permit: StreamPermit,
    ) -> (Box<ResponseHead>, StreamReader) {
        let (head, stream) = response.into_parts();
        let length = head.headers.get(header::CONTENT_LENGTH);
        let reader = StreamReader {
            left: length.and_then(|length| length.to_str().ok()?.parse().ok()),
            stream,
            writer: (!self.writer.over).then_some(self.writer),
            data_over: false,
            failed: false,
            read_timeout: Deadline::default(),
            due: self.due,
            _permit: permit,
        };
        (ResponseHead::http2(head.status, head.headers), reader)
    }

    fn into_error(self, error: Error, permit: &StreamPermit) -> SendError {
        let (untouched, going_away) = match &error {
            Error::Rejected(rejected) => (is_untouched(rejected), rejected.is_go_away()),
            error => (false, matches!(error, Error::Broken(_))),
        };
        // The backend closes it or it broke.
        if going_away {
            permit.close_connection();
        }
        let silent = !self.relay.seen;
        let error = match error {
            Error::Broken(_) | Error::Rejected(_) if permit.is_calmed() => {
                // The backend would do the same again, with other requests on the connection.
                match self.head > SMALL_HEAD {
                    true => Error::TooLarge,
                    false => Error::EnhanceYourCalm,
                }
            }
            error => error,
        };
        SendError {
            unsent: self.writer.into_unsent().filter(|_| untouched),
            error,
            silent,
        }
    }
}

/// The size of the headers as HTTP/2 counts it.
fn header_list_size(request: &Request<()>) -> usize {
    const EACH: usize = 32;
    let (uri, method) = (request.uri(), request.method().as_str());
    let target = uri.path_and_query().map_or(0, |it| it.as_str().len());
    let authority = uri.authority().map_or(0, |it| it.as_str().len());
    let pseudo = ":method:scheme:path:authority".len() + "https".len() + 4 * EACH;
    let fields = request.headers().iter();
    let fields: usize = fields
        .map(|(name, value)| name.as_str().len() + value.len() + EACH)
        .sum();
    pseudo + method.len() + target + authority + fields
}

/// Whether the backend says that it has not processed the request.
fn is_untouched(error: &h2::Error) -> bool {
    let refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    // Only streams that it will not process end in this way.
    let leaves = error.is_go_away() && error.reason() == Some(Reason::NO_ERROR);
    error.is_remote() && (refused || leaves)
}

/// A response, and the beginning of its body.
#[derive(Debug)]
pub(in crate::upstream) struct ProbeResponse {
    pub(in crate::upstream) head: Parts,
    pub(in crate::upstream) body: Vec<u8>,
    pub(in crate::upstream) trailers: Option<HeaderMap>,
}

/// Sends a request over a connection of its own and reads about `most` bytes of the response's body.
pub(in crate::upstream) async fn once(
    socket: Socket,
    request: Request<()>,
    body: Bytes,
    most: usize,
) -> Result<ProbeResponse, Error> {
    let handshake = handshake(socket, Default::default()).await;
    let (send, connection) = handshake.map_err(broken)?;
    let mut exchange = pin!(async move {
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
    let response = tokio::select! {
        biased;
        response = &mut exchange => response,
        // What was read before its end is still there to be taken.
        _ = connection => exchange.await,
    };
    response.map_err(broken)
}

/// The body of a response that is still arriving.
#[derive(Debug)]
pub(in crate::upstream) struct StreamReader {
    stream: RecvStream,
    // The rest of the request, where the response came before it was sent.
    writer: Option<StreamWriter>,
    left: Option<u64>,
    data_over: bool,
    /// Its trailers say that the gRPC call failed.
    pub(in crate::upstream) failed: bool,
    read_timeout: Deadline,
    due: Deadline,
    _permit: StreamPermit,
}

impl StreamReader {
    /// Whether nothing is left to read.
    pub(in crate::upstream) fn is_over(&self) -> bool {
        self.stream.is_end_stream()
    }

    pub(in crate::upstream) fn size_hint(&self) -> SizeHint {
        match self.left {
            _ if self.is_over() => SizeHint::with_exact(0),
            Some(left) => SizeHint::with_exact(left),
            None => SizeHint::default(),
        }
    }

    pub(in crate::upstream) fn poll_next(
        &mut self,
        read_timeout: Duration,
        send_timeout: Duration,
        context: &mut Context<'_>,
    ) -> Poll<Result<BodyChunk, Error>> {
        if let Some(writer) = &mut self.writer
            && let Poll::Ready(sent) = writer.poll(send_timeout, context)
        {
            sent?;
        }
        if let Poll::Ready(chunk) = self.poll_chunk(context) {
            self.read_timeout.clear();
            return Poll::Ready(chunk.map_err(|error| Error::Truncated(into_io(error))));
        }
        if self.due.poll_passed(context).is_ready() {
            // The client has stopped waiting, or is about to: it gets the status of a call that is too late.
            return Poll::Ready(Ok(BodyChunk::End(Some(grpc::too_late()))));
        }
        self.read_timeout.start(read_timeout);
        ready!(self.read_timeout.poll_passed(context));
        Poll::Ready(Err(Error::Timeout(Stage::Body)))
    }

    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<BodyChunk, h2::Error>> {
        if !self.data_over {
            match ready!(self.stream.poll_data(context)).transpose()? {
                Some(data) => {
                    // The client has taken the data before: the backend may send as much again.
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

/// The rest of a request.
#[derive(Debug)]
pub(super) struct StreamWriter {
    stream: SendStream<Bytes>,
    upload: RequestBody,
    piece: Bytes,
    begun: bool,
    /// All has been sent, or the backend takes no more.
    over: bool,
    stalled: Deadline,
}

impl StreamWriter {
    fn new(stream: SendStream<Bytes>, body: PendingBody) -> Self {
        Self {
            stream,
            over: body.upload.is_none(),
            upload: body.upload,
            piece: body.first,
            begun: false,
            stalled: Deadline::default(),
        }
    }

    /// The body, if nothing of it was sent.
    fn into_unsent(self) -> Option<PendingBody> {
        (!self.begun).then_some(PendingBody {
            upload: self.upload,
            first: self.piece,
        })
    }

    /// Sends on; ready when all has been sent, or the backend takes no more.
    fn poll(&mut self, timeout: Duration, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        while !self.over {
            if self.piece.is_empty() {
                ready!(self.poll_chunk(context))?;
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

    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
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
        // A backend that takes no more has responded or is gone: reading shows which.
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
    let may_pass = trailers.iter().filter(|(name, _)| may_trail(name));
    kept.extend(may_pass.map(|(name, value)| (name.clone(), value.clone())));
    kept
}
