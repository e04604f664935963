//! Texts of variables become templates.
//!
//! `$name` and `${name}` as in nginx; a `$` that no name follows stands for itself. `${NAME}` in upper case never
//! gets here: it is the environment's (see `config::read`).

use std::ops::Range;

use super::{Compiler, Resolved, variables};
use crate::config::decode::{Spanned, Text};
use crate::config::near;
use crate::config::plan::{Part, Template, Variable};
use crate::config::report::Diagnostic;

/// When a template is rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TemplatePhase {
    /// After the answer: everything is known.
    After,
    /// Before there is an answer.
    Before,
}

/// A piece of text as cut up, not yet understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TemplateToken<'a> {
    /// Stands for itself.
    Literal(&'a str),
    /// `${` with something in it that is not a name, or without an end.
    Malformed,
    /// A variable's name.
    Name(&'a str),
}

/// Cuts a text up, each piece with its place.
pub(super) fn pieces(text: &str) -> Vec<(TemplateToken<'_>, Range<usize>)> {
    let mut pieces = Vec::new();
    let mut rest = text;
    let mut at = 0;
    while !rest.is_empty() {
        let (piece, length) = piece(rest);
        pieces.push((piece, at..at + length));
        at += length;
        rest = rest.get(length..).unwrap_or_default();
    }
    pieces
}

fn piece(rest: &str) -> (TemplateToken<'_>, usize) {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let Some(behind) = rest.strip_prefix('$') else {
        let end = rest.find('$').unwrap_or(rest.len());
        return (TemplateToken::Literal(rest.split_at(end).0), end);
    };
    if let Some(inside) = behind.strip_prefix('{') {
        return match inside.split_once('}') {
            Some((name, _)) if !name.is_empty() && name.chars().all(is_name) => {
                (TemplateToken::Name(name), name.len() + 3)
            }
            Some((wrong, _)) => (TemplateToken::Malformed, wrong.len() + 3),
            None => (TemplateToken::Malformed, rest.len()),
        };
    }
    let end = behind.find(|c| !is_name(c)).unwrap_or(behind.len());
    match behind.split_at(end).0 {
        "" => (TemplateToken::Literal("$"), 1),
        name => (TemplateToken::Name(name), end + 1),
    }
}

/// The names of all variables in a text.
pub(super) fn names(text: &str) -> impl Iterator<Item = &str> {
    pieces(text)
        .into_iter()
        .filter_map(|(piece, _)| match piece {
            TemplateToken::Name(name) => Some(name),
            TemplateToken::Literal(_) | TemplateToken::Malformed => None,
        })
}

impl Compiler<'_> {
    /// A text as a template.
    pub(super) fn template(&mut self, text: &Spanned<Text>, when: TemplatePhase) -> Template {
        let mut parts: Vec<Part> = Vec::new();
        for (piece, range) in pieces(&text.value.text) {
            match piece {
                TemplateToken::Literal(literal) => match parts.last_mut() {
                    Some(Part::Text(before)) => *before = format!("{before}{literal}").into(),
                    _ => parts.push(Part::Text(literal.into())),
                },
                TemplateToken::Malformed => {
                    self.wrong_variable(
                        text,
                        range,
                        "`${` without a name and a `}`".to_owned(),
                        None,
                    );
                }
                TemplateToken::Name(name) => {
                    if let Some(variable) = self.variable(text, range, name, when) {
                        parts.push(Part::Variable(variable));
                    }
                }
            }
        }
        Template {
            parts: parts.into(),
        }
    }

    /// Whether a template needs something that is not known before the answer.
    pub(super) fn is_late(&self, template: &Template) -> bool {
        template.parts.iter().any(|part| match part {
            Part::Text(_) => false,
            Part::Variable(variable) => self.is_late_variable(variable),
        })
    }

    fn is_late_variable(&self, variable: &Variable) -> bool {
        match variable {
            Variable::Map(index) => self.late_maps.get(*index).copied().unwrap_or(false),
            other => variables::is_late(other),
        }
    }

    fn variable(
        &mut self,
        text: &Spanned<Text>,
        range: Range<usize>,
        name: &str,
        when: TemplatePhase,
    ) -> Option<Variable> {
        let variable = match self.maps.find(name) {
            Resolved::At(index) => Some(Variable::Map(index)),
            Resolved::Broken => return None,
            Resolved::Nowhere => variables::find(name),
        };
        let Some(variable) = variable else {
            let mut known: Vec<&str> = variables::names().collect();
            known.extend(self.maps.all());
            let hint = if name.bytes().all(|byte| byte.is_ascii_digit()) {
                Some("what an expression captures cannot be used here".to_owned())
            } else {
                near::near(name, known).map(|meant| format!("did you mean `${meant}`?"))
            };
            self.wrong_variable(text, range, format!("unknown variable `${name}`"), hint);
            return None;
        };
        if self.is_late_variable(&variable) && when == TemplatePhase::Before {
            let sentence = format!("`${name}` is not known before the answer is");
            self.wrong_variable(
                text,
                range,
                sentence,
                Some("here only what is known of the request can be used".to_owned()),
            );
        }
        Some(variable)
    }

    fn wrong_variable(
        &mut self,
        text: &Spanned<Text>,
        range: Range<usize>,
        sentence: String,
        hint: Option<String>,
    ) {
        let part = text.value.part(text.span, range);
        self.report.add(
            Diagnostic::new(part, sentence)
                .hint(hint)
                .part_of(text.span),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str) -> Vec<TemplateToken<'_>> {
        pieces(text).into_iter().map(|(piece, _)| piece).collect()
    }

    #[test]
    fn names_end_where_they_end_in_nginx() {
        assert_eq!(
            cut("$host:$uri"),
            [
                TemplateToken::Name("host"),
                TemplateToken::Literal(":"),
                TemplateToken::Name("uri")
            ]
        );
        assert_eq!(
            cut("${host}x"),
            [TemplateToken::Name("host"), TemplateToken::Literal("x")]
        );
        assert_eq!(
            cut("$server_name$uri"),
            [
                TemplateToken::Name("server_name"),
                TemplateToken::Name("uri")
            ]
        );
    }

    #[test]
    fn a_dollar_without_a_name_is_a_dollar() {
        assert_eq!(
            cut("a$ b$"),
            [
                TemplateToken::Literal("a"),
                TemplateToken::Literal("$"),
                TemplateToken::Literal(" b"),
                TemplateToken::Literal("$")
            ]
        );
    }

    #[test]
    fn braces_have_to_be_closed_around_a_name() {
        assert_eq!(cut("${host"), [TemplateToken::Malformed]);
        assert_eq!(
            cut("${}x"),
            [TemplateToken::Malformed, TemplateToken::Literal("x")]
        );
        assert_eq!(cut("${a b}"), [TemplateToken::Malformed]);
    }
}
