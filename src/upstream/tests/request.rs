//! What passes in either direction.

use http::Version;

use super::*;
use crate::config::plan::{Part, ProxyPass, SetHeader, Template, Variable};
use crate::message::RequestRecord;
use crate::message::headers::{CONNECTION_FIELDS, clean_response};
use crate::message::testing::{map, proxy_pass, record, request};

fn lines(headers: &HeaderMap) -> Vec<String> {
    let line =
        |(name, value): (&HeaderName, &HeaderValue)| format!("{name}: {}", value.to_str().unwrap());
    headers.iter().map(line).collect()
}

fn set(name: &'static str, value: Template) -> SetHeader {
    SetHeader {
        name: HeaderName::from_static(name),
        value,
    }
}

/// What is written, read again: the target and the fields.
fn written(record: &RequestRecord, proxy_pass: &ProxyPass) -> (String, HeaderMap) {
    let mut out = Vec::new();
    write_head(record, proxy_pass, None, &mut out);
    out.extend_from_slice(b"\r\n");
    let mut fields = [httparse::EMPTY_HEADER; 32];
    let mut request = httparse::Request::new(&mut fields);
    assert!(request.parse(&out).unwrap().is_complete());
    let field = |field: &httparse::Header<'_>| {
        let name = HeaderName::from_bytes(field.name.as_bytes()).unwrap();
        (name, HeaderValue::from_bytes(field.value).unwrap())
    };
    let headers = request.headers.iter().map(field).collect();
    (request.path.unwrap().into(), headers)
}

fn sent(record: &RequestRecord, proxy_pass: &ProxyPass) -> HeaderMap {
    written(record, proxy_pass).1
}

#[test]
fn what_proxy_set_header_says_of_max_forwards_holds() {
    let mut proxy_pass = proxy_pass();
    proxy_pass.set_headers = vec![set("max-forwards", Template::literal("7"))];
    let asked = request("OPTIONS", "/", &[("max-forwards", "3")]);
    assert_eq!(sent(&asked, &proxy_pass)["max-forwards"], "7");
    let request = http2_head(&asked, &proxy_pass).expect("it can be said");
    let values: Vec<_> = request.headers().get_all("max-forwards").iter().collect();
    assert_eq!(values, ["7"]);
}

#[test]
fn fields_of_the_connection_stay_on_it() {
    let record = record(&[
        ("accept", "a"),
        ("connection", "keep-alive, X-Private , ,close"),
        ("content-length", "3"),
        ("content-type", "t"),
        ("expect", "100-continue"),
        ("host", "h"),
        ("http2-settings", "x"),
        ("keep-alive", "5"),
        ("proxy-authorization", "p"),
        ("proxy-connection", "close"),
        ("te", "gzip"),
        ("trailer", "x-sum"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("x-private", "1"),
        ("x-twice", "1"),
        ("x-twice", "2"),
    ]);
    let mut proxy_pass = proxy_pass();
    proxy_pass.set_headers.clear();
    proxy_pass.settings.via = false;
    let expected = [
        "accept: a",
        "content-type: t",
        "trailer: x-sum",
        "x-twice: 1",
        "x-twice: 2",
    ];
    assert_eq!(lines(&sent(&record, &proxy_pass)), expected);
}

#[test]
fn a_client_cannot_name_our_fields_away() {
    let record = record(&[
        (
            "connection",
            "host, content-length, x-forwarded-for, via, @?, \u{e4}, x-real-ip",
        ),
        ("x-forwarded-for", "6.6.6.6"),
    ]);
    let mut proxy_pass = proxy_pass();
    proxy_pass.settings.via = true;
    proxy_pass.set_headers = vec![
        set("host", Template::variable(Variable::Host)),
        set(
            "x-forwarded-for",
            Template::variable(Variable::ProxyAddXForwardedFor),
        ),
        set("x-real-ip", Template::variable(Variable::RemoteAddr)),
    ];
    let mut lines = lines(&sent(&record, &proxy_pass));
    lines.sort();
    assert_eq!(
        lines,
        [
            "host: example.com",
            "via: 1.1 weir",
            "x-forwarded-for: 6.6.6.6, 192.0.2.7",
            "x-real-ip: 192.0.2.7"
        ]
    );
}

#[test]
fn a_field_set_to_nothing_is_removed_and_an_invalid_one_left_out() {
    let record = request(
        "GET",
        "/a%0d%0aX-Evil:%201",
        &[("accept", "*/*"), ("x-path", "old")],
    );
    let mut proxy_pass = proxy_pass();
    proxy_pass.set_headers = vec![
        set("accept", Template::default()),
        set("x-path", Template::variable(Variable::Uri)),
        set(
            "x-missing",
            Template::variable(Variable::Arg("none".into())),
        ),
        set("content-length", Template::literal("7")),
        set(
            "x-literal",
            Template {
                parts: Box::new([Part::Text("v".into()), Part::Variable(Variable::RemotePort)]),
            },
        ),
    ];
    assert_eq!(lines(&sent(&record, &proxy_pass)), ["x-literal: v50000"]);
}

#[test]
fn trailers_are_asked_for_only_if_the_client_takes_them() {
    let te = |value| {
        let headers = sent(
            &record(&[("te", value), ("connection", "te")]),
            &proxy_pass(),
        );
        lines(&headers)
    };
    assert_eq!(
        te("gzip;q=0.5, Trailers"),
        ["te: trailers", "connection: te"]
    );
    assert!(te("gzip").is_empty());
}

#[test]
fn via_is_added_to_what_is_there_and_tells_the_version_that_was_spoken() {
    let mut record = record(&[("via", "1.1 other")]);
    let mut proxy_pass = proxy_pass();
    proxy_pass.settings.via = true;
    assert_eq!(
        lines(&sent(&record, &proxy_pass)),
        ["via: 1.1 other", "via: 1.1 weir"]
    );
    record.head.version = Version::HTTP_10;
    assert_eq!(
        lines(&sent(&record, &proxy_pass)),
        ["via: 1.1 other", "via: 1.0 weir"]
    );
}

#[test]
fn an_answer_loses_what_was_for_us_and_keeps_what_is_the_backends() {
    let mut headers = map(&[
        ("connection", "x-gone, Content-Length"),
        ("content-length", "5"),
        ("date", "d"),
        ("keep-alive", "timeout=5"),
        ("server", "s"),
        ("set-cookie", "a"),
        ("set-cookie", "b"),
        ("trailer", "t"),
        ("upgrade", "x"),
        ("x-accel-buffering", "no"),
        ("x-accel-redirect", "/secret"),
        ("x-gone", "1"),
        ("x-pad", "avoid browser bug"),
    ]);
    let wishes = clean_response(&mut headers);
    assert!(wishes.redirect);
    let mut lines = lines(&headers);
    lines.sort();
    let kept = [
        "content-length: 5",
        "date: d",
        "server: s",
        "set-cookie: a",
        "set-cookie: b",
        "trailer: t",
        "x-accel-redirect: /secret",
    ];
    assert_eq!(lines, kept);
}

#[test]
fn an_answer_has_one_length_or_none() {
    let cleaned = |fields: &[(&'static str, &'static str)]| {
        let mut headers = map(fields);
        clean_response(&mut headers);
        lines(&headers)
    };
    assert!(cleaned(&[("content-length", "5"), ("transfer-encoding", "chunked")]).is_empty());
    assert!(cleaned(&[("content-length", "5"), ("content-length", "6")]).is_empty());
    assert!(cleaned(&[("content-length", "+5")]).is_empty());
    assert!(cleaned(&[("content-length", "")]).is_empty());
    assert_eq!(
        cleaned(&[("content-length", "5"), ("content-length", "5")]),
        ["content-length: 5"]
    );
}

#[test]
fn without_a_uri_part_the_target_goes_on_as_the_client_wrote_it() {
    for (asked, goes) in [
        ("/a/../b%20c//?x=%zz", "/a/../b%20c//?x=%zz"),
        ("http://other.example/x?y", "/x?y"),
        ("http://other.example?y", "/?y"),
        ("http://other.example", "/"),
    ] {
        let record = request("GET", asked, &[]);
        assert_eq!(written(&record, &proxy_pass()).0, goes);
    }
    let record = request("OPTIONS", "*", &[]);
    assert_eq!(written(&record, &proxy_pass()).0, "*");
}

#[test]
fn with_a_uri_part_the_location_is_replaced_in_the_normal_path() {
    let mut proxy_pass = proxy_pass();
    proxy_pass.uri = Some("/new/".into());
    proxy_pass.replaces = "/old/".len();
    for (asked, goes) in [
        ("/old/x?y=1", "/new/x?y=1"),
        ("/old/{x}", "/new/{x}"),
        ("//old/./a%20b%2Fc%25?q=%20", "/new/a%20b/c%25?q=%20"),
        ("/old/", "/new/"),
        ("/old/%C3%A4", "/new/%C3%A4"),
        ("/ol", "/new/"),
    ] {
        let record = request("GET", asked, &[]);
        assert_eq!(written(&record, &proxy_pass).0, goes);
    }
}

#[test]
fn a_backend_tells_how_fast_its_answer_may_leave() {
    let told = |values: &[&'static str]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("x-accel-limit-rate", HeaderValue::from_static(value));
        }
        let wishes = clean_response(&mut headers);
        assert!(headers.is_empty() && !wishes.redirect);
        wishes.limit_rate
    };
    assert_eq!(told(&[]), None);
    assert_eq!(told(&["0"]), Some(0));
    assert_eq!(told(&["100", "200"]), Some(200));
    for wrong in ["", "10k", "-1", "1.5", "99999999999999999999"] {
        assert_eq!(told(&["100", wrong]), Some(100), "{wrong}");
    }
}

#[test]
fn a_backend_tells_whether_its_answer_is_buffered() {
    for (value, buffering) in [("no", Some(false)), ("YES", Some(true)), ("on", None)] {
        let mut headers = map(&[("x-accel-buffering", value)]);
        assert_eq!(clean_response(&mut headers).buffering, buffering);
        assert!(headers.is_empty());
    }
}

#[test]
fn a_control_character_is_seen_wherever_it_stands() {
    for byte in 0..=u8::MAX {
        for at in 0..19 {
            let mut text = *b"\xff!~\x80 plain and so on";
            text[at] = byte;
            assert_eq!(is_plain(&text), !byte.is_ascii_control(), "{byte} at {at}");
        }
    }
}

/// HTTP/2 has no place for them: a backend refuses a request that has one (RFC 9113, 8.2.2).
#[test]
fn connection_headers_do_not_reach_http2_from_any_source() {
    let mut proxy_pass = proxy_pass();
    proxy_pass.set_headers = CONNECTION_FIELDS
        .iter()
        .map(|name| SetHeader {
            name: name.clone(),
            value: Template::literal("upgrade"),
        })
        .chain([
            set("host", Template::literal("other.example")),
            set("x-mine", Template::literal("1")),
        ])
        .collect();
    let record = record(&[
        ("host", "h"),
        ("connection", "x-hop, te"),
        ("te", "gzip"),
        ("keep-alive", "5"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "websocket"),
        ("x-hop", "1"),
    ]);
    let request = http2_head(&record, &proxy_pass).unwrap();
    for name in &CONNECTION_FIELDS {
        assert!(!request.headers().contains_key(name), "{name}");
    }
    assert!(!request.headers().contains_key("x-hop"));
    assert!(!request.headers().contains_key(header::HOST));
    assert_eq!(request.uri().authority().unwrap(), "other.example");
    assert_eq!(request.headers()["x-mine"], "1");
}
