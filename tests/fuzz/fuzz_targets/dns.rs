//! Whatever a DNS server sends: nothing panics, nothing runs away, and there are no more addresses than it has room for.
//!
//! `cargo fuzz run --fuzz-dir tests/fuzz dns`

#![no_main]

use libfuzzer_sys::fuzz_target;
use weir::upstream::fuzzing::addresses_in;

fuzz_target!(|message: &[u8]| {
    if let Some(addresses) = addresses_in("a.b", message) {
        // A record of an address takes sixteen bytes at least.
        assert!(addresses.len() * 16 <= message.len());
    }
});
