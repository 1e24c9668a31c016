//! The best depths for somebody who knows what is accepted where.

use super::{CycleCosts, Tape};
use crate::config::SpeculationConfig;

/// The depth at each place with which the rest of the reply takes least time; the least of equals.
pub(super) fn depths(tape: &Tape, costs: &CycleCosts) -> Vec<u32> {
    let places = tape.places().len();
    let mut depths = vec![0; places];
    // What the reply takes from a place on.
    let mut rest = vec![0.0; places + 1];
    for place in (0..places).rev() {
        let mut best = f64::INFINITY;
        for depth in 0..=SpeculationConfig::MAX_DEPTH {
            let (drafted, accepted) = tape.outcome(place, depth);
            let next = (place + accepted as usize + 1).min(places);
            let time = costs.cycle(drafted) + rest[next];
            if time < best {
                (best, depths[place]) = (time, depth);
            }
        }
        rest[place] = best;
    }
    depths
}
