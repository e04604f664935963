//! The responses to requests that a rule refuses.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode};

use self::raw::ExcessAction;
use super::tls;
use crate::config::compile::Compiler;
use crate::config::decode::Spanned;
use crate::config::decode::value::{RefusalStatus, Text};
use crate::config::report::Report;
use crate::config::source::Span;
use crate::config::template::{Part, Template, TemplatePhase};

pub(crate) mod raw {
    //! How a rule refuses requests, as the user writes it.
    use schemars::json_schema;

    use crate::config::decode::record::record;
    use crate::config::decode::value::{Text, choice, schema};
    use crate::config::decode::{Decode, DecodeContext, Field, Required};
    use crate::config::source::{Node, NodeKind};

    record! {
        /// The response to requests that a rule refuses.
        pub(crate) struct RefusalDirectives {
            /// The body of requests that this rule refuses: a template or `{ file: … }`, JSON or HTML by its first letter; or several of `html`, `json` and `text`, chosen by the client's `Accept`. Default: a page in the form that `Accept` prefers.
            body: Field<RuleBody>,
            /// The type of `body`. Default: by its first letter.
            content_type: Field<Text>,
        }
    }

    choice! {
        /// What to do with a request that exceeds a rate.
        pub(crate) struct OnExcess(ExcessAction) = "an action on excess" {
            "reject" => ExcessAction::Reject,
            "delay" => ExcessAction::Delay,
            "drop" => ExcessAction::Drop,
        }
    }

    choice! {
        /// What to do with a request that exceeds a number of concurrent requests.
        pub(crate) struct OnConnExcess(ExcessAction) = "an action on excess" {
            "reject" => ExcessAction::Reject,
            "drop" => ExcessAction::Drop,
        }
    }

    /// What to do with a request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum ExcessAction {
        /// Delay it.
        Delay,
        /// Close its connection.
        Drop,
        /// Send a response.
        Reject,
    }

    /// `body` of a rule: one, or one for each form that clients may prefer.
    #[derive(Debug, Clone)]
    pub(crate) enum RuleBody {
        /// In the form that the client prefers.
        Choice(Box<BodyForms>),
        /// Always the same.
        One(BodyText),
    }

    /// A text, or the file it is in.
    #[derive(Debug, Clone)]
    pub(crate) enum BodyText {
        /// `{ file: … }`: sent as it is.
        File(BodyFile),
        /// A template.
        Text(Text),
    }

    record! {
        /// A body that is in a file.
        pub(crate) struct BodyFile {
            /// The file, which is read with the configuration and sent as it is.
            file: Required<Text>,
        }
    }

    record! {
        /// Bodies of which a client gets the one that its `Accept` prefers.
        pub(crate) struct BodyForms {
            /// For browsers: a template, or `{ file: … }`.
            html: Field<BodyText>,
            /// For programs.
            json: Field<BodyText>,
            /// For clients without a preference, where it is given.
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

    schema! {
        RuleBody = "RuleBody", |generator| {
            let one = generator.subschema_for::<BodyText>();
            let forms = generator.subschema_for::<BodyForms>();
            json_schema!({ "anyOf": [one, forms] })
        };
        BodyText = "BodyText", |generator| {
            let text = generator.subschema_for::<Text>();
            let file = generator.subschema_for::<BodyFile>();
            json_schema!({ "anyOf": [text, file] })
        };
    }
}

/// How a rule refuses requests.
#[derive(Debug, Clone, Default)]
pub struct RefusalAction {
    /// Instead of the location's; 444 closes without a response (`on_excess: drop`).
    pub status: Option<StatusCode>,
    /// Instead of weir's own page.
    pub body: Option<Arc<RefusalBodies>>,
    /// `on_excess: delay`: how long a request may wait before it is refused.
    pub max_wait: Option<Duration>,
    /// `penalty`: how long a key stays refused after a refusal.
    pub penalty: Option<Duration>,
}

/// The bodies of refusals, in place of weir's own page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusalBodies {
    /// The one of these that the client prefers; at least one is there.
    Choice {
        /// `html`
        html: Option<TypedText>,
        /// `json`
        json: Option<TypedText>,
        /// `text`
        text: Option<TypedText>,
    },
    /// Always the same.
    One(TypedText),
}

/// A text and its `Content-Type`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypedText {
    /// The text.
    pub wording: RefusalBody,
    /// The `Content-Type`.
    pub content_type: Box<str>,
}

impl RefusalBodies {
    /// Whether it is the same for every request that prefers the same form.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        let is_fixed = |typed: &TypedText| typed.wording.text.as_literal().is_some();
        match self {
            Self::Choice { html, json, text } => {
                [html, json, text].into_iter().flatten().all(is_fixed)
            }
            Self::One(typed) => is_fixed(typed),
        }
    }
}

/// A text with variables, and what it is written in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalBody {
    /// The text.
    pub text: Template,
    /// What it is written in.
    pub form: BodyFormat,
}

/// What a text is written in: how the values of variables are escaped in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFormat {
    /// A style sheet.
    Css,
    /// HTML, or XML of any kind.
    Html,
    /// JavaScript.
    JavaScript,
    /// JSON of any kind.
    Json,
    /// Anything else, which has no syntax that a value could break.
    Plain,
}

impl RefusalAction {
    /// nginx's status that closes the connection without a response.
    pub const DROP: u16 = 444;
}

impl RefusalBody {
    /// A text, in the form it looks like.
    #[must_use]
    pub fn new(text: Template) -> Self {
        let start = match text.parts.first() {
            Some(Part::Text(start)) => start.trim_ascii_start().as_bytes().first(),
            _ => None,
        };
        let form = match start {
            Some(b'<') => BodyFormat::Html,
            Some(b'{' | b'[') => BodyFormat::Json,
            _ => BodyFormat::Plain,
        };
        Self { text, form }
    }
}

impl BodyFormat {
    /// That of a text with this `Content-Type`.
    #[must_use]
    pub fn of(content_type: &str) -> Self {
        let essence = content_type.split(';').next().unwrap_or_default();
        let essence = essence.trim().to_ascii_lowercase();
        let (_, subtype) = essence.split_once('/').unwrap_or_default();
        match subtype {
            "css" => Self::Css,
            "html" | "xml" => Self::Html,
            _ if subtype.ends_with("+xml") => Self::Html,
            _ if subtype.contains("json") => Self::Json,
            // `ecmascript`, `x-javascript`, `jscript` and their like.
            _ if subtype.contains("script") => Self::JavaScript,
            _ => Self::Plain,
        }
    }

    /// The `Content-Type` of a text that names none.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Css => "text/css; charset=utf-8",
            Self::Html => "text/html; charset=utf-8",
            Self::JavaScript => "text/javascript; charset=utf-8",
            Self::Json => "application/json",
            Self::Plain => "text/plain; charset=utf-8",
        }
    }
}

impl RefusalAction {
    /// The refusals of a rule, without `max_wait` and `penalty`; `status` is its own, `None` for the location's.
    pub(crate) fn compile(
        action: ExcessAction,
        status: Option<&Spanned<RefusalStatus>>,
        given: &raw::RefusalDirectives,
        compiler: &mut Compiler<'_>,
    ) -> Self {
        let drops = action == ExcessAction::Drop;
        let number = status.map(|status| status.value.0);
        if let Some(status) = status.filter(|_| drops) {
            refuse_content(status.span, "status", compiler.report);
        }
        if let Some(body) = given.body.get()
            && (drops || number == Some(Self::DROP))
        {
            refuse_content(body.span, "body", compiler.report);
        }
        let number = if drops { Some(Self::DROP) } else { number };
        Self {
            status: number.and_then(|status| StatusCode::from_u16(status).ok()),
            body: refusal_body(given, compiler).map(Arc::new),
            ..Self::default()
        }
    }
}

fn refusal_body(
    given: &raw::RefusalDirectives,
    compiler: &mut Compiler<'_>,
) -> Option<RefusalBodies> {
    let (body, content_type) = (given.body.get(), given.content_type.get());
    let own_type = content_type.map(|given| {
        check_content_type(given, body.is_some(), compiler.report);
        Box::from(given.value.text.as_str())
    });
    let Spanned { value, span } = body?;
    let forms = match value {
        raw::RuleBody::One(text) => {
            let mut wording = RefusalBody::new(body_text(text, *span, compiler));
            if let Some(content_type) = &own_type {
                wording.form = BodyFormat::of(content_type);
            }
            let content_type = own_type.unwrap_or_else(|| wording.form.content_type().into());
            return Some(RefusalBodies::One(TypedText {
                wording,
                content_type,
            }));
        }
        raw::RuleBody::Choice(forms) => forms,
    };
    if let Some(content_type) = content_type {
        let sentence = "`content_type` has no meaning with several forms of a `body`";
        let hint = "`html`, `json` and `text` have their types";
        compiler
            .report
            .error_with(content_type.span, sentence, hint);
    }
    let mut typed = |text: Option<&Spanned<raw::BodyText>>, form: BodyFormat| {
        text.map(|text| TypedText {
            wording: RefusalBody {
                text: body_text(&text.value, text.span, compiler),
                form,
            },
            content_type: form.content_type().into(),
        })
    };
    let html = typed(forms.html.get(), BodyFormat::Html);
    let json = typed(forms.json.get(), BodyFormat::Json);
    let text = typed(forms.text.get(), BodyFormat::Plain);
    if html.is_none() && json.is_none() && text.is_none() {
        let hint = "expected some of `html`, `json` and `text`, or `file`";
        compiler
            .report
            .error_with(*span, "a `body` without a text", hint);
        return None;
    }
    Some(RefusalBodies::Choice { html, json, text })
}

/// A template, or the text of a file, in which a `$` is a dollar sign.
fn body_text(text: &raw::BodyText, span: Span, compiler: &mut Compiler<'_>) -> Template {
    let file = match text {
        raw::BodyText::Text(text) => {
            let value = text.clone();
            return Template::compile(&Spanned { value, span }, TemplatePhase::After, compiler);
        }
        raw::BodyText::File(file) => file.file.get(),
    };
    let Some(file) = file else {
        return Template::default();
    };
    let path = tls::file(file, compiler.report).path;
    match std::fs::read_to_string(&path) {
        Ok(text) => Template::literal(&text),
        Err(error) => {
            let sentence = format!("`{}` cannot be read: {error}", path.display());
            compiler.report.error(file.span, sentence);
            Template::default()
        }
    }
}

fn refuse_content(span: Span, key: &str, report: &mut Report) {
    report.error_with(
        span,
        format!("a request that is dropped has no `{key}`"),
        "its connection is closed without a response; `on_excess: reject` sends one",
    );
}

/// Reports a `content_type` that is none, or stands alone.
pub(crate) fn check_content_type(given: &Spanned<Text>, has_body: bool, report: &mut Report) {
    let text = &given.value.text;
    if !has_body {
        report.error(given.span, "a `content_type` without a `body`");
    } else if HeaderValue::from_str(text).is_err() || !text.contains('/') {
        let sentence = format!("`{text}` is not a content type");
        let hint = "expected for example `application/json`";
        report.error_with(given.span, sentence, hint);
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_text_shows_its_form() {
        let form = |text: &str| RefusalBody::new(Template::literal(text)).form;
        assert_eq!(form("<p>slow down</p>"), BodyFormat::Html);
        assert_eq!(form("\n {\"error\": 1}"), BodyFormat::Json);
        assert_eq!(form("[1]"), BodyFormat::Json);
        assert_eq!(form("slow down <b>"), BodyFormat::Plain);
        assert_eq!(form(""), BodyFormat::Plain);
    }

    #[test]
    fn a_content_type_has_a_form() {
        for (content_type, form) in [
            ("text/html", BodyFormat::Html),
            (" Text/HTML ; charset=iso-8859-1", BodyFormat::Html),
            ("application/xhtml+xml", BodyFormat::Html),
            ("image/svg+xml", BodyFormat::Html),
            ("text/xml", BodyFormat::Html),
            ("application/json; charset=utf-8", BodyFormat::Json),
            ("application/problem+json", BodyFormat::Json),
            ("application/x-ndjson", BodyFormat::Json),
            ("text/javascript", BodyFormat::JavaScript),
            ("application/ecmascript", BodyFormat::JavaScript),
            ("text/css", BodyFormat::Css),
            ("text/plain", BodyFormat::Plain),
            ("application/octet-stream", BodyFormat::Plain),
            ("html", BodyFormat::Plain),
        ] {
            assert_eq!(BodyFormat::of(content_type), form, "{content_type}");
        }
    }
}
