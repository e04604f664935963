//! Maps of header fields that have served their time.
//!
//! The server keeps the map of every answer for the next request of the same connection. So one has to be made for each
//! answer, and one is left over from each request: they are the same ones.

use std::cell::Cell;

use http::HeaderMap;

thread_local! {
    static SPARE: Cell<Option<HeaderMap>> = const { Cell::new(None) };
}

/// An empty map, mostly with room in it.
#[must_use]
pub fn spare() -> HeaderMap {
    SPARE.take().unwrap_or_default()
}

/// Keeps a map's room for the next one.
pub fn reuse(mut headers: HeaderMap) {
    if (1..=LARGEST).contains(&headers.capacity()) {
        headers.clear();
        SPARE.set(Some(headers));
    }
}

/// Fields of a head of the usual kind; a larger map is not worth its memory.
const LARGEST: usize = 48;

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header};

    use super::*;

    #[test]
    fn room_is_used_again_and_nothing_else() {
        let mut used = HeaderMap::with_capacity(10);
        used.append(header::COOKIE, HeaderValue::from_static("a"));
        used.append(header::COOKIE, HeaderValue::from_static("b"));
        let room = used.capacity();
        reuse(used);
        let map = spare();
        assert_eq!((map.len(), map.capacity()), (0, room));
        assert!(map.get(header::COOKIE).is_none());
        assert_eq!(spare().capacity(), 0);
        reuse(HeaderMap::with_capacity(10 * LARGEST));
        assert_eq!(spare().capacity(), 0);
    }
}
