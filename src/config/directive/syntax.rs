//! Values of settings with a syntax of their own, as the user writes them.

use http::HeaderName;
use schemars::json_schema;

use crate::config::decode::record::{Setting, record};
use crate::config::decode::value::{List, RequestCount, Size, Text, scalar_from, schema};
use crate::config::decode::{Decode, DecodeContext, Required, Spanned, units};
use crate::config::report::{self, Diagnostic, ParseError};
use crate::config::secret::{is_credential, is_variable};
use crate::config::source::{Node, NodeKind};

/// `large_client_header_buffers` and `proxy_buffers`: a number and a size, multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buffers {
    pub(crate) bytes: u64,
}

impl Buffers {
    fn new(number: u64, size: u64) -> Self {
        Self {
            bytes: number.saturating_mul(size),
        }
    }
}

record! {
    /// A number of buffers and the size of each.
    pub(crate) struct BuffersParts {
        /// How many.
        number: Required<RequestCount>,
        /// How large each.
        size: Required<Size>,
    }
}

impl Decode for Buffers {
    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        if let NodeKind::Mapping(_) = node.kind {
            let parts: BuffersParts = context.record(node)?;
            return Some(Self::new(parts.number.value()?.0, parts.size.value()?.0));
        }
        scalar_from(
            node,
            context,
            "a number and a size such as `4 8k`",
            |text| {
                let (number, size) = text.split_once(' ').ok_or_else(|| {
                    ParseError::new(format!("`{text}` is not a number and a size"))
                        .help("expected for example `4 8k`")
                })?;
                let number = units::whole(number, "a number of buffers", 1, 1024)?;
                Ok(Self::new(number, units::size(size.trim())?))
            },
        )
    }
}

/// `proxy_next_upstream`: a list of words, or one text of them as in nginx.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NextUpstreamWords(pub Vec<String>);

/// The words of `proxy_next_upstream`.
const CONDITIONS: [&str; 12] = [
    "error",
    "timeout",
    "invalid_header",
    "non_idempotent",
    "http_500",
    "http_502",
    "http_503",
    "http_504",
    "http_403",
    "http_404",
    "http_429",
    "off",
];

impl Decode for NextUpstreamWords {
    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        let texts = List::<Text>::decode(node, context)?;
        let mut words = Vec::new();
        for Spanned { value, span } in &texts.0 {
            let mut at = 0;
            for word in value.text.split(' ') {
                let place = value.part(*span, at..at + word.len());
                at += word.len() + 1;
                // `off` is a flag in YAML's older dialect, and so may come as one of its other names.
                let word = match word {
                    "" => continue,
                    "false" | "no" => "off",
                    word => word,
                };
                if !CONDITIONS.contains(&word) {
                    let hint = report::hint(word, CONDITIONS)
                        .unwrap_or_else(|| format!("expected some of {}", CONDITIONS.join(", ")));
                    let sentence = format!("`{word}` is not a condition to try the next server");
                    context.report(Diagnostic::new(place, sentence).help(hint));
                }
                words.push(word.to_owned());
            }
        }
        if words.len() > 1 && words.iter().any(|word| word == "off") {
            let sentence = "`off` cannot stand beside other words";
            context.report(Diagnostic::new(node.span, sentence));
        }
        Some(Self(words))
    }
}

/// A size, or a text of variables that gives one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SizeText(pub Text);

impl Decode for SizeText {
    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        Text::decode(node, context).map(Self)
    }
}

/// `proxy_redirect`: its rules in order; none for `off`.
#[derive(Debug, Clone)]
pub(crate) struct ProxyRedirect(pub Vec<RedirectRule>);

/// A rule of `proxy_redirect`.
#[derive(Debug, Clone)]
pub(crate) enum RedirectRule {
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
                        context.type_error(node, EXPECTED);
                        None
                    }
                }
            }
            NodeKind::Mapping(_) | NodeKind::Null | NodeKind::Unset => {
                context.type_error(node, EXPECTED);
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
    let sentence = format!("`{text}` is not a pair of texts");
    context.report(Diagnostic::new(node.span, sentence).help(format!("expected {EXPECTED}")));
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

/// The value of a header field.
#[derive(Debug, Clone)]
pub(crate) struct HeaderText(pub(crate) Text);

impl Decode for HeaderText {
    fn decode(node: &Node, context: &mut DecodeContext<'_>) -> Option<Self> {
        let is_plain = node
            .text()
            .is_some_and(|text| text.is_empty() || is_variable(text));
        let name = context.name();
        // A text that is not a name may be half of one.
        let may_be = is_credential(name) || HeaderName::try_from(name).is_err();
        if may_be && !is_plain {
            context.hide(node);
        }
        Text::decode(node, context).map(Self)
    }
}

impl Setting<usize> for Buffers {
    fn plan(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }
}

impl Setting<Vec<String>> for NextUpstreamWords {
    fn plan(&self) -> Vec<String> {
        self.0.clone()
    }
}

impl Setting<Vec<RedirectRule>> for ProxyRedirect {
    fn plan(&self) -> Vec<RedirectRule> {
        self.0.clone()
    }
}

schema!(text: HeaderText);

schema! {
    Buffers = "Buffers", |generator| {
        let parts = generator.subschema_for::<BuffersParts>();
        json_schema!({ "anyOf": [{ "type": "string", "pattern": "^[0-9]+ +[0-9]+[kKmMgG]?$" }, parts] })
    };
    NextUpstreamWords = "NextUpstream", |_generator| json_schema!({
        "anyOf": [
            { "type": "string" },
            { "const": false },
            { "type": "array", "items": { "enum": CONDITIONS } },
        ],
    });
    SizeText = "SizeText", |_generator| json_schema!({
        "description": "A size in bytes, or with k, m or g behind it; or a template that gives one.",
        "anyOf": [
            { "type": "integer", "minimum": 0 },
            { "type": "string", "pattern": r"^([0-9]+[kKmMgG]?)?$|\$" },
        ],
    });
    ProxyRedirect = "ProxyRedirect", |_generator| {
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
    };
}
