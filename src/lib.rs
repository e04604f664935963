//! weir stands in front of backends and decides, request by request, what passes, what waits and what
//! is turned away.
//!
//! # The road of a request
//!
//! A socket is accepted by [`listen`], unwrapped by [`tls`] where it is, and becomes requests in [`serve`]. [`proxy`] takes each one down
//! the road: [`route`] finds the rules that apply, [`limits`] asks them and waits or refuses, [`upstream`]
//! fetches the answer, and what a slow client sends or takes waits in [`spool`] rather than at a backend. [`message`] is
//! the vocabulary they share, [`store`] is where the counting lives,
//! [`telemetry`] tells operators what happened, [`admin`] lets them look in. [`config`] turns the user's
//! file into a plan, and [`app`] builds all of it from that plan.
//!
//! # The rule of the house
//!
//! A room may use the rooms written under it, never one written over it; two rooms on the same line do
//! not know each other. `tests/house.rs` keeps it true.
//!
//! ```text
//! cli
//! app
//! admin      replay
//! proxy      listen      serve
//! limits     upstream    route
//! store
//! spool
//! telemetry
//! tls
//! message
//! config
//! clock
//! ```
//!
//! What follows from it: only `cli` and `config` see what the user wrote (`config::model`), all others see
//! the plan; time is an argument below `proxy`; what must flow upward is passed in, as `serve` is given its
//! handler and `message::Body` its tail.

pub mod admin;
pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
pub mod limits;
pub mod listen;
pub mod message;
pub mod proxy;
pub mod replay;
pub mod route;
pub mod serve;
pub mod spool;
pub mod store;
pub mod telemetry;
pub mod tls;
pub mod upstream;
