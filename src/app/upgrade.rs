//! A new binary takes over without a refused connection, as in nginx: it inherits the listening sockets.
//!
//! Both listen for a moment. When the new one runs, the old one accepts no more and ends when its last request has; if
//! the new one does not come that far, the old one goes on as before. The sockets travel over the new one's
//! standard input, which is a socket, too: nothing has to be named, and no other process can connect.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::listen::InheritedSockets;

/// The one we take over from, until it knows that we run.
#[derive(Debug)]
pub(super) struct OldProcess(UnixStream);

/// The one that takes over from us, until it runs.
#[derive(Debug)]
pub(super) struct NewProcess {
    pub(super) child: Child,
    line: UnixStream,
}

impl OldProcess {
    /// The old process that has started this one to take over, and its sockets; if one has.
    pub(super) fn from_env() -> io::Result<Option<(Self, InheritedSockets)>> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        let line = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        // Processes that we start must not find it there.
        rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
        let descriptors = receive(&line)?;
        Ok(Some((
            Self(line),
            InheritedSockets::from_descriptors(descriptors),
        )))
    }

    /// We run.
    pub(super) fn confirm(mut self) {
        if let Err(error) = self.0.write_all(READY) {
            tracing::warn!(%error, "who handed over is gone already");
        }
    }
}

impl NewProcess {
    /// Starts the binary that is there by now, with the arguments we were started with, and hands it our sockets.
    pub(super) fn start(sockets: &[OwnedFd]) -> io::Result<Self> {
        let (line, theirs) = UnixStream::pair()?;
        let mut arguments = std::env::args_os();
        let binary = arguments.next().ok_or(io::ErrorKind::NotFound)?;
        let child = Command::new(binary)
            .args(arguments)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .env(VARIABLE, "1")
            // These were for us; what systemd has opened is handed over with the rest.
            .env_remove("LISTEN_PID")
            .env_remove("LISTEN_FDS")
            .env_remove("LISTEN_FDNAMES")
            .env_remove("WATCHDOG_PID")
            .spawn()?;
        let mut new_process = Self { child, line };
        if let Err(error) = send(&new_process.line, sockets) {
            new_process.end()?;
            return Err(error);
        }
        Ok(new_process)
    }

    /// Waits until it runs; if it does not come that far it is ended. Blocks.
    pub(super) fn wait(mut self) -> io::Result<()> {
        self.line.set_read_timeout(Some(PATIENCE))?;
        let mut word = [0; READY.len()];
        let Err(error) = self.line.read_exact(&mut word) else {
            return Ok(());
        };
        let status = match error.kind() {
            // It is ending, and its status gives the reason.
            io::ErrorKind::UnexpectedEof => self.gone()?,
            _ => self.end()?,
        };
        Err(io::Error::other(format!(
            "it did not come to run ({status})"
        )))
    }

    fn gone(&mut self) -> io::Result<ExitStatus> {
        for _ in 0..LAST_LOOKS {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.end()
    }

    fn end(&mut self) -> io::Result<ExitStatus> {
        drop(self.child.kill());
        self.child.wait()
    }
}

/// Ends a process that is about to take over.
pub(super) fn end(process: u32) {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    if let Some(process) = process
        && let Err(error) = kill_process(process, Signal::TERM)
    {
        tracing::warn!("the new binary could not be ended: {error}");
    }
}

/// Sends descriptors, as many at once as the system allows, and then a word that they are all.
fn send(line: &UnixStream, sockets: &[OwnedFd]) -> io::Result<()> {
    for some in sockets.chunks(MOST_AT_ONCE) {
        let some: Vec<BorrowedFd<'_>> = some.iter().map(|socket| socket.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_AT_ONCE))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&some));
        sendmsg(
            line,
            &[IoSlice::new(MORE)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )?;
    }
    (&*line).write_all(ALL)
}

fn receive(line: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    line.set_read_timeout(Some(PATIENCE))?;
    let mut sockets = Vec::new();
    loop {
        let mut word = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_AT_ONCE))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            line,
            &mut [IoSliceMut::new(&mut word)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                sockets.extend(descriptors);
            }
        }
        match (received.bytes, &word) {
            (0, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
            (_, word) if word == ALL => return Ok(sockets),
            _ => {}
        }
    }
}

/// Set for the process that is to take over.
const VARIABLE: &str = "WEIR_TAKES_OVER";

const MORE: &[u8; 1] = b"+";
const ALL: &[u8; 1] = b".";
const READY: &[u8; 1] = b"!";

/// Linux allows 253.
const MOST_AT_ONCE: usize = 128;

/// How often the end of a process that has closed its socket is checked.
const LAST_LOOKS: u32 = 200;

/// How long a new binary may take to start: names have to be looked up.
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn any_number_of_sockets_arrives_in_order() {
        for count in [0, 1, MOST_AT_ONCE, 300] {
            let (here, there) = UnixStream::pair().unwrap();
            let sockets: Vec<_> = (0..count)
                .map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap())
                .collect();
            let addresses: Vec<_> = sockets
                .iter()
                .map(|one| one.local_addr().unwrap())
                .collect();
            let sockets: Vec<_> = sockets.into_iter().map(OwnedFd::from).collect();
            let sending = std::thread::spawn(move || send(&here, &sockets).unwrap());
            let received = receive(&there).unwrap().into_iter();
            let received =
                received.map(|one| std::net::TcpListener::from(one).local_addr().unwrap());
            assert_eq!(received.collect::<Vec<_>>(), addresses);
            sending.join().unwrap();
        }
    }

    #[test]
    fn who_hands_over_and_is_gone_is_noticed() {
        let (here, there) = UnixStream::pair().unwrap();
        drop(here);
        let error = receive(&there).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
