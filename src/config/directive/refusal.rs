//! What becomes of a request that a rule does not let pass.
//!
//! What becomes of requests that a rule does not let pass.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use self::raw::ExcessAction;
use super::limits;
use crate::algorithm::{self, AlgorithmParams};
use crate::config::compile::Compiler;
use crate::config::decode::value::Text;
use crate::config::decode::{Field, Spanned, value};
use crate::config::report;
use crate::config::source::Span;
use crate::config::template::{Part, Template, TemplatePhase};

pub(crate) mod raw {
    //! What a rule may say of requests that it does not let pass.
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use crate::config::decode::record::record;
    use crate::config::decode::value::{Text, choice};
    use crate::config::decode::{Decode, DecodeContext, Field, Required};
    use crate::config::source::{Node, NodeKind};

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
}

/// How a rule turns requests away.
#[derive(Debug, Clone, Default)]
pub struct RefusalAction {
    /// Instead of the location's; 444 closes without an answer (`on_excess: drop`).
    pub status: Option<StatusCode>,
    /// Instead of weir's own page.
    pub body: Option<Arc<RefusalBodies>>,
    /// `on_excess: delay`: for how long a request may wait that would else be turned away.
    pub max_wait: Option<Duration>,
    /// `penalty`: for how long a key that was turned away stays out.
    pub penalty: Option<Duration>,
}

/// What refused requests are answered with in place of weir's own page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusalBodies {
    /// What the client likes best of these, one at least.
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
    /// Whether it is the same for every request that likes the same form.
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
    /// nginx's status that closes the connection without an answer.
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

/// How long a request waits at most where `on_excess: delay` says no more.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The longest penalty: what is kept for longer is an `allow` and `deny` list.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);

impl Compiler<'_> {
    /// Of a `limit_req`.
    pub(in crate::config) fn req_sanction(
        &mut self,
        rule: &limits::raw::ReqRule,
        zone: AlgorithmParams,
    ) -> RefusalAction {
        let manner = rule.on_excess.get().map(|given| given.value.0);
        let manner = manner.unwrap_or(ExcessAction::Reject);
        if let (Some(given), ExcessAction::Delay) = (rule.on_excess.get(), manner) {
            self.has_a_line(given.span, zone);
        }
        let longest = rule.max_wait.get();
        if let Some(longest) = longest.filter(|_| manner != ExcessAction::Delay) {
            self.complain_with(
                longest.span,
                "`max_wait` without `on_excess: delay`",
                "who waits within the burst waits for as long as the rate asks for",
            );
        }
        let penalty = rule.penalty.get().and_then(|given| self.penalty(given));
        if let (Some(given), ExcessAction::Delay) = (rule.penalty.get(), manner) {
            self.complain_with(
                given.span,
                "`penalty` and `on_excess: delay` contradict each other",
                "who is made to wait is not kept out",
            );
        }
        RefusalAction {
            max_wait: (manner == ExcessAction::Delay).then(|| self.max_wait(longest)),
            penalty,
            ..self.wording(manner, &rule.status, &rule.body, &rule.content_type)
        }
    }

    /// Complains of waiting where there is no order to wait in.
    fn has_a_line(&mut self, span: Span, zone: AlgorithmParams) {
        let ordered = report::listed(&algorithm::names(|info, _| info.ordered));
        let hint = match zone.info() {
            info if info.ordered => return,
            info if info.next_pays => {
                "there everybody waits already, up to the zone's `max_wait`".to_owned()
            }
            _ => {
                format!("a window that begins anew lets in all that wait at once; {ordered} do not")
            }
        };
        let sentence = format!("`on_excess: delay` has no meaning with `{}`", zone.name());
        self.complain_with(span, sentence, hint);
    }

    /// Of a `limit_conn`.
    pub(in crate::config) fn conn_sanction(
        &mut self,
        rule: &limits::raw::ConnRule,
    ) -> RefusalAction {
        let manner = rule.on_excess.get().map(|given| given.value.0);
        let manner = manner.unwrap_or(ExcessAction::Reject);
        self.wording(manner, &rule.status, &rule.body, &rule.content_type)
    }

    fn wording(
        &mut self,
        manner: ExcessAction,
        status: &Field<value::RefusalStatus>,
        body: &Field<raw::RuleBody>,
        content_type: &Field<Text>,
    ) -> RefusalAction {
        let given = status.value().map(|status| status.0);
        let drops = manner == ExcessAction::Drop;
        if drops && let Some(status) = status.get() {
            self.answers_nothing(status.span, "status");
        }
        if let Some(body) = body.get()
            && (drops || given == Some(RefusalAction::DROP))
        {
            self.answers_nothing(body.span, "body");
        }
        let status = if drops {
            Some(RefusalAction::DROP)
        } else {
            given
        };
        RefusalAction {
            status: status.and_then(|status| StatusCode::from_u16(status).ok()),
            body: self
                .refusal_body(body.get(), content_type.get())
                .map(Arc::new),
            ..RefusalAction::default()
        }
    }

    fn refusal_body(
        &mut self,
        body: Option<&Spanned<raw::RuleBody>>,
        content_type: Option<&Spanned<Text>>,
    ) -> Option<RefusalBodies> {
        let given = content_type.map(|given| self.content_type(Some(given), body.is_some()));
        let body = body?;
        match &body.value {
            raw::RuleBody::One(text) => {
                let mut wording = RefusalBody::new(self.body_text(text, body.span));
                if let Some(content_type) = &given {
                    wording.form = BodyFormat::of(content_type);
                }
                let content_type = given.unwrap_or_else(|| wording.form.content_type().into());
                Some(RefusalBodies::One(TypedText {
                    wording,
                    content_type,
                }))
            }
            raw::RuleBody::Choice(forms) => {
                if let Some(content_type) = content_type {
                    let hint = "`html`, `json` and `text` say it";
                    self.complain_with(
                        content_type.span,
                        "a `content_type` beside several forms of a `body`",
                        hint,
                    );
                }
                let mut typed = |text: Option<&Spanned<raw::BodyText>>, form: BodyFormat| {
                    text.map(|text| TypedText {
                        wording: RefusalBody {
                            text: self.body_text(&text.value, text.span),
                            form,
                        },
                        content_type: form.content_type().into(),
                    })
                };
                let html = typed(forms.html.get(), BodyFormat::Html);
                let json = typed(forms.json.get(), BodyFormat::Json);
                let text = typed(forms.text.get(), BodyFormat::Plain);
                if html.is_none() && json.is_none() && text.is_none() {
                    self.complain_with(
                        body.span,
                        "a `body` without a text",
                        "expected some of `html`, `json` and `text`, or `file`",
                    );
                    return None;
                }
                Some(RefusalBodies::Choice { html, json, text })
            }
        }
    }

    /// A text of variables, or what is in a file, in which a `$` is a `$`.
    fn body_text(&mut self, text: &raw::BodyText, span: Span) -> Template {
        let file = match text {
            raw::BodyText::Text(text) => {
                let value = text.clone();
                return self.template(&Spanned { value, span }, TemplatePhase::After);
            }
            raw::BodyText::File(file) => file.file.get(),
        };
        let Some(file) = file else {
            return Template::default();
        };
        let path = self.file(file).path;
        match std::fs::read_to_string(&path) {
            Ok(text) => Template::literal(&text),
            Err(error) => {
                let sentence = format!("`{}` cannot be read: {error}", path.display());
                self.complain(file.span, sentence);
                Template::default()
            }
        }
    }

    fn answers_nothing(&mut self, span: Span, what: &str) {
        self.complain_with(
            span,
            format!("a request that is dropped has no `{what}`"),
            "its connection is closed without an answer; `on_excess: reject` answers",
        );
    }

    fn max_wait(&mut self, given: Option<&Spanned<value::Time>>) -> Duration {
        let Some(given) = given else {
            return MAX_WAIT;
        };
        if given.value.0.is_zero() {
            let hint = "leave `on_excess` out to refuse at once";
            self.complain_with(given.span, "a wait of nothing", hint);
        }
        given.value.0
    }

    fn penalty(&mut self, given: &Spanned<value::Time>) -> Option<Duration> {
        let time = given.value.0;
        if time > LONGEST {
            self.complain_with(given.span, "too long a penalty", "the most is 30d");
        }
        if time.is_zero() {
            self.complain_with(
                given.span,
                "a penalty of nothing",
                "leave it out: who is refused may come back when the rate allows it",
            );
        }
        Some(time).filter(|time| !time.is_zero())
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
