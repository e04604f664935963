//! What becomes of requests that a rule does not let pass.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::Compiler;
use super::templates::TemplatePhase;
use crate::config::decode::{Field, Spanned, Text};
use crate::config::model::{self, ExcessAction};
use crate::config::plan::{
    AlgorithmParams, BodyFormat, RefusalAction, RefusalBodies, RefusalBody, Template, TypedText,
};
use crate::config::span::Span;

/// How long a request waits at most where `on_excess: delay` says no more.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The longest penalty: what is kept for longer is an `allow` and `deny` list.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);

impl Compiler<'_> {
    /// Of a `limit_req`.
    pub(super) fn req_sanction(
        &mut self,
        rule: &model::ReqRule,
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
        let hint = match zone {
            AlgorithmParams::Gcra { .. }
            | AlgorithmParams::LeakyBucket { .. }
            | AlgorithmParams::TokenBucket { .. } => return,
            AlgorithmParams::Bursty { .. }
            | AlgorithmParams::Paced { .. }
            | AlgorithmParams::WarmUp { .. } => {
                "there everybody waits already, up to the zone's `max_wait`"
            }
            _ => {
                "a window that begins anew lets in all that wait at once; leaky_bucket, token_bucket and gcra do not"
            }
        };
        let sentence = format!("`on_excess: delay` has no meaning with `{}`", zone.name());
        self.complain_with(span, sentence, hint);
    }

    /// Of a `limit_conn`.
    pub(super) fn conn_sanction(&mut self, rule: &model::ConnRule) -> RefusalAction {
        let manner = rule.on_excess.get().map(|given| given.value.0);
        let manner = manner.unwrap_or(ExcessAction::Reject);
        self.wording(manner, &rule.status, &rule.body, &rule.content_type)
    }

    fn wording(
        &mut self,
        manner: ExcessAction,
        status: &Field<model::RefusalStatus>,
        body: &Field<model::RuleBody>,
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
        body: Option<&Spanned<model::RuleBody>>,
        content_type: Option<&Spanned<Text>>,
    ) -> Option<RefusalBodies> {
        let given = content_type.map(|given| self.content_type(Some(given), body.is_some()));
        let body = body?;
        match &body.value {
            model::RuleBody::One(text) => {
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
            model::RuleBody::Choice(forms) => {
                if let Some(content_type) = content_type {
                    let hint = "`html`, `json` and `text` say it";
                    self.complain_with(
                        content_type.span,
                        "a `content_type` beside several forms of a `body`",
                        hint,
                    );
                }
                let mut typed = |text: Option<&Spanned<model::BodyText>>, form: BodyFormat| {
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
    fn body_text(&mut self, text: &model::BodyText, span: Span) -> Template {
        let file = match text {
            model::BodyText::Text(text) => {
                let value = text.clone();
                return self.template(&Spanned { value, span }, TemplatePhase::After);
            }
            model::BodyText::File(file) => file.file.get(),
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

    fn max_wait(&mut self, given: Option<&Spanned<model::Time>>) -> Duration {
        let Some(given) = given else {
            return MAX_WAIT;
        };
        if given.value.0.is_zero() {
            let hint = "leave `on_excess` out to refuse at once";
            self.complain_with(given.span, "a wait of nothing", hint);
        }
        given.value.0
    }

    fn penalty(&mut self, given: &Spanned<model::Time>) -> Option<Duration> {
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
