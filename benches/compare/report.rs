//! What was measured, in words: a table for each case, and the document.

use std::fmt;

use crate::cases::{Case, Contender};
use crate::machine;
use crate::rounds::Round;

/// A case and all rounds of those who took part.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) case: &'static Case,
    pub(crate) proxies: Vec<(Contender, Vec<Round>)>,
}

/// Ratios to the base, each within its round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// Where and how it was measured.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) rounds: usize,
    pub(crate) seconds: u32,
    pub(crate) versions: String,
    pub(crate) pinned: bool,
    /// Load averages before and after.
    pub(crate) load: (String, String),
}

type Measure = fn(&Round) -> f64;

/// Name, unit and decimals.
const MEASURES: [(&str, &str, usize, Measure); 5] = [
    ("CPU per request", " µs", 1, |round| round.cpu),
    ("requests/s", "", 0, |round| round.requests_per_second),
    ("p50", " ms", 2, |round| round.p50),
    ("p99", " ms", 2, |round| round.p99),
    ("memory (PSS)", " MB", 1, |round| round.memory),
];

impl Outcome {
    fn rounds(&self, contender: Contender) -> Option<&[Round]> {
        let found = self.proxies.iter().find(|(name, _)| *name == contender)?;
        Some(&found.1)
    }

    pub(crate) fn has_base(&self) -> bool {
        self.rounds(Contender::BASE).is_some()
    }

    /// CPU per request of one relative to another.
    pub(crate) fn cpu(&self, contender: Contender, base: Contender) -> Option<Ratio> {
        self.ratio(contender, base, |round| round.cpu)
    }

    fn ratio(&self, contender: Contender, base: Contender, of: Measure) -> Option<Ratio> {
        let own = self.rounds(contender)?.iter().map(of);
        Ratio::of(own, self.rounds(base)?.iter().map(of))
    }
}

impl Ratio {
    /// Of two proxies, whose rounds are in the same order.
    pub(crate) fn of(
        own: impl Iterator<Item = f64>,
        base: impl Iterator<Item = f64>,
    ) -> Option<Self> {
        let mut ratios: Vec<f64> = own.zip(base).map(|(own, base)| own / base).collect();
        ratios.sort_by(f64::total_cmp);
        Some(Self {
            least: *ratios.first()?,
            most: *ratios.last()?,
            median: median(ratios),
        })
    }
}

/// The middle one, or the mean of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.len() % 2, values.get(middle)) {
        (_, None) => f64::NAN,
        (0, Some(upper)) => f64::midpoint(values[middle - 1], *upper),
        (_, Some(value)) => *value,
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = (self.least, self.most);
        write!(f, "**{:.2}** ({least:.2}..{most:.2})", self.median)
    }
}

/// A case as Markdown.
pub(crate) fn section(outcome: &Outcome) -> String {
    let mut text = format!("## {}\n\n{}\n\n|", outcome.case.title, outcome.case.note);
    for (name, ..) in MEASURES {
        text += &format!(" | {name}");
    }
    text += " | wrong |\n|";
    text += &" --- |".repeat(MEASURES.len() + 2);
    text.push('\n');
    for (contender, rounds) in &outcome.proxies {
        text += &format!("| {}", contender.label());
        for (_, unit, decimals, of) in MEASURES {
            let middle = median(rounds.iter().map(of).collect());
            text += &format!(" | {middle:.decimals$}{unit}");
            if *contender == Contender::BASE {
                continue;
            }
            if let Some(ratio) = outcome.ratio(*contender, Contender::BASE, of) {
                text += &format!(" · {ratio}");
            }
        }
        let wrong: u64 = rounds.iter().map(|round| round.wrong).sum();
        text += &format!(" | {wrong} |\n");
    }
    text
}

/// The whole of `docs/benchmarks.md`.
pub(crate) fn document(facts: &Facts, outcomes: &[Outcome]) -> String {
    let mut text = String::from("# Benchmarks\n\n");
    text += "Written by `cargo bench --bench compare`; run it to have your own.\n\n";
    text += "![CPU per request relative to nginx](benchmarks.svg)\n\n";
    text += &summary(outcomes);
    text += &method(facts);
    for outcome in outcomes {
        text.push('\n');
        text += &section(outcome);
    }
    text
}

fn summary(outcomes: &[Outcome]) -> String {
    let others = [
        Contender::Nginx,
        Contender::NginxLargeBuffers,
        Contender::NginxBufferedLog,
        Contender::Haproxy,
    ];
    let mut text = String::from("CPU per request of weir relative to\n\n| ");
    for other in others {
        text += &format!("| {} ", other.label());
    }
    text += "|\n|";
    text += &" --- |".repeat(others.len() + 1);
    text.push('\n');
    for outcome in outcomes {
        text += &format!("| {} ", outcome.case.title);
        for other in others {
            text += &match outcome.cpu(Contender::Weir, other) {
                Some(ratio) => format!("| {ratio} "),
                None => "| ".to_owned(),
            };
        }
        text += "|\n";
    }
    text += "\nThe median over the rounds (least..most): below 1 weir is cheaper, above 1 it is dearer; where the \
             rounds fall on both sides of 1, neither is established.\n\n";
    text
}

fn method(facts: &Facts) -> String {
    let date = jiff::Zoned::now().date();
    let place = match facts.pinned {
        true => {
            "The proxies have one core, of which only the loaded one makes use; wrk and the backend run on others."
        }
        false => "No process is pinned to a core.",
    };
    let busy = match machine::is_busy(&facts.load.0) {
        true => {
            ". **The machine was busy with other work**: the ratios are rough, and the times say little of a quiet one"
        }
        false => "",
    };
    format!(
        "## How it was measured\n\n\
         - {date}, {machine}; load average {before} at the start, {after} at the end{busy}\n\
         - {versions}\n\
         - {rounds} rounds of {seconds} s a case. In each round wrk loads every proxy in turn, as fast as it answers, and \
         another one begins each time. {place}\n\
         - One event loop for each proxy, a request limit checked on every request, connections to the backend kept, \
         errors logged, refusals not. nginx and HAProxy send on `Host` and `X-Forwarded-For`; weir `X-Forwarded-Proto`, \
         `X-Forwarded-Host` and `Via` too, as it does by default.\n\
         - CPU is the time the kernel counts for all threads of a proxy (`schedstat`), system time included: most of it is \
         TCP and the same for everyone. Memory is the proportional set size right after the load.\n\
         - Each cell: the median over the rounds, then the ratio to nginx within a round: **median** (least..most). \
         *wrong*: answers of another status, and errors of sockets; a bucket drains, so a refusing proxy lets one \
         pass now and then.\n",
        machine = machine::describe(),
        before = facts.load.0,
        after = facts.load.1,
        versions = facts.versions,
        rounds = facts.rounds,
        seconds = facts.seconds,
    )
}
