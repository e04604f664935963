//! Request smuggling: ambiguous requests are sent as raw bytes and refused, and not a byte of them reaches the backend.
//!
//! One test for each line of the list. Every spelling goes to the real nginx as well; where its verdict is another, the
//! case says so.

mod chunks;
mod forwarded;
mod hosts;
mod lengths;
mod random;
mod recorder;
mod syntax;

use std::net::SocketAddr;

use crate::support::{Client, Nginx, Origin, Weir};
use recorder::Recorder;

/// A request that an attacker would like to smuggle.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// weir and nginx before the same backend.
struct Pair {
    recorder: Recorder,
    weir: Weir,
    nginx: Nginx,
}

impl Pair {
    fn start() -> Self {
        let recorder = Recorder::start();
        let weir = before(&recorder, "");
        // It is never asked: nginx has a backend of its own, and its bytes are not looked at.
        let origin = Origin::start();
        let nginx = Nginx::before(
            &origin,
            "server { listen LISTEN; location / { proxy_pass http://ORIGIN; } }",
        );
        Self {
            recorder,
            weir,
            nginx,
        }
    }

    /// Sends requests that are refused with `status`, and by nginx with the status beside them.
    fn refuse(&self, status: u16, requests: &[(&str, u16)]) {
        let mut wrong = Vec::new();
        for (request, nginx) in requests {
            let (answered, closed) = attempt(self.weir.address(), request);
            if answered != Some(status) {
                wrong.push(format!("{request:?}: weir says {answered:?}"));
            }
            if !closed {
                wrong.push(format!("{request:?}: weir goes on"));
            }
            let reached = self.recorder.take();
            if !reached.is_empty() {
                wrong.push(format!("{request:?}: {reached:?} reached the backend"));
            }
            let (by_nginx, _) = attempt(self.nginx.address(), request);
            if by_nginx != Some(*nginx) {
                wrong.push(format!("{request:?}: nginx says {by_nginx:?}"));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

/// A weir that forwards everything.
fn before(recorder: &Recorder, top: &str) -> Weir {
    Weir::start(&format!(
        "{top}
servers:
- listen: LISTEN
  locations: [ {{ path: /, proxy_pass: 'http://{}' }} ]
",
        recorder.address()
    ))
}

/// Sends a request and one more behind it: the status of the first answer, and whether it was the last.
fn attempt(address: SocketAddr, request: &str) -> (Option<u16>, bool) {
    let mut client = Client::connect(address);
    // It may be refused before all of it has been read.
    client.try_send(format!("{request}{SMUGGLED}")).ok();
    let status = client.try_response().ok().map(|response| response.status);
    (status, client.is_closed())
}
