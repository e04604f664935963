//! What a PROXY header says: between whom the connection was before a proxy passed it on.

use std::net::SocketAddr;

/// A PROXY header that names both ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyHeader {
    /// The client.
    pub from: SocketAddr,
    /// Where it connected to.
    pub to: SocketAddr,
    /// What else version 2 carries: type, length and value, one after the other.
    pub tlvs: Box<[u8]>,
}

/// The piece that tells of TLS: one byte of flags, four of the certificate's verification, then pieces of its own.
const SSL: u8 = 0x20;

impl ProxyHeader {
    /// The first piece of this type.
    #[must_use]
    pub fn tlv(&self, kind: u8) -> Option<&[u8]> {
        find(&self.tlvs, kind)
    }

    /// The first piece of this type among those of TLS.
    #[must_use]
    pub fn ssl_tlv(&self, kind: u8) -> Option<&[u8]> {
        let (_, inner) = self.tlv(SSL)?.split_at_checked(5)?;
        find(inner, kind)
    }

    /// What came of verifying the client's certificate.
    #[must_use]
    pub fn ssl_verify(&self) -> Option<u32> {
        let verify = self.tlv(SSL)?.get(1..5)?;
        Some(u32::from_be_bytes(verify.try_into().ok()?))
    }
}

/// The value of the first piece of this type; none where the pieces before it do not fit together.
fn find(mut tlvs: &[u8], wanted: u8) -> Option<&[u8]> {
    loop {
        let [kind, high, low, rest @ ..] = tlvs else {
            return None;
        };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let (value, rest) = rest.split_at_checked(length)?;
        if *kind == wanted {
            return Some(value);
        }
        tlvs = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(tlvs: &[u8]) -> ProxyHeader {
        ProxyHeader {
            from: SocketAddr::from(([192, 0, 2, 7], 1)),
            to: SocketAddr::from(([192, 0, 2, 8], 2)),
            tlvs: tlvs.into(),
        }
    }

    #[test]
    fn pieces_are_found_by_type_also_inside_that_of_tls() {
        let it =
            with(b"\x01\x00\x02h2\x20\x00\x0c\x07\x00\x00\x01\x02\x21\x00\x04TLSv\x02\x00\x00");
        assert_eq!(it.tlv(1), Some(&b"h2"[..]));
        assert_eq!(it.tlv(2), Some(&b""[..]));
        assert_eq!(it.tlv(5), None);
        assert_eq!(it.ssl_tlv(0x21), Some(&b"TLSv"[..]));
        assert_eq!(it.ssl_tlv(0x22), None);
        assert_eq!(it.ssl_verify(), Some(0x102));
    }

    #[test]
    fn pieces_that_do_not_fit_are_none() {
        assert_eq!(with(b"\x01\x00\x05h2").tlv(1), None);
        assert_eq!(with(b"\x01\x00").tlv(1), None);
        assert_eq!(with(b"\x02\xff\xff\x01\x00\x00").tlv(1), None);
        assert_eq!(with(b"\x20\x00\x02\x01\x00").ssl_verify(), None);
        assert_eq!(with(b"\x20\x00\x02\x01\x00").ssl_tlv(0x21), None);
        assert_eq!(with(b"").ssl_verify(), None);
    }
}
