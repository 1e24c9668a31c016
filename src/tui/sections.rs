//! Which lines of a pane are shown when there is no room for all of them.

/// A part of a pane: its lines, and how early they get room.
pub struct Section<T> {
    lines: Vec<T>,
    least: usize,
    rank: u8,
    rest: u8,
}

impl<T> Section<T> {
    /// Lines that get room in the order of `rank`, the lowest first.
    pub fn new(rank: u8, lines: Vec<T>) -> Section<T> {
        Section { least: lines.len(), lines, rank, rest: rank }
    }

    /// How many lines it has.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// The same, of which the lines behind the first `least` have `rest` for a rank.
    pub fn at_least(self, least: usize, rest: u8) -> Section<T> {
        Section { least: least.min(self.lines.len()), rest, ..self }
    }
}

/// The lines that `height` has room for, in the order of the sections.
pub fn allot<T>(sections: Vec<Section<T>>, height: usize) -> Vec<T> {
    let mut wanted: Vec<(u8, usize, usize)> = Vec::new();
    for (at, section) in sections.iter().enumerate() {
        wanted.push((section.rank, at, section.least));
        wanted.push((section.rest, at, section.lines.len() - section.least));
    }
    wanted.sort_by_key(|(rank, ..)| *rank);
    let mut spare = height;
    let mut granted = vec![0; sections.len()];
    for (_, at, lines) in wanted {
        let lines = lines.min(spare);
        granted[at] += lines;
        spare -= lines;
    }
    sections
        .into_iter()
        .zip(granted)
        .flat_map(|(section, lines)| section.lines.into_iter().take(lines))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_least_goes_first_and_the_order_stays() {
        let shown = |height| {
            let sections = vec![
                Section::new(2, vec!["axis"]),
                Section::new(0, vec!["bar"]),
                Section::new(1, vec!["loss", "of which", "details"]).at_least(1, 3),
            ];
            allot(sections, height).join(" ")
        };
        assert_eq!(shown(0), "");
        assert_eq!(shown(1), "bar");
        assert_eq!(shown(2), "bar loss");
        assert_eq!(shown(3), "axis bar loss");
        assert_eq!(shown(4), "axis bar loss of which");
        assert_eq!(shown(9), "axis bar loss of which details");
    }
}
