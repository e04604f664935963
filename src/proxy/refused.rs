//! The answer to a refusal, made once and given often.
//!
//! Under attack nearly every request gets the same refusal as the one before it: same rule, same number of
//! seconds, same wish in `Accept`. So it is kept by each event loop, and mostly lies ready to the last byte.

use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderValue, Method, Response, header};

use super::site::Site;
use super::{Live, failure, wording};
use crate::config::plan::{HeaderForm, RefusalBody, Typed};
use crate::limits::Refusal;
use crate::message::answer::{Answer, Offer, best_offer};
use crate::message::{Body, Completion, Exchange, Lines, Stock, headers};
use crate::upstream::Download;

/// What was answered last, and to what.
#[derive(Debug)]
struct Given {
    refusal: Refusal,
    fields: HeaderForm,
    accept: Option<HeaderValue>,
    head: Parts,
    body: Bytes,
    stock: Option<Arc<Stock>>,
}

thread_local! {
    static LAST: RefCell<Option<Given>> = const { RefCell::new(None) };
}

/// Answers a refused request.
pub(super) fn respond(
    refusal: Refusal,
    exchange: &Exchange,
    site: &Site,
    live: &Live,
) -> Response<Body<Download>> {
    let fields = site.plan.limit_headers.form;
    let changes = |body: &Arc<RefusalBody>| !body.is_fixed();
    if exchange.head.method == Method::HEAD || refusal.body.as_ref().is_some_and(changes) {
        return failure::respond(answer(&refusal, fields, exchange), exchange);
    }
    let accept = exchange.head.headers.get(header::ACCEPT);
    LAST.with_borrow_mut(|last| {
        let fits = |given: &mut Given| {
            given.fields == fields
                && given.accept.as_ref() == accept
                && given.refusal.reads_like(&refusal)
        };
        if !last.as_mut().is_some_and(fits) {
            let (head, body) = answer(&refusal, fields, exchange).into_parts_for(accept);
            // A copy of its own: the client's would keep alive all that was read with it.
            let accept = accept.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok());
            let stock = stock_of(&head, &body);
            *last = Some(Given {
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
            let completion = Completion::Kept(Arc::clone(stock));
            exchange.peer.line.ready.put(completion);
            let mut response = Response::new(Body::stocked(stock.length()));
            *response.status_mut() = given.head.status;
            *response.headers_mut() = headers::spare();
            return response;
        }
        Response::from_parts(given.head.clone(), Body::whole(given.body.clone()))
    })
}

fn stock_of(head: &Parts, body: &Bytes) -> Option<Stock> {
    // A phrase of its own is beside the fields.
    if !head.extensions.is_empty() || !Stock::may_complete(&Method::GET, head.status) {
        return None;
    }
    let mut lines = Lines::new();
    let length = HeaderValue::from(body.len());
    let fields = [(&header::CONTENT_LENGTH, &length)];
    for (name, value) in fields.into_iter().chain(&head.headers) {
        lines.add(name.as_str().as_bytes(), value.as_bytes());
    }
    lines
        .fit(body.len())
        .then(|| Stock::new(lines, body.clone()))
}

fn answer(refusal: &Refusal, fields: HeaderForm, exchange: &Exchange) -> Answer {
    let answer = Answer::new(refusal.status);
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
fn with_body(answer: Answer, body: &RefusalBody, exchange: &Exchange) -> Answer {
    let (typed, varies) = match body {
        RefusalBody::One(typed) => (Some(typed), false),
        RefusalBody::Choice { html, json, text } => (chosen([text, html, json], exchange), true),
    };
    let Some(Typed {
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
    [text, html, json]: [&'b Option<Typed>; 3],
    exchange: &Exchange,
) -> Option<&'b Typed> {
    let ready = [
        (Offer::Text, text),
        (Offer::Html, html),
        (Offer::Json, json),
    ];
    let ready: Vec<(Offer, &Typed)> = ready
        .into_iter()
        .filter_map(|(offer, typed)| Some((offer, typed.as_ref()?)))
        .collect();
    let offers: Vec<Offer> = ready.iter().map(|(offer, _)| *offer).collect();
    let best = best_offer(exchange.head.headers.get(header::ACCEPT), &offers);
    let mut ready = ready.into_iter();
    ready.find_map(|(offer, typed)| (Some(offer) == best).then_some(typed))
}
