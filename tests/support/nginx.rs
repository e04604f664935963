//! The real nginx, as the reference.

use std::net::SocketAddr;
use std::process::Command;

use super::Origin;
use super::ports::Port;
use super::process::Process;

/// A running nginx with one event loop.
#[derive(Debug)]
pub(crate) struct Nginx {
    process: Process,
    port: Port,
}

impl Nginx {
    /// Starts one whose `http` block holds `http`. In it `LISTEN` stands for the address to listen on and
    /// `ORIGIN` for the backend's.
    pub(crate) fn before(origin: &Origin, http: &str) -> Self {
        let directory = tempfile::tempdir().expect("the temporary directory can be written");
        let port = Port::claim();
        let http = http
            .replace("LISTEN", &port.address().to_string())
            .replace("ORIGIN", &origin.address().to_string());
        let home = directory.path().display();
        let text = format!(
            "daemon off; master_process off; worker_processes 1; pid {home}/pid; error_log stderr info;
            events {{ worker_connections 512; }}
            http {{
                access_log off; keepalive_timeout 65; server_tokens off; merge_slashes on;
                client_body_temp_path {home}/body; proxy_temp_path {home}/proxy;
                fastcgi_temp_path {home}/fastcgi; uwsgi_temp_path {home}/uwsgi; scgi_temp_path {home}/scgi;
                {http}
            }}"
        );
        let config = directory.path().join("nginx.conf");
        std::fs::write(&config, text).expect("the directory can be written");
        let mut command = Command::new("nginx");
        command
            .arg("-e")
            .arg("stderr")
            .arg("-p")
            .arg(directory.path())
            .arg("-c")
            .arg(&config);
        // Debian keeps it where only root's PATH looks.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/usr/local/sbin"));
        let mut process = Process::spawn("nginx", command, directory);
        assert!(process.accepts(port.address()), "nginx does not start");
        Self { process, port }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// What it said on standard output: the access log where it goes there.
    pub(crate) fn stdout(&self) -> String {
        self.process.file("stdout")
    }

    /// Its error log.
    pub(crate) fn log(&self) -> String {
        self.process.file("stderr")
    }
}
