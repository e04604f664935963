//! Asking the zones of a location.

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;

use http::Request;
use weir::clock::Millis;
use weir::config::load_text;
use weir::limits::Limits;
use weir::limits::Zones;
use weir::message::ClientConnection;
use weir::message::RemoteAddr;
use weir::message::RequestRecord;
use weir::message::Target;

use crate::axis;

const KEYS: [&str; 4] = [
    "$binary_remote_addr",
    "$server_name",
    "$server_name$uri",
    "$http_x_api_key",
];

pub(crate) fn zones() {
    axis(
        "limit_req zones on a location, by address, name, path and header",
        &[1, 2, 4, 8],
        road,
        |(limits, record), number| {
            black_box(limits.ask_requests(record, Millis(number.into())));
        },
    );
}

/// The limits of a location with so many zones, and a request to it.
fn road(zones: usize) -> (Limits, RequestRecord) {
    let (mut declared, mut asked) = (String::new(), String::new());
    for zone in 0..zones {
        let key = KEYS[zone % KEYS.len()];
        declared += &format!("  z{zone}: {{ key: \"{key}\", size: 1m, rate: 1000000r/s }}\n");
        asked += &format!("{{ zone: z{zone}, burst: 100, nodelay: true }}, ");
    }
    let text = format!(
        "limit_req_zones:\n{declared}servers:\n  - listen: 127.0.0.1:8080\n    server_name: host.example.com\n    \
         locations:\n      - {{ path: /, limit_req: [{asked}], return: 200 }}\n"
    );
    let Ok((plan, _)) = load_text("growth.yaml", &text, |_| None) else {
        panic!("a mistake in\n{text}");
    };
    let running = Zones::build(&plan);
    let limits = Limits::compile(&plan.servers[0].locations[0].conf, &running);
    let request = Request::get("/api/service/list")
        .header("host", "host.example.com")
        .header("x-api-key", "0123456789abcdef0123456789abcdef")
        .body(())
        .expect("it is a request");
    let (head, ()) = request.into_parts();
    let target = Target::parse(&head).expect("its target is in order");
    let client = SocketAddr::from(([192, 0, 2, 7], 50_000));
    let peer = Arc::new(ClientConnection::new(
        RemoteAddr::Ip(client),
        None,
        1,
        Millis(0),
    ));
    let record = RequestRecord::begin(Arc::new(plan), 0, peer, head, target, Millis(0));
    (limits, record)
}
