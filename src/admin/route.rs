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
    Mark(String, String, Mark),
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
pub(super) enum Mark {
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
                    "block" => Mark::Block,
                    "exempt" => Mark::Exempt,
                    "grant" => Mark::Grant,
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
            Some(Route::Mark("z".into(), "\\x00".into(), Mark::Block))
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
}
