//! Texts of the configuration in responses: the body of `return`, and a rule's own words for those it turns away.
//!
//! Variables in them may hold what the client has written. A page that repeated it as it is would let one client put
//! a script before another, so values are written as the form of the text writes plain text.

use crate::config::plan::{BodyFormat, Part, RefusalBody};
use crate::message::{RequestRecord, vars};

/// The text for one request.
pub(super) fn render(wording: &RefusalBody, exchange: &RequestRecord) -> Vec<u8> {
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

fn escape(value: &[u8], form: BodyFormat, text: &mut Vec<u8>) {
    if form == BodyFormat::Plain {
        return text.extend_from_slice(value);
    }
    // Of all forms that have a syntax, a byte that is no letter of any text could end what it stands in.
    for letter in String::from_utf8_lossy(value).chars() {
        match form {
            BodyFormat::Css => escape_in_css(letter, text),
            BodyFormat::Html => escape_in_html(letter, text),
            BodyFormat::JavaScript => escape_in_script(letter, text),
            BodyFormat::Json => escape_in_json(letter, text),
            BodyFormat::Plain => push(letter, text),
        }
    }
}

fn escape_in_css(letter: char, text: &mut Vec<u8>) {
    match letter {
        _ if letter.is_alphanumeric() => push(letter, text),
        // Six digits: what follows cannot be taken for one more.
        _ => text.extend_from_slice(format!("\\{:06x}", u32::from(letter)).as_bytes()),
    }
}

fn escape_in_html(letter: char, text: &mut Vec<u8>) {
    let written = match letter {
        '&' => "&amp;",
        '<' => "&lt;",
        '>' => "&gt;",
        '"' => "&quot;",
        '\'' => "&#39;",
        // Nothing to HTML, but to a script in it: they end a string, or keep a quote from ending it.
        '\\' => "&#92;",
        '`' => "&#96;",
        '\t' | '\n' | '\r' => return push(letter, text),
        // XML has no way to say them.
        _ if letter.is_control() => "\u{fffd}",
        _ => return push(letter, text),
    };
    text.extend_from_slice(written.as_bytes());
}

fn escape_in_script(letter: char, text: &mut Vec<u8>) {
    match letter {
        ' ' | '-' | '.' | ',' | '_' => push(letter, text),
        _ if letter.is_alphanumeric() => push(letter, text),
        _ => escape_units(letter, text),
    }
}

fn escape_in_json(letter: char, text: &mut Vec<u8>) {
    match letter {
        '"' => text.extend_from_slice(b"\\\""),
        '\\' => text.extend_from_slice(b"\\\\"),
        '\0'..='\x1f' => escape_units(letter, text),
        _ => push(letter, text),
    }
}

/// `\uXXXX`, twice for what is beyond 16 bits.
fn escape_units(letter: char, text: &mut Vec<u8>) {
    for unit in letter.encode_utf16(&mut [0; 2]) {
        text.extend_from_slice(format!("\\u{unit:04x}").as_bytes());
    }
}

fn push(letter: char, text: &mut Vec<u8>) {
    text.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
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
        let wording = RefusalBody::new(Template {
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

    #[test]
    fn every_form_keeps_a_value_inside_its_quotes() {
        let written = |form, value: &str| {
            let mut text = Vec::new();
            escape(value.as_bytes(), form, &mut text);
            String::from_utf8(text).expect("a text")
        };
        assert_eq!(
            written(BodyFormat::Html, "a\\`\u{1}\t\u{e9}"),
            "a&#92;&#96;\u{fffd}\t\u{e9}"
        );
        assert_eq!(
            written(
                BodyFormat::JavaScript,
                "it's `${x}`</script>\u{2028}\u{1f600}"
            ),
            "it\\u0027s \\u0060\\u0024\\u007bx\\u007d\\u0060\\u003c\\u002fscript\\u003e\\u2028\\ud83d\\ude00"
        );
        assert_eq!(written(BodyFormat::Css, "a\"b}"), "a\\000022b\\00007d");
        assert_eq!(written(BodyFormat::Json, "a\"\\\n"), "a\\\"\\\\\\u000a");
    }
}
