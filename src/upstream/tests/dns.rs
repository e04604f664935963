//! DNS responses as servers send them, and malformed ones.

use proptest::prelude::*;

use super::{DnsError, DnsName, DnsQuestion, DnsReply, RecordType, *};

fn question() -> DnsQuestion {
    DnsQuestion {
        id: 0x1234,
        name: DnsName::new("app.example.com").unwrap(),
        kind: RecordType::A,
    }
}

/// A message being written.
struct Message(Vec<u8>);

impl Message {
    /// The answer to a question, with these flags and so many records to come.
    fn to(question: &DnsQuestion, flags: u16, records: u16) -> Self {
        let mut bytes = question.bytes();
        bytes[2..4].copy_from_slice(&flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&records.to_be_bytes());
        Self(bytes)
    }

    /// A record of this name, written with its labels or as a reference.
    fn record(mut self, name: &[u8], kind: u16, ttl: u32, data: &[u8]) -> Self {
        self.0.extend(name);
        self.0.extend(kind.to_be_bytes());
        self.0.extend(1_u16.to_be_bytes());
        self.0.extend(ttl.to_be_bytes());
        self.0
            .extend(u16::try_from(data.len()).unwrap().to_be_bytes());
        self.0.extend(data);
        self
    }
}

/// To the name in the question.
const ASKED: &[u8] = &[0xc0, 12];
const WELL: u16 = 0x8180;

fn name(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in text.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

fn found(addresses: &[[u8; 4]], ttl: u32) -> Result<DnsReply, DnsError> {
    let addresses = addresses.iter().map(|address| IpAddr::from(*address));
    Ok(DnsReply::Addresses(addresses.collect(), ttl))
}

#[test]
fn a_question_is_what_the_standard_says() {
    let expected = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03app\x07example\x03com\x00\x00\x01\x00\x01";
    assert_eq!(question().bytes(), expected);
}

#[test]
fn names_that_cannot_be_asked_for_are_none() {
    for wrong in ["", ".", "a..b", &"x".repeat(64), &"abcdefg.".repeat(32)] {
        assert_eq!(DnsName::new(wrong), None, "{wrong}");
    }
    assert_eq!(DnsName::new("a.b."), DnsName::new("A.B"));
}

#[test]
fn all_addresses_are_found_and_hold_as_long_as_the_first_to_go() {
    let question = question();
    let message = Message::to(&question, WELL, 3)
        .record(ASKED, 1, 30, &[10, 0, 0, 1])
        .record(&name("APP.example.com"), 1, 20, &[10, 0, 0, 2])
        .record(ASKED, 1, 40, &[10, 0, 0, 3]);
    let expected = found(&[[10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 3]], 20);
    assert_eq!(question.reply(&message.0), expected);
}

#[test]
fn aliases_are_followed_in_whatever_order_they_come() {
    let question = question();
    let message = Message::to(&question, WELL, 4)
        .record(&name("b.example.com"), 1, 60, &[10, 0, 0, 9])
        .record(&name("other.example.com"), 1, 1, &[6, 6, 6, 6])
        .record(&name("a.example.com"), 5, 5, &name("b.example.com"))
        .record(ASKED, 5, 90, &name("a.example.com"));
    assert_eq!(question.reply(&message.0), found(&[[10, 0, 0, 9]], 5));
}

#[test]
fn an_alias_to_itself_leads_nowhere() {
    let question = question();
    let message = Message::to(&question, WELL, 1).record(ASKED, 5, 5, ASKED);
    assert_eq!(question.reply(&message.0), found(&[], 0));
}

#[test]
fn ipv6_is_asked_for_and_found() {
    let question = DnsQuestion {
        kind: RecordType::Aaaa,
        ..question()
    };
    let address = Ipv6Addr::LOCALHOST;
    let message = Message::to(&question, WELL, 2)
        .record(ASKED, 1, 9, &[10, 0, 0, 1])
        .record(ASKED, 28, 7, &address.octets());
    let expected = DnsReply::Addresses(vec![address.into()], 7);
    assert_eq!(question.reply(&message.0), Ok(expected));
}

#[test]
fn only_an_answer_to_this_very_question_counts() {
    let question = question();
    let whole = Message::to(&question, WELL, 1).record(ASKED, 1, 30, &[10, 0, 0, 1]);
    let mut others = [(); 3].map(|()| self::question());
    others[0].name = DnsName::new("evil.example.com").unwrap();
    others[1].kind = RecordType::Aaaa;
    others[2].id = 0x1235;
    for other in others {
        assert_eq!(other.reply(&whole.0), Err(DnsError::Stray), "{other:?}");
    }
    // A question sent back, and another operation.
    for flags in [0x0100, 0x8980] {
        let message = Message::to(&question, flags, 0);
        assert_eq!(question.reply(&message.0), Err(DnsError::Stray));
    }
}

#[test]
fn what_a_server_says_of_itself_is_heard() {
    let question = question();
    for (flags, expected) in [
        (WELL, found(&[], 0)),
        (WELL | 3, found(&[], 0)),
        (WELL | 2, Ok(DnsReply::Failure(2))),
        (WELL | 5, Ok(DnsReply::Failure(5))),
        (WELL | 0x0200, Ok(DnsReply::Truncated)),
    ] {
        let message = Message::to(&question, flags, 0);
        assert_eq!(question.reply(&message.0), expected, "{flags:#x}");
    }
}

#[test]
fn what_is_broken_is_not_believed() {
    let question = question();
    let whole = Message::to(&question, WELL, 1).record(ASKED, 1, 30, &[10, 0, 0, 1]);
    for end in question.bytes().len()..whole.0.len() {
        let reply = question.reply(&whole.0[..end]);
        assert_eq!(reply, Err(DnsError::Malformed), "cut at {end}");
    }
    let proxy_pass = u8::try_from(question.bytes().len()).unwrap();
    let long = [name(&"x".repeat(63)), vec![0xc0, 12]].concat();
    for (kind, owner, data) in [
        // An address of three bytes.
        (1, ASKED, &[10, 0, 0][..]),
        // A name that goes on where it is.
        (1, &[0xc0, proxy_pass], &[10, 0, 0, 1]),
        // A label longer than any.
        (1, &[0x80, 1, 0], &[10, 0, 0, 1]),
        // An alias that does not end where its record does.
        (5, ASKED, &long),
    ] {
        let message = Message::to(&question, WELL, 1).record(owner, kind, 30, data);
        assert_eq!(question.reply(&message.0), Err(DnsError::Malformed));
    }
}

#[test]
fn a_time_longer_than_any_is_none() {
    let question = question();
    let message = Message::to(&question, WELL, 1).record(ASKED, 1, 0x8000_0000, &[1, 2, 3, 4]);
    assert_eq!(question.reply(&message.0), found(&[[1, 2, 3, 4]], 0));
}

proptest! {
    #[test]
    fn whatever_comes_is_read_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _read = addresses_in("app.example.com", &bytes);
    }

    #[test]
    fn an_answer_that_was_tampered_with_is_read_to_an_end(
        at in 0_usize..200,
        byte: u8,
        cut in 0_usize..200,
    ) {
        let question = question();
        let mut message = Message::to(&question, WELL, 4)
            .record(&name("b.example.com"), 1, 60, &[10, 0, 0, 9])
            .record(&name("a.example.com"), 5, 5, &name("b.example.com"))
            .record(ASKED, 5, 90, &name("a.example.com"))
            .record(ASKED, 46, 90, &[0; 30])
            .0;
        let end = message.len();
        message[at % end] = byte;
        let _read = addresses_in("app.example.com", &message[..end - cut.min(end)]);
    }

    #[test]
    fn every_address_is_found(
        addresses in prop::collection::vec(any::<[u8; 4]>(), 1..60),
        ttl in prop::collection::vec(0_u32..1_000_000, 60),
        aliases in 0_usize..15,
    ) {
        let question = question();
        let records = u16::try_from(addresses.len() + aliases).unwrap();
        let mut message = Message::to(&question, WELL, records);
        let alias = |number: usize| match number {
            0 => ASKED.to_vec(),
            number => name(&format!("a{number}.example.com")),
        };
        for number in 0..aliases {
            message = message.record(&alias(number), 5, 2_000_000, &alias(number + 1));
        }
        for (address, ttl) in addresses.iter().zip(&ttl) {
            message = message.record(&alias(aliases), 1, *ttl, address);
        }
        let least = ttl[..addresses.len()].iter().min().unwrap();
        prop_assert_eq!(question.reply(&message.0), found(&addresses, *least));
    }
}
