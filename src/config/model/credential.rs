//! Texts that may hold credentials, depending on what stands in them or before them.

use std::borrow::Cow;

use http::HeaderName;
use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::config::Secret;
use crate::config::decode::{Decode, DecodeContext, Text};
use crate::config::secret::{is_credential, is_variable};
use crate::config::tree::Node;
use crate::config::units;

/// The URL of a store, with or without a login.
#[derive(Debug, Clone)]
pub struct StoreUrl(pub Secret);

/// The value of a header field.
#[derive(Debug, Clone)]
pub struct HeaderText(pub Text);

impl Decode for StoreUrl {
    const SECRET: bool = true;

    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        let Some(text) = node.text() else {
            context.hide(node);
            context.expected(node, "the address of a Redis");
            return None;
        };
        let start = text.find("://").map_or(0, |scheme| scheme + "://".len());
        match text.rfind('@').filter(|at| *at >= start) {
            Some(at) => context.hide_part(node, start..at),
            // Where it cannot be read, a password may stand anywhere in it.
            None if units::redis_url(text).is_err() => context.hide(node),
            None => {}
        }
        Some(Self(Secret::new(text)))
    }
}

impl Decode for HeaderText {
    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        let is_plain = node
            .text()
            .is_some_and(|text| text.is_empty() || is_variable(text));
        let name = context.name();
        // What is no name may be half of one.
        let may_be = is_credential(name) || HeaderName::try_from(name).is_err();
        if may_be && !is_plain {
            context.hide(node);
        }
        Text::decode(node, context).map(Self)
    }
}

impl JsonSchema for StoreUrl {
    fn schema_name() -> Cow<'static, str> {
        Text::schema_name()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Text::json_schema(generator)
    }
}

impl JsonSchema for HeaderText {
    fn schema_name() -> Cow<'static, str> {
        Text::schema_name()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Text::json_schema(generator)
    }
}
