//! One request on a shared connection, until the head of its answer.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use h2::client::ResponseFuture;
use h2::{Reason, RecvStream};
use http::{Request, Response};

use super::broken;
use super::pool::{SMALL_HEAD, StreamPermit};
use super::receiving::StreamReader;
use super::sending::StreamWriter;
use crate::clock::{Deadline, Millis};
use crate::config::plan::ProxyPass;
use crate::message::{RequestRecord, grpc};
use crate::upstream::ask::{AttemptResponse, ResponseSource};
use crate::upstream::error::{Error, InvalidResponse, Stage};
use crate::upstream::failed::SendError;
use crate::upstream::http1::ResponseHead;
use crate::upstream::interim::InterimRelay;
use crate::upstream::retry::RetryState;

/// Sends a request and waits for the head of its answer.
pub(super) async fn call(
    mut ride: StreamPermit,
    errand: &mut RetryState<'_>,
    exchange: &RequestRecord,
    forward: &ProxyPass,
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
    let ready = tokio::time::timeout(forward.send_timeout, ready).await;
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
        relay: InterimRelay::new(exchange),
        head,
        forward,
        patience: Deadline::default(),
        due: grpc::due(exchange, now).unwrap_or_default(),
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
    forward: &'c ProxyPass,
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
        let timeout = self.forward.send_timeout;
        if let Poll::Ready(sent) = self.sending.poll(timeout, context) {
            sent?;
        }
        while let Poll::Ready(Some(interim)) = self.response.poll_informational(context) {
            let interim = interim.map_err(broken)?;
            self.relay.pass(interim.status(), interim.headers());
        }
        if let Poll::Ready(response) = Pin::new(&mut self.response).poll(context) {
            let response = response.map_err(broken)?;
            if response.headers().len() > self.forward.max_headers {
                return Poll::Ready(Err(Error::InvalidHeader(InvalidResponse::TooLarge)));
            }
            return Poll::Ready(Ok(response));
        }
        if !self.sending.is_over() {
            return Poll::Pending;
        }
        self.patience.start(self.forward.read_timeout);
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
