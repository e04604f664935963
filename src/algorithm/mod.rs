//! The algorithms of limits, one file each: pure functions from a state, the time and a cost to a verdict.
//!
//! An algorithm is the numbers a key is held to: its [`Algorithm`] functions take what is remembered of a key and the
//! time, and nothing else. So the live path, replay and the tests run the same code, and a zone is typed by its
//! algorithm: it cannot be given the state of another. `for_each_algorithm!` lists all of them; [`AlgorithmParams`],
//! [`LimitSpec`] and the keys of a zone are enums made from the list.

mod core;
mod fixed_window;
mod gcra;
mod leaky_bucket;
mod level;
mod paced;
mod quantities;
mod script;
mod sliding_log;
mod sliding_window;
mod smooth;
#[cfg(test)]
#[path = "tests/testing.rs"]
mod testing;
mod time;
mod token_bucket;

use std::fmt;
use std::time::Duration;

use crate::clock::Millis;

pub use self::core::{Algorithm, AlgorithmInfo, BurstMeaning};
pub use self::fixed_window::FixedWindow;
pub use self::gcra::Gcra;
pub use self::leaky_bucket::LeakyBucket;
pub use self::level::Level;
pub use self::paced::Paced;
pub use self::quantities::{Cost, Delay, Excess, KeyStatus, Rate, Spent, Verdict, VerdictKind};
pub use self::script::{ExcessScale, ScriptArgs};
pub use self::sliding_log::SlidingLog;
pub use self::sliding_window::{Blocks, SlidingWindow};
pub use self::smooth::{Bursty, Smooth, WarmUp};
pub use self::token_bucket::TokenBucket;

/// Calls a macro with all algorithms: each one's type, and the parameters of a zone that counts by it.
///
/// Hints list them in this order. Of several with the same word the first one takes a zone that gives all of its
/// parameters.
macro_rules! for_each_algorithm {
    ($($then:ident)::+ [$($arguments:tt)*]) => {
        $($then)::+! {
            [$($arguments)*]
            LeakyBucket($crate::algorithm::LeakyBucket) { rate: Rate },
            TokenBucket($crate::algorithm::TokenBucket) { rate: Rate },
            Gcra($crate::algorithm::Gcra) { rate: Rate },
            FixedWindow($crate::algorithm::FixedWindow) { limit: u32, window: Duration },
            Blocks($crate::algorithm::Blocks) { limit: u32, window: Duration, precision: Duration },
            SlidingWindow($crate::algorithm::SlidingWindow) { limit: u32, window: Duration },
            SlidingLog($crate::algorithm::SlidingLog) { limit: u32, window: Duration },
            Paced($crate::algorithm::Paced) { rate: Rate, max_wait: Duration },
            WarmUp($crate::algorithm::Smooth<$crate::algorithm::WarmUp>) {
                rate: Rate,
                max_wait: Duration,
                warm_up: Duration
            },
            Bursty($crate::algorithm::Smooth<$crate::algorithm::Bursty>) {
                rate: Rate,
                max_wait: Duration
            },
        }
    };
}
pub(crate) use for_each_algorithm;

/// Matches enums with a variant for each algorithm, and does the same in all variants.
///
/// `match_algorithm!(value, Enum(inner) => act)`, or of two enums and one algorithm
/// `match_algorithm!(values, (One(a), Other(b)) => act, _ => other)`. With `=> Made { act }` the result is a variant of
/// the same algorithm.
macro_rules! match_algorithm {
    ($($arguments:tt)*) => {
        $crate::algorithm::for_each_algorithm!(crate::algorithm::algorithm_arms [$($arguments)*])
    };
}
pub(crate) use match_algorithm;

macro_rules! algorithm_arms {
    ([$value:expr, $kind:ident($inner:pat) => $made:ident { $act:expr }]
        $($name:ident($type:ty) { $($param:ident: $of:ty),* },)*) => {
        match $value { $($kind::$name($inner) => $made::$name($act),)* }
    };
    ([$value:expr, $kind:ident($inner:pat) => $act:expr]
        $($name:ident($type:ty) { $($param:ident: $of:ty),* },)*) => {
        match $value { $($kind::$name($inner) => $act,)* }
    };
    ([$value:expr, ($kind:ident($inner:pat), $other:ident($second:pat)) => $made:ident { $act:expr }, _ => $else:expr]
        $($name:ident($type:ty) { $($param:ident: $of:ty),* },)*) => {
        match $value { $(($kind::$name($inner), $other::$name($second)) => $made::$name($act),)* _ => $else }
    };
    ([$value:expr, ($kind:ident($inner:pat), $other:ident($second:pat)) => $act:expr, _ => $else:expr]
        $($name:ident($type:ty) { $($param:ident: $of:ty),* },)*) => {
        match $value { $(($kind::$name($inner), $other::$name($second)) => $act,)* _ => $else }
    };
}
pub(crate) use algorithm_arms;

macro_rules! define_algorithms {
    ([] $($name:ident($type:ty) { $($param:ident: $of:ty),* },)*) => {
        /// How a zone counts, and with which numbers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum AlgorithmParams {
            $(
                #[doc = concat!("The parameters of [`", stringify!($name), "`].")]
                $name {
                    $(
                        #[doc = concat!("Its `", stringify!($param), "`.")]
                        $param: $of,
                    )*
                },
            )*
        }

        /// The numbers a key is held to by a rule, whichever way its zone counts.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum LimitSpec {
            $(
                #[doc = concat!("Those of [`", stringify!($name), "`].")]
                $name($type),
            )*
        }

        /// All algorithms, and the names of the parameters of each.
        pub const ALGORITHMS: &[(AlgorithmInfo, &[&str])] =
            &[$((<$type>::INFO, &[$(stringify!($param)),*]),)*];

        impl AlgorithmParams {
            /// The algorithm of this word with these parameters; `None` where one is missing.
            #[must_use]
            pub fn new(word: &str, values: &ParamValues) -> Option<Self> {
                $(
                    if let ParamValues { $($param: Some($param),)* .. } = *values
                        && word == <$type>::INFO.name
                    {
                        return Some(Self::$name { $($param),* });
                    }
                )*
                None
            }

            /// Its parameters.
            #[must_use]
            pub fn values(&self) -> ParamValues {
                match *self {
                    $(Self::$name { $($param),* } => ParamValues {
                        $($param: Some($param),)*
                        ..ParamValues::default()
                    },)*
                }
            }

            /// What is known of the algorithm.
            #[must_use]
            pub const fn info(&self) -> &'static AlgorithmInfo {
                match self { $(Self::$name { .. } => &<$type>::INFO,)* }
            }
        }

        impl LimitSpec {
            /// What a rule with this `burst` and `delay` asks of a key in a zone that counts like this.
            #[must_use]
            pub fn new(algorithm: &AlgorithmParams, burst: Excess, delay: Delay) -> Self {
                match *algorithm {
                    $(AlgorithmParams::$name { $($param),* } => {
                        Self::$name(<$type>::for_rule($($param,)* burst, delay))
                    })*
                }
            }

            /// What is known of the algorithm.
            #[must_use]
            pub const fn info(&self) -> &'static AlgorithmInfo {
                match self { $(Self::$name(_) => &<$type>::INFO,)* }
            }
        }
    };
}
for_each_algorithm!(define_algorithms []);

/// The parameters of a zone, as far as its algorithm has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ParamValues {
    /// How fast requests may come.
    pub rate: Option<Rate>,
    /// How many requests may come in a window.
    pub limit: Option<u32>,
    /// The length of a window.
    pub window: Option<Duration>,
    /// The length of a block of a window.
    pub precision: Option<Duration>,
    /// How long a request may wait.
    pub max_wait: Option<Duration>,
    /// How long a key takes to get warm.
    pub warm_up: Option<Duration>,
}

/// The words of all algorithms for which this holds, in the order of the list.
pub fn words(mut has: impl FnMut(&AlgorithmInfo, &[&str]) -> bool) -> Vec<&'static str> {
    let mut words: Vec<_> = ALGORITHMS
        .iter()
        .filter(|(info, params)| has(info, params))
        .map(|(info, _)| info.name)
        .collect();
    words.dedup();
    words
}

/// Whether the algorithm of this word has this parameter.
#[must_use]
pub fn takes(word: &str, param: &str) -> bool {
    words(|info, params| info.name == word && params.contains(&param)) == [word]
}

/// Parts of the script of every algorithm, in the order in which they refer to each other.
pub const SCRIPT_HELPERS: [&str; 3] = [
    include_str!("lua/level.lua"),
    include_str!("lua/moment.lua"),
    include_str!("lua/smooth.lua"),
];

impl AlgorithmParams {
    /// Its word in a configuration.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.info().name
    }

    /// What it comes to in the long run, in requests a second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        match self.values() {
            ParamValues {
                limit: Some(limit),
                window: Some(window),
                ..
            } => f64::from(limit) / window.as_secs_f64(),
            ParamValues { rate, .. } => {
                let units = rate.map_or(0, Rate::units_per_milli) as f64;
                units * 1000.0 / Excess::ONE.0 as f64
            }
        }
    }
}

/// What it allows, as the user wrote it.
impl fmt::Display for AlgorithmParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.values() {
            ParamValues {
                rate: Some(rate), ..
            } => rate.fmt(f),
            ParamValues {
                limit: Some(limit),
                window: Some(window),
                ..
            } => write!(f, "{limit}r/{}", InUnits(window)),
            _ => f.write_str(self.name()),
        }
    }
}

/// A time as a configuration writes it, in the largest unit that is exact.
struct InUnits(Duration);

impl fmt::Display for InUnits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let units = [
            (86_400_000, "d"),
            (3_600_000, "h"),
            (60_000, "m"),
            (1_000, "s"),
        ];
        for (length, unit) in units {
            if millis >= length && millis.is_multiple_of(length) {
                return write!(f, "{}{unit}", millis / length);
            }
        }
        write!(f, "{millis}ms")
    }
}

impl LimitSpec {
    /// Of two for the same zone, those that take longer to drain.
    #[must_use]
    pub fn slower(self, other: Self) -> Self {
        match_algorithm!(
            (self, other), (Self(one), Self(other)) => Self { one.slower(other) },
            // Those of another zone say nothing about this one.
            _ => self
        )
    }

    /// What a key may have at one moment, in whole requests.
    #[must_use]
    pub fn quota(&self) -> u64 {
        match_algorithm!(self, Self(numbers) => numbers.quota())
    }

    /// The time in which a whole quota comes back.
    #[must_use]
    pub fn period(&self) -> Duration {
        match_algorithm!(self, Self(numbers) => numbers.period())
    }

    /// The arguments of its script for a request of this cost.
    #[must_use]
    pub fn script_args(&self, cost: Cost) -> ScriptArgs {
        match_algorithm!(self, Self(numbers) => numbers.script_args(cost))
    }

    /// The turn of a request that a lease lets pass, as [`Algorithm::queued`] has it.
    #[must_use]
    pub fn queued(&self, queue: Level, now: Millis, cost: Cost) -> (Verdict, Level) {
        match_algorithm!(self, Self(numbers) => numbers.queued(queue, now, cost))
    }

    /// How much later a refused request would have passed if it had cost `more`, as [`Algorithm::later`] has it.
    #[must_use]
    pub fn later(&self, excess: Excess, more: Cost) -> Option<Duration> {
        if more.0 == 0 || self.info().next_pays {
            return Some(Duration::ZERO);
        }
        match_algorithm!(self, Self(numbers) => numbers.later(excess, more))
    }

    /// How long a request waits that fills the burst.
    #[must_use]
    pub fn wait_in_burst(&self) -> Duration {
        match_algorithm!(self, Self(numbers) => numbers.wait_in_burst())
    }

    /// Tells rules of one zone apart that hold the same key to other numbers.
    #[must_use]
    pub fn class(&self) -> u64 {
        match_algorithm!(self, Self(numbers) => numbers.class())
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
