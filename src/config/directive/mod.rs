//! One file per directive or group of directives: what the user writes (`raw`), its checks, and what runs.

pub(super) mod client;
pub(super) mod content;
pub(super) mod health;
pub(super) mod limits;
pub(super) mod location;
pub(super) mod proxy_pass;
pub(super) mod refusal;
pub(super) mod server;
pub(super) mod settings;
pub(super) mod store;
mod syntax;
pub(super) mod tls;
pub(super) mod upstream;
pub(super) mod zones;
