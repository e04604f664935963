//! `return`: answers without an upstream.

use http::HeaderValue;

use super::Compiler;
use super::templates::TemplatePhase;
use crate::config::decode::{Spanned, Text, mistaken};
use crate::config::model;
use crate::config::plan::{BodyFormat, RefusalBody, Return, ReturnBody};
use crate::config::span::Span;
use crate::config::units;

/// Statuses that lead elsewhere.
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

/// Closes the connection without an answer, as nginx's.
const CLOSE: u16 = 444;

impl Compiler<'_> {
    /// A `return`.
    pub(super) fn answer(&mut self, given: &Spanned<model::Return>) -> Option<Return> {
        match &given.value {
            model::Return::Parts(parts) => self.answer_in_parts(parts, given.span),
            model::Return::Text(text) => self.answer_in_words(text, given.span),
        }
    }

    /// nginx's way: `204`, `200 text`, `301 https://…` or `https://…` alone.
    fn answer_in_words(&mut self, text: &Text, span: Span) -> Option<Return> {
        let whole = text.text.trim();
        if ["http://", "https://", "$scheme"]
            .iter()
            .any(|start| whole.starts_with(start))
        {
            let url = Spanned {
                value: text.clone(),
                span,
            };
            return Some(Return {
                status: 302,
                body: ReturnBody::Location(self.header_value(&url)),
            });
        }
        let (status, rest) = whole.split_once(' ').unwrap_or((whole, ""));
        let status = self.status(status, span)?;
        let rest = Spanned {
            value: text.tail(rest.trim_start()),
            span,
        };
        let body = if rest.value.text.is_empty() {
            None
        } else {
            Some(&rest)
        };
        if REDIRECTS.contains(&status) {
            self.assemble(status, None, body, None, span)
        } else {
            self.assemble(status, body, None, None, span)
        }
    }

    fn answer_in_parts(&mut self, parts: &model::ReturnParts, span: Span) -> Option<Return> {
        let url = parts.url.get().or_else(|| parts.location.get());
        if let (Some(_), Some(second)) = (parts.url.get(), parts.location.get()) {
            self.complain(
                second.span,
                "`url` and `location` mean the same; give one of them",
            );
        }
        let status = match parts.status.get() {
            Some(status) => self.status(&status.value.text, status.span)?,
            None if url.is_some() => 302,
            None => 200,
        };
        self.assemble(
            status,
            parts.body.get(),
            url,
            parts.content_type.get(),
            span,
        )
    }

    fn assemble(
        &mut self,
        status: u16,
        body: Option<&Spanned<Text>>,
        url: Option<&Spanned<Text>>,
        content_type: Option<&Spanned<Text>>,
        span: Span,
    ) -> Option<Return> {
        let content_type = self.content_type(content_type, body.is_some());
        let body = match (body, url) {
            (Some(body), Some(_)) => {
                self.complain(body.span, "a redirect has no `body`");
                return None;
            }
            (None, Some(url)) if !REDIRECTS.contains(&status) => {
                let sentence = format!("a redirect with status {status}");
                self.complain_with(
                    url.span,
                    sentence,
                    "expected one of 301, 302, 303, 307, 308",
                );
                return None;
            }
            (None, Some(url)) => ReturnBody::Location(self.header_value(url)),
            (_, None) if REDIRECTS.contains(&status) => {
                let sentence = format!("a return with status {status} leads nowhere");
                self.complain_with(
                    span,
                    sentence,
                    "say where to: `{ status: 301, url: \"https://$host$request_uri\" }`",
                );
                return None;
            }
            (Some(body), None) if matches!(status, 204 | 304 | CLOSE) => {
                self.complain(
                    body.span,
                    format!("an answer with status {status} has no body"),
                );
                return None;
            }
            (Some(body), None) => ReturnBody::Text {
                text: RefusalBody {
                    text: self.template(body, TemplatePhase::After),
                    form: BodyFormat::of(&content_type),
                },
                content_type,
            },
            (None, None) => ReturnBody::Page,
        };
        Some(Return { status, body })
    }

    pub(super) fn content_type(
        &mut self,
        given: Option<&Spanned<Text>>,
        has_body: bool,
    ) -> Box<str> {
        let Some(given) = given else {
            return "text/plain".into();
        };
        if !has_body {
            self.complain(given.span, "a `content_type` without a `body`");
        } else if HeaderValue::from_str(&given.value.text).is_err()
            || !given.value.text.contains('/')
        {
            let sentence = format!("`{}` is not a content type", given.value.text);
            self.complain_with(
                given.span,
                sentence,
                "expected for example `application/json`",
            );
        }
        given.value.text.as_str().into()
    }

    fn status(&mut self, text: &str, span: Span) -> Option<u16> {
        units::whole(text, "a status", 200, 599)
            .map_err(|mistake| self.report.add(mistaken(span, mistake)))
            .ok()
            .and_then(|status| u16::try_from(status).ok())
    }
}
