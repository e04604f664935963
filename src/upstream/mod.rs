//! Upstreams: groups of backends, and how requests are sent to them.
//!
//! [`Upstream::send`] picks a backend, takes a kept connection or opens one, sends the request, reads the response
//! headers, and tries the next backend if need be.
//!
//! The HTTP/1 client is our own. hyper's runs every connection in a task of its own and talks to it through channels,
//! which costs a gateway a quarter of its instructions; here a connection belongs to the request that uses it.
//!
//! In one thing we differ from nginx: a kept connection that the backend closed just as a request went out is not a
//! failure of the backend. The request, if it may be sent again, goes to the same backend over a new connection; nginx
//! would count a failure and, with `max_fails` at its default, disable a healthy server for 10 s.

mod attempt;
mod backend;
mod balance;
mod body_stream;
pub mod breaker;
mod connection;
mod dns;
mod error;
mod health;
mod http1;
mod http2;
mod pool;
mod queue;
mod request;
mod resolve;
mod response;
mod retry;
#[cfg(test)]
mod tests;
mod wait_list;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use http::Response;

use self::attempt::{AttemptResponse, RetryDecision, attempt, report};
use self::backend::{ChangeList, GroupSettings, KeepaliveSettings};
use self::balance::{Balancer, Pick};
use self::breaker::{Breaker, BreakerOpen, BreakerState, CallOutcome, CallPermit, ForcedState};
use self::queue::RequestQueue;
use self::resolve::ResolvedNames;
use self::retry::{AttemptContext, AttemptError, RetryBudget, RetryCause, RetryGrant, RetryState};
use self::wait_list::WaitList;
use crate::clock::{Clock, Millis};
use crate::config::plan;
use crate::message::{Attempt, RequestRecord};
use crate::tls;

pub use self::backend::{Backend, BackendAddress, BackendCounters, UnavailableReason};
pub use self::body_stream::{BodyError, BodyObserver, ResponseTimer};
pub use self::error::{Error, InvalidResponse, QueueError, Stage};
pub use self::health::check_health;
pub use self::queue::QueueStats;
pub use self::request::{OutgoingRequest, restore_upgrade};
pub use self::resolve::{LookupResult, NameLookup, NameStatus};
pub use self::response::{CompleteBody, UpgradedConnection, UpstreamBody};
pub use self::retry::is_idempotent;

/// The ways into this folder for the fuzzer.
#[cfg(any(fuzzing, test))]
pub mod fuzzing {
    pub use super::dns::addresses_in;
    pub use super::http1::fuzzing::{FuzzedResponse, read};
}

/// A group of backends. Shared by all event loops.
#[derive(Debug)]
pub struct Upstream {
    name: Arc<str>,
    balancer: Balancer,
    queue: Option<Arc<RequestQueue>>,
    budget: Option<Box<RetryBudget>>,
    names: Option<Box<ResolvedNames>>,
    /// How many backends a request may be sent to.
    tries: AtomicU32,
    /// When the first open breaker becomes half-open.
    next_wake: AtomicU64,
}

/// The last attempt of a request, while another backend is looked for.
enum LastResult {
    // Without its `ActiveRequest`, which could keep its own backend from being tried again.
    Response(Box<AttemptResponse>, Arc<Backend>),
    Error(Error),
}

impl Upstream {
    /// Looks all names up and builds the group; a name with several addresses is several backends. `tls` are the TLS
    /// settings of the plan, and `old` is the group of the same name before a reload: the state of the servers in both is
    /// kept, but for their connections and requests in progress. Blocks, as nginx does when it starts.
    ///
    /// # Errors
    ///
    /// [`Error::Resolve`] for a name without an address that is not looked up again.
    pub fn build(
        plan: &plan::Upstream,
        tls: Arc<[Arc<tls::TlsConnector>]>,
        old: Option<&Self>,
    ) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut addresses = Vec::new();
        let mut looked_up = Vec::new();
        for listed in 0..plan.servers.len() {
            let (own, result) = resolve::at_start(plan, listed)?;
            addresses.extend(own.into_iter().map(|address| (listed, address)));
            looked_up.push(result);
        }
        let waiting = plan.queue.as_ref().map(|queue| {
            let size = usize::try_from(queue.size).unwrap_or(usize::MAX);
            Arc::new(WaitList::new(size, queue.order))
        });
        let changing = plan.servers.iter().any(|server| server.resolve.is_some());
        // A single server that stays has no balancer to inform.
        let only = addresses.first().filter(|_| addresses.len() == 1);
        let single = !changing && only.is_some_and(|(listed, _)| !plan.servers[*listed].backup);
        let informed = !single || waiting.is_some();
        let changes = informed.then(|| Arc::new(ChangeList::new(waiting.clone())));
        let settings = GroupSettings {
            upstream: plan.clone(),
            keepalive: KeepaliveSettings {
                upstream: NEXT.fetch_add(1, Ordering::Relaxed),
                most: plan.keepalive,
                timeout: plan.keepalive_timeout,
                requests: plan.keepalive_requests,
            },
            tls,
            changes: changes.clone(),
        };
        let known = old.map(Self::backends).unwrap_or_default();
        let known = known.iter().filter(|old| !old.is_retired());
        let known: HashMap<_, _> = known.map(|old| (&old.address, &**old)).collect();
        let backends: Vec<_> = addresses
            .into_iter()
            .enumerate()
            .map(|(index, (listed, address))| {
                let old = known.get(&address).copied();
                Arc::new(Backend::new(index, address, listed, &settings, old))
            })
            .collect();
        let queue = plan.queue.as_ref().zip(waiting);
        let budget = plan.retry_budget;
        Ok(Self {
            name: plan.name.as_ref().into(),
            tries: AtomicU32::new(count_usable(&backends)),
            balancer: Balancer::new(plan, backends, changes),
            queue: queue.map(|(plan, waiting)| Arc::new(RequestQueue::new(plan, waiting))),
            budget: budget.map(|plan| Box::new(RetryBudget::new(plan))),
            names: changing.then(|| Box::new(ResolvedNames::new(settings, looked_up))),
            // The first request checks which breakers are open.
            next_wake: AtomicU64::new(0),
        })
    }

    /// Sends a request to one backend after the other until there is a response to pass on. Every attempt is added to
    /// [`RequestRecord::attempts`], and a failed one is logged.
    ///
    /// # Errors
    ///
    /// The error of the last attempt.
    pub async fn send(
        &self,
        record: &mut RequestRecord,
        proxy_pass: &plan::ProxyPass,
        request: OutgoingRequest,
        clock: &Clock,
    ) -> Result<Response<UpstreamBody>, Error> {
        let mut cx = AttemptContext {
            record,
            proxy_pass,
            clock,
            now: clock.now(),
        };
        let backoff = self.budget.as_ref().is_some_and(|it| it.earn(cx.now));
        let tries = self.tries.load(Ordering::Relaxed);
        let next = &proxy_pass.next_upstream;
        let mut retry = RetryState::new(request, next, tries, backoff, cx.now);
        let balancer = &self.balancer;
        let mut tried = balancer.begin(cx.record);
        let mut last: Option<LastResult> = None;
        loop {
            self.wake_breakers(cx.now);
            let picked = match &self.queue {
                None => Ok(balancer.pick(&mut tried, cx.now)),
                // Boxed, so that requests without a queue do not keep room for it.
                Some(queue) => Box::pin(queue.pick(balancer, &mut tried, cx.record, clock)).await,
            };
            let pick = match picked {
                Ok(Some(pick)) => pick,
                Ok(None) if Box::pin(self.back_off(&mut retry, cx.now)).await => {
                    tried = balancer.begin(cx.record);
                    cx.now = clock.now();
                    continue;
                }
                none => return self.end(none.err(), last, &mut cx),
            };
            // A backend that was picked is not picked again in this round.
            let Ok(permit) = self.admit(&pick.active, &mut retry.request, clock, cx.now) else {
                continue;
            };
            drop(last.take());
            let mut result = self.attempt(&pick, &mut retry, &mut cx).await;
            let cause = self.conclude(&pick.active, permit, &mut result, &mut cx);
            let moves_on = retry.may_move_on(cause, cx.now) && self.may_retry(cx.now);
            match result {
                Ok(response) if !moves_on => {
                    balancer.succeeded(&pick);
                    return Ok(UpstreamBody::begin(response, pick.active, &cx));
                }
                Ok(response) => {
                    self.pass_over(&pick, cause, cx.now);
                    let backend = Arc::clone(&pick.active);
                    last = backoff.then(|| LastResult::Response(Box::new(response), backend));
                }
                Err(failed) => {
                    report(&failed.error, &pick.active.name, cx.record, moves_on.into());
                    if self.is_blameless(&pick, &failed, cx.now) || !moves_on {
                        return Err(failed.error);
                    }
                    last = backoff.then_some(LastResult::Error(failed.error));
                }
            }
            retry.move_on();
        }
    }

    /// Its name, or host and port where `proxy_pass` has an address.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its present backends in the plan's order; those added later come last.
    #[must_use]
    pub fn backends(&self) -> Vec<Arc<Backend>> {
        self.balancer.backends()
    }

    /// The counters of its queue, where it has one.
    #[must_use]
    pub fn queue_stats(&self) -> Option<QueueStats> {
        self.queue.as_ref().map(|queue| queue.stats())
    }

    /// How many retries its budget has denied, where it has one.
    #[must_use]
    pub fn denied_retries(&self) -> Option<u64> {
        self.budget.as_ref().map(|budget| budget.denied())
    }

    /// Sends a request to one backend, and once more if a kept connection turns out to be stale.
    async fn attempt(
        &self,
        pick: &Pick,
        retry: &mut RetryState<'_>,
        cx: &mut AttemptContext<'_>,
    ) -> Result<AttemptResponse, AttemptError> {
        let backend = &pick.active;
        match attempt(backend, true, retry, cx).await {
            Err(failed) if failed.is_stale() => {
                cx.now = cx.clock.now();
                if !retry.may_repeat(RetryCause::Error, cx.now) {
                    return Err(failed);
                }
                let decision = RetryDecision::Reconnect;
                report(&failed.error, &backend.name, cx.record, decision);
                attempt(backend, false, retry, cx).await
            }
            result => result,
        }
    }

    /// Whether the budget allows one more attempt.
    fn may_retry(&self, now: Millis) -> bool {
        let Some(budget) = &self.budget else {
            return true;
        };
        let grant = budget.spend(now);
        if grant == (RetryGrant::Denied { is_news: true }) {
            let upstream = &*self.name;
            tracing::warn!(
                upstream,
                "the retry budget is spent, failed requests are not retried"
            );
        }
        grant == RetryGrant::Granted
    }

    /// Waits before all backends are tried again, after all have failed, if they may be.
    async fn back_off(&self, retry: &mut RetryState<'_>, now: Millis) -> bool {
        let budget = self.budget.as_ref();
        let Some(pause) = budget.and_then(|budget| budget.pause(retry.rounds)) else {
            return false;
        };
        // Backends that checks or breakers keep away are not back in a moment.
        let unavailable = self.unavailable_error(now);
        let may = retry.may_wait(pause, now) && matches!(unavailable, Error::NoLiveBackend);
        if may {
            retry.begin_round();
            tokio::time::sleep(pause).await;
        }
        may
    }

    /// The result where no other backend can be tried: that of the last attempt. Without one, `error`, or the reason why
    /// no backend is available.
    fn end(
        &self,
        error: Option<Error>,
        last: Option<LastResult>,
        cx: &mut AttemptContext<'_>,
    ) -> Result<Response<UpstreamBody>, Error> {
        match last {
            Some(LastResult::Response(response, backend)) => {
                let active = backend.resume_request();
                Ok(UpstreamBody::begin(*response, active, cx))
            }
            Some(LastResult::Error(error)) => Err(error),
            None => {
                let error = error.unwrap_or_else(|| self.unavailable_error(cx.now));
                Err(self.record_no_attempt(error, cx.record))
            }
        }
    }

    /// Another backend is tried instead of the one that responded.
    fn pass_over(&self, pick: &Pick, cause: RetryCause, now: Millis) {
        match cause.is_fault() {
            true => self.count_failure(pick, now),
            false => self.balancer.succeeded(pick),
        }
    }

    /// Counts a failed attempt, unless the request or this machine caused it; returns whether that is so.
    fn is_blameless(&self, pick: &Pick, failed: &AttemptError, now: Millis) -> bool {
        let blameless = failed.error.is_requests_own() || failed.error.is_ours();
        if !blameless && !failed.is_stale() {
            self.count_failure(pick, now);
        }
        blameless
    }

    fn count_failure(&self, pick: &Pick, now: Millis) {
        let failures = &pick.active.counters.failures;
        failures.fetch_add(1, Ordering::Relaxed);
        if self.balancer.failed(pick, now) {
            let (upstream, server) = (&*self.name, &*pick.active.name);
            tracing::warn!(upstream, server, "upstream server temporarily disabled");
        }
    }

    /// Records a request that was sent to no backend as an attempt of the upstream as a whole.
    fn record_no_attempt(&self, error: Error, record: &mut RequestRecord) -> Error {
        report(&error, &self.name, record, RetryDecision::Fail);
        record.attempts.push(Attempt {
            address: Arc::clone(&self.name),
            started: None,
            status: error.attempt_status(),
            connect: None,
            header: None,
            response: Some(Duration::ZERO),
        });
        error
    }

    /// How long no backend will be available, if health checks and breakers are the reason.
    #[must_use]
    pub fn unavailable(&self, now: Millis) -> Option<Duration> {
        self.wake_breakers(now);
        self.soonest_retry(now, |backend| backend.has(UnavailableReason::Breaker))
    }

    /// Forces the breaker of a server into a state, or lets it decide again. Returns whether the server has a breaker.
    pub fn force(&self, server: &str, forced: Option<ForcedState>) -> bool {
        let backends = self.backends();
        let mut backends = backends.iter().filter(|backend| *backend.name == *server);
        let Some((backend, breaker)) =
            backends.find_map(|backend| Some((backend, backend.breaker.as_deref()?)))
        else {
            return false;
        };
        breaker.force(forced);
        self.follow_breaker(backend, breaker.open_until());
        true
    }

    /// Makes backends available again whose breakers have been open for long enough.
    fn wake_breakers(&self, now: Millis) {
        if now.0 < self.next_wake.load(Ordering::Relaxed) {
            return;
        }
        // First this: a breaker that opens meanwhile is seen now, or brings the time forward after this.
        self.next_wake.store(u64::MAX, Ordering::Relaxed);
        for backend in &self.backends() {
            if let Some(breaker) = &backend.breaker {
                self.follow_breaker(backend, breaker.wake(now));
            }
        }
    }

    /// Asks a backend's breaker for a permit, where it has one.
    fn admit<'b>(
        &self,
        backend: &'b Backend,
        request: &mut OutgoingRequest,
        clock: &'b Clock,
        now: Millis,
    ) -> Result<Option<CallPermit<'b>>, BreakerOpen> {
        let Some(breaker) = &backend.breaker else {
            return Ok(None);
        };
        let admitted = breaker.admit(now).inspect_err(|_| {
            // It may have opened without a request of this upstream.
            if let until @ Some(_) = breaker.open_until() {
                self.follow_breaker(backend, until);
            }
        });
        admitted.map(|permit| Some(permit.timed(clock, &mut request.body.upload)))
    }

    /// Ends an attempt: reports its result to the backend's breaker and returns it as a cause for a retry.
    fn conclude(
        &self,
        backend: &Backend,
        permit: Option<CallPermit<'_>>,
        result: &mut Result<AttemptResponse, AttemptError>,
        cx: &mut AttemptContext<'_>,
    ) -> RetryCause {
        let cause;
        (cause, cx.now) = match &result {
            Ok(response) => (RetryCause::Status(response.head.status), response.received),
            Err(failed) => (RetryCause::of(&failed.error), cx.clock.now()),
        };
        let Some(permit) = permit else { return cause };
        let breaker = permit.breaker;
        let outcome = match result {
            Ok(response) => {
                response.ticket = Some(permit.ticket);
                let head = &response.head;
                permit.outcome(head.status, &head.headers, response.received)
            }
            Err(failed) if failed.is_stale() => CallOutcome::Cancelled,
            Err(failed) => CallOutcome::of(&failed.error),
        };
        permit.report(outcome, cx.now);
        if let until @ Some(_) = breaker.open_until() {
            self.follow_breaker(backend, until);
        }
        cause
    }

    /// The error where no backend could be picked.
    fn unavailable_error(&self, now: Millis) -> Error {
        // Half-open counts: enough probes are on their way.
        let is_open = |breaker: &Breaker| breaker.state() != BreakerState::Closed;
        let soonest = self.soonest_retry(now, |backend| {
            backend.breaker.as_deref().is_some_and(is_open)
        });
        match soonest {
            Some(retry_after) => Error::Unavailable { retry_after },
            None => Error::NoLiveBackend,
        }
    }

    /// When the first backend may be available, if health checks and breakers are the reason that none is.
    fn soonest_retry(&self, now: Millis, is_open: impl Fn(&Backend) -> bool) -> Option<Duration> {
        let mut soonest: Option<Duration> = None;
        for backend in &self.backends() {
            if backend.has(UnavailableReason::Down)
                || backend.has(UnavailableReason::Drained)
                || backend.is_retired()
            {
                continue;
            }
            let health = backend.health.as_ref();
            let wait = if let Some(health) = health.filter(|health| !health.is_healthy()) {
                health.check.interval
            } else if is_open(backend) {
                let breaker = backend.breaker.as_ref();
                let wait = breaker.and_then(|breaker| breaker.wait(now));
                wait.unwrap_or_default()
            } else {
                return None;
            };
            soonest = Some(soonest.map_or(wait, |soonest| soonest.min(wait)));
        }
        soonest
    }

    /// Makes a backend unavailable while its breaker is open, and available again after that.
    fn follow_breaker(&self, backend: &Backend, open_until: Option<Millis>) {
        backend.set_unavailable(UnavailableReason::Breaker, open_until.is_some());
        if let Some(until) = open_until {
            self.next_wake.fetch_min(until.0, Ordering::Relaxed);
        }
    }

    /// The names that are due to be looked up again. The result of each goes to [`Upstream::resolved`].
    #[must_use]
    pub fn lookups(&self, now: Millis) -> Vec<NameLookup> {
        let names = self.names.as_ref();
        names.map_or_else(Vec::new, |names| names.due(now))
    }

    /// When the next name is due.
    #[must_use]
    pub fn next_lookup(&self) -> Option<Millis> {
        self.names.as_ref()?.next()
    }

    /// Takes in the result of a look-up: new addresses are added, missing ones are retired.
    pub fn resolved(&self, server: usize, result: io::Result<LookupResult>, now: Millis) {
        let Some(names) = &self.names else { return };
        let Some(found) = names.note(server, result, now) else {
            return;
        };
        let addresses = &found.addresses;
        let change = self
            .balancer
            .update_addresses(&names.settings, server, addresses, now);
        let upstream = &*self.name;
        for server in &change.added {
            tracing::info!(upstream, server = &**server, "upstream server added");
        }
        for server in &change.removed {
            tracing::info!(upstream, server = &**server, "upstream server removed");
        }
        let usable = count_usable(&self.backends());
        self.tries.store(usable, Ordering::Relaxed);
    }

    /// The state of the names that are looked up again.
    #[must_use]
    pub fn names(&self) -> Vec<NameStatus> {
        let names = self.names.as_ref();
        names.map_or_else(Vec::new, |names| names.statuses())
    }

    /// Whether the names of its plan that are looked up only once still have the same addresses. A name that cannot be
    /// looked up now keeps them. Blocks.
    #[must_use]
    pub fn has_same_addresses(&self, plan: &plan::Upstream) -> bool {
        let backends = self.backends();
        let servers = plan.servers.iter().enumerate();
        let mut fixed = servers.filter(|(_, server)| server.resolve.is_none());
        fixed.all(|(listed, _)| match resolve::at_start(plan, listed) {
            Ok((found, _)) => {
                let own = backends.iter().filter(|backend| backend.listed == listed);
                let known: HashSet<_> = own.map(|backend| &backend.address).collect();
                known == found.iter().collect()
            }
            Err(error) => {
                let upstream = &*self.name;
                tracing::warn!(upstream, "{error}; its last addresses stay in use");
                true
            }
        })
    }
}

/// How many backends a request may be sent to.
fn count_usable(backends: &[Arc<Backend>]) -> u32 {
    let usable = backends
        .iter()
        .filter(|backend| !backend.server.down && !backend.is_retired());
    u32::try_from(usable.count()).unwrap_or(u32::MAX)
}
