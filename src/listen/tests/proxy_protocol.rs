//! Headers whole, cut, wrong, long and slow.

use std::net::IpAddr;

use proptest::prelude::*;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;

use super::*;

fn parsed_ends(header: &[u8]) -> Result<Option<(String, String)>, ProxyHeaderError> {
    match parse(header)? {
        ParseOutcome::Whole {
            length,
            header: proxy_header,
        } => {
            assert_eq!(length, header.len(), "{header:?}");
            Ok(proxy_header.map(|it| (it.from.to_string(), it.to.to_string())))
        }
        ParseOutcome::Part { wanted } => panic!("{header:?} is a part of {wanted} bytes"),
    }
}

fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend([command, family]);
    header.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
    header.extend(body);
    header
}

const ENDS4: &[u8] = &[192, 0, 2, 7, 198, 51, 100, 1, 0xdc, 0x04, 0x01, 0xbb];

#[test]
fn both_versions_name_both_ends() {
    let ends = |from: &str, to: &str| Ok(Some((from.to_owned(), to.to_owned())));
    assert_eq!(
        parsed_ends(b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n"),
        ends("192.0.2.7:56324", "198.51.100.1:443")
    );
    assert_eq!(
        parsed_ends(b"PROXY TCP6 2001:db8::7 ::1 56324 443\r\n"),
        ends("[2001:db8::7]:56324", "[::1]:443")
    );
    assert_eq!(
        parsed_ends(&v2(0x21, 0x11, ENDS4)),
        ends("192.0.2.7:56324", "198.51.100.1:443")
    );
    let mut ends6 = [0; 36];
    (ends6[0], ends6[1], ends6[15], ends6[31]) = (0x20, 0x01, 7, 1);
    (ends6[33], ends6[35]) = (1, 2);
    assert_eq!(
        parsed_ends(&v2(0x21, 0x21, &ends6)),
        ends("[2001::7]:1", "[::1]:2")
    );
    let with_tlvs = v2(0x21, 0x11, &[ENDS4, b"\x02\0\x04a.test"].concat());
    let Ok(ParseOutcome::Whole {
        header: Some(it), ..
    }) = parse(&with_tlvs)
    else {
        panic!("a header with more in it")
    };
    assert_eq!(&*it.tlvs, b"\x02\0\x04a.test");
}

#[test]
fn a_proxy_may_speak_for_itself() {
    assert_eq!(parsed_ends(b"PROXY UNKNOWN\r\n"), Ok(None));
    assert_eq!(
        parsed_ends(b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n"),
        Ok(None)
    );
    assert_eq!(parsed_ends(&v2(0x20, 0x00, b"")), Ok(None));
    assert_eq!(parsed_ends(&v2(0x20, 0x11, ENDS4)), Ok(None));
    assert_eq!(parsed_ends(&v2(0x21, 0x00, b"")), Ok(None));
    assert_eq!(parsed_ends(&v2(0x21, 0x12, ENDS4)), Ok(None), "UDP");
    assert_eq!(parsed_ends(&v2(0x21, 0x31, &[0; 216])), Ok(None), "unix");
}

#[test]
fn what_is_no_header_is_refused_at_once() {
    for (header, wrong) in [
        (&b"GET / HTTP/1.1\r\n"[..], ProxyHeaderError::Other),
        (b"\x16\x03\x01", ProxyHeaderError::Other),
        (
            b"proxy TCP4 1.1.1.1 2.2.2.2 1 2\r\n",
            ProxyHeaderError::Other,
        ),
        (b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\n", ProxyHeaderError::Other),
        (b"PROXY TCP5 1.1.", ProxyHeaderError::Kind),
        (b"PROXY UNKNOWNX\r\n", ProxyHeaderError::Kind),
        (b"PROXY TCP4 ::1 ::1 1 2\r\n", ProxyHeaderError::Address),
        (
            b"PROXY TCP6 1.1.1.1 2.2.2.2 1 2\r\n",
            ProxyHeaderError::Address,
        ),
        (
            b"PROXY TCP4 1.1.1.1 2.2.2.2 1 65536\r\n",
            ProxyHeaderError::Address,
        ),
        (
            b"PROXY TCP4 1.1.1.1 2.2.2.2 1 +2\r\n",
            ProxyHeaderError::Address,
        ),
        (
            b"PROXY TCP4 1.1.1.1 2.2.2.2 1\r\n",
            ProxyHeaderError::Address,
        ),
        (
            b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2 3\r\n",
            ProxyHeaderError::Address,
        ),
        (
            b"PROXY TCP4 1.1.1.1  2.2.2.2 1 2\r\n",
            ProxyHeaderError::Address,
        ),
    ] {
        assert_eq!(parse(header), Err(wrong), "{}", header.escape_ascii());
    }
    assert_eq!(parse(&v2(0x11, 0x11, ENDS4)), Err(ProxyHeaderError::Kind));
    assert_eq!(parse(&v2(0x22, 0x11, ENDS4)), Err(ProxyHeaderError::Kind));
    assert_eq!(parse(&v2(0x21, 0x41, ENDS4)), Err(ProxyHeaderError::Kind));
    assert_eq!(parse(&v2(0x21, 0x13, ENDS4)), Err(ProxyHeaderError::Kind));
    assert_eq!(
        parse(&v2(0x21, 0x11, &ENDS4[1..])),
        Err(ProxyHeaderError::Address)
    );
    assert_eq!(
        parse(&v2(0x21, 0x21, ENDS4)),
        Err(ProxyHeaderError::Address)
    );
    assert_eq!(
        parse(&v2(0x21, 0x11, &[0; 4081])),
        Err(ProxyHeaderError::TooLong)
    );
    let long = [b"PROXY UNKNOWN ".to_vec(), vec![b'x'; 93]].concat();
    assert_eq!(parse(&long), Err(ProxyHeaderError::TooLong));
    assert!(matches!(
        parse(&long[..106]),
        Ok(ParseOutcome::Part { wanted: 107 })
    ));
}

/// A checksum that was sent is verified; the sums here were computed by another program.
#[test]
fn a_checksum_has_to_be_right() {
    let summed = |command, family, body: &[u8], sum: [u8; 4]| {
        parse(&v2(command, family, &[body, b"\x03\0\x04", &sum].concat())).map(drop)
    };
    let named = [ENDS4, b"\x02\0\x06a.test"].concat();
    let right = [0x74, 0xfd, 0x3c, 0x8c];
    assert_eq!(summed(0x21, 0x11, &named, right), Ok(()));
    assert_eq!(summed(0x20, 0x00, b"", [0xa9, 0xb8, 0x7e, 0x8f]), Ok(()));
    assert_eq!(
        summed(0x20, 0x00, b"", right),
        Err(ProxyHeaderError::Checksum)
    );
    assert_eq!(
        summed(0x21, 0x11, &named, [0; 4]),
        Err(ProxyHeaderError::Checksum)
    );
    let mut other = named;
    other[3] += 1;
    assert_eq!(
        summed(0x21, 0x11, &other, right),
        Err(ProxyHeaderError::Checksum)
    );
}

async fn read_in_pieces(
    bytes: Vec<u8>,
    size: usize,
) -> (Result<Option<ProxyHeader>, ProxyReadError>, Vec<u8>) {
    let (mut proxy, near) = UnixStream::pair().unwrap();
    let (sent, ()) = tokio::join!(
        async {
            let mut stream = Stream::Unix(near);
            let read = read_proxy_header(&mut stream, Duration::from_secs(5)).await;
            let Stream::Unix(mut rest) = stream else {
                panic!()
            };
            let mut left = Vec::new();
            rest.read_to_end(&mut left).await.unwrap();
            (read, left)
        },
        async {
            for piece in bytes.chunks(size) {
                proxy.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            drop(proxy);
        }
    );
    sent
}

#[tokio::test]
async fn not_a_byte_behind_the_header_is_taken() {
    let headers = [
        b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n".to_vec(),
        b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n".to_vec(),
        b"PROXY TCP6 ::1 ::2 1 2\r\n".to_vec(),
        b"PROXY TCP6 2001:db8::7 ::1 56324 443\r\n".to_vec(),
        b"PROXY UNKNOWN\r\n".to_vec(),
        b"PROXY UNKNOWN x\r\n".to_vec(),
        v2(0x21, 0x11, ENDS4),
        v2(0x20, 0x00, b""),
    ];
    for header in headers {
        for size in [1, 7, 1000] {
            let sent = [&header[..], b"\nGET / HTTP/1.1\r\n\r\n"].concat();
            let (read, left) = read_in_pieces(sent, size).await;
            let Ok(ParseOutcome::Whole {
                header: proxy_header,
                ..
            }) = parse(&header)
            else {
                panic!("{}", header.escape_ascii())
            };
            assert_eq!(read.unwrap(), proxy_header);
            assert_eq!(
                left,
                b"\nGET / HTTP/1.1\r\n\r\n",
                "{}",
                header.escape_ascii()
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_header_that_drips_ends_in_time() {
    let (mut proxy, near) = UnixStream::pair().unwrap();
    let dripping = async move {
        for byte in b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n" {
            proxy.write_all(&[*byte]).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let mut stream = Stream::Unix(near);
    let limit = Duration::from_secs(5);
    tokio::select! {
        read = read_proxy_header(&mut stream, limit) => assert!(matches!(read, Err(ProxyReadError::TimedOut)), "{read:?}"),
        () = dripping => panic!("it dripped for ever"),
    }
}

#[tokio::test]
async fn an_early_end_is_no_header() {
    let (read, _) = read_in_pieces(b"PROXY TCP4 192.0.2.7".to_vec(), 100).await;
    assert!(matches!(read, Err(ProxyReadError::Broken(_))), "{read:?}");
}

/// How many of these bytes are read by a reader that asks only for what the parser wants.
fn stepwise(bytes: &[u8]) -> usize {
    let mut read = 0;
    while let Ok(ParseOutcome::Part { wanted }) = parse(&bytes[..read]) {
        read = wanted;
    }
    read
}

proptest! {
    /// Cut anywhere, a header asks for no more than is left of it, and for something.
    #[test]
    fn a_part_never_asks_for_more_than_the_whole(
        from: IpAddr, to: IpAddr, ports: (u16, u16), cut in 0_usize..110
    ) {
        let line = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => format!("TCP4 {from} {to}"),
            (IpAddr::V6(from), IpAddr::V6(to)) => format!("TCP6 {from} {to}"),
            _ => format!("UNKNOWN {from} {to}"),
        };
        let line = format!("PROXY {line} {} {}\r\n", ports.0, ports.1);
        let cut = cut.min(line.len() - 1);
        match parse(&line.as_bytes()[..cut]) {
            Ok(ParseOutcome::Part { wanted }) => prop_assert!(cut < wanted && wanted <= line.len()),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn anything_may_come(bytes: Vec<u8>) {
        for (beginning, end) in [
            (&b""[..], &b""[..]),
            (b"PROXY ", b"\r\n"),
            (b"PROXY UNKNOWN ", b"\r\n"),
            (b"PROXY TCP4 1.1.1.1 2.2.2.2 ", b" 1 2\r\n"),
            (b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n", b""),
            (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", b"0123456789ab"),
            (b"\r\n\r\n\0\r\nQUIT\n\x21", b""),
        ] {
            let bytes = [beginning, &bytes, end].concat();
            match parse(&bytes) {
                Ok(ParseOutcome::Part { wanted }) => prop_assert!(wanted > bytes.len() && wanted <= 4096),
                Ok(ParseOutcome::Whole { length, .. }) => {
                    prop_assert!(length <= bytes.len());
                    prop_assert_eq!(stepwise(&bytes), length, "not a byte too many");
                }
                Err(_) => {}
            }
        }
    }
}
