//! Which call a path is, and what may be done there.

use http::Method;

/// Something that can be called. Names are as they came, their escapes undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    Breakers,
    Config,
    Explain,
    Group(String),
    Groups,
    Health,
    Key(String, String),
    Keys(String),
    Mark(String, String, KeyActionKind),
    Metrics,
    OpenApi,
    Override(String),
    Ready,
    RefusalStream,
    Refusals,
    Reload,
    Server(String, String),
    Status,
    Store,
    Upstreams,
    Zone(String),
    Zones,
}

/// What an operator can put on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyActionKind {
    Block,
    Exempt,
    Grant,
}

impl Route {
    /// What a path stands for; a query does not belong to it.
    pub(super) fn find(path: &str) -> Option<Self> {
        let segments = path.strip_prefix('/')?.split('/');
        let segments: Vec<_> = segments.map(decode).collect::<Option<_>>()?;
        let segments: Vec<_> = segments.iter().map(String::as_str).collect();
        let name = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        Some(match segments[..] {
            ["healthz"] => Self::Health,
            ["readyz"] => Self::Ready,
            ["metrics"] => Self::Metrics,
            ["api", "breakers"] => Self::Breakers,
            ["api", "config"] => Self::Config,
            ["api", "explain"] => Self::Explain,
            ["api", "groups"] => Self::Groups,
            ["api", "groups", group] => Self::Group(name(group)?),
            ["api", "openapi.json"] => Self::OpenApi,
            ["api", "refusals"] => Self::Refusals,
            ["api", "refusals", "stream"] => Self::RefusalStream,
            ["api", "reload"] => Self::Reload,
            ["api", "status"] => Self::Status,
            ["api", "store"] => Self::Store,
            ["api", "upstreams"] => Self::Upstreams,
            ["api", "upstreams", upstream, "servers", server] => {
                Self::Server(name(upstream)?, name(server)?)
            }
            ["api", "zones"] => Self::Zones,
            ["api", "zones", zone] => Self::Zone(name(zone)?),
            ["api", "zones", zone, "override"] => Self::Override(name(zone)?),
            ["api", "zones", zone, "keys"] => Self::Keys(name(zone)?),
            ["api", "zones", zone, "keys", key] => Self::Key(name(zone)?, name(key)?),
            ["api", "zones", zone, "keys", key, mark] => {
                let mark = match mark {
                    "block" => KeyActionKind::Block,
                    "exempt" => KeyActionKind::Exempt,
                    "grant" => KeyActionKind::Grant,
                    _ => return None,
                };
                Self::Mark(name(zone)?, name(key)?, mark)
            }
            _ => return None,
        })
    }

    /// What may be done there.
    pub(super) fn methods(&self) -> &'static [Method] {
        const LOOK: &[Method] = &[Method::GET, Method::HEAD];
        match self {
            Self::Breakers => &[Method::GET, Method::HEAD, Method::PATCH],
            Self::Explain | Self::Reload => &[Method::POST],
            Self::Group(_) | Self::Server(..) => &[Method::PATCH],
            Self::Key(..) => &[Method::GET, Method::HEAD, Method::DELETE],
            Self::Mark(..) => &[Method::PUT, Method::DELETE],
            Self::Override(_) => &[Method::DELETE],
            Self::Zone(_) => &[Method::GET, Method::HEAD, Method::PATCH],
            _ => LOOK,
        }
    }

    /// Whether doing this there changes something.
    pub(super) fn is_changed_by(&self, method: &Method) -> bool {
        *self != Self::Explain && !matches!(*method, Method::GET | Method::HEAD)
    }
}

/// A value of a query, its escapes undone.
pub(super) fn parameter(query: Option<&str>, name: &str) -> Option<String> {
    let mut pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    decode(&value.replace('+', " "))
}

/// Undoes what was written as `%` and two digits; `None` where that makes no text.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let byte;
        (byte, rest) = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let [high, low] = [*high, *low].map(|digit| char::from(digit).to_digit(16));
                (u8::try_from(high? * 16 + low?).ok()?, after)
            }
            (b'%', _) => return None,
            _ => (*first, after),
        };
        bytes.push(byte);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_with_their_escapes_undone() {
        assert_eq!(
            Route::find("/api/zones/a%2Fb/keys/2001%3Adb8%3A%3A1"),
            Some(Route::Key("a/b".into(), "2001:db8::1".into()))
        );
        assert_eq!(
            Route::find("/api/zones/z/keys/%5Cx00/block"),
            Some(Route::Mark(
                "z".into(),
                "\\x00".into(),
                KeyActionKind::Block
            ))
        );
        for wrong in [
            "/api/zones/%zz",
            "/api/zones/%4",
            "/api/zones/%ff",
            "/api/zones/",
            "api",
            "",
        ] {
            assert_eq!(Route::find(wrong), None, "{wrong}");
        }
    }

    /// How the description of the API writes a route.
    fn described(route: &Route) -> &'static str {
        match route {
            Route::Breakers => "/api/breakers",
            Route::Config => "/api/config",
            Route::Explain => "/api/explain",
            Route::Group(_) => "/api/groups/{group}",
            Route::Groups => "/api/groups",
            Route::Health => "/healthz",
            Route::Key(..) => "/api/zones/{zone}/keys/{key}",
            Route::Keys(_) => "/api/zones/{zone}/keys",
            Route::Mark(_, _, KeyActionKind::Block) => "/api/zones/{zone}/keys/{key}/block",
            Route::Mark(_, _, KeyActionKind::Exempt) => "/api/zones/{zone}/keys/{key}/exempt",
            Route::Mark(_, _, KeyActionKind::Grant) => "/api/zones/{zone}/keys/{key}/grant",
            Route::Metrics => "/metrics",
            Route::OpenApi => "/api/openapi.json",
            Route::Override(_) => "/api/zones/{zone}/override",
            Route::Ready => "/readyz",
            Route::RefusalStream => "/api/refusals/stream",
            Route::Refusals => "/api/refusals",
            Route::Reload => "/api/reload",
            Route::Server(..) => "/api/upstreams/{upstream}/servers/{server}",
            Route::Status => "/api/status",
            Route::Store => "/api/store",
            Route::Upstreams => "/api/upstreams",
            Route::Zone(_) => "/api/zones/{zone}",
            Route::Zones => "/api/zones",
        }
    }

    #[test]
    fn every_path_is_described_and_every_description_is_a_path() {
        let text = include_str!("../../conf/openapi.json");
        let description: serde_json::Value = serde_json::from_str(text).unwrap();
        let paths = description["paths"].as_object().unwrap();
        for path in paths.keys() {
            let route = Route::find(&path.replace(['{', '}'], "")).expect(path);
            assert_eq!(described(&route), path);
        }
        // Whoever adds a route adds it above, and its description.
        assert_eq!(paths.len(), 24);
    }

    #[test]
    fn a_query_is_read_by_name() {
        let query = Some("sort=refuse&limit=5&x=a%26b+c");
        assert_eq!(parameter(query, "limit").as_deref(), Some("5"));
        assert_eq!(parameter(query, "x").as_deref(), Some("a&b c"));
        assert_eq!(parameter(query, "y"), None);
    }
}
