//! How a zone counts, and what a request weighs.
//!
//! How a zone counts: which numbers an algorithm needs, and which have no meaning for it.

use std::time::Duration;

use self::raw::Counting;
use super::limits::{self, OverrideLimits};
use crate::algorithm::{AlgorithmParams, Cost, Delay, Excess, Rate};
use crate::config::compile::Compiler;
use crate::config::decode::value::Text;
use crate::config::decode::{Field, Spanned, units, value};
use crate::config::source::Span;
use crate::config::template::{Template, TemplatePhase};

pub(crate) mod raw {
    //! How a zone counts, as the user writes it.
    use crate::config::decode::units;
    use crate::config::decode::value::{choice, number, scalar};
    use crate::config::report;

    /// The words for it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Counting {
        /// `bursty`
        Bursty,
        /// `fixed_window`
        FixedWindow,
        /// `gcra`
        Gcra,
        /// `leaky_bucket`
        LeakyBucket,
        /// `paced`
        Paced,
        /// `sliding_log`
        SlidingLog,
        /// `sliding_window`
        SlidingWindow,
        /// `token_bucket`
        TokenBucket,
        /// `warm_up`
        WarmUp,
    }

    choice! {
        /// How a zone counts.
        pub struct AlgorithmWord(Counting) = "an algorithm" {
            "leaky_bucket" => Counting::LeakyBucket,
            "token_bucket" => Counting::TokenBucket,
            "gcra" => Counting::Gcra,
            "fixed_window" => Counting::FixedWindow,
            "sliding_window" => Counting::SlidingWindow,
            "sliding_log" => Counting::SlidingLog,
            "paced" => Counting::Paced,
            "warm_up" => Counting::WarmUp,
            "bursty" => Counting::Bursty,
        }
    }

    number! {
        /// How many requests in a window.
        pub struct WindowLimit(u32) = "a number of requests", 1..=100_000_000
    }

    scalar! {
        /// How many requests in a window, or as many as they like.
        pub struct LimitOrUnlimited(Option<u32>);
        "a number of requests, or `unlimited`",
        |text| match text {
            "unlimited" => Ok(None),
            _ => units::whole(text, "a number of requests", 1, 100_000_000)
                .map(|number| u32::try_from(number).ok())
                .map_err(|mistake| match report::hint(text, ["unlimited"]) {
                    Some(hint) => mistake.help(hint),
                    None => mistake,
                }),
        },
        {
            "description": "A number of requests, or unlimited.",
            "anyOf": [
                { "type": "integer", "minimum": 1, "maximum": 100_000_000 },
                { "const": "unlimited" },
            ],
        }
    }
}

/// Whether refused requests are charged, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CountRefused {
    /// A refusal costs nothing, as in nginx.
    #[default]
    No,
    /// Who goes on asking stays out.
    Yes,
}

/// Where the cost of a request comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CostSource {
    /// A text that is known once there is an answer, and says a number: charged then.
    After(Template),
    /// A text that is known when the request comes, and says a number.
    Before(Template),
    /// The same for all.
    Fixed(Cost),
    /// As many as its body has bytes: charged when it has come.
    RequestBytes,
    /// As many as its answer's body has bytes: charged then.
    ResponseBytes,
}

impl CostSource {
    /// The text that says it, if there is one.
    #[must_use]
    pub const fn template(&self) -> Option<&Template> {
        match self {
            Self::After(template) | Self::Before(template) => Some(template),
            Self::Fixed(_) | Self::RequestBytes | Self::ResponseBytes => None,
        }
    }

    /// Whether it is only known when the request is over.
    #[must_use]
    pub const fn is_late(&self) -> bool {
        matches!(
            self,
            Self::After(_) | Self::RequestBytes | Self::ResponseBytes
        )
    }
}

/// How long requests wait at most, unless said otherwise; Sentinel's number.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// How long getting warm takes, unless said otherwise; Sentinel's number.
const WARM_UP: Duration = Duration::from_secs(10);

/// More blocks in a window are exact enough for nobody and take more room than a log.
const MOST_BLOCKS: u128 = 1000;

impl Compiler<'_> {
    /// How a zone counts, with a number of any size standing in for one that was complained about.
    pub(in crate::config) fn algorithm(
        &mut self,
        zone: &Spanned<limits::raw::ReqZone>,
    ) -> AlgorithmParams {
        let (at, zone) = (zone.span, &zone.value);
        let word = match (zone.algorithm.key(), zone.algorithm.value()) {
            (_, Some(word)) => word.0,
            (None, None) => Counting::LeakyBucket,
            // Of one that was not understood nobody knows what it needs.
            (Some(_), None) => {
                return AlgorithmParams::LeakyBucket {
                    rate: Rate::per_second(1000),
                };
            }
        };
        let max_wait = zone.max_wait.value().map_or(MAX_WAIT, |time| time.0);
        let algorithm = match word {
            Counting::Bursty => AlgorithmParams::Bursty {
                rate: self.rate(at, zone),
                max_wait,
            },
            Counting::FixedWindow => {
                let (limit, window) = self.limit_and_window(at, zone);
                AlgorithmParams::FixedWindow { limit, window }
            }
            Counting::Gcra => AlgorithmParams::Gcra {
                rate: self.rate(at, zone),
            },
            Counting::LeakyBucket => AlgorithmParams::LeakyBucket {
                rate: self.rate(at, zone),
            },
            Counting::Paced => AlgorithmParams::Paced {
                rate: self.rate(at, zone),
                max_wait,
            },
            Counting::SlidingLog => {
                let (limit, window) = self.limit_and_window(at, zone);
                AlgorithmParams::SlidingLog { limit, window }
            }
            Counting::SlidingWindow => {
                let (limit, window) = self.limit_and_window(at, zone);
                AlgorithmParams::SlidingWindow {
                    limit,
                    window,
                    precision: self.precision(zone, window),
                }
            }
            Counting::TokenBucket => AlgorithmParams::TokenBucket {
                rate: self.rate(at, zone),
            },
            Counting::WarmUp => AlgorithmParams::WarmUp {
                rate: self.rate(at, zone),
                warm_up: self.length(&zone.warm_up, WARM_UP),
                max_wait,
            },
        };
        self.no_meaning(algorithm, zone);
        algorithm
    }

    /// Complains of keys that the algorithm has no use for.
    fn no_meaning(&mut self, algorithm: AlgorithmParams, zone: &limits::raw::ReqZone) {
        use AlgorithmParams::{Bursty, FixedWindow, Paced, SlidingLog, SlidingWindow, WarmUp};
        let windows = matches!(
            algorithm,
            FixedWindow { .. } | SlidingLog { .. } | SlidingWindow { .. }
        );
        let waits = matches!(algorithm, Bursty { .. } | Paced { .. } | WarmUp { .. });
        let blocks = matches!(algorithm, SlidingWindow { .. });
        let warms = matches!(algorithm, WarmUp { .. });
        let by_limit = "it counts in windows: give it a `limit` and a `window`";
        let by_rate =
            "it goes by a `rate`; fixed_window, sliding_window and sliding_log go by windows";
        let given = [
            (zone.rate.key(), "rate", !windows, by_limit),
            (zone.limit.key(), "limit", windows, by_rate),
            (zone.window.key(), "window", windows, by_rate),
            (
                zone.precision.key(),
                "precision",
                blocks,
                "it is for sliding_window",
            ),
            (
                zone.max_wait.key(),
                "max_wait",
                waits,
                "it is for paced, warm_up and bursty",
            ),
            (zone.warm_up.key(), "warm_up", warms, "it is for warm_up"),
        ];
        for (key, name, meant, hint) in given {
            if let Some(key) = key.filter(|_| !meant) {
                self.has_no_meaning(key, name, algorithm, hint);
            }
        }
    }

    fn has_no_meaning(&mut self, key: Span, name: &str, algorithm: AlgorithmParams, hint: &str) {
        let algorithm = algorithm.name();
        let sentence = format!("`{name}` has no meaning for the algorithm `{algorithm}`");
        self.complain_with(key, sentence, hint);
    }

    fn rate(&mut self, at: Span, zone: &limits::raw::ReqZone) -> Rate {
        if zone.rate.key().is_none() {
            self.complain(at, "`rate` is missing here");
        }
        zone.rate
            .value()
            .map_or(Rate::per_second(1000), |rate| rate.0)
    }

    fn limit_and_window(&mut self, at: Span, zone: &limits::raw::ReqZone) -> (u32, Duration) {
        if zone.limit.key().is_none() {
            self.complain(at, "`limit` is missing here");
        }
        if zone.window.key().is_none() {
            self.complain(at, "`window` is missing here");
        }
        let limit = zone.limit.value().map_or(1, |limit| limit.0);
        (limit, self.length(&zone.window, Duration::from_secs(1)))
    }

    /// A time that must not be nothing.
    fn length(&mut self, given: &Field<value::Time>, default: Duration) -> Duration {
        let Some(given) = given.get() else {
            return default;
        };
        if given.value.0.is_zero() {
            self.complain_with(
                given.span,
                "a time of nothing has no meaning here",
                "the least is 1ms",
            );
        }
        given.value.0.max(Duration::from_millis(1))
    }

    fn precision(&mut self, zone: &limits::raw::ReqZone, window: Duration) -> Option<Duration> {
        let span = zone.precision.get()?.span;
        let precision = self.length(&zone.precision, window);
        let (long, short) = (window.as_millis(), precision.as_millis());
        if short > long {
            self.complain_with(
                span,
                "the window is shorter than its precision",
                "a precision is a part of the window, as `5s` is of `1m`",
            );
        } else if long.div_ceil(short) > MOST_BLOCKS {
            self.complain_with(
                span,
                format!("a window of {} blocks is too fine", long.div_ceil(short)),
                format!("the most is {MOST_BLOCKS}; `sliding_log` is exact"),
            );
        } else if !long.is_multiple_of(short) {
            let blocks = long.div_ceil(short);
            self.warn(
                span,
                "the window is not a multiple of its precision",
                format!(
                    "it is counted in {blocks} blocks, which make {}ms",
                    blocks * short
                ),
            );
        }
        Some(precision)
    }

    /// What holds for one key; `None` for unlimited.
    pub(in crate::config) fn own_numbers(
        &mut self,
        own: &limits::raw::Override,
        zone: AlgorithmParams,
    ) -> Option<OverrideLimits> {
        let (rate, limit) = (own.rate.get(), own.limit.get());
        if rate.is_some_and(|rate| rate.value.0.is_none())
            || limit.is_some_and(|limit| limit.value.0.is_none())
        {
            return None;
        }
        let mut algorithm = zone;
        match &mut algorithm {
            AlgorithmParams::Bursty { rate: number, .. }
            | AlgorithmParams::Gcra { rate: number }
            | AlgorithmParams::LeakyBucket { rate: number }
            | AlgorithmParams::Paced { rate: number, .. }
            | AlgorithmParams::TokenBucket { rate: number }
            | AlgorithmParams::WarmUp { rate: number, .. } => {
                *number = rate.and_then(|rate| rate.value.0).unwrap_or(*number);
                if let Some(limit) = own.limit.key() {
                    self.has_no_meaning(limit, "limit", zone, "it goes by a `rate`");
                }
            }
            AlgorithmParams::FixedWindow { limit: number, .. }
            | AlgorithmParams::SlidingLog { limit: number, .. }
            | AlgorithmParams::SlidingWindow { limit: number, .. } => {
                *number = limit.and_then(|limit| limit.value.0).unwrap_or(*number);
                if let Some(rate) = own.rate.key() {
                    let hint = "give it a `limit`, of the zone's window";
                    self.has_no_meaning(rate, "rate", zone, hint);
                }
            }
        }
        let burst = own.burst.value().map(|burst| Excess::requests(burst.0));
        if let Some(burst) = own.burst.key() {
            self.burst_has_meaning(burst, zone);
        }
        if let (AlgorithmParams::TokenBucket { .. }, Some(burst)) = (zone, own.burst.get()) {
            self.some_capacity(burst);
        }
        Some(OverrideLimits { algorithm, burst })
    }

    /// What a rule's `burst`, `delay` and `nodelay` are to the zone's algorithm.
    pub(in crate::config) fn burst_and_delay(
        &mut self,
        rule: &limits::raw::ReqRule,
        zone: AlgorithmParams,
    ) -> (Excess, Delay) {
        let burst = rule.burst.value().map(|burst| Excess::requests(burst.0));
        if let Some(key) = rule.burst.key() {
            self.burst_has_meaning(key, zone);
        }
        let burst = match zone {
            AlgorithmParams::TokenBucket { .. } => {
                if let Some(burst) = rule.burst.get() {
                    self.some_capacity(burst);
                }
                burst.unwrap_or(Excess::ONE)
            }
            // What comes in a second.
            AlgorithmParams::Bursty { rate, .. } => {
                burst.unwrap_or_else(|| Excess(rate.units_per_milli().saturating_mul(1000)))
            }
            _ => burst.unwrap_or_default(),
        };
        if !matches!(zone, AlgorithmParams::LeakyBucket { .. }) {
            for (key, name) in [(rule.delay.key(), "delay"), (rule.nodelay.key(), "nodelay")] {
                if let Some(key) = key {
                    self.has_no_meaning(key, name, zone, what_waits(zone));
                }
            }
            return (burst, Delay::Never);
        }
        let nodelay = rule.nodelay.get().filter(|flag| flag.value.0);
        if let (Some(_), Some(delay)) = (nodelay, rule.delay.get()) {
            let sentence = "`delay` and `nodelay` contradict each other";
            self.complain_with(
                delay.span,
                sentence,
                "`nodelay` lets the whole burst pass at once, `delay: N` the first N of it",
            );
        }
        let delay = match nodelay {
            Some(_) => Delay::Never,
            None => Delay::After(Excess::requests(
                rule.delay.value().map_or(0, |delay| delay.0),
            )),
        };
        (burst, delay)
    }

    fn burst_has_meaning(&mut self, key: Span, zone: AlgorithmParams) {
        let hint = match zone {
            AlgorithmParams::Bursty { .. }
            | AlgorithmParams::Gcra { .. }
            | AlgorithmParams::LeakyBucket { .. }
            | AlgorithmParams::TokenBucket { .. } => return,
            AlgorithmParams::Paced { .. } => {
                "nothing is saved while idle; how many may wait is a matter of `max_wait`"
            }
            AlgorithmParams::WarmUp { .. } => {
                "who was idle begins slowly; how many may wait is a matter of `max_wait`"
            }
            _ => "all of the zone's `limit` may come at once",
        };
        self.has_no_meaning(key, "burst", zone, hint);
    }

    fn some_capacity(&mut self, burst: &Spanned<value::Burst>) {
        if burst.value.0 == 0 {
            self.complain_with(
                burst.span,
                "a token bucket without room for one token refuses everybody",
                "its `burst` is its capacity, at least 1",
            );
        }
    }

    /// What a request weighs.
    pub(in crate::config) fn weight(&mut self, cost: Option<&Spanned<Text>>) -> CostSource {
        let Some(cost) = cost else {
            return CostSource::Fixed(Cost::ONE);
        };
        match cost.value.text.as_str() {
            "request_bytes" => CostSource::RequestBytes,
            "response_bytes" => CostSource::ResponseBytes,
            text if text.contains('$') => {
                let template = self.template(cost, TemplatePhase::After);
                if self.is_late(&template) {
                    CostSource::After(template)
                } else {
                    CostSource::Before(template)
                }
            }
            text => match units::thousandths(text) {
                Some(Some(milli)) if milli > 0 => CostSource::Fixed(Cost::milli(milli)),
                Some(Some(_)) => {
                    self.complain_with(
                        cost.span,
                        "a cost of nothing limits nobody",
                        "the least is 0.001; what is not to be limited has no rule",
                    );
                    CostSource::Fixed(Cost::ONE)
                }
                _ => {
                    let hint = "expected a number with up to three decimals, a variable such as \
                                `$upstream_http_x_cost`, `request_bytes` or `response_bytes`";
                    self.complain_with(cost.span, format!("`{text}` is not a cost"), hint);
                    CostSource::Fixed(Cost::ONE)
                }
            },
        }
    }

    /// Complains of a zone that has no room for a single key.
    pub(in crate::config) fn room_for_a_key(
        &mut self,
        limit: Option<Span>,
        algorithm: AlgorithmParams,
        size: usize,
    ) {
        let each = match algorithm {
            AlgorithmParams::SlidingLog { limit, .. } => u64::from(limit) * 16,
            _ => return,
        };
        if let Some(key) = limit.filter(|_| each + 1024 > size as u64) {
            self.complain_with(
                key,
                format!("a key of this zone may take {each} bytes, which is more than its size"),
                "a larger `size`, or `sliding_window`, which remembers no single requests",
            );
        }
    }
}

fn what_waits(zone: AlgorithmParams) -> &'static str {
    match zone {
        AlgorithmParams::Bursty { .. }
        | AlgorithmParams::Paced { .. }
        | AlgorithmParams::WarmUp { .. } => {
            "requests wait for their turn, up to the zone's `max_wait`"
        }
        _ => "nobody waits: what is over the limit is refused",
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn what_is_allowed_is_said_as_it_was_written() {
        let fixed = |millis| {
            let window = Duration::from_millis(millis);
            AlgorithmParams::FixedWindow { limit: 100, window }.to_string()
        };
        assert_eq!(fixed(60_000), "100r/1m");
        assert_eq!(fixed(90_000), "100r/90s");
        assert_eq!(fixed(86_400_000), "100r/1d");
        assert_eq!(fixed(1_500), "100r/1500ms");
        let rate = Rate::per_minute(1_000);
        assert_eq!(AlgorithmParams::Gcra { rate }.to_string(), "1r/m");
    }
}
