//! Whom headers name, spelled in every way.

use std::sync::Arc;

use http::HeaderName;
use proptest::prelude::*;

use super::{RemoteAddr, *};
use crate::clock::Millis;
use crate::config::plan::{ClientMatch, Variable};
use crate::message::connection::{ClientConnection, ProxyHeader};
use crate::message::record::RequestRecord;
use crate::message::testing::{plan, request_in};

fn rule(header: RealIpHeader, recursive: bool) -> RealIp {
    RealIp {
        from: ["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32"]
            .map(|network| ClientMatch::Ip(network.parse().unwrap()))
            .into(),
        header,
        recursive,
    }
}

fn told(rule: &RealIp, fields: &[(&str, &str)]) -> RequestRecord {
    let connection = crate::message::testing::connection();
    let mut record = request_in(plan(), connection, "GET", "/", fields);
    record.identify(rule);
    record
}

fn client(rule: &RealIp, fields: &[(&str, &str)]) -> String {
    let record = told(rule, fields);
    let mut text = Vec::new();
    crate::message::variables::append(&Variable::RemoteAddr, &record, &mut text);
    text.push(b' ');
    crate::message::variables::append(&Variable::RemotePort, &record, &mut text);
    String::from_utf8(text).unwrap().trim_end().to_owned()
}

/// Of these lines, top to bottom.
fn of(name: &str, header: RealIpHeader, recursive: bool, lines: &[&str]) -> String {
    let fields: Vec<_> = lines.iter().map(|line| (name, *line)).collect();
    client(&rule(header, recursive), &fields)
}

/// What is left when no client is named: the other end itself.
const PEER: &str = "192.0.2.7 50000";

#[test]
fn x_forwarded_for_is_read_from_the_right() {
    let last = |lines: &[&str]| of("x-forwarded-for", RealIpHeader::XForwardedFor, false, lines);
    let first_untrusted =
        |lines: &[&str]| of("x-forwarded-for", RealIpHeader::XForwardedFor, true, lines);
    for (lines, plain, recursive) in [
        (&[][..], PEER, PEER),
        (&["1.1.1.1"], "1.1.1.1", "1.1.1.1"),
        (&["1.1.1.1, 2.2.2.2"], "2.2.2.2", "2.2.2.2"),
        (&["1.1.1.1, 10.0.0.1"], "10.0.0.1", "1.1.1.1"),
        (&["1.1.1.1 10.0.0.1,,  ,"], "10.0.0.1", "1.1.1.1"),
        (&["10.0.0.2, 10.0.0.1"], "10.0.0.1", "10.0.0.2"),
        (&["1.1.1.1", "10.0.0.1"], "10.0.0.1", "1.1.1.1"),
        (
            &["1.1.1.1, 2.2.2.2", "10.0.0.1,10.0.0.2"],
            "10.0.0.2",
            "2.2.2.2",
        ),
        (&["1.1.1.1, unknown, 10.0.0.1"], "10.0.0.1", "10.0.0.1"),
        (&["1.1.1.1", "", "10.0.0.1"], "10.0.0.1", "10.0.0.1"),
        // The lower line is the one that the nearer proxy wrote.
        (&["6.6.6.6", "1.1.1.1"], "1.1.1.1", "1.1.1.1"),
        (&["10.0.0.1", "1.1.1.1"], "1.1.1.1", "1.1.1.1"),
        (
            &["6.6.6.6", "1.1.1.1", "10.0.0.2, 10.0.0.1"],
            "10.0.0.1",
            "1.1.1.1",
        ),
        (&["unknown"], PEER, PEER),
        (&[""], PEER, PEER),
        (&[","], PEER, PEER),
        (&[",1.1.1.1"], PEER, PEER),
        (&["1.1.1.1:80, 10.0.0.1:81"], "10.0.0.1 81", "1.1.1.1 80"),
        (&["2001:4860::1"], "2001:4860::1", "2001:4860::1"),
        (
            &["2001:4860::1, 2001:DB8::1"],
            "2001:db8::1",
            "2001:4860::1",
        ),
        (
            &["[2001:4860::1]:443"],
            "2001:4860::1 443",
            "2001:4860::1 443",
        ),
        (&["[2001:4860::1]"], PEER, PEER),
        (&["[2001:4860::1]:0"], PEER, PEER),
        (&["1.1.1.1:+80"], PEER, PEER),
        (&["1.1.1.1:65536"], PEER, PEER),
        (&["1.1.1"], PEER, PEER),
        (&["1.1.1.1."], PEER, PEER),
        (&["1.1.1.1;"], PEER, PEER),
        (&["::ffff:1.1.1.1"], "1.1.1.1", "1.1.1.1"),
        (&["1.1.1.1, ::ffff:10.0.0.1"], "10.0.0.1", "1.1.1.1"),
        (&["unix:"], PEER, PEER),
    ] {
        assert_eq!(last(lines), plain, "{lines:?}");
        assert_eq!(first_untrusted(lines), recursive, "{lines:?} recursive");
    }
}

#[test]
fn of_another_header_the_first_line_counts() {
    let name = || RealIpHeader::Other(HeaderName::from_static("x-real-ip"));
    let of = |lines: &[&str]| of("x-real-ip", name(), true, lines);
    assert_eq!(of(&["1.1.1.1", "2.2.2.2"]), "1.1.1.1");
    assert_eq!(of(&["1.1.1.1, 10.0.0.1"]), "1.1.1.1");
    assert_eq!(of(&[]), PEER);
    let rule = rule(name(), false);
    assert_eq!(client(&rule, &[("x-forwarded-for", "1.1.1.1")]), PEER);
}

#[test]
fn forwarded_may_quote_hide_and_add() {
    let of = |lines: &[&str]| of("forwarded", RealIpHeader::Forwarded, true, lines);
    for (lines, expected) in [
        (&["for=1.1.1.1"][..], "1.1.1.1"),
        (&["For=1.1.1.1;proto=https;by=10.0.0.1"], "1.1.1.1"),
        (&["by=10.0.0.1; FOR = 1.1.1.1"], PEER),
        (&["by=10.0.0.1; FOR=1.1.1.1 "], "1.1.1.1"),
        (&["for=\"1.1.1.1:80\""], "1.1.1.1 80"),
        (&["for=1.1.1.1:80"], "1.1.1.1 80"),
        (&["for=\"[2001:4860::1]:4711\""], "2001:4860::1 4711"),
        (&["for=\"[2001:4860::1]\""], "2001:4860::1"),
        (&["for=\"[2001:4860::1]:_hidden\""], "2001:4860::1"),
        (&["for=\"2001:4860::1\""], "2001:4860::1"),
        (&["for=\"1.1\\.1.1\""], "1.1.1.1"),
        (&["for=1.1.1.1, for=10.0.0.1"], "1.1.1.1"),
        (&["for=1.1.1.1, for=2.2.2.2, for=10.0.0.1"], "2.2.2.2"),
        (&["for=1.1.1.1", "for=10.0.0.1"], "1.1.1.1"),
        // The lower line is the one that the nearer proxy wrote.
        (&["for=6.6.6.6", "for=1.1.1.1"], "1.1.1.1"),
        (&["for=10.0.0.1", "for=1.1.1.1"], "1.1.1.1"),
        (
            &["for=6.6.6.6", "for=1.1.1.1", "for=10.0.0.2, for=10.0.0.1"],
            "1.1.1.1",
        ),
        (&["for=unknown", "for=1.1.1.1"], "1.1.1.1"),
        (&["for=1.1.1.1", "for=unknown"], PEER),
        (&["for=1.1.1.1,, for=10.0.0.1,"], "1.1.1.1"),
        (&["for=unknown, for=10.0.0.1"], "10.0.0.1"),
        (&["for=_secret, for=10.0.0.1"], "10.0.0.1"),
        (&["for=unknown"], PEER),
        (&["proto=https"], PEER),
        (&["for=1.1.1.1;for=2.2.2.2"], PEER),
        (&["1.1.1.1"], PEER),
        (&["for=\"1.1.1.1"], PEER),
        (&["for=1.1.1.1\""], PEER),
        (&["for=\"[2001:4860::1]x\""], PEER),
        (&[""], PEER),
        // What a client left open does not reach what the proxy wrote behind it.
        (&["for=\"open, for=2.2.2.2"], "2.2.2.2"),
        (&["for=\"open, for=10.0.0.1"], "10.0.0.1"),
        (&["for=\"a\\\", for=2.2.2.2"], "2.2.2.2"),
        (
            &["for=1.1.1.1;x=\"a,b;for=3.3.3.3\", for=10.0.0.1"],
            "1.1.1.1",
        ),
        (
            &["for=1.1.1.1;x=\"a\\\",for=3.3.3.3\", for=10.0.0.1"],
            "1.1.1.1",
        ),
    ] {
        assert_eq!(of(lines), expected, "{lines:?}");
    }
}

#[test]
fn a_proxy_header_is_believed_only_where_it_is_asked_for() {
    let connection = || {
        let connection = crate::message::testing::connection();
        connection.set_proxy_header(ProxyHeader {
            from: "1.1.1.1:77".parse().unwrap(),
            to: "3.3.3.3:443".parse().unwrap(),
            tlvs: Box::default(),
        });
        connection
    };
    let whom = |header| {
        let fields = [("x-forwarded-for", "2.2.2.2")];
        let mut record = request_in(plan(), connection(), "GET", "/", &fields);
        record.identify(&rule(header, true));
        record.client().text().to_owned()
    };
    assert_eq!(whom(RealIpHeader::ProxyProtocol), "1.1.1.1");
    assert_eq!(whom(RealIpHeader::XForwardedFor), "2.2.2.2");
    let rule = rule(RealIpHeader::ProxyProtocol, false);
    assert_eq!(client(&rule, &[("x-forwarded-for", "2.2.2.2")]), PEER);
}

#[test]
fn unknown_else_is_believed() {
    let mut rule = rule(RealIpHeader::XForwardedFor, true);
    rule.from = vec![
        ClientMatch::Unix,
        ClientMatch::Ip("10.0.0.0/8".parse().unwrap()),
    ];
    let fields = [("x-forwarded-for", "1.1.1.1")];
    let record = told(&rule, &fields);
    assert_eq!(record.client().text(), "192.0.2.7");
    assert!(!record.trusted);
    let unix = ClientConnection::new(RemoteAddr::Unix, None, 1, Millis(0));
    let mut record = request_in(plan(), unix, "GET", "/", &fields);
    record.identify(&rule);
    assert_eq!(record.client().text(), "1.1.1.1");
    assert_eq!(record.connection.addr.text(), "unix:");
}

/// A proxy's connection carries the requests of many, one after the other.
#[test]
fn each_request_of_a_connection_has_its_own_client() {
    let rule = rule(RealIpHeader::XForwardedFor, false);
    let connection = crate::message::testing::connection();
    let named: Vec<_> = [
        "1.1.1.1:1",
        "1.1.1.1:2",
        "1.1.1.1:2",
        "2.2.2.2",
        "1.1.1.1:1",
    ]
    .into_iter()
    .map(|client| {
        let headers = [("x-forwarded-for".parse().unwrap(), client.parse().unwrap())];
        let headers: HeaderMap = headers.into_iter().collect::<HeaderMap<HeaderValue>>();
        let found = connection.find_client(&rule, &headers).flatten().unwrap();
        let client = connection.named_client(found);
        (client.text().to_owned(), client.port(), client)
    })
    .collect();
    let told: Vec<_> = named
        .iter()
        .map(|(text, port, _)| (text.as_str(), *port))
        .collect();
    assert_eq!(
        told,
        [
            ("1.1.1.1", Some(1)),
            ("1.1.1.1", Some(2)),
            ("1.1.1.1", Some(2)),
            ("2.2.2.2", None),
            ("1.1.1.1", Some(1)),
        ]
    );
    assert!(Arc::ptr_eq(&named[1].2, &named[2].2), "made once");
}

proptest! {
    /// nginx's own loop, written as it is in C, finds the same.
    #[test]
    fn lists_are_cut_as_nginx_cuts_them(line in "[ ,1.x]{0,12}") {
        let bytes = line.as_bytes();
        let mut expected = Vec::new();
        let mut length = bytes.len();
        while length > 0 {
            let mut p = length - 1;
            while p > 0 && matches!(bytes[p], b' ' | b',') {
                p -= 1;
                length -= 1;
            }
            while p > 0 {
                if matches!(bytes[p], b' ' | b',') {
                    p += 1;
                    break;
                }
                p -= 1;
            }
            expected.push(address(&bytes[p..length]));
            if p == 0 {
                break;
            }
            length = p - 1;
        }
        if bytes.is_empty() {
            expected.push(None);
        }
        prop_assert_eq!(split_list(bytes).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn nothing_in_a_header_is_too_much(line in "[ ,;=\"\\\\:\\[\\]fFoOrR0-9a-f._]{0,60}") {
        let line = line.as_bytes();
        prop_assert!(forwarded(line).count() <= line.len());
        prop_assert!(split_list(line).count() <= line.len().max(1));
    }
}
