//! A backend that is well, or not, in one of the ways backends are not.

use std::io::{BufRead, BufReader, ErrorKind, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::SockRef;

/// How a backend is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    /// No server listens there.
    Away,
    /// Ends its answers before their end.
    Cutting,
    /// Answers that it cannot.
    Failing,
    /// Now well, now resetting.
    Flapping,
    /// Accepts, and says nothing.
    Hanging,
    /// Resets connections instead of answering.
    Resetting,
    /// Takes its time.
    Slow,
    /// As it should be.
    Well,
}

impl Mood {
    /// All there are.
    pub(crate) const ALL: [Self; 8] = [
        Self::Away,
        Self::Cutting,
        Self::Failing,
        Self::Flapping,
        Self::Hanging,
        Self::Resetting,
        Self::Slow,
        Self::Well,
    ];
}

/// A backend.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    mood: Mutex<Mood>,
    requests: AtomicU64,
    cuts: AtomicU64,
}

impl Backend {
    pub(crate) fn start(address: SocketAddr) -> Arc<Self> {
        let backend = Arc::new(Self {
            address,
            mood: Mutex::new(Mood::Well),
            requests: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
        });
        let listening = Arc::clone(&backend);
        thread::spawn(move || listening.listen());
        backend
    }

    pub(crate) fn set(&self, mood: Mood) {
        *self.mood.lock() = mood;
    }

    pub(crate) fn mood(&self) -> Mood {
        *self.mood.lock()
    }

    /// How many requests have come, checks of its health left out.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// How many answers it has cut short.
    pub(crate) fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }

    /// Comes and goes for ever.
    fn listen(self: Arc<Self>) {
        loop {
            if self.mood() == Mood::Away {
                thread::sleep(MOMENT);
                continue;
            }
            // Who went may be held by connections that are not quite over.
            let Ok(listener) = TcpListener::bind(self.address) else {
                thread::sleep(MOMENT);
                continue;
            };
            let patient = listener.set_nonblocking(true);
            while patient.is_ok() && self.mood() != Mood::Away {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let backend = Arc::clone(&self);
                        // A connection that breaks is what all this is about.
                        thread::spawn(move || drop(backend.serve(stream)));
                    }
                    Err(_) => thread::sleep(Duration::from_millis(2)),
                }
            }
        }
    }

    fn serve(&self, stream: TcpStream) -> Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(MOMENT))?;
        let mut reader = BufReader::new(stream);
        loop {
            let Some(target) = self.request(&mut reader)? else {
                return Ok(());
            };
            let check = target == "/healthz";
            if !check {
                self.requests.fetch_add(1, Ordering::Relaxed);
            }
            if !self.answer(reader.get_mut(), &target, check)? {
                return Ok(());
            }
        }
    }

    /// The target of the next request; `None` once the connection is over.
    fn request(&self, reader: &mut BufReader<TcpStream>) -> Result<Option<String>> {
        let mut head = String::new();
        loop {
            match reader.read_line(&mut head) {
                Ok(0) => return Ok(None),
                Ok(_) if head.ends_with("\r\n\r\n") => {
                    return Ok(head.split(' ').nth(1).map(str::to_owned));
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.mood() == Mood::Away {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Answers by its mood; whether the connection goes on.
    fn answer(&self, stream: &mut TcpStream, target: &str, check: bool) -> Result<bool> {
        let length = target.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        let resets = match self.mood() {
            Mood::Flapping => self.requests().is_multiple_of(2),
            mood => mood == Mood::Resetting,
        };
        if resets {
            SockRef::from(&*stream).set_linger(Some(Duration::ZERO))?;
            return Ok(false);
        }
        match self.mood() {
            Mood::Away => return Ok(false),
            Mood::Cutting if !check => {
                self.cuts.fetch_add(1, Ordering::Relaxed);
                stream.write_all(format!("{head}/").as_bytes())?;
                return Ok(false);
            }
            Mood::Failing => {
                let refusal = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
                stream.write_all(refusal.as_bytes())?;
                return Ok(true);
            }
            Mood::Hanging => {
                while self.mood() == Mood::Hanging {
                    thread::sleep(MOMENT);
                }
                return Ok(false);
            }
            Mood::Slow => thread::sleep(Duration::from_millis(200)),
            _ => {}
        }
        // What takes a while lets others wait.
        if target.starts_with("/tight/") {
            thread::sleep(Duration::from_millis(10));
        }
        stream.write_all(format!("{head}{target}").as_bytes())?;
        Ok(true)
    }
}

const MOMENT: Duration = Duration::from_millis(50);
