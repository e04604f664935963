//! Ports that no other process takes.
//!
//! A port found by binding to 0 can go to another process before the started program binds it, and with `SO_REUSEPORT` two
//! programs would then share it silently. So a port
//! is claimed by a lock on a file named after it, which ends with this process, and is taken from below
//! the range the kernel hands out by itself.

use std::fs::{File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// A port of 127.0.0.1 that is ours until this is dropped.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _claim: File,
}

impl Port {
    /// Claims one.
    pub(crate) fn claim() -> Self {
        let folder = std::env::temp_dir().join("weir-test-ports");
        std::fs::create_dir_all(&folder).expect("the temporary directory can be written");
        for _ in 0..1000 {
            let number = fastrand::u16(FIRST..LAST);
            let claim = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(folder.join(number.to_string()));
            let Ok(claim) = claim else { continue };
            if claim.try_lock().is_ok()
                && TcpListener::bind((Ipv4Addr::UNSPECIFIED, number)).is_ok()
            {
                return Self {
                    number,
                    _claim: claim,
                };
            }
        }
        panic!("no free port between {FIRST} and {LAST}");
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

const FIRST: u16 = 18_000;
/// Linux gives out 32768 and above by default.
const LAST: u16 = 32_000;
