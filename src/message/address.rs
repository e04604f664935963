//! An address as text.
//!
//! Every connection needs it once, and the standard library's way takes more instructions than accepting the
//! connection does.

use std::net::{IpAddr, Ipv4Addr};

/// As `to_string`, for an address of IPv4 at a tenth of its cost.
pub(super) fn text(address: IpAddr) -> Box<str> {
    match address {
        IpAddr::V4(v4) => {
            let (digits, length) = digits(v4);
            // Digits and points are text.
            str::from_utf8(&digits[..length]).unwrap_or_default().into()
        }
        IpAddr::V6(v6) => v6.to_string().into(),
    }
}

/// An address of IPv4 in digits and points, and how many they are.
fn digits(address: Ipv4Addr) -> ([u8; 15], usize) {
    let mut digits = [0; 15];
    let mut length = 0;
    let mut put = |byte| {
        digits[length] = byte;
        length += 1;
    };
    for (place, octet) in address.octets().into_iter().enumerate() {
        if place > 0 {
            put(b'.');
        }
        if octet >= 100 {
            put(b'0' + octet / 100);
        }
        if octet >= 10 {
            put(b'0' + octet / 10 % 10);
        }
        put(b'0' + octet % 10);
    }
    (digits, length)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn it_is_what_the_standard_library_says() {
        for octet in 0..=255 {
            for octets in [[octet, 1, 22, 255], [255, octet, octet, octet]] {
                let address = IpAddr::from(octets);
                assert_eq!(*text(address), address.to_string());
            }
        }
        let address = IpAddr::V6(Ipv6Addr::LOCALHOST);
        assert_eq!(*text(address), *"::1");
    }
}
