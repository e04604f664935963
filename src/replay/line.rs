//! A line becomes an entry: when, who, and the texts a request is made of.

use std::net::{IpAddr, Ipv4Addr};

use memchr::{memchr, memrchr};

use super::format::time::{self, LogTime};
use super::format::value::unescape;
use super::format::{CutFields, EscapeStyle, InputFormat, LineSplitter};
use super::needs::{FieldPlan, TargetSource};
use super::order::LogEntry;
use crate::message::target::encode_path;

/// Reads lines of one format.
#[derive(Debug)]
pub(super) struct LineParser {
    needs: FieldPlan,
    cutter: LineSplitter,
    escape: EscapeStyle,
    cut: CutFields,
    /// The last moment as it was written, and what it was: a busy log writes the same one many times.
    stamp: (Vec<u8>, Option<LogTime>),
    scratch: Vec<u8>,
    texts: Vec<u8>,
}

impl LineParser {
    pub(super) fn new(needs: FieldPlan, format: &InputFormat) -> Self {
        Self {
            cutter: format.cutter(&needs.names),
            escape: format.escape(),
            needs,
            cut: CutFields::default(),
            stamp: (Vec::new(), None),
            scratch: Vec::new(),
            texts: Vec::new(),
        }
    }

    /// Reads a line; `None` if it is not one. Its texts are there until the next.
    pub(super) fn read(&mut self, line: &[u8], place: (u32, u64)) -> Option<LogEntry> {
        if !self.cutter.cut(line, &mut self.cut) {
            return None;
        }
        let value = |at: usize| self.cut.value(line, at);
        let client = address(value(self.needs.address))?;
        let took = match self.needs.took.map(value) {
            None | Some(b"") => None,
            Some(text) => Some(u32::try_from(time::seconds(text)?).unwrap_or(u32::MAX)),
        };
        let moment = self.moment(line)?;
        self.write_texts(line);
        Some(LogEntry::new(
            moment.millis,
            moment.exact,
            took,
            client,
            place,
        ))
    }

    /// The texts of the line that was read last; see [`texts`].
    pub(super) fn texts(&self) -> &[u8] {
        &self.texts
    }

    fn moment(&mut self, line: &[u8]) -> Option<LogTime> {
        let text = self.cut.value(line, self.needs.time);
        if self.stamp.0 != text {
            self.stamp.0.clear();
            self.stamp.0.extend_from_slice(text);
            self.stamp.1 = time::read(text);
        }
        self.stamp.1
    }

    fn write_texts(&mut self, line: &[u8]) {
        self.texts.clear();
        let (cut, escape, texts) = (&self.cut, self.escape, &mut self.texts);
        let plain = |at: usize, scratch: &mut Vec<u8>| {
            scratch.clear();
            unescape(cut.value(line, at), escape, scratch);
        };
        let scratch = &mut self.scratch;
        match self.needs.target {
            TargetSource::Request(at) => {
                plain(at, scratch);
                let (method, target) = request_line(scratch);
                push(texts, method);
                push(texts, target);
            }
            from => {
                scratch.clear();
                self.needs
                    .method
                    .into_iter()
                    .for_each(|at| plain(at, scratch));
                let method = memchr(b' ', scratch).unwrap_or(scratch.len());
                push(texts, &scratch[..method]);
                match from {
                    TargetSource::Target(at) => plain(at, scratch),
                    TargetSource::Path(at) => {
                        plain(at, scratch);
                        let mut target = encode_path(scratch).into_bytes();
                        self.needs
                            .args
                            .into_iter()
                            .for_each(|at| plain(at, scratch));
                        if self.needs.args.is_some() && !scratch.is_empty() {
                            target.push(b'?');
                            target.extend_from_slice(scratch);
                        }
                        *scratch = target;
                    }
                    TargetSource::Nowhere | TargetSource::Request(_) => scratch.clear(),
                }
                push(texts, scratch);
            }
        }
        for at in self.needs.host.into_iter().chain(self.needs.port) {
            plain(at, scratch);
            push(texts, scratch);
        }
        for (_, at) in &self.needs.fields {
            plain(*at, scratch);
            push(texts, scratch);
        }
    }
}

/// The texts of an entry in their order: method, target, host and port if they are known, then the fields.
pub(super) fn texts(mut texts: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = texts.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        texts = rest;
        Some(text)
    })
}

fn push(texts: &mut Vec<u8>, text: &[u8]) {
    // A line has at most a megabyte.
    let length = u32::try_from(text.len()).unwrap_or(0);
    texts.extend_from_slice(&length.to_le_bytes());
    texts.extend_from_slice(text);
}

/// Method and target of a request line. What is none has no target.
fn request_line(line: &[u8]) -> (&[u8], &[u8]) {
    let Some(first) = memchr(b' ', line) else {
        return (line, b"");
    };
    let (method, rest) = (&line[..first], &line[first + 1..]);
    let target = match memrchr(b' ', rest) {
        Some(last) if rest[last + 1..].starts_with(b"HTTP/") => &rest[..last],
        _ => rest,
    };
    (method, target)
}

/// An address; `Some(None)` for somebody on a unix socket.
fn address(text: &[u8]) -> Option<Option<IpAddr>> {
    if let Some(address) = dotted(text) {
        return Some(Some(address.into()));
    }
    let text = std::str::from_utf8(text).ok()?;
    if text.starts_with("unix:") {
        return Some(None);
    }
    text.parse().ok().map(Some)
}

/// Four numbers with dots between them. By hand: every line has one.
fn dotted(text: &[u8]) -> Option<Ipv4Addr> {
    let mut octets = [0_u8; 4];
    let (mut place, mut digits, mut number) = (0, 0, 0_u32);
    for &byte in text {
        match byte {
            b'0'..=b'9' if digits < 3 => {
                number = number * 10 + u32::from(byte - b'0');
                digits += 1;
            }
            b'.' if digits > 0 && place < 3 => {
                octets[place] = u8::try_from(number).ok()?;
                (place, digits, number) = (place + 1, 0, 0);
            }
            _ => return None,
        }
    }
    octets[place] = u8::try_from(number).ok()?;
    (place == 3 && digits > 0).then(|| octets.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::testing;

    fn read(format: &str, line: &str) -> Option<(LogEntry, Vec<String>)> {
        let format = InputFormat::parse(format).unwrap().seen(line.as_bytes());
        let needs = FieldPlan::find(&mut testing::plan(), &format, false).unwrap();
        let mut reading = LineParser::new(needs, &format);
        let entry = reading.read(line.as_bytes(), (0, 1))?;
        let found = texts(reading.texts()).map(|text| String::from_utf8_lossy(text).into_owned());
        let found = found.collect();
        Some((entry, found))
    }

    #[test]
    fn a_line_of_any_format_is_the_same_request() {
        let lines = [
            (
                "combined",
                r#"192.0.2.7 - - [16/Nov/2026:02:03:23 +0000] "GET /a\x22?b=c HTTP/1.1" 200 42 "-" "-""#,
            ),
            (
                "json",
                r#"{"time":"2026-11-16T02:03:23.000Z","remote_addr":"192.0.2.7","method":"GET","uri":"/a\"?b=c"}"#,
            ),
            (
                "$remote_addr $msec $request_method $uri $args",
                r"192.0.2.7 1794794603.000 GET /a\x22 b=c",
            ),
        ];
        for (format, line) in lines {
            let (entry, texts) = read(format, line).unwrap();
            assert_eq!(entry.at, 1_794_794_603_000);
            assert_eq!(entry.client, Some([192, 0, 2, 7].into()));
            assert_eq!(entry.took, None);
            assert_eq!(texts[0], "GET");
            assert!(["/a\"?b=c", "/a%22?b=c"].contains(&&*texts[1]), "{texts:?}");
        }
    }

    #[test]
    fn how_long_it_took_is_known_where_it_is_logged() {
        let (entry, _) = read(
            "$remote_addr [$msec] $request_time \"$request\"",
            "::1 [5.000] 1.250 \"GET / HTTP/1.0\"",
        )
        .unwrap();
        assert_eq!(entry.took, Some(1_250));
        assert_eq!(entry.client, Some(std::net::Ipv6Addr::LOCALHOST.into()));
    }

    #[test]
    fn a_request_that_is_none_has_no_target() {
        for request in ["-", r"\x16\x03\x01", ""] {
            let line = format!(
                "192.0.2.7 - - [16/Nov/2026:02:03:23 +0000] \"{request}\" 400 0 \"-\" \"-\""
            );
            assert_eq!(read("combined", &line).unwrap().1[1], "", "{request}");
        }
    }

    #[test]
    fn what_has_no_time_or_address_is_no_line() {
        let lines = [
            "x - - [16/Nov/2026:02:03:23 +0000] \"GET / HTTP/1.1\" 200 0 \"-\" \"-\"",
            "1.2.3.4 - - [soon] \"GET / HTTP/1.1\" 200 0 \"-\" \"-\"",
        ];
        for line in lines {
            assert!(read("combined", line).is_none(), "{line}");
        }
    }

    proptest! {
        #[test]
        fn addresses_are_those_of_the_standard_library(text in "[0-9a-f.:]{0,17}") {
            let expected = text.parse::<IpAddr>().ok();
            // Leading zeros are read here and not there.
            if !text.split('.').any(|part| part.len() > 1 && part.starts_with('0')) {
                prop_assert_eq!(address(text.as_bytes()), expected.map(Some));
            }
        }
    }
}
