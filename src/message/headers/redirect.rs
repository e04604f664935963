//! `proxy_redirect`: where a backend's redirects lead, in terms of what the client asked for.

use http::header::{self, HeaderMap, HeaderValue};

use crate::config::plan::{Part, ProxyPass, Redirect, Replacement};
use crate::message::answer::escape_location;
use crate::message::{RequestRecord, vars};

/// Rewrites `Location` and `Refresh` of a response from `forward` by the first of its rules that matches.
pub fn rewrite_redirects(headers: &mut HeaderMap, exchange: &RequestRecord, forward: &ProxyPass) {
    if forward.redirects.is_empty() {
        return;
    }
    for (name, value) in headers.iter_mut() {
        let start = match name {
            _ if *name == header::LOCATION => Some(0),
            _ if *name == header::REFRESH => url_in_refresh(value.as_bytes()),
            _ => None,
        };
        if let Some((before, url)) =
            start.and_then(|start| value.as_bytes().split_at_checked(start))
            && let Some(rewritten) = rewritten(url, exchange, forward)
            && let Ok(rewritten) = HeaderValue::try_from([before, &rewritten].concat())
        {
            *value = rewritten;
        }
    }
}

/// Whether a field of a response, its name in lower case, may have to be rewritten.
pub(super) fn may_redirect(name: &[u8]) -> bool {
    matches!(name, b"location" | b"refresh")
}

/// Where the URL begins in `5; url=http://…`.
fn url_in_refresh(value: &[u8]) -> Option<usize> {
    let before = b"url=";
    let mut places = value.windows(before.len());
    let found = places.position(|place| place.eq_ignore_ascii_case(before))?;
    Some(found + before.len())
}

fn rewritten(url: &[u8], exchange: &RequestRecord, forward: &ProxyPass) -> Option<Vec<u8>> {
    let mut rules = forward.redirects.iter();
    rules.find_map(|rule| match rule {
        Redirect::Default { url: own, path } => match url.strip_prefix(own.as_bytes()) {
            Some(rest) => Some([path.as_bytes(), rest].concat()),
            None => under_host_sent(url, path, exchange, forward),
        },
        Redirect::Expression { from, to } => {
            let groups = from.captures(url)?;
            let mut text = Vec::new();
            for piece in to {
                match piece {
                    Replacement::Group(group) => {
                        let group = groups.get(*group);
                        text.extend_from_slice(group.map_or(b"", |group| group.as_bytes()));
                    }
                    Replacement::Part(part) => push(part, exchange, &mut text),
                }
            }
            Some(text)
        }
        Redirect::Prefix { from, to } => {
            let mut begins = Vec::new();
            vars::render(from, exchange, &mut begins);
            let rest = url.strip_prefix(&begins[..])?;
            let mut text = Vec::new();
            to.parts
                .iter()
                .for_each(|part| push(part, exchange, &mut text));
            text.extend_from_slice(rest);
            Some(text)
        }
    })
}

/// Puts the location's path in place of that of `proxy_pass` where a backend names itself by the host it was sent, which
/// mostly is the client's own: then only the path is not what the client knows.
fn under_host_sent(
    url: &[u8],
    path: &str,
    exchange: &RequestRecord,
    forward: &ProxyPass,
) -> Option<Vec<u8>> {
    let own = forward.uri.as_deref()?;
    let scheme = [&b"http://"[..], b"https://"];
    let scheme = scheme.into_iter().find(|scheme| url.starts_with(scheme))?;
    let mut hosts = forward.set_headers.iter();
    let host = hosts.find(|set| set.name == header::HOST)?;
    let mut sent = Vec::new();
    vars::render(&host.value, exchange, &mut sent);
    let (named, rest) = url.split_at_checked(scheme.len() + sent.len())?;
    if sent == forward.host.as_bytes() || !named.ends_with(&sent) {
        return None;
    }
    let rest = rest.strip_prefix(own.as_bytes())?;
    Some([named, path.as_bytes(), rest].concat())
}

/// Appends a piece; what no URL may hold is escaped in values, so that none begins a field of its own.
fn push(part: &Part, exchange: &RequestRecord, text: &mut Vec<u8>) {
    match part {
        Part::Text(own) => text.extend_from_slice(own.as_bytes()),
        Part::Variable(variable) => {
            let mut value = Vec::new();
            vars::append(variable, exchange, &mut value);
            text.extend_from_slice(&escape_location(&value));
        }
    }
}

#[cfg(test)]
mod tests {
    use regex::bytes::Regex;

    use super::*;
    use crate::config::plan::{SetHeader, Template, Variable};
    use crate::message::testing;

    fn rewritten(forward: &ProxyPass, field: &'static str, value: &str) -> String {
        let exchange = testing::request("GET", "/one/a%0ab", &[("host", "shop.test:81")]);
        let mut headers = HeaderMap::new();
        headers.insert(field, HeaderValue::from_str(value).unwrap());
        rewrite_redirects(&mut headers, &exchange, forward);
        headers[field].to_str().unwrap().to_owned()
    }

    fn with(redirects: Vec<Redirect>) -> ProxyPass {
        ProxyPass {
            redirects: redirects.into(),
            uri: Some("/two/".into()),
            set_headers: vec![SetHeader {
                name: header::HOST,
                value: Template::variable(Variable::PassedHost),
            }],
            ..testing::forward()
        }
    }

    fn default() -> Redirect {
        Redirect::Default {
            url: "http://app/two/".into(),
            path: "/one/".into(),
        }
    }

    #[test]
    fn the_locations_path_takes_the_place_of_the_upstreams_url() {
        let forward = with(vec![default()]);
        for (from, to) in [
            ("http://app/two/x?y", "/one/x?y"),
            ("http://app/three/", "http://app/three/"),
            ("http://APP/two/", "http://APP/two/"),
            ("/two/x", "/two/x"),
            ("http://shop.test:81/two/x", "http://shop.test:81/one/x"),
            ("https://shop.test:81/two/x", "https://shop.test:81/one/x"),
            ("http://shop.test:81/x", "http://shop.test:81/x"),
            ("http://shop.test/two/x", "http://shop.test/two/x"),
            (
                "https://www.shop.test:81/two/x",
                "https://www.shop.test:81/two/x",
            ),
        ] {
            assert_eq!(rewritten(&forward, "location", from), to);
        }
        assert_eq!(
            rewritten(&forward, "refresh", "5; URL=http://app/two/x"),
            "5; URL=/one/x"
        );
        assert_eq!(rewritten(&forward, "refresh", "5"), "5");
        assert_eq!(
            rewritten(&forward, "content-location", "http://app/two/"),
            "http://app/two/"
        );
        assert_eq!(
            rewritten(&with(Vec::new()), "location", "http://app/two/"),
            "http://app/two/"
        );
    }

    #[test]
    fn the_first_rule_that_matches_is_applied_and_values_are_escaped() {
        let forward = with(vec![
            Redirect::Expression {
                from: Regex::new("^http://([^/]+)/(.*)$").unwrap(),
                to: Box::new([
                    Replacement::Part(Part::Text("//".into())),
                    Replacement::Group(1),
                    Replacement::Part(Part::Variable(Variable::Uri)),
                    Replacement::Group(2),
                ]),
            },
            default(),
        ]);
        assert_eq!(
            rewritten(&forward, "location", "http://app/two/"),
            "//app/one/a%0Abtwo/"
        );
        let host = Template::variable(Variable::Host);
        let forward = with(vec![Redirect::Prefix {
            from: Template::literal("/"),
            to: host,
        }]);
        assert_eq!(rewritten(&forward, "location", "/x"), "shop.testx");
    }
}
