//! Tornado, on whose WebSockets Jupyter stands: it takes those whose `Origin` is the host they ask for.

use std::process::Command;

use crate::support::ports::Port;
use crate::support::process::Process;
use crate::support::{Client, Weir};

#[test]
fn a_websocket_from_the_gateways_own_pages_is_taken_and_others_are_not() {
    let port = Port::claim();
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", SERVER, &port.number().to_string()]);
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let mut server = Process::spawn("tornado", command, directory);
    assert!(server.accepts(port.address()), "{}", server.file("stderr"));
    let weir = Weir::start(&format!(
        "servers: [{{ listen: LISTEN, proxy_pass: 'http://{}' }}]",
        port.address()
    ));
    let status = |origin: &str| {
        let mut client = Client::connect(weir.address());
        client.send(format!(
            "GET /ws HTTP/1.1\r\nHost: notebook.test:8080\r\nOrigin: {origin}\r\nConnection: Upgrade\r\n\
            Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ));
        client.response().status
    };
    assert_eq!(status("http://notebook.test:8080"), 101);
    assert_eq!(status("http://elsewhere.test"), 403);
}

const SERVER: &str = "
import sys, tornado.ioloop, tornado.web, tornado.websocket
class Echo(tornado.websocket.WebSocketHandler):
    def on_message(self, message): self.write_message(message)
tornado.web.Application([('/ws', Echo)]).listen(int(sys.argv[1]), '127.0.0.1')
tornado.ioloop.IOLoop.current().start()
";
