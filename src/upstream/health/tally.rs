//! How many checks in a row it takes to believe them.

use crate::config::plan::{HealthCheck, InitialHealth};

/// What was found lately.
#[derive(Debug)]
pub(super) struct CheckStreak {
    rise: u32,
    fall: u32,
    standing: HealthStatus,
    /// Checks in a row that speak against it.
    against: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HealthStatus {
    Healthy,
    Unhealthy,
    /// Not checked yet, and not believed until it was.
    Unknown,
}

/// What a check has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HealthChange {
    Fall,
    Rise,
}

impl CheckStreak {
    pub(super) fn new(check: &HealthCheck) -> Self {
        Self {
            rise: check.rise,
            fall: check.fall,
            standing: match check.initial {
                InitialHealth::Down => HealthStatus::Unknown,
                InitialHealth::Up => HealthStatus::Healthy,
            },
            against: 0,
        }
    }

    /// The same standing, by other numbers.
    pub(super) fn under(&self, check: &HealthCheck) -> Self {
        Self {
            standing: self.standing,
            ..Self::new(check)
        }
    }

    pub(super) fn is_healthy(&self) -> bool {
        self.standing == HealthStatus::Healthy
    }

    /// Takes in the outcome of a check.
    pub(super) fn note(&mut self, passed: bool) -> Option<HealthChange> {
        let needed = match (self.standing, passed) {
            (HealthStatus::Healthy, true) | (HealthStatus::Unhealthy, false) => {
                self.against = 0;
                return None;
            }
            (HealthStatus::Healthy, false) => self.fall,
            (HealthStatus::Unhealthy, true) => self.rise,
            // The first decides.
            (HealthStatus::Unknown, _) => 1,
        };
        self.against += 1;
        if self.against < needed {
            return None;
        }
        self.against = 0;
        self.standing = match passed {
            true => HealthStatus::Healthy,
            false => HealthStatus::Unhealthy,
        };
        Some(match passed {
            true => HealthChange::Rise,
            false => HealthChange::Fall,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(standing: HealthStatus) -> CheckStreak {
        CheckStreak {
            rise: 2,
            fall: 3,
            standing,
            against: 0,
        }
    }

    /// What each of these checks changes.
    fn changes(mut tally: CheckStreak, checks: &str) -> String {
        checks
            .chars()
            .map(|check| match tally.note(check == '+') {
                None => '.',
                Some(HealthChange::Rise) => '^',
                Some(HealthChange::Fall) => 'v',
            })
            .collect()
    }

    #[test]
    fn it_takes_some_in_a_row() {
        let healthy = || tally(HealthStatus::Healthy);
        assert_eq!(changes(healthy(), "+--+--+---"), ".........v");
        assert_eq!(changes(healthy(), "---+-+++--"), "..v...^...");
        assert_eq!(changes(healthy(), "-----++"), "..v...^");
    }

    #[test]
    fn the_first_decides_about_the_unknown() {
        assert_eq!(changes(tally(HealthStatus::Unknown), "+---"), "^..v");
        assert_eq!(changes(tally(HealthStatus::Unknown), "-++"), "v.^");
    }
}
