//! Signals, as nginx's: TERM, INT and QUIT stop gracefully, TERM and INT a second time at once, HUP reads the configuration again, USR1 opens the logs
//! again, USR2 hands over to a new binary.
//!
//! systemd is notified that weir is ready, reloads, stops, and is alive: a few words on a datagram socket, so there is no
//! library for it. Without a supervisor nothing is sent.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use crate::admin::ReloadHandle;
use crate::telemetry::LogWriter;

/// The signals weir handles.
#[derive(Debug)]
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    reopen: Signal,
    hangup: Signal,
    upgrade: Signal,
}

impl Signals {
    /// From here on none of them ends the process on its own.
    pub(super) fn catch() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            reopen: signal(SignalKind::user_defined1())?,
            hangup: signal(SignalKind::hangup())?,
            upgrade: signal(SignalKind::user_defined2())?,
        })
    }

    /// Waits for a signal to stop; handles the others meanwhile.
    pub(super) async fn stop(
        &mut self,
        writer: &LogWriter,
        reloads: &ReloadHandle,
        upgrade: &Notify,
    ) {
        loop {
            let name = tokio::select! {
                _ = self.terminate.recv() => "TERM",
                _ = self.interrupt.recv() => "INT",
                _ = self.quit.recv() => "QUIT",
                _ = self.reopen.recv() => {
                    writer.reopen();
                    tracing::info!("logs are opened again");
                    continue;
                }
                _ = self.hangup.recv() => {
                    tracing::info!("HUP: reading the configuration again");
                    reloads.ask();
                    continue;
                }
                _ = self.upgrade.recv() => {
                    tracing::info!("USR2: handing over to the binary that is there now");
                    upgrade.notify_one();
                    continue;
                }
            };
            tracing::info!("{name}: stopping; requests in flight may finish");
            return;
        }
    }

    /// Waits for the loops to have drained. A second TERM or INT does not wait.
    pub(super) async fn drained(
        &mut self,
        loops: Vec<JoinHandle<io::Result<()>>>,
        grace: Duration,
    ) {
        let joined = tokio::task::spawn_blocking(move || loops.into_iter().for_each(join));
        tokio::select! {
            // The loops keep to the same deadline; a second more is for them to notice.
            _ = tokio::time::timeout(grace + Duration::from_secs(1), joined) => return,
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        tracing::warn!("second signal: not waiting for what is in flight");
    }
}

fn join(event_loop: JoinHandle<io::Result<()>>) {
    match event_loop.join() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "an event loop could not run"),
        Err(_) => tracing::error!("an event loop panicked"),
    }
}

/// The socket on which systemd is notified, and its address.
#[derive(Debug, Default)]
pub(super) struct Systemd(Option<(UnixDatagram, SocketAddr)>);

impl Systemd {
    /// The socket that the variable `NOTIFY_SOCKET` names.
    pub(super) fn from_env() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self::default();
        };
        match connect(&name) {
            Ok(socket) => Self(Some(socket)),
            Err(error) => {
                tracing::warn!(%error, "NOTIFY_SOCKET cannot be used: systemd will not hear of us");
                Self::default()
            }
        }
    }

    /// Everything runs, by the configuration of this number.
    pub(super) fn ready(&self, generation: u64) {
        self.notify(&format!(
            "READY=1\nSTATUS=running, configuration {generation}"
        ));
    }

    /// The configuration is being read again.
    pub(super) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.notify(&format!(
            "RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=reloading"
        ));
    }

    /// Sends a message, if there is a supervisor.
    pub(super) fn notify(&self, message: &str) {
        if let Some((socket, address)) = &self.0
            && let Err(error) = socket.send_to_addr(message.as_bytes(), address)
        {
            tracing::debug!(%error, "systemd does not listen");
        }
    }
}

/// The interval of systemd's watchdog messages, if it wants them: half its timeout.
pub(super) fn watchdog_interval() -> Option<Duration> {
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
    // A supervisor that does not read must not hold us up.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}
