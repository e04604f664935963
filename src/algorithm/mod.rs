//! The algorithms of limits, one file each: pure functions from a state, the time and a cost to a verdict.
//!
//! An algorithm is a type with the numbers that limit a key: its [`Algorithm`] functions take the state of a key and the
//! time, and nothing else. So requests, replay and tests run the same code, and the states of a zone have the type of its
//! algorithm. `for_each_algorithm!` lists all of them; [`AlgorithmParams`], [`LimitSpec`] and the keys of a zone are enums
//! made from the list.
//!
//! `CONTRIBUTING.md` says how to add one.

mod core;
mod fixed_window;
mod gcra;
mod leaky_bucket;
mod paced;
mod quantities;
mod sliding_log;
mod sliding_window;
mod smooth;
#[cfg(test)]
#[path = "tests/testing.rs"]
mod testing;
mod token_bucket;

use std::fmt;
use std::time::Duration;

use crate::clock::Millis;

pub use self::core::{Algorithm, AlgorithmInfo, BurstMeaning, ExcessScale, ScriptArgs};
pub use self::fixed_window::FixedWindow;
pub use self::gcra::Gcra;
pub use self::leaky_bucket::LeakyBucket;
pub use self::paced::Paced;
pub use self::quantities::{
    Cost, Delay, Excess, KeyStatus, Level, Rate, Spent, Verdict, VerdictKind,
};
pub use self::sliding_log::SlidingLog;
pub use self::sliding_window::{Blocks, SlidingWindow};
pub use self::smooth::{Bursty, Smooth, WarmUp};
pub use self::token_bucket::TokenBucket;

/// Calls a macro with all algorithms: each one's type, the parameters of its zones, and how it is made for the `burst` and
/// `delay` of a rule.
///
/// Hints list them in this order. Of several with the same name, the first is taken whose parameters a zone has all.
macro_rules! for_each_algorithm {
    ($($then:ident)::+ [$($arguments:tt)*]) => {
        $($then)::+! {
            [$($arguments)*]
            LeakyBucket($crate::algorithm::LeakyBucket) { rate: Rate }
                => |burst, delay| LeakyBucket { rate, burst, delay },
            TokenBucket($crate::algorithm::TokenBucket) { rate: Rate }
                => |capacity, _| TokenBucket { rate, capacity },
            Gcra($crate::algorithm::Gcra) { rate: Rate } => |burst, _| Gcra::new(rate, burst),
            FixedWindow($crate::algorithm::FixedWindow) { limit: u32, window: Duration }
                => |_, _| FixedWindow { limit: Excess::requests(limit), window },
            Blocks($crate::algorithm::Blocks) { limit: u32, window: Duration, precision: Duration }
                => |_, _| Blocks { limit: Excess::requests(limit), window, precision },
            SlidingWindow($crate::algorithm::SlidingWindow) { limit: u32, window: Duration }
                => |_, _| SlidingWindow { limit: Excess::requests(limit), window },
            SlidingLog($crate::algorithm::SlidingLog) { limit: u32, window: Duration }
                => |_, _| SlidingLog { limit: Excess::requests(limit), window },
            Paced($crate::algorithm::Paced) { rate: Rate, max_wait: Duration }
                => |_, _| Paced { rate, max_wait },
            WarmUp($crate::algorithm::Smooth<$crate::algorithm::WarmUp>) {
                rate: Rate,
                max_wait: Duration,
                warm_up: Duration
            } => |_, _| Smooth::warm_up(rate, max_wait, warm_up),
            Bursty($crate::algorithm::Smooth<$crate::algorithm::Bursty>) {
                rate: Rate,
                max_wait: Duration
            } => |burst, _| Smooth::bursty(rate, max_wait, burst),
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
        $($name:ident $type:tt $params:tt => $make:expr,)*) => {
        match $value { $($kind::$name($inner) => $made::$name($act),)* }
    };
    ([$value:expr, $kind:ident($inner:pat) => $act:expr]
        $($name:ident $type:tt $params:tt => $make:expr,)*) => {
        match $value { $($kind::$name($inner) => $act,)* }
    };
    ([$value:expr, ($kind:ident($inner:pat), $other:ident($second:pat)) => $made:ident { $act:expr }, _ => $else:expr]
        $($name:ident $type:tt $params:tt => $make:expr,)*) => {
        match $value { $(($kind::$name($inner), $other::$name($second)) => $made::$name($act),)* _ => $else }
    };
    ([$value:expr, ($kind:ident($inner:pat), $other:ident($second:pat)) => $act:expr, _ => $else:expr]
        $($name:ident $type:tt $params:tt => $make:expr,)*) => {
        match $value { $(($kind::$name($inner), $other::$name($second)) => $act,)* _ => $else }
    };
}
pub(crate) use algorithm_arms;

macro_rules! define_algorithms {
    ([] $($name:ident($type:ty) { $($param:ident: $of:ty),* } => $make:expr,)*) => {
        /// The algorithm of a zone, and its parameters.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum AlgorithmParams {
            $(
                #[doc = concat!("The parameters of [`", stringify!($name), "`].")]
                $name {
                    $(
                        #[doc = concat!("The zone's `", stringify!($param), "`.")]
                        $param: $of,
                    )*
                },
            )*
        }

        /// The numbers by which a rule limits a key, of any algorithm.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum LimitSpec {
            $(
                #[doc = concat!("The numbers of [`", stringify!($name), "`].")]
                $name($type),
            )*
        }

        /// All algorithms, and the names of the parameters of each.
        pub const ALGORITHMS: &[(AlgorithmInfo, &[&str])] =
            &[$((<$type>::INFO, &[$(stringify!($param)),*]),)*];

        impl AlgorithmParams {
            /// The algorithm of this name with these parameters; `None` where one is missing.
            #[must_use]
            pub fn new(name: &str, values: &ParamValues) -> Option<Self> {
                $(
                    if let ParamValues { $($param: Some($param),)* .. } = *values
                        && name == <$type>::INFO.name
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
            /// The numbers of a rule with this `burst` and `delay` in a zone of this algorithm.
            #[must_use]
            pub fn new(algorithm: &AlgorithmParams, burst: Excess, delay: Delay) -> Self {
                match *algorithm {
                    $(AlgorithmParams::$name { $($param),* } => {
                        Self::$name($make(burst, delay))
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

/// The names of all algorithms for which `has` holds, in the order of the list.
pub fn names(mut has: impl FnMut(&AlgorithmInfo, &[&str]) -> bool) -> Vec<&'static str> {
    let mut names: Vec<_> = ALGORITHMS
        .iter()
        .filter(|(info, params)| has(info, params))
        .map(|(info, _)| info.name)
        .collect();
    names.dedup();
    names
}

/// Whether the algorithm of this name has this parameter.
#[must_use]
pub fn takes(name: &str, param: &str) -> bool {
    names(|info, params| info.name == name && params.contains(&param)) == [name]
}

/// Parts of every script, in the order in which they use each other.
pub const SCRIPT_HELPERS: [&str; 3] = [
    include_str!("lua/level.lua"),
    include_str!("lua/moment.lua"),
    include_str!("lua/smooth.lua"),
];

impl AlgorithmParams {
    /// Its name in the configuration.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.info().name
    }

    /// How many requests per second pass in the long run.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        let ParamValues {
            rate,
            limit,
            window,
            ..
        } = self.values();
        if let (Some(limit), Some(window)) = (limit, window) {
            return f64::from(limit) / window.as_secs_f64();
        }
        let units = rate.map_or(0, Rate::units_per_milli) as f64;
        units * 1000.0 / Excess::ONE.0 as f64
    }
}

/// The limit, as the user wrote it.
impl fmt::Display for AlgorithmParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values();
        match (values.rate, values.limit, values.window) {
            (Some(rate), ..) => rate.fmt(f),
            (None, Some(limit), Some(window)) => write!(f, "{limit}r/{}", InUnits(window)),
            _ => f.write_str(self.name()),
        }
    }
}

/// A time as the configuration writes it, in the largest unit that is exact.
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
    /// Of two for the same zone, the one by which keys take longer to drain.
    #[must_use]
    pub fn slower(self, other: Self) -> Self {
        match_algorithm!(
            (self, other), (Self(one), Self(other)) => Self { one.slower(other) },
            _ => self
        )
    }

    /// How much later a refused request would pass if it cost `more`, as [`Algorithm::added_wait`].
    #[must_use]
    pub fn added_wait(&self, excess: Excess, more: Cost) -> Option<Duration> {
        if more.0 == 0 || self.info().next_pays {
            return Some(Duration::ZERO);
        }
        match_algorithm!(self, Self(spec) => spec.added_wait(excess, more))
    }
}

macro_rules! delegate {
    ($($(#[$doc:meta])* fn $name:ident($($param:ident: $of:ty),*) -> $result:ty;)*) => {
        impl LimitSpec {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name(&self, $($param: $of),*) -> $result {
                    match_algorithm!(self, Self(spec) => spec.$name($($param),*))
                }
            )*
        }
    };
}

delegate! {
    /// The most whole requests that a key may have at one moment.
    fn quota() -> u64;
    /// How long it takes until a whole quota is there again.
    fn period() -> Duration;
    /// The arguments of the script for a request of this cost.
    fn script_args(cost: Cost) -> ScriptArgs;
    /// The verdict on a request that a lease lets pass, as [`Algorithm::queue_turn`].
    fn queue_turn(queue: Level, now: Millis, cost: Cost) -> (Verdict, Level);
    /// How long a request waits that fills the burst.
    fn burst_wait() -> Duration;
    /// Tells rules of one zone apart that limit the same key by different numbers.
    fn class() -> u64;
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_limit_is_displayed_as_the_user_wrote_it() {
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
