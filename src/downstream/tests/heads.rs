//! Heads are found where hyper finds them, and what it does not tell of them is noticed.

use proptest::prelude::*;
use tokio::io::AsyncWriteExt as _;

use super::*;
use crate::downstream::request_scan::RequestScanner;
use crate::message::Ambiguity;

/// What is made of bytes that come in pieces: how many go on, how many heads ended, and about which there is doubt.
fn followed<'p>(
    pieces: impl IntoIterator<Item = &'p [u8]>,
) -> (usize, u64, Option<(u64, Ambiguity)>) {
    let peer = crate::message::testing::connection();
    let mut heads = RequestScanner::new(1024, 0);
    let mut sound = 0;
    for piece in pieces {
        sound += heads.follow(piece, &peer);
    }
    let doubt = (1..=heads.ended()).find_map(|number| {
        peer.ambiguity
            .of_request(number)
            .map(|doubt| (number, doubt))
    });
    (sound, heads.ended(), doubt)
}

fn doubt(head: &str) -> Option<Ambiguity> {
    let (_, ended, doubt) = followed([head.as_bytes()]);
    assert_eq!(ended, 1, "{head:?}");
    doubt.map(|(_, doubt)| doubt)
}

#[test]
fn empty_lines_before_a_request_have_an_end() {
    let head = "GET / HTTP/1.1\r\n\r\n";
    let after = |lines: usize| format!("{head}{}{head}", "\r\n".repeat(lines));
    let (sound, ended, _) = followed([after(16).as_bytes()]);
    assert_eq!((sound, ended), (after(16).len(), 2));
    let (sound, ended, _) = followed([after(17).as_bytes(), head.as_bytes()]);
    assert_eq!((sound, ended), (head.len() + 34, 1));
}

#[test]
fn what_hyper_hides_is_noticed() {
    for (fields, expected) in [
        ("", None),
        ("Content-Length: 0\r\n", None),
        (
            "Content-Lengths: 5\r\nX-Content-Length: 5\r\nContent-Length: 0\r\n",
            None,
        ),
        ("Transfer-Encoding: chunked\r\n", None),
        (
            "content-length: 0\r\nCONTENT-LENGTH: 0\r\n",
            Some(Ambiguity::TwoLengths),
        ),
        (
            "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n",
            Some(Ambiguity::BothLengths),
        ),
        (
            "transfer-encoding:chunked\nA: b\ncontent-length:\t6\n",
            Some(Ambiguity::BothLengths),
        ),
    ] {
        assert_eq!(
            doubt(&format!("GET / HTTP/1.1\r\n{fields}\r\n")),
            expected,
            "{fields:?}"
        );
    }
    assert_eq!(doubt("GET /#x HTTP/1.1\r\n\r\n"), Some(Ambiguity::Fragment));
    assert_eq!(doubt("\r\n\nGET / HTTP/1.1\n\n"), None);
}

#[test]
fn a_doubt_is_about_the_request_it_belongs_to() {
    let text = "GET /1 HTTP/1.1\r\n\r\nPOST /2 HTTP/1.1\r\nContent-Length: 42\r\n\r\n\
        Content-Length: 1\r\nContent-Length: 1\r\n\r\n\r\n\
        POST /3 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n0\r\nX: y\r\n\r\n\
        POST /4 HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n";
    let expected = (text.len(), 4, Some((4, Ambiguity::TwoLengths)));
    let bytes = text.as_bytes();
    assert_eq!(followed([bytes]), expected);
    assert_eq!(followed(bytes.chunks(1)), expected);
    for cut in 0..bytes.len() {
        let (one, two) = bytes.split_at(cut);
        assert_eq!(followed([one, two]), expected, "{cut}");
    }
}

#[test]
fn a_chunk_that_is_none_goes_no_further() {
    let head = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (good, bad) in [
        ("", "x"),
        ("000000000000005", "0\r\n"),
        ("1;a", "\0\r\n"),
        ("1;a", "\n"),
        ("1\r\na\r", "X"),
        ("0\r\nX: y", "\n\r\n"),
        ("0\r\n", "\n"),
        ("0\r\nX: y\r", "z\r\n"),
    ] {
        let text = format!("{head}{good}{bad}GET / HTTP/1.1\r\n\r\n");
        let expected = (head.len() + good.len(), 1, None);
        assert_eq!(followed([text.as_bytes()]), expected, "{text:?}");
        assert_eq!(followed(text.as_bytes().chunks(1)), expected, "{text:?}");
    }
}

#[test]
fn a_refusal_is_told_by_its_cause() {
    let status = |text: String, hypers| {
        let mut heads = RequestScanner::new(1024, 0);
        heads.follow(text.as_bytes(), &crate::message::testing::connection());
        heads.status(hypers, 0)
    };
    let long = "x".repeat(2000);
    assert_eq!(status(format!("GET /{long}"), 431), 414);
    assert_eq!(
        status(format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"), 431),
        414
    );
    assert_eq!(status(format!("GET / HTTP/1.1\r\nX: {long}"), 431), 431);
    assert_eq!(
        status(format!("GET / HTTP/1.1\r\nX: {long}\r\n\r\n"), 431),
        431
    );
    assert_eq!(status("GET / HTTP/2.0\r\n\r\n".to_owned(), 400), 505);
    assert_eq!(status("GET / HTTP/1.1\r\nbad\r\n\r\n".to_owned(), 400), 400);
}

/// How many requests hyper finds in these bytes, and whether it took offence at any.
async fn found_by_hyper(bytes: &[u8], every: usize) -> (u64, bool) {
    let (mut client, server) = tokio::io::duplex(64);
    let found = Arc::new(Mutex::new(0));
    let counting = Arc::clone(&found);
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        *counting.lock() += 1;
        async move {
            // The road would not take it either.
            if crate::message::headers::coding(request.headers())
                != crate::message::headers::TransferCoding::Plain
            {
                return Err("refused".into());
            }
            // To its end, or the connection is closed instead.
            request.into_body().collect().await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .half_close(true)
        .serve_connection(hyper_util::rt::TokioIo::new(server), service);
    let talk = async {
        let (mut answers, mut questions) = tokio::io::split(&mut client);
        let write = async {
            for piece in bytes.chunks(every) {
                if questions.write_all(piece).await.is_err() {
                    break;
                }
            }
            questions.shutdown().await.ok();
        };
        let mut said = Vec::new();
        tokio::join!(write, async {
            answers.read_to_end(&mut said).await.ok();
        });
        String::from_utf8_lossy(&said).into_owned()
    };
    let (served, said) = tokio::join!(connection, talk);
    let offended = served.is_err() || said.contains("HTTP/1.1 4");
    let count = *found.lock();
    (count, offended)
}

/// Requests of which some are not, by the pieces they are made of.
fn requests() -> impl Strategy<Value = String> {
    let line = prop::sample::select(vec![
        "GET / HTTP/1.1\r\n",
        "POST /a?b HTTP/1.1\r\n",
        "\r\nPUT / HTTP/1.1\n",
        "GET / HTTP/1.0\r\n",
        "GET / HTTP/1.2\r\n",
    ]);
    let field = prop::sample::select(vec![
        "Host: a\r\n",
        "X: y\n",
        "Cookie: a=b\r\n",
        "Connection: keep-alive\r\n",
        "TE: trailers\r\n",
        "content-length: 3\r\n",
        "Content-Length: 12 \r\n",
        "Content-Length : 3\r\n",
        "Content-Length:\r\n",
        " folded\r\n",
        "Transfer-Encoding: chunked\r\n",
        "transfer-encoding:CHUNKED\r\n",
        "Upgrade: a\r\n",
        "Expect: 100-continue\r\n",
    ]);
    let body = prop::sample::select(vec![
        "",
        "abc",
        "GET / HTTP/1",
        "0\r\n\r\n",
        "3\r\nabc\r\n0\r\nX: y\r\n\r\n",
        "c;x=y\r\nGET / HTTP/1\r\n0\r\n\r\n",
        "3\nabc\n0\n\n",
        "0\r\nX: y\n\n\r\n",
    ]);
    let request = (line, prop::collection::vec(field, 0..4), body)
        .prop_map(|(line, fields, body)| format!("{line}{}\r\n{body}", fields.concat()));
    prop::collection::vec(request, 1..5).prop_map(|requests| requests.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The rule that all of it stands on: the n-th head here is the n-th request there.
    #[test]
    fn heads_are_where_hyper_finds_them(text in requests(), every in 1_usize..80) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let bytes = text.as_bytes();
        let (found, offended) = runtime.block_on(found_by_hyper(bytes, every));
        let (sound, ended, doubt) = followed(bytes.chunks(every));
        prop_assert_eq!((sound, ended, doubt), followed([bytes]), "however it is cut");
        let broken = sound < bytes.len();
        let closed = offended || text.contains("HTTP/1.0");
        match doubt {
            _ if broken => {}
            Some((doubted, _)) => prop_assert!(closed || found >= doubted),
            None if closed => prop_assert!(found <= ended),
            None => prop_assert_eq!(found, ended),
        }
    }
}
