//! Whatever passes on an HTTP/2 connection, in whatever pieces it comes: the same frames are seen, and nothing panics.
//!
//! `cargo fuzz run --fuzz-dir tests/fuzz frames`

#![no_main]

use libfuzzer_sys::fuzz_target;
use weir::downstream::fuzzing::watch;

// The first byte says how long the pieces are.
fuzz_target!(|input: &[u8]| {
    let Some((length, bytes)) = input.split_first() else {
        return;
    };
    assert_eq!(watch(bytes, bytes.len()), watch(bytes, usize::from(*length)));
});
