//! The page at `/`: a few files in the binary, which load nothing from elsewhere.
//!
//! They hold no secret, so every client that reaches the listener may have them. The page asks the API for all it shows, and
//! the API decides who may see and change what.

use http::{HeaderName, HeaderValue, Method, header};

use super::response::{ApiError, ApiResponse, with_type};

/// A file of the page.
#[derive(Debug)]
pub(super) struct Asset {
    /// Empty for the page itself.
    name: &'static str,
    content_type: &'static str,
    text: &'static str,
}

/// The file at this path.
pub(super) fn find(path: &str) -> Option<&'static Asset> {
    let name = path.strip_prefix('/')?;
    FILES.iter().find(|file| file.name == name)
}

impl Asset {
    pub(super) fn respond(&self, method: &Method) -> Result<ApiResponse, ApiError> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return Err(ApiError::method("GET, HEAD".to_owned()));
        }
        let mut response = with_type(self.text, self.content_type);
        let headers = [
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::REFERRER_POLICY, "no-referrer"),
            (CROSS_ORIGIN_OPENER_POLICY, "same-origin"),
        ];
        for (name, value) in headers {
            let value = HeaderValue::from_static(value);
            response.headers_mut().insert(name, value);
        }
        Ok(response)
    }
}

/// The page loads, runs and fetches only what this listener serves, and no page frames it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const CROSS_ORIGIN_OPENER_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-opener-policy");

macro_rules! files {
    ($($name:literal => $path:literal: $content_type:ident;)*) => {
        &[$(Asset {
            name: $name,
            content_type: $content_type,
            text: include_str!(concat!("assets/", $path)),
        }),*]
    };
}

const CSS: &str = "text/css; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

const FILES: &[Asset] = files! {
    "" => "index.html": HTML;
    "api.js" => "api.js": JAVASCRIPT;
    "ask.js" => "ask.js": JAVASCRIPT;
    "backends.js" => "backends.js": JAVASCRIPT;
    "charts.js" => "charts.js": JAVASCRIPT;
    "dom.js" => "dom.js": JAVASCRIPT;
    "explain.js" => "explain.js": JAVASCRIPT;
    "history.js" => "history.js": JAVASCRIPT;
    "icon.svg" => "icon.svg": SVG;
    "keys.js" => "keys.js": JAVASCRIPT;
    "main.js" => "main.js": JAVASCRIPT;
    "refusals.js" => "refusals.js": JAVASCRIPT;
    "stores.js" => "stores.js": JAVASCRIPT;
    "style.css" => "style.css": CSS;
    "zones.js" => "zones.js": JAVASCRIPT;
};

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn every_file_is_referred_to_and_every_reference_exists() {
        for file in FILES {
            let named = file.text.split(['"', '\'']).filter(|text| {
                text.ends_with(".js") || text.ends_with(".css") || text.ends_with(".svg")
            });
            for name in named {
                let path = format!("/{}", name.trim_start_matches("./"));
                assert!(find(&path).is_some(), "{} refers to {name}", file.name);
            }
        }
        for file in FILES.iter().filter(|file| !file.name.is_empty()) {
            let named = |other: &Asset| other.text.contains(file.name);
            assert!(FILES.iter().any(named), "no file refers to {}", file.name);
        }
    }

    #[test]
    fn nothing_is_loaded_from_elsewhere_and_the_page_has_no_inline_code() {
        for file in FILES {
            let outside = file.text.matches("://").count();
            let allowed = [
                "http://www.w3.org/2000/svg",
                "http://localhost/",
                "`http://${",
                "\"://\"",
            ];
            let known: usize = allowed
                .iter()
                .map(|text| file.text.matches(text).count())
                .sum();
            assert_eq!(outside, known, "{}", file.name);
            assert!(!file.text.contains("innerHTML"), "{}", file.name);
        }
        let page = find("/").unwrap().text;
        assert!(!page.contains("style=") && !page.contains(" onclick"));
    }
}
