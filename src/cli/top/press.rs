//! Keys, as a terminal sends them.

/// A key that was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyEvent {
    Down,
    Enter,
    Escape,
    Letter(char),
    /// Ctrl-C: raw mode makes it a key like others.
    Stop,
    Tab,
    TabBack,
    Up,
}

/// The keys in what was read at once. What we have no use for is passed over.
pub(super) fn presses(mut bytes: &[u8]) -> Vec<KeyEvent> {
    let mut presses = Vec::new();
    while let [first, rest @ ..] = bytes {
        let (press, after) = match (first, rest) {
            (0x03 | 0x04, _) => (Some(KeyEvent::Stop), rest),
            (b'\t', _) => (Some(KeyEvent::Tab), rest),
            (b'\r' | b'\n', _) => (Some(KeyEvent::Enter), rest),
            // Arrows come as `ESC [ A`, or `ESC O A` from terminals in another mood.
            (0x1b, [b'[' | b'O', rest @ ..]) => sequence(rest),
            (0x1b, _) => (Some(KeyEvent::Escape), rest),
            (b' '..=b'~', _) => (Some(KeyEvent::Letter(char::from(*first))), rest),
            _ => (None, rest),
        };
        presses.extend(press);
        bytes = after;
    }
    presses
}

fn sequence(bytes: &[u8]) -> (Option<KeyEvent>, &[u8]) {
    let is_last = |byte: &u8| matches!(byte, 0x40..=0x7e);
    let Some(end) = bytes.iter().position(is_last) else {
        return (None, &[]);
    };
    let (parameters, rest) = bytes.split_at(end);
    let press = match (parameters, rest.first()) {
        ([], Some(b'A')) => Some(KeyEvent::Up),
        ([], Some(b'B')) => Some(KeyEvent::Down),
        ([], Some(b'Z')) => Some(KeyEvent::TabBack),
        _ => None,
    };
    (press, rest.get(1..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart() {
        let bytes = b"j\x1b[A\x1bOB\t\x1b[Z\r\x1b[1;5C\x1b[3~q\x03\x1b";
        assert_eq!(
            presses(bytes),
            [
                KeyEvent::Letter('j'),
                KeyEvent::Up,
                KeyEvent::Down,
                KeyEvent::Tab,
                KeyEvent::TabBack,
                KeyEvent::Enter,
                KeyEvent::Letter('q'),
                KeyEvent::Stop,
                KeyEvent::Escape,
            ]
        );
    }

    #[test]
    fn half_a_sequence_is_no_key() {
        assert_eq!(presses(b"\x1b[1;"), []);
        assert_eq!(presses("ü".as_bytes()), []);
        assert_eq!(presses(b""), []);
    }
}
