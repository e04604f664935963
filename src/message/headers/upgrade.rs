//! A client's wish to speak something else than HTTP, and a backend's consent.
//!
//! Both belong to one connection and so would be removed; passed on, they make a tunnel. Only a wish that can mean one
//! thing is passed on: of HTTP/1.1, said in `Connection` too, without a body that would come between. Never `h2c`:
//! what is asked in there would go past every limit.

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Version, header};

/// The protocols a client would rather speak.
#[derive(Debug)]
pub struct Upgrade(Vec<u8>);

impl Upgrade {
    /// What a request without a body asks for, if it may be passed on.
    #[must_use]
    pub fn asked(head: &Parts) -> Option<Self> {
        let headers = &head.headers;
        // hyper leaves its mark on requests that ask for it: no field is looked for in the others.
        if head.extensions.is_empty() || head.version != Version::HTTP_11 || !names_upgrade(headers)
        {
            return None;
        }
        let mut wanted = Vec::new();
        let others = protocols(headers).filter(|protocol| !is_h2c(protocol));
        for protocol in others.take(MOST_PROTOCOLS) {
            if !wanted.is_empty() {
                wanted.extend_from_slice(b", ");
            }
            wanted.extend_from_slice(protocol);
        }
        (!wanted.is_empty()).then_some(Self(wanted))
    }

    /// Whether the fields of a 101 agree to something that was asked for.
    #[must_use]
    pub fn is_met_by(&self, headers: &HeaderMap) -> bool {
        let mut agreed = protocols(headers).peekable();
        agreed.peek().is_some()
            && agreed
                .all(|protocol| list(&self.0).any(|asked| asked.eq_ignore_ascii_case(protocol)))
    }

    /// The wish as it goes on.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"connection: upgrade\r\nupgrade: ");
        out.extend_from_slice(&self.0);
        out.extend_from_slice(b"\r\n");
    }
}

/// Puts back into a cleaned 101 what makes it one.
pub fn restore_upgrade(headers: &mut HeaderMap, agreed: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, agreed);
    // There is no body, and what follows is none.
    headers.remove(header::CONTENT_LENGTH);
}

fn names_upgrade(headers: &HeaderMap) -> bool {
    let mut fields = headers.get_all(header::CONNECTION).iter();
    fields.any(|options| {
        list(options.as_bytes()).any(|option| option.eq_ignore_ascii_case(b"upgrade"))
    })
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let fields = headers.get_all(header::UPGRADE).iter();
    fields.flat_map(|field| list(field.as_bytes()))
}

fn is_h2c(protocol: &[u8]) -> bool {
    protocol.eq_ignore_ascii_case(b"h2c")
}

fn list(field: &[u8]) -> impl Iterator<Item = &[u8]> {
    field
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|item| !item.is_empty())
}

/// How many protocols of a client's list go on, in its order. What a backend agrees to is compared with each of
/// them.
const MOST_PROTOCOLS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::testing::map;

    fn asked(fields: &[(&'static str, &'static str)]) -> Option<String> {
        let (mut head, ()) = http::Request::new(()).into_parts();
        head.headers = map(fields);
        // As hyper does.
        head.extensions.insert(());
        let upgrade = Upgrade::asked(&head)?;
        Some(String::from_utf8(upgrade.0).unwrap())
    }

    #[test]
    fn a_wish_is_passed_on_where_both_fields_say_it() {
        let wish = |upgrade, connection| asked(&[("upgrade", upgrade), ("connection", connection)]);
        assert_eq!(wish("websocket", "Upgrade").as_deref(), Some("websocket"));
        assert_eq!(
            wish("a/1 ,, B", "keep-alive, UPGRADE").as_deref(),
            Some("a/1, B")
        );
        assert_eq!(
            wish("h2c, websocket", "upgrade").as_deref(),
            Some("websocket")
        );
        assert_eq!(wish("H2C", "Upgrade, HTTP2-Settings"), None);
        assert_eq!(wish("websocket", "keep-alive"), None);
        assert_eq!(wish("", "upgrade"), None);
        assert_eq!(asked(&[("connection", "upgrade")]), None);
    }

    #[test]
    fn older_clients_cannot_ask() {
        let (mut head, ()) = http::Request::new(()).into_parts();
        head.headers = map(&[("upgrade", "a"), ("connection", "upgrade")]);
        head.extensions.insert(());
        assert!(Upgrade::asked(&head).is_some());
        head.version = Version::HTTP_10;
        assert!(Upgrade::asked(&head).is_none());
    }

    #[test]
    fn of_many_protocols_the_first_go_on() {
        let many: Vec<_> = (0..100).map(|number| format!("p{number}")).collect();
        let (mut head, ()) = http::Request::new(()).into_parts();
        head.headers = map(&[("connection", "upgrade")]);
        let many = HeaderValue::try_from(many.join(",")).unwrap();
        head.headers.insert(header::UPGRADE, many);
        head.extensions.insert(());
        let upgrade = Upgrade::asked(&head).unwrap();
        assert!(upgrade.is_met_by(&map(&[("upgrade", "p0")])));
        assert!(upgrade.is_met_by(&map(&[("upgrade", "p15")])));
        assert!(!upgrade.is_met_by(&map(&[("upgrade", "p16")])));
    }

    #[test]
    fn consent_is_to_what_was_asked() {
        let upgrade = Upgrade(b"websocket, a/1".to_vec());
        for (agreed, met) in [
            ("WebSocket", true),
            ("a/1", true),
            ("h2c", false),
            ("", false),
        ] {
            assert_eq!(
                upgrade.is_met_by(&map(&[("upgrade", agreed)])),
                met,
                "{agreed}"
            );
        }
        assert!(!upgrade.is_met_by(&map(&[])));
        assert!(!upgrade.is_met_by(&map(&[("upgrade", "websocket, b")])));
    }
}
