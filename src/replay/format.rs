//! The format of a log's lines, and where in a line the values stand.
//!
//! A format is parsed once. After that a line is split at the fixed texts between its values; nothing is copied, and only
//! the wanted values are kept. Lines may also be JSON objects, such as weir's own or any whose keys are nginx's variables:
//! they are scanned by hand, and nested objects and lists are skipped.

use std::ops::Range;

use memchr::{memchr, memchr2};

use crate::text::{hex_byte, is_escaped};

/// The format of a log's lines.
#[derive(Debug, Clone)]
pub(super) enum InputFormat {
    /// A JSON object per line, with the keys of the first.
    Json(Vec<String>),
    /// Values between fixed texts.
    Text(TextFormat),
}

/// How values are escaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EscapeStyle {
    /// `\xXX`, as nginx and weir do; `\"` as Apache does.
    Backslash,
    /// As in JSON.
    Json,
    /// Not at all.
    None,
}

/// Why a text is not a format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// There is no text between two variables, so the end of the first one cannot be found.
    #[error("nothing tells where `${0}` ends and `${1}` begins")]
    Adjacent(String, String),
    /// There is no variable in it, and it is not the name of a format.
    #[error(
        "`{0}` is no log format: expected combined, common, json, or the text of nginx's log_format"
    )]
    Unknown(String),
    /// A name is missing after `${`, or a `}` after the name.
    #[error("`${{` without a name and a `}}`")]
    Unclosed,
}

impl InputFormat {
    /// Parses a format's name or the text of a `log_format`, with or without the directive around it.
    pub(super) fn parse(text: &str) -> Result<Self, FormatError> {
        Ok(match text.trim() {
            "combined" => Self::combined(),
            "common" => Self::common(),
            "json" => Self::Json(Vec::new()),
            text => Self::Text(TextFormat::parse(text)?),
        })
    }

    /// The format of a line, if it is JSON, combined or common.
    pub(super) fn guess(line: &[u8]) -> Option<Self> {
        let json = Self::Json(Vec::new());
        [json, Self::combined(), Self::common()]
            .into_iter()
            .find_map(|format| {
                let format = format.with_keys_of(line);
                format.fits(line).then_some(format)
            })
    }

    /// Whether a line has this format.
    pub(super) fn fits(&self, line: &[u8]) -> bool {
        self.splitter(&[]).split(line, &mut CutFields::default())
    }

    /// The same format, with the keys of this line where lines are JSON.
    pub(super) fn with_keys_of(self, line: &[u8]) -> Self {
        match self {
            Self::Json(_) => Self::Json(json_variables(line)),
            text @ Self::Text(_) => text,
        }
    }

    /// The variables in a line.
    pub(super) fn variables(&self) -> Vec<&str> {
        match self {
            Self::Json(names) => names.iter().map(String::as_str).collect(),
            Self::Text(format) => format.fields.iter().map(|(name, _)| &**name).collect(),
        }
    }

    /// How its values are escaped.
    pub(super) fn escape(&self) -> EscapeStyle {
        match self {
            Self::Json(_) => EscapeStyle::Json,
            Self::Text(format) => format.escape,
        }
    }

    /// Splits lines into the values of these variables.
    pub(super) fn splitter(&self, wanted: &[String]) -> LineSplitter {
        match self {
            Self::Json(_) => LineSplitter::Json(wanted.to_vec()),
            Self::Text(format) => {
                let index = |(name, _): &(String, _)| wanted.iter().position(|it| it == name);
                LineSplitter::Text {
                    indices: format.fields.iter().map(index).collect(),
                    wanted: wanted.len(),
                    format: format.clone(),
                }
            }
        }
    }

    fn combined() -> Self {
        Self::Text(TextFormat::open_ended(concat!(
            "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent ",
            "\"$http_referer\" \"$http_user_agent\""
        )))
    }

    fn common() -> Self {
        Self::Text(TextFormat::open_ended(
            "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent",
        ))
    }
}

/// Values between fixed texts, as nginx's `log_format` describes them.
#[derive(Debug, Clone)]
pub(super) struct TextFormat {
    start: Vec<u8>,
    /// Each variable with the text that ends its value; empty for one that goes on to the end of the line.
    fields: Vec<(String, Vec<u8>)>,
    escape: EscapeStyle,
    /// Whether a line may go on behind the last text.
    open_ended: bool,
}

impl TextFormat {
    fn parse(text: &str) -> Result<Self, FormatError> {
        let (text, escape) = strip_directive(text);
        if !text.contains('$') {
            return Err(FormatError::Unknown(text));
        }
        let mut format = Self {
            start: Vec::new(),
            fields: Vec::new(),
            escape,
            open_ended: false,
        };
        let mut rest = text.as_str();
        while let Some((literal, behind)) = rest.split_once('$') {
            format.push_literal(literal);
            let (name, after) = match behind.strip_prefix('{') {
                Some(inside) => inside.split_once('}').ok_or(FormatError::Unclosed)?,
                None => behind.split_at(behind.find(|c| !is_name(c)).unwrap_or(behind.len())),
            };
            rest = after;
            match format.fields.last() {
                _ if name.is_empty() => format.push_literal("$"),
                Some((before, end)) if end.is_empty() => {
                    return Err(FormatError::Adjacent(before.clone(), name.to_owned()));
                }
                _ => format.fields.push((name.to_owned(), Vec::new())),
            }
        }
        format.push_literal(rest);
        Ok(format)
    }

    /// A built-in format, whose lines may have more at their end.
    fn open_ended(text: &str) -> Self {
        let format = Self::parse(text).expect("the built-in formats are well-formed");
        Self {
            open_ended: true,
            ..format
        }
    }

    fn push_literal(&mut self, text: &str) {
        let end = self.fields.last_mut().map(|(_, end)| end);
        end.unwrap_or(&mut self.start)
            .extend_from_slice(text.as_bytes());
    }

    /// Splits a line; `indices` has the index of each value in `cut`.
    fn split(&self, line: &[u8], indices: &[Option<usize>], cut: &mut CutFields) -> bool {
        if !line.starts_with(&self.start) {
            return false;
        }
        let mut at = self.start.len();
        for ((_, end), index) in self.fields.iter().zip(indices) {
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
            if let Some(index) = index {
                cut.set(*index, at..at + length);
            }
            at += length + end.len();
        }
        self.open_ended || at == line.len()
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The text of a format and how it escapes, of `log_format main escape=json '…' '…';` or the text alone.
fn strip_directive(text: &str) -> (String, EscapeStyle) {
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
    (unquoted(bare).unwrap_or_else(|| rest.to_owned()), escape)
}

/// The texts of `'…' '…'` joined; `None` if there is more than quoted texts.
fn unquoted(text: &str) -> Option<String> {
    // Not double quotes: a format may begin and end with them.
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

/// Where a fixed text begins. A quote behind a backslash belongs to the value.
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

/// Splits lines of one format.
#[derive(Debug)]
pub(super) enum LineSplitter {
    Json(Vec<String>),
    Text {
        format: TextFormat,
        /// For each variable of the format, its index among the wanted ones.
        indices: Vec<Option<usize>>,
        wanted: usize,
    },
}

impl LineSplitter {
    /// Finds the values in a line; false if it does not have the format.
    pub(super) fn split(&self, line: &[u8], cut: &mut CutFields) -> bool {
        match self {
            Self::Json(wanted) => {
                cut.reset(wanted.len());
                walk(line, |key, span| {
                    let name = variable(key);
                    if let Some(index) = wanted.iter().position(|wanted| wanted == name) {
                        cut.set(index, span);
                    }
                })
            }
            Self::Text {
                format,
                indices,
                wanted,
            } => {
                cut.reset(*wanted);
                format.split(line, indices, cut)
            }
        }
    }
}

/// Where the wanted values stand in a line.
#[derive(Debug, Default)]
pub(super) struct CutFields {
    spans: Vec<Range<usize>>,
}

impl CutFields {
    fn reset(&mut self, count: usize) {
        self.spans.clear();
        self.spans.resize(count, 0..0);
    }

    fn set(&mut self, wanted: usize, span: Range<usize>) {
        if let Some(value) = self.spans.get_mut(wanted) {
            *value = span;
        }
    }

    /// A value of the line that was split, by its index among the wanted variables; empty for `-` and where the line has
    /// none.
    pub(super) fn value<'l>(&self, line: &'l [u8], wanted: usize) -> &'l [u8] {
        let span = self.spans.get(wanted).cloned().unwrap_or(0..0);
        match line.get(span).unwrap_or_default() {
            b"-" => b"",
            value => value,
        }
    }
}

/// The variables in a line of JSON; none if it is not an object.
fn json_variables(line: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    let whole = walk(line, |key, _| names.push(variable(key).to_owned()));
    if whole { names } else { Vec::new() }
}

/// The nginx variable for a JSON key.
fn variable(key: &[u8]) -> &str {
    match key {
        b"@timestamp" | b"timestamp" | b"ts" => "time",
        b"client_ip" | b"remote_ip" => "remote_addr",
        b"method" => "request_method",
        b"referer" => "http_referer",
        b"uri" => "request_uri",
        b"user_agent" => "http_user_agent",
        key => std::str::from_utf8(key).unwrap_or_default(),
    }
}

/// Walks through the members of an object; false if the line is not one.
fn walk(line: &[u8], mut member: impl FnMut(&[u8], Range<usize>)) -> bool {
    let mut at = spaces(line, 0);
    if line.get(at) != Some(&b'{') {
        return false;
    }
    at = spaces(line, at + 1);
    if line.get(at) == Some(&b'}') {
        return spaces(line, at + 1) == line.len();
    }
    loop {
        let Some(key) = string(line, at) else {
            return false;
        };
        at = spaces(line, key.end + 1);
        if line.get(at) != Some(&b':') {
            return false;
        }
        at = spaces(line, at + 1);
        let Some((span, after)) = value(line, at) else {
            return false;
        };
        member(&line[key], span);
        at = spaces(line, after);
        match line.get(at) {
            Some(b',') => at = spaces(line, at + 1),
            Some(b'}') => return spaces(line, at + 1) == line.len(),
            _ => return false,
        }
    }
}

fn spaces(line: &[u8], from: usize) -> usize {
    let rest = line.get(from..).unwrap_or_default();
    from + rest
        .iter()
        .take_while(|byte| byte.is_ascii_whitespace())
        .count()
}

/// The inside of a string that begins here.
fn string(line: &[u8], at: usize) -> Option<Range<usize>> {
    if line.get(at) != Some(&b'"') {
        return None;
    }
    let start = at + 1;
    let mut from = start;
    loop {
        let found = from + memchr2(b'"', b'\\', line.get(from..)?)?;
        if line[found] == b'"' {
            return Some(start..found);
        }
        from = found + 2;
    }
}

/// A value that begins here, and where it ends; empty for `null`, objects and lists.
fn value(line: &[u8], at: usize) -> Option<(Range<usize>, usize)> {
    match line.get(at)? {
        b'"' => string(line, at).map(|inside| (inside.clone(), inside.end + 1)),
        b'{' | b'[' => nested(line, at).map(|end| (0..0, end)),
        _ => {
            let rest = line.get(at..)?;
            let length = rest.iter().position(|byte| {
                matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace()
            })?;
            let span = if rest.starts_with(b"null") {
                0..0
            } else {
                at..at + length
            };
            (length > 0).then_some((span, at + length))
        }
    }
}

/// Where an object or list that begins here ends.
fn nested(line: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    loop {
        match line.get(at)? {
            b'"' => at = string(line, at)?.end,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

/// Appends a value without its escapes.
pub(super) fn unescape(value: &[u8], escape: EscapeStyle, out: &mut Vec<u8>) {
    let mut rest = value;
    if escape != EscapeStyle::None {
        while let Some(at) = memchr(b'\\', rest) {
            out.extend_from_slice(&rest[..at]);
            let taken = unescape_one(&rest[at + 1..], out);
            rest = &rest[at + 1 + taken..];
        }
    }
    out.extend_from_slice(rest);
}

/// Appends what the bytes behind a backslash stand for, and returns how many they are. Unknown escapes stay as they are.
fn unescape_one(behind: &[u8], out: &mut Vec<u8>) -> usize {
    let (letter, taken) = match behind {
        [b'x', high, low, ..] if let Some(byte) = hex_byte(*high, *low) => {
            out.push(byte);
            return 3;
        }
        [b'u', digits @ ..] if let Some((letter, taken)) = unicode(digits) => (letter, 1 + taken),
        [plain @ (b'"' | b'\\' | b'/'), ..] => (char::from(*plain), 1),
        [b'n', ..] => ('\n', 1),
        [b'r', ..] => ('\r', 1),
        [b't', ..] => ('\t', 1),
        [b'b', ..] => ('\x08', 1),
        [b'f', ..] => ('\x0c', 1),
        _ => ('\\', 0),
    };
    out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
    taken
}

/// The character of four hexadecimal digits, or of two surrogates with `\u` between them, and how long they are.
fn unicode(digits: &[u8]) -> Option<(char, usize)> {
    let first = code_unit(digits)?;
    let second = digits
        .get(4..)
        .and_then(|rest| code_unit(rest.strip_prefix(b"\\u")?));
    let units = [first].into_iter().chain(second);
    let letter = char::decode_utf16(units).next()?.ok()?;
    Some((letter, if letter.len_utf16() == 2 { 10 } else { 4 }))
}

fn code_unit(digits: &[u8]) -> Option<u16> {
    let [a, b, c, d, ..] = digits else {
        return None;
    };
    Some(u16::from_be_bytes([hex_byte(*a, *b)?, hex_byte(*c, *d)?]))
}

#[cfg(test)]
#[path = "tests/format.rs"]
mod tests;
