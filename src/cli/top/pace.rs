//! Counts a second, and how they went: what changes between two looks.

use std::collections::{HashMap, VecDeque};

use anstyle::Style;

use crate::cli::admin::answers::Verdicts;
use crate::cli::table::{BAD, DOUBTFUL, FAINT, GOOD};

/// Verdicts a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct VerdictRates {
    pub(super) pass: f64,
    pub(super) delay: f64,
    pub(super) refuse: f64,
}

impl VerdictRates {
    pub(super) fn demand(self) -> f64 {
        self.pass + self.delay + self.refuse
    }
}

/// The last counts of something, and its paces so far.
#[derive(Debug, Default)]
struct RateSeries {
    last: Option<Verdicts>,
    paces: VecDeque<VerdictRates>,
    /// Looks in which it was not there.
    unseen: usize,
}

/// Everything that is followed, by its name.
#[derive(Debug, Default)]
pub(super) struct RateHistory(HashMap<String, RateSeries>);

impl RateHistory {
    /// Takes the counts of a look that came `seconds` after the one before.
    pub(super) fn take<'a>(
        &mut self,
        seconds: f64,
        counts: impl Iterator<Item = (&'a str, Verdicts)>,
    ) {
        for track in self.0.values_mut() {
            track.unseen += 1;
        }
        for (name, now) in counts {
            let track = self.0.entry(name.to_owned()).or_default();
            track.unseen = 0;
            let Some(before) = track.last.replace(now) else {
                continue;
            };
            // What counts anew after a reload or a restart counts down once.
            let each =
                |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds.max(0.001);
            track.paces.push_back(VerdictRates {
                pass: each(before.pass, now.pass),
                delay: each(before.delay, now.delay),
                refuse: each(before.refuse, now.refuse),
            });
            if track.paces.len() > KEPT {
                track.paces.pop_front();
            }
        }
        self.0.retain(|_, track| track.unseen < KEPT);
    }

    /// What it was at the last look.
    pub(super) fn now(&self, name: &str) -> VerdictRates {
        self.recent(name, 1)
    }

    /// The mean of the last looks.
    pub(super) fn recent(&self, name: &str, looks: usize) -> VerdictRates {
        let Some(track) = self.0.get(name) else {
            return VerdictRates::default();
        };
        let last: Vec<_> = track.paces.iter().rev().take(looks).collect();
        let mean = |of: fn(&VerdictRates) -> f64| {
            let sum: f64 = last.iter().map(|pace| of(pace)).sum();
            sum / last.len().max(1) as f64
        };
        VerdictRates {
            pass: mean(|pace| pace.pass),
            delay: mean(|pace| pace.delay),
            refuse: mean(|pace| pace.refuse),
        }
    }

    /// The demand of the last looks as a line of bars: the plain text, and the same in colours that say what became of it.
    pub(super) fn spark(&self, name: &str, width: usize) -> (String, String) {
        let Some(track) = self.0.get(name) else {
            return (" ".repeat(width), " ".repeat(width));
        };
        let shown: Vec<_> = track.paces.iter().rev().take(width).rev().collect();
        let most = shown.iter().map(|pace| pace.demand()).fold(1.0, f64::max);
        let mut plain = " ".repeat(width - shown.len());
        let mut painted = plain.clone();
        for pace in shown {
            let bar = bar(pace.demand() / most);
            let style = colour(*pace);
            plain.push(bar);
            painted.push_str(&format!("{style}{bar}{style:#}"));
        }
        (plain, painted)
    }
}

fn bar(share: f64) -> char {
    if share <= 0.0 {
        return '·';
    }
    // A cast of a float keeps to the range of what it is cast to.
    let eighth = (share * 8.0).ceil() as usize;
    BARS[eighth.clamp(1, BARS.len()) - 1]
}

fn colour(pace: VerdictRates) -> Style {
    match pace {
        VerdictRates { refuse, .. } if refuse > 0.0 => BAD,
        VerdictRates { delay, .. } if delay > 0.0 => DOUBTFUL,
        VerdictRates { pass, .. } if pass > 0.0 => GOOD,
        _ => FAINT,
    }
}

/// A pace in a word: whole numbers where they are large.
pub(super) fn rate(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value < 9.95 => format!("{value:.1}"),
        value => crate::cli::words::number(value.round() as u64),
    }
}

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Looks that are remembered: a minute.
const KEPT: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pass: u64, refuse: u64) -> Verdicts {
        Verdicts {
            pass,
            delay: 0,
            refuse,
        }
    }

    #[test]
    fn a_pace_is_what_came_between_two_looks() {
        let mut tracks = RateHistory::default();
        tracks.take(1.0, [("perip", counts(100, 0))].into_iter());
        assert_eq!(
            tracks.now("perip"),
            VerdictRates::default(),
            "nothing to compare with yet"
        );
        tracks.take(2.0, [("perip", counts(120, 40))].into_iter());
        let now = tracks.now("perip");
        assert_eq!((now.pass, now.refuse, now.demand()), (10.0, 20.0, 30.0));
        let (plain, painted) = tracks.spark("perip", 4);
        assert_eq!(plain, "   █");
        assert!(painted.contains("31m█"), "{painted:?}");
        tracks.take(1.0, [("perip", counts(1, 0))].into_iter());
        assert_eq!(
            tracks.now("perip"),
            VerdictRates::default(),
            "it began anew"
        );
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut tracks = RateHistory::default();
        tracks.take(1.0, [("gone", counts(1, 1))].into_iter());
        for _ in 0..KEPT {
            tracks.take(1.0, [].into_iter());
        }
        assert!(tracks.0.is_empty());
    }

    #[test]
    fn small_paces_have_a_decimal() {
        assert_eq!(rate(0.0), "0");
        assert_eq!(rate(0.52), "0.5");
        assert_eq!(rate(9.99), "10");
        assert_eq!(rate(1234.4), "1\u{202f}234");
    }
}
