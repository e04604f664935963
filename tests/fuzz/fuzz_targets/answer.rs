//! Whatever a backend sends, in whatever pieces it comes: nothing panics, nothing runs away, and where the bytes are
//! cut makes no difference to what they say.
//!
//! `cargo fuzz run --fuzz-dir tests/fuzz answer`

#![no_main]

use http::Method;
use libfuzzer_sys::fuzz_target;
use weir::upstream::fuzzing::{FuzzedResponse, read};

// The first byte says how long the pieces are.
fuzz_target!(|input: &[u8]| {
    let Some((length, bytes)) = input.split_first() else {
        return;
    };
    let length = usize::from(*length).max(1);
    let whole = read(&Method::GET, [bytes]);
    let pieces = read(&Method::GET, bytes.chunks(length));
    assert_eq!(said(whole), said(pieces));
});

// Bytes after the end are only seen where they are read with it: what becomes of the connection may differ.
fn said(answer: Option<FuzzedResponse>) -> Option<FuzzedResponse> {
    answer.map(|answer| FuzzedResponse {
        reusable: false,
        ..answer
    })
}
