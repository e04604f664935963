//! One HTTP/2 stream: a request, then its response, until the last byte has left or the client resets the stream.
//!
//! Handlers see the same form of a request whichever version of HTTP it came over. HTTP/2 has fields for what HTTP/1 has in the
//! request line, and several cookie fields where HTTP/1 has one: here they become a target in origin form, a Host field, and
//! cookies in one field. Ambiguous requests are refused by h2 already (fields of the connection, names and values that would
//! split, pseudo fields that are missing, doubled or late), or with all other targets.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, header, request, response,
};
use http_body::{Body as _, SizeHint};
use jiff::Timestamp;

use super::flood::StreamTable;
use crate::clock::Clock;
use crate::downstream::Handler;
use crate::downstream::slow_client::SendLimit;
use crate::message::{ClientConnection, CloseConnection, ConnectionPhase, IncomingBody, headers};

/// A stream under way, over when dropped.
pub(super) struct StreamGuard {
    pub(super) number: u32,
    /// The client, as on a connection of its own.
    pub(super) client: Arc<ClientConnection>,
    /// The client's connection.
    pub(super) connection: Arc<ClientConnection>,
    pub(super) table: Arc<StreamTable>,
}

/// The client has reset the stream, or the connection is gone, or what came on it was malformed.
struct StreamReset;

/// Sends the handler's response to a request.
pub(super) async fn run<H: Handler>(
    guard: StreamGuard,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    handler: H,
) {
    let client = &guard.client;
    let Some(request) = convert_request(request, client) else {
        return respond.send_reset(Reason::PROTOCOL_ERROR);
    };
    let method = request.method().clone();
    client.state.begin_request();
    let response = match call_handler(&handler, request, client, &mut respond).await {
        Ok(Ok(response)) => response,
        Ok(Err(CloseConnection)) => return respond.send_reset(Reason::CANCEL),
        Err(StreamReset) => return,
    };
    client.state.final_response();
    // An error here is a stream that is gone: the drop of the body notifies what waits for it.
    drop(send_response(response, &method, client, &mut respond).await);
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        let (state, connection) = (&self.client.state, &self.connection.state);
        connection.adopt_timeouts(state);
        self.table
            .leave(self.number, state.closes_after_response.get());
        if state.closes_after_response.get() {
            connection.wake();
        }
        state.closed();
    }
}

/// The request in the form that handlers know.
fn convert_request(
    request: Request<RecvStream>,
    client: &Arc<ClientConnection>,
) -> Option<Request<IncomingBody>> {
    if client.state.refused().is_some() {
        return None;
    }
    let (head, body) = request.into_parts();
    let head = request_head(head)?;
    // h2 has read it already, and holds the body to it.
    let length = head.headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    let waits = head.headers.get(header::EXPECT);
    let waits = waits.filter(|what| what.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    let incoming = IncomingBody::stream(body, length, waits.map(|_| Arc::clone(client)));
    Some(Request::from_parts(head, incoming))
}

/// The handler's response to a request; an error when the client resets the stream.
async fn call_handler<H: Handler>(
    handler: &H,
    request: Request<IncomingBody>,
    client: &Arc<ClientConnection>,
    respond: &mut SendResponse<Bytes>,
) -> Result<Result<Response<H::Body>, CloseConnection>, StreamReset> {
    let mut handling = pin!(handler.handle(Arc::clone(client), request));
    let mut known = false;
    poll_fn(|context| {
        // Once is enough: a stream stays in its task.
        if !std::mem::replace(&mut known, true) {
            client.state.set_waker(context.waker());
        }
        // Before the handler can see the end of a malformed body.
        if client.state.refused().is_some() {
            respond.send_reset(Reason::PROTOCOL_ERROR);
            return Poll::Ready(Err(StreamReset));
        }
        if respond.poll_reset(context).is_ready() {
            return Poll::Ready(Err(StreamReset));
        }
        let call_handler = handling.as_mut().poll(context);
        let interims = match client.state.has_interim.get() {
            true => client.state.take_interim(),
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
        call_handler.map(Ok)
    })
    .await
}

/// Sends a response until its last byte has left.
async fn send_response<B>(
    response: Response<B>,
    method: &Method,
    client: &ClientConnection,
    respond: &mut SendResponse<Bytes>,
) -> Result<(), StreamReset>
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    let (mut head, mut body) = response.into_parts();
    prepare_head(&mut head, method, &body.size_hint());
    let ends = body.is_end_stream();
    let sending = respond.send_response(Response::from_parts(head, ()), ends);
    let mut sending = ResponseSender {
        stream: sending.map_err(|_| StreamReset)?,
        client,
        limit: SendLimit::default(),
        sent: 0,
    };
    if !ends {
        poll_fn(|context| sending.poll_body(&mut body, context)).await?;
    }
    // The response's guard now waits for its last byte.
    drop(body);
    client.state.body_taken.set(true);
    poll_fn(|context| sending.poll_left(context)).await
}

/// A response on its way.
struct ResponseSender<'s> {
    stream: SendStream<Bytes>,
    client: &'s ClientConnection,
    limit: SendLimit,
    // How much of it had left when it was last measured.
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
        if self.client.state.refused().is_some() {
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
                    let mut trailers = frame.into_trailers().unwrap_or_default();
                    headers::clean_for_streams(&mut trailers);
                    let ended = self.stream.send_trailers(trailers);
                    return Poll::Ready(ended.map_err(|_| StreamReset));
                }
            }
        }
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
                self.client.state.read_ahead(context);
                self.poll_stalled(context).map(Err)
            }
        }
    }

    /// Ready when the last byte has left.
    fn poll_left(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamReset>> {
        if self.client.state.phase() == ConnectionPhase::Idle {
            return Poll::Ready(Ok(()));
        }
        if self.stream.poll_reset(context).is_ready() {
            return Poll::Ready(Err(StreamReset));
        }
        self.poll_stalled(context).map(Err)
    }

    /// Ready when the client has accepted nothing for too long, or too little; then it gets no more.
    fn poll_stalled(&mut self, context: &mut Context<'_>) -> Poll<StreamReset> {
        if self.client.state.sent.get() != self.sent {
            self.note_sent();
        }
        ready!(self.limit.poll_too_slow(self.client, context));
        self.stream.send_reset(Reason::CANCEL);
        Poll::Ready(StreamReset)
    }

    fn note_sent(&mut self) {
        let sent = self.client.state.sent.get();
        let more = usize::try_from(sent - self.sent).unwrap_or(usize::MAX);
        self.limit.sent(self.client, more);
        self.sent = sent;
    }
}

/// A request's headers as if they had come over HTTP/1; `None` where they would be ambiguous there.
pub(super) fn request_head(mut head: request::Parts) -> Option<request::Parts> {
    // White space around a value: HTTP/1 does not take it for a part of the value, so the same value would have many
    // spellings, and a limit as many buckets.
    let is_padded = |value: &HeaderValue| value.as_bytes().trim_ascii().len() < value.len();
    if head.headers.values().any(is_padded) {
        return None;
    }
    // Equal or not, as over HTTP/1: RFC 9110, 8.6 lets a recipient choose, and no client sends two by accident.
    if is_repeated(&head.headers, &header::CONTENT_LENGTH) {
        return None;
    }
    join_cookies(&mut head.headers)?;
    if head.method == Method::CONNECT {
        return Some(head);
    }
    if !matches!(head.uri.scheme_str(), None | Some("http" | "https")) {
        return None;
    }
    let target = head.uri.path_and_query()?.clone();
    // `*` stands for the whole server.
    let is_whole_server = head.method == Method::OPTIONS && target == "*";
    if !target.as_str().starts_with('/') && !is_whole_server {
        return None;
    }
    if let Some(authority) = head.uri.authority() {
        let authority = HeaderValue::from_str(authority.as_str()).ok()?;
        match head.headers.entry(header::HOST) {
            header::Entry::Vacant(vacant) => {
                vacant.insert(authority);
            }
            header::Entry::Occupied(host) => {
                let mut fields = host.iter();
                if fields.any(|host| !host.as_bytes().eq_ignore_ascii_case(authority.as_bytes())) {
                    return None;
                }
            }
        }
    }
    head.uri = Uri::from(target);
    Some(head)
}

fn is_repeated(fields: &HeaderMap, name: &HeaderName) -> bool {
    fields.get_all(name).iter().nth(1).is_some()
}

/// Cookies may come in crumbs so that each is compressed on its own.
fn join_cookies(fields: &mut HeaderMap) -> Option<()> {
    if !is_repeated(fields, &header::COOKIE) {
        return Some(());
    }
    let crumbs = fields.get_all(header::COOKIE).iter();
    let crumbs: Vec<_> = crumbs.map(HeaderValue::as_bytes).collect();
    let whole = crumbs.join(&b"; "[..]);
    fields.insert(header::COOKIE, HeaderValue::from_bytes(&whole).ok()?);
    Some(())
}

/// Removes from a response what HTTP/2 does not allow, and adds what a server adds.
pub(super) fn prepare_head(head: &mut response::Parts, method: &Method, body: &SizeHint) {
    headers::clean_for_streams(&mut head.headers);
    if !head.headers.contains_key(header::DATE) {
        head.headers.insert(header::DATE, date());
    }
    // For a HEAD the handler sets the length, and an empty body needs none.
    let length = body.exact().filter(|length| *length > 0);
    if let Some(length) = length.filter(|_| *method != Method::HEAD)
        && !head.headers.contains_key(header::CONTENT_LENGTH)
    {
        let length = HeaderValue::from(length);
        head.headers.insert(header::CONTENT_LENGTH, length);
    }
}

/// `Date`, made once a second.
fn date() -> HeaderValue {
    thread_local! {
        static MADE: RefCell<Option<(u64, HeaderValue)>> = const { RefCell::new(None) };
    }
    let now = Clock::wall().as_secs();
    MADE.with_borrow_mut(|made| match made {
        Some((second, date)) if *second == now => date.clone(),
        _ => {
            let date = written(now);
            *made = Some((now, date.clone()));
            date
        }
    })
}

fn written(second: u64) -> HeaderValue {
    let second = i64::try_from(second).unwrap_or_default();
    let moment = Timestamp::from_second(second).unwrap_or_default();
    let text = moment.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {

    use http::{Request, Response, Version};

    use super::*;

    fn came(method: &str, uri: &str, fields: &[(&str, &str)]) -> Option<request::Parts> {
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .version(Version::HTTP_2);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request_head(request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn the_authority_becomes_the_host_and_the_target_is_in_origin_form() {
        let head = came("GET", "https://example.com:8443/a?b", &[]).unwrap();
        assert_eq!(head.uri, "/a?b");
        assert_eq!(head.headers[header::HOST], "example.com:8443");
        let same = [("host", "EXAMPLE.com")];
        assert!(came("GET", "https://example.com/", &same).is_some());
    }

    #[test]
    fn a_host_at_odds_with_the_authority_is_refused() {
        assert!(came("GET", "https://a/", &[("host", "b")]).is_none());
        assert!(came("GET", "https://a/", &[("host", "a"), ("host", "b")]).is_none());
        assert!(came("GET", "https://user@a/", &[("host", "a")]).is_none());
    }

    #[test]
    fn a_target_that_is_no_path_is_refused() {
        assert!(came("GET", "*", &[("host", "a")]).is_none());
        assert!(came("OPTIONS", "*", &[("host", "a")]).is_some());
        assert!(came("CONNECT", "a:443", &[]).is_some());
    }

    #[test]
    fn two_lengths_are_refused_even_if_they_are_equal() {
        let length = ("content-length", "5");
        assert!(came("POST", "https://a/", &[length]).is_some());
        assert!(came("POST", "https://a/", &[length, length]).is_none());
    }

    #[test]
    fn crumbs_become_one_cookie() {
        let crumbs = [("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "c=3")];
        let head = came("GET", "https://a/", &crumbs).unwrap();
        let cookies: Vec<_> = head.headers.get_all(header::COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1; b=2; c=3"]);
    }

    #[test]
    fn an_answer_says_how_long_it_is_and_when_it_was_made() {
        let (mut head, ()) = Response::new(()).into_parts();
        let close = HeaderValue::from_static("close");
        head.headers.insert(header::CONNECTION, close);
        prepare_head(&mut head, &Method::GET, &SizeHint::with_exact(5));
        assert_eq!(head.headers[header::CONTENT_LENGTH], "5");
        assert_eq!(head.headers[header::DATE].len(), 29);
        assert!(!head.headers.contains_key(header::CONNECTION));
        assert_eq!(written(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
    }
}
