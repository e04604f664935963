//! Heads in the form that the road knows, whichever version of HTTP they came over.
//!
//! HTTP/2 says in fields what HTTP/1 says in the request line, and in several cookies what HTTP/1 says in one. On the
//! road there is one form of each: the target in origin form, a Host field, cookies in one line. What could be read in
//! two ways has been refused by h2 already (fields of the connection, names and values that would split, pseudo fields
//! that are missing, doubled or late), or is refused with all other targets.

use std::cell::RefCell;

use http::header::{self, HeaderName};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Uri, request, response};
use http_body::SizeHint;
use jiff::Timestamp;

use crate::clock::Clock;
use crate::message::headers;

/// A request's head as if it had come over HTTP/1; `None` where a reader of HTTP/1 would be fooled.
pub(super) fn request(mut head: request::Parts) -> Option<request::Parts> {
    if head.headers.values().any(is_padded) {
        return None;
    }
    // Equal or not, as over HTTP/1: RFC 9110, 8.6 lets a recipient choose, and nobody sends two by accident.
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
    if !target.as_str().starts_with('/') && !is_whole_server(&head.method, &target) {
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

/// Whether there is white space around a value. HTTP/1 does not take it for a part of the value, so the same value
/// would have many spellings, and a limit as many buckets.
fn is_padded(value: &HeaderValue) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    is_space(value.as_bytes().first()) || is_space(value.as_bytes().last())
}

fn is_repeated(fields: &HeaderMap, name: &HeaderName) -> bool {
    fields.get_all(name).iter().nth(1).is_some()
}

/// `*`, which is all there is to ask a whole server for.
fn is_whole_server(method: &Method, target: &PathAndQuery) -> bool {
    *method == Method::OPTIONS && target == "*"
}

/// Cookies may come in crumbs so that each is compressed on its own.
fn join_cookies(fields: &mut HeaderMap) -> Option<()> {
    if !is_repeated(fields, &header::COOKIE) {
        return Some(());
    }
    let crumbs: Vec<_> = fields.get_all(header::COOKIE).iter().collect();
    let whole = crumbs
        .iter()
        .map(|crumb| crumb.as_bytes())
        .collect::<Vec<_>>()
        .join(&b"; "[..]);
    fields.insert(header::COOKIE, HeaderValue::from_bytes(&whole).ok()?);
    Some(())
}

/// Makes an answer's head fit for HTTP/2, and adds what a server adds.
pub(super) fn answer(head: &mut response::Parts, asked: &Method, body: &SizeHint) {
    headers::clean_for_streams(&mut head.headers);
    if !head.headers.contains_key(header::DATE) {
        head.headers.insert(header::DATE, date());
    }
    // What a HEAD would have got is for the answer to say, and that there is nothing is seen.
    let length = body.exact().filter(|length| *length > 0);
    if let Some(length) = length.filter(|_| *asked != Method::HEAD)
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
        super::request(request.body(()).unwrap().into_parts().0)
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
        answer(&mut head, &Method::GET, &SizeHint::with_exact(5));
        assert_eq!(head.headers[header::CONTENT_LENGTH], "5");
        assert_eq!(head.headers[header::DATE].len(), 29);
        assert!(!head.headers.contains_key(header::CONNECTION));
        assert_eq!(written(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
    }
}
