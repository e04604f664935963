//! Near misses: what somebody probably meant.

/// The one of `known` that `word` is most likely a misspelling of.
pub(super) fn near<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Nobody misspells a key at this length, and comparing takes the square of it.
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

#[cfg(test)]
mod tests {
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
