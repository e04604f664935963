//! A DNS server with the records of a test, which can misbehave.
//!
//! It shares no code with the client that asks it.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;

use parking_lot::Mutex;

/// A running DNS server. It ends with the test.
#[derive(Debug)]
pub(crate) struct Dns {
    address: SocketAddr,
    known: Arc<Mutex<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    names: HashMap<String, (Vec<IpAddr>, u32)>,
    manner: DnsBehaviour,
    asked: Vec<String>,
    /// How many of them came over TCP.
    at_length: usize,
}

/// How it answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum DnsBehaviour {
    /// First with answers to other questions, and nonsense, then as it should.
    Confused,
    /// That it cannot.
    Failing,
    /// Not at all.
    Silent,
    /// Over UDP only that there is more to say.
    Terse,
    /// As it should.
    #[default]
    Well,
}

impl Dns {
    pub(crate) fn start() -> Self {
        let known = Arc::new(Mutex::new(Known::default()));
        let (socket, listener) = sockets();
        let address = socket.local_addr().expect("it is bound");
        let asked = Arc::clone(&known);
        std::thread::spawn(move || {
            let mut question = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut question) {
                for answer in asked.lock().answer_udp(&question[..length]) {
                    socket.send_to(&answer, from).ok();
                }
            }
        });
        let asked = Arc::clone(&known);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut question = [0; 512];
                let Ok(length) = stream.read(&mut question) else {
                    continue;
                };
                let Some(question) = question.get(2..length) else {
                    continue;
                };
                let mut known = asked.lock();
                known.at_length += 1;
                let answer = known.answer(question);
                let length = u16::try_from(answer.len()).expect("it is short");
                stream
                    .write_all(&[&length.to_be_bytes()[..], &answer].concat())
                    .ok();
            }
        });
        Self { address, known }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// A name has these addresses from now on, for so many seconds.
    pub(crate) fn set(&self, name: &str, addresses: &[IpAddr], holds: u32) {
        let mut known = self.known.lock();
        known
            .names
            .insert(name.to_owned(), (addresses.to_vec(), holds));
    }

    pub(crate) fn behave(&self, manner: DnsBehaviour) {
        self.known.lock().manner = manner;
    }

    /// How often it was asked.
    pub(crate) fn asked(&self) -> usize {
        self.known.lock().asked.len()
    }

    /// How often over TCP.
    pub(crate) fn tcp_queries(&self) -> usize {
        self.known.lock().at_length
    }
}

/// The same port over both.
fn sockets() -> (UdpSocket, TcpListener) {
    loop {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let address = listener.local_addr().expect("it is bound");
        if let Ok(socket) = UdpSocket::bind(address) {
            return (socket, listener);
        }
    }
}

impl Known {
    /// What is said over UDP.
    fn answer_udp(&mut self, question: &[u8]) -> Vec<Vec<u8>> {
        match self.manner {
            DnsBehaviour::Silent => {
                self.answer(question);
                Vec::new()
            }
            DnsBehaviour::Confused => {
                let answer = self.answer(question);
                let mut other = answer.clone();
                // Of another question: its number, or its name.
                other[0] ^= 1;
                let mut forged = answer.clone();
                forged[13] ^= 1;
                vec![b"?".to_vec(), other, forged, answer]
            }
            DnsBehaviour::Terse => {
                let mut answer = question.to_vec();
                answer[2..4].copy_from_slice(&0x8380_u16.to_be_bytes());
                vec![answer]
            }
            DnsBehaviour::Failing | DnsBehaviour::Well => vec![self.answer(question)],
        }
    }

    fn answer(&mut self, question: &[u8]) -> Vec<u8> {
        let mut name = String::new();
        let mut at = 12;
        while question[at] != 0 {
            let end = at + 1 + usize::from(question[at]);
            if !name.is_empty() {
                name.push('.');
            }
            name.push_str(&String::from_utf8_lossy(&question[at + 1..end]));
            at = end;
        }
        let wants_ipv6 = question[at + 2] == 28;
        let known = self.names.get(&name);
        let code = match (self.manner, known) {
            (DnsBehaviour::Failing, _) => 2,
            (_, None) => 3,
            _ => 0,
        };
        self.asked.push(name);
        let (addresses, holds) = known.filter(|_| code == 0).cloned().unwrap_or_default();
        let mut records: Vec<Vec<u8>> = Vec::new();
        for address in addresses {
            let data = match address {
                IpAddr::V4(address) if !wants_ipv6 => address.octets().to_vec(),
                IpAddr::V6(address) if wants_ipv6 => address.octets().to_vec(),
                _ => continue,
            };
            let kind = question[at + 2];
            let mut record = vec![0xc0, 12, 0, kind, 0, 1];
            record.extend(holds.to_be_bytes());
            record.extend([0, u8::try_from(data.len()).expect("4 or 16")]);
            record.extend(data);
            records.push(record);
        }
        let mut answer = question[..at + 5].to_vec();
        answer[2..4].copy_from_slice(&(0x8180_u16 | code).to_be_bytes());
        let count = u16::try_from(records.len()).expect("they are few");
        answer[6..8].copy_from_slice(&count.to_be_bytes());
        answer.extend(records.concat());
        answer
    }
}
