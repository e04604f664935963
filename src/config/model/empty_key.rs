//! What a zone does with requests that have no key.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::values::RefusalStatus;
use crate::config::decode::{Decode, DecodeContext, Required, choice, record};
use crate::config::plan;
use crate::config::tree::{Node, NodeKind};

/// `on_empty_key`: a word, or `{ refuse: STATUS }`.
#[derive(Debug, Clone, Copy)]
pub struct OnEmptyKey(pub plan::OnEmptyKey);

choice! {
    /// What to do with a request whose key is empty.
    pub struct EmptyKeyWord(plan::OnEmptyKey) = "something to do with an empty key" {
        "skip" => plan::OnEmptyKey::Skip,
        "address" => plan::OnEmptyKey::Address,
        "refuse" => plan::OnEmptyKey::Refuse(None),
    }
}

record! {
    /// Refuses requests whose key is empty.
    pub struct RefuseEmptyKey {
        /// The status they are refused with, 400 to 599.
        refuse: Required<RefusalStatus>,
    }
}

impl Decode for OnEmptyKey {
    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        if let NodeKind::Mapping(_) = node.kind {
            let parts: RefuseEmptyKey = context.record(node)?;
            let status = http::StatusCode::from_u16(parts.refuse.value()?.0).ok();
            return Some(Self(plan::OnEmptyKey::Refuse(status)));
        }
        EmptyKeyWord::decode(node, context).map(|word| Self(word.0))
    }
}

impl JsonSchema for OnEmptyKey {
    fn schema_name() -> Cow<'static, str> {
        "OnEmptyKey".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let word = generator.subschema_for::<EmptyKeyWord>();
        let parts = generator.subschema_for::<RefuseEmptyKey>();
        json_schema!({ "anyOf": [word, parts] })
    }
}
