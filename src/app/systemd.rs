//! What systemd is told: that weir is ready, reads its configuration again, stops, and is alive.
//!
//! A few words on a datagram socket, so there is no library for it. Where nobody listens, nothing is said.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The way to systemd.
#[derive(Debug, Default)]
pub(super) struct Systemd(Option<(UnixDatagram, SocketAddr)>);

impl Systemd {
    /// As the variable `NOTIFY_SOCKET` says.
    pub(super) fn from_env() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self::default();
        };
        match connect(&name) {
            Ok(way) => Self(Some(way)),
            Err(error) => {
                tracing::warn!(%error, "NOTIFY_SOCKET cannot be used: systemd will not hear of us");
                Self::default()
            }
        }
    }

    /// Everything runs, by the configuration of this number.
    pub(super) fn ready(&self, generation: u64) {
        self.tell(&format!(
            "READY=1\nSTATUS=running, configuration {generation}"
        ));
    }

    /// The configuration is being read again.
    pub(super) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.tell(&format!(
            "RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=reloading"
        ));
    }

    /// Nobody new is let in; what is in flight may finish.
    pub(super) fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=stopping");
    }

    /// From now on this process is the one to look after.
    pub(super) fn succeeded_by(&self, process: u32) {
        self.tell(&format!(
            "MAINPID={process}\nSTATUS=handed over to {process}"
        ));
    }

    /// All is well.
    pub(super) fn alive(&self) {
        self.tell("WATCHDOG=1");
    }

    fn tell(&self, words: &str) {
        if let Some((socket, address)) = &self.0
            && let Err(error) = socket.send_to_addr(words.as_bytes(), address)
        {
            tracing::debug!(%error, "systemd does not listen");
        }
    }
}

/// How often systemd wants to hear that all is well, if it does: twice in the time after which it takes weir for dead.
pub(super) fn heartbeat() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let meant_for_us =
        number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let micros = number("WATCHDOG_USEC").filter(|micros| *micros > 0 && meant_for_us)?;
    Some(Duration::from_micros(micros / 2))
}

fn connect(name: &OsString) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // Somebody who does not read must not hold us up.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}
