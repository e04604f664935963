//! Locations that are degraded together: one switch turns off all that is not essential.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::config::plan;
use crate::config::plan::DegradeMode;
use crate::proxy::Generation;

/// A group of locations.
#[derive(Debug)]
pub struct DegradeGroup {
    /// Its name.
    pub name: Box<str>,
    mode: AtomicU8,
}

impl DegradeGroup {
    /// As it was in the generation before, unless the configuration says something else by now.
    pub(in crate::proxy) fn inherit(
        plan: &plan::DegradeGroup,
        before: Option<&Generation>,
    ) -> Arc<Self> {
        let old = before.and_then(|before| {
            let mut planned = before.plan.degrade_groups.iter();
            let index = planned.position(|old| old.name == plan.name && old.mode == plan.mode)?;
            before.groups.get(index)
        });
        old.map_or_else(|| Arc::new(Self::new(plan)), Arc::clone)
    }

    /// As the configuration has it.
    fn new(plan: &plan::DegradeGroup) -> Self {
        let group = Self {
            name: plan.name.clone(),
            mode: AtomicU8::new(0),
        };
        group.mode.store(plan.mode as u8, Ordering::Relaxed);
        group
    }

    /// What holds at present.
    #[must_use]
    pub fn mode(&self) -> DegradeMode {
        let mode = self.mode.load(Ordering::Relaxed);
        let known = [DegradeMode::Auto, DegradeMode::Off, DegradeMode::On];
        known
            .into_iter()
            .find(|known| *known as u8 == mode)
            .unwrap_or_default()
    }

    /// From now on this holds.
    pub fn set(&self, mode: DegradeMode) {
        self.mode.store(mode as u8, Ordering::Relaxed);
        tracing::warn!(group = &*self.name, "degrade: {}", mode.as_str());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_has_three_positions() {
        for mode in [DegradeMode::Auto, DegradeMode::Off, DegradeMode::On] {
            let group = DegradeGroup::new(&plan::DegradeGroup {
                name: "extras".into(),
                mode,
            });
            assert_eq!(group.mode(), mode);
            group.set(DegradeMode::On);
            assert_eq!(group.mode(), DegradeMode::On);
        }
    }
}
