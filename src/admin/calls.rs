//! Every call there is, and who answers it.

use std::sync::Arc;

use http::{Method, StatusCode};

use super::reply::{ApiError, ApiResponse};
use super::route::Route;
use super::{
    Admin, amend, api, body, breakers, explain, keys, marks, metrics, refusals, reply, running,
    status, store, upstreams,
};
use crate::proxy::Generation;

/// What somebody who was let in wants.
#[derive(Debug)]
pub(super) struct ApiCall {
    pub(super) route: Route,
    pub(super) method: Method,
    pub(super) query: Option<String>,
    pub(super) body: Vec<u8>,
}

impl Admin {
    /// Answers a call.
    pub(super) async fn answer(
        &self,
        live: &Arc<Generation>,
        call: &ApiCall,
    ) -> Result<ApiResponse, ApiError> {
        match call.route.is_changed_by(&call.method) {
            true => self.change(live, call).await,
            false => self.look(live, call),
        }
    }

    fn look(&self, live: &Generation, call: &ApiCall) -> Result<ApiResponse, ApiError> {
        let (query, now) = (call.query.as_deref(), self.clock.now());
        Ok(match &call.route {
            Route::Breakers => reply::json(&breakers::list(live)),
            Route::Config => reply::typed(running::shown(live), "application/json"),
            Route::Explain => reply::json(&explain::explain(live, &call.body, now)?),
            Route::Groups => reply::json(&breakers::list_groups(live)),
            Route::Health => reply::text(StatusCode::OK, "ok\n"),
            Route::Key(zone, key) => reply::json(&keys::look(live, zone, key, now)?),
            Route::Keys(zone) => reply::json(&keys::list(live, zone, query, now)?),
            Route::Metrics => reply::typed(
                metrics::page(live, &self.writer, &self.reloads),
                "text/plain; version=0.0.4; charset=utf-8",
            ),
            Route::OpenApi => reply::typed(OPENAPI, "application/json"),
            Route::Ready if self.is_ready() => reply::text(StatusCode::OK, "ready\n"),
            Route::Ready => reply::text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
            Route::RefusalStream => reply::events(refusals::stream(&self.listeners)?),
            Route::Refusals => reply::json(&refusals::list(query)?),
            Route::Status => reply::json(&status::show(self, live)),
            Route::Store => reply::json(&store::list(live)),
            Route::Upstreams => reply::json(&upstreams::list(live)),
            Route::Zone(zone) => reply::json(&api::detail(live, zone, now)?),
            Route::Zones => reply::json(&api::list(live)),
            _ => return Err(unknown()),
        })
    }

    async fn change(
        &self,
        live: &Arc<Generation>,
        call: &ApiCall,
    ) -> Result<ApiResponse, ApiError> {
        let (body, now) = (&call.body[..], self.clock.now());
        Ok(match &call.route {
            Route::Breakers => reply::json(&breakers::change(live, &body::parse(body)?)?),
            Route::Group(name) => {
                reply::json(&breakers::change_group(live, name, &body::parse(body)?)?)
            }
            Route::Key(zone, key) => reply::json(&keys::forget(live, zone, key).await?),
            Route::Mark(zone, key, mark) => {
                let which = (zone.as_str(), key.as_str(), *mark);
                match call.method {
                    Method::DELETE => reply::json(&marks::remove(live, which, now)?),
                    _ => reply::json(&marks::put(live, which, body, now)?),
                }
            }
            Route::Override(zone) => {
                let live = amend::restore(&self.live, zone)?;
                reply::json(&api::detail(&live, zone, now)?)
            }
            Route::Reload => return self.reload().await,
            Route::Server(upstream, server) => {
                let change = body::parse(body)?;
                reply::json(&upstreams::change(live, upstream, server, &change)?)
            }
            Route::Zone(zone) => {
                let live = amend::change(&self.live, zone, &body::parse(body)?)?;
                reply::json(&api::detail(&live, zone, now)?)
            }
            _ => return Err(unknown()),
        })
    }

    /// Has the configuration read again.
    async fn reload(&self) -> Result<ApiResponse, ApiError> {
        match self.reloads.ask_and_wait().await {
            Some(Ok(reloaded)) => Ok(reply::json(&reloaded)),
            Some(Err(refused)) => {
                let mut reply = reply::json(&refused);
                *reply.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
                Ok(reply)
            }
            None => Err(ApiError::conflict("it is stopping")),
        }
    }
}

/// A route that is not there for this, which its methods have kept out already.
fn unknown() -> ApiError {
    ApiError::missing("there is nothing here")
}

/// How this can be called, for programs.
const OPENAPI: &str = include_str!("../../conf/openapi.json");
