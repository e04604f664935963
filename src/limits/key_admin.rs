//! What operators know of a zone's keys, and what they want of them.
//!
//! Keys that are blocked, exempt or granted something are few and put there by hand, so they have a plain map behind a
//! lock. While there are none anywhere, which is nearly always, a request pays for one look at a flag.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Millis;
use crate::message::RequestRecord;
use crate::store::{Key, TopKeys};

/// What is known and wanted of the keys of a zone; outlives the zone when that is made anew under its name.
#[derive(Debug, Default)]
pub struct KeyAdmin {
    /// Who asks most, and who is refused most.
    pub busiest: TopKeys,
    marked: Mutex<HashMap<[u64; 2], Vec<KeyActionEntry>>>,
    /// How many keys that are, so that nobody takes the lock for nothing.
    count: AtomicUsize,
}

/// What an operator puts on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyAction {
    /// All its requests are refused.
    Block,
    /// It is not limited.
    Exempt,
    /// So many requests of it are not limited.
    Grant(u64),
}

/// A mark on a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyActionEntry {
    /// The key as people read it.
    pub key: Box<str>,
    /// What it is.
    pub mark: KeyAction,
    /// Until when.
    pub until: Millis,
    /// Why, if somebody said so.
    pub reason: Option<Box<str>>,
}

/// There are too many marked keys already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyActions;

/// Whether any key of any zone was ever marked: then two zones may not hold the same key to be the same thing.
#[inline]
pub(super) fn any_marks() -> bool {
    ANY.load(Ordering::Relaxed)
}

impl KeyAction {
    /// In a word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Exempt => "exempt",
            Self::Grant(_) => "grant",
        }
    }

    fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

impl KeyAdmin {
    /// Puts a mark on a key, in place of one of the same kind.
    ///
    /// # Errors
    /// There is no room for one more key.
    pub fn put(
        &self,
        key: &Key,
        marked: KeyActionEntry,
        now: Millis,
    ) -> Result<(), TooManyActions> {
        let mut all = self.marked.lock();
        prune(&mut all, now);
        if all.len() >= MAX_KEY_ACTIONS && !all.contains_key(&key.id()) {
            return Err(TooManyActions);
        }
        let own = all.entry(key.id()).or_default();
        own.retain(|other| !other.mark.is_like(marked.mark));
        own.push(marked);
        self.count.store(all.len(), Ordering::Relaxed);
        ANY.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Takes a mark of this kind off a key; whether there was one.
    pub fn remove(&self, key: &Key, mark: KeyAction) -> bool {
        let mut all = self.marked.lock();
        let Some(own) = all.get_mut(&key.id()) else {
            return false;
        };
        let before = own.len();
        own.retain(|other| !other.mark.is_like(mark));
        let removed = own.len() < before;
        all.retain(|_, own| !own.is_empty());
        self.count.store(all.len(), Ordering::Relaxed);
        removed
    }

    /// All marks there are, those that end first in front.
    #[must_use]
    pub fn marks(&self, now: Millis) -> Vec<KeyActionEntry> {
        let mut all = self.marked.lock();
        prune(&mut all, now);
        self.count.store(all.len(), Ordering::Relaxed);
        let mut marks: Vec<_> = all.values().flatten().cloned().collect();
        marks.sort_by(|one, other| (one.until, &one.key).cmp(&(other.until, &other.key)));
        marks
    }

    /// Those on one key.
    #[must_use]
    pub fn marks_on(&self, key: &Key, now: Millis) -> Vec<KeyActionEntry> {
        if !self.has_marks() {
            return Vec::new();
        }
        let all = self.marked.lock();
        let own = all.get(&key.id()).into_iter().flatten();
        own.filter(|marked| marked.until > now).cloned().collect()
    }

    /// How many keys are marked.
    #[must_use]
    pub fn marked(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn has_marks(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Whether a key is not limited for now.
    #[inline]
    pub(super) fn frees(&self, key: &Key, record: &RequestRecord) -> bool {
        self.has_marks() && self.freedom(key, record.started).is_some()
    }

    /// For how much longer a key is blocked, and why.
    pub(super) fn block(&self, key: &Key, now: Millis) -> Option<(Duration, Option<Box<str>>)> {
        let mut marks = self.marks_on(key, now).into_iter();
        let block = marks.find(|marked| marked.mark == KeyAction::Block)?;
        Some((block.until.since(now), block.reason))
    }

    /// The mark by which a key is not limited, if there is one and it is not blocked.
    pub(super) fn freedom(&self, key: &Key, now: Millis) -> Option<KeyAction> {
        let marks = self.marks_on(key, now);
        let has = |wanted: fn(KeyAction) -> bool| marks.iter().find(|marked| wanted(marked.mark));
        if has(|mark| mark == KeyAction::Block).is_some() {
            return None;
        }
        let exempt = has(|mark| mark == KeyAction::Exempt);
        let granted = || has(|mark| matches!(mark, KeyAction::Grant(1..)));
        exempt.or_else(granted).map(|marked| marked.mark)
    }

    /// A key has made use of what it was granted.
    pub(super) fn spend(&self, key: &Key, now: Millis) {
        if !self.has_marks() || !matches!(self.freedom(key, now), Some(KeyAction::Grant(_))) {
            return;
        }
        let mut all = self.marked.lock();
        for marked in all.get_mut(&key.id()).into_iter().flatten() {
            if let KeyAction::Grant(left) = &mut marked.mark {
                *left = left.saturating_sub(1);
            }
        }
        prune(&mut all, now);
        self.count.store(all.len(), Ordering::Relaxed);
    }
}

/// Forgets marks whose time is over, and grants that were used up.
fn prune(all: &mut HashMap<[u64; 2], Vec<KeyActionEntry>>, now: Millis) {
    all.retain(|_, own| {
        own.retain(|marked| marked.until > now && marked.mark != KeyAction::Grant(0));
        !own.is_empty()
    });
}

static ANY: AtomicBool = AtomicBool::new(false);

/// Keys with marks in a zone.
pub const MAX_KEY_ACTIONS: usize = 10_000;

#[cfg(test)]
mod tests {

    use super::*;

    fn marked(mark: KeyAction, until: u64) -> KeyActionEntry {
        KeyActionEntry {
            key: "k".into(),
            mark,
            until: Millis(until),
            reason: None,
        }
    }

    #[test]
    fn a_mark_holds_until_its_time_or_until_it_is_taken_off() {
        let (watch, key) = (KeyAdmin::default(), Key::from_bytes(b"k"));
        assert!(!watch.has_marks());
        watch
            .put(&key, marked(KeyAction::Block, 1000), Millis(0))
            .unwrap();
        watch
            .put(&key, marked(KeyAction::Exempt, 5000), Millis(0))
            .unwrap();
        assert_eq!(
            watch.block(&key, Millis(400)),
            Some((Duration::from_millis(600), None))
        );
        assert_eq!(
            watch.freedom(&key, Millis(400)),
            None,
            "a block is stronger"
        );
        assert_eq!(watch.block(&key, Millis(1000)), None);
        assert_eq!(watch.freedom(&key, Millis(1000)), Some(KeyAction::Exempt));
        assert_eq!(watch.marks(Millis(1000)), [marked(KeyAction::Exempt, 5000)]);
        assert!(watch.remove(&key, KeyAction::Exempt) && !watch.remove(&key, KeyAction::Exempt));
        assert!(!watch.has_marks());
        assert_eq!(watch.block(&Key::from_bytes(b"other"), Millis(0)), None);
    }

    #[test]
    fn a_grant_is_used_up() {
        let (watch, key) = (KeyAdmin::default(), Key::from_bytes(b"k"));
        watch
            .put(&key, marked(KeyAction::Grant(2), 1000), Millis(0))
            .unwrap();
        for left in [2, 1] {
            assert_eq!(watch.freedom(&key, Millis(0)), Some(KeyAction::Grant(left)));
            watch.spend(&key, Millis(0));
        }
        assert_eq!(watch.freedom(&key, Millis(0)), None);
        assert!(!watch.has_marks());
    }

    #[test]
    fn there_is_room_for_so_many_keys() {
        let watch = KeyAdmin::default();
        let key = |number: usize| Key::from_bytes(&number.to_be_bytes());
        for number in 0..MAX_KEY_ACTIONS {
            watch
                .put(&key(number), marked(KeyAction::Block, 1000), Millis(0))
                .unwrap();
        }
        let one_more = marked(KeyAction::Block, 2000);
        assert_eq!(
            watch.put(&key(MAX_KEY_ACTIONS), one_more.clone(), Millis(0)),
            Err(TooManyActions)
        );
        assert_eq!(watch.put(&key(0), one_more.clone(), Millis(0)), Ok(()));
        assert_eq!(
            watch.put(&key(MAX_KEY_ACTIONS), one_more, Millis(1500)),
            Ok(())
        );
    }
}
