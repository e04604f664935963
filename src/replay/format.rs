//! What a line of a log looks like, and where in it things stand.
//!
//! A format is taken apart once; after that a line is cut up where its fixed texts stand, nothing is copied, and only
//! the names somebody wants are kept.
//!
//! Lines that are JSON objects: weir's own, or those of anybody who names fields as nginx names variables.
//!
//! Read by hand and flat: what stands inside an inner object or list is passed over.
//!
//! Values as they were before they were written into a line.

use std::ops::Range;

use memchr::{memchr, memchr2};

use super::log_format::{self, FormatTokens};

/// The shape of a log's lines.
#[derive(Debug, Clone)]
pub(super) enum InputFormat {
    /// An object a line. The names are those of the first.
    Json(Vec<String>),
    /// Text with variables in it.
    Text(FormatTokens),
}

/// How values are made safe to stand in a line.
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
    /// Nothing stands between two variables, so that nobody can say where the first one ends.
    #[error("nothing tells where `${0}` ends and `${1}` begins")]
    Adjacent(String, String),
    /// There is no variable in it, and it is no name of a format either.
    #[error(
        "`{0}` is no log format: expected combined, common, json, or the text of nginx's log_format"
    )]
    Unknown(String),
    /// A name is missing after `${`, or a `}` after the name.
    #[error("`${{` without a name and a `}}`")]
    Unclosed,
}

impl InputFormat {
    /// Reads what a user writes: a name, or the text of a `log_format`, with or without the directive around it.
    pub(super) fn parse(text: &str) -> Result<Self, FormatError> {
        Ok(match text.trim() {
            "combined" => Self::combined(),
            "common" => Self::common(),
            "json" => Self::Json(Vec::new()),
            text => Self::Text(log_format::parse(text)?),
        })
    }

    /// The format of a line, if it is one of those that need not be described.
    pub(super) fn guess(line: &[u8]) -> Option<Self> {
        let json = Self::Json(Vec::new());
        [json, Self::combined(), Self::common()]
            .into_iter()
            .find_map(|format| {
                let format = format.seen(line);
                format.fits(line).then_some(format)
            })
    }

    /// Whether a line has this shape.
    pub(super) fn fits(&self, line: &[u8]) -> bool {
        self.cutter(&[]).cut(line, &mut CutFields::default())
    }

    /// The same format, now that this line of it is known.
    pub(super) fn seen(self, line: &[u8]) -> Self {
        match self {
            Self::Json(_) => Self::Json(names(line)),
            text @ Self::Text(_) => text,
        }
    }

    /// The variables that lines show.
    pub(super) fn names(&self) -> Vec<&str> {
        match self {
            Self::Json(names) => names.iter().map(String::as_str).collect(),
            Self::Text(pieces) => pieces.names(),
        }
    }

    /// How its values are escaped.
    pub(super) fn escape(&self) -> EscapeStyle {
        match self {
            Self::Json(_) => EscapeStyle::Json,
            Self::Text(pieces) => pieces.escape,
        }
    }

    /// Something to cut lines up with, that finds the values of these names.
    pub(super) fn cutter(&self, wanted: &[String]) -> LineSplitter {
        match self {
            Self::Json(_) => LineSplitter::Json(wanted.to_vec()),
            Self::Text(pieces) => LineSplitter::Text(log_format::TextSplitter::new(pieces, wanted)),
        }
    }

    fn combined() -> Self {
        Self::Text(log_format::open_ended(concat!(
            "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent ",
            "\"$http_referer\" \"$http_user_agent\""
        )))
    }

    fn common() -> Self {
        Self::Text(log_format::open_ended(
            "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent",
        ))
    }
}

/// Cuts lines up.
#[derive(Debug)]
pub(super) enum LineSplitter {
    Json(Vec<String>),
    Text(log_format::TextSplitter),
}

impl LineSplitter {
    /// Finds the values in a line; false if it does not have the format's shape.
    pub(super) fn cut(&self, line: &[u8], cut: &mut CutFields) -> bool {
        match self {
            Self::Json(wanted) => {
                cut.reset(wanted.len());
                cut_json(line, wanted, cut)
            }
            Self::Text(cutter) => cutter.cut(line, cut),
        }
    }
}

/// Where the wanted values stand in a line.
#[derive(Debug, Default)]
pub(super) struct CutFields {
    spans: Vec<Range<usize>>,
}

impl CutFields {
    pub(super) fn reset(&mut self, count: usize) {
        self.spans.clear();
        self.spans.resize(count, 0..0);
    }

    pub(super) fn set(&mut self, wanted: usize, span: Range<usize>) {
        if let Some(place) = self.spans.get_mut(wanted) {
            *place = span;
        }
    }

    /// A value of the line that was cut, by its place among the wanted names; empty where the line has none. `-` is
    /// how logs write nothing.
    pub(super) fn value<'l>(&self, line: &'l [u8], wanted: usize) -> &'l [u8] {
        let span = self.spans.get(wanted).cloned().unwrap_or(0..0);
        match line.get(span).unwrap_or_default() {
            b"-" => b"",
            value => value,
        }
    }
}

/// The variables a line shows; none if it is not an object.
pub(super) fn names(line: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    let whole = walk(line, |key, _| names.push(variable(key).to_owned()));
    if whole { names } else { Vec::new() }
}

/// Finds the values of the wanted names; false if the line is not an object.
pub(super) fn cut_json(line: &[u8], wanted: &[String], cut: &mut CutFields) -> bool {
    walk(line, |key, span| {
        let name = variable(key);
        if let Some(which) = wanted.iter().position(|wanted| wanted == name) {
            cut.set(which, span);
        }
    })
}

/// What a key is called among nginx's variables.
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

/// Goes through the members of an object; false if it is none.
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

/// A value that begins here, and where it ends; `null`, objects and lists have nothing to show.
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

/// Appends a value with its escapes undone.
pub(super) fn unescape(value: &[u8], escape: EscapeStyle, out: &mut Vec<u8>) {
    let mut rest = value;
    if escape != EscapeStyle::None {
        while let Some(at) = memchr(b'\\', rest) {
            out.extend_from_slice(&rest[..at]);
            let taken = sequence(&rest[at + 1..], out);
            rest = &rest[at + 1 + taken..];
        }
    }
    out.extend_from_slice(rest);
}

/// Appends what the letters behind a backslash stand for, and says how many they are. What stands for nothing stays.
fn sequence(behind: &[u8], out: &mut Vec<u8>) -> usize {
    match behind {
        [b'x', high, low, ..] => {
            if let Some(byte) = hex(*high).zip(hex(*low)).map(|(high, low)| high << 4 | low) {
                // Two digits make one byte.
                out.push(byte as u8);
                return 3;
            }
        }
        [b'u', digits @ ..] => {
            if let Some((letter, taken)) = unicode(digits) {
                out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                return 1 + taken;
            }
        }
        [plain @ (b'"' | b'\\' | b'/'), ..] => {
            out.push(*plain);
            return 1;
        }
        [letter @ (b'n' | b'r' | b't' | b'b' | b'f'), ..] => {
            out.push(match letter {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'b' => 8,
                _ => 12,
            });
            return 1;
        }
        _ => {}
    }
    out.push(b'\\');
    0
}

/// Four digits, or twice four with a backslash and a `u` between them.
fn unicode(digits: &[u8]) -> Option<(char, usize)> {
    let first = four(digits)?;
    if let Some(letter) = char::from_u32(first) {
        return Some((letter, 4));
    }
    let second = four(digits.get(4..)?.strip_prefix(b"\\u")?)?;
    let mut pair = char::decode_utf16([u16::try_from(first).ok()?, u16::try_from(second).ok()?]);
    let letter = pair.next()?.ok()?;
    Some((letter, 10))
}

fn four(digits: &[u8]) -> Option<u32> {
    let digits = digits.get(..4)?;
    digits
        .iter()
        .try_fold(0, |number, digit| Some(number << 4 | hex(*digit)?))
}

fn hex(digit: u8) -> Option<u32> {
    char::from(digit).to_digit(16)
}

#[cfg(test)]
mod tests {

    use super::*;

    fn values(format: &InputFormat, line: &str, wanted: &[&str]) -> Option<Vec<String>> {
        let wanted: Vec<_> = wanted.iter().map(|name| (*name).to_owned()).collect();
        let mut cut = CutFields::default();
        let fits = format.cutter(&wanted).cut(line.as_bytes(), &mut cut);
        let value = |at| String::from_utf8_lossy(cut.value(line.as_bytes(), at)).into_owned();
        fits.then(|| (0..wanted.len()).map(value).collect())
    }

    const COMBINED: &str = r#"192.0.2.7 - - [16/Nov/2026:02:03:23 +0000] "GET /a?b=c HTTP/1.1" 200 42 "-" "curl/8 \x22x\x22""#;

    #[test]
    fn well_known_formats_are_recognised() {
        let format = InputFormat::guess(COMBINED.as_bytes()).unwrap();
        let wanted = [
            "remote_addr",
            "time_local",
            "request",
            "remote_user",
            "http_user_agent",
            "http_none",
        ];
        assert_eq!(
            values(&format, COMBINED, &wanted).unwrap(),
            [
                "192.0.2.7",
                "16/Nov/2026:02:03:23 +0000",
                "GET /a?b=c HTTP/1.1",
                "",
                r"curl/8 \x22x\x22",
                ""
            ]
        );
        let common = COMBINED.split(" \"-\"").next().unwrap();
        let format = InputFormat::guess(common.as_bytes()).unwrap();
        assert_eq!(values(&format, common, &["status"]).unwrap(), ["200"]);
        assert!(!format.names().contains(&"http_referer"));
        assert!(
            InputFormat::guess(br#"{"time":"x"}"#)
                .is_some_and(|format| matches!(format, InputFormat::Json(_)))
        );
        for strange in ["", "hello", "{", "192.0.2.7 GET /"] {
            assert!(
                InputFormat::guess(strange.as_bytes()).is_none(),
                "{strange}"
            );
        }
    }

    /// nginx's packages come with a `main` that is combined and one field more.
    #[test]
    fn more_fields_than_combined_has_do_no_harm() {
        let line = format!("{COMBINED} \"10.0.0.1\"");
        let format = InputFormat::guess(line.as_bytes()).unwrap();
        assert_eq!(
            values(&format, &line, &["http_user_agent"]).unwrap(),
            [r"curl/8 \x22x\x22"]
        );
    }

    #[test]
    fn a_line_of_another_shape_is_none() {
        let format = InputFormat::combined();
        let half = COMBINED.split(" HTTP").next().unwrap();
        for line in ["", "x", "1.2.3.4 - - [", half] {
            assert!(values(&format, line, &["remote_addr"]).is_none(), "{line}");
        }
    }
}

#[cfg(test)]
mod json_tests {

    use proptest::prelude::*;

    use super::*;

    fn values(line: &str, wanted: &[&str]) -> Option<Vec<String>> {
        let wanted: Vec<_> = wanted.iter().map(|name| (*name).to_owned()).collect();
        let mut found = CutFields::default();
        found.reset(wanted.len());
        let whole = cut_json(line.as_bytes(), &wanted, &mut found);
        let value = |at| String::from_utf8_lossy(found.value(line.as_bytes(), at)).into_owned();
        whole.then(|| (0..wanted.len()).map(value).collect())
    }

    #[test]
    fn members_are_found_whatever_stands_between_them() {
        let line = r#"{"time":"x","n":{"host":"no","l":[1,"}"]},"uri":"/a\"b", "host" : "h","request_time":0.017,"z":null}"#;
        let wanted = ["host", "request_uri", "request_time", "z", "time"];
        assert_eq!(
            values(line, &wanted).unwrap(),
            ["h", r#"/a\"b"#, "0.017", "", "x"]
        );
        assert_eq!(names(line.as_bytes()).len(), 6);
        assert_eq!(values("{}", &["a"]).unwrap(), [""]);
    }

    #[test]
    fn what_is_no_object_is_none() {
        for line in [
            "",
            "[]",
            "{",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":1"#,
            r#"{"a":"b}"#,
            r#"{"a":1}x"#,
            r#"{"a":[1}"#,
            r#"{"a":1,}"#,
        ] {
            assert!(values(line, &["a"]).is_none(), "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_line_is_too_strange(line in "[{}\\[\\]\",:\\\\a1 ]{0,40}") {
            values(&line, &["a"]);
        }

        // The underscore keeps the key from being one that nginx calls otherwise, such as `ts`.
        #[test]
        fn what_is_json_is_read(key in "_[a-z]{1,5}", text: String, number: u32) {
            let line = serde_json::json!({ &key: text, "n_1": number }).to_string();
            let found = values(&line, &[&key, "n_1"]).unwrap();
            let back: String = serde_json::from_str(&format!("\"{}\"", found[0])).unwrap();
            prop_assert!(back == text || text == "-");
            prop_assert_eq!(&found[1], &number.to_string());
        }
    }
}

#[cfg(test)]
mod value_tests {

    use proptest::prelude::*;

    use super::*;

    fn plain(value: &str, escape: EscapeStyle) -> Vec<u8> {
        let mut out = Vec::new();
        unescape(value.as_bytes(), escape, &mut out);
        out
    }

    #[test]
    fn escapes_are_undone() {
        assert_eq!(
            plain(r"a\x22b\x5Cc\xff", EscapeStyle::Backslash),
            b"a\"b\\c\xff"
        );
        assert_eq!(plain(r#"a\"b\\c\/"#, EscapeStyle::Json), b"a\"b\\c/");
        assert_eq!(
            plain(r"\u00e9\ud83d\ude00\n", EscapeStyle::Json),
            "é😀\n".as_bytes()
        );
        assert_eq!(plain(r"\x22", EscapeStyle::None), br"\x22");
    }

    #[test]
    fn what_is_no_escape_stays() {
        for text in [r"\", r"\q", r"\x", r"\xg0", r"\u12", r"\ud800"] {
            assert_eq!(plain(text, EscapeStyle::Json), text.as_bytes(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn json_texts_are_what_they_were(text: String) {
            let written = serde_json::to_string(&text).unwrap();
            let inside = written.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap();
            prop_assert_eq!(plain(inside, EscapeStyle::Json), text.as_bytes());
        }
    }
}
