//! `limit_req`, `limit_conn` and `shadow`: the rules that use zones, and the headers that tell clients of their limits.

use std::time::Duration;

use super::refusal::RefusalAction;
use super::refusal::raw::ExcessAction;
use super::zones::{self, ReqZone};
use crate::algorithm::{self, AlgorithmParams, BurstMeaning, Cost, Delay, Excess, Rate};
use crate::config::compile::{Compiler, Resolved};
use crate::config::decode::value::{List, OrOff, Text, choice};
use crate::config::decode::{Field, Spanned, units};
use crate::config::report::{self, Diagnostic, ParseError, Report};
use crate::config::source::Span;
use crate::config::template::{Template, TemplatePhase, is_late};

pub(crate) mod raw {
    //! Rules as the user writes them.
    use std::time::Duration;

    use schemars::json_schema;

    use super::{HeaderForm, HeaderScope};
    use crate::config::decode::record::record;
    use crate::config::decode::value::{
        Burst, ConnLimit, Flag, QueueSize, RefusalStatus, Text, Time, nonzero, schema,
    };
    use crate::config::decode::{Decode, DecodeContext, Field, Required};
    use crate::config::directive::refusal::raw::{
        ExcessAction, OnConnExcess, OnExcess, RefusalDirectives,
    };
    use crate::config::report::ParseError;
    use crate::config::source::{Node, NodeKind};

    record! {
        /// One `limit_req`.
        pub(crate) struct ReqRule {
            /// The zone, one of `limit_req_zones`.
            zone: Required<Text>,
            /// How many requests a key may be ahead of its rate; the capacity of a token_bucket, what a bursty zone saves while idle. Default: 0; 1 for a token_bucket, a second's worth for bursty.
            burst: Field<Burst>,
            /// Requests within the burst pass at once instead of waiting for their turn.
            nodelay: Field<Flag> = "false" => bool,
            /// So many requests of the burst pass at once, the others wait.
            delay: Field<Burst> = "0" => u32,
            /// The cost of a request: a number, a template that gives one, `request_bytes` or `response_bytes`. A cost that is known with the response is charged then.
            cost: Field<Text> = "1" => Box<str>,
            /// What to do with requests beyond the burst: `reject` sends a response, `delay` delays them until they conform to the rate, `drop` closes the connection without a response.
            on_excess: Field<OnExcess> = "reject" => ExcessAction,
            /// With `on_excess: delay`, the longest delay; a request that would wait longer is refused.
            max_wait: Field<Time> = "10s" => Duration; if some_wait,
            /// How long a key stays refused after a refusal, up to 30d. Default: not at all.
            penalty: Field<Time>,
            /// The status of a request that this rule refuses, 400 to 599. Default: limit_req_status.
            status: Field<RefusalStatus>,
        }
        with refusal: RefusalDirectives,
    }

    record! {
        /// One `limit_conn`.
        pub(crate) struct ConnRule {
            /// The zone, one of `limit_conn_zones`.
            zone: Required<Text>,
            /// How many requests at once.
            limit: Required<ConnLimit>,
            /// Where requests wait for a slot. Default: they are refused at once.
            queue: Field<Queue>,
            /// What to do with requests without a slot: `reject` sends a response, `drop` closes the connection without a response.
            on_excess: Field<OnConnExcess> = "reject" => ExcessAction,
            /// The status of a request that this rule refuses, 400 to 599. Default: limit_conn_status.
            status: Field<RefusalStatus>,
        }
        with refusal: RefusalDirectives,
    }

    record! {
        /// Requests waiting for a `limit_conn`, first come first served.
        pub(crate) struct Queue {
            /// How many may wait for one key.
            size: Required<QueueSize>,
            /// How long each may wait.
            timeout: Required<Time>,
        }
    }

    /// `limit_headers`: a form alone, or with the responses that carry it.
    #[derive(Debug, Clone)]
    pub(crate) enum LimitHeaders {
        /// `ietf`, `legacy` or `off`, on refusals.
        Form(HeaderForm),
        /// In parts.
        Parts(Box<LimitHeadersParts>),
    }

    record! {
        /// Which header fields tell clients of their limits, and on which responses.
        pub(crate) struct LimitHeadersParts {
            /// Which fields: `ietf` for RateLimit and RateLimit-Policy, `legacy` for X-RateLimit-*, or `off`.
            form: Field<HeaderForm> = "ietf" => HeaderForm,
            /// Which responses carry them: `refused`, or `all`, which adds those to requests that pass.
            on: Field<HeaderScope> = "refused" => HeaderScope,
        }
    }

    impl Decode for LimitHeaders {
        fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
            match node.kind {
                NodeKind::Mapping(_) => context
                    .record(node)
                    .map(|parts| Self::Parts(Box::new(parts))),
                _ => HeaderForm::decode(node, context).map(Self::Form),
            }
        }
    }

    schema! {
        LimitHeaders = "LimitHeaders", |generator| {
            let form = generator.subschema_for::<HeaderForm>();
            let parts = generator.subschema_for::<LimitHeadersParts>();
            json_schema!({ "anyOf": [form, parts] })
        };
    }

    fn some_wait(time: &Time, default: &str) -> Result<(), ParseError> {
        nonzero(time, default).map_err(|_| {
            ParseError::new("`max_wait` must be longer than 0")
                .help("leave `on_excess` out to refuse at once")
        })
    }
}

/// One `limit_req` of a location.
#[derive(Debug, Clone)]
pub struct ReqRule {
    /// Index of its zone.
    pub zone: usize,
    /// How far a key may go above its rate.
    pub burst: Excess,
    /// Which of the excess waits.
    pub delay: Delay,
    /// What a request weighs.
    pub weight: CostSource,
    /// What becomes of the rest.
    pub action: RefusalAction,
}

/// One `limit_conn` of a location.
#[derive(Debug, Clone)]
pub struct ConnRule {
    /// Index of its zone.
    pub zone: usize,
    /// How many requests at once.
    pub limit: u32,
    /// Where requests wait for a place; `None`: they are refused at once.
    pub queue: Option<ConnQueue>,
    /// What becomes of requests without a place.
    pub action: RefusalAction,
}

/// A waiting line before a `limit_conn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnQueue {
    /// How many may wait for one key.
    pub size: u32,
    /// How long each may wait.
    pub timeout: Duration,
}

/// The source of a request's cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CostSource {
    /// A template that gives a number with the response: charged then.
    After(Template),
    /// A template that gives a number with the request.
    Before(Template),
    /// The same for all.
    Fixed(Cost),
    /// The bytes of its body: charged when it is received.
    RequestBytes,
    /// The bytes of its response's body: charged then.
    ResponseBytes,
}

impl CostSource {
    /// The template, if there is one.
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

choice! {
    /// The level at which a refusal is logged; a delay is logged one level lower.
    pub enum LogLevel as "LogLevel" = "a log level" {
        /// Least severe.
        Info = "info",
        /// Between the two.
        Notice = "notice",
        /// One below error.
        Warn = "warn",
        /// Most severe.
        Error = "error",
    }
}

/// Which header fields tell clients of their limits besides `Retry-After`, and on which responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitHeaders {
    /// Which fields.
    pub form: HeaderForm,
    /// On which responses.
    pub on: HeaderScope,
}

choice! {
    /// Which responses carry the fields of `limit_headers`.
    pub enum HeaderScope as "HeaderScope" = "a set of responses" {
        /// Refusals, and those to requests that pass.
        All = "all",
        /// Refusals.
        Refused = "refused",
    }
}

choice! {
    /// Which header fields tell clients of their limits.
    pub enum HeaderForm as "HeaderForm" = "a form of `limit_headers`" {
        /// `RateLimit-Policy` and `RateLimit`.
        Ietf = "ietf",
        /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`.
        Legacy = "legacy",
        /// None.
        Off = "off",
    }
}

impl Default for LimitHeaders {
    fn default() -> Self {
        Self::new(&raw::LimitHeadersParts::default())
    }
}

impl LimitHeaders {
    fn new(given: &raw::LimitHeadersParts) -> Self {
        Self {
            form: given.form(),
            on: given.on(),
        }
    }

    /// `limit_headers`
    pub(crate) fn compile(given: &Field<raw::LimitHeaders>, report: &mut Report) -> Self {
        match given.value() {
            None => Self::default(),
            Some(raw::LimitHeaders::Form(form)) => Self {
                form: *form,
                ..Self::default()
            },
            Some(raw::LimitHeaders::Parts(parts)) => {
                if let (HeaderForm::Off, Some(on)) = (parts.form(), parts.on.get()) {
                    let hint = "no response carries header fields then";
                    report.error_with(on.span, "`on` has no meaning with `form: off`", hint);
                }
                Self::new(parts)
            }
        }
    }
}

/// The longest penalty: clients that are refused for longer belong in a `deny` list.
const MAX_PENALTY: Duration = Duration::from_secs(30 * 86_400);

/// Which kind of zone a rule names.
#[derive(Clone, Copy)]
enum RuleKind {
    Conn,
    Req,
}

/// A `limit_req` list.
pub(crate) fn req_rules(
    given: &Field<OrOff<List<raw::ReqRule>>>,
    zones: &[ReqZone],
    compiler: &mut Compiler<'_>,
) -> Vec<ReqRule> {
    let mut seen = Vec::new();
    let rules = given.on().map_or(&[][..], |list| &list.0);
    let rules = rules.iter().filter_map(|Spanned { value: rule, .. }| {
        let zone = zone(rule.zone.get()?, RuleKind::Req, &mut seen, compiler)?;
        // A zone that was not understood has no algorithm.
        let algorithm = zones.get(zone).map(|zone| zone.algorithm);
        let algorithm = algorithm.unwrap_or(AlgorithmParams::LeakyBucket {
            rate: Rate::per_second(1000),
        });
        Some(ReqRule {
            zone,
            burst: burst(rule, algorithm, compiler.report),
            delay: delay(rule, algorithm, compiler.report),
            weight: cost(rule, compiler),
            action: req_action(rule, algorithm, compiler),
        })
    });
    rules.collect()
}

/// A `limit_conn` list.
pub(crate) fn conn_rules(
    given: &Field<OrOff<List<raw::ConnRule>>>,
    compiler: &mut Compiler<'_>,
) -> Vec<ConnRule> {
    let mut seen = Vec::new();
    let rules = given.on().map_or(&[][..], |list| &list.0);
    let rules = rules.iter().filter_map(|Spanned { value: rule, .. }| {
        let zone = zone(rule.zone.get()?, RuleKind::Conn, &mut seen, compiler)?;
        let queue = rule.queue.value().and_then(|queue| {
            let timeout = queue.timeout.get()?;
            if timeout.value.0.is_zero() {
                let sentence = "the `timeout` of a queue must be longer than 0";
                compiler.report.error(timeout.span, sentence);
            }
            Some(ConnQueue {
                size: queue.size.value()?.0,
                timeout: timeout.value.0,
            })
        });
        let (action, status) = (rule.on_excess(), rule.status.get());
        Some(ConnRule {
            zone,
            limit: rule.limit.value()?.0,
            queue,
            action: RefusalAction::compile(action, status, &rule.refusal, compiler),
        })
    });
    rules.collect()
}

/// The zone a rule names, which no other rule of its list may name.
fn zone(
    name: &Spanned<Text>,
    kind: RuleKind,
    seen: &mut Vec<usize>,
    compiler: &mut Compiler<'_>,
) -> Option<usize> {
    let (req, conn) = (&compiler.req_zones, &compiler.conn_zones);
    let (own, other, kind, other_kind) = match kind {
        RuleKind::Req => (req, conn, "limit_req", "limit_conn"),
        RuleKind::Conn => (conn, req, "limit_conn", "limit_req"),
    };
    let text = name.value.text.as_str();
    let diagnostic = match own.find(text) {
        Resolved::At(index) if !seen.contains(&index) => {
            seen.push(index);
            return Some(index);
        }
        Resolved::At(_) => Diagnostic::new(
            name.span,
            format!("the zone `{text}` stands twice in this list"),
        ),
        Resolved::Broken => return None,
        Resolved::Nowhere => {
            if let Resolved::At(_) = other.find(text) {
                Diagnostic::new(name.span, format!("`{text}` is a {other_kind} zone"))
                    .help(format!("`{kind}` needs one of `{kind}_zones`"))
            } else {
                let names = own.all();
                let none = || {
                    names
                        .is_empty()
                        .then(|| format!("there are no `{kind}_zones`"))
                };
                let hint = report::hint(text, names.iter().copied()).or_else(none);
                Diagnostic::new(name.span, format!("unknown zone `{text}`")).hint(hint)
            }
        }
    };
    compiler.report.add(diagnostic);
    None
}

fn burst(rule: &raw::ReqRule, zone: AlgorithmParams, report: &mut Report) -> Excess {
    let burst = zones::burst(&rule.burst, zone, report);
    burst.unwrap_or_else(|| match zone.info().burst {
        BurstMeaning::Capacity => Excess::ONE,
        BurstMeaning::Saved => {
            let rate = zone.values().rate.map_or(0, Rate::units_per_milli);
            Excess(rate.saturating_mul(1000))
        }
        BurstMeaning::Excess | BurstMeaning::Nothing(_) => Excess::default(),
    })
}

fn delay(rule: &raw::ReqRule, zone: AlgorithmParams, report: &mut Report) -> Delay {
    if !zone.info().delays {
        let hint = match zone.info().next_pays {
            true => "requests wait for their turn, up to the zone's `max_wait`",
            false => "requests never wait: those over the limit are refused",
        };
        for (key, name) in [(rule.delay.key(), "delay"), (rule.nodelay.key(), "nodelay")] {
            if let Some(key) = key {
                zones::has_no_meaning(key, name, zone.name(), hint, report);
            }
        }
        return Delay::Never;
    }
    if !rule.nodelay() {
        return Delay::After(Excess::requests(rule.delay()));
    }
    if let Some(delay) = rule.delay.get() {
        let sentence = "`delay` and `nodelay` contradict each other";
        let hint = "`nodelay` lets the whole burst pass at once, `delay: N` the first N of it";
        report.error_with(delay.span, sentence, hint);
    }
    Delay::Never
}

/// `cost`
fn cost(rule: &raw::ReqRule, compiler: &mut Compiler<'_>) -> CostSource {
    let (text, given) = (rule.cost(), rule.cost.get());
    if let Some(given) = given.filter(|_| text.contains('$')) {
        let template = Template::compile(given, TemplatePhase::After, compiler);
        let is_late = template.variables().any(|it| is_late(it, compiler));
        return match is_late {
            true => CostSource::After(template),
            false => CostSource::Before(template),
        };
    }
    let error = match (&*text, units::thousandths(&text)) {
        ("request_bytes", _) => return CostSource::RequestBytes,
        ("response_bytes", _) => return CostSource::ResponseBytes,
        (_, Some(Some(milli))) if milli > 0 => return CostSource::Fixed(Cost::milli(milli)),
        (_, Some(Some(_))) => ParseError::new("a cost of 0 limits nothing")
            .help("must be at least 0.001; requests without limits need no rule"),
        _ => ParseError::new(format!("`{text}` is not a cost")).help(
            "expected a number with up to three decimals, a variable such as \
             `$upstream_http_x_cost`, `request_bytes` or `response_bytes`",
        ),
    };
    if let Some(given) = given {
        compiler.report.add(Diagnostic::parse(given.span, error));
    }
    CostSource::Fixed(Cost::ONE)
}

/// The refusals of a `limit_req`.
fn req_action(
    rule: &raw::ReqRule,
    zone: AlgorithmParams,
    compiler: &mut Compiler<'_>,
) -> RefusalAction {
    let action = rule.on_excess();
    let delays = action == ExcessAction::Delay;
    let report = &mut *compiler.report;
    if let Some(given) = rule.on_excess.get().filter(|_| delays) {
        check_order(given.span, zone, report);
    }
    if let Some(longest) = rule.max_wait.get().filter(|_| !delays) {
        let sentence = "`max_wait` has no meaning without `on_excess: delay`";
        let hint = "requests within the burst wait as long as the rate requires";
        report.error_with(longest.span, sentence, hint);
    }
    let penalty = rule.penalty.get();
    if let Some(given) = penalty {
        if given.value.0 > MAX_PENALTY {
            report.error_with(given.span, "the penalty is too long", "must be at most 30d");
        }
        if given.value.0.is_zero() {
            let sentence = "a penalty must be longer than 0";
            let hint = "without one, a refused key is served again as soon as its rate allows";
            report.error_with(given.span, sentence, hint);
        }
        if delays {
            let sentence = "`penalty` and `on_excess: delay` contradict each other";
            let hint = "delayed requests are not refused";
            report.error_with(given.span, sentence, hint);
        }
    }
    RefusalAction {
        max_wait: delays.then(|| rule.max_wait()),
        penalty: penalty
            .map(|given| given.value.0)
            .filter(|time| !time.is_zero()),
        ..RefusalAction::compile(action, rule.status.get(), &rule.refusal, compiler)
    }
}

/// Reports waiting for an algorithm that keeps no order.
fn check_order(span: Span, zone: AlgorithmParams, report: &mut Report) {
    let hint = match zone.info() {
        info if info.ordered => return,
        info if info.next_pays => {
            "its requests wait already, up to the zone's `max_wait`".to_owned()
        }
        _ => {
            let ordered = report::listed(&algorithm::names(|info, _| info.ordered));
            format!(
                "a new window would let all waiting requests pass at once; use one of {ordered}"
            )
        }
    };
    let sentence = format!("`on_excess: delay` has no meaning with `{}`", zone.name());
    report.error_with(span, sentence, hint);
}
