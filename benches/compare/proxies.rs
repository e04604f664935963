//! The same job in each proxy's own words: one event loop, a limit on every request, connections to the backend kept.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::Result;
use crate::cases::{Contender, Job};
use crate::machine::{self, Cores};
use crate::ports::Port;
use crate::process::Process;

/// A running proxy in a directory of its own.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) contender: Contender,
    pub(crate) process: Process,
    port: Port,
    _directory: TempDir,
}

impl Proxy {
    /// Starts one, or `None` where it is not installed.
    pub(crate) fn start(
        contender: Contender,
        job: Job,
        weir: &Path,
        cores: &Cores,
        backend: u16,
    ) -> Result<Option<Self>> {
        let Some(program) = program(contender, weir) else {
            return Ok(None);
        };
        let directory = tempfile::tempdir()?;
        let home = directory.path();
        let port = Port::claim();
        let text = match contender {
            Contender::Haproxy => haproxy(port.address(), backend, job),
            Contender::Weir => self::weir(home, port.address(), backend, job),
            _ => nginx(contender, home, port.address(), backend, job),
        };
        let file = home.join("configuration");
        std::fs::write(&file, text)?;
        let mut command = cores.for_proxy(&program);
        match contender {
            Contender::Haproxy => command.args(["-db", "-f"]),
            Contender::Weir => command.args(["run", "--config"]),
            _ => command.args(["-e", "stderr", "-p"]).arg(home).arg("-c"),
        };
        command
            .arg(&file)
            .stdout(File::create(home.join("stdout"))?)
            .stderr(File::create(home.join("stderr"))?);
        let mut process = Process::spawn(contender.label(), command)?;
        if let Err(error) = process.await_listening(port.address()) {
            let said = std::fs::read_to_string(home.join("stderr")).unwrap_or_default();
            return Err(format!("{error}\n{said}").into());
        }
        Ok(Some(Self {
            contender,
            process,
            port,
            _directory: directory,
        }))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.port.address()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number()
    }
}

fn program(contender: Contender, weir: &Path) -> Option<PathBuf> {
    match contender {
        Contender::Haproxy => machine::find("haproxy"),
        Contender::Weir => Some(weir.to_owned()),
        _ => machine::find("nginx"),
    }
}

/// What each program calls itself.
pub(crate) fn versions(weir: &Path) -> String {
    let asked = [
        (Some(weir.to_owned()), "--version"),
        (machine::find("nginx"), "-v"),
        (machine::find("haproxy"), "-v"),
        (machine::find("wrk"), "-v"),
        (machine::find("h2load"), "--version"),
    ];
    let told = asked.into_iter().filter_map(|(program, argument)| {
        let output = Command::new(program?).arg(argument).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let words = text.lines().next()?.split_whitespace();
        // After the version some tell when and with what they were built.
        let words = words.take(3).take_while(|word| !word.starts_with('['));
        Some(words.collect::<Vec<_>>().join(" "))
    });
    told.collect::<Vec<_>>().join(", ")
}

// One process: a master beside the worker would add memory and do nothing.
fn nginx(contender: Contender, home: &Path, listen: SocketAddr, backend: u16, job: Job) -> String {
    let home = home.display();
    let (rate, burst) = match job {
        Job::Refuse => ("1r/m", ""),
        _ => ("1000000r/s", "burst=100000 nodelay"),
    };
    let log = match (job, contender) {
        (Job::Log, Contender::NginxBufferedLog) => {
            format!("{home}/access.log combined buffer=64k flush=1s")
        }
        (Job::Log, _) => format!("{home}/access.log combined"),
        _ => "off".to_owned(),
    };
    let buffers = match contender {
        Contender::NginxLargeBuffers => {
            "proxy_buffers 16 32k; proxy_buffer_size 32k; proxy_busy_buffers_size 64k;"
        }
        _ => "",
    };
    let http2 = match job {
        Job::Http2 => "http2",
        _ => "",
    };
    format!(
        "daemon off; master_process off; worker_processes 1; pid {home}/pid; error_log stderr error;
events {{ worker_connections 4096; }}
http {{
    access_log {log}; keepalive_requests 1000000000; keepalive_timeout 600s;
    client_body_temp_path {home}/body; proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi; uwsgi_temp_path {home}/uwsgi; scgi_temp_path {home}/scgi;
    limit_req_zone $binary_remote_addr zone=perip:10m rate={rate};
    limit_req_status 429; limit_req_log_level info;
    upstream backend {{ server 127.0.0.1:{backend}; keepalive 64; keepalive_requests 1000000000; }}
    server {{
        listen {listen} {http2} backlog=4096;
        location / {{
            limit_req zone=perip {burst};
            proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection \"\";
            proxy_set_header Host $host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            {buffers}
        }}
    }}
}}
"
    )
}

fn haproxy(listen: SocketAddr, backend: u16, job: Job) -> String {
    let most = match job {
        Job::Refuse => 0,
        _ => 2_000_000_000,
    };
    let http2 = match job {
        Job::Http2 => "proto h2",
        _ => "",
    };
    let (target, log) = match job {
        Job::Log => (
            "log stdout format raw local0 info",
            "log global\n  option httplog",
        ),
        _ => ("", ""),
    };
    format!(
        "global
  nbthread 1
  maxconn 4096
  {target}
defaults
  mode http
  {log}
  timeout connect 60s
  timeout client 600s
  timeout server 60s
  timeout http-keep-alive 600s
  option http-keep-alive
  http-reuse always
  option forwardfor
frontend clients
  bind {listen} {http2}
  stick-table type ip size 100k expire 60s store http_req_rate(10s)
  http-request track-sc0 src
  http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {most} }}
  default_backend backend
backend backend
  server one 127.0.0.1:{backend}
"
    )
}

fn weir(home: &Path, listen: SocketAddr, backend: u16, job: Job) -> String {
    let (rate, burst) = match job {
        Job::Refuse => ("1r/m", ""),
        _ => ("1000000r/s", ", burst: 100000, nodelay: true"),
    };
    let log = match job {
        Job::Log => format!(
            "{{ path: \"{}/access.log\", format: combined }}",
            home.display()
        ),
        _ => "off".to_owned(),
    };
    format!(
        "workers: 1
log: {{ level: error, access: {log} }}
keepalive_timeout: 600s
keepalive_requests: 1000000000
limit_req_zones: {{ perip: {{ key: $binary_remote_addr, size: 10m, rate: {rate} }} }}
upstreams:
  backend: {{ keepalive: 64, keepalive_requests: 1000000000, servers: [{{ address: \"127.0.0.1:{backend}\" }}] }}
servers:
  - listen: \"{listen}\"
    limit_req_status: 429
    limit_req_log_level: info
    locations:
      - path: /
        limit_req: {{ zone: perip{burst} }}
        proxy_pass: backend
        proxy_set_header: {{ Host: $host, X-Forwarded-For: $proxy_add_x_forwarded_for }}
"
    )
}
