//! The answer to a refusal, made once and given often.
//!
//! Under attack nearly every request gets the same refusal as the one before it: same rule, same number of
//! seconds, same wish in `Accept`. So it is kept by each event loop, and mostly lies ready to the last byte.

use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderValue, Method, Response, header};

use super::site::Location;
use super::{Generation, failure, wording};
use crate::config::plan::{HeaderForm, RefusalBodies, TypedText};
use crate::limits::Refusal;
use crate::message::answer::{LocalReply, OfferedFormat, best_offer};
use crate::message::{
    Prebuilt, PrebuiltResponse, RawHeaders, RequestRecord, ResponseBody, headers,
};
use crate::upstream::UpstreamBody;

/// What was answered last, and to what.
#[derive(Debug)]
struct CachedRefusal {
    refusal: Refusal,
    fields: HeaderForm,
    accept: Option<HeaderValue>,
    head: Parts,
    body: Bytes,
    stock: Option<Arc<PrebuiltResponse>>,
}

thread_local! {
    static LAST: RefCell<Option<CachedRefusal>> = const { RefCell::new(None) };
}

/// Answers a refused request.
pub(super) fn respond(
    refusal: Refusal,
    exchange: &RequestRecord,
    site: &Location,
    live: &Generation,
) -> Response<ResponseBody<UpstreamBody>> {
    let fields = site.plan.limit_headers.form;
    let changes = |body: &Arc<RefusalBodies>| !body.is_fixed();
    if exchange.head.method == Method::HEAD || refusal.body.as_ref().is_some_and(changes) {
        return failure::respond(answer(&refusal, fields, exchange), exchange);
    }
    let accept = exchange.head.headers.get(header::ACCEPT);
    LAST.with_borrow_mut(|last| {
        let fits = |given: &mut CachedRefusal| {
            given.fields == fields
                && given.accept.as_ref() == accept
                && given.refusal.reads_like(&refusal)
        };
        if !last.as_mut().is_some_and(fits) {
            let (head, body) = answer(&refusal, fields, exchange).into_parts_for(accept);
            // A copy of its own: the client's would keep alive all that was read with it.
            let accept = accept.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok());
            let stock = stock_of(&head, &body);
            *last = Some(CachedRefusal {
                refusal,
                fields,
                accept,
                head,
                body,
                stock: stock.map(Arc::new),
            });
        }
        let given = last.as_ref().expect("made above if it was not there");
        if let Some(stock) = &given.stock
            && live.takes_lines(exchange, site)
        {
            let completion = Prebuilt::Kept(Arc::clone(stock));
            exchange.peer.line.ready.put(completion);
            let mut response = Response::new(ResponseBody::stocked(stock.length()));
            *response.status_mut() = given.head.status;
            *response.headers_mut() = headers::spare();
            return response;
        }
        Response::from_parts(given.head.clone(), ResponseBody::whole(given.body.clone()))
    })
}

fn stock_of(head: &Parts, body: &Bytes) -> Option<PrebuiltResponse> {
    // A phrase of its own is beside the fields.
    if !head.extensions.is_empty() || !PrebuiltResponse::may_complete(&Method::GET, head.status) {
        return None;
    }
    let mut lines = RawHeaders::new();
    let length = HeaderValue::from(body.len());
    let fields = [(&header::CONTENT_LENGTH, &length)];
    for (name, value) in fields.into_iter().chain(&head.headers) {
        lines.add(name.as_str().as_bytes(), value.as_bytes());
    }
    lines
        .fit(body.len())
        .then(|| PrebuiltResponse::new(lines, body.clone()))
}

fn answer(refusal: &Refusal, fields: HeaderForm, exchange: &RequestRecord) -> LocalReply {
    let answer = LocalReply::new(refusal.status);
    let answer = match &refusal.body {
        Some(body) => with_body(answer, body, exchange),
        None if refusal.is_bad_request() => answer,
        None if refusal.lacks_key() => answer.lacking_key(refusal.zone()),
        None => answer.violating(refusal.zone()),
    };
    refusal
        .header_fields(fields)
        .fold(answer, |answer, (name, value)| {
            answer.with_header(name, value)
        })
}

/// The answer with a rule's own body, in the form the client likes best where there are several.
fn with_body(answer: LocalReply, body: &RefusalBodies, exchange: &RequestRecord) -> LocalReply {
    let (typed, varies) = match body {
        RefusalBodies::One(typed) => (Some(typed), false),
        RefusalBodies::Choice { html, json, text } => (chosen([text, html, json], exchange), true),
    };
    let Some(TypedText {
        wording,
        content_type,
    }) = typed
    else {
        return answer;
    };
    let answer = answer.with_text(wording::render(wording, exchange), content_type);
    match varies {
        true => answer.with_header(header::VARY, HeaderValue::from_static("Accept")),
        false => answer,
    }
}

fn chosen<'b>(
    [text, html, json]: [&'b Option<TypedText>; 3],
    exchange: &RequestRecord,
) -> Option<&'b TypedText> {
    let ready = [
        (OfferedFormat::Text, text),
        (OfferedFormat::Html, html),
        (OfferedFormat::Json, json),
    ];
    let ready: Vec<(OfferedFormat, &TypedText)> = ready
        .into_iter()
        .filter_map(|(offer, typed)| Some((offer, typed.as_ref()?)))
        .collect();
    let offers: Vec<OfferedFormat> = ready.iter().map(|(offer, _)| *offer).collect();
    let best = best_offer(exchange.head.headers.get(header::ACCEPT), &offers);
    let mut ready = ready.into_iter();
    ready.find_map(|(offer, typed)| (Some(offer) == best).then_some(typed))
}
