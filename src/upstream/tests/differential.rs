//! Our client and hyper's read the same answers, cut in the same places, and have to come to the same end.
//!
//! Where we are stricter on purpose, an answer is not generated at all:
//! - both lengths at once, several equal lengths, a transfer coding other than `chunked`, any coding from HTTP/1.0:
//!   hyper picks one way to read them;
//! - a chunk's size of more than 15 digits, a bare line feed inside trailers, more than 32 of these;
//! - a control character in a chunk's extension, which is made of tokens and quoted strings (RFC 9112, 7.1.1): hyper skips it.

use http::HeaderMap;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1 as hyper1;
use proptest::prelude::*;
use tokio::io::AsyncReadExt;

use super::*;
use crate::net::Stream;
use crate::tls::Socket;
use crate::upstream::attempt::exchange;
use crate::upstream::backend::RetiredFlag;
use crate::upstream::connection::UpstreamConnection;

/// What came of an answer.
#[derive(Debug, PartialEq)]
enum Outcome {
    Answer(Box<Answered>),
    Refused,
}

#[derive(Debug, PartialEq)]
struct Answered {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
    whole: bool,
}

impl Outcome {
    async fn of<B: http_body::Body<Data = Bytes> + Unpin>(response: Response<B>) -> Self {
        let (head, mut body) = response.into_parts();
        let mut answered = Answered {
            status: head.status,
            headers: head.headers,
            body: Vec::new(),
            trailers: None,
            whole: true,
        };
        while let Some(frame) = body.frame().await {
            match frame.map(http_body::Frame::into_data) {
                Ok(Ok(data)) => answered.body.extend_from_slice(&data),
                Ok(Err(trailers)) => answered.trailers = trailers.into_trailers().ok(),
                Err(_) => {
                    answered.whole = false;
                    break;
                }
            }
        }
        Self::Answer(Box::new(answered))
    }
}

/// Plays the origin: hears the request's head, says the pieces one by one, hangs up.
async fn play(mut origin: DuplexStream, pieces: Vec<Vec<u8>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(origin.read_u8().await.unwrap());
    }
    for piece in pieces {
        // The receiver may be gone.
        drop(origin.write_all(&piece).await);
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
    }
}

async fn ours(method: Method, pieces: Vec<Vec<u8>>) -> Outcome {
    let (near, far) = tokio::io::duplex(64 * 1024);
    tokio::spawn(play(far, pieces));
    let mut road = Road::to(&[&Origin::absent().await]);
    let next = next_upstream();
    let mut retry = RetryState::new(outgoing(method), &next, 1, false, Millis(0));
    let wire =
        UpstreamConnection::new(Socket::Plain(Stream::Test(near)), 0, RetiredFlag::default());
    let cx = AttemptContext {
        record: &mut road.record,
        proxy_pass: &road.proxy_pass,
        clock: &road.clock,
        now: Millis(0),
    };
    match exchange(wire, &mut retry, &cx).await {
        Ok(answer) => {
            let lease = road.upstream.backends()[0].start_request();
            let begun = UpstreamBody::begin(answer, lease, &cx);
            Outcome::of(begun).await
        }
        Err(_) => Outcome::Refused,
    }
}

async fn hypers(method: Method, pieces: Vec<Vec<u8>>) -> Outcome {
    let (near, far) = tokio::io::duplex(64 * 1024);
    tokio::spawn(play(far, pieces));
    let (mut sender, connection) = hyper1::handshake(TokioIo::new(near)).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let request = Request::builder()
        .method(method)
        .uri("/path?query")
        .header("host", "origin")
        .body(Empty::<Bytes>::new())
        .unwrap();
    match sender.send_request(request).await {
        Ok(response) => Outcome::of(response).await,
        Err(_) => Outcome::Refused,
    }
}

#[derive(Debug, Clone)]
struct Script {
    method: Method,
    bytes: Vec<u8>,
    cuts: Vec<prop::sample::Index>,
}

impl Script {
    fn pieces(&self) -> Vec<Vec<u8>> {
        let mut cuts: Vec<_> = self
            .cuts
            .iter()
            .map(|cut| cut.index(self.bytes.len() + 1))
            .collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in cuts.into_iter().chain([self.bytes.len()]) {
            if cut > from {
                pieces.push(self.bytes[from..cut].to_vec());
                from = cut;
            }
        }
        pieces
    }
}

fn chunked() -> impl Strategy<Value = String> {
    let chunk = (
        "[a-z]{1,40}",
        prop::sample::select(vec!["", ";a", "; a=\"b;c\"", " ", "\t ;x"]),
        any::<bool>(),
    );
    let trailers = prop::sample::select(vec!["", "x-sum: 1\r\n", "a: b\r\nc:d\r\na: e\r\n"]);
    (prop::collection::vec(chunk, 0..4), trailers).prop_map(|(chunks, trailers)| {
        let mut body = String::new();
        for (data, extension, upper) in chunks {
            let size = data.len();
            let size = if upper {
                format!("{size:03X}")
            } else {
                format!("{size:x}")
            };
            body.push_str(&format!("{size}{extension}\r\n{data}\r\n"));
        }
        body + "0\r\n" + trailers + "\r\n"
    })
}

/// The fields that frame a body, and the body.
fn framed() -> impl Strategy<Value = String> {
    let length = ("[a-z\r\n]{0,80}", -3_i32..4).prop_map(|(body, off)| {
        let said = i32::try_from(body.len()).unwrap() + off;
        // Now and then too long, too short or not a number.
        format!("Content-Length: {said}\r\n\r\n{body}")
    });
    prop_oneof![
        chunked().prop_map(|body| format!("Transfer-Encoding: chunked\r\n\r\n{body}")),
        length,
        "[a-z\r\n]{0,80}".prop_map(|body| format!("\r\n{body}")),
    ]
}

fn answer() -> impl Strategy<Value = String> {
    let interim = prop::sample::select(vec![
        "",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n",
    ]);
    let status = prop::sample::select(vec![
        "HTTP/1.1 200 OK",
        "HTTP/1.1 204 No Content",
        "HTTP/1.1 304 Not Modified",
        "HTTP/1.1 404",
        "HTTP/1.1 599 Some \t words",
        "HTTP/1.0 200 OK",
    ]);
    let status = prop_oneof![
        9 => status,
        1 => prop::sample::select(vec!["HTTP/2.0 200 OK", "HTTP/1.1 20 Short"]),
    ];
    let fields = prop::sample::select(vec![
        "",
        "x: y\r\n",
        "Set-Cookie: a=b\r\nset-cookie: c=d\r\n",
        "connection: close\r\n",
        "Connection: keep-alive\r\nempty:\r\n",
        "obs: \u{fc}\r\n",
    ]);
    let fields = prop_oneof![
        9 => fields,
        1 => prop::sample::select(vec!["bad name: x\r\n", "folded: a\r\n b\r\n", ": x\r\n"]),
    ];
    (interim, status, fields, framed())
        .prop_filter("a coding from HTTP/1.0", |(_, status, _, framed)| {
            !(status.starts_with("HTTP/1.0") && framed.starts_with("Transfer"))
        })
        // hyper does not look at the length of an answer that has no body; we do.
        .prop_filter("a bad length without a body", |(_, _, _, framed)| {
            !framed.starts_with("Content-Length: -")
        })
        .prop_map(|(interim, status, fields, framed)| {
            format!("{interim}{status}\r\n{fields}{framed}")
        })
}

fn script() -> impl Strategy<Value = Script> {
    let method = prop::sample::select(vec![Method::GET, Method::GET, Method::HEAD]);
    let cuts = prop::collection::vec(any::<prop::sample::Index>(), 0..6);
    let fate = prop_oneof![
        4 => Just(None),
        1 => any::<(prop::sample::Index, u8)>().prop_map(Some),
    ];
    let truncated = prop_oneof![3 => Just(None), 1 => any::<prop::sample::Index>().prop_map(Some)];
    (method, answer(), cuts, fate, truncated).prop_map(|(method, answer, cuts, spoiled, end)| {
        let mut bytes = answer.into_bytes();
        let at = bytes.len();
        if let Some((place, byte)) = spoiled {
            // Not in the fields that frame it, which would make one of those that only we refuse.
            let place = place.index(at);
            let line = bytes[..place].rsplit(|byte| *byte == b'\n').next();
            let frames = |line: &[u8]| line.starts_with(b"C") || line.starts_with(b"T");
            // Nor so that a line of the head has no colon: hyper refuses an answer for that, and we skip the line.
            let begins = place == 0 || bytes[place - 1] == b'\n';
            let makes_stray =
                bytes[place] == b':' || begins && matches!(bytes[place], b' ' | b'\r');
            // Nor as a control character among the bytes of a chunk's extension. In place of the end of its line both refuse it.
            let is_control = byte.is_ascii_control() && !matches!(byte, b'\t' | b'\r');
            let extends = |line: &[u8]| line.contains(&b';');
            let ends = matches!(bytes[place], b'\r' | b'\n');
            let spoils_extension = is_control && !ends && line.is_some_and(extends);
            if byte != b'\n' && !makes_stray && !line.is_some_and(frames) && !spoils_extension {
                bytes[place] = byte;
            }
        }
        if let Some(end) = end {
            bytes.truncate(end.index(at));
        }
        Script {
            method,
            bytes,
            cuts,
        }
    })
}

fn compare(method: &Method, pieces: &[Vec<u8>]) -> (Outcome, Outcome) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let ours = ours(method.clone(), pieces.to_vec()).await;
        (ours, hypers(method.clone(), pieces.to_vec()).await)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn we_and_hyper_read_the_same(script in script()) {
        let pieces = script.pieces();
        let (ours, hypers) = compare(&script.method, &pieces);
        prop_assert_eq!(ours, hypers, "{:?}", String::from_utf8_lossy(&script.bytes));
    }
}

#[test]
fn we_and_hyper_read_the_same_wherever_an_answer_is_cut_or_ends() {
    for answer in [
        "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nx-sum: 1\r\n\r\n",
        "HTTP/1.0 200 OK\r\nx: y\r\n\r\nuntil the end",
    ] {
        for cut in 0..=answer.len() {
            let (one, two) = answer.as_bytes().split_at(cut);
            for pieces in [vec![one.to_vec(), two.to_vec()], vec![one.to_vec()]] {
                let (ours, hypers) = compare(&Method::GET, &pieces);
                assert_eq!(ours, hypers, "{answer:?} at {cut}, {} pieces", pieces.len());
            }
        }
    }
}

#[test]
fn a_control_character_in_a_chunk_extension_is_refused_here_and_skipped_by_hyper() {
    let controls = (0..0x20).chain([0x7f]);
    for control in controls.filter(|byte| !matches!(byte, b'\t' | b'\r' | b'\n')) {
        let mut bytes =
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;x=?\r\nhello\r\n0\r\n\r\n"
                .to_vec();
        for byte in bytes.iter_mut().filter(|byte| **byte == b'?') {
            *byte = control;
        }
        let (ours, hypers) = compare(&Method::GET, &[bytes]);
        let read = |outcome: Outcome| match outcome {
            Outcome::Answer(answered) => (answered.body, answered.whole),
            Outcome::Refused => panic!("its head is well-formed"),
        };
        assert_eq!(read(ours), (Vec::new(), false), "{control:#x}");
        assert_eq!(read(hypers), (b"hello".to_vec(), true), "{control:#x}");
    }
}
