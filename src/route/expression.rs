//! What every path that an expression matches begins with, if that can be said.
//!
//! nginx tries expressions one after the other. Most of them name a folder first, as in `^/api/v[12]/`: those need not
//! be tried on other paths, and then a thousand of them cost what one costs.

use regex::bytes::Regex;
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{HirKind, Look};

/// The bytes without which a path cannot match; empty where it can begin with anything.
pub(super) fn beginning(expression: &Regex) -> Box<[u8]> {
    // As the configuration compiles them: on bytes, and with the case that counts written into it.
    let mut parser = ParserBuilder::new().unicode(false).utf8(false).build();
    let Ok(tree) = parser.parse(expression.as_str()) else {
        return Box::default();
    };
    let HirKind::Concat(parts) = tree.kind() else {
        return Box::default();
    };
    match &**parts {
        [start, first, ..] if *start.kind() == HirKind::Look(Look::Start) => match first.kind() {
            HirKind::Literal(literal) => literal.0.clone(),
            _ => Box::default(),
        },
        _ => Box::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_certain_is_said() {
        for (expression, expected) in [
            ("^/api/v[12]/", "/api/v"),
            ("^/api$", "/api"),
            (r"^/a\.b+", "/a."),
            ("^/(?:a|b)", "/"),
            ("/api/", ""),
            ("(?i)^/api/", "/"),
            ("(?i)^/a", "/"),
            ("(?i)^a", ""),
            ("(?m)^/api/", ""),
            ("^/api/|^/b", ""),
            ("^(/api/)", ""),
            ("^/a*", "/"),
            (r"\.(gif|jpg)$", ""),
            ("^", ""),
            ("", ""),
        ] {
            let found = beginning(&Regex::new(expression).unwrap());
            assert_eq!(String::from_utf8_lossy(&found), expected, "{expression}");
        }
    }
}
