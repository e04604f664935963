//! What two sides have agreed on: rustls, given memory to work in.

use std::fmt;
use std::io::{self, IoSlice};

use bytes::{Buf as _, BytesMut};
use rustls::CommonState;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic,
};

/// One side of it.
pub(super) enum TlsSession {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionStep {
    /// There may be more to do.
    Again,
    /// The other side has said goodbye.
    Ended,
    /// What was to be said is.
    Said,
    /// Nothing can be done before more has come.
    Waits,
}

/// What is done when it can be written.
#[derive(Clone, Copy)]
enum PendingWrite<'a> {
    Bytes(&'a [u8]),
    Goodbye,
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str(match self {
            Self::Client(_) => "Client",
            Self::Server(_) => "Server",
        })
    }
}

impl TlsSession {
    /// What is known of it.
    pub(super) fn state(&self) -> &CommonState {
        match self {
            Self::Client(client) => client,
            Self::Server(server) => server,
        }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.state().is_handshaking()
    }

    /// Goes on with what was `read`: what is decrypted is given to `take`, what is to be sent is added to `sealed`.
    pub(super) fn step(
        &mut self,
        read: &mut BytesMut,
        sealed: &mut BytesMut,
        take: &mut dyn FnMut(&[u8]),
    ) -> io::Result<SessionStep> {
        match self {
            Self::Client(client) => step(client.process_tls_records(read), sealed, take),
            Self::Server(server) => step(server.process_tls_records(read), sealed, take),
        }
        .advance(read)
    }

    /// Encrypts as much of `slices` as fits into a few records, and says how much that was.
    pub(super) fn encrypt(
        &mut self,
        slices: &[IoSlice<'_>],
        read: &mut BytesMut,
        sealed: &mut BytesMut,
    ) -> io::Result<usize> {
        // Small pieces, such as a head and its body, share a record; a large one is not copied.
        let first = slices.iter().find(|slice| !slice.is_empty());
        let mut gathered = Vec::new();
        let bytes = match first {
            None => return Ok(0),
            Some(first) if first.len() >= MOST / 8 || slices.len() == 1 => {
                first.get(..MOST).unwrap_or(first)
            }
            Some(_) => {
                for slice in slices {
                    let room = RECORD - gathered.len();
                    gathered.extend_from_slice(slice.get(..room).unwrap_or(slice));
                }
                &gathered
            }
        };
        self.say(PendingWrite::Bytes(bytes), read, sealed)?;
        Ok(bytes.len())
    }

    /// What the other side is told about what was wrong.
    pub(super) fn last_words(&mut self, read: &mut BytesMut, sealed: &mut BytesMut) {
        // Only as long as there is something to be said: rustls would go on reading then, and object once more.
        while self.state().wants_write()
            && matches!(self.step(read, sealed, &mut |_| ()), Ok(SessionStep::Again))
        {}
    }

    /// Encrypts that nothing follows.
    pub(super) fn goodbye(&mut self, read: &mut BytesMut, sealed: &mut BytesMut) -> io::Result<()> {
        self.say(PendingWrite::Goodbye, read, sealed)
    }

    fn say(
        &mut self,
        say: PendingWrite<'_>,
        read: &mut BytesMut,
        sealed: &mut BytesMut,
    ) -> io::Result<()> {
        loop {
            let went = match self {
                Self::Client(client) => said(client.process_tls_records(read), say, sealed),
                Self::Server(server) => said(server.process_tls_records(read), say, sealed),
            };
            match (went.advance(read)?, say) {
                (SessionStep::Again | SessionStep::Ended, _) => {}
                (SessionStep::Said, _) | (SessionStep::Waits, PendingWrite::Goodbye) => {
                    return Ok(());
                }
                // Nothing can be said any more.
                (SessionStep::Waits, PendingWrite::Bytes(_)) => {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
            }
        }
    }
}

/// A step, and how much of what was read is done with.
struct StepResult {
    step: io::Result<SessionStep>,
    discard: usize,
}

impl StepResult {
    fn advance(self, read: &mut BytesMut) -> io::Result<SessionStep> {
        read.advance(self.discard);
        self.step
    }
}

fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    sealed: &mut BytesMut,
    take: &mut dyn FnMut(&[u8]),
) -> StepResult {
    let mut discard = status.discard;
    let step = match status.state {
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            let mut step = Ok(SessionStep::Again);
            while let Some(record) = traffic.next_record() {
                match record {
                    Ok(record) => {
                        discard += record.discard;
                        take(record.payload);
                    }
                    Err(error) => step = Err(wrong(error)),
                }
            }
            step
        }
        Ok(state) => common(state, sealed),
        Err(error) => Err(wrong(error)),
    };
    StepResult { step, discard }
}

/// As [`step`], but with something to say as soon as that is possible; over when it is said.
fn said<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    say: PendingWrite<'_>,
    sealed: &mut BytesMut,
) -> StepResult {
    let step = match status.state {
        Ok(ConnectionState::WriteTraffic(mut traffic)) => {
            write(&mut traffic, say, sealed).map(|()| SessionStep::Said)
        }
        // All that was read has been decrypted before.
        Ok(ConnectionState::ReadTraffic(_)) => Err(io::ErrorKind::InvalidData.into()),
        Ok(state) => common(state, sealed),
        Err(error) => Err(wrong(error)),
    };
    StepResult {
        step,
        discard: status.discard,
    }
}

fn common<Data>(
    state: ConnectionState<'_, '_, Data>,
    sealed: &mut BytesMut,
) -> io::Result<SessionStep> {
    match state {
        ConnectionState::EncodeTlsData(encode) => {
            encoded(encode, sealed).map(|()| SessionStep::Again)
        }
        ConnectionState::TransmitTlsData(transmit) => {
            // It lies in `sealed`, from where it leaves before anything else.
            transmit.done();
            Ok(SessionStep::Again)
        }
        ConnectionState::PeerClosed => Ok(SessionStep::Ended),
        _ => Ok(SessionStep::Waits),
    }
}

fn encoded<Data>(mut encode: EncodeTlsData<'_, Data>, sealed: &mut BytesMut) -> io::Result<()> {
    let length = sealed.len();
    let needed = match encode.encode(&mut []) {
        Err(EncodeError::InsufficientSize(size)) => size.required_size,
        Ok(_) => return Ok(()),
        Err(error) => return Err(io::Error::other(error)),
    };
    sealed.resize(length + needed, 0);
    let count = encode
        .encode(&mut sealed[length..])
        .map_err(io::Error::other)?;
    sealed.truncate(length + count);
    Ok(())
}

fn write<Data>(
    traffic: &mut WriteTraffic<'_, Data>,
    say: PendingWrite<'_>,
    sealed: &mut BytesMut,
) -> io::Result<()> {
    let length = sealed.len();
    let mut needed = match say {
        PendingWrite::Bytes(bytes) => bytes.len() + (bytes.len() / RECORD + 1) * AROUND,
        PendingWrite::Goodbye => AROUND,
    };
    loop {
        sealed.resize(length + needed, 0);
        let room = &mut sealed[length..];
        let done = match say {
            PendingWrite::Bytes(bytes) => traffic.encrypt(bytes, room),
            PendingWrite::Goodbye => traffic.queue_close_notify(room),
        };
        match done {
            Ok(count) => {
                sealed.truncate(length + count);
                return Ok(());
            }
            Err(EncryptError::InsufficientSize(size)) => needed = size.required_size,
            Err(error) => {
                sealed.truncate(length);
                return Err(io::Error::other(error));
            }
        }
    }
}

fn wrong(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The longest record.
const RECORD: usize = 16 * 1024;

/// Encrypted at once: what one write to a socket may well take.
const MOST: usize = 2 * RECORD;

/// What encryption adds to a record, at most.
const AROUND: usize = 64;
