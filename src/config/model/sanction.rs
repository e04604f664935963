//! What a rule may say of requests that it does not let pass.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::config::decode::{Decode, DecodeContext, Field, Required, Text, choice, record};
use crate::config::tree::{Node, NodeKind};

choice! {
    /// What becomes of a request that is over a rate.
    pub struct OnExcess(ExcessAction) = "something to do with what is too much" {
        "reject" => ExcessAction::Reject,
        "delay" => ExcessAction::Delay,
        "drop" => ExcessAction::Drop,
    }
}

choice! {
    /// What becomes of a request that is one too many at once.
    pub struct OnConnExcess(ExcessAction) = "something to do with what is too much" {
        "reject" => ExcessAction::Reject,
        "drop" => ExcessAction::Drop,
    }
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExcessAction {
    /// It waits.
    Delay,
    /// It is not answered.
    Drop,
    /// It is turned away.
    Reject,
}

/// `body` of a rule: one, or one for each form that clients like.
#[derive(Debug, Clone)]
pub enum RuleBody {
    /// In the form that the client likes best.
    Choice(Box<BodyForms>),
    /// Always the same.
    One(BodyText),
}

/// A text, or the file it is in.
#[derive(Debug, Clone)]
pub enum BodyText {
    /// `{ file: … }`: sent as it is.
    File(BodyFile),
    /// A text of variables.
    Text(Text),
}

record! {
    /// A body that is in a file.
    pub struct BodyFile {
        /// The file, which is read with the configuration and sent as it is.
        file: Required<Text>,
    }
}

record! {
    /// Bodies of which a client gets the one that its `Accept` likes best.
    pub struct BodyForms {
        /// For browsers: a text of variables, or `{ file: … }`.
        html: Field<BodyText>,
        /// For programs.
        json: Field<BodyText>,
        /// For those who have no preference, where it is given.
        text: Field<BodyText>,
    }
}

impl Decode for RuleBody {
    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        match &node.kind {
            NodeKind::Mapping(pairs)
                if !pairs.iter().any(|(key, _)| key.text() == Some("file")) =>
            {
                context
                    .record(node)
                    .map(|forms| Self::Choice(Box::new(forms)))
            }
            _ => BodyText::decode(node, context).map(Self::One),
        }
    }
}

impl Decode for BodyText {
    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        match node.kind {
            NodeKind::Mapping(_) => context.record(node).map(Self::File),
            _ => Text::decode(node, context).map(Self::Text),
        }
    }
}

impl JsonSchema for RuleBody {
    fn schema_name() -> Cow<'static, str> {
        "RuleBody".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<BodyText>();
        let forms = generator.subschema_for::<BodyForms>();
        json_schema!({ "anyOf": [one, forms] })
    }
}

impl JsonSchema for BodyText {
    fn schema_name() -> Cow<'static, str> {
        "BodyText".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let text = generator.subschema_for::<Text>();
        let file = generator.subschema_for::<BodyFile>();
        json_schema!({ "anyOf": [text, file] })
    }
}
