//! Which form of a page a client likes best, by its `Accept`.
//!
//! Three forms are offered, and plain text is what anybody gets who did not ask for another: `*/*` is what tools
//! send, and tools show what they get to people in terminals.

use http::HeaderValue;

/// How a page can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageFormat {
    /// `text/html`
    Html,
    /// `application/problem+json`
    Problem,
    /// `text/plain`
    Text,
}

/// A form in which somebody has a body ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferedFormat {
    /// HTML.
    Html,
    /// JSON.
    Json,
    /// Plain text.
    Text,
}

impl OfferedFormat {
    fn form(self) -> PageFormat {
        match self {
            Self::Html => PageFormat::Html,
            Self::Json => PageFormat::Problem,
            Self::Text => PageFormat::Text,
        }
    }
}

/// The one of these that an `Accept` field likes best, chosen as a page of ours is; where it likes none, the first.
#[must_use]
pub fn best_offer(accept: Option<&HeaderValue>, offers: &[OfferedFormat]) -> Option<OfferedFormat> {
    let accept = accept.map_or(&b"*/*"[..], HeaderValue::as_bytes);
    let wishes = offers
        .iter()
        .map(|offer| (wish(accept, offer.form()), *offer));
    let liked = wishes.filter(|(wish, _)| wish.quality > 0);
    let best = liked.max_by_key(|(wish, _)| *wish);
    best.map(|(_, offer)| offer)
        .or_else(|| offers.first().copied())
}

/// How much a client wants a form; the greatest wins, compared field by field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct AcceptPreference {
    /// How well it likes it, in thousandths.
    quality: u16,
    /// How clearly it said so.
    clarity: u8,
    /// What we do if it likes two the same.
    preference: u8,
}

impl PageFormat {
    /// Its `Content-Type`.
    pub(super) fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Html => "text/html; charset=utf-8",
            Self::Problem => "application/problem+json",
            Self::Text => "text/plain; charset=utf-8",
        })
    }

    /// How clearly a media range asks for this form; `None` if it does not cover it.
    fn clarity(self, range: &[u8]) -> Option<u8> {
        let is = |name: &str| range.eq_ignore_ascii_case(name.as_bytes());
        let (named, family) = match self {
            Self::Html => (is("text/html"), is("text/*")),
            Self::Problem => (
                is("application/problem+json") || is("application/json"),
                is("application/*"),
            ),
            Self::Text => (is("text/plain"), is("text/*")),
        };
        match (named, family) {
            (true, _) => Some(2),
            (_, true) => Some(1),
            _ => is("*/*").then_some(0),
        }
    }
}

/// The form an `Accept` field likes best.
pub(super) fn best_form(accept: &HeaderValue) -> PageFormat {
    if accept == "*/*" {
        return PageFormat::Text;
    }
    [PageFormat::Text, PageFormat::Html, PageFormat::Problem]
        .into_iter()
        .map(|form| (wish(accept.as_bytes(), form), form))
        .filter(|(wish, _)| wish.quality > 0)
        .max_by_key(|(wish, _)| *wish)
        // Nothing we have is wanted, but a status without a word helps nobody.
        .map_or(PageFormat::Text, |(_, form)| form)
}

fn wish(accept: &[u8], form: PageFormat) -> AcceptPreference {
    let ranges = accept.split(|b| *b == b',').filter_map(|item| {
        let mut parts = item.split(|b| *b == b';').map(<[u8]>::trim_ascii);
        let clarity = form.clarity(parts.next()?)?;
        Some((clarity, parts.find_map(quality).unwrap_or(1000)))
    });
    // The clearest range decides, as RFC 9110 has it: `text/*;q=0.5, text/html;q=0` is a no to HTML. Of two equally
    // clear ones (application/json and its problem form) the friendlier counts.
    let (clarity, quality) = ranges.max().unwrap_or((0, 0));
    let preference = match form {
        PageFormat::Problem if clarity == 2 => 3,
        PageFormat::Html if clarity == 2 => 2,
        PageFormat::Text => 1,
        PageFormat::Html | PageFormat::Problem => 0,
    };
    AcceptPreference {
        quality,
        clarity,
        preference,
    }
}

/// A `q` parameter in thousandths; one that is not a number between 0 and 1 counts as 0.
fn quality(parameter: &[u8]) -> Option<u16> {
    let [b'q' | b'Q', b'=', value @ ..] = parameter else {
        return None;
    };
    Some(match value {
        [b'1', ..] => 1000,
        [b'0', b'.', digits @ ..] => {
            let digit = |at: usize| {
                let byte = digits.get(at).filter(|byte| byte.is_ascii_digit());
                byte.map_or(0, |byte| u16::from(byte - b'0'))
            };
            digit(0) * 100 + digit(1) * 10 + digit(2)
        }
        _ => 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered_is_chosen_from() {
        let best = |accept: &'static str, offers: &[OfferedFormat]| {
            best_offer(Some(&HeaderValue::from_static(accept)), offers)
        };
        let all = [
            OfferedFormat::Text,
            OfferedFormat::Html,
            OfferedFormat::Json,
        ];
        assert_eq!(best("*/*", &all), Some(OfferedFormat::Text));
        assert_eq!(best("text/html,*/*;q=0.8", &all), Some(OfferedFormat::Html));
        assert_eq!(best("application/json", &all), Some(OfferedFormat::Json));
        let two = [OfferedFormat::Html, OfferedFormat::Json];
        assert_eq!(best("*/*", &two), Some(OfferedFormat::Json));
        assert_eq!(best_offer(None, &two), Some(OfferedFormat::Json));
        assert_eq!(best("image/png", &two), Some(OfferedFormat::Html));
        assert_eq!(
            best("text/html", &[OfferedFormat::Json]),
            Some(OfferedFormat::Json)
        );
        assert_eq!(best_offer(None, &[]), None);
    }

    #[test]
    fn the_form_liked_best_is_chosen() {
        for (accept, form) in [
            ("*/*", PageFormat::Text),
            ("", PageFormat::Text),
            ("image/png", PageFormat::Text),
            ("text/plain", PageFormat::Text),
            ("text/*", PageFormat::Text),
            ("text/html", PageFormat::Html),
            ("TEXT/HTML;level=1", PageFormat::Html),
            ("application/json", PageFormat::Problem),
            ("application/problem+json", PageFormat::Problem),
            ("application/*", PageFormat::Problem),
            // A browser, axios, curl with a preference.
            (
                "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
                PageFormat::Html,
            ),
            ("application/json, text/plain, */*", PageFormat::Problem),
            (
                "text/html;q=0.5, application/json;q=0.6",
                PageFormat::Problem,
            ),
            ("text/html;q=0.7, application/json;q=0.6", PageFormat::Html),
            ("text/html; q=0.123, text/plain; Q=0.124", PageFormat::Text),
            ("text/*;q=0.9, text/html;q=0", PageFormat::Text),
            (
                "text/html;q=0, text/plain;q=0, application/json;q=0",
                PageFormat::Text,
            ),
            ("application/json;q=x, text/html;q=0.1", PageFormat::Html),
            ("*/*;q=0.1, application/json;q=0.0", PageFormat::Text),
            (",;,=;q", PageFormat::Text),
        ] {
            let value = HeaderValue::from_str(accept).unwrap();
            assert_eq!(best_form(&value), form, "{accept}");
        }
    }
}
