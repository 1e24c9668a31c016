//! The nearest of the words that would have been right, for error messages.

/// The candidate most like `word`, where one is alike enough to be what was meant.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Hostile files may hold very long keys, and the comparison costs the product of both lengths.
    if word.len() > 200 {
        return None;
    }
    let word = word.to_lowercase();
    let likeness = |candidate: &str| strsim::normalized_damerau_levenshtein(&word, &candidate.to_lowercase());
    candidates
        .into_iter()
        .map(|candidate| (likeness(candidate), candidate))
        .filter(|(likeness, _)| *likeness >= 0.5)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_slip_of_the_finger_finds_its_word() {
        assert_eq!(nearest("blok_tokens", ["ram_bytes", "block_tokens"]), Some("block_tokens"));
        assert_eq!(nearest("Reqest", ["request", "system"]), Some("request"));
    }

    #[test]
    fn an_unrelated_word_finds_none() {
        assert_eq!(nearest("temperature", ["ram_bytes", "enabled"]), None);
        assert_eq!(nearest(&"x".repeat(10_000), ["x"]), None);
    }
}
