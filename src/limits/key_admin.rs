//! What operators have done to a zone's keys, and which keys are busiest.
//!
//! Keys that are blocked, exempt or granted requests are few and put there by hand, so they have a plain map behind a
//! lock. While there are none anywhere, which is nearly always, a request pays for one look at a flag.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Millis;
use crate::message::RequestRecord;
use crate::store::{Key, TopKeys};

/// The busiest keys of a zone and the actions on its keys; outlives the zone when that is built anew under its name.
#[derive(Debug, Default)]
pub struct KeyAdmin {
    /// The keys with the most requests and refusals.
    pub busiest: TopKeys,
    actions: Mutex<Actions>,
    /// How many keys have actions; with none, the lock is not taken.
    count: AtomicUsize,
}

/// By the key's id.
type Actions = HashMap<[u64; 2], Vec<KeyActionEntry>>;

/// An operator's action on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyAction {
    /// All its requests are refused.
    Block,
    /// It is not limited.
    Exempt,
    /// So many of its requests are not limited.
    Grant(u64),
}

/// An action on a key, for a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyActionEntry {
    /// The key as text.
    pub key: Box<str>,
    /// The action.
    pub action: KeyAction,
    /// Until when it holds.
    pub until: Millis,
    /// The operator's reason, if one was given.
    pub reason: Option<Box<str>>,
}

/// There is no room for actions on one more key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyActions;

/// Whether any key of any zone ever had an action: then two zones may not hold the same key to be the same thing.
#[inline]
pub(super) fn any_key_actions() -> bool {
    ANY.load(Ordering::Relaxed)
}

impl KeyAction {
    /// Its word in the API.
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
    /// Puts an action on a key, in place of one of the same kind.
    ///
    /// # Errors
    /// There is no room for one more key.
    pub fn put(&self, key: &Key, entry: KeyActionEntry, now: Millis) -> Result<(), TooManyActions> {
        let mut actions = self.actions.lock();
        prune(&mut actions, now);
        if actions.len() >= MAX_KEY_ACTIONS && !actions.contains_key(&key.id()) {
            return Err(TooManyActions);
        }
        let own = actions.entry(key.id()).or_default();
        own.retain(|other| !other.action.is_like(entry.action));
        own.push(entry);
        self.count.store(actions.len(), Ordering::Relaxed);
        ANY.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Takes an action of this kind off a key; whether there was one.
    pub fn remove(&self, key: &Key, action: KeyAction) -> bool {
        let mut actions = self.actions.lock();
        let Some(own) = actions.get_mut(&key.id()) else {
            return false;
        };
        let before = own.len();
        own.retain(|other| !other.action.is_like(action));
        let removed = own.len() < before;
        actions.retain(|_, own| !own.is_empty());
        self.count.store(actions.len(), Ordering::Relaxed);
        removed
    }

    /// All actions, in the order in which they end.
    #[must_use]
    pub fn actions(&self, now: Millis) -> Vec<KeyActionEntry> {
        let mut actions = self.actions.lock();
        prune(&mut actions, now);
        self.count.store(actions.len(), Ordering::Relaxed);
        let mut entries: Vec<_> = actions.values().flatten().cloned().collect();
        entries.sort_by(|one, other| (one.until, &one.key).cmp(&(other.until, &other.key)));
        entries
    }

    /// The actions on one key.
    #[must_use]
    pub fn actions_on(&self, key: &Key, now: Millis) -> Vec<KeyActionEntry> {
        if self.count() == 0 {
            return Vec::new();
        }
        let actions = self.actions.lock();
        let own = actions.get(&key.id()).into_iter().flatten();
        own.filter(|entry| entry.until > now).cloned().collect()
    }

    /// The strongest action on a key, in a word.
    pub(super) fn strongest(&self, key: &Key, now: Millis) -> Option<&'static str> {
        let entries = self.actions_on(key, now);
        let block = entries.iter().find(|it| it.action == KeyAction::Block);
        block
            .or_else(|| entries.first())
            .map(|it| it.action.as_str())
    }

    /// How many keys have actions.
    #[must_use]
    #[inline]
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether a key is not limited for now.
    #[inline]
    pub(super) fn exempts(&self, key: &Key, record: &RequestRecord) -> bool {
        self.count() > 0 && self.exemption(key, record.started).is_some()
    }

    /// For how much longer a key is blocked, and why.
    pub(super) fn block(&self, key: &Key, now: Millis) -> Option<(Duration, Option<Box<str>>)> {
        let mut entries = self.actions_on(key, now).into_iter();
        let block = entries.find(|entry| entry.action == KeyAction::Block)?;
        Some((block.until.since(now), block.reason))
    }

    /// The action by which a key is not limited, if there is one and it is not blocked.
    pub(super) fn exemption(&self, key: &Key, now: Millis) -> Option<KeyAction> {
        let entries = self.actions_on(key, now);
        let find = |wanted: fn(KeyAction) -> bool| {
            let mut actions = entries.iter().map(|entry| entry.action);
            actions.find(|action| wanted(*action))
        };
        if find(|action| action == KeyAction::Block).is_some() {
            return None;
        }
        find(|action| action == KeyAction::Exempt)
            .or_else(|| find(|action| matches!(action, KeyAction::Grant(1..))))
    }

    /// Takes one request off what a key was granted.
    pub(super) fn use_grant(&self, key: &Key, now: Millis) {
        if self.count() == 0 || !matches!(self.exemption(key, now), Some(KeyAction::Grant(_))) {
            return;
        }
        let mut actions = self.actions.lock();
        for entry in actions.get_mut(&key.id()).into_iter().flatten() {
            if let KeyAction::Grant(left) = &mut entry.action {
                *left = left.saturating_sub(1);
            }
        }
        prune(&mut actions, now);
        self.count.store(actions.len(), Ordering::Relaxed);
    }
}

/// Forgets actions whose time is over, and grants that were used up.
fn prune(actions: &mut Actions, now: Millis) {
    actions.retain(|_, own| {
        own.retain(|entry| entry.until > now && entry.action != KeyAction::Grant(0));
        !own.is_empty()
    });
}

static ANY: AtomicBool = AtomicBool::new(false);

/// The most keys with actions in a zone.
pub const MAX_KEY_ACTIONS: usize = 10_000;

#[cfg(test)]
mod tests {

    use super::*;

    fn entry(action: KeyAction, until: u64) -> KeyActionEntry {
        KeyActionEntry {
            key: "k".into(),
            action,
            until: Millis(until),
            reason: None,
        }
    }

    #[test]
    fn an_action_holds_until_its_time_or_until_it_is_taken_off() {
        let (admin, key) = (KeyAdmin::default(), Key::from_bytes(b"k"));
        assert!(admin.count() == 0);
        admin
            .put(&key, entry(KeyAction::Block, 1000), Millis(0))
            .unwrap();
        admin
            .put(&key, entry(KeyAction::Exempt, 5000), Millis(0))
            .unwrap();
        assert_eq!(
            admin.block(&key, Millis(400)),
            Some((Duration::from_millis(600), None))
        );
        assert_eq!(
            admin.exemption(&key, Millis(400)),
            None,
            "a block is stronger"
        );
        assert_eq!(admin.block(&key, Millis(1000)), None);
        assert_eq!(admin.exemption(&key, Millis(1000)), Some(KeyAction::Exempt));
        assert_eq!(
            admin.actions(Millis(1000)),
            [entry(KeyAction::Exempt, 5000)]
        );
        assert!(admin.remove(&key, KeyAction::Exempt) && !admin.remove(&key, KeyAction::Exempt));
        assert!(admin.count() == 0);
        assert_eq!(admin.block(&Key::from_bytes(b"other"), Millis(0)), None);
    }

    #[test]
    fn a_grant_is_used_up() {
        let (admin, key) = (KeyAdmin::default(), Key::from_bytes(b"k"));
        admin
            .put(&key, entry(KeyAction::Grant(2), 1000), Millis(0))
            .unwrap();
        for left in [2, 1] {
            assert_eq!(
                admin.exemption(&key, Millis(0)),
                Some(KeyAction::Grant(left))
            );
            admin.use_grant(&key, Millis(0));
        }
        assert_eq!(admin.exemption(&key, Millis(0)), None);
        assert!(admin.count() == 0);
    }

    #[test]
    fn the_number_of_keys_with_actions_is_bounded() {
        let admin = KeyAdmin::default();
        let key = |number: usize| Key::from_bytes(&number.to_be_bytes());
        for number in 0..MAX_KEY_ACTIONS {
            admin
                .put(&key(number), entry(KeyAction::Block, 1000), Millis(0))
                .unwrap();
        }
        let one_more = entry(KeyAction::Block, 2000);
        assert_eq!(
            admin.put(&key(MAX_KEY_ACTIONS), one_more.clone(), Millis(0)),
            Err(TooManyActions)
        );
        assert_eq!(admin.put(&key(0), one_more.clone(), Millis(0)), Ok(()));
        assert_eq!(
            admin.put(&key(MAX_KEY_ACTIONS), one_more, Millis(1500)),
            Ok(())
        );
    }
}
