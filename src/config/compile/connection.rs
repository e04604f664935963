//! What holds for a connection before the location of its first request is known.

use super::Compiler;
use crate::config::decode::Field;
use crate::config::model;
use crate::config::plan::Http2;

/// nginx's default of `large_client_header_buffers`, multiplied out.
const MAX_HEAD: u64 = 4 * (8 << 10);

/// Largest head accepted in a configuration: every connection may make us keep as much.
const MOST_HEAD: u64 = 16 << 20;

/// nginx's default of `http2_max_concurrent_streams`.
const MAX_STREAMS: u32 = 128;

/// A page that is left takes all its streams with it, twice; so many resets are allowed at least.
const MAX_RESETS: u32 = 200;

/// A server's settings, and those it inherits.
type Levels<'c> = [&'c model::Connection; 2];

impl Compiler<'_> {
    /// How large a head may be.
    pub(super) fn max_head(&mut self, levels: Levels<'_>) -> usize {
        let given = levels
            .iter()
            .find_map(|level| level.large_client_header_buffers.get());
        let bytes = given.map_or(MAX_HEAD, |given| {
            given.value.number.saturating_mul(given.value.size)
        });
        if let Some(given) = given.filter(|_| !(1024..=MOST_HEAD).contains(&bytes)) {
            self.complain_with(
                given.span,
                "no sensible size for a request's head",
                "number and size multiplied give 1k to 16m",
            );
        }
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

/// `http2`
pub(super) fn http2(levels: Levels<'_>) -> Http2 {
    let flag = said(levels, |level| &level.http2).map(|flag| flag.0);
    spoken(flag, false).unwrap_or_default()
}

/// `http2_max_concurrent_streams`
pub(super) fn max_streams(levels: Levels<'_>) -> u32 {
    said(levels, |level| &level.http2_max_concurrent_streams).map_or(MAX_STREAMS, |most| most.0)
}

/// `http2_max_resets`
pub(super) fn max_resets(levels: Levels<'_>) -> u32 {
    let most = said(levels, |level| &level.http2_max_resets);
    most.map_or_else(
        || max_streams(levels).saturating_mul(2).max(MAX_RESETS),
        |most| most.0,
    )
}

/// What the innermost level says that says anything.
fn said<'c, T>(
    levels: Levels<'c>,
    of: impl Fn(&'c model::Connection) -> &'c Field<T>,
) -> Option<&'c T> {
    levels.iter().find_map(|level| of(level).value())
}

/// Whether HTTP/2 is spoken, by a flag or else by the word.
pub(super) fn spoken(flag: Option<bool>, word: bool) -> Option<Http2> {
    match flag {
        Some(false) => Some(Http2::Off),
        Some(true) => Some(Http2::On),
        None => word.then_some(Http2::On),
    }
}
