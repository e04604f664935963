//! What becomes of a request that a rule does not let pass.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::{Part, Template};

/// How a rule turns requests away.
#[derive(Debug, Clone, Default)]
pub struct RefusalAction {
    /// Instead of the location's; 444 closes without an answer (`on_excess: drop`).
    pub status: Option<StatusCode>,
    /// Instead of weir's own page.
    pub body: Option<Arc<RefusalBodies>>,
    /// `on_excess: delay`: for how long a request may wait that would else be turned away.
    pub max_wait: Option<Duration>,
    /// `penalty`: for how long a key that was turned away stays out.
    pub penalty: Option<Duration>,
}

/// What refused requests are answered with in place of weir's own page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusalBodies {
    /// What the client likes best of these, one at least.
    Choice {
        /// `html`
        html: Option<TypedText>,
        /// `json`
        json: Option<TypedText>,
        /// `text`
        text: Option<TypedText>,
    },
    /// Always the same.
    One(TypedText),
}

/// A text and its `Content-Type`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypedText {
    /// The text.
    pub wording: RefusalBody,
    /// The `Content-Type`.
    pub content_type: Box<str>,
}

impl RefusalBodies {
    /// Whether it is the same for every request that likes the same form.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        let is_fixed = |typed: &TypedText| typed.wording.text.as_literal().is_some();
        match self {
            Self::Choice { html, json, text } => {
                [html, json, text].into_iter().flatten().all(is_fixed)
            }
            Self::One(typed) => is_fixed(typed),
        }
    }
}

/// A text with variables, and what it is written in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalBody {
    /// The text.
    pub text: Template,
    /// What it is written in.
    pub form: BodyFormat,
}

/// What a text is written in: how the values of variables are escaped in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFormat {
    /// A style sheet.
    Css,
    /// HTML, or XML of any kind.
    Html,
    /// JavaScript.
    JavaScript,
    /// JSON of any kind.
    Json,
    /// Anything else, which has no syntax that a value could break.
    Plain,
}

impl RefusalAction {
    /// nginx's status that closes the connection without an answer.
    pub const DROP: u16 = 444;
}

impl RefusalBody {
    /// A text, in the form it looks like.
    #[must_use]
    pub fn new(text: Template) -> Self {
        let start = match text.parts.first() {
            Some(Part::Text(start)) => start.trim_ascii_start().as_bytes().first(),
            _ => None,
        };
        let form = match start {
            Some(b'<') => BodyFormat::Html,
            Some(b'{' | b'[') => BodyFormat::Json,
            _ => BodyFormat::Plain,
        };
        Self { text, form }
    }
}

impl BodyFormat {
    /// That of a text with this `Content-Type`.
    #[must_use]
    pub fn of(content_type: &str) -> Self {
        let essence = content_type.split(';').next().unwrap_or_default();
        let essence = essence.trim().to_ascii_lowercase();
        let (_, subtype) = essence.split_once('/').unwrap_or_default();
        match subtype {
            "css" => Self::Css,
            "html" | "xml" => Self::Html,
            _ if subtype.ends_with("+xml") => Self::Html,
            _ if subtype.contains("json") => Self::Json,
            // `ecmascript`, `x-javascript`, `jscript` and their like.
            _ if subtype.contains("script") => Self::JavaScript,
            _ => Self::Plain,
        }
    }

    /// The `Content-Type` of a text that names none.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Css => "text/css; charset=utf-8",
            Self::Html => "text/html; charset=utf-8",
            Self::JavaScript => "text/javascript; charset=utf-8",
            Self::Json => "application/json",
            Self::Plain => "text/plain; charset=utf-8",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_shows_its_form() {
        let form = |text: &str| RefusalBody::new(Template::literal(text)).form;
        assert_eq!(form("<p>slow down</p>"), BodyFormat::Html);
        assert_eq!(form("\n {\"error\": 1}"), BodyFormat::Json);
        assert_eq!(form("[1]"), BodyFormat::Json);
        assert_eq!(form("slow down <b>"), BodyFormat::Plain);
        assert_eq!(form(""), BodyFormat::Plain);
    }

    #[test]
    fn a_content_type_has_a_form() {
        for (content_type, form) in [
            ("text/html", BodyFormat::Html),
            (" Text/HTML ; charset=iso-8859-1", BodyFormat::Html),
            ("application/xhtml+xml", BodyFormat::Html),
            ("image/svg+xml", BodyFormat::Html),
            ("text/xml", BodyFormat::Html),
            ("application/json; charset=utf-8", BodyFormat::Json),
            ("application/problem+json", BodyFormat::Json),
            ("application/x-ndjson", BodyFormat::Json),
            ("text/javascript", BodyFormat::JavaScript),
            ("application/ecmascript", BodyFormat::JavaScript),
            ("text/css", BodyFormat::Css),
            ("text/plain", BodyFormat::Plain),
            ("application/octet-stream", BodyFormat::Plain),
            ("html", BodyFormat::Plain),
        ] {
            assert_eq!(BodyFormat::of(content_type), form, "{content_type}");
        }
    }
}
