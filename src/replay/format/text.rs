//! Lines of text: values between fixed texts, as nginx's `log_format` describes them.

use memchr::memchr;

use super::{CutFields, EscapeStyle, FormatError};

/// A format, taken apart.
#[derive(Debug, Clone)]
pub(in crate::replay) struct FormatTokens {
    pieces: Vec<FormatToken>,
    pub(super) escape: EscapeStyle,
    /// Whether a line may go on behind the last piece.
    open_ended: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum FormatToken {
    Literal(Box<[u8]>),
    Name(String),
}

impl FormatTokens {
    pub(super) fn names(&self) -> Vec<&str> {
        let names = self.pieces.iter().filter_map(|piece| match piece {
            FormatToken::Literal(_) => None,
            FormatToken::Name(name) => Some(name.as_str()),
        });
        names.collect()
    }
}

/// Takes the text of a `log_format` apart.
pub(super) fn parse(text: &str) -> Result<FormatTokens, FormatError> {
    let (text, escape) = undress(text);
    if !text.contains('$') {
        return Err(FormatError::Unknown(text));
    }
    let mut pieces: Vec<FormatToken> = Vec::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find('$') {
        let (literal, behind) = rest.split_at(at);
        push_literal(&mut pieces, literal);
        let behind = behind.strip_prefix('$').unwrap_or(behind);
        let (name, after) = match behind.strip_prefix('{') {
            Some(inside) => inside.split_once('}').ok_or(FormatError::Unclosed)?,
            None => behind.split_at(behind.find(|c| !is_name(c)).unwrap_or(behind.len())),
        };
        rest = after;
        if name.is_empty() {
            push_literal(&mut pieces, "$");
            continue;
        }
        if let Some(FormatToken::Name(before)) = pieces.last() {
            return Err(FormatError::Adjacent(before.clone(), name.to_owned()));
        }
        pieces.push(FormatToken::Name(name.to_owned()));
    }
    push_literal(&mut pieces, rest);
    Ok(FormatTokens {
        pieces,
        escape,
        open_ended: false,
    })
}

/// A format of our own, of which we know that it is one, and whose lines may have more at their end.
pub(super) fn open_ended(text: &str) -> FormatTokens {
    let pieces = parse(text).expect("our own formats are well-formed");
    FormatTokens {
        open_ended: true,
        ..pieces
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn push_literal(pieces: &mut Vec<FormatToken>, text: &str) {
    if text.is_empty() {
        return;
    }
    match pieces.last_mut() {
        Some(FormatToken::Literal(before)) => {
            let joined = [before, text.as_bytes()].concat();
            *before = joined.into();
        }
        _ => pieces.push(FormatToken::Literal(text.as_bytes().into())),
    }
}

/// Takes off what stands around the text where a whole directive was given: `log_format main escape=json '…' '…';`.
fn undress(text: &str) -> (String, EscapeStyle) {
    let mut escape = EscapeStyle::Backslash;
    let mut rest = text.trim();
    if let Some(directive) = rest.strip_prefix("log_format ") {
        let named = directive.trim_start().split_once(char::is_whitespace);
        rest = named.map_or("", |(_, text)| text).trim_start();
    }
    if let Some((which, after)) = rest
        .strip_prefix("escape=")
        .and_then(|behind| behind.split_once(char::is_whitespace))
    {
        rest = after.trim_start();
        escape = match which {
            "json" => EscapeStyle::Json,
            "none" => EscapeStyle::None,
            _ => EscapeStyle::Backslash,
        };
    }
    let bare = rest.trim_end_matches(';').trim_end();
    match unquoted(bare) {
        Some(text) => (text, escape),
        None => (rest.to_owned(), escape),
    }
}

/// The texts of `'…' '…'` joined; `None` if it is not all quotes.
fn unquoted(text: &str) -> Option<String> {
    // A text in double quotes may as well be a format that begins and ends with one.
    let mut rest = text.strip_prefix('\'').map(|_| text)?;
    let mut joined = String::new();
    while !rest.is_empty() {
        let inside = rest.strip_prefix('\'')?;
        let (part, after) = inside.split_once('\'')?;
        joined.push_str(part);
        rest = after.trim_start();
    }
    Some(joined)
}

/// Cuts lines of one format.
#[derive(Debug)]
pub(in crate::replay) struct TextSplitter {
    start: Box<[u8]>,
    /// Each value with what ends it; nothing for one that goes on to the end.
    values: Vec<(Option<usize>, Box<[u8]>)>,
    open_ended: bool,
    wanted: usize,
}

impl TextSplitter {
    pub(super) fn new(format: &FormatTokens, wanted: &[String]) -> Self {
        let mut start = Box::default();
        let mut values: Vec<(Option<usize>, Box<[u8]>)> = Vec::new();
        for piece in &format.pieces {
            match (piece, values.last_mut()) {
                (FormatToken::Literal(text), None) => start = text.clone(),
                (FormatToken::Literal(text), Some((_, end))) => *end = text.clone(),
                (FormatToken::Name(name), _) => {
                    let which = wanted.iter().position(|wanted| wanted == name);
                    values.push((which, Box::default()));
                }
            }
        }
        Self {
            start,
            values,
            open_ended: format.open_ended,
            wanted: wanted.len(),
        }
    }

    pub(super) fn cut(&self, line: &[u8], cut: &mut CutFields) -> bool {
        cut.reset(self.wanted);
        if !line.starts_with(&self.start) {
            return false;
        }
        let mut at = self.start.len();
        for (which, end) in &self.values {
            let rest = &line[at..];
            let length = if !end.is_empty() {
                find(rest, end)
            } else if self.open_ended {
                Some(memchr(b' ', rest).unwrap_or(rest.len()))
            } else {
                Some(rest.len())
            };
            let Some(length) = length else {
                return false;
            };
            if let Some(which) = which {
                cut.set(*which, at..at + length);
            }
            at += length + end.len();
        }
        self.open_ended || at == line.len()
    }
}

/// Where a fixed text begins. A quote that a backslash stands before belongs to the value.
fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    let (&first, others) = wanted.split_first()?;
    let mut from = 0;
    loop {
        let at = from + memchr(first, text.get(from..)?)?;
        if text[at + 1..].starts_with(others) && !(first == b'"' && is_escaped(&text[..at])) {
            return Some(at);
        }
        from = at + 1;
    }
}

fn is_escaped(before: &[u8]) -> bool {
    let backslashes = before.iter().rev().take_while(|byte| **byte == b'\\');
    backslashes.count() % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(format: &str, line: &str, wanted: &[&str]) -> Option<Vec<String>> {
        let format = parse(format).unwrap();
        let wanted: Vec<_> = wanted.iter().map(|name| (*name).to_owned()).collect();
        let mut cut = CutFields::default();
        let fits = TextSplitter::new(&format, &wanted).cut(line.as_bytes(), &mut cut);
        let value = |at| String::from_utf8_lossy(cut.value(line.as_bytes(), at)).into_owned();
        fits.then(|| (0..wanted.len()).map(value).collect())
    }

    #[test]
    fn values_stand_between_texts() {
        let found = cut("<$a> ${b}x$c", "<1> twox three", &["c", "a", "b"]);
        assert_eq!(found.unwrap(), [" three", "1", "two"]);
        assert_eq!(cut("$a|$b|", "1|2|3", &["a"]), None);
        assert_eq!(cut("$a costs $ 5", "it costs $ 5", &["a"]).unwrap(), ["it"]);
    }

    #[test]
    fn an_escaped_quote_ends_nothing() {
        let found = cut(r#""$a" "$b""#, r#""x\" \"y" "z\\""#, &["a", "b"]);
        assert_eq!(found.unwrap(), [r#"x\" \"y"#, r"z\\"]);
    }

    #[test]
    fn a_whole_directive_is_understood() {
        let text = "log_format  main  '$remote_addr [$time_local] '\n    '\"$request\"';";
        let found = cut(text, "1.2.3.4 [now] \"GET /\"", &["request", "time_local"]);
        assert_eq!(found.unwrap(), ["GET /", "now"]);
        let json = parse(r#"log_format j escape=json '{"a":"$uri"}';"#).unwrap();
        assert_eq!(
            (json.escape, json.names()),
            (EscapeStyle::Json, vec!["uri"])
        );
    }

    #[test]
    fn what_cannot_be_cut_is_said() {
        assert_eq!(
            parse("$a$b").unwrap_err(),
            FormatError::Adjacent("a".into(), "b".into())
        );
        assert_eq!(parse("${a").unwrap_err(), FormatError::Unclosed);
        assert_eq!(
            parse("combind").unwrap_err(),
            FormatError::Unknown("combind".into())
        );
    }
}
