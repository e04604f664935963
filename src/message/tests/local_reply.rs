//! What clients see when weir answers itself.

use super::*;

fn parts(answer: LocalReply, accept: Option<&'static str>) -> (response::Parts, Bytes) {
    let accept = accept.map(HeaderValue::from_static);
    answer.into_parts_for(accept.as_ref())
}

#[test]
fn the_page_comes_in_the_form_that_is_liked() {
    for (accept, content_type, start) in [
        (None, "text/plain; charset=utf-8", "429 Too Many Requests\n"),
        (
            Some("*/*"),
            "text/plain; charset=utf-8",
            "429 Too Many Requests\n",
        ),
        (
            Some("text/html"),
            "text/html; charset=utf-8",
            "<!doctype html>",
        ),
        (
            Some("application/json"),
            "application/problem+json",
            r#"{"type":"https://iana.org/"#,
        ),
    ] {
        let answer = LocalReply::new(StatusCode::TOO_MANY_REQUESTS)
            .with_header(header::RETRY_AFTER, HeaderValue::from_static("3"))
            .violating("perip");
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        let (parts, body) = parts(answer, accept);
        assert_eq!(parts.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(parts.headers[header::CONTENT_TYPE], content_type);
        assert_eq!(parts.headers[header::RETRY_AFTER], "3");
        assert_eq!(parts.headers[header::SERVER], "weir");
        assert_eq!(parts.headers[header::VARY], "Accept");
        assert!(body.starts_with(start.as_bytes()), "{body:?}");
    }
}

#[test]
fn text_of_the_user_s_own_is_not_negotiated() {
    let answer = LocalReply::new(StatusCode::OK).with_text("ok", "text/plain");
    let (parts, body) = parts(answer, Some("text/html"));
    assert_eq!(parts.headers[header::CONTENT_TYPE], "text/plain");
    assert!(!parts.headers.contains_key(header::VARY));
    assert_eq!(body, "ok");

    let odd = LocalReply::new(StatusCode::OK).with_text("ok", "a\nb");
    let (parts, _) = odd.into_parts_for(None);
    assert_eq!(
        parts.headers[header::CONTENT_TYPE],
        "application/octet-stream"
    );
}

#[test]
fn a_location_cannot_smuggle_in_a_field() {
    let location = |url: &[u8]| {
        let (parts, _) = LocalReply::new(StatusCode::FOUND)
            .with_location(url)
            .into_parts_for(None);
        parts.headers[header::LOCATION].to_str().unwrap().to_owned()
    };
    assert_eq!(
        location(b"https://example.com/a?b=%20"),
        "https://example.com/a?b=%20"
    );
    assert_eq!(location(b"/a\r\nX-Evil: 1"), "/a%0D%0AX-Evil:%201");
    assert_eq!(location("/\u{e4}".as_bytes()), "/%C3%A4");
}

#[test]
fn some_answers_have_no_body() {
    for status in [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED] {
        let (parts, body) = parts(LocalReply::new(status), Some("text/html"));
        assert!(body.is_empty());
        assert!(!parts.headers.contains_key(header::CONTENT_TYPE));
    }
}

#[test]
fn a_head_tells_the_length_of_what_it_leaves_out() {
    let head = LocalReply::new(StatusCode::NOT_FOUND).into_head_for(None);
    assert_eq!(head.headers[header::CONTENT_LENGTH], "14");
    let head = LocalReply::new(StatusCode::NO_CONTENT).into_head_for(None);
    assert!(!head.headers.contains_key(header::CONTENT_LENGTH));
}

#[test]
fn a_status_only_nginx_knows_has_a_phrase() {
    let status = StatusCode::from_u16(499).unwrap();
    let (parts, body) = parts(LocalReply::new(status), None);
    let phrase = parts.extensions.get::<ReasonPhrase>().unwrap();
    assert_eq!(phrase.as_bytes(), b"Client Closed Request");
    assert_eq!(body, "499 Client Closed Request\n");
    let (ordinary, _) = LocalReply::new(StatusCode::OK).into_parts_for(None);
    assert!(ordinary.extensions.get::<ReasonPhrase>().is_none());
}
