//! An answer from somebody else.
//!
//! [`Upstream::send`] picks a backend, takes a kept connection or makes one, sends, waits for the head, judges, and
//! perhaps tries the next one. Everything about speaking HTTP to a backend stands behind this seam.
//!
//! The client is our own. hyper's runs every connection in a task of its own and talks to it through channels, which
//! costs a gateway a quarter of its instructions; here a connection belongs to the request that uses it.
//!
//! In one thing we are kinder than nginx: a kept connection that the backend closed just as a request went out is no
//! failure of the backend. The request, if it may be sent again, goes to the same one over a new connection;
//! nginx would count a failure and, with `max_fails` at its default, leave a healthy server alone for 10 s.

mod again;
mod ask;
mod backend;
mod balance;
pub mod breaker;
mod budget;
mod condition;
mod connect;
mod counts;
mod download;
mod error;
mod failed;
mod framing;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
pub mod health;
mod http1;
mod http2;
mod interim;
mod introduction;
mod pool;
mod queue;
mod resolve;
mod retry;
mod spared;
mod switched;
mod tenure;
mod wire;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use http::{Method, Request, Response};

pub use backend::{Backend, BackendAddress};
pub use condition::UnavailableReason;
pub use counts::BackendCounters;
pub use download::{BodyError, BodyObserver, CompleteBody, ResponseTimer, UpstreamBody};
pub use error::{Error, InvalidResponse, QueueError, Stage};
pub use queue::QueueStats;
pub use resolve::{LookupResult, NameLookup, NameStatus};
pub use retry::is_idempotent;
pub use switched::UpgradedConnection;

use self::again::LastResult;
use self::ask::{AttemptResponse, RetryDecision, ask, report, stands_for};
use self::backend::GroupSettings;
use self::balance::{Balancer, FailResult, Pick};
use self::budget::RetryBudget;
use self::condition::ChangeList;
use self::failed::{AttemptError, ConnectionKind};
use self::queue::RequestQueue;
use self::resolve::ResolvedNames;
use self::retry::{RetryCause, RetryState};
use crate::clock::{Clock, Millis};
use crate::config::plan;
use crate::message::headers::Upgrade;
use crate::message::{Attempt, RequestBody, RequestRecord};
use crate::tls;

/// A group of backends that stand for each other. Shared by all event loops.
#[derive(Debug)]
pub struct Upstream {
    name: Arc<str>,
    balance: Balancer,
    queue: Option<Arc<RequestQueue>>,
    budget: Option<Box<RetryBudget>>,
    names: Option<Box<ResolvedNames>>,
    tries: AtomicU32,
    /// When the first of those whose breaker is open is let back.
    wakes: AtomicU64,
}

/// A request to send to a backend.
#[derive(Debug)]
pub struct OutgoingRequest {
    /// Its method.
    pub method: Method,
    /// How it begins.
    pub head: OutgoingHead,
    /// Its body.
    pub upload: RequestBody,
    /// What the client would rather speak, where the head says so.
    pub upgrade: Option<Upgrade>,
    /// How the answer's fields are wanted.
    pub form: RequestHeadForm,
}

/// A form that the fields of an answer can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestHeadForm {
    /// As a map.
    Fields,
    /// Written out, where they can be passed on as they came and the body has come with them; else as a map.
    Lines,
}

/// A request but for its body, in the form of the version the backend speaks. How long the body is, is added here.
#[derive(Debug)]
pub enum OutgoingHead {
    /// HTTP/1: the request line and the header fields as they go out, `Host` included, without the blank line.
    Lines(Vec<u8>),
    /// HTTP/2.
    Stream(Box<Request<()>>),
}

impl Upstream {
    /// Looks every name up and makes the group; a name with several addresses is several backends. `tls` are the
    /// plan's ways to meet them, and `old` the group of the same name before a reload: what is known of the servers in both
    /// goes on, but for their requests in progress and connections. Blocks, as nginx does when it starts.
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
            let (own, found) = resolve::at_start(plan, listed)?;
            addresses.extend(own.into_iter().map(|address| (listed, address)));
            looked_up.push(found);
        }
        let queue = plan
            .queue
            .as_ref()
            .map(|plan| Arc::new(RequestQueue::new(plan)));
        let changes = plan.servers.iter().any(|server| server.resolve.is_some());
        // One alone, for ever, has no balancer to tell.
        let only = addresses.first().filter(|_| addresses.len() == 1);
        let alone = !changes && only.is_some_and(|(listed, _)| !plan.servers[*listed].backup);
        let notices = (!alone || queue.is_some()).then(|| Arc::new(ChangeList::new(queue.clone())));
        let common = GroupSettings {
            upstream: plan.clone(),
            keep: pool::KeepaliveSettings::new(NEXT.fetch_add(1, Ordering::Relaxed), plan),
            tls,
            notices: notices.clone(),
        };
        let known = old.map(Self::backends).unwrap_or_default();
        let staying = known.iter().filter(|old| !old.is_leaving());
        let known: HashMap<_, _> = staying.map(|old| (&old.address, &**old)).collect();
        let backends: Vec<_> = addresses
            .into_iter()
            .enumerate()
            .map(|(index, (listed, address))| {
                let old = known.get(&address).copied();
                Arc::new(Backend::new(index, address, listed, &common, old))
            })
            .collect();
        Ok(Self {
            name: plan.name.as_ref().into(),
            tries: AtomicU32::new(usable(&backends)),
            balance: Balancer::new(plan, backends, notices),
            queue,
            budget: plan
                .retry_budget
                .map(|plan| Box::new(RetryBudget::new(plan))),
            names: changes.then(|| Box::new(ResolvedNames::new(common, looked_up))),
            // The first request looks whose breaker is open.
            wakes: AtomicU64::new(0),
        })
    }

    /// Sends a request to one backend after the other until there is an answer to pass on. Every try is added to
    /// [`RequestRecord::attempts`], and a failed one is logged.
    ///
    /// # Errors
    ///
    /// What went wrong with the last try.
    pub async fn send(
        &self,
        exchange: &mut RequestRecord,
        forward: &plan::ProxyPass,
        outgoing: OutgoingRequest,
        clock: &Clock,
    ) -> Result<Response<UpstreamBody>, Error> {
        let mut now = clock.now();
        let again = self.begin(now);
        let tries = self.tries.load(Ordering::Relaxed);
        let mut errand = RetryState::new(outgoing, &forward.next_upstream, tries, again, now);
        let mut round = self.balance.round(exchange);
        let mut last: Option<LastResult> = None;
        loop {
            self.wake(now);
            let picked = match &self.queue {
                None => Ok(self.balance.pick(&mut round, now)),
                // Boxed, so that those who do not wait do not carry it about.
                Some(queue) => {
                    Box::pin(queue.pick(&self.balance, &mut round, exchange, clock)).await
                }
            };
            let pick = match picked {
                Ok(Some(pick)) => pick,
                Ok(None) if Box::pin(self.rest(&mut errand, now)).await => {
                    round = self.balance.round(exchange);
                    now = clock.now();
                    continue;
                }
                nobody => return self.end(nobody.err(), last, forward, clock, exchange, now),
            };
            // Who was picked is not picked again in this round.
            let Ok(pass) = self.admit(&pick.lease, errand.upload(), clock, now) else {
                continue;
            };
            drop(last.take());
            let mut tried = self
                .ask(&pick, &mut errand, exchange, forward, clock, now)
                .await;
            let failure;
            (failure, now) = match &tried {
                Ok(answer) => (RetryCause::Status(answer.head.status), answer.came),
                Err(failed) => (RetryCause::of(&failed.error), clock.now()),
            };
            self.book(&pick.lease, pass, &mut tried, now);
            let moves_on = errand.may_move_on(failure, now) && self.may_retry(now);
            match tried {
                Ok(answer) if !moves_on => {
                    self.balance.succeeded(&pick);
                    return Ok(UpstreamBody::begin(answer, pick.lease, forward, clock));
                }
                Ok(answer) => {
                    self.pass_over(&pick, failure, now);
                    last = again.then(|| LastResult::answer(answer, &pick.lease));
                }
                Err(failed) => {
                    report(&failed.error, &pick.lease.name, exchange, moves_on.into());
                    if self.judge(&pick, &failed, now) || !moves_on {
                        return Err(failed.error);
                    }
                    last = again.then(|| LastResult::Error(failed.error));
                }
            }
            errand.move_on();
        }
    }

    /// Its name, or host and port where `proxy_pass` gave an address.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its backends as they are now, in the plan's order but for those that came later.
    #[must_use]
    pub fn backends(&self) -> Vec<Arc<Backend>> {
        self.balance.backends()
    }

    /// How its waiting line fares, where it has one.
    #[must_use]
    pub fn waits(&self) -> Option<QueueStats> {
        self.queue.as_ref().map(|queue| queue.waits())
    }

    /// How many retries its budget has denied, where it has one.
    #[must_use]
    pub fn denied_retries(&self) -> Option<u64> {
        self.budget.as_ref().map(|budget| budget.denied())
    }

    /// Asks one backend, and once more if a kept connection turned out to be stale.
    async fn ask(
        &self,
        pick: &Pick,
        errand: &mut RetryState<'_>,
        exchange: &mut RequestRecord,
        forward: &plan::ProxyPass,
        clock: &Clock,
        now: Millis,
    ) -> Result<AttemptResponse, AttemptError> {
        let backend = &pick.lease;
        let tried = ask(
            backend,
            ConnectionKind::Kept,
            errand,
            exchange,
            forward,
            clock,
            now,
        )
        .await;
        match tried {
            Err(failed) if failed.is_stale() => {
                let now = clock.now();
                if !errand.may_repeat(RetryCause::Error, now) {
                    return Err(failed);
                }
                let (name, reconnected) = (&backend.name, RetryDecision::Reconnected);
                report(&failed.error, name, exchange, reconnected);
                ask(
                    backend,
                    ConnectionKind::Fresh,
                    errand,
                    exchange,
                    forward,
                    clock,
                    now,
                )
                .await
            }
            tried => tried,
        }
    }

    /// Blames a backend for a try without an answer, unless that was somebody else's doing; whether it was.
    fn judge(&self, pick: &Pick, failed: &AttemptError, now: Millis) -> bool {
        let others = failed.error.is_requests_own() || failed.error.is_ours();
        if !others && !failed.is_stale() {
            self.blame(pick, now);
        }
        others
    }

    /// Another is asked instead of a backend that answered with this.
    fn pass_over(&self, pick: &Pick, failure: RetryCause, now: Millis) {
        match failure.is_fault() {
            true => self.blame(pick, now),
            false => self.balance.succeeded(pick),
        }
    }

    fn blame(&self, pick: &Pick, now: Millis) {
        pick.lease.counts.count_failure();
        if self.balance.failed(pick, now) == FailResult::Disable {
            let (upstream, server) = (&*self.name, &*pick.lease.name);
            tracing::warn!(upstream, server, "upstream server temporarily disabled");
        }
    }

    /// Nobody was asked; it counts as a try of the upstream as a whole.
    fn untried(&self, error: Error, exchange: &mut RequestRecord) -> Error {
        report(&error, &self.name, exchange, RetryDecision::Fatal);
        exchange.attempts.push(Attempt {
            address: Arc::clone(&self.name),
            started: None,
            status: stands_for(&error),
            connect: None,
            header: None,
            response: Some(std::time::Duration::ZERO),
        });
        error
    }
}

/// How many may be asked for one request.
fn usable(backends: &[Arc<Backend>]) -> u32 {
    let usable = backends
        .iter()
        .filter(|backend| !backend.server.down && !backend.is_leaving());
    u32::try_from(usable.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
