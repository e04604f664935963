//! What requests are sorted by: host names and paths.

use regex::Regex;

/// A `server_name`.
#[derive(Debug, Clone)]
pub enum ServerName {
    /// `example.com`, in lower case.
    Exact(Box<str>),
    /// `~expr`.
    Expression(Regex),
    /// `www.example.*`: what stands before the last dot, that dot included (`www.example.`).
    Prefix(Box<str>),
    /// `*.example.com`: what stands after the star, its dot included (`.example.com`).
    Suffix(Box<str>),
    /// `.example.com`: the name itself and all below it, kept as `.example.com`.
    SuffixAndSelf(Box<str>),
}

/// A location's `path`: how it was written, and what it matches.
#[derive(Debug, Clone)]
pub struct LocationPath {
    /// As in the file, for people.
    pub text: Box<str>,
    /// What it matches.
    pub rule: PathRule,
}

/// What a location's path matches, after decoding and normalising.
#[derive(Debug, Clone)]
pub enum PathRule {
    /// `= /path`
    Exact(Box<str>),
    /// `~ expr`, and `~* expr` compiled to ignore case.
    Expression(regex::bytes::Regex),
    /// `/path`
    Prefix(Box<str>),
    /// `^~ /path`: a prefix that stops the search for expressions.
    PrefixFirst(Box<str>),
}
