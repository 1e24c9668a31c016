//! The palette's search.

use super::{Action, existing, label};
use crate::tui::app::Model;

/// Actions whose description contains `query`, then those that contain its letters in order; best match first.
pub fn search(model: &Model, query: &str) -> Vec<&'static Action> {
    let query = query.trim().to_lowercase();
    let mut found: Vec<_> =
        existing(model).filter_map(|a| Some((match_cost(&label(model, a), &query)?, a))).collect();
    found.sort_by_key(|(cost, _)| *cost);
    found.into_iter().map(|(_, action)| action).collect()
}

/// How badly `text` matches `query` (lower case): where it occurs, or how far its letters are scattered. `None` when they do not
/// all occur in order.
fn match_cost(text: &str, query: &str) -> Option<usize> {
    const SCATTERED: usize = 1_000;
    let text = text.to_lowercase();
    if let Some(at) = text.find(query) {
        return Some(at);
    }
    let mut letters = text.chars().enumerate();
    let mut cost = SCATTERED;
    let mut last = None;
    for wanted in query.chars().filter(|c| !c.is_whitespace()) {
        let (at, _) = letters.find(|(_, c)| *c == wanted)?;
        cost += last.map_or(0, |previous: usize| at - previous - 1);
        last = Some(at);
    }
    Some(cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_finds_words_first_and_scattered_letters_after_them() {
        let cost = |text, query| match_cost(text, query);
        assert!(cost("run the next turn", "turn") < cost("type in a turn", "trn"));
        assert!(cost("run the next turn", "rntt").is_some());
        assert!(cost("run the next turn", "zz").is_none());
        assert_eq!(cost("anything", ""), Some(0));
    }
}
