//! `proxy_redirect`: pairs of what a redirect begins with and what it begins with instead.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::config::decode::{Decode, DecodeContext, List, Spanned, Text};
use crate::config::report::Diagnostic;
use crate::config::tree::{Node, NodeKind};

/// `proxy_redirect`: its rules in order; none for `off`.
#[derive(Debug, Clone)]
pub struct ProxyRedirect(pub Vec<RedirectRule>);

/// A rule of `proxy_redirect`.
#[derive(Debug, Clone)]
pub enum RedirectRule {
    /// `default`
    Default,
    /// What is looked for, and what takes its place.
    Pair {
        /// A URL's beginning, or an expression behind `~` or `~*`.
        from: Spanned<Text>,
        /// What takes its place.
        to: Spanned<Text>,
    },
}

impl Decode for ProxyRedirect {
    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        match &node.kind {
            NodeKind::Scalar(scalar) if matches!(scalar.text.as_str(), "off" | "false" | "no") => {
                Some(Self(Vec::new()))
            }
            _ if is_pair(node) => RedirectRule::decode(node, context).map(|rule| Self(vec![rule])),
            _ => {
                let rules = List::<RedirectRule>::decode(node, context)?;
                Some(Self(rules.0.into_iter().map(|rule| rule.value).collect()))
            }
        }
    }
}

impl Decode for RedirectRule {
    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        match &node.kind {
            NodeKind::Scalar(scalar) if scalar.text == DEFAULT => Some(Self::Default),
            NodeKind::Scalar(_) => {
                let whole = Text::decode(node, context)?;
                pair(&whole, node, context)
            }
            NodeKind::Sequence(_) => {
                match <[_; 2]>::try_from(List::<Text>::decode(node, context)?.0) {
                    Ok([from, to]) => Some(Self::Pair { from, to }),
                    Err(_) => {
                        context.expected(node, EXPECTED);
                        None
                    }
                }
            }
            NodeKind::Mapping(_) | NodeKind::Null | NodeKind::Unset => {
                context.expected(node, EXPECTED);
                None
            }
        }
    }
}

/// A pair as nginx writes it: two words.
fn pair(whole: &Text, node: &Node, context: &mut DecodeContext<'_>) -> Option<RedirectRule> {
    let text = whole.text.trim();
    if let Some((from, to)) = text.split_once(' ') {
        let to = to.trim_start();
        if !to.contains(' ') {
            let spanned = |value| Spanned {
                value,
                span: node.span,
            };
            return Some(RedirectRule::Pair {
                from: spanned(whole.head(from)),
                to: spanned(whole.tail(to)),
            });
        }
    }
    let sentence = format!("`{text}` does not say what takes the place of what");
    context.complain(Diagnostic::new(node.span, sentence).help(format!("expected {EXPECTED}")));
    None
}

/// Whether it is one pair and not a list of rules: two texts, neither of which is a rule.
fn is_pair(node: &Node) -> bool {
    let NodeKind::Sequence(items) = &node.kind else {
        return false;
    };
    let is_word = |node: &Node| {
        let text = node.text();
        text.is_some_and(|text| text != DEFAULT && !text.trim().contains(' '))
    };
    items.len() == 2 && items.iter().all(is_word)
}

const DEFAULT: &str = "default";
const EXPECTED: &str = "`default`, `off`, or a pair such as `[\"http://app:8000/two/\", /one/]`";

impl JsonSchema for ProxyRedirect {
    fn schema_name() -> Cow<'static, str> {
        "ProxyRedirect".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let pair = json_schema!({
            "type": "array", "items": { "type": "string" }, "minItems": 2, "maxItems": 2,
        });
        json_schema!({
            "anyOf": [
                { "type": "string" },
                { "const": false },
                { "type": "array", "items": { "anyOf": [{ "type": "string" }, pair] } },
            ],
        })
    }
}
