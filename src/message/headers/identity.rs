//! Fields in which somebody says who a client is, and how and for what it came.
//!
//! Backends read them because the proxy before them writes them. A client can write them as well, so whoever is not
//! believed does not get them past us; `proxy_set_header` can still say what goes out under such a name.

use http::HeaderName;

/// Whether a field with this name speaks for a client.
// Asked of every field of every request: nearly all are told by their first letters.
#[must_use]
pub fn speaks_for_client(name: &HeaderName) -> bool {
    let name = name.as_str();
    match name.as_bytes() {
        [b'x', b'-', rest @ ..] => match rest {
            [b'f', b'o', ..] => rest.starts_with(b"forwarded-"),
            [b's', b's', ..] => rest.starts_with(b"ssl-client-"),
            _ => matches!(
                name,
                "x-appengine-remote-addr"
                    | "x-appengine-user-ip"
                    | "x-arr-clientcert"
                    | "x-azure-clientip"
                    | "x-azure-socketip"
                    | "x-client-ip"
                    | "x-cluster-client-ip"
                    | "x-envoy-external-address"
                    | "x-envoy-peer-metadata"
                    | "x-original-forwarded-for"
                    | "x-original-host"
                    | "x-originating-ip"
                    | "x-proxyuser-ip"
                    | "x-real-ip"
                    | "x-real-port"
                    | "x-remote-addr"
                    | "x-remote-ip"
                    | "x-scheme"
                    | "x-url-scheme"
            ),
        },
        [b'c' | b'f' | b'p' | b't' | b'w', ..] => matches!(
            name,
            "cf-connecting-ip"
                | "cf-connecting-ipv6"
                | "cf-pseudo-ipv4"
                | "client-ip"
                | "cloudfront-viewer-address"
                | "fastly-client-ip"
                | "fly-client-ip"
                | "forwarded"
                | "front-end-https"
                | "proxy-client-ip"
                | "true-client-ip"
                | "wl-proxy-client-ip"
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_a_client_is_told_from_what_does_not() {
        let speaks = |name| speaks_for_client(&HeaderName::from_static(name));
        for name in [
            "x-forwarded-port",
            "x-forwarded-client-cert",
            "x-ssl-client-verify",
            "x-client-ip",
            "true-client-ip",
            "cf-connecting-ip",
            "forwarded",
        ] {
            assert!(speaks(name), "{name}");
        }
        for name in [
            "accept",
            "cookie",
            "content-type",
            "from",
            "x-api-key",
            "x-forwarder",
            "x-request-id",
            "x-client-version",
            "traceparent",
        ] {
            assert!(!speaks(name), "{name}");
        }
    }
}
