//! The page at `/`: a few files that are part of the binary, and nothing from anywhere else.
//!
//! They hold no secret, so anybody who reaches the listener may have them. All they show they ask the API for, and that
//! decides who may see and change what.

use http::Method;
use http::header::{self, HeaderName, HeaderValue};

use super::reply::{self, ApiError, ApiResponse};

/// One of its files.
#[derive(Debug)]
pub(super) struct Asset {
    /// The page itself has none.
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
    /// The file as a browser gets it.
    pub(super) fn reply(&self, method: &Method) -> Result<ApiResponse, ApiError> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return Err(ApiError::method(&[Method::GET, Method::HEAD]));
        }
        let mut reply = reply::typed(self.text, self.content_type);
        let fields = [
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::REFERRER_POLICY, "no-referrer"),
            (CROSS_ORIGIN_OPENER_POLICY, "same-origin"),
        ];
        for (name, value) in fields {
            let value = HeaderValue::from_static(value);
            reply.headers_mut().insert(name, value);
        }
        Ok(reply)
    }
}

/// Only what is ours is loaded, run or asked, and nobody puts us into a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const CROSS_ORIGIN_OPENER_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-opener-policy");

macro_rules! files {
    ($($name:literal: $content_type:literal, $path:literal;)*) => {
        &[$(Asset { name: $name, content_type: $content_type, text: include_str!(concat!("assets/", $path)) }),*]
    };
}

const FILES: &[Asset] = files! {
    "": "text/html; charset=utf-8", "index.html";
    "api.js": "text/javascript; charset=utf-8", "api.js";
    "ask.js": "text/javascript; charset=utf-8", "ask.js";
    "backends.js": "text/javascript; charset=utf-8", "backends.js";
    "charts.js": "text/javascript; charset=utf-8", "charts.js";
    "dom.js": "text/javascript; charset=utf-8", "dom.js";
    "explain.js": "text/javascript; charset=utf-8", "explain.js";
    "history.js": "text/javascript; charset=utf-8", "history.js";
    "icon.svg": "image/svg+xml", "icon.svg";
    "keys.js": "text/javascript; charset=utf-8", "keys.js";
    "main.js": "text/javascript; charset=utf-8", "main.js";
    "refusals.js": "text/javascript; charset=utf-8", "refusals.js";
    "stores.js": "text/javascript; charset=utf-8", "stores.js";
    "style.css": "text/css; charset=utf-8", "style.css";
    "zones.js": "text/javascript; charset=utf-8", "zones.js";
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_is_named_is_there_and_the_other_way_round() {
        for file in FILES {
            let named = file.text.split(['"', '\'']).filter(|text| {
                text.ends_with(".js") || text.ends_with(".css") || text.ends_with(".svg")
            });
            for name in named {
                let path = format!("/{}", name.trim_start_matches("./"));
                assert!(find(&path).is_some(), "{} names {name}", file.name);
            }
        }
        for file in FILES.iter().filter(|file| !file.name.is_empty()) {
            let named = |other: &Asset| other.text.contains(file.name);
            assert!(FILES.iter().any(named), "nobody names {}", file.name);
        }
    }

    #[test]
    fn nothing_comes_from_elsewhere_and_nothing_stands_in_the_page_that_could_run() {
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
