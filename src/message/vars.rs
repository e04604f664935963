//! A stand-in, replaced on merge by the room that owns it: the few variables the tests of limits need.

use super::Exchange;
use crate::config::plan::{Part, Template, Variable};

/// Appends a variable's value; `false` if it has none.
pub fn append(variable: &Variable, exchange: &Exchange, out: &mut Vec<u8>) -> bool {
    match variable {
        Variable::BinaryRemoteAddr => out.extend_from_slice(exchange.peer.binary()),
        Variable::RemoteAddr => out.extend_from_slice(exchange.peer.text().as_bytes()),
        Variable::ServerName => out.extend_from_slice(exchange.server().name.as_bytes()),
        Variable::Http(name) => match exchange.head.headers.get(name) {
            Some(value) => out.extend_from_slice(value.as_bytes()),
            None => return false,
        },
        _ => return false,
    }
    true
}

/// Appends a template's text.
pub fn render(template: &Template, exchange: &Exchange, out: &mut Vec<u8>) {
    for part in &template.parts {
        match part {
            Part::Text(text) => out.extend_from_slice(text.as_bytes()),
            Part::Variable(variable) => {
                append(variable, exchange, out);
            }
        }
    }
}
