//! weir stands in front of backends and decides, request by request, what passes, what waits and what
//! is refused.
//!
//! # The life of a request
//!
//! [`listen`] accepts a connection, [`tls`] unwraps it where the listener says so, and [`downstream`] reads requests from
//! it. [`proxy`] takes each request through its phases: [`route`] finds the server and the location, [`limits`] asks the
//! location's rules and waits or refuses, [`upstream`] sends the request on and reads the response. What a slow client
//! sends or takes waits in [`spool`] rather than at a backend. [`message`] is the vocabulary they share, [`algorithm`] the
//! arithmetic of limits, [`store`] where the counting lives, [`cache`] keeps responses for when a backend is down,
//! [`telemetry`] tells operators what happened, and [`admin`] lets them look in with the types of [`api`]. [`config`] turns the user's file into a
//! plan, and [`app`] builds all of it from that plan.
//!
//! # Layers
//!
//! A folder uses only folders in the lines below its own; folders on one line do not use each other. `tests/house.rs`
//! asserts it.
//!
//! ```text
//! cli
//! app
//! admin      replay
//! api
//! proxy
//! downstream listen      limits      upstream    route       cache
//! store
//! spool
//! telemetry
//! tls
//! message
//! config
//! algorithm
//! clock
//! ```
//!
//! Consequences: only `cli` and `config` see what the user wrote (`config::raw`), all others see the plan; time is an
//! argument below `proxy`; what must flow upward is passed in, as `downstream` is given its handler and
//! `message::ResponseBody` its guard.

pub mod admin;
pub mod algorithm;
pub mod api;
pub mod app;
pub mod cache;
pub mod cli;
pub mod clock;
pub mod config;
pub mod downstream;
pub mod limits;
pub mod listen;
pub mod message;
pub mod proxy;
pub mod replay;
pub mod route;
pub mod spool;
pub mod store;
pub mod telemetry;
pub mod tls;
pub mod upstream;
