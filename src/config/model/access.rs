//! `allow` and `deny`: whom a line of theirs is about.

use std::borrow::Cow;

use ipnet::IpNet;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::config::decode::{Decode, DecodeContext, scalar_from};
use crate::config::report::Diagnostic;
use crate::config::tree::Node;
use crate::config::units;

/// Some clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessWord {
    /// Everybody.
    All,
    /// Those with an address in this network.
    Network(IpNet),
    /// Those on a unix socket.
    Unix,
}

impl Decode for AccessWord {
    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        match node.text() {
            Some("all") => return Some(Self::All),
            Some("unix:") => return Some(Self::Unix),
            _ => {}
        }
        let what = "an address, a network, `all` or `unix:`";
        let (network, loose) = scalar_from(node, context, what, |text| {
            units::network(text).map_err(|mistake| {
                mistake.help("expected an address, a network as in `10.0.0.0/8`, `all` or `unix:`")
            })
        })?;
        if let Some(loose) = loose {
            let sentence = format!("low address bits of {} are meaningless", node.describe());
            context.complain(
                Diagnostic::new(node.span, sentence)
                    .help(format!("it is read as `{}`", loose.meant))
                    .warning(),
            );
        }
        Some(Self::Network(network))
    }
}

impl JsonSchema for AccessWord {
    fn schema_name() -> Cow<'static, str> {
        "Access".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "description": "An address, a network, `all` or `unix:`.", "type": "string" })
    }
}
