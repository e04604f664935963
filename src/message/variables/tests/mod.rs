//! What variables say, in nginx's words.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode};

use super::*;
use crate::clock::Millis;
use crate::config::plan::{Geo, LimitVariable, Map, MapLookup, MapValues, ServerName};
use crate::message::client_addr::RemoteAddr;
use crate::message::connection::ClientConnection;
use crate::message::record::Attempt;
use crate::message::target::Target;
use crate::message::testing::{connection, plan, proxy_pass, record, request, request_in};

/// A variable as the log shows it.
fn say(variable: Variable, record: &RequestRecord) -> String {
    let mut out = Vec::new();
    if !append(&variable, record, &mut out) {
        assert!(out.is_empty(), "{variable:?} has no value and says one");
        return "-".into();
    }
    String::from_utf8(out).unwrap()
}

fn http(name: &'static str) -> Variable {
    Variable::Http(HeaderName::from_static(name))
}

#[test]
fn a_template_is_its_texts_and_variables_in_order() {
    let template = Template {
        parts: Box::new([
            Part::Text("<".into()),
            Part::Variable(Variable::RemoteAddr),
            Part::Variable(Variable::Arg("none".into())),
            Part::Text(">".into()),
        ]),
    };
    let mut out = b"kept ".to_vec();
    render(&template, &record(&[]), &mut out);
    assert_eq!(out, b"kept <192.0.2.7>");
}

#[test]
fn the_request_line_and_its_parts_are_as_they_came() {
    let it = request("GET", "/a/../%62?x=1&Y=%20&y=2&e=&flag", &[]);
    assert_eq!(
        say(Variable::Request, &it),
        "GET /a/../%62?x=1&Y=%20&y=2&e=&flag HTTP/1.1"
    );
    assert_eq!(
        say(Variable::RequestUri, &it),
        "/a/../%62?x=1&Y=%20&y=2&e=&flag"
    );
    assert_eq!(say(Variable::Uri, &it), "/b");
    assert_eq!(say(Variable::Args, &it), "x=1&Y=%20&y=2&e=&flag");
    assert_eq!(say(Variable::IsArgs, &it), "?");
    assert_eq!(say(Variable::Arg("y".into()), &it), "%20");
    assert_eq!(say(Variable::Arg("e".into()), &it), "");
    assert_eq!(say(Variable::Arg("flag".into()), &it), "-");
    assert_eq!(say(Variable::RequestMethod, &it), "GET");
    assert_eq!(say(Variable::ServerProtocol, &it), "HTTP/1.1");

    let it = request("GET", "http://Other.example:80/x?", &[]);
    assert_eq!(
        say(Variable::Request, &it),
        "GET http://Other.example:80/x? HTTP/1.1"
    );
    assert_eq!(say(Variable::RequestUri, &it), "/x?");
    assert_eq!(say(Variable::Args, &it), "");
    assert_eq!(say(Variable::IsArgs, &it), "");
    assert_eq!(say(Variable::Host, &it), "other.example");

    assert_eq!(say(Variable::Args, &record(&[])), "-");
    assert_eq!(
        say(Variable::Request, &request("OPTIONS", "*", &[])),
        "OPTIONS * HTTP/1.1"
    );
}

#[test]
fn without_a_host_the_server_s_name_stands_for_it() {
    let mut it = record(&[("host", "A.example:80")]);
    assert_eq!(say(Variable::Host, &it), "a.example");
    assert_eq!(say(http("host"), &it), "A.example:80");
    it.target = Target::default();
    assert_eq!(say(Variable::Host, &it), "example.com");
    assert_eq!(say(Variable::ServerName, &it), "example.com");
}

#[test]
fn several_lines_of_a_field_are_one_list() {
    let it = record(&[
        ("x-a", "1"),
        ("x-a", "2"),
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("x-e", ""),
    ]);
    assert_eq!(say(http("x-a"), &it), "1, 2");
    assert_eq!(say(http("cookie"), &it), "a=1; b=2");
    assert_eq!(say(http("x-e"), &it), "");
    assert_eq!(say(http("x-none"), &it), "-");
    assert_eq!(say(Variable::Cookie("B".into()), &it), "2");
}

/// Each pair was tried with nginx 1.22.
#[test]
fn cookies_are_found_where_nginx_finds_them() {
    for (line, value) in [
        ("b=1; A=2, a=3", "2, a=3"),
        ("b=1, a=3;c=4", "3"),
        ("a =  x y ;b", "x y "),
        ("aa=1", "-"),
        ("a", "-"),
        ("xa=1; a=", ""),
    ] {
        let it = record(&[("cookie", line)]);
        assert_eq!(say(Variable::Cookie("a".into()), &it), value, "{line}");
    }
}

/// Each pair was tried with nginx 1.22.
#[test]
fn the_user_is_read_from_basic_authorization() {
    for (line, user) in [
        ("Basic dXNlcjpwYXNz", "user"),
        ("basic   dXNlcjpwYXNz", "user"),
        ("Basic dXNlcjpwYXNzd28", "user"),
        ("Basic dXNlcg==", "-"),
        ("Basic OnA=", ""),
        ("Basic @@", "-"),
        ("Bearer dXNlcjpwYXNz", "-"),
        ("Basic", "-"),
    ] {
        let it = record(&[("authorization", line)]);
        assert_eq!(say(Variable::RemoteUser, &it), user, "{line}");
    }
}

#[test]
fn what_is_claimed_of_the_client_comes_before_what_we_know() {
    let forwarded = |fields: &[(&str, &str)]| say(Variable::ProxyAddXForwardedFor, &record(fields));
    assert_eq!(forwarded(&[]), "192.0.2.7");
    let claims = [
        ("x-forwarded-for", "1.1.1.1, 2.2.2.2"),
        ("x-forwarded-for", "3.3.3.3"),
    ];
    assert_eq!(forwarded(&claims), "1.1.1.1, 2.2.2.2, 3.3.3.3, 192.0.2.7");
}

#[test]
fn both_ends_of_the_connection_are_known() {
    let it = record(&[]);
    assert_eq!(say(Variable::RemoteAddr, &it), "192.0.2.7");
    assert_eq!(say(Variable::RemotePort, &it), "50000");
    assert_eq!(say(Variable::ServerAddr, &it), "127.0.0.1");
    assert_eq!(say(Variable::ServerPort, &it), "8080");
    assert_eq!(say(Variable::Connection, &it), "17");
    assert_eq!(say(Variable::ConnectionRequests, &it), "1");
    assert_eq!(say(Variable::Scheme, &it), "http");
    let mut binary = Vec::new();
    append(&Variable::BinaryRemoteAddr, &it, &mut binary);
    assert_eq!(binary, [192, 0, 2, 7]);

    let unix = ClientConnection::new(RemoteAddr::Unix, None, 1, Millis(0));
    let it = request_in(plan(), unix, "GET", "/", &[]);
    assert_eq!(say(Variable::RemoteAddr, &it), "unix:");
    assert_eq!(say(Variable::RemotePort, &it), "");
    assert_eq!(say(Variable::ServerAddr, &it), "unix:");
    assert_eq!(say(Variable::ServerPort, &it), "");
}

#[test]
fn what_became_of_it_is_told_once_it_is_known() {
    let mut it = record(&[("content-length", "9"), ("content-type", "t")]);
    assert_eq!(say(Variable::Status, &it), "000");
    assert_eq!(say(Variable::RequestTime, &it), "-");
    assert_eq!(say(Variable::Limit(LimitVariable::ReqStatus), &it), "-");
    assert_eq!(say(Variable::ProxyHost, &it), "-");

    it.connection.state.sent.add(321);
    it.status = Some(StatusCode::TOO_MANY_REQUESTS);
    it.ended = Some(Millis(3045));
    it.limit_req = Some(LimitStatus::Refuse);
    it.limit_conn = Some(LimitStatus::Pass);
    it.body_received = 9;
    it.body_sent = 21;
    it.proxy_pass = Some(Arc::new(proxy_pass()));
    it.sent_headers
        .get_or_insert_default()
        .insert("retry-after", HeaderValue::from_static("3"));
    assert_eq!(say(Variable::Status, &it), "429");
    assert_eq!(say(Variable::RequestTime, &it), "2.045");
    assert_eq!(
        say(Variable::Limit(LimitVariable::ReqStatus), &it),
        "REJECTED"
    );
    assert_eq!(
        say(Variable::Limit(LimitVariable::ConnStatus), &it),
        "PASSED"
    );
    assert_eq!(say(Variable::RequestLength, &it), "82");
    assert_eq!(say(Variable::BodyBytesSent, &it), "21");
    assert_eq!(say(Variable::BytesSent, &it), "321");
    assert_eq!(say(Variable::ProxyHost, &it), "app");
    assert_eq!(say(Variable::ContentLength, &it), "9");
    assert_eq!(say(Variable::ContentType, &it), "t");
    assert_eq!(
        say(
            Variable::SentHttp(HeaderName::from_static("retry-after")),
            &it
        ),
        "3"
    );
}

#[test]
fn every_server_tried_is_listed() {
    let mut it = record(&[]);
    assert_eq!(say(Variable::UpstreamAddr, &it), "-");
    assert_eq!(say(Variable::UpstreamStatus, &it), "-");
    it.attempts = smallvec::smallvec![
        Attempt {
            address: Arc::from("10.0.0.1:80"),
            started: None,
            status: Some(StatusCode::BAD_GATEWAY),
            connect: None,
            header: None,
            response: Some(Duration::from_millis(3)),
        },
        Attempt {
            address: Arc::from("10.0.0.2:80"),
            started: None,
            status: None,
            connect: Some(Duration::ZERO),
            header: Some(Duration::from_millis(1020)),
            response: Some(Duration::from_millis(1021)),
        },
    ];
    assert_eq!(say(Variable::UpstreamAddr, &it), "10.0.0.1:80, 10.0.0.2:80");
    assert_eq!(say(Variable::UpstreamStatus, &it), "502, -");
    assert_eq!(say(Variable::UpstreamConnectTime, &it), "-, 0.000");
    assert_eq!(say(Variable::UpstreamHeaderTime, &it), "-, 1.020");
    assert_eq!(say(Variable::UpstreamResponseTime, &it), "0.003, 1.021");
}

#[test]
fn what_the_machine_says_has_nginx_s_shape() {
    let it = record(&[]);
    assert_eq!(say(Variable::RequestId, &it), it.request_id());
    assert_eq!(say(Variable::RequestId, &it).len(), 32);
    assert_eq!(say(Variable::Pid, &it), std::process::id().to_string());
    assert_eq!(
        say(Variable::TimeLocal, &it).len(),
        "16/Nov/2026:02:03:23 +0000".len()
    );
    assert_eq!(
        say(Variable::TimeIso8601, &it).len(),
        "2026-11-16T02:03:23+00:00".len()
    );
    let msec = say(Variable::Msec, &it);
    assert_eq!(
        msec.split_once('.').map(|(_, millis)| millis.len()),
        Some(3),
        "{msec}"
    );
    assert!(!say(Variable::Hostname, &it).contains(char::is_whitespace));
}

fn map(source: Variable, lookup: MapLookup) -> Map {
    Map {
        name: "m".into(),
        source: Template::variable(source),
        lookup,
        default: Template::literal("default"),
    }
}

fn mapped(maps: Vec<Map>, fields: &[(&str, &str)]) -> String {
    let last = maps.len() - 1;
    let mut plan = plan();
    plan.maps = maps;
    say(
        Variable::Map(last),
        &request_in(plan, connection(), "GET", "/", fields),
    )
}

#[test]
fn a_map_asks_exact_text_then_host_names_then_expressions() {
    let values = || MapValues {
        exact: [("gold", "exact"), ("empty", "")]
            .map(|(key, value)| (key.into(), Template::literal(value)))
            .into(),
        hostnames: vec![
            (
                ServerName::Prefix("www.example.".into()),
                Template::literal("prefix"),
            ),
            (
                ServerName::Suffix(".a.example".into()),
                Template::literal("long"),
            ),
            (
                ServerName::SuffixAndSelf(".example".into()),
                Template::literal("suffix"),
            ),
        ],
        expressions: [("^Go", "case"), ("(?i)^go", "nocase"), (r"^\xff", "bytes")]
            .map(|(expression, value)| {
                (
                    regex::bytes::Regex::new(expression).unwrap(),
                    Template::literal(value),
                )
            })
            .into(),
    };
    for (source, value) in [
        ("gold", "exact"),
        ("GOLD", "exact"),
        ("empty", ""),
        ("Good", "case"),
        ("good", "nocase"),
        ("www.a.example", "long"),
        ("WWW.example.", "suffix"),
        ("example", "suffix"),
        ("www.example.com", "prefix"),
        ("nothing", "default"),
        ("", "default"),
    ] {
        let found = mapped(
            vec![map(http("x-tier"), MapLookup::Values(values()))],
            &[("x-tier", source)],
        );
        assert_eq!(found, value, "{source}");
    }
}

#[test]
fn a_map_may_be_made_from_a_map_and_become_a_variable() {
    let outer = MapValues {
        exact: [("default".into(), Template::variable(Variable::RemoteAddr))].into(),
        ..MapValues::default()
    };
    let maps = vec![
        map(Variable::Host, MapLookup::Values(MapValues::default())),
        map(Variable::Map(0), MapLookup::Values(outer)),
    ];
    assert_eq!(mapped(maps, &[]), "192.0.2.7");
}

#[test]
fn a_geo_takes_the_address_or_reads_it() {
    let number =
        |text: &str| u128::from(text.parse::<std::net::Ipv4Addr>().unwrap().to_ipv6_mapped());
    let geo = || {
        MapLookup::Geo(Geo {
            starts: vec![number("192.0.2.0"), number("192.0.3.0")],
            owners: vec![Some(0), None],
            values: vec![Template::literal("near")],
        })
    };
    for source in [Variable::RemoteAddr, Variable::BinaryRemoteAddr] {
        assert_eq!(mapped(vec![map(source, geo())], &[]), "near");
    }
    for (claim, value) in [
        ("192.0.2.255", "near"),
        (" ::ffff:192.0.2.1", "near"),
        ("192.0.3.0", "default"),
        ("::1", "default"),
        ("unlisted", "default"),
    ] {
        let found = mapped(vec![map(http("x-real-ip"), geo())], &[("x-real-ip", claim)]);
        assert_eq!(found, value, "{claim}");
    }

    let mut plan = plan();
    plan.maps = vec![map(Variable::RemoteAddr, geo())];
    let mapped = SocketAddr::from(([0, 0, 0, 0, 0, 0xffff, 0xc000, 0x0207], 1));
    let connection = ClientConnection::new(RemoteAddr::Ip(mapped), None, 1, Millis(0));
    assert_eq!(
        say(
            Variable::Map(0),
            &request_in(plan, connection, "GET", "/", &[])
        ),
        "near"
    );
}

#[test]
fn seconds_have_three_decimals_cut_not_rounded() {
    let mut out = Vec::new();
    seconds(Duration::from_micros(1_002_999), &mut out);
    assert_eq!(out, b"1.002");
}
