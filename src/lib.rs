//! weir stands in front of upstream servers and decides, request by request, what passes, what waits and what
//! is refused.
//!
//! # The life of a request
//!
//! [`proxy`] takes each request through nginx's phases, and is the page to begin with:
//!
//! 1. accept and handshake: [`listen`] accepts a connection, [`tls`] decrypts it where the listener says so;
//! 2. read: [`downstream`] reads requests from it;
//! 3. post_read and find_config: `real_ip` names the client, [`route`] finds the server and the location;
//! 4. preaccess and access: [`limits`] pass, delay or refuse, `allow` and `deny` admit;
//! 5. content: [`upstream`] sends the request on and reads the response; [`cache`] keeps responses for when a server is down;
//! 6. response: headers and body go to the client; what a slow client sends or takes waits in [`spool`];
//! 7. log: [`telemetry`] counts and logs, when the last byte has left.
//!
//! [`message`] is the vocabulary they share, [`algorithm`] the arithmetic of limits, [`store`] where the counting lives.
//! [`config`] compiles the user's file to a plan, [`app`] builds all of it from that plan, and [`admin`] shows and changes
//! what runs, in the types of [`api`].
//!
//! # Layers
//!
//! A folder uses only folders in the lines below its own; folders on one line do not use each other. `tests/house/mod.rs`
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
//! net
//! config
//! algorithm
//! text       clock
//! ```
//!
//! Consequences: only `config` sees what the user wrote, all others see the plan; time is an
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
pub mod net;
pub mod proxy;
pub mod replay;
pub mod route;
pub mod spool;
pub mod store;
pub mod telemetry;
pub mod text;
pub mod tls;
pub mod upstream;
