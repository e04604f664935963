//! The time of day as text, made once a second on each thread.
//!
//! Turning seconds into a date costs more than the rest of a log line, and all lines of a second share it.

use std::cell::RefCell;
use std::rc::Rc;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::clock::Clock;

/// One second of local time, in the formats of the logs.
#[derive(Debug, Default)]
pub(super) struct LogTimestamp {
    unix: Option<u64>,
    /// `2026/11/16 01:58:24`
    pub(super) slashed: String,
    /// `2026-11-16T01:58:24`
    pub(super) iso: String,
    /// `+01:00`
    pub(super) offset: String,
}

impl LogTimestamp {
    fn at(unix: u64) -> Self {
        let local = i64::try_from(unix)
            .ok()
            .and_then(|second| Timestamp::from_second(second).ok())
            .unwrap_or_default()
            .to_zoned(TimeZone::system());
        Self {
            unix: Some(unix),
            slashed: local.strftime("%Y/%m/%d %H:%M:%S").to_string(),
            iso: local.strftime("%Y-%m-%dT%H:%M:%S").to_string(),
            offset: local.strftime("%:z").to_string(),
        }
    }
}

/// The current second, and the milliseconds into it.
pub(super) fn now() -> (Rc<LogTimestamp>, u32) {
    thread_local! {
        static SECOND: RefCell<Rc<LogTimestamp>> = RefCell::default();
    }
    let wall = Clock::wall();
    let unix = wall.as_secs();
    let second = SECOND.try_with(|second| {
        let mut second = second.borrow_mut();
        if second.unix != Some(unix) {
            *second = Rc::new(LogTimestamp::at(unix));
        }
        Rc::clone(&second)
    });
    // A thread that is ending has lost its cache already.
    let second = second.unwrap_or_else(|_| Rc::new(LogTimestamp::at(unix)));
    (second, wall.subsec_millis())
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn all_formats_show_the_same_second() {
        let second = LogTimestamp::at(1_794_794_304);
        assert_eq!(
            second.slashed.replace('/', "-"),
            second.iso.replace('T', " ")
        );
        assert_eq!(second.offset.len(), 6, "{}", second.offset);
    }
}
