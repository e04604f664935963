//! An HTTP/1.1 parser for the client and the backend, independent of hyper, so that the tests have a second opinion on what
//! weir sends.

use std::io::{self, Error, ErrorKind, Read};

/// A head: its first line and its fields in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Head {
    pub(crate) text: String,
    pub(crate) line: String,
    pub(crate) fields: Vec<(String, String)>,
}

impl Head {
    fn parse(bytes: &[u8]) -> io::Result<Self> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let mut lines = text.split("\r\n");
        let line = lines.next().unwrap_or_default().to_owned();
        let fields = fields(lines)?;
        Ok(Self { text, line, fields })
    }

    /// The first field of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// Every field of this name.
    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.fields
            .iter()
            .filter(move |(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The n-th word of the first line.
    pub(crate) fn word(&self, n: usize) -> &str {
        self.line.split(' ').nth(n).unwrap_or_default()
    }

    pub(crate) fn is_chunked(&self) -> bool {
        self.get("transfer-encoding")
            .is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"))
    }

    pub(crate) fn content_length(&self) -> Option<usize> {
        self.get("content-length")?.parse().ok()
    }
}

/// The lines of a head or of trailers as fields.
fn fields<'a>(lines: impl Iterator<Item = &'a str>) -> io::Result<Vec<(String, String)>> {
    lines
        .filter(|line| !line.is_empty())
        .map(|line| match line.split_once(':') {
            Some((name, value)) => Ok((name.to_owned(), value.trim().to_owned())),
            None => Err(Error::new(
                ErrorKind::InvalidData,
                format!("no field: {line}"),
            )),
        })
        .collect()
}

/// Bytes as they come, read message by message.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    source: R,
    buffer: Vec<u8>,
}

impl<R: Read> Reader<R> {
    pub(crate) fn new(source: R) -> Self {
        Self {
            source,
            buffer: Vec::new(),
        }
    }

    pub(crate) fn source(&self) -> &R {
        &self.source
    }

    /// The next head; `None` where the other end closed instead of beginning one.
    pub(crate) fn head(&mut self) -> io::Result<Option<Head>> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                let bytes: Vec<u8> = self.buffer.drain(..end + 4).collect();
                return Head::parse(&bytes[..end]).map(Some);
            }
            if self.fill()? == 0 {
                return match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }

    /// The next bytes, at most `most`; none at the end of the stream.
    pub(crate) fn some(&mut self, most: usize) -> io::Result<Vec<u8>> {
        if self.buffer.is_empty() {
            self.fill()?;
        }
        let taken = self.buffer.len().min(most);
        Ok(self.buffer.drain(..taken).collect())
    }

    /// `length` bytes, each piece handed to `take` as it comes.
    pub(crate) fn exactly(
        &mut self,
        mut length: usize,
        take: &mut dyn FnMut(&[u8]),
    ) -> io::Result<()> {
        while length > 0 {
            let piece = self.some(length)?;
            if piece.is_empty() {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            length -= piece.len();
            take(&piece);
        }
        Ok(())
    }

    /// A chunked body, each piece handed to `take` as it comes; gives the trailers.
    pub(crate) fn chunked(
        &mut self,
        take: &mut dyn FnMut(&[u8]),
    ) -> io::Result<Vec<(String, String)>> {
        loop {
            let line = self.line()?;
            let size = line.split(';').next().unwrap_or_default();
            let size = usize::from_str_radix(size, 16).map_err(|_| {
                Error::new(ErrorKind::InvalidData, format!("no chunk size: {line}"))
            })?;
            if size == 0 {
                let mut lines = Vec::new();
                loop {
                    match self.line()? {
                        line if line.is_empty() => {
                            return fields(lines.iter().map(String::as_str));
                        }
                        line => lines.push(line),
                    }
                }
            }
            self.exactly(size, take)?;
            if !self.line()?.is_empty() {
                return Err(Error::new(
                    ErrorKind::InvalidData,
                    "no line end after a chunk",
                ));
            }
        }
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n") {
                let bytes: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&bytes[..end]).into_owned());
            }
            if self.fill()? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn fill(&mut self) -> io::Result<usize> {
        let mut piece = [0; 16 * 1024];
        // A read with a timeout ends early when the machine stops and resumes the process.
        let length = loop {
            match self.source.read(&mut piece) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        self.buffer.extend_from_slice(&piece[..length]);
        Ok(length)
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}
