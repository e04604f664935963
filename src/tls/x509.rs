//! A reader of the parts of a certificate that are needed here: subject, issuer, serial number, validity and key.
//!
//! Whether it can be trusted is for rustls to decide; this reader only has to find the right parts.
//!
//! Names are written as nginx does: RFC 2253, the last part first.

/// The parts of a certificate, each as it is encoded.
#[derive(Debug, Clone, Copy)]
pub(super) struct X509Parts<'a> {
    /// The content of its number.
    pub(super) serial: &'a [u8],
    /// The content of its issuer's name.
    pub(super) issuer: &'a [u8],
    /// The content of its subject's name.
    pub(super) subject: &'a [u8],
    /// From when it holds, in seconds since the epoch.
    pub(super) not_before: i64,
    /// Until when it holds.
    pub(super) not_after: i64,
    /// Its public key, with the kind of it: a whole `SubjectPublicKeyInfo`.
    pub(super) key: &'a [u8],
    /// Whether it is of the first version, which has no extensions.
    pub(super) is_first_version: bool,
    /// What its issuer has signed.
    pub(super) signed: &'a [u8],
    /// The content of the name of the algorithm it was signed with.
    pub(super) algorithm: &'a [u8],
    /// The signature.
    pub(super) signature: &'a [u8],
}

impl<'a> X509Parts<'a> {
    /// Reads one; `None` for what is not a certificate.
    pub(super) fn parse(der: &'a [u8]) -> Option<Self> {
        let mut outer = DerReader(DerReader(der).content(SEQUENCE)?);
        let all = outer.next().filter(|all| all.tag == SEQUENCE)?;
        let mut signed = DerReader(all.content);
        let is_first_version = signed.peek() != Some(VERSION);
        if !is_first_version {
            signed.next()?;
        }
        let serial = signed.content(INTEGER)?;
        signed.content(SEQUENCE)?;
        let issuer = signed.content(SEQUENCE)?;
        let mut validity = DerReader(signed.content(SEQUENCE)?);
        Some(Self {
            serial,
            issuer,
            not_before: time(validity.next()?)?,
            not_after: time(validity.next()?)?,
            subject: signed.content(SEQUENCE)?,
            key: signed.next().filter(|key| key.tag == SEQUENCE)?.whole,
            is_first_version,
            signed: all.whole,
            algorithm: outer.content(SEQUENCE)?,
            // No bit of its last byte is left over.
            signature: outer.content(BIT_STRING)?.strip_prefix(&[0])?,
        })
    }

    /// Whether it names itself as its issuer.
    pub(super) fn is_self_issued(&self) -> bool {
        self.subject == self.issuer
    }
}

/// From when a list of revoked certificates holds, in seconds since the epoch.
pub(super) fn list_since(der: &[u8]) -> Option<i64> {
    let mut outer = DerReader(der);
    let mut signed = DerReader(DerReader(outer.content(SEQUENCE)?).content(SEQUENCE)?);
    if signed.peek() == Some(INTEGER) {
        signed.next()?;
    }
    signed.content(SEQUENCE)?;
    signed.content(SEQUENCE)?;
    time(signed.next()?)
}

/// Elements one after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct DerReader<'a>(pub(super) &'a [u8]);

/// One element: its tag, its content, and all of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct DerElement<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
    pub(super) whole: &'a [u8],
}

impl<'a> DerReader<'a> {
    /// The content of the next element, if it has this tag.
    pub(super) fn content(&mut self, tag: u8) -> Option<&'a [u8]> {
        let element = self.next()?;
        (element.tag == tag).then_some(element.content)
    }

    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }
}

impl<'a> Iterator for DerReader<'a> {
    type Item = DerElement<'a>;

    fn next(&mut self) -> Option<DerElement<'a>> {
        let tag = *self.0.first()?;
        let first = *self.0.get(1)?;
        let (header, length) = match first {
            0..=0x7f => (2, usize::from(first)),
            // Four bytes of length are more than any certificate needs.
            0x81..=0x84 => {
                let bytes = usize::from(first & 0x7f);
                let digits = self.0.get(2..2 + bytes)?;
                let length = digits
                    .iter()
                    .fold(0, |length, byte| length << 8 | usize::from(*byte));
                (2 + bytes, length)
            }
            _ => return None,
        };
        let end = header.checked_add(length)?;
        let whole = self.0.get(..end)?;
        self.0 = self.0.get(end..)?;
        Some(DerElement {
            tag,
            content: whole.get(header..)?,
            whole,
        })
    }
}

/// An element with this tag and this content.
pub(super) fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let zeros = length.iter().take_while(|byte| **byte == 0).count();
    let digits = &length[zeros.min(length.len() - 1)..];
    let mut whole = vec![tag];
    if content.len() > 0x7f {
        // A length has at most eight bytes.
        whole.push(0x80 | digits.len() as u8);
    }
    whole.extend_from_slice(digits);
    whole.extend_from_slice(content);
    whole
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`.
fn time(element: DerElement<'_>) -> Option<i64> {
    let text = std::str::from_utf8(element.content).ok()?;
    let text = text.strip_suffix('Z')?;
    // Digits and nothing else: `i64::from_str` would take a sign.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let (year, rest) = match element.tag {
        UTC_TIME => {
            let year = number(0..2)?;
            // RFC 5280: what is written with two digits lies between 1950 and 2049.
            (if year < 50 { 2000 + year } else { 1900 + year }, 2)
        }
        GENERALIZED_TIME => (number(0..4)?, 4),
        _ => return None,
    };
    let part = |at: usize| number(rest + at..rest + at + 2);
    let date = jiff::civil::Date::new(
        i16::try_from(year).ok()?,
        i8::try_from(part(0)?).ok()?,
        i8::try_from(part(2)?).ok()?,
    );
    let clock = jiff::civil::Time::new(
        i8::try_from(part(4)?).ok()?,
        i8::try_from(part(6)?).ok()?,
        i8::try_from(part(8)?).ok()?,
        0,
    );
    let moment = date.ok().filter(|_| digits)?.to_datetime(clock.ok()?);
    let moment = moment.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    Some(moment.timestamp().as_second())
}

pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;
pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const VERSION: u8 = 0xa0;

/// A name as RFC 2253 writes it; what cannot be read of it is left out.
pub(super) fn text(name: &[u8]) -> String {
    let parts: Vec<String> = DerReader(name)
        .filter(|part| part.tag == SET)
        .map(|part| {
            let pairs: Vec<_> = DerReader(part.content)
                .filter(|pair| pair.tag == SEQUENCE)
                .filter_map(|pair| attribute(pair.content))
                .collect();
            pairs.join("+")
        })
        .collect();
    parts.into_iter().rev().collect::<Vec<_>>().join(",")
}

/// A serial number, in hexadecimal.
pub(super) fn serial(bytes: &[u8]) -> String {
    // A zero in front only marks the number as positive.
    match bytes {
        [0, rest @ ..] if !rest.is_empty() => hex(rest),
        bytes => hex(bytes),
    }
}

fn attribute(pair: &[u8]) -> Option<String> {
    let mut pair = DerReader(pair);
    let kind = pair.content(OBJECT_IDENTIFIER)?;
    let value = pair.next()?;
    let known = NAMES.iter().find(|(bytes, _)| *bytes == kind);
    let Some((_, name)) = known else {
        return Some(format!("{}=#{}", dotted(kind)?, hex(value.whole)));
    };
    Some(match characters(value) {
        Some(characters) => format!("{name}={}", escaped(&characters)),
        None => format!("{name}=#{}", hex(value.whole)),
    })
}

/// What a text stands for, by the type it is written in.
fn characters(value: DerElement<'_>) -> Option<String> {
    let bytes = value.content;
    match value.tag {
        // UTF8String
        0x0c => String::from_utf8(bytes.to_vec()).ok(),
        // NumericString, PrintableString, T61String, IA5String, VisibleString: all within Latin-1.
        0x12 | 0x13 | 0x14 | 0x16 | 0x1a => Some(bytes.iter().copied().map(char::from).collect()),
        // BMPString
        0x1e => {
            let units = bytes
                .chunks_exact(2)
                .map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
            char::decode_utf16(units).collect::<Result<_, _>>().ok()
        }
        _ => None,
    }
}

fn escaped(characters: &str) -> String {
    let mut text = String::with_capacity(characters.len());
    let last = characters.chars().count().saturating_sub(1);
    for (index, character) in characters.chars().enumerate() {
        let is_special = match character {
            ' ' => index == 0 || index == last,
            '#' => index == 0,
            _ => ",+\"\\<>;".contains(character),
        };
        match character {
            _ if is_special => text.extend(['\\', character]),
            ' '..='~' => text.push(character),
            _ => {
                for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                    text += &format!("\\{byte:02X}");
                }
            }
        }
    }
    text
}

/// An object identifier; `None` for one with a number of more than 128 bits, the length of UUIDs.
fn dotted(bytes: &[u8]) -> Option<String> {
    let mut arcs: Vec<u128> = Vec::new();
    let mut arc: u128 = 0;
    for byte in bytes {
        arc = arc.checked_mul(0x80)? | u128::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            arcs.push(arc);
            arc = 0;
        }
    }
    let (first, rest) = arcs.split_first()?;
    let root = (first / 40).min(2);
    let mut text = format!("{root}.{}", first - root * 40);
    for arc in rest {
        text += &format!(".{arc}");
    }
    Some(text)
}

/// Bytes in hexadecimal, as OpenSSL dumps them.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// OpenSSL's short names.
const NAMES: [(&[u8], &str); 15] = [
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 4], "SN"),
    (&[0x55, 4, 5], "serialNumber"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 9], "street"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x55, 4, 12], "title"),
    (&[0x55, 4, 42], "GN"),
    (&[0x55, 4, 97], "organizationIdentifier"),
    (
        &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1],
        "emailAddress",
    ),
    (
        &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1],
        "UID",
    ),
    (
        &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25],
        "DC",
    ),
];

#[cfg(test)]
mod tests {

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_certificate_says_when_it_holds() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut wanted = rcgen::CertificateParams::new(vec!["a.example".into()]).unwrap();
        wanted.not_before = rcgen::date_time_ymd(2020, 2, 29);
        wanted.not_after = rcgen::date_time_ymd(2120, 1, 1);
        let made = wanted.self_signed(&key).unwrap();
        let read = X509Parts::parse(made.der()).unwrap();
        assert_eq!(read.not_before, 1_582_934_400);
        assert_eq!(read.not_after, 4_733_510_400);
        assert_eq!(read.subject, read.issuer);
        assert!(!read.is_first_version);
    }

    #[test]
    fn an_element_reads_as_it_was_written() {
        for length in [0, 1, 0x7f, 0x80, 0xff, 0x100, 70_000] {
            let content = vec![7; length];
            let whole = element(SEQUENCE, &content);
            let mut read = DerReader(&whole);
            assert_eq!(read.content(SEQUENCE), Some(&content[..]), "{length}");
            assert!(read.next().is_none());
        }
    }

    #[test]
    fn a_time_has_no_sign() {
        let of = |text: &[u8]| {
            let whole = element(UTC_TIME, text);
            time(DerReader(&whole).next().unwrap())
        };
        assert_eq!(of(b"700101000000Z"), Some(0));
        assert_eq!(of(b"70+101000000Z"), None);
        assert_eq!(of(b"-10101000000Z"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            X509Parts::parse(&bytes);
        }
    }
}

#[cfg(test)]
mod dn_tests {

    use rcgen::{DistinguishedName, DnType};

    use super::{X509Parts, *};

    fn named(parts: &[(DnType, &str)]) -> String {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut wanted = rcgen::CertificateParams::default();
        wanted.distinguished_name = DistinguishedName::new();
        for (kind, value) in parts {
            wanted.distinguished_name.push(kind.clone(), *value);
        }
        let made = wanted.self_signed(&key).unwrap();
        text(X509Parts::parse(made.der()).unwrap().subject)
    }

    #[test]
    fn the_last_part_comes_first_and_what_could_mislead_is_escaped() {
        let parts = [
            (DnType::CountryName, "DE"),
            (DnType::OrganizationName, "Müller, Söhne + Co"),
            (DnType::CommonName, " #1\\ "),
        ];
        assert_eq!(
            named(&parts),
            "CN=\\ #1\\\\\\ ,O=M\\C3\\BCller\\, S\\C3\\B6hne \\+ Co,C=DE"
        );
    }

    #[test]
    fn what_has_no_name_is_shown_by_its_number() {
        let parts = [(DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 99_999]), "x")];
        assert_eq!(named(&parts), "1.3.6.1.4.1.99999=#0C0178");
    }

    /// What is cut off at 64 bits looks like another's.
    #[test]
    fn a_number_too_large_to_show_is_not_cut_off() {
        let with = |arc: &[u8]| [&[0x69][..], arc].concat();
        let most = [&[0x83][..], &[0xff; 17], &[0x7f]].concat();
        let shown = format!("2.25.{}", u128::MAX);
        assert_eq!(dotted(&with(&most)), Some(shown));
        let more = [&[0x84][..], &[0x80; 17], &[0x03]].concat();
        assert_eq!(dotted(&with(&more)), None);
    }

    #[test]
    fn a_serial_number_shows_no_sign() {
        assert_eq!(serial(&[0, 0xff, 0x0a]), "FF0A");
        assert_eq!(serial(&[0]), "00");
    }
}
