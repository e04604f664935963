//! Frames and fields as they arrive, whole and in pieces.

use proptest::prelude::*;

use super::*;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn all(frames: &mut FrameScanner, mut bytes: &[u8]) -> Vec<FrameHeader> {
    std::iter::from_fn(|| frames.next(&mut bytes)).collect()
}

#[test]
fn the_preface_is_not_a_frame() {
    let mut frames = FrameScanner::from_client();
    assert!(frames.is_within_head());
    assert_eq!(all(&mut frames, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), []);
    assert!(!frames.is_within_head());
    let seen = all(&mut frames, &frame(4, 0, 0, b""));
    assert_eq!(seen[0].kind, FrameType::Settings);
}

#[test]
fn a_reset_says_why() {
    let bytes = frame(3, 0, 5, &8_u32.to_be_bytes());
    let seen = all(&mut FrameScanner::from_server(), &bytes);
    assert_eq!((seen[0].stream, seen[0].code()), (5, 8));
    let bytes = frame(7, 0, 0, &[0, 0, 0, 5, 0, 0, 0, 11, b'x']);
    assert_eq!(all(&mut FrameScanner::from_server(), &bytes)[0].code(), 11);
}

#[test]
fn a_head_lasts_until_its_last_continuation() {
    let mut frames = FrameScanner::from_server();
    all(&mut frames, &frame(1, 0, 1, b"abc"));
    assert!(frames.is_within_head());
    all(&mut frames, &frame(9, 0, 1, b"abc"));
    assert!(frames.is_within_head());
    all(&mut frames, &frame(9, END_HEADERS, 1, b"abc"));
    assert!(!frames.is_within_head());
    // The body's frames have a limit of their own.
    all(&mut frames, &frame(0, 0, 1, b"abc")[..10]);
    assert!(!frames.is_within_head());
}

#[test]
fn fields_are_found_between_what_pads_them() {
    let malformed = |frames: &[Vec<u8>]| {
        let mut client = FrameScanner::from_client();
        let bytes = [&[b' '; 24][..], &frames.concat()].concat();
        let seen = all(&mut client, &bytes);
        seen.last().unwrap().malformed
    };
    let path = b"\x04\x04/a#b";
    assert!(malformed(&[frame(1, END_HEADERS, 1, path)]));
    let mut padded = vec![3, 0, 0, 0, 0, 16];
    padded.extend(path);
    padded.extend([0; 3]);
    let flags = END_HEADERS | PADDED | PRIORITY;
    assert!(malformed(&[frame(1, flags, 1, &padded)]));
    let halves = [
        frame(1, 0, 1, &path[..3]),
        frame(9, END_HEADERS, 1, &path[3..]),
    ];
    assert!(malformed(&halves));
    // In what a stream begins with they are wanted, in its trailers they are not.
    let head = frame(1, END_HEADERS, 1, b"\x84");
    assert!(!malformed(std::slice::from_ref(&head)));
    assert!(malformed(&[head.clone(), head]));
}

#[test]
fn padding_is_no_data() {
    let padded = |flags, payload: &[u8]| {
        all(
            &mut FrameScanner::from_server(),
            &frame(0, flags, 1, payload),
        )[0]
        .is_empty_data()
    };
    assert!(padded(PADDED, &[3, 0, 0, 0]));
    assert!(!padded(PADDED, &[2, 7, 0, 0]));
    assert!(!padded(PADDED | END_STREAM, &[3, 0, 0, 0]));
    assert!(padded(0, b""));
    assert!(!padded(0, b"x"));
}

proptest! {
    /// However the bytes are cut, the same frames pass.
    #[test]
    fn cuts_make_no_difference(
        sent in prop::collection::vec((0..12_u8, any::<u8>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..40)), 0..8),
        cuts in prop::collection::vec(1..20_usize, 1..30),
    ) {
        let bytes: Vec<u8> = sent
            .iter()
            .flat_map(|(kind, flags, stream, payload)| frame(*kind, *flags, *stream, payload))
            .collect();
        let whole = all(&mut FrameScanner::from_server(), &bytes);
        prop_assert_eq!(whole.len(), sent.len());
        let (mut pieces, mut rest) = (FrameScanner::from_server(), &bytes[..]);
        let mut seen = Vec::new();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, left) = rest.split_at((*cut).min(rest.len()));
            seen.extend(all(&mut pieces, piece));
            rest = left;
        }
        prop_assert_eq!(seen, whole);
    }
}

#[test]
fn only_the_flag_ends_a_stream() {
    let mut frames = FrameScanner::from_server();
    let bytes = [(0, 0), (0, END_STREAM), (8, END_STREAM)]
        .map(|(kind, flags)| frame(kind, flags, 1, &[0; 4]));
    let ends: Vec<_> = all(&mut frames, &bytes.concat())
        .into_iter()
        .map(FrameHeader::ends_stream)
        .collect();
    assert_eq!(ends, [false, true, false]);
}
