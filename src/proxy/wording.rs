//! A rule's own words for those it turns away.
//!
//! Variables in them may hold what the client has written. A page that repeated it as it is would let one client put
//! a script before another, so values are written as the form of the text writes plain text.

use crate::config::plan::{Form, Part, Wording};
use crate::message::{Exchange, vars};

/// The text for one request.
pub(super) fn render(wording: &Wording, exchange: &Exchange) -> Vec<u8> {
    let (mut text, mut value) = (Vec::new(), Vec::new());
    for part in &wording.text.parts {
        match part {
            Part::Text(own) => text.extend_from_slice(own.as_bytes()),
            Part::Variable(variable) => {
                value.clear();
                vars::append(variable, exchange, &mut value);
                escape(&value, wording.form, &mut text);
            }
        }
    }
    text
}

fn escape(value: &[u8], form: Form, text: &mut Vec<u8>) {
    // Of both forms that have a syntax, a byte that is no letter of any text could end what it stands in.
    let lossy = match form {
        Form::Plain => return text.extend_from_slice(value),
        Form::Html | Form::Json => String::from_utf8_lossy(value),
    };
    for letter in lossy.chars() {
        let written = match (form, letter) {
            (Form::Html, '&') => "&amp;",
            (Form::Html, '<') => "&lt;",
            (Form::Html, '>') => "&gt;",
            (Form::Html, '"') => "&quot;",
            (Form::Html, '\'') => "&#39;",
            (Form::Json, '"') => "\\\"",
            (Form::Json, '\\') => "\\\\",
            (Form::Json, '\0'..='\x1f') => {
                text.extend_from_slice(format!("\\u{:04x}", u32::from(letter)).as_bytes());
                continue;
            }
            _ => {
                text.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
        };
        text.extend_from_slice(written.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::plan::{Template, Variable};
    use crate::message::testing;

    fn rendered(before: &str, after: &str, agent: &str) -> String {
        let parts = [
            Part::Text(before.into()),
            Part::Variable(Variable::Http(http::header::USER_AGENT)),
            Part::Text(after.into()),
        ];
        let wording = Wording::new(Template {
            parts: Box::new(parts),
        });
        let exchange = testing::exchange(&[("user-agent", agent)]);
        String::from_utf8(render(&wording, &exchange)).expect("a text")
    }

    #[test]
    fn what_a_client_wrote_stays_text() {
        assert_eq!(
            rendered("<p>", "</p>", "<script>'\"&"),
            "<p>&lt;script&gt;&#39;&quot;&amp;</p>"
        );
        assert_eq!(
            rendered("{\"by\":\"", "\"}", "a\\\"b\tc"),
            "{\"by\":\"a\\\\\\\"b\\u0009c\"}"
        );
        assert_eq!(rendered("by ", "", "<a> \"b\""), "by <a> \"b\"");
    }
}
