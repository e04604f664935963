//! How a zone counts, and what a request weighs.
//!
//! How a zone counts: which numbers an algorithm needs, and which have no meaning for it.

use std::time::Duration;

use super::limits::{self, OverrideLimits};
use crate::algorithm::{
    self, AlgorithmParams, BurstMeaning, Cost, Delay, Excess, ParamValues, Rate,
};
use crate::config::compile::Compiler;
use crate::config::decode::value::Text;
use crate::config::decode::{Field, Spanned, units, value};
use crate::config::report;
use crate::config::source::Span;
use crate::config::template::{Template, TemplatePhase};

pub(crate) mod raw {
    //! How a zone counts, as the user writes it.
    use crate::algorithm;
    use crate::config::decode::units;
    use crate::config::decode::value::{number, scalar};
    use crate::config::report;

    scalar! {
        /// How a zone counts.
        pub struct AlgorithmWord(&'static str);
        "an algorithm",
        |text| {
            let words = algorithm::names(|_, _| true);
            words.iter().copied().find(|word| *word == text).ok_or_else(|| {
                let hint = report::hint(text, words.iter().copied())
                    .unwrap_or_else(|| format!("expected one of {}", words.join(", ")));
                units::ParseError::new(format!("`{text}` is not an algorithm")).help(hint)
            })
        },
        { "enum": (algorithm::names(|_, _| true)) }
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

const BY_LIMIT: &str = "it counts in windows: give it a `limit` and a `window`";

impl Compiler<'_> {
    /// How a zone counts, with a number of any size standing in for one that was complained about.
    pub(in crate::config) fn algorithm(
        &mut self,
        zone: &Spanned<limits::raw::ReqZone>,
    ) -> AlgorithmParams {
        let (at, zone) = (zone.span, &zone.value);
        let nginx = AlgorithmParams::LeakyBucket {
            rate: Rate::per_second(1000),
        };
        let word = match (zone.algorithm.key(), zone.algorithm.value()) {
            (_, Some(word)) => word.0,
            (None, None) => nginx.name(),
            // The parameters of an algorithm that was not understood are not known.
            (Some(_), None) => return nginx,
        };
        let takes = |param| algorithm::takes(word, param);
        let mut values = ParamValues {
            rate: takes("rate").then(|| self.rate(at, zone)),
            limit: takes("limit").then(|| self.limit(at, zone)),
            window: takes("window").then(|| self.window(at, zone)),
            max_wait: Some(zone.max_wait.value().map_or(MAX_WAIT, |time| time.0)),
            ..ParamValues::default()
        };
        if let Some(window) = values.window.filter(|_| takes("precision")) {
            values.precision = self.precision(zone, window);
        }
        if takes("warm_up") {
            values.warm_up = Some(self.length(&zone.warm_up, WARM_UP));
        }
        self.no_meaning(word, zone);
        AlgorithmParams::new(word, &values).expect("every parameter of an algorithm is read")
    }

    /// Reports keys that the algorithm has no use for.
    fn no_meaning(&mut self, word: &str, zone: &limits::raw::ReqZone) {
        let by_rate = format!(
            "it goes by a `rate`; {} go by windows",
            with_param("window")
        );
        let given = [
            (zone.rate.key(), "rate", BY_LIMIT.to_owned()),
            (zone.limit.key(), "limit", by_rate.clone()),
            (zone.window.key(), "window", by_rate),
            (zone.precision.key(), "precision", is_for("precision")),
            (zone.max_wait.key(), "max_wait", is_for("max_wait")),
            (zone.warm_up.key(), "warm_up", is_for("warm_up")),
        ];
        for (key, name, hint) in given {
            if let Some(key) = key.filter(|_| !algorithm::takes(word, name)) {
                self.has_no_meaning(key, name, word, &hint);
            }
        }
    }

    fn has_no_meaning(&mut self, key: Span, name: &str, algorithm: &str, hint: &str) {
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

    fn limit(&mut self, at: Span, zone: &limits::raw::ReqZone) -> u32 {
        if zone.limit.key().is_none() {
            self.complain(at, "`limit` is missing here");
        }
        zone.limit.value().map_or(1, |limit| limit.0)
    }

    fn window(&mut self, at: Span, zone: &limits::raw::ReqZone) -> Duration {
        if zone.window.key().is_none() {
            self.complain(at, "`window` is missing here");
        }
        self.length(&zone.window, Duration::from_secs(1))
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
        let mut values = zone.values();
        if let Some(number) = &mut values.rate {
            *number = rate.and_then(|rate| rate.value.0).unwrap_or(*number);
            if let Some(limit) = own.limit.key() {
                self.has_no_meaning(limit, "limit", zone.name(), "it goes by a `rate`");
            }
        }
        if let Some(number) = &mut values.limit {
            *number = limit.and_then(|limit| limit.value.0).unwrap_or(*number);
            if let Some(rate) = own.rate.key() {
                let hint = "give it a `limit`, of the zone's window";
                self.has_no_meaning(rate, "rate", zone.name(), hint);
            }
        }
        let algorithm = AlgorithmParams::new(zone.name(), &values)
            .expect("the zone has every parameter of its algorithm");
        let burst = own.burst.value().map(|burst| Excess::requests(burst.0));
        if let Some(burst) = own.burst.key() {
            self.burst_has_meaning(burst, zone);
        }
        if let (BurstMeaning::Capacity, Some(burst)) = (zone.info().burst, own.burst.get()) {
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
        let burst = match zone.info().burst {
            BurstMeaning::Capacity => {
                if let Some(burst) = rule.burst.get() {
                    self.some_capacity(burst);
                }
                burst.unwrap_or(Excess::ONE)
            }
            BurstMeaning::Saved => burst.unwrap_or_else(|| {
                let rate = zone.values().rate.map_or(0, Rate::units_per_milli);
                Excess(rate.saturating_mul(1000))
            }),
            BurstMeaning::Excess | BurstMeaning::Nothing(_) => burst.unwrap_or_default(),
        };
        if !zone.info().delays {
            for (key, name) in [(rule.delay.key(), "delay"), (rule.nodelay.key(), "nodelay")] {
                if let Some(key) = key {
                    self.has_no_meaning(key, name, zone.name(), what_waits(zone));
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
        if let BurstMeaning::Nothing(hint) = zone.info().burst {
            self.has_no_meaning(key, "burst", zone.name(), hint);
        }
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
        let requests = algorithm.values().limit.map_or(0, u64::from);
        let each = requests * algorithm.info().request_bytes;
        if let Some(key) = limit.filter(|_| each > 0 && each + 1024 > size as u64) {
            self.complain_with(
                key,
                format!("a key of this zone may take {each} bytes, which is more than its size"),
                "a larger `size`, or `sliding_window`, which remembers no single requests",
            );
        }
    }
}

fn what_waits(zone: AlgorithmParams) -> &'static str {
    match zone.info().next_pays {
        true => "requests wait for their turn, up to the zone's `max_wait`",
        false => "nobody waits: what is over the limit is refused",
    }
}

fn is_for(param: &str) -> String {
    format!("it is for {}", with_param(param))
}

/// The algorithms with this parameter, as a sentence lists them.
fn with_param(param: &str) -> String {
    report::listed(&algorithm::names(|_, params| params.contains(&param)))
}
