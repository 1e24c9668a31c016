//! Which letters of a reply a drafter guessed and the target accepted.

use std::ops::Range;

use crate::ledger::RequestFacts;
use crate::tui::text::sanitise;

/// The bytes of a request's reply that are accepted drafted tokens, in order; none where a token's place in the reply is not known.
pub(super) fn accepted_bytes(request: &RequestFacts) -> Vec<Range<usize>> {
    let Some(speculation) = &request.speculation else { return Vec::new() };
    let mut out: Vec<Range<usize>> = Vec::new();
    for cycle in &speculation.cycles {
        let Ok(first) = usize::try_from(cycle.first) else { continue };
        let last = first.saturating_add(cycle.accepted as usize);
        for place in first..last.min(request.tokens.len()) {
            let Some(bytes) = request.token_bytes(place) else { break };
            match out.last_mut() {
                Some(before) if before.end == bytes.start => before.end = bytes.end,
                Some(before) if before.end > bytes.start => {}
                _ => out.push(bytes),
            }
        }
    }
    out.retain(|bytes| bytes.end <= request.text.len() && !bytes.is_empty());
    out
}

/// The marked stretches of each of the lines that `text` was wrapped into; `marks` are bytes of `text`, `lines` what [`wrap_line`] made of
/// its sanitised lines.
///
/// [`wrap_line`]: crate::tui::text::wrap_line
pub(super) fn marked_lines<'l>(
    text: &str,
    marks: &[Range<usize>],
    lines: impl IntoIterator<Item = &'l str>,
) -> Vec<Vec<Range<usize>>> {
    let mut out = Vec::new();
    let mut pieces = lines.into_iter();
    let mut begins = 0;
    for line in text.split('\n') {
        let (safe, marked) = sanitised_marks(line, begins, marks);
        begins += line.len() + 1;
        let mut at = 0;
        // Of an empty line there is one piece; a line ends where its letters do.
        loop {
            let Some(piece) = pieces.next() else { return out };
            let start = safe[at..].find(piece).map_or(at, |found| at + found);
            let end = start + piece.len();
            out.push(within(&marked, start, end));
            at = end;
            if safe[at.min(safe.len())..].trim_start_matches(' ').is_empty() {
                break;
            }
        }
    }
    out
}

/// `line`, which begins at byte `begins` of the text, sanitised; and the marked bytes of the result.
fn sanitised_marks(line: &str, begins: usize, marks: &[Range<usize>]) -> (String, Vec<Range<usize>>) {
    let whole = sanitise(line).into_owned();
    let mut out = Vec::new();
    let ends = begins + line.len();
    let first = marks.partition_point(|mark| mark.end <= begins);
    for mark in marks[first..].iter().take_while(|mark| mark.start < ends) {
        // Sanitising goes from left to right, so the length of a beginning says where it ends.
        let upto = |byte: usize| {
            let byte = byte.clamp(begins, ends) - begins;
            line.get(..byte).map_or(whole.len(), |head| sanitise(head).len().min(whole.len()))
        };
        out.push(upto(mark.start)..upto(mark.end));
    }
    (whole, out)
}

fn within(marked: &[Range<usize>], start: usize, end: usize) -> Vec<Range<usize>> {
    let cut = |mark: &Range<usize>| mark.start.max(start)..mark.end.min(end);
    let inside = marked.iter().map(cut).filter(|mark| !mark.is_empty());
    inside.map(|mark| mark.start - start..mark.end - start).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tui::text::wrap_line;

    fn marked(text: &str, marks: &[(usize, usize)], columns: usize) -> Vec<String> {
        let marks: Vec<Range<usize>> = marks.iter().map(|(start, end)| *start..*end).collect();
        let mut lines = Vec::new();
        for line in text.split('\n') {
            wrap_line(&sanitise(line), columns, &mut lines);
        }
        let found = marked_lines(text, &marks, lines.iter().map(|line| &**line));
        assert_eq!(found.len(), lines.len());
        let of_line = |(line, marks): (&str, Vec<Range<usize>>)| {
            marks.into_iter().map(|mark| line[mark].to_owned()).collect::<Vec<_>>()
        };
        lines.iter().map(|line| &**line).zip(found).flat_map(of_line).collect()
    }

    #[test]
    fn marks_follow_the_text_through_line_ends_and_wrapping() {
        assert_eq!(marked("let a = 1;\nlet b = 2;", &[(4, 5), (9, 14)], 40), ["a", ";", "let"]);
        assert_eq!(marked("one two three four", &[(4, 13)], 9), ["two", "three"]);
        assert_eq!(marked("", &[], 9), Vec::<String>::new());
        assert_eq!(marked("a\n\n\nb", &[(4, 5)], 9), ["b"]);
    }

    #[test]
    fn what_is_replaced_is_marked_as_what_stands_for_it() {
        assert_eq!(marked("x\x1b[31my\tz", &[(1, 2), (6, 7)], 40), ["^[", "y"]);
        assert_eq!(marked("日本語", &[(3, 6)], 40), ["本"]);
        // A mark that cuts a character in two is no reason to fail.
        assert_eq!(marked("日本語", &[(1, 4)], 40).len(), 0);
    }
}
