//! How many checks in a row it takes to believe them.

use crate::config::plan::{HealthCheck, Initial};

/// What was found lately.
#[derive(Debug)]
pub(super) struct Tally {
    rise: u32,
    fall: u32,
    standing: Standing,
    /// Checks in a row that speak against it.
    against: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Healthy,
    Unhealthy,
    /// Not checked yet, and not believed until it was.
    Unknown,
}

/// What a check has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Fall,
    Rise,
}

impl Tally {
    pub(super) fn new(check: &HealthCheck) -> Self {
        Self {
            rise: check.rise,
            fall: check.fall,
            standing: match check.initial {
                Initial::Down => Standing::Unknown,
                Initial::Up => Standing::Healthy,
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
        self.standing == Standing::Healthy
    }

    /// Takes in the outcome of a check.
    pub(super) fn note(&mut self, passed: bool) -> Option<Change> {
        let needed = match (self.standing, passed) {
            (Standing::Healthy, true) | (Standing::Unhealthy, false) => {
                self.against = 0;
                return None;
            }
            (Standing::Healthy, false) => self.fall,
            (Standing::Unhealthy, true) => self.rise,
            // The first decides.
            (Standing::Unknown, _) => 1,
        };
        self.against += 1;
        if self.against < needed {
            return None;
        }
        self.against = 0;
        self.standing = match passed {
            true => Standing::Healthy,
            false => Standing::Unhealthy,
        };
        Some(match passed {
            true => Change::Rise,
            false => Change::Fall,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(standing: Standing) -> Tally {
        Tally {
            rise: 2,
            fall: 3,
            standing,
            against: 0,
        }
    }

    /// What each of these checks changes.
    fn changes(mut tally: Tally, checks: &str) -> String {
        checks
            .chars()
            .map(|check| match tally.note(check == '+') {
                None => '.',
                Some(Change::Rise) => '^',
                Some(Change::Fall) => 'v',
            })
            .collect()
    }

    #[test]
    fn it_takes_some_in_a_row() {
        let healthy = || tally(Standing::Healthy);
        assert_eq!(changes(healthy(), "+--+--+---"), ".........v");
        assert_eq!(changes(healthy(), "---+-+++--"), "..v...^...");
        assert_eq!(changes(healthy(), "-----++"), "..v...^");
    }

    #[test]
    fn the_first_decides_about_the_unknown() {
        assert_eq!(changes(tally(Standing::Unknown), "+---"), "^..v");
        assert_eq!(changes(tally(Standing::Unknown), "-++"), "v.^");
    }
}
