//! A row of logits, and what is greatest in it.

/// Numbers compared at once: in lanes of their own, so that the compiler can. Every row of every forward goes through here.
const LANES: usize = 16;

/// A row of logits, one for every token of the vocabulary. A logit that is not a number counts as minus infinity.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The logits.
    pub logits: &'a [f32],
    /// The greatest two, the same number twice where two are equal; minus infinity where there are not so many.
    top: [f32; 2],
}

/// The greatest two of what each lane has seen.
#[derive(Clone, Copy)]
struct Lanes {
    first: [f32; LANES],
    second: [f32; LANES],
}

impl<'a> Row<'a> {
    /// Of these logits.
    pub fn of(logits: &'a [f32]) -> Row<'a> {
        let (chunks, rest) = logits.as_chunks::<LANES>();
        let mut lanes = Lanes { first: [f32::NEG_INFINITY; LANES], second: [f32::NEG_INFINITY; LANES] };
        for chunk in chunks {
            lanes.see(chunk);
        }
        let mut last = [f32::NEG_INFINITY; LANES];
        last[..rest.len()].copy_from_slice(rest);
        lanes.see(&last);
        Row { logits, top: lanes.top() }
    }

    /// The greatest logit.
    pub fn peak(&self) -> f32 {
        self.top[0]
    }

    /// By how much the greatest logit exceeds the next one; infinite where there is no other.
    pub fn margin(&self) -> f32 {
        self.top[0] - self.top[1]
    }

    /// The first token whose logit is the greatest; 0 when there is none above minus infinity.
    pub fn likeliest(&self) -> usize {
        let (logits, peak) = (self.logits, self.peak());
        if peak == f32::NEG_INFINITY {
            return 0;
        }
        let (chunks, _) = logits.as_chunks::<LANES>();
        let holds = |chunk: &[f32; LANES]| chunk.iter().fold(false, |holds, logit| holds | (*logit == peak));
        let first = chunks.iter().position(holds).unwrap_or(chunks.len()) * LANES;
        logits[first..].iter().position(|logit| *logit == peak).map_or(0, |offset| first + offset)
    }
}

impl Lanes {
    /// Takes a number a lane. Comparisons with what is not a number are false, and leave it out.
    #[inline(always)]
    fn see(&mut self, numbers: &[f32; LANES]) {
        for ((first, second), number) in self.first.iter_mut().zip(&mut self.second).zip(numbers) {
            let lesser = if *number > *first { *first } else { *number };
            *second = if lesser > *second { lesser } else { *second };
            *first = if *number > *first { *number } else { *first };
        }
    }

    /// The greatest two of all lanes: a halving tree without a branch, since which lane holds them cannot be foreseen.
    fn top(mut self) -> [f32; 2] {
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                let (a, b) = (self.first[i], self.first[i + width]);
                let (greater, lesser) = if b > a { (b, a) } else { (a, b) };
                let others = (self.second[i], self.second[i + width]);
                let other = if others.1 > others.0 { others.1 } else { others.0 };
                self.first[i] = greater;
                self.second[i] = if lesser > other { lesser } else { other };
            }
            width /= 2;
        }
        [self.first[0], self.second[0]]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn margin(logits: &[f32]) -> f32 {
        Row::of(logits).margin()
    }

    #[test]
    fn the_margin_is_between_the_two_greatest() {
        assert_eq!(margin(&[1.0, 5.0, 3.5, -2.0]), 1.5);
        assert_eq!(margin(&[2.0, 2.0]), 0.0);
        assert_eq!(margin(&[2.0]), f32::INFINITY);
    }

    #[test]
    fn the_likeliest_is_the_first_of_the_greatest_and_the_first_of_all_where_there_is_none() {
        let likeliest = |logits: &[f32]| Row::of(logits).likeliest();
        assert_eq!(likeliest(&[f32::NAN, 1.0, 3.0, 3.0]), 2);
        assert_eq!(likeliest(&[f32::NEG_INFINITY, f32::NAN]), 0);
        assert_eq!(likeliest(&[f32::NAN, 1.0, f32::INFINITY, f32::INFINITY]), 2);
    }

    proptest! {
        /// However long the row is, wherever the greatest are and whatever is no number.
        #[test]
        fn a_row_tells_what_looking_at_one_number_after_another_would(
            logits in prop::collection::vec(
                prop_oneof![8 => (-3_i8..4).prop_map(f32::from), 1 => Just(f32::NAN), 1 => Just(f32::NEG_INFINITY)],
                1..120,
            ),
        ) {
            let row = Row::of(&logits);
            let mut sorted: Vec<f32> =
                logits.iter().copied().filter(|logit| *logit > f32::NEG_INFINITY).collect();
            sorted.sort_by(|a, b| b.total_cmp(a));
            let [peak, next] = [0, 1].map(|place| sorted.get(place).copied().unwrap_or(f32::NEG_INFINITY));
            prop_assert_eq!(row.peak(), peak);
            prop_assert_eq!(row.margin().to_bits(), (peak - next).to_bits());
            let first = logits.iter().position(|logit| *logit == peak && peak > f32::NEG_INFINITY);
            prop_assert_eq!(row.likeliest(), first.unwrap_or(0));
        }
    }
}
