//! The instructions of a request, against a budget.
//!
//! Times vary with the machine and its neighbours; the number of instructions hardly does, so a change that costs more
//! can be told from noise. weir runs under callgrind twice, the second time with twice as many requests: the
//! difference leaves out starting and stopping. Requests go one at a time, so that every one of them is woken for,
//! read and answered in the same steps.
//!
//! Ignored here because it needs valgrind and the optimised binary; `tests/instructions` has both.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::support::Client;
use super::support::ports::Port;
use super::support::process::Process;

const BUDGET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/budget.toml");

/// In the second run there are so many requests more than in the first, which has as many.
const REQUESTS: u64 = 4_000;
const CONNECTIONS: usize = 16;

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Above the budget by more than this is a failure, below it a reason to lower the budget. In hundredths.
const MARGIN: u64 = 5;

/// Emulated, starting and stopping take a while even on a quiet machine.
const EMULATED: Duration = Duration::from_secs(120);

/// A kind of request with a budget of its own.
#[derive(Debug, Clone, Copy)]
enum Job {
    Proxied,
    Refused,
}

impl Job {
    fn name(self) -> &'static str {
        match self {
            Self::Proxied => "proxied",
            Self::Refused => "refused",
        }
    }

    fn status(self) -> u16 {
        match self {
            Self::Proxied => 200,
            Self::Refused => 429,
        }
    }

    /// One loop, connections that are never used up, no access log, and refusals below the level that is logged: how
    /// many lines of a flood are written depends on the time.
    fn yaml(self, listen: SocketAddr, backend: SocketAddr) -> String {
        let (rate, burst) = match self {
            Self::Proxied => ("1000000r/s", ", burst: 100000, nodelay: true"),
            Self::Refused => ("1r/d", ""),
        };
        format!(
            "workers: 1
log: {{ level: error, access: off }}
limit_req_zones: {{ perip: {{ key: $binary_remote_addr, size: 1m, rate: {rate} }} }}
keepalive_timeout: 600s
keepalive_requests: 1000000
upstreams:
  backend: {{ keepalive: 16, keepalive_requests: 1000000, servers: [{{ address: \"{backend}\" }}] }}
servers:
  - listen: \"{listen}\"
    limit_req_log_level: info
    locations:
      - path: /
        limit_req: {{ zone: perip{burst} }}
        proxy_pass: backend
"
        )
    }
}

#[test]
#[ignore = "needs valgrind and the release binary: tests/instructions runs it"]
fn a_request_costs_no_more_than_its_budget() {
    let costs = [Job::Proxied, Job::Refused].map(|job| {
        let measured = Measured {
            yaml: &|listen, backend| job.yaml(listen, backend),
            request: REQUEST,
            status: job.status(),
            requests: REQUESTS,
        };
        (job.name(), measured.cost())
    });
    let judged = Judged::new(&costs);
    println!("{}", judged.said);
    judged.hold();
}

/// What costs come to beside their budgets.
pub(super) struct Judged<'c> {
    /// A line for each.
    pub(super) said: String,
    dear: Vec<&'c str>,
}

impl<'c> Judged<'c> {
    /// Compares costs with their budgets, or writes them down as budgets where that is asked for.
    pub(super) fn new(costs: &[(&'c str, u64)]) -> Self {
        let update = std::env::var_os("WEIR_UPDATE_BUDGET").is_some();
        let text = std::fs::read_to_string(BUDGET).expect("the budget can be read");
        let (mut said, mut dear, mut updated) = (String::new(), Vec::new(), text.clone());
        for &(name, cost) in costs {
            let budget = budget(&text, name).expect("everything that is counted has a budget");
            if update {
                updated = with_budget(&updated, name, cost);
                let _written = writeln!(said, "{name}: {cost} instructions, written down");
                continue;
            }
            let hint = match cost * 100 {
                hundredfold if hundredfold > budget * (100 + MARGIN) => {
                    dear.push(name);
                    ": too many"
                }
                hundredfold if hundredfold < budget * (100 - MARGIN) => {
                    ": better; `tests/instructions --update` keeps it so"
                }
                _ => "",
            };
            let _written = writeln!(
                said,
                "{name}: {cost} instructions, the budget is {budget}{hint}"
            );
        }
        if update {
            std::fs::write(BUDGET, updated).expect("the budget can be written");
        }
        Self { said, dear }
    }

    /// Fails where something costs more than its budget.
    pub(super) fn hold(&self) {
        assert!(
            self.dear.is_empty(),
            "{} cost more than {MARGIN} % above the budget in benches/budget.toml; \
         where it is worth it, `tests/instructions --update`",
            self.dear.join(" and ")
        );
    }
}

/// What is counted: a configuration, and one request over and over again.
pub(super) struct Measured<'m> {
    /// For a listener and a backend.
    pub(super) yaml: &'m dyn Fn(SocketAddr, SocketAddr) -> String,
    pub(super) request: &'m str,
    pub(super) status: u16,
    pub(super) requests: u64,
}

impl Measured<'_> {
    /// Instructions for one request.
    pub(super) fn cost(&self) -> u64 {
        let few = run(self, self.requests);
        let many = run(self, 2 * self.requests);
        many.saturating_sub(few) / self.requests
    }
}

/// Instructions of a whole run with so many requests.
fn run(measured: &Measured<'_>, requests: u64) -> u64 {
    let backend = backend();
    count(
        &|listen| (measured.yaml)(listen, backend),
        |process, address| {
            ask(process, address, measured, requests);
        },
    )
}

/// Instructions of weir from its start to its stop, with this configuration and while it is asked this.
pub(super) fn count(
    yaml: &dyn Fn(SocketAddr) -> String,
    ask: impl FnOnce(&mut Process, SocketAddr),
) -> u64 {
    let binary = std::env::var_os("WEIR_RELEASE").expect("tests/instructions sets WEIR_RELEASE");
    let directory = tempfile::tempdir().expect("the temporary directory can be written");
    let port = Port::claim();
    let file = directory.path().join("weir.yaml");
    std::fs::write(&file, yaml(port.address())).expect("it can be written");
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=counts"])
        .arg(binary)
        .args(["run", "--config"])
        .arg(file)
        .current_dir(directory.path());
    let mut process = Process::spawn("valgrind", command, directory);
    ask(&mut process, port.address());
    process.signal("TERM");
    let status = process.wait(EMULATED).expect("weir ends");
    assert!(status.success(), "{status}");
    total(&process.file("counts"))
}

/// Sends so many requests after one that may pass where the others are refused.
fn ask(process: &mut Process, address: SocketAddr, measured: &Measured<'_>, requests: u64) {
    // A try that is not accepted costs weir nothing; one that is, is the first of the connections. So both runs
    // accept equally many.
    let mut clients = vec![first_client(process, address)];
    clients.extend((1..CONNECTIONS).map(|_| Client::connect(address)));
    for client in &mut clients {
        client.send(measured.request);
        client.response();
    }
    for number in 0..requests {
        let client = &mut clients[usize::try_from(number).unwrap_or(0) % CONNECTIONS];
        client.send(measured.request);
        let status = client.response().status;
        assert_eq!(status, measured.status, "request {number}");
    }
}

pub(super) fn first_client(process: &mut Process, address: SocketAddr) -> Client {
    let deadline = tokio::time::Instant::now() + EMULATED;
    loop {
        if let Ok(client) = Client::try_connect(address) {
            return client;
        }
        let ended = process.exit_status();
        assert!(ended.is_none(), "weir ended at once: {ended:?}");
        assert!(
            tokio::time::Instant::now() < deadline,
            "weir does not listen"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// A backend that sends each answer in one piece: where it is cut would change what weir does.
fn backend() -> SocketAddr {
    // On all of this machine's own addresses: some want to have many backends.
    let listener = TcpListener::bind("0.0.0.0:0").expect("there is a free port");
    let port = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // It ends with the connection, which ends with weir.
            thread::spawn(move || drop(answer(stream)));
        }
    });
    (Ipv4Addr::LOCALHOST, port).into()
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut head = Vec::new();
    let mut piece = [0; 4096];
    loop {
        head.clear();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read(&mut piece)? {
                0 => return Ok(()),
                length => head.extend_from_slice(&piece[..length]),
            }
        }
        stream.write_all(
            b"HTTP/1.1 200 OK\r\nServer: backend\r\nDate: Mon, 16 Nov 2026 02:03:23 GMT\r\n\
              Content-Type: text/plain\r\nContent-Length: 2\r\n\r\nok",
        )?;
    }
}

/// All instructions that callgrind counted.
fn total(counts: &str) -> u64 {
    counts
        .lines()
        .find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok())
        .expect("callgrind counts instructions")
}

fn budget(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (key, number) = line.split_once(" = ")?;
        (key == name).then(|| number.replace('_', "").parse().ok())?
    })
}

fn with_budget(text: &str, name: &str, cost: u64) -> String {
    let lines = text.lines().map(|line| match line.split_once(" = ") {
        Some((key, _)) if key == name => format!("{name} = {cost}\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

#[test]
fn a_budget_is_read_and_written() {
    let text = "# why\nproxied = 20_000\nrefused = 7000\n";
    assert_eq!(budget(text, "proxied"), Some(20_000));
    assert_eq!(budget(text, "refused"), Some(7_000));
    assert_eq!(budget(text, "why"), None);
    let text = with_budget(text, "proxied", 18_500);
    assert_eq!(text, "# why\nproxied = 18500\nrefused = 7000\n");
}
