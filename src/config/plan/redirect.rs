//! `proxy_redirect`: what is changed about where a backend's redirects lead.

use regex::bytes::Regex;

use super::{Part, Template};

/// One rule of `proxy_redirect`; the first that matches is applied.
#[derive(Debug, Clone)]
pub enum Redirect {
    /// `default`: the location's path takes the place of what `proxy_pass` names.
    Default {
        /// The URL of `proxy_pass`, with `$proxy_host` for its host.
        url: Box<str>,
        /// The location's path.
        path: Box<str>,
    },
    /// Takes the place of the whole URL that an expression matches.
    Expression {
        /// The expression.
        from: Regex,
        /// What takes its place.
        to: Box<[Replacement]>,
    },
    /// Takes the place of the beginning of a URL.
    Prefix {
        /// The beginning.
        from: Template,
        /// What takes its place.
        to: Template,
    },
}

/// A piece of what takes a URL's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replacement {
    /// What a group of the expression matched, by its number.
    Group(usize),
    /// A text or a variable.
    Part(Part),
}
