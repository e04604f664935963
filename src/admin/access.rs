//! Who may read and who may change something through the admin listener.
//!
//! On this machine reading is free. Everything else needs the token: reading from elsewhere, and changes from anywhere. A
//! browser on this machine reaches loopback for every page open in it, so the host name of a request must be a local one,
//! and a change must not come from a page of another origin.

use std::net::IpAddr;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use http::{HeaderMap, StatusCode, header};

use super::response::ApiError;
use crate::config::Secret;

/// What a call needs permission for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Privilege {
    Change,
    Read,
}

/// Admits a call, or says what is missing; `token` is the configured one.
pub(super) fn check(
    privilege: Privilege,
    headers: &HeaderMap,
    remote: IpAddr,
    token: Option<&Secret>,
) -> Result<(), ApiError> {
    let has_token = match (headers.get(header::AUTHORIZATION), token) {
        (Some(given), Some(token)) => {
            if !is_token(given.as_bytes(), token) {
                return Err(ApiError::new(StatusCode::UNAUTHORIZED, "wrong token"));
            }
            true
        }
        _ => false,
    };
    let is_local = remote.to_canonical().is_loopback() && is_local_name(headers);
    match (privilege, token) {
        (Privilege::Read, _) if has_token => Ok(()),
        (Privilege::Read, _) if is_local => not_embedded(headers),
        (Privilege::Change, Some(_)) if has_token => same_origin(headers),
        (_, Some(_)) => Err(ApiError::new(
            StatusCode::UNAUTHORIZED,
            "a token is needed: Authorization: Bearer ...",
        )),
        (Privilege::Change, None) => Err(forbidden(
            "changes are off because no token is configured: set `admin.token`",
        )),
        (Privilege::Read, None) => Err(forbidden(
            "only from this machine, by its address or as localhost, because no token is configured: set `admin.token`",
        )),
    }
}

fn forbidden(error: &str) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, error)
}

fn is_token(given: &[u8], token: &Secret) -> bool {
    let Some((scheme, given)) = given.split_at_checked("Bearer ".len()) else {
        return false;
    };
    // Hashed, so that the time it takes does not even reveal the length.
    let [given, token] = [given, token.expose().as_bytes()].map(|secret| digest(&SHA256, secret));
    scheme.eq_ignore_ascii_case(b"Bearer ")
        && verify_slices_are_equal(given.as_ref(), token.as_ref()).is_ok()
}

/// Whether `Host` is a name that foreign DNS cannot point here.
fn is_local_name(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else {
        return true;
    };
    let Ok(authority) = http::uri::Authority::try_from(host.as_bytes()) else {
        return false;
    };
    let name = authority.host();
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// A page of another origin may link here but not fetch: it could not read the response, and would hold one of the few
/// places of a stream.
fn not_embedded(headers: &HeaderMap) -> Result<(), ApiError> {
    let is = |name, value: &[u8]| {
        let field = headers.get(name);
        field.is_some_and(|field| field.as_bytes() == value)
    };
    let foreign = is(SEC_FETCH_SITE, b"cross-site") || is(SEC_FETCH_SITE, b"same-site");
    match foreign && !is(SEC_FETCH_MODE, b"navigate") {
        false => Ok(()),
        true => Err(forbidden("pages of another origin may not read this")),
    }
}

/// A change comes from a page of this listener, or from no page.
fn same_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    let site = headers.get(SEC_FETCH_SITE);
    let own_site = site.is_none_or(|site| matches!(site.as_bytes(), b"none" | b"same-origin"));
    let own_origin = headers.get(header::ORIGIN).is_none_or(|origin| {
        let host = headers.get(header::HOST).map(|host| host.as_bytes());
        [&b"http://"[..], b"https://"].into_iter().any(|scheme| {
            let authority = origin.as_bytes().strip_prefix(scheme);
            authority.is_some_and(|it| host.is_some_and(|host| it.eq_ignore_ascii_case(host)))
        })
    });
    match own_site && own_origin {
        true => Ok(()),
        false => Err(forbidden("pages of another origin may not change anything")),
    }
}

const SEC_FETCH_MODE: &str = "sec-fetch-mode";
const SEC_FETCH_SITE: &str = "sec-fetch-site";

#[cfg(test)]
mod tests {

    use super::*;
    use crate::admin::response::ApiResponse;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let fields = fields.iter();
        fields
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect()
    }

    fn status(
        privilege: Privilege,
        fields: &[(&'static str, &str)],
        from: &str,
        token: Option<&str>,
    ) -> Option<u16> {
        let token = token.map(Secret::new);
        let admitted = check(
            privilege,
            &headers(fields),
            from.parse().unwrap(),
            token.as_ref(),
        );
        let response: ApiResponse = admitted.err()?.into();
        Some(response.status().as_u16())
    }

    const NEAR: &str = "127.0.0.1";
    const FAR: &str = "192.0.2.1";
    const RIGHT: (&str, &str) = ("authorization", "Bearer secret");

    #[test]
    fn a_page_of_another_origin_may_link_here_but_not_fetch() {
        let fetched = |site: &str, mode: &str| {
            let fields = [
                ("host", "localhost:9900"),
                ("sec-fetch-site", site),
                ("sec-fetch-mode", mode),
            ];
            status(Privilege::Read, &fields, NEAR, None)
        };
        assert_eq!(fetched("cross-site", "no-cors"), Some(403));
        assert_eq!(fetched("same-site", "cors"), Some(403));
        assert_eq!(fetched("cross-site", "navigate"), None);
        assert_eq!(fetched("same-origin", "cors"), None);
        assert_eq!(fetched("none", "navigate"), None);
    }

    #[test]
    fn reading_needs_a_token_from_other_machines_only() {
        let token = Some("secret");
        for host in ["localhost:9900", "127.0.0.1", "[::1]:9900"] {
            let host = [("host", host)];
            assert_eq!(status(Privilege::Read, &host, NEAR, token), None);
            assert_eq!(
                status(Privilege::Read, &host, "::ffff:127.0.0.1", None),
                None
            );
            assert_eq!(status(Privilege::Read, &host, FAR, token), Some(401));
            assert_eq!(status(Privilege::Read, &host, FAR, None), Some(403));
        }
        let rebound = [("host", "evil.example:9900")];
        assert_eq!(status(Privilege::Read, &rebound, NEAR, token), Some(401));
        assert_eq!(status(Privilege::Read, &rebound, NEAR, None), Some(403));
        assert_eq!(
            status(Privilege::Read, &[RIGHT, rebound[0]], FAR, token),
            None
        );
    }

    #[test]
    fn changing_needs_a_token_everywhere() {
        let change = |fields: &[_], token| status(Privilege::Change, fields, NEAR, token);
        assert_eq!(change(&[], Some("secret")), Some(401));
        assert_eq!(change(&[RIGHT], Some("secret")), None);
        assert_eq!(change(&[RIGHT], None), Some(403));
        assert_eq!(change(&[RIGHT], Some("other")), Some(401));
    }

    #[test]
    fn a_wrong_token_is_refused_even_where_none_is_needed() {
        for wrong in [
            "Bearer secre",
            "Bearer secret ",
            "Basic secret",
            "secret",
            "",
        ] {
            let wrong = [("authorization", wrong)];
            assert_eq!(
                status(Privilege::Read, &wrong, NEAR, Some("secret")),
                Some(401)
            );
            assert_eq!(status(Privilege::Read, &wrong, NEAR, None), None);
        }
        let lower = [("authorization", "bearer secret")];
        assert_eq!(status(Privilege::Read, &lower, FAR, Some("secret")), None);
    }

    #[test]
    fn a_page_of_another_origin_changes_nothing() {
        let change = |fields: &[(&'static str, &str)]| {
            let mut all = vec![RIGHT, ("host", "localhost:9900")];
            all.extend(fields);
            status(Privilege::Change, &all, NEAR, Some("secret"))
        };
        assert_eq!(change(&[("origin", "http://localhost:9900")]), None);
        assert_eq!(change(&[("sec-fetch-site", "same-origin")]), None);
        for origin in ["http://evil.example", "null", "http://localhost:80", ""] {
            assert_eq!(change(&[("origin", origin)]), Some(403), "{origin}");
        }
        for site in ["cross-site", "same-site", ""] {
            assert_eq!(change(&[("sec-fetch-site", site)]), Some(403), "{site}");
        }
    }
}
