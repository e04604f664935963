//! Whatever a client shows as its certificate: nothing panics, and names are printable ASCII, so that they can stand in
//! a log or a header.
//!
//! `cargo fuzz run --fuzz-dir tests/fuzz certificate`

#![no_main]

use libfuzzer_sys::fuzz_target;
use weir::tls::fuzzing::names;

fuzz_target!(|der: &[u8]| {
    for name in names(der).into_iter().flatten() {
        assert!(name.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{name}");
    }
});
