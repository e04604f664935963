//! How much an operation did, counted in tests alone: they promise that it is never much, whatever the clock says.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// So many keys were moved, hashed or looked at.
#[cfg_attr(not(test), expect(unused_variables, reason = "only tests count"))]
pub(super) fn count(steps: usize) {
    #[cfg(test)]
    STEPS.set(STEPS.get() + steps);
}

/// The steps since the last time.
#[cfg(test)]
pub(super) fn steps() -> usize {
    STEPS.replace(0)
}
