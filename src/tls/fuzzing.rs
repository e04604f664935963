//! The way in for the fuzzer: a certificate read from its bytes alone.

use super::x509::{self, X509Parts};

/// A certificate's subject, issuer and serial number; `None` for what is not one.
pub fn names(der: &[u8]) -> Option<[String; 3]> {
    let read = X509Parts::parse(der)?;
    let [subject, issuer] = [read.subject, read.issuer].map(x509::text);
    Some([subject, issuer, x509::serial(read.serial)])
}

#[cfg(test)]
mod tests {

    #[test]
    fn what_is_not_a_certificate_has_no_names() {
        assert_eq!(super::names(b""), None);
        assert_eq!(super::names(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
