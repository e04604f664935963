//! The PROXY protocol from clients and to backends, with the real nginx at the other end.

use std::net::SocketAddr;

use crate::support::{Client, Nginx, Origin, Weir, eventually, metric};

fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend([command, family, 0]);
    header.push(u8::try_from(body.len()).expect("a short body"));
    header.extend(body);
    header
}

const ENDS4: &[u8] = &[192, 0, 2, 7, 198, 51, 100, 1, 0xdc, 0x04, 0x01, 0xbb];

/// Sends a header and a request in one piece; what came back, or nothing where the connection was closed.
fn introduced(address: SocketAddr, header: &[u8]) -> Option<String> {
    let mut client = Client::connect(address);
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    client.send([header, request].concat());
    client.try_response().ok().map(|answer| answer.text())
}

const WEIR: &str = "admin: { listen: ADMIN }
client_header_timeout: 1s
real_ip: { from: 127.0.0.1, header: proxy_protocol }
servers:
- listen: { address: LISTEN, proxy_protocol: true }
  return: { body: '$remote_addr|$proxy_protocol_addr|$proxy_protocol_port|$proxy_protocol_server_addr|$proxy_protocol_server_port' }
- listen: LISTEN2
  return: { body: $remote_addr }
";

#[test]
fn a_proxy_header_is_parsed_as_by_nginx() {
    let origin = Origin::start();
    let nginx = Nginx::before(
        &origin,
        "server {
            listen LISTEN proxy_protocol; set_real_ip_from 127.0.0.1; real_ip_header proxy_protocol;
            return 200 '$remote_addr|$proxy_protocol_addr|$proxy_protocol_port|$proxy_protocol_server_addr|$proxy_protocol_server_port';
        }",
    );
    let weir = Weir::start(WEIR);
    let mut ends6 = [0; 36];
    (ends6[0], ends6[1], ends6[15], ends6[31]) = (0x20, 0x01, 7, 1);
    (ends6[33], ends6[35]) = (1, 2);
    let headers = [
        b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n".to_vec(),
        b"PROXY TCP6 2001:db8::7 2001:db8::1 56324 443\r\n".to_vec(),
        b"PROXY UNKNOWN\r\n".to_vec(),
        b"PROXY UNKNOWN ff:: ff:: 1 2\r\n".to_vec(),
        v2(0x21, 0x11, ENDS4),
        v2(0x21, 0x21, &ends6),
        v2(0x21, 0x11, &[ENDS4, b"\x04\0\x01\0"].concat()),
        v2(0x20, 0x00, b""),
        v2(0x20, 0x11, ENDS4),
        // None at all, and broken ones.
        b"".to_vec(),
        b"PROXY TCP4 nobody 198.51.100.1 56324 443\r\n".to_vec(),
        b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 99999\r\n".to_vec(),
        b"PROXY\r\n".to_vec(),
    ];
    for header in headers {
        let by_weir = introduced(weir.address(), &header);
        let by_nginx = introduced(nginx.address(), &header);
        assert_eq!(by_weir, by_nginx, "{}", header.escape_ascii());
    }
    assert!(
        metric(
            &weir,
            "weir_proxy_headers_refused_total{reason=\"malformed\"}"
        ) >= 4
    );
    weir.error_line("broken PROXY header");
}

/// A byte at a time is as good, for a while.
#[test]
fn a_proxy_header_in_pieces_times_out() {
    let weir = Weir::start(WEIR);
    let mut client = Client::connect(weir.address());
    for byte in b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"
    {
        client.send([*byte]);
    }
    assert!(
        client
            .response()
            .text()
            .starts_with("192.0.2.7|192.0.2.7|56324|")
    );
    let mut dripping = Client::connect(weir.address());
    dripping.send("PROXY TCP4 192.0");
    assert!(dripping.is_closed());
    assert_eq!(
        metric(
            &weir,
            "weir_proxy_headers_refused_total{reason=\"timeout\"}"
        ),
        1
    );
    // The listener beside it wants none, and takes it for a bad request.
    let mut plain = Client::connect(weir.second_address());
    plain.send("PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n\r\n");
    assert_eq!(plain.response().status, 400);
}

#[test]
fn only_a_trusted_proxy_is_believed() {
    let weir = Weir::start(&WEIR.replace("from: 127.0.0.1", "from: 10.0.0.0/8"));
    let header = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n";
    let told = introduced(weir.address(), header);
    assert_eq!(
        told.as_deref(),
        Some("127.0.0.1|192.0.2.7|56324|198.51.100.1|443")
    );
}

#[test]
fn the_fields_of_a_proxy_header_are_variables() {
    let weir = Weir::start(
        "servers:
- listen: { address: LISTEN, proxy_protocol: on }
  return: { body: '$proxy_protocol_tlv_alpn|$proxy_protocol_tlv_authority|$proxy_protocol_tlv_unique_id|$proxy_protocol_tlv_0xea|$proxy_protocol_tlv_ssl_version|$proxy_protocol_tlv_ssl_cn|$proxy_protocol_tlv_ssl_verify' }
",
    );
    let tlvs: &[u8] = b"\x01\0\x02h2\x02\0\x06a.test\x05\0\x03abc\xea\0\x04vpce\x20\0\x16\x07\0\0\0\0\x21\0\x07TLSv1.3\x22\0\x04anna";
    let told = introduced(weir.address(), &v2(0x21, 0x11, &[ENDS4, tlvs].concat()));
    assert_eq!(told.as_deref(), Some("h2|a.test|abc|vpce|TLSv1.3|anna|0"));
}

/// Each request to such a backend has a connection of its own, because the next may be from another client.
#[test]
fn backends_receive_the_clients_address_by_proxy_protocol() {
    let origin = Origin::start();
    let nginx = Nginx::before(
        &origin,
        "server {
            listen LISTEN proxy_protocol; set_real_ip_from 127.0.0.1; real_ip_header proxy_protocol;
            return 200 '$remote_addr|$proxy_protocol_port|$proxy_protocol_server_port|$connection_requests';
        }",
    );
    for version in ["on", "v1", "v2"] {
        let weir = Weir::start(&format!(
            "real_ip: {{ from: 127.0.0.1, header: X-Forwarded-For }}
servers:
- listen: LISTEN
  proxy_protocol: {version}
  proxy_pass: 'http://{}'
",
            nginx.address()
        ));
        let mut client = Client::connect(weir.address());
        for whom in [
            "192.0.2.7:99",
            "192.0.2.8:99",
            "192.0.2.8:99",
            "[2001:db8::1]:7",
        ] {
            client.send(format!(
                "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {whom}\r\n\r\n"
            ));
            let address: SocketAddr = whom.parse().expect("an address");
            let expected = format!("{}|{}|{}|1", address.ip(), address.port(), weir.port());
            assert_eq!(client.response().text(), expected, "{version}");
        }
    }
}

#[test]
fn a_share_is_that_of_the_client_behind_the_proxy() {
    let weir = Weir::start(&format!("max_connections_per_address: 2\n{WEIR}"));
    let open = |last: u8| {
        let client = Client::connect(weir.address());
        client.send(format!(
            "PROXY TCP4 192.0.2.{last} 198.51.100.1 1 443\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"
        ));
        client
    };
    let mut kept: Vec<_> = [1, 1, 2, 2].map(open).into();
    for client in &mut kept {
        assert_eq!(client.response().status, 200);
    }
    assert!(open(1).is_closed());
    assert_eq!(open(3).response().status, 200);
    kept.remove(0);
    eventually("the place is free again", || open(1).try_response().is_ok());
}
