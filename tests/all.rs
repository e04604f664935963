//! Tests of the whole: the real binary, real sockets, real signals, and the real nginx as the reference.
//!
//! One binary for all of them, because linking costs more than running them.

mod admin;
mod apps;
mod bandwidth;
mod buffering;
mod ci;
mod clients;
mod config_cli;
mod config_errors;
mod connections;
mod dashboard;
mod demo;
mod failures;
mod growth;
mod grpc;
mod house;
mod http2;
mod instructions;
mod limit_conn;
mod limit_req;
mod logs;
mod metrics;
mod packaging;
mod parity;
mod plots;
mod proxying;
mod redis;
mod reload;
mod replay;
mod resilience;
mod routing;
mod smuggling;
mod stopping;
mod supply_chain;
mod support;
mod tls;
mod traces;
mod upgrades;
mod upstreams;
mod verbs;
mod worst_case_headers;
