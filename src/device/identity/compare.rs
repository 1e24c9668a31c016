//! Rows of logits beside those of the reference.

use super::Plan;

/// How a route's logits and stored state compare with the reference's. Differences and margins are in standard deviations of the
/// reference's logits.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Positions compared.
    pub positions: usize,
    /// The largest difference of two logits.
    pub largest: f64,
    /// The mean difference.
    pub mean: f64,
    /// Positions at which the likeliest token is another.
    pub flips: usize,
    /// The reference's margin between its two likeliest tokens where the likeliest changed: the smallest and the largest of them.
    pub flip_margins: Option<(f64, f64)>,
    /// Logits that differ and of which one is not a finite number; `largest` and `mean` are over the others.
    pub not_finite: usize,
    /// Whether every logit has the same bits.
    pub same_bits: bool,
    /// Whether the stored state has the same digest at the end: pages, and the slot of recurrent layers.
    pub state_same: bool,
    /// Of the logits; `None` where the route did not give every position that the reference holds.
    pub digest: Option<[u8; 32]>,
}

/// The likeliest token of a row of logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Top {
    /// The first of the highest.
    pub(super) token: u32,
    /// How far the second is below it; 0 in a row of one.
    pub(super) margin: f64,
}

impl Top {
    /// What is not a number is never likeliest.
    pub(super) fn of(row: &[f32]) -> Top {
        let (mut best, mut second, mut token) = (f32::NEG_INFINITY, f32::NEG_INFINITY, 0);
        for (id, logit) in (0..).zip(row) {
            if *logit > best {
                (second, best, token) = (best, *logit, id);
            } else if *logit > second {
                second = *logit;
            }
        }
        let margin = f64::from(best) - f64::from(second);
        Top { token, margin: if margin.is_finite() { margin } else { 0.0 } }
    }
}

/// The reference's logits, as many as may be held.
pub(super) struct Reference {
    vocab: usize,
    /// Which positions are held, where they are given.
    wanted: Vec<bool>,
    /// For each position, which row of `rows` it is.
    index: Vec<Option<usize>>,
    rows: Vec<f32>,
    tops: Vec<Top>,
    hasher: blake3::Hasher,
    state: [u8; 32],
    deviation: f64,
}

impl Reference {
    pub(super) fn new(plan: &Plan<'_>, vocab: usize) -> Reference {
        let rows = plan.logit_bytes / (vocab * size_of::<f32>()).max(1);
        Reference {
            vocab,
            wanted: sample(plan.tokens.len(), plan.decoded, rows),
            index: vec![None; plan.tokens.len()],
            rows: Vec::new(),
            tops: Vec::new(),
            hasher: blake3::Hasher::new(),
            state: [0; 32],
            deviation: 1.0,
        }
    }

    /// Takes the logits at `position`; positions ascend.
    pub(super) fn keep(&mut self, position: usize, row: &[f32]) {
        if self.wanted.get(position) != Some(&true) {
            return;
        }
        self.index[position] = Some(self.tops.len());
        self.rows.extend_from_slice(row);
        self.tops.push(Top::of(row));
        self.hasher.update(bytemuck::cast_slice(row));
    }

    /// All logits are there, and the stored state's digest.
    pub(super) fn finish(mut self, state: [u8; 32]) -> Reference {
        self.state = state;
        let finite = || self.rows.iter().map(|logit| f64::from(*logit)).filter(|logit| logit.is_finite());
        let count = finite().count().max(1) as f64;
        let mean = finite().sum::<f64>() / count;
        let deviation = (finite().map(|logit| (logit - mean).powi(2)).sum::<f64>() / count).sqrt();
        // Logits that are all equal have no unit; differences from them are then given as they are.
        self.deviation = if deviation > 0.0 { deviation } else { 1.0 };
        self
    }

    pub(super) fn deviation(&self) -> f64 {
        self.deviation
    }

    /// Positions held.
    pub(super) fn positions(&self) -> usize {
        self.tops.len()
    }

    pub(super) fn digest(&self) -> [u8; 32] {
        *self.hasher.clone().finalize().as_bytes()
    }
}

/// Which of `total` positions to hold when there is room for `rows`: the last `decoded` ones before all, then the prompt's last, then
/// others of the prompt at even distances.
fn sample(total: usize, decoded: usize, rows: usize) -> Vec<bool> {
    let prompt = total - decoded;
    let decoded_rows = decoded.min(rows);
    let prompt_rows = prompt.min(rows - decoded_rows);
    let mut wanted = vec![false; total];
    wanted[total - decoded_rows..].fill(true);
    for row in 1..=prompt_rows {
        wanted[row * prompt / prompt_rows - 1] = true;
    }
    wanted
}

/// A comparison under way.
pub(super) struct Tally<'a> {
    reference: &'a Reference,
    positions: usize,
    largest: f64,
    sum: f64,
    compared: u64,
    flips: usize,
    flip_margins: Option<(f64, f64)>,
    not_finite: usize,
    same_bits: bool,
    hasher: blake3::Hasher,
}

impl<'a> Tally<'a> {
    pub(super) fn new(reference: &'a Reference) -> Tally<'a> {
        Tally {
            reference,
            positions: 0,
            largest: 0.0,
            sum: 0.0,
            compared: 0,
            flips: 0,
            flip_margins: None,
            not_finite: 0,
            same_bits: true,
            hasher: blake3::Hasher::new(),
        }
    }

    /// Takes the route's logits at `position`; positions ascend.
    pub(super) fn add(&mut self, position: usize, row: &[f32]) {
        let Some(index) = self.reference.index.get(position).copied().flatten() else { return };
        let vocab = self.reference.vocab;
        let expected = &self.reference.rows[index * vocab..(index + 1) * vocab];
        self.positions += 1;
        self.hasher.update(bytemuck::cast_slice(row));
        if bytemuck::cast_slice::<f32, u32>(row) == bytemuck::cast_slice::<f32, u32>(expected) {
            self.compared += vocab as u64;
            return;
        }
        self.same_bits = false;
        for (got, expected) in row.iter().zip(expected) {
            let difference = (f64::from(*got) - f64::from(*expected)).abs();
            if difference.is_finite() {
                self.largest = self.largest.max(difference);
                self.sum += difference;
                self.compared += 1;
            } else if got.to_bits() != expected.to_bits() {
                self.not_finite += 1;
            }
        }
        let top = self.reference.tops[index];
        if Top::of(row).token != top.token {
            self.flips += 1;
            let (least, most) = self.flip_margins.unwrap_or((top.margin, top.margin));
            self.flip_margins = Some((least.min(top.margin), most.max(top.margin)));
        }
    }

    /// The route is at its end, with this digest of stored state.
    pub(super) fn finish(self, state: [u8; 32]) -> Comparison {
        let unit = self.reference.deviation;
        Comparison {
            positions: self.positions,
            largest: self.largest / unit,
            mean: self.sum / unit / self.compared.max(1) as f64,
            flips: self.flips,
            flip_margins: self.flip_margins.map(|(least, most)| (least / unit, most / unit)),
            not_finite: self.not_finite,
            same_bits: self.same_bits,
            state_same: state == self.reference.state,
            digest: (self.positions == self.reference.positions())
                .then(|| *self.hasher.finalize().as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(rows: &[[f32; 3]]) -> Reference {
        let tokens = vec![0; rows.len()];
        let plan = Plan { tokens: &tokens, decoded: 1, chunk_tokens: 1, generated: 0, logit_bytes: 1 << 20 };
        let mut reference = Reference::new(&plan, 3);
        rows.iter().enumerate().for_each(|(position, row)| reference.keep(position, row));
        reference.finish([1; 32])
    }

    #[test]
    fn differences_and_margins_are_in_deviations_of_the_logits() {
        // Mean 0, deviation 2.
        let reference = reference(&[[-2.0, 2.0, 2.0], [2.0, -2.0, -2.0]]);
        assert_eq!((reference.deviation(), reference.positions()), (2.0, 2));
        let mut tally = Tally::new(&reference);
        tally.add(0, &[-2.0, 2.0, 2.5]);
        tally.add(1, &[2.0, -2.0, -2.0]);
        let comparison = tally.finish([1; 32]);
        assert_eq!(
            (comparison.largest, comparison.flips, comparison.flip_margins),
            (0.25, 1, Some((0.0, 0.0)))
        );
        assert!((comparison.mean - 0.25 / 6.0).abs() < 1e-12);
        assert!(!comparison.same_bits && comparison.state_same);
        assert_ne!(comparison.digest, Some(reference.digest()));

        let mut tally = Tally::new(&reference);
        tally.add(1, &[2.0, -2.0, 3.0]);
        let comparison = tally.finish([2; 32]);
        assert_eq!((comparison.positions, comparison.flip_margins), (1, Some((2.0, 2.0))));
        assert!(!comparison.state_same);
        assert_eq!(comparison.digest, None, "not all positions were given");
    }

    #[test]
    fn what_is_not_a_number_differs_and_hides_nothing() {
        let reference = reference(&[[0.0, 1.0, 2.0], [0.0, 1.0, f32::NAN]]);
        let mut tally = Tally::new(&reference);
        tally.add(0, &[0.0, f32::NAN, 2.0]);
        tally.add(1, &[0.0, 1.0, f32::NAN]);
        let comparison = tally.finish([1; 32]);
        assert_eq!((comparison.not_finite, comparison.largest, comparison.same_bits), (1, 0.0, false));
    }

    #[test]
    fn a_zero_of_the_other_sign_is_other_bits_and_no_difference() {
        let reference = reference(&[[0.0, 1.0, 2.0]]);
        let mut tally = Tally::new(&reference);
        tally.add(0, &[-0.0, 1.0, 2.0]);
        let comparison = tally.finish([1; 32]);
        assert_eq!((comparison.largest, comparison.same_bits), (0.0, false));
    }

    #[test]
    fn a_sample_holds_what_follows_the_prompt_and_the_prompt_s_end() {
        let held = |total, decoded, rows| {
            let wanted = sample(total, decoded, rows);
            wanted.iter().enumerate().filter(|(_, wanted)| **wanted).map(|(at, _)| at).collect::<Vec<_>>()
        };
        assert_eq!(held(10, 3, 100), (0..10).collect::<Vec<_>>());
        assert_eq!(held(10, 3, 5), [2, 6, 7, 8, 9]);
        assert_eq!(held(10, 3, 2), [8, 9]);
        assert_eq!(held(10, 3, 0), [0; 0]);
    }

    #[test]
    fn the_likeliest_is_the_first_of_the_highest() {
        assert_eq!(Top::of(&[1.0, 3.0, 3.0]), Top { token: 1, margin: 0.0 });
        assert_eq!(Top::of(&[f32::NAN, 3.0, 1.0]), Top { token: 1, margin: 2.0 });
        assert_eq!(Top::of(&[5.0]), Top { token: 0, margin: 0.0 });
    }
}
