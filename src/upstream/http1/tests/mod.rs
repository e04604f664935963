//! Answers as bytes, cut wherever they can be cut.

use bytes::BytesMut;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method};
use proptest::prelude::*;

use super::*;
use crate::message::{MalformedChunk, PrebuiltResponse};
use crate::upstream::error::InvalidResponse;
use crate::upstream::fuzzing::{FuzzedResponse, read};

fn at_once(text: &str) -> Option<FuzzedResponse> {
    read(&Method::GET, [text.as_bytes()])
}

fn head(text: &str) -> Result<Option<Box<ResponseHead>>, InvalidResponse> {
    HeadReader::default().next(&mut BytesMut::from(text), &Method::GET, false, 1000)
}

fn framed(fields: &str) -> Result<Option<Box<ResponseHead>>, InvalidResponse> {
    head(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n"))
}

fn body(text: &str) -> Result<Vec<u8>, MalformedChunk> {
    let (mut reading, mut read) = (
        BodyFraming::Chunked(ChunkDecoder::default()),
        BytesMut::from(text),
    );
    let mut body = Vec::new();
    while let Some(BodyChunk::Data(data)) = reading.next(&mut read)? {
        body.extend_from_slice(&data);
    }
    Ok(body)
}

#[test]
fn one_length_or_chunked_or_nothing_is_an_answer() {
    for fields in [
        "",
        "content-length: 0\r\n",
        "content-length: 18446744073709551615\r\n",
        "transfer-encoding: Chunked\r\n",
    ] {
        assert!(framed(fields).is_ok(), "{fields:?}");
    }
}

#[test]
fn two_ways_to_read_the_end_are_none() {
    for fields in [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        "content-length: 5\r\ncontent-length: 5\r\n",
        "content-length: 5\r\ncontent-length: 6\r\n",
        "content-length: 5, 5\r\n",
        "content-length: +5\r\n",
        "content-length: -1\r\n",
        "content-length: \r\n",
        "content-length: 0x5\r\n",
        "content-length: 18446744073709551616\r\n",
        "transfer-encoding: gzip, chunked\r\n",
        "transfer-encoding: identity\r\n",
        "transfer-encoding: \r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
    ] {
        assert!(framed(fields).is_err(), "{fields:?}");
    }
}

/// There is one way to read it; a backend of HTTP/1.0 gets no second request over the same connection.
#[test]
fn chunks_from_http_1_0_are_read() {
    let head = head("HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
    let head = head.unwrap().unwrap();
    assert!(!head.reusable);
    assert!(matches!(head.framing, BodyFraming::Chunked(_)));
}

/// The next reader may not know that the request was a HEAD.
#[test]
fn an_answer_without_a_body_is_held_to_the_same() {
    for status in ["200 OK", "204 No Content", "304 Not Modified"] {
        let text = format!("HTTP/1.1 {status}\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n");
        let read = &mut BytesMut::from(&*text);
        let parsed = HeadReader::default().next(read, &Method::HEAD, false, 1000);
        assert!(parsed.is_err(), "{status}");
    }
}

#[test]
fn head_204_and_304_have_no_body_whatever_they_say() {
    for (method, status) in [
        (Method::HEAD, "200 OK"),
        (Method::GET, "204 No Content"),
        (Method::GET, "304 Not Modified"),
    ] {
        for framing in ["content-length: 5", "transfer-encoding: chunked", "x: y"] {
            let text = format!("HTTP/1.1 {status}\r\n{framing}\r\n\r\n");
            let whole = read(&method, [text.as_bytes()]).unwrap();
            assert!(whole.body.is_empty() && whole.reusable, "{text}");
        }
    }
}

#[test]
fn what_follows_an_answer_makes_its_connection_useless() {
    let text = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    assert!(at_once(text).unwrap().reusable);
    assert!(!at_once(&format!("{text}H")).unwrap().reusable);
}

#[test]
fn a_head_with_too_many_fields_is_too_large() {
    assert!(framed(&"a: b\r\n".repeat(1000)).is_ok());
    let error = framed(&"a: b\r\n".repeat(1001)).unwrap_err();
    assert!(matches!(error, InvalidResponse::TooLarge), "{error:?}");
    let long = "x".repeat(ResponseHead::LARGEST);
    let error = framed(&format!("a: {long}\r\n")).unwrap_err();
    assert!(matches!(error, InvalidResponse::TooLarge), "{error:?}");
}

#[test]
fn an_unusual_reason_is_passed_on() {
    let head = head("HTTP/1.1 200 Fine\r\n\r\n").unwrap().unwrap();
    let response = head.into_response(());
    let reason = response.extensions().get::<ReasonPhrase>();
    assert_eq!(reason.unwrap().as_bytes(), b"Fine");
}

#[test]
fn interim_answers_are_not_asked_for_a_length() {
    let text = "HTTP/1.1 103 Hints\r\ncontent-length: x\r\n\r\n";
    assert!(head(text).unwrap().unwrap().status.is_informational());
    let switch = head("HTTP/1.1 101 Switch\r\n\r\n").unwrap().unwrap();
    assert!(!switch.reusable);
}

#[test]
fn chunks_are_joined_and_their_extensions_dropped() {
    let text = "5;a=b;c=\"d\"\r\nhello\r\n00A \t;x\r\n, nice one\r\n0\r\n\r\n";
    assert_eq!(body(text).unwrap(), b"hello, nice one");
}

#[test]
fn what_is_not_a_chunk_is_found_out() {
    for text in [
        "\r\n",
        ";\r\n",
        "x\r\n",
        "5\nhello\r\n",
        "5 5\r\nhello\r\n",
        "5;a\nhello\r\n",
        "5;a\rb\r\nhello\r\n",
        "5\r\nhello!\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "fffffffffffffffff\r\n",
        "1000000000000000\r\n",
        "0\r\nbad name: 1\r\n\r\n",
        "0\r\na: b\n\r\n",
        "0\r\n\n",
    ] {
        assert_eq!(body(text), Err(MalformedChunk), "{text:?}");
    }
}

#[test]
fn what_cannot_be_read_stays_unreadable() {
    let (mut reading, mut read) = (
        BodyFraming::Chunked(ChunkDecoder::default()),
        BytesMut::from("1\r\na\rX0\r\n\r\n"),
    );
    assert!(matches!(
        reading.next(&mut read),
        Ok(Some(BodyChunk::Data(_)))
    ));
    assert!(reading.end(&mut read).is_none());
    assert!(reading.next(&mut read).is_err());
    assert!(reading.next(&mut read).is_err());
}

#[test]
fn extensions_and_trailers_have_an_end() {
    let extensions = format!("1;{}\r\na\r\n", "x".repeat(1024)).repeat(17);
    assert!(body(&extensions).is_err());
    assert!(body(&format!("1{}\r\na\r\n", " ".repeat(17 * 1024))).is_err());
    assert!(body(&format!("0\r\na: {}", "x".repeat(17 * 1024))).is_err());
    assert!(body(&format!("0\r\n{}\r\n", "a: b\r\n".repeat(33))).is_err());
}

#[test]
fn the_end_is_seen_with_the_last_data() {
    let mut read = BytesMut::from("2\r\nok\r\n0\r\nx-sum: 1\r\n\r\n");
    let mut reading = BodyFraming::Chunked(ChunkDecoder::default());
    assert!(reading.end(&mut read).is_none());
    assert!(matches!(reading.next(&mut read), Ok(Some(BodyChunk::Data(data))) if data == "ok"));
    let trailers = reading.end(&mut read).unwrap().unwrap();
    assert_eq!(trailers["x-sum"], "1");
}

#[test]
fn an_answer_reads_the_same_wherever_it_is_cut() {
    for text in [
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nx: y\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;x=y\r\nhello\r\na\r\n0123456789\r\n0\r\nx-sum: 1\r\ny: z\r\n\r\n",
        "HTTP/1.0 200\r\n\r\nuntil the end",
        "HTTP/1.1 404 Not Found\ncontent-length: 1\n\nx",
    ] {
        let whole = at_once(text).unwrap();
        let bytes = text.as_bytes();
        for cut in 0..=bytes.len() {
            let (one, two) = bytes.split_at(cut);
            assert_eq!(
                read(&Method::GET, [one, two]).as_ref(),
                Some(&whole),
                "{cut}"
            );
            if !text.starts_with("HTTP/1.0") && cut < bytes.len() {
                assert_eq!(read(&Method::GET, [one]), None, "{text} up to {cut}");
            }
        }
        assert_eq!(read(&Method::GET, bytes.chunks(1)), Some(whole));
    }
}

proptest! {
    #[test]
    fn nothing_makes_it_panic_and_no_cut_makes_a_difference(
        garbage in prop::collection::vec(any::<u8>(), 0..64),
        start in prop::sample::select(vec![
            "", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
        ]),
        every in 1_usize..9,
    ) {
        let bytes = [start.as_bytes(), &garbage].concat();
        let whole = read(&Method::GET, [&*bytes]);
        let cut = read(&Method::GET, bytes.chunks(every));
        // Bytes after the end are only seen where they are read with it.
        prop_assert_eq!(
            whole.map(|whole| (whole.status, whole.body, whole.trailers)),
            cut.map(|cut| (cut.status, cut.body, cut.trailers))
        );
    }

    #[test]
    fn sizes_are_written_as_they_are_read(length in any::<u32>()) {
        let mut line = Vec::new();
        request::write_chunk_size(length as usize, &mut line);
        prop_assert_eq!(String::from_utf8(line).unwrap(), format!("{length:x}\r\n"));
    }
}

#[test]
fn a_trailer_says_nothing_that_belongs_in_the_head() {
    let mut trailers = HeaderMap::new();
    for name in ["x-sum", "host", "x-forwarded-for", "x-real-ip", "te"] {
        trailers.insert(name, "1".parse().unwrap());
    }
    trailers.insert(CONTENT_LENGTH, "1".parse().unwrap());
    let mut out = Vec::new();
    request::write_last_chunk(Some(&trailers), &mut out);
    assert_eq!(out, b"0\r\nx-sum: 1\r\n\r\n");
}

/// What a client would be sent after the status line of a response whose fields are written out; `None` where they are
/// not.
fn written_out(text: &str, method: &Method) -> Option<String> {
    let mut read = BytesMut::from(text);
    let head = HeadReader::default()
        .next(&mut read, method, true, 1000)
        .ok()??;
    let mut reading = head.framing;
    let stock = PrebuiltResponse::new(head.raw?, reading.take_all(&mut read)?);
    let mut out = Vec::new();
    let first = "HTTP/1.1 200 OK\r\n";
    let end = "content-length: 0\r\ndate: Mon, 16 Nov 2026 10:05:48 GMT\r\n\r\n";
    assert!(stock.complete(format!("{first}{end}").as_bytes(), &mut out));
    let sent = String::from_utf8(out).ok()?;
    sent.strip_prefix(first).map(str::to_owned)
}

#[test]
fn fields_are_written_out_where_all_of_them_pass_and_the_body_is_there() {
    let get = |text: &str| written_out(text, &Method::GET);
    let plain =
        "HTTP/1.1 200 OK\r\nServer:  it \nDATE: now\r\nX: 1\r\nx: 2\r\nContent-Length: 2\r\n\r\n";
    assert_eq!(
        get(&format!("{plain}hi")).unwrap(),
        "server: it\r\ndate: now\r\nx: 1\r\nx: 2\r\ncontent-length: 2\r\n\r\nhi"
    );
    assert_eq!(get(&format!("{plain}h")), None, "more is to come");
    assert_eq!(written_out(&format!("{plain}hi"), &Method::HEAD), None);
    for other in [
        "HTTP/1.1 200 Fine\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nCONNECTION: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nKeep-Alive: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nX-Accel-Limit-Rate: 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        assert_eq!(get(other), None, "{other}");
    }
}

proptest! {
    /// In either form the same answers are answers, end at the same place and have the same fields.
    #[test]
    fn written_out_or_not_it_is_the_same_answer(
        fields in prop::collection::vec(("[A-Za-z]{1,3}|[Cc]ontent-[Ll]ength|Connection|Date", "[ -~]{0,6}|[0-9]"), 0..6),
        body in "[a-z]{0,12}",
    ) {
        let lines: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let text = format!("HTTP/1.1 200 OK\r\n{lines}\r\n{body}");
        let parse = |form| {
            let mut read = BytesMut::from(&*text);
            let head = HeadReader::default().next(&mut read, &Method::GET, form, 1000).ok().flatten()?;
            Some((format!("{:?} {}", head.framing, head.reusable), read, head.headers, head.raw))
        };
        match (parse(true), parse(false)) {
            (Some((how, rest, _, Some(_))), Some((as_map, map_rest, map, None))) => {
                prop_assert_eq!((how, rest), (as_map, map_rest));
                let written = written_out(&text, &Method::GET).unwrap();
                let (written, _) = written.split_once("\r\n\r\n").unwrap();
                let mut written: Vec<_> = written.split("\r\n").filter(|line| map.contains_key("date") || !line.starts_with("date: ")).collect();
                let mut expected: Vec<_> = map.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
                written.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(written, expected);
            }
            (Some((how, rest, map, None)), other) => {
                let (as_map, map_rest, fields, _) = other.unwrap();
                prop_assert_eq!((how, rest, map), (as_map, map_rest, fields));
            }
            (lines, map) => prop_assert!(lines.is_none() && map.is_none()),
        }
    }
}
