//! What becomes of a request that a rule does not let pass.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::{Part, Template};

/// How a rule turns requests away.
#[derive(Debug, Clone, Default)]
pub struct Sanction {
    /// Instead of the location's; 444 closes without an answer (`on_excess: drop`).
    pub status: Option<StatusCode>,
    /// Instead of weir's own page.
    pub body: Option<Arc<Wording>>,
    /// `on_excess: delay`: for how long a request may wait that would else be turned away.
    pub max_wait: Option<Duration>,
    /// `penalty`: for how long a key that was turned away stays out.
    pub penalty: Option<Duration>,
}

/// What a refused client is told.
#[derive(Debug, PartialEq, Eq)]
pub struct Wording {
    /// The text.
    pub text: Template,
    /// What it is written in.
    pub form: Form,
}

/// What a text is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Begins with a tag.
    Html,
    /// Begins as an object or a list.
    Json,
    /// Anything else.
    Plain,
}

impl Sanction {
    /// nginx's status that closes the connection without an answer.
    pub const DROP: u16 = 444;
}

impl Wording {
    /// A text, in the form it looks like.
    #[must_use]
    pub fn new(text: Template) -> Self {
        let start = match text.parts.first() {
            Some(Part::Text(start)) => start.trim_ascii_start().as_bytes().first(),
            _ => None,
        };
        let form = match start {
            Some(b'<') => Form::Html,
            Some(b'{' | b'[') => Form::Json,
            _ => Form::Plain,
        };
        Self { text, form }
    }
}

impl Form {
    /// Its `Content-Type`.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Html => "text/html; charset=utf-8",
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
        let form = |text: &str| Wording::new(Template::literal(text)).form;
        assert_eq!(form("<p>slow down</p>"), Form::Html);
        assert_eq!(form("\n {\"error\": 1}"), Form::Json);
        assert_eq!(form("[1]"), Form::Json);
        assert_eq!(form("slow down <b>"), Form::Plain);
        assert_eq!(form(""), Form::Plain);
    }
}
