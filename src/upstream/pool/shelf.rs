//! Things that lie ready, each for one owner: the newest of an owner is taken, the oldest of all makes room.
//!
//! Two chains run through one vector, one through everything by age and one through what each owner has. So nothing
//! is searched for, however much lies there and however many owners there are.

/// Things by owner and age. Owners are small numbers.
#[derive(Debug)]
pub(super) struct OwnedLru<T> {
    slots: Vec<LruSlot<T>>,
    /// By owner, the slot of the newest; [`NONE`] where there is nothing.
    newest: Vec<u32>,
    oldest_of_all: u32,
    newest_of_all: u32,
    /// The first of the empty slots, which are chained by `older`.
    empty: u32,
    length: usize,
}

#[derive(Debug)]
struct LruSlot<T> {
    thing: Option<T>,
    owner: usize,
    older: u32,
    newer: u32,
    /// The owner's own, where `older` and `newer` are anybody's.
    own_older: u32,
    own_newer: u32,
}

impl<T> OwnedLru<T> {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            newest: Vec::new(),
            oldest_of_all: NONE,
            newest_of_all: NONE,
            empty: NONE,
            length: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// The oldest of all.
    pub(super) fn oldest(&self) -> Option<&T> {
        self.slots.get(self.oldest_of_all as usize)?.thing.as_ref()
    }

    /// Puts something down, the newest of all.
    pub(super) fn put(&mut self, owner: usize, thing: T) {
        if owner >= self.newest.len() {
            self.newest.resize(owner + 1, NONE);
        }
        let slot = LruSlot {
            thing: Some(thing),
            owner,
            older: self.newest_of_all,
            newer: NONE,
            own_older: self.newest[owner],
            own_newer: NONE,
        };
        let at = if let Some(empty) = self.slots.get_mut(self.empty as usize) {
            let at = std::mem::replace(&mut self.empty, empty.older);
            *empty = slot;
            at
        } else {
            self.slots.push(slot);
            u32::try_from(self.slots.len() - 1).expect("no shelf is as long")
        };
        let own_older = std::mem::replace(&mut self.newest[owner], at);
        let older = std::mem::replace(&mut self.newest_of_all, at);
        match self.slots.get_mut(older as usize) {
            Some(older) => older.newer = at,
            None => self.oldest_of_all = at,
        }
        if let Some(own_older) = self.slots.get_mut(own_older as usize) {
            own_older.own_newer = at;
        }
        self.length += 1;
    }

    /// Takes the newest of an owner.
    pub(super) fn take(&mut self, owner: usize) -> Option<T> {
        self.remove(*self.newest.get(owner)?)
    }

    /// Takes the oldest of all.
    pub(super) fn take_oldest(&mut self) -> Option<T> {
        self.remove(self.oldest_of_all)
    }

    /// Takes everything that is `unwanted`.
    pub(super) fn take_if(&mut self, mut unwanted: impl FnMut(&mut T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        let mut at = self.oldest_of_all;
        while let Some(slot) = self.slots.get_mut(at as usize) {
            let newer = slot.newer;
            if slot.thing.as_mut().is_some_and(&mut unwanted) {
                taken.extend(self.remove(at));
            }
            at = newer;
        }
        taken
    }

    fn remove(&mut self, at: u32) -> Option<T> {
        let slot = self.slots.get_mut(at as usize)?;
        let thing = slot.thing.take();
        let &mut LruSlot {
            owner,
            older,
            newer,
            own_older,
            own_newer,
            ..
        } = slot;
        slot.older = std::mem::replace(&mut self.empty, at);
        match self.slots.get_mut(older as usize) {
            Some(slot) => slot.newer = newer,
            None => self.oldest_of_all = newer,
        }
        match self.slots.get_mut(newer as usize) {
            Some(slot) => slot.older = older,
            None => self.newest_of_all = older,
        }
        if let Some(slot) = self.slots.get_mut(own_older as usize) {
            slot.own_newer = own_newer;
        }
        match self.slots.get_mut(own_newer as usize) {
            Some(slot) => slot.own_older = own_older,
            None => self.newest[owner] = own_older,
        }
        self.length -= 1;
        thing
    }
}

const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Put(usize),
        Take(usize),
        TakeOldest,
        TakeIf(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..5usize).prop_map(Step::Put),
            4 => (0..6usize).prop_map(Step::Take),
            2 => Just(Step::TakeOldest),
            1 => (2..5u32).prop_map(Step::TakeIf),
        ]
    }

    proptest! {
        #[test]
        fn it_does_what_a_plain_list_does(steps in prop::collection::vec(step(), 0..200)) {
            let mut shelf = OwnedLru::new();
            let mut list: Vec<(usize, u32)> = Vec::new();
            for (number, step) in (0..).zip(steps) {
                match step {
                    Step::Put(owner) => {
                        shelf.put(owner, number);
                        list.push((owner, number));
                    }
                    Step::Take(owner) => {
                        let at = list.iter().rposition(|(whose, _)| *whose == owner);
                        prop_assert_eq!(shelf.take(owner), at.map(|at| list.remove(at).1));
                    }
                    Step::TakeOldest => {
                        let oldest = (!list.is_empty()).then(|| list.remove(0).1);
                        prop_assert_eq!(shelf.take_oldest(), oldest);
                    }
                    Step::TakeIf(divisor) => {
                        let gone: Vec<_> = list
                            .extract_if(.., |(_, thing)| *thing % divisor == 0)
                            .map(|(_, thing)| thing)
                            .collect();
                        prop_assert_eq!(shelf.take_if(|thing| *thing % divisor == 0), gone);
                    }
                }
                prop_assert_eq!(shelf.len(), list.len());
                prop_assert_eq!(shelf.oldest(), list.first().map(|(_, thing)| thing));
            }
        }
    }
}
