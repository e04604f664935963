//! What `limit_rate` may say.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::config::decode::{Decode, DecodeContext, Text};
use crate::config::tree::Node;

/// A size, or a text of variables that gives one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeText(pub Text);

impl Decode for SizeText {
    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        Text::decode(node, context).map(Self)
    }
}

impl JsonSchema for SizeText {
    fn schema_name() -> Cow<'static, str> {
        "SizeText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A size in bytes, or with k, m or g behind it; or a text of variables that gives one.",
            "anyOf": [
                { "type": "integer", "minimum": 0 },
                { "type": "string", "pattern": r"^([0-9]+[kKmMgG]?)?$|\$" },
            ],
        })
    }
}
