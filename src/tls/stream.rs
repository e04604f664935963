//! A stream inside TLS.
//!
//! rustls decrypts and encrypts in memory that is ours, so that an idle stream holds none: what is read goes into a buffer
//! that all connections of an event loop share, unless part of a record has come.
//!
//! Bytes count as written when the socket has taken them: limits on how long a write may take, and a close after the last
//! write, need not know of the buffer in between. The price is that a write that had to wait has to be repeated with the same
//! bytes, which all callers do.

use std::cell::Cell;
use std::io::IoSlice;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker, ready};
use std::{fmt, io, mem};

use bytes::{Buf as _, BytesMut};
use rustls::client::UnbufferedClientConnection;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic,
};
use rustls::{CipherSuite, CommonState, SupportedProtocolVersion, version};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::io::poll_read_buf;

use crate::config::plan::{Cipher, TlsVersion};
use crate::net::Stream;

/// A stream inside TLS.
#[derive(Debug)]
pub struct TlsStream {
    pub(super) io: Stream,
    pub(super) session: TlsSession,
    /// What was read and is not a whole record yet.
    read: BytesMut,
    /// What is decrypted, and more than was asked for.
    plain: BytesMut,
    /// What is encrypted and has not left.
    output: BytesMut,
    /// Bytes that are encrypted, and not reported as written yet.
    unreported: usize,
    ended: bool,
    /// Whether the session has failed. It is not asked anything any more.
    failed: bool,
    /// Whether a close without close_notify is an error: the end of a response that has no length may have been cut off. A
    /// request has a length, so that what is missing of it is noticed anyway.
    needs_close_notify: bool,
}

thread_local! {
    // Taken for each read, and put back empty: nearly always all of it is used at once.
    static SPARE: Cell<BytesMut> = Cell::new(BytesMut::new());
    static OUTPUT: Cell<BytesMut> = Cell::new(BytesMut::new());
}

impl TlsStream {
    /// A stream of which `received` has been read from the socket.
    pub(super) fn new(
        io: Stream,
        session: TlsSession,
        received: &[u8],
        needs_close_notify: bool,
    ) -> Self {
        let mut read = SPARE.take();
        read.extend_from_slice(received);
        Self {
            io,
            session,
            read,
            plain: BytesMut::new(),
            output: BytesMut::new(),
            unreported: 0,
            ended: false,
            failed: false,
            needs_close_notify,
        }
    }

    /// Ready when the handshake is complete. Some of our own bytes may still be unsent: the other side may have begun to write
    /// by now, and may not read before that is read.
    pub(super) fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut nothing = ReadBuf::new(&mut []);
        loop {
            self.process(&mut nothing, context)?;
            if !self.session.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            if ready!(self.poll_fill(context))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Ready when a read would probably find something, or that the other end is closed.
    pub(super) fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.plain.is_empty() || self.ended {
            return Poll::Ready(Ok(()));
        }
        self.io.poll_waiting(context).map_ok(|_| ())
    }

    /// Sends a close_notify alert, as far as the socket takes it without waiting.
    pub(super) fn close_notify(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        // Whether it arrives does not matter: the socket is closed next.
        let _tried = self.poll_close_notify(&mut context);
    }

    fn poll_close_notify(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.failed && !self.session.is_handshaking() {
            let notify = PendingWrite::CloseNotify;
            self.session
                .write(notify, &mut self.read, &mut self.output)?;
        }
        self.poll_drain(context)
    }

    /// Reads from the socket.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.read.capacity() == 0 {
            self.read = SPARE.take();
        }
        let room = self.read.capacity() - self.read.len();
        if room < READ_SIZE / 4 {
            self.read.reserve(READ_SIZE);
        }
        let filled = poll_read_buf(Pin::new(&mut self.io), context, &mut self.read);
        if filled.is_pending() {
            self.free_unused();
        }
        filled
    }

    /// Gives memory back that holds nothing.
    fn free_unused(&mut self) {
        if self.read.is_empty() {
            SPARE.set(mem::take(&mut self.read));
        }
    }

    /// Decrypts what was read, into `buffer` as far as it goes.
    fn process(&mut self, buffer: &mut ReadBuf<'_>, context: &mut Context<'_>) -> io::Result<()> {
        let done = loop {
            let plain = &mut self.plain;
            let mut take = |bytes: &[u8]| {
                let count = match plain.is_empty() {
                    true => bytes.len().min(buffer.remaining()),
                    false => 0,
                };
                let (now, later) = bytes.split_at(count);
                buffer.put_slice(now);
                plain.extend_from_slice(later);
            };
            match self
                .session
                .step(&mut self.read, &mut self.output, &mut take)
            {
                Ok(SessionStep::Again | SessionStep::Written) => {}
                Ok(SessionStep::Closed) => self.ended = true,
                Ok(SessionStep::Waits) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if done.is_err() {
            // Nothing that follows can be trusted.
            self.ended = true;
            self.failed = true;
            // rustls may remember where in the buffer the messages are that it has not looked at yet: the buffer stays
            // as it is until the alert is out, and the session is not used after that.
            self.session.write_alert(&mut self.read, &mut self.output);
            self.read.clear();
        }
        self.free_unused();
        // What is encrypted is sent at once, an alert about an error, too.
        match self.poll_drain(context) {
            Poll::Ready(Err(error)) if done.is_ok() => Err(error),
            _ => done,
        }
    }

    /// Writes what is encrypted; ready when all of it has left.
    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.output.is_empty() {
            let written = Pin::new(&mut self.io).poll_write(context, &self.output);
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.output.advance(count),
            }
        }
        if self.output.capacity() > 0 {
            OUTPUT.set(mem::take(&mut self.output));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_encrypt(
        &mut self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.failed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if self.unreported == 0 {
            ready!(self.poll_drain(context))?;
            self.output = OUTPUT.take();
            self.unreported = self
                .session
                .encrypt(slices, &mut self.read, &mut self.output)?;
        }
        ready!(self.poll_drain(context))?;
        Poll::Ready(Ok(mem::take(&mut self.unreported)))
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.plain.is_empty() {
            let count = this.plain.len().min(buffer.remaining());
            buffer.put_slice(&this.plain[..count]);
            this.plain.advance(count);
            if this.plain.is_empty() {
                this.plain = BytesMut::new();
            }
            return Poll::Ready(Ok(()));
        }
        // The other side may wait for what has not left yet.
        if let Poll::Ready(Err(error)) = this.poll_drain(context) {
            return Poll::Ready(Err(error));
        }
        let before = buffer.filled().len();
        while !this.ended && buffer.filled().len() == before && buffer.remaining() > 0 {
            if ready!(this.poll_fill(context))? == 0 {
                this.ended = true;
                return Poll::Ready(match this.needs_close_notify {
                    false => Ok(()),
                    true => Err(io::ErrorKind::UnexpectedEof.into()),
                });
            }
            this.process(buffer, context)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_encrypt(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_encrypt(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(context))?;
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_close_notify(context))?;
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

/// Read at once: the longest record with all that is around it.
const READ_SIZE: usize = 17 * 1024;

/// One side of a TLS session.
pub(super) enum TlsSession {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// How far a session has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionStep {
    /// There may be more to do.
    Again,
    /// The other side has sent close_notify.
    Closed,
    /// The pending write is encrypted.
    Written,
    /// Nothing can be done before more has come.
    Waits,
}

/// What is written as soon as that is possible.
#[derive(Clone, Copy)]
enum PendingWrite<'a> {
    Bytes(&'a [u8]),
    CloseNotify,
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str(match self {
            Self::Client(_) => "Client",
            Self::Server(_) => "Server",
        })
    }
}

impl Deref for TlsSession {
    type Target = CommonState;

    fn deref(&self) -> &CommonState {
        match self {
            Self::Client(client) => client,
            Self::Server(server) => server,
        }
    }
}

impl TlsSession {
    /// Goes on with what was `read`: what is decrypted is given to `take`, what is to be sent is added to `sealed`.
    pub(super) fn step(
        &mut self,
        read: &mut BytesMut,
        output: &mut BytesMut,
        take: &mut dyn FnMut(&[u8]),
    ) -> io::Result<SessionStep> {
        let (step, discard) = match self {
            Self::Client(client) => step(client.process_tls_records(read), output, take),
            Self::Server(server) => step(server.process_tls_records(read), output, take),
        };
        read.advance(discard);
        step
    }

    /// Encrypts as much of `slices` as fits into a few records, and returns how much that was.
    pub(super) fn encrypt(
        &mut self,
        slices: &[IoSlice<'_>],
        read: &mut BytesMut,
        output: &mut BytesMut,
    ) -> io::Result<usize> {
        // Small pieces, such as headers and a body, share a record; a large one is not copied.
        let first = slices.iter().find(|slice| !slice.is_empty());
        let mut gathered = Vec::new();
        let bytes = match first {
            None => return Ok(0),
            Some(first) if first.len() >= MOST / 8 || slices.len() == 1 => {
                first.get(..MOST).unwrap_or(first)
            }
            Some(_) => {
                for slice in slices {
                    let room = MAX_RECORD - gathered.len();
                    gathered.extend_from_slice(slice.get(..room).unwrap_or(slice));
                }
                &gathered
            }
        };
        self.write(PendingWrite::Bytes(bytes), read, output)?;
        Ok(bytes.len())
    }

    /// Encrypts the alert about what was wrong.
    pub(super) fn write_alert(&mut self, read: &mut BytesMut, output: &mut BytesMut) {
        // Only as long as there is something to be written: rustls would go on reading then, and fail once more.
        while self.wants_write()
            && matches!(self.step(read, output, &mut |_| ()), Ok(SessionStep::Again))
        {}
    }

    /// Encrypts `pending` as soon as that is possible.
    fn write(
        &mut self,
        pending: PendingWrite<'_>,
        read: &mut BytesMut,
        output: &mut BytesMut,
    ) -> io::Result<()> {
        loop {
            let (step, discard) = match self {
                Self::Client(client) => {
                    write_step(client.process_tls_records(read), pending, output)
                }
                Self::Server(server) => {
                    write_step(server.process_tls_records(read), pending, output)
                }
            };
            read.advance(discard);
            match (step?, pending) {
                (SessionStep::Again | SessionStep::Closed, _) => {}
                (SessionStep::Written, _) | (SessionStep::Waits, PendingWrite::CloseNotify) => {
                    return Ok(());
                }
                // Nothing can be written any more.
                (SessionStep::Waits, PendingWrite::Bytes(_)) => {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
            }
        }
    }
}

/// A step, and how many of the bytes that were read are done with.
type StepResult = (io::Result<SessionStep>, usize);

fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    output: &mut BytesMut,
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
                    Err(error) => step = Err(invalid_data(error)),
                }
            }
            step
        }
        Ok(state) => common(state, output),
        Err(error) => Err(invalid_data(error)),
    };
    (step, discard)
}

/// As [`step`], but writes `pending` as soon as that is possible.
fn write_step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    pending: PendingWrite<'_>,
    output: &mut BytesMut,
) -> StepResult {
    let step = match status.state {
        Ok(ConnectionState::WriteTraffic(mut traffic)) => {
            write(&mut traffic, pending, output).map(|()| SessionStep::Written)
        }
        // All that was read has been decrypted before.
        Ok(ConnectionState::ReadTraffic(_)) => Err(io::ErrorKind::InvalidData.into()),
        Ok(state) => common(state, output),
        Err(error) => Err(invalid_data(error)),
    };
    (step, status.discard)
}

fn common<Data>(
    state: ConnectionState<'_, '_, Data>,
    output: &mut BytesMut,
) -> io::Result<SessionStep> {
    match state {
        ConnectionState::EncodeTlsData(encode) => {
            encoded(encode, output).map(|()| SessionStep::Again)
        }
        ConnectionState::TransmitTlsData(transmit) => {
            // It is in `sealed`, which leaves before anything else.
            transmit.done();
            Ok(SessionStep::Again)
        }
        ConnectionState::PeerClosed => Ok(SessionStep::Closed),
        _ => Ok(SessionStep::Waits),
    }
}

fn encoded<Data>(mut encode: EncodeTlsData<'_, Data>, output: &mut BytesMut) -> io::Result<()> {
    let length = output.len();
    let needed = match encode.encode(&mut []) {
        Err(EncodeError::InsufficientSize(size)) => size.required_size,
        Ok(_) => return Ok(()),
        Err(error) => return Err(io::Error::other(error)),
    };
    output.resize(length + needed, 0);
    let count = encode
        .encode(&mut output[length..])
        .map_err(io::Error::other)?;
    output.truncate(length + count);
    Ok(())
}

fn write<Data>(
    traffic: &mut WriteTraffic<'_, Data>,
    pending: PendingWrite<'_>,
    output: &mut BytesMut,
) -> io::Result<()> {
    let length = output.len();
    let mut needed = match pending {
        PendingWrite::Bytes(bytes) => bytes.len() + (bytes.len() / MAX_RECORD + 1) * AROUND,
        PendingWrite::CloseNotify => AROUND,
    };
    loop {
        output.resize(length + needed, 0);
        let room = &mut output[length..];
        let done = match pending {
            PendingWrite::Bytes(bytes) => traffic.encrypt(bytes, room),
            PendingWrite::CloseNotify => traffic.queue_close_notify(room),
        };
        match done {
            Ok(count) => {
                output.truncate(length + count);
                return Ok(());
            }
            Err(EncryptError::InsufficientSize(size)) => needed = size.required_size,
            Err(error) => {
                output.truncate(length);
                return Err(io::Error::other(error));
            }
        }
    }
}

fn invalid_data(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The longest record.
const MAX_RECORD: usize = 16 * 1024;

/// Encrypted at once: what one write to a socket may well take.
const MOST: usize = 2 * MAX_RECORD;

/// What encryption adds to a record, at most.
const AROUND: usize = 64;

/// Everything there is.
static PROVIDER: LazyLock<Arc<CryptoProvider>> =
    LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));

/// The same in the order that servers prefer: AES with 128 bits first. SHA-256 has instructions of its own where SHA-384 has
/// none, which is a tenth of a handshake; Go's and Google's servers choose it, too.
static SERVER_PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    let mut provider = CryptoProvider::clone(&PROVIDER);
    provider.cipher_suites.sort_by_key(|suite| {
        let is_preferred = name(suite.suite()).contains("128");
        (suite.tls13().is_none(), !is_preferred)
    });
    Arc::new(provider)
});

/// All suites, in the order that servers prefer.
pub(super) fn server_provider() -> Arc<CryptoProvider> {
    Arc::clone(&SERVER_PROVIDER)
}

/// Whether a client prefers ChaCha20 to AES, for want of instructions for AES.
pub(super) fn prefers_chacha(suites: &[CipherSuite]) -> bool {
    let mut names = suites.iter().filter_map(CipherSuite::as_str);
    let first = names.find(|name| name.contains("_AES_") || name.contains("_CHACHA20_"));
    first.is_some_and(|name| name.contains("_CHACHA20_"))
}

/// The cryptography, with only these suites; where none of a version's suites are named, all of that version.
pub(super) fn provider(ciphers: &[Cipher]) -> Arc<CryptoProvider> {
    if ciphers.is_empty() {
        return Arc::clone(&PROVIDER);
    }
    let suites = |tls13: bool| {
        let all = PROVIDER.cipher_suites.iter().copied();
        let all: Vec<_> = all
            .filter(|suite| suite.tls13().is_some() == tls13)
            .collect();
        let find = |cipher: &Cipher| {
            let mut suites = all.iter().copied();
            suites.find(|suite| name(suite.suite()) == cipher.name)
        };
        let named: Vec<_> = ciphers.iter().filter_map(find).collect();
        match named.is_empty() {
            true => all,
            false => named,
        }
    };
    Arc::new(CryptoProvider {
        cipher_suites: [suites(true), suites(false)].concat(),
        ..CryptoProvider::clone(&PROVIDER)
    })
}

/// rustls's versions.
pub(super) fn versions(protocols: &[TlsVersion]) -> Vec<&'static SupportedProtocolVersion> {
    [
        (TlsVersion::Tls13, &version::TLS13),
        (TlsVersion::Tls12, &version::TLS12),
    ]
    .into_iter()
    .filter(|(protocol, _)| protocols.contains(protocol))
    .map(|(_, version)| version)
    .collect()
}

/// OpenSSL's name of a cipher suite.
pub(super) fn name(suite: CipherSuite) -> &'static str {
    let standard = suite.as_str().unwrap_or_default();
    let known = Cipher::ALL.iter().find(|cipher| {
        // rustls writes TLS13_ where the standard has TLS_.
        cipher.standard == standard
            || standard.strip_prefix("TLS13_") == cipher.standard.strip_prefix("TLS_")
    });
    known.map_or(standard, |cipher| cipher.name)
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn every_suite_has_openssls_name() {
        let mut names: Vec<_> = PROVIDER
            .cipher_suites
            .iter()
            .map(|suite| name(suite.suite()))
            .collect();
        let mut known: Vec<_> = Cipher::ALL.iter().map(|cipher| cipher.name).collect();
        names.sort_unstable();
        known.sort_unstable();
        assert_eq!(names, known);
    }

    #[test]
    fn swift_suites_come_first_unless_a_client_has_its_reasons() {
        let swift: Vec<_> = server_provider()
            .cipher_suites
            .iter()
            .map(|it| it.suite())
            .collect();
        assert_eq!(swift[0], CipherSuite::TLS13_AES_128_GCM_SHA256);
        assert_eq!(
            swift[3],
            CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
        );
        let (aes, chacha) = (swift[0], CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
        let grease = CipherSuite::Unknown(0x0a0a);
        assert!(prefers_chacha(&[grease, chacha, aes]));
        assert!(!prefers_chacha(&[grease, aes, chacha]));
        assert!(!prefers_chacha(&[]));
    }

    #[test]
    fn naming_suites_of_one_version_leaves_the_other_alone() {
        let only = provider(&Cipher::ALL[4..5]);
        let names: Vec<_> = only
            .cipher_suites
            .iter()
            .map(|suite| name(suite.suite()))
            .collect();
        assert_eq!(names.len(), 4, "{names:?}");
        assert_eq!(names[3], "ECDHE-ECDSA-AES128-GCM-SHA256");
    }
}
