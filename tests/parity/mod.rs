//! The same requests to the real nginx and to weir with equal limits: every verdict has to be the same.
//!
//! Times are never equal on two processes, so a script is either so fast against its rate that no step
//! can fall on the other side of a boundary, or it keeps to a timetable and says when it missed it.

mod balancing;
mod bandwidth;
mod connections;
mod random;
mod requests;
mod timing;

use std::fmt::Debug;
use std::net::{Ipv4Addr, SocketAddr};

use crate::support::{Client, Nginx, Origin, Weir};

/// nginx and weir with equal limits, each before a backend of its own.
struct Pair {
    nginx: Nginx,
    weir: Weir,
    origins: [Origin; 2],
}

/// One of the two.
struct Side<'a> {
    address: SocketAddr,
    origin: &'a Origin,
}

impl Pair {
    /// Starts both. `nginx` is the inside of an `http` block; in both `LISTEN` and `ORIGIN` stand for addresses.
    fn start(nginx: &str, weir: &str) -> Self {
        let origins = [Origin::start(), Origin::start()];
        Self {
            nginx: Nginx::before(&origins[0], nginx),
            weir: Weir::before(&origins[1], weir),
            origins,
        }
    }

    /// Runs `script` against both at the same time; what it gives must be equal.
    fn agree<T: Debug + PartialEq + Send>(&self, script: impl Fn(&Side<'_>) -> T + Sync) -> T {
        let nginx = Side {
            address: self.nginx.address(),
            origin: &self.origins[0],
        };
        let weir = Side {
            address: self.weir.address(),
            origin: &self.origins[1],
        };
        let (by_nginx, by_weir) = std::thread::scope(|scope| {
            let by_nginx = scope.spawn(|| script(&nginx));
            let by_weir = script(&weir);
            (
                by_nginx.join().expect("nginx's side of the script"),
                by_weir,
            )
        });
        assert_eq!(by_weir, by_nginx, "weir on the left, nginx on the right");
        by_weir
    }

    /// As [`Pair::agree`], for a script that is one request after the other; gives the statuses.
    fn verdicts(&self, asks: &[Ask]) -> Vec<u16> {
        self.agree(|side| asks.iter().map(|ask| side.ask(ask)).collect())
    }
}

impl Side<'_> {
    /// One request on a connection of its own.
    fn ask(&self, ask: &Ask) -> u16 {
        let mut client = self.begin(ask);
        client.response().status
    }

    /// Sends a request and does not wait for its answer.
    fn begin(&self, ask: &Ask) -> Client {
        let client = Client::connect_from(ask.source(), self.address);
        client.send(format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\n{}\r\n",
            ask.path, ask.host, ask.fields
        ));
        client
    }

    /// Sends so many requests that the backend answers only once `gate` opens, and waits until they are there.
    fn hold(&self, count: usize, path: &str, gate: &str) -> Vec<Client> {
        let ask = ask(&format!("{path}?gate={gate}"));
        (0..count)
            .map(|_| self.origin.hold(gate, || self.begin(&ask)))
            .collect()
    }
}

/// A request.
#[derive(Clone)]
struct Ask {
    path: String,
    host: &'static str,
    /// The last number of the source address 127.0.0.x.
    from: u8,
    fields: String,
}

fn ask(path: &str) -> Ask {
    Ask {
        path: path.to_owned(),
        host: "localhost",
        from: 1,
        fields: String::new(),
    }
}

impl Ask {
    fn from(mut self, number: u8) -> Self {
        self.from = number;
        self
    }

    fn host(mut self, host: &'static str) -> Self {
        self.host = host;
        self
    }

    fn field(mut self, field: &str) -> Self {
        self.fields.push_str(field);
        self.fields.push_str("\r\n");
        self
    }

    fn times(&self, count: usize) -> Vec<Self> {
        vec![self.clone(); count]
    }

    fn source(&self) -> Ipv4Addr {
        Ipv4Addr::new(127, 0, 0, self.from)
    }
}
