//! Everything that is wrong with a configuration, gathered.
//!
//! An error stops nothing: it is noted here, and reading goes on, so that a file with five errors takes one run to mend and
//! not five. Hints offer the known word that is most like a misspelt one.

use std::collections::{HashMap, HashSet};
use std::fmt;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use super::secret::SecretIndex;
use super::source::{Sources, Span};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// It can, but probably does not do what was meant.
    Warning,
}

/// One thing that is wrong.
#[derive(Debug, Clone)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Where; `None` for a file that could not be read at all.
    pub span: Option<Span>,
    /// What is wrong.
    pub sentence: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// The way there through the file's keys, such as `servers[0].listen`.
    pub path: Option<String>,
    /// The whole value, where `span` is only a part of it.
    anchor: Option<Span>,
}

/// Why a text does not mean what it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParseError {
    /// What is wrong.
    pub(crate) sentence: String,
    /// What to do about it.
    pub(crate) hint: Option<String>,
}

impl ParseError {
    /// What is wrong.
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self {
            sentence: sentence.into(),
            hint: None,
        }
    }

    /// With a hint.
    pub(crate) fn help(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// With or without colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColorChoice {
    /// With terminal colours.
    Coloured,
    /// Plain text.
    Plain,
}

/// Everything that is wrong with a configuration.
#[derive(Debug, Default)]
pub struct Report {
    sources: Sources,
    // Boxed: a report is what loading a file fails with.
    hidden: Box<SecretIndex>,
    diagnostics: Vec<Diagnostic>,
    seen: HashSet<(Option<Span>, String)>,
}

/// Most diagnostics drawn at once: a generated file may have any number of them.
const MOST_DRAWN: usize = 1000;

impl Diagnostic {
    /// What is wrong with what stands at `span`.
    pub(super) fn new(span: Span, sentence: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            span: Some(span),
            sentence: bounded(sentence.into()),
            hint: None,
            path: None,
            anchor: Some(span),
        }
    }

    /// What is wrong with the text at `span`.
    pub(super) fn parse(span: Span, error: ParseError) -> Self {
        Self::new(span, error.sentence).hint(error.hint)
    }

    /// What is wrong with a file as a whole.
    pub(super) fn nowhere(sentence: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            span: None,
            sentence: sentence.into(),
            hint: None,
            path: None,
            anchor: None,
        }
    }

    /// With a hint, if there is one.
    pub(super) fn hint(mut self, hint: impl Into<Option<String>>) -> Self {
        self.hint = hint.into();
        self
    }

    /// With a hint.
    pub(super) fn help(self, hint: impl Into<String>) -> Self {
        self.hint(Some(hint.into()))
    }

    /// Only a warning.
    pub(super) fn warning(mut self) -> Self {
        self.severity = Severity::Warning;
        self
    }

    /// About a part of the value at `anchor`.
    pub(super) fn part_of(mut self, anchor: Span) -> Self {
        self.anchor = Some(anchor);
        self
    }

    /// At this path.
    pub(super) fn at(mut self, path: String) -> Self {
        self.path = Some(path);
        self
    }
}

impl Report {
    /// Notes a diagnostic. The same one about the same place is noted once: a setting that is inherited, or an
    /// anchor that is used twice, is looked at more than once.
    pub(super) fn add(&mut self, diagnostic: Diagnostic) {
        if self
            .seen
            .insert((diagnostic.span, diagnostic.sentence.clone()))
        {
            self.diagnostics.push(diagnostic);
        }
    }

    /// Notes an error.
    pub(super) fn error(&mut self, span: Span, sentence: impl Into<String>) {
        self.add(Diagnostic::new(span, sentence));
    }

    /// Notes an error and what to do about it.
    pub(super) fn error_with(
        &mut self,
        span: Span,
        sentence: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.add(Diagnostic::new(span, sentence).help(hint));
    }

    /// Notes a warning and what to do about it.
    pub(super) fn warn(
        &mut self,
        span: Span,
        sentence: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.add(Diagnostic::new(span, sentence).help(hint).warning());
    }

    /// What was read from the text at `span`; `None` once its error is noted.
    pub(super) fn parsed<T>(&mut self, span: Span, read: Result<T, ParseError>) -> Option<T> {
        read.map_err(|error| self.add(Diagnostic::parse(span, error)))
            .ok()
    }

    /// Notes what another folder has found wrong at `span`.
    pub fn note(&mut self, severity: Severity, span: Span, sentence: String, hint: Option<&str>) {
        let mut diagnostic = Diagnostic::new(span, sentence).hint(hint.map(str::to_owned));
        diagnostic.severity = severity;
        self.add(diagnostic);
        self.sort();
    }

    /// The files read so far.
    pub(super) fn sources(&self) -> &Sources {
        &self.sources
    }

    /// The files read so far.
    pub(super) fn sources_mut(&mut self) -> &mut Sources {
        &mut self.sources
    }

    /// Their secrets.
    pub(super) fn hidden(&self) -> &SecretIndex {
        &self.hidden
    }

    /// Their secrets.
    pub(super) fn hidden_mut(&mut self) -> &mut SecretIndex {
        &mut self.hidden
    }

    /// Takes secrets out of the diagnostics so far.
    pub(super) fn hide_secrets(&mut self) {
        let hidden = &self.hidden;
        for diagnostic in &mut self.diagnostics {
            let about = [diagnostic.span, diagnostic.anchor];
            diagnostic.sentence = hidden.sentence(&diagnostic.sentence, &about);
            let hint = diagnostic.hint.take();
            diagnostic.hint = hint.map(|hint| hidden.hint(&hint, &about));
            let path = diagnostic.path.take();
            diagnostic.path = path.map(|path| hidden.path(&path, &about));
        }
        // It has them as they were.
        self.seen.clear();
    }

    /// Fills in the paths of those that have none yet.
    pub(super) fn fill_paths(&mut self, paths: &HashMap<Span, String>) {
        for diagnostic in &mut self.diagnostics {
            if diagnostic.path.is_none() {
                diagnostic.path = diagnostic.anchor.and_then(|span| paths.get(&span).cloned());
            }
        }
    }

    /// Puts them in the order of files and positions.
    pub(super) fn sort(&mut self) {
        self.diagnostics.sort_by_key(|diagnostic| {
            (
                diagnostic
                    .span
                    .map(|span| (span.file, span.start, span.end)),
                diagnostic.severity,
            )
        });
    }

    /// All of them, in the order of files and positions.
    #[must_use]
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.diagnostics
    }

    /// Whether there are no diagnostics.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.diagnostics.is_empty()
    }

    /// How many make the configuration unusable.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.diagnostics
            .iter()
            .filter(|diagnostic| diagnostic.severity == Severity::Error)
            .count()
    }

    /// How many do not.
    #[must_use]
    pub fn warnings(&self) -> usize {
        self.diagnostics.len() - self.errors()
    }

    /// All of them, each in a line that says where, what and what to do about it.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        self.diagnostics.iter().take(MOST_DRAWN).map(|diagnostic| {
            let place = diagnostic.span.map(|span| self.sources.place(span));
            let place = place.map_or_else(String::new, |place| format!("{place}: "));
            let hint = diagnostic.hint.as_ref();
            let hint = hint.map_or_else(String::new, |hint| format!("; {hint}"));
            format!("{place}{}{hint}", diagnostic.sentence)
        })
    }

    /// All of them with their source lines, as a compiler would draw them.
    #[must_use]
    pub fn draw(&self, look: ColorChoice) -> String {
        let renderer = match look {
            ColorChoice::Coloured => Renderer::styled(),
            ColorChoice::Plain => Renderer::plain(),
        };
        let drawn: Vec<_> = self
            .diagnostics
            .iter()
            .take(MOST_DRAWN)
            .map(|diagnostic| self.draw_one(diagnostic, &renderer))
            .collect();
        let mut text = drawn.join("\n\n");
        if let Some(more) = self.diagnostics.len().checked_sub(MOST_DRAWN + 1) {
            text = format!("{text}\n\nand {} more", more + 1);
        }
        text
    }

    fn draw_one(&self, diagnostic: &Diagnostic, renderer: &Renderer) -> String {
        let level = match diagnostic.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let title = level.primary_title(diagnostic.sentence.as_str());
        let mut groups = Vec::new();
        let excerpt = diagnostic.span.map(|span| {
            let excerpt = self.sources.excerpt(span);
            let text = self.sources.text(span.file);
            let (line, marked) = self.hidden.line(&excerpt, span.file, text);
            (excerpt, line, marked)
        });
        match &excerpt {
            None => groups.push(Group::with_title(title)),
            Some((excerpt, line, marked)) => {
                // A path of one step says nothing that the marked line does not.
                let label = diagnostic
                    .path
                    .as_deref()
                    .filter(|path| path.contains(['.', '[']));
                groups.push(
                    title.element(
                        Snippet::source(line)
                            .path(excerpt.name)
                            .line_start(excerpt.line)
                            .annotation(AnnotationKind::Primary.span(marked.clone()).label(label)),
                    ),
                );
            }
        }
        if let Some(hint) = &diagnostic.hint {
            groups.push(Group::with_title(
                Level::HELP.secondary_title(hint.as_str()),
            ));
        }
        let drawn = renderer.render(&groups);
        let Some((excerpt, line, marked)) = &excerpt else {
            return drawn;
        };
        // The renderer counts columns in the line that it is given, where hidden parts are shorter or longer.
        let counted = line.get(..marked.start).unwrap_or_default();
        let place = |column: usize| format!("{}:{}:{column}", excerpt.name, excerpt.line);
        drawn.replacen(
            &place(counted.chars().count() + 1),
            &place(excerpt.column),
            1,
        )
    }
}

/// A sentence may quote what it is about, which may be a whole file.
fn bounded(sentence: String) -> String {
    const MOST: usize = 300;
    if sentence.len() <= MOST {
        return sentence;
    }
    sentence.chars().take(MOST).chain(['…']).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.draw(ColorChoice::Plain))
    }
}

impl std::error::Error for Report {}

/// The one of `known` that `word` is most likely a misspelling of.
pub(super) fn near<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // No key is this long, and comparing takes the square of the length.
    const LONGEST: usize = 64;
    if word.len() > LONGEST {
        return None;
    }
    let word = word.to_lowercase();
    known
        .into_iter()
        .map(|candidate| {
            (
                strsim::damerau_levenshtein(&word, &candidate.to_lowercase()),
                candidate,
            )
        })
        // A third of the letters may be wrong, but a one-letter word is never a misspelling of another.
        .filter(|(distance, candidate)| {
            *distance
                <= candidate.chars().count().min(word.chars().count()) / 3
                    + usize::from(word.len() > 1)
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The same as a hint.
pub(super) fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    near(word, known).map(|meant| format!("did you mean `{meant}`?"))
}

/// Words as a sentence lists them.
pub(super) fn listed(words: &[&str]) -> String {
    match words {
        [words @ .., last] if !words.is_empty() => format!("{} and {last}", words.join(", ")),
        words => words.concat(),
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn report() -> (Report, Span) {
        let mut report = Report::default();
        let file = report
            .sources_mut()
            .add("weir.yaml".into(), "a: 1\nzone: perpi\n".into());
        let span = Span {
            file,
            start: 11,
            end: 16,
        };
        (report, span)
    }

    #[test]
    fn a_diagnostic_shows_place_line_marker_and_hint() {
        let (mut report, span) = report();
        report.add(Diagnostic::new(span, "unknown zone `perpi`").help("did you mean `perip`?"));
        insta::assert_snapshot!(report.to_string(), @r"
        error: unknown zone `perpi`
         --> weir.yaml:2:7
          |
        2 | zone: perpi
          |       ^^^^^
          |
        help: did you mean `perip`?
        ");
    }

    #[test]
    fn a_line_says_where_what_and_what_to_do() {
        let (mut report, span) = report();
        report.add(Diagnostic::new(span, "unknown zone `perpi`").help("did you mean `perip`?"));
        report.add(Diagnostic::nowhere("cannot read x.yaml"));
        let lines: Vec<_> = report.lines().collect();
        assert_eq!(
            lines,
            [
                "weir.yaml:2:7: unknown zone `perpi`; did you mean `perip`?",
                "cannot read x.yaml"
            ]
        );
    }

    #[test]
    fn the_same_diagnostic_twice_is_one() {
        let (mut report, span) = report();
        report.add(Diagnostic::new(span, "no"));
        report.add(Diagnostic::new(span, "no"));
        assert_eq!(report.diagnostics().len(), 1);
    }
}

#[cfg(test)]
mod near_tests {

    use super::*;

    #[test]
    fn a_swapped_letter_is_recognised() {
        assert_eq!(near("perpi", ["perip", "perserver"]), Some("perip"));
    }

    #[test]
    fn something_else_altogether_is_not() {
        assert_eq!(near("banana", ["perip", "perserver"]), None);
        assert_eq!(near("a", ["b"]), None);
    }
}
