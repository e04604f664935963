//! Whatever a connection begins with: reading a PROXY header never panics, never asks for more than may come, and
//! finds the same whether it comes whole or as the reader asks for it.
//!
//! `cargo fuzz run --fuzz-dir tests/fuzz proxy_header`

#![no_main]

use libfuzzer_sys::fuzz_target;
use weir::listen::proxy_protocol::{ParseOutcome, parse};

fuzz_target!(|input: &[u8]| {
    let mut read = 0;
    let stepwise = loop {
        match parse(&input[..read]) {
            Ok(ParseOutcome::Part { wanted }) => {
                assert!(wanted > read && wanted <= 4096);
                if wanted > input.len() {
                    return;
                }
                read = wanted;
            }
            done => break done,
        }
    };
    if let Ok(ParseOutcome::Whole { length, .. }) = &stepwise {
        assert_eq!(*length, read, "not a byte too many");
        assert_eq!(parse(input), stepwise);
    }
});
