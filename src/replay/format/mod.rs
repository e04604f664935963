//! What a line of a log looks like, and where in it things stand.
//!
//! A format is taken apart once; after that a line is cut up where its fixed texts stand, nothing is copied, and only
//! the names somebody wants are kept.

mod json;
mod text;
pub(super) mod time;
pub(super) mod value;

use std::ops::Range;

use text::FormatTokens;

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
            text => Self::Text(text::parse(text)?),
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
            Self::Json(_) => Self::Json(json::names(line)),
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
            Self::Text(pieces) => LineSplitter::Text(text::TextSplitter::new(pieces, wanted)),
        }
    }

    fn combined() -> Self {
        Self::Text(text::open_ended(concat!(
            "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent ",
            "\"$http_referer\" \"$http_user_agent\""
        )))
    }

    fn common() -> Self {
        Self::Text(text::open_ended(
            "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent",
        ))
    }
}

/// Cuts lines up.
#[derive(Debug)]
pub(super) enum LineSplitter {
    Json(Vec<String>),
    Text(text::TextSplitter),
}

impl LineSplitter {
    /// Finds the values in a line; false if it does not have the format's shape.
    pub(super) fn cut(&self, line: &[u8], cut: &mut CutFields) -> bool {
        match self {
            Self::Json(wanted) => {
                cut.reset(wanted.len());
                json::cut(line, wanted, cut)
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
    fn reset(&mut self, count: usize) {
        self.spans.clear();
        self.spans.resize(count, 0..0);
    }

    fn set(&mut self, wanted: usize, span: Range<usize>) {
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
