//! What is known of a connection that came inside TLS.
//!
//! Found out once, when the handshake is over, in the words of nginx's variables; a connection without TLS has none.

/// A client's TLS connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsInfo {
    /// `TLSv1.2` or `TLSv1.3`.
    pub protocol: &'static str,
    /// The cipher suite by OpenSSL's name.
    pub cipher: &'static str,
    /// The group of the key exchange; none in a session that was taken up again without one.
    pub curve: Option<&'static str>,
    /// The name the client asked for.
    pub server_name: Option<Box<str>>,
    /// What is spoken inside.
    pub inner: AlpnProtocol,
    /// Whether an earlier session was taken up again.
    pub resumed: bool,
    /// The certificate the client has shown. Boxed: few do.
    pub client: Option<Box<ClientCertificate>>,
}

/// What is spoken inside TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AlpnProtocol {
    /// Nothing was agreed on, which means HTTP/1.
    #[default]
    Unsaid,
    /// HTTP/1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// A client's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// What was thought of it.
    pub verdict: CertificateStatus,
    /// Whom it names, as RFC 2253 writes it.
    pub subject: Box<str>,
    /// Who issued it, as RFC 2253 writes it.
    pub issuer: Box<str>,
    /// Its number, in hexadecimal.
    pub serial: Box<str>,
    /// Its SHA-1, in hexadecimal.
    pub fingerprint: Box<str>,
    /// All of it.
    pub der: Box<[u8]>,
}

/// What is thought of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateStatus {
    /// It leads to a root that is trusted.
    Good,
    /// It does not lead to one; nothing else is wrong with it.
    Unknown(&'static str),
    /// Something is wrong with it.
    Bad(Box<str>),
}

impl TlsInfo {
    /// What is thought of the client's certificate, if there is one.
    #[must_use]
    pub fn verdict(&self) -> Option<&CertificateStatus> {
        self.client.as_ref().map(|client| &client.verdict)
    }
}

impl AlpnProtocol {
    /// Its name in ALPN; empty where none was agreed on.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unsaid => "",
            Self::Http1 => "http/1.1",
            Self::Http2 => "h2",
        }
    }
}

impl ClientCertificate {
    /// The whole of it in PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
        for line in base64(&self.der).as_bytes().chunks(64) {
            text.extend(line.iter().map(|byte| char::from(*byte)));
            text.push('\n');
        }
        text.push_str("-----END CERTIFICATE-----\n");
        text
    }
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut word = [0; 3];
        word[..group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes([0, word[0], word[1], word[2]]);
        for place in 0..4 {
            let digit = (bits >> (18 - 6 * place)) & 63;
            text.push(match place <= group.len() {
                true => char::from(ALPHABET[digit as usize]),
                false => '=',
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads_what_is_left_over() {
        let made: Vec<_> = ["", "f", "fo", "foo", "foob"]
            .iter()
            .map(|text| base64(text.as_bytes()))
            .collect();
        assert_eq!(made, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]);
    }
}
