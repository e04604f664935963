//! The filters of a location: what each request passes between `find_config` and its content, and each response on its
//! way back.
//!
//! The list is static. A step is a direct call, and a filter that a location does not have costs one test of a null
//! pointer. A new filter implements [`Filter`] and takes its place in the list at the end of this file; what it owes to
//! the log phase it leaves in the context.

use std::future::ready;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use http::HeaderMap;

use super::context::{RequestContext, RequestResources, Response};
use super::error::ProxyError;
use super::stale_cache::StaleCache;
use crate::config::plan::{self, DegradeMode, LocationConf, Plan, SizeTemplate};
use crate::limits::{Limits, Zones};
use crate::message::{ClientAddr, RequestRecord, ResponseBody, Throttle, variables};
use crate::telemetry::RateLimitedLog;
use crate::upstream::{Upstream, UpstreamBody};

/// How a request goes on after a step.
#[derive(Debug)]
pub(super) enum Flow {
    Continue,
    Fail(ProxyError),
    // Boxed: no step is made larger by the few that respond.
    Respond(Box<Response>),
}

/// The phase in which a filter acts first, in nginx's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Limits, and what is turned off.
    Preaccess,
    /// Which clients are allowed.
    Access,
    /// Nothing before the response.
    Response,
}

/// What all locations of a generation are compiled with.
#[derive(Debug, Clone, Copy)]
pub(super) struct CompileContext<'g> {
    pub(super) plan: &'g Plan,
    pub(super) zones: &'g Zones,
    pub(super) groups: &'g [Arc<DegradeGroup>],
    pub(super) upstreams: &'g [Arc<Upstream>],
    pub(super) stale_cache: &'g Arc<StaleCache>,
    pub(super) resources: &'g RequestResources,
}

/// A step between a request and its content.
pub(super) trait Filter: Sized + Send + Sync {
    /// Its place in the list.
    const PHASE: Phase;

    /// The filter for a location, if that has one.
    fn compile(conf: &LocationConf, context: CompileContext<'_>) -> Option<Self>;

    /// Whether it reads or changes every response of the location, so that no response can be precontext.
    fn reads_response(&self) -> bool {
        false
    }

    /// Judges a request.
    fn request(&self, _: &mut RequestContext) -> impl Future<Output = Flow> + Send {
        ready(Flow::Continue)
    }

    /// Changes the headers of the response.
    fn response_headers(&self, _: &mut RequestContext, _: &mut HeaderMap) {}

    /// Changes the body of the response, when its headers are final.
    fn response_body(&self, _: &mut RequestContext, _: &mut ResponseBody<UpstreamBody>) {}
}

macro_rules! filters {
    ($($name:ident: $filter:ty),* $(,)?) => {
        /// The filters of one location, in the order in which a request passes them.
        #[derive(Debug)]
        pub(super) struct Filters {
            $(pub(super) $name: Option<Box<$filter>>,)*
        }

        impl Filters {
            pub(super) fn compile(conf: &LocationConf, context: CompileContext<'_>) -> Self {
                Self {
                    $($name: <$filter as Filter>::compile(conf, context).map(Box::new),)*
                }
            }

            /// Whether a filter reads or changes every response.
            pub(super) fn reads_response(&self) -> bool {
                false $(|| self.$name.as_ref().is_some_and(|it| Filter::reads_response(&**it)))*
            }

            /// The request phases, preaccess and access.
            pub(super) async fn request(&self, cx: &mut RequestContext) -> Flow {
                $(
                    if let Some(filter) = &self.$name {
                        match Filter::request(&**filter, cx).await {
                            Flow::Continue => {}
                            flow => return flow,
                        }
                    }
                )*
                Flow::Continue
            }

            /// The header filters.
            #[inline]
            pub(super) fn response_headers(&self, cx: &mut RequestContext, headers: &mut HeaderMap) {
                $(
                    if let Some(filter) = &self.$name {
                        Filter::response_headers(&**filter, cx, headers);
                    }
                )*
            }

            /// The body filters.
            #[inline]
            pub(super) fn response_body(
                &self,
                cx: &mut RequestContext,
                body: &mut ResponseBody<UpstreamBody>,
            ) {
                $(
                    if let Some(filter) = &self.$name {
                        Filter::response_body(&**filter, cx, body);
                    }
                )*
            }
        }

        const _: () = assert!(
            is_ascending(&[$(<$filter as Filter>::PHASE),*]),
            "filters stand in the order of their phases"
        );
    };
}

const fn is_ascending(phases: &[Phase]) -> bool {
    let mut index = 1;
    while index < phases.len() {
        if (phases[index - 1] as u8) > (phases[index] as u8) {
            return false;
        }
        index += 1;
    }
    true
}

impl Filters {
    /// Whether the location is degraded, by an operator or as it is configured.
    pub(super) fn degrade_mode(&self) -> DegradeMode {
        let degrade = self.degrade.as_ref();
        degrade.map_or(DegradeMode::Auto, |degrade| degrade.0.mode())
    }

    /// Whether `allow` and `deny` admit this client.
    pub(super) fn admits(&self, client: &ClientAddr) -> bool {
        let access = self.access.as_ref();
        access.is_none_or(|access| access.admits(client))
    }
}

/// `degrade_group`: refuses all requests while the group is turned off.
#[derive(Debug)]
pub(super) struct Degrade(Arc<DegradeGroup>);

impl Filter for Degrade {
    const PHASE: Phase = Phase::Preaccess;

    fn compile(conf: &LocationConf, context: CompileContext<'_>) -> Option<Self> {
        let group = context.groups.get(conf.degrade_group?)?;
        Some(Self(Arc::clone(group)))
    }

    fn request(&self, _: &mut RequestContext) -> impl Future<Output = Flow> + Send {
        ready(match self.0.mode() {
            DegradeMode::On => Flow::Fail(ProxyError::Degraded),
            DegradeMode::Auto | DegradeMode::Off => Flow::Continue,
        })
    }
}

/// Locations that are degraded together: one switch turns off all that is not essential.
#[derive(Debug)]
pub struct DegradeGroup {
    /// Its name.
    pub name: Box<str>,
    mode: AtomicU8,
}

impl DegradeGroup {
    /// As it was in the generation before, unless the configuration has changed its mode since.
    pub(super) fn inherit(
        plan: &plan::DegradeGroup,
        before: Option<(&Plan, &[Arc<Self>])>,
    ) -> Arc<Self> {
        let old = before.and_then(|(before, groups)| {
            let mut planned = before.degrade_groups.iter();
            let index = planned.position(|old| old.name == plan.name && old.mode == plan.mode)?;
            groups.get(index)
        });
        let new = || {
            Arc::new(Self {
                name: plan.name.clone(),
                mode: AtomicU8::new(plan.mode as u8),
            })
        };
        old.map_or_else(new, Arc::clone)
    }

    /// The present mode.
    #[must_use]
    pub fn mode(&self) -> DegradeMode {
        let mode = self.mode.load(Ordering::Relaxed);
        let known = [DegradeMode::Auto, DegradeMode::Off, DegradeMode::On];
        known
            .into_iter()
            .find(|known| *known as u8 == mode)
            .unwrap_or_default()
    }

    /// Changes the mode.
    pub fn set(&self, mode: DegradeMode) {
        self.mode.store(mode as u8, Ordering::Relaxed);
        tracing::warn!(group = &*self.name, "degrade: {}", mode.as_str());
    }
}

/// `limit_req` and `limit_conn`. They also hold where the content is a `return`, other than in nginx.
impl Filter for Limits {
    const PHASE: Phase = Phase::Preaccess;

    fn compile(conf: &LocationConf, context: CompileContext<'_>) -> Option<Self> {
        let rules = conf.limit_req.len() + conf.shadow.len() + conf.limit_conn.len();
        (rules > 0).then(|| Self::compile(conf, context.zones))
    }

    /// Waits here where a rule delays the request.
    async fn request(&self, cx: &mut RequestContext) -> Flow {
        let now = cx.record.started;
        let admitting = self.admit(&mut cx.record, &mut cx.permit, now, &cx.clock);
        match admitting.await {
            Ok(()) => Flow::Continue,
            Err(refusal) => Flow::Fail(refusal.into()),
        }
    }

    fn response_headers(&self, cx: &mut RequestContext, headers: &mut HeaderMap) {
        if let Some(allowed_headers) = cx.permit.allowed_headers.take() {
            allowed_headers.write(headers);
        }
    }
}

/// `allow` and `deny`.
#[derive(Debug)]
pub(super) struct AccessRules(plan::AccessRules);

impl AccessRules {
    fn admits(&self, client: &ClientAddr) -> bool {
        let mut networks = self.0.networks.iter();
        networks
            .find(|(network, _)| network.contains(client.ip()))
            .map_or(!self.0.refuse_others, |(_, allowed)| *allowed)
    }
}

impl Filter for AccessRules {
    const PHASE: Phase = Phase::Access;

    fn compile(conf: &LocationConf, _: CompileContext<'_>) -> Option<Self> {
        let refuses = !conf.access.networks.is_empty() || conf.access.refuse_others;
        refuses.then(|| Self(conf.access.clone()))
    }

    fn request(&self, cx: &mut RequestContext) -> impl Future<Output = Flow> + Send {
        ready(match self.admits(cx.record.client()) {
            true => Flow::Continue,
            false => Flow::Fail(ProxyError::Forbidden),
        })
    }
}

/// `limit_rate`, and an upstream's own limit for its response, which goes before it as in nginx.
#[derive(Debug)]
pub(super) struct LimitRate(plan::LimitRate);

impl LimitRate {
    fn throttle(&self, cx: &RequestContext) -> Option<Throttle> {
        let rate = match (cx.upstream_rate, &self.0.rate) {
            (None, SizeTemplate::Fixed(0)) => return None,
            (None, rate) => bytes(rate, &cx.record),
            (Some(upstream_rate), _) => upstream_rate,
        };
        let rate = NonZeroU64::new(rate)?;
        // A client that is sent less than `send_min_rate` is not slow.
        let send_rate = &cx.record.connection.state.send_rate;
        send_rate.set(send_rate.get().min(rate.get()));
        Some(Throttle::new(rate, bytes(&self.0.after, &cx.record)))
    }
}

impl Filter for LimitRate {
    const PHASE: Phase = Phase::Response;

    fn compile(conf: &LocationConf, _: CompileContext<'_>) -> Option<Self> {
        let unlimited = matches!(conf.bandwidth.rate, SizeTemplate::Fixed(0));
        let proxy_passes = conf.proxy_passes().next().is_some();
        (proxy_passes || !unlimited).then(|| Self(conf.bandwidth.clone()))
    }

    fn reads_response(&self) -> bool {
        !matches!(self.0.rate, SizeTemplate::Fixed(0))
    }

    fn response_body(&self, cx: &mut RequestContext, body: &mut ResponseBody<UpstreamBody>) {
        // A tunnel has no response body.
        if cx.upgrade.is_none()
            && let Some(throttle) = self.throttle(cx)
        {
            body.set_throttle(throttle);
        }
    }
}

fn bytes(size: &SizeTemplate, record: &RequestRecord) -> u64 {
    let template = match size {
        SizeTemplate::Fixed(bytes) => return *bytes,
        SizeTemplate::Template(template) => template,
    };
    let mut text = Vec::new();
    variables::render(template, record, &mut text);
    SizeTemplate::parse(&text).unwrap_or_else(|| {
        if let Some(times) = NO_SIZE.note(record.started) {
            let text = text.escape_ascii();
            tracing::error!(
                times,
                "invalid size \"{text}\" for limit_rate, taken for none"
            );
        }
        0
    })
}

/// Rate limited, because clients may choose the value.
static NO_SIZE: RateLimitedLog = RateLimitedLog::new();

filters! {
    degrade: Degrade,
    limits: Limits,
    access: AccessRules,
    limit_rate: LimitRate,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_has_three_positions() {
        for mode in [DegradeMode::Auto, DegradeMode::Off, DegradeMode::On] {
            let plan = plan::DegradeGroup {
                name: "extras".into(),
                mode,
            };
            let group = DegradeGroup::inherit(&plan, None);
            assert_eq!(group.mode(), mode);
            group.set(DegradeMode::On);
            assert_eq!(group.mode(), DegradeMode::On);
        }
    }
}
