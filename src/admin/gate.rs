//! Who may look, and who may change something.
//!
//! From this machine anybody may look. Everything else needs the token: to look from elsewhere, and to change anything
//! from anywhere. A browser on this machine reaches loopback for whichever page is open in it, so a page's name for us
//! has to be a local one, and what changes something must not come from a page of another origin.

use std::net::IpAddr;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use http::{HeaderMap, StatusCode, header};

use super::reply::ApiError;
use crate::config::Secret;

/// What somebody wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Privilege {
    Change,
    Look,
}

/// Lets a caller in, or says what is missing; `token` is what there is to know.
pub(super) fn admit(
    wish: Privilege,
    headers: &HeaderMap,
    remote: IpAddr,
    token: Option<&Secret>,
) -> Result<(), ApiError> {
    let known = match (headers.get(header::AUTHORIZATION), token) {
        (Some(shown), Some(token)) => {
            if !is_token(shown.as_bytes(), token) {
                return Err(ApiError::new(StatusCode::UNAUTHORIZED, "wrong token"));
            }
            true
        }
        _ => false,
    };
    let near = remote.to_canonical().is_loopback() && is_local_name(headers);
    match (wish, token) {
        (Privilege::Look, _) if known => Ok(()),
        (Privilege::Look, _) if near => not_embedded(headers),
        (Privilege::Change, Some(_)) if known => same_origin(headers),
        (_, Some(_)) => Err(ApiError::new(
            StatusCode::UNAUTHORIZED,
            "a token is needed: Authorization: Bearer ...",
        )),
        (Privilege::Change, None) => Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "nothing can be changed here because no token is configured: set `admin.token`",
        )),
        (Privilege::Look, None) => Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "only from this machine, by its address or as localhost, because no token is configured: set `admin.token`",
        )),
    }
}

fn is_token(shown: &[u8], token: &Secret) -> bool {
    let Some((scheme, shown)) = shown.split_at_checked("Bearer ".len()) else {
        return false;
    };
    // Hashed, so that not even the length can be told from how long it takes.
    let [shown, token] = [shown, token.expose().as_bytes()].map(|secret| digest(&SHA256, secret));
    scheme.eq_ignore_ascii_case(b"Bearer ")
        && verify_slices_are_equal(shown.as_ref(), token.as_ref()).is_ok()
}

/// Whether the name we are called by is one that no stranger's DNS can point here.
fn is_local_name(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else {
        return true;
    };
    let Ok(authority) = http::uri::Authority::try_from(host.as_bytes()) else {
        return false;
    };
    let name = authority
        .host()
        .trim_start_matches('[')
        .trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// A page of another origin may lead here, but has no business in asking by itself: it could not read the answer, and
/// would hold one of the few seats of those who listen.
fn not_embedded(headers: &HeaderMap) -> Result<(), ApiError> {
    let says = |name, value: &[u8]| {
        let said = headers.get(name);
        said.is_some_and(|said| said.as_bytes() == value)
    };
    let foreign = says(SEC_FETCH_SITE, b"cross-site") || says(SEC_FETCH_SITE, b"same-site");
    match foreign && !says(SEC_FETCH_MODE, b"navigate") {
        false => Ok(()),
        true => Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "a page of another origin may not look here",
        )),
    }
}

/// What a browser says of the page that asks: ours, or no page at all.
fn same_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    let elsewhere = |why: &str| Err(ApiError::new(StatusCode::FORBIDDEN, why));
    if let Some(site) = headers.get(SEC_FETCH_SITE)
        && !matches!(site.as_bytes(), b"none" | b"same-origin")
    {
        return elsewhere("a page of another origin may not change anything here");
    }
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    let origin = origin.as_bytes();
    let host = headers.get(header::HOST).map(|host| host.as_bytes());
    let ours = [&b"http://"[..], b"https://"].into_iter().any(|scheme| {
        let authority = origin.strip_prefix(scheme);
        authority.is_some_and(|it| host.is_some_and(|host| it.eq_ignore_ascii_case(host)))
    });
    match ours {
        true => Ok(()),
        false => elsewhere("a page of another origin may not change anything here"),
    }
}

const SEC_FETCH_MODE: &str = "sec-fetch-mode";
const SEC_FETCH_SITE: &str = "sec-fetch-site";

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let fields = fields.iter();
        fields
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect()
    }

    fn status(
        wish: Privilege,
        fields: &[(&'static str, &str)],
        from: &str,
        token: Option<&str>,
    ) -> Option<u16> {
        let token = token.map(Secret::new);
        let admitted = admit(
            wish,
            &headers(fields),
            from.parse().unwrap(),
            token.as_ref(),
        );
        let reply: super::super::reply::ApiResponse = admitted.err()?.into();
        Some(reply.status().as_u16())
    }

    const NEAR: &str = "127.0.0.1";
    const FAR: &str = "192.0.2.1";
    const RIGHT: (&str, &str) = ("authorization", "Bearer secret");

    #[test]
    fn a_page_of_another_origin_may_lead_here_and_not_ask() {
        let asked = |site: &str, mode: &str| {
            let fields = [
                ("host", "localhost:9900"),
                ("sec-fetch-site", site),
                ("sec-fetch-mode", mode),
            ];
            status(Privilege::Look, &fields, NEAR, None)
        };
        assert_eq!(asked("cross-site", "no-cors"), Some(403));
        assert_eq!(asked("same-site", "cors"), Some(403));
        assert_eq!(asked("cross-site", "navigate"), None);
        assert_eq!(asked("same-origin", "cors"), None);
        assert_eq!(asked("none", "navigate"), None);
    }

    #[test]
    fn looking_is_free_on_this_machine_and_takes_a_token_elsewhere() {
        let token = Some("secret");
        for host in ["localhost:9900", "127.0.0.1", "[::1]:9900"] {
            let host = [("host", host)];
            assert_eq!(status(Privilege::Look, &host, NEAR, token), None);
            assert_eq!(
                status(Privilege::Look, &host, "::ffff:127.0.0.1", None),
                None
            );
            assert_eq!(status(Privilege::Look, &host, FAR, token), Some(401));
            assert_eq!(status(Privilege::Look, &host, FAR, None), Some(403));
        }
        let rebound = [("host", "evil.example:9900")];
        assert_eq!(status(Privilege::Look, &rebound, NEAR, token), Some(401));
        assert_eq!(status(Privilege::Look, &rebound, NEAR, None), Some(403));
        assert_eq!(
            status(Privilege::Look, &[RIGHT, rebound[0]], FAR, token),
            None
        );
    }

    #[test]
    fn changing_takes_a_token_everywhere() {
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
                status(Privilege::Look, &wrong, NEAR, Some("secret")),
                Some(401)
            );
            assert_eq!(status(Privilege::Look, &wrong, NEAR, None), None);
        }
        let lower = [("authorization", "bearer secret")];
        assert_eq!(status(Privilege::Look, &lower, FAR, Some("secret")), None);
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
