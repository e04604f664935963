//! Names of people and machines in certificates, as nginx writes them: RFC 2253, the last part first.

use std::fmt::Write as _;

use super::der::{DerElement, DerReader, OBJECT_IDENTIFIER, SEQUENCE, SET};

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

/// A number of a certificate, in hexadecimal.
pub(super) fn serial(bytes: &[u8]) -> String {
    // A zero in front only says that the number is not below zero.
    let digits = match bytes {
        [0, rest @ ..] if !rest.is_empty() => rest,
        bytes => bytes,
    };
    let mut text = String::with_capacity(digits.len() * 2);
    for byte in digits {
        push(&mut text, format_args!("{byte:02X}"));
    }
    text
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
        let at_an_end = match character {
            ' ' => index == 0 || index == last,
            '#' => index == 0,
            _ => false,
        };
        match character {
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' => {
                text.push('\\');
                text.push(character);
            }
            _ if at_an_end => {
                text.push('\\');
                text.push(character);
            }
            ' '..='~' => text.push(character),
            _ => {
                let mut bytes = [0; 4];
                for byte in character.encode_utf8(&mut bytes).bytes() {
                    push(&mut text, format_args!("\\{byte:02X}"));
                }
            }
        }
    }
    text
}

/// An object identifier; `None` for one whose numbers are larger than anybody's: UUIDs have 128 bits.
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
        push(&mut text, format_args!(".{arc}"));
    }
    Some(text)
}

/// Bytes in hexadecimal, as OpenSSL dumps them.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        push(&mut text, format_args!("{byte:02X}"));
    }
    text
}

fn push(text: &mut String, piece: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _written = text.write_fmt(piece);
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
    use rcgen::{DistinguishedName, DnType};

    use super::*;
    use crate::tls::der::X509Parts;

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
