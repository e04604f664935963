//! `proxy_redirect` becomes rules.

use regex::bytes::Regex;

use super::Compiler;
use super::names::{RegexCase, bytes_expression};
use super::sites::SettingLevels;
use super::templates::{TemplatePhase, TemplateToken, pieces};
use crate::config::decode::{Spanned, Text, mistaken};
use crate::config::model::RedirectRule;
use crate::config::plan::{PathRule, Redirect, Replacement};

impl Compiler<'_> {
    /// The rules for a `proxy_pass` to this URL under this path; `default` where nothing is said, as in nginx.
    pub(super) fn redirects(
        &mut self,
        levels: SettingLevels<'_>,
        url: &str,
        uri: Option<&str>,
        path: Option<&PathRule>,
    ) -> Box<[Redirect]> {
        let given = levels.find(|settings| &settings.proxy_redirect);
        let rules = given.map_or(&[RedirectRule::Default][..], |given| &given.value.0);
        let rules = rules.iter().filter_map(|rule| match rule {
            RedirectRule::Default => Some(default(url, uri, path)),
            RedirectRule::Pair { from, to } => self.redirect(from, to),
        });
        rules.collect()
    }

    fn redirect(&mut self, from: &Spanned<Text>, to: &Spanned<Text>) -> Option<Redirect> {
        let text = from.value.text.as_str();
        let expression = match (text.strip_prefix("~*"), text.strip_prefix('~')) {
            (Some(expression), _) => (expression, RegexCase::Ignored),
            (None, Some(expression)) => (expression, RegexCase::Matters),
            (None, None) if text.is_empty() => {
                self.complain(from.span, "an empty text begins every redirect");
                return None;
            }
            (None, None) => {
                return Some(Redirect::Prefix {
                    from: self.template(from, TemplatePhase::Before),
                    to: self.header_value(to),
                });
            }
        };
        let from = bytes_expression(expression.0, expression.1)
            .map_err(|mistake| self.report.add(mistaken(from.span, mistake)))
            .ok()?;
        let to = self.replacement(to, &from);
        Some(Redirect::Expression { from, to })
    }

    /// A text with variables in which `$1` and `$name` are groups of an expression.
    fn replacement(&mut self, to: &Spanned<Text>, from: &Regex) -> Box<[Replacement]> {
        let mut parts = Vec::new();
        for (piece, range) in pieces(&to.value.text) {
            if let TemplateToken::Name(name) = piece
                && let Some(group) = group(from, name)
            {
                parts.push(Replacement::Group(group));
                continue;
            }
            let piece = to.value.text.get(range.clone()).unwrap_or_default();
            let piece = Spanned {
                value: to.value.slice(piece, range.start),
                span: to.span,
            };
            let template = self.header_value(&piece);
            parts.extend(template.parts.into_iter().map(Replacement::Part));
        }
        parts.into()
    }
}

/// The number of a group of an expression that goes by this name or number.
fn group(expression: &Regex, name: &str) -> Option<usize> {
    let number = name.parse().ok();
    number
        .filter(|number| *number < expression.captures_len())
        .or_else(|| {
            let mut names = expression.capture_names();
            names.position(|known| known == Some(name))
        })
}

/// nginx's `default`: where `proxy_pass` has a path it is replaced by the location's, else the root by the root.
fn default(url: &str, uri: Option<&str>, path: Option<&PathRule>) -> Redirect {
    let path = match (uri, path) {
        (
            Some(_),
            Some(PathRule::Exact(path) | PathRule::Prefix(path) | PathRule::PrefixFirst(path)),
        ) => path,
        _ => "/",
    };
    Redirect::Default {
        url: format!("{url}{}", uri.unwrap_or("/")).into(),
        path: path.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_numbers_and_may_have_names() {
        let expression = Regex::new("(?<first>a)(b)").expect("an expression");
        assert_eq!(group(&expression, "first"), Some(1));
        assert_eq!(group(&expression, "2"), Some(2));
        assert_eq!(group(&expression, "3"), None);
        assert_eq!(group(&expression, "host"), None);
    }
}
