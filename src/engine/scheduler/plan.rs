//! What a step computes: a token of everything that decodes, and chunks of prefills as far as the step's budget of tokens goes.

use std::ops::Range;

use super::Scheduler;
use super::forward::Work;
use crate::device::Executor;
use crate::engine::clock::Clock;
use crate::engine::emitter::Emitter;
use crate::engine::sequence::{Sequence, Stage};
use crate::event::ShrunkChunk;
use crate::prefill;

/// Tokens that the prefills of a step may have.
struct Allowance {
    /// `None` without a budget: then one chunk of one prefill.
    left: Option<usize>,
    chunks: usize,
}

impl Allowance {
    /// What a budget of `step_tokens` leaves for prefills beside `decoding` tokens.
    fn beside(step_tokens: Option<usize>, decoding: usize) -> Allowance {
        Allowance { left: step_tokens.map(|tokens| tokens.saturating_sub(decoding)), chunks: 0 }
    }

    /// Tokens that the next chunk may have; `None` where there is to be none. The first has at least one: however much decodes, the oldest prefill
    /// goes on.
    fn next(&self, chunk_tokens: usize) -> Option<usize> {
        match (self.left, self.chunks) {
            (None, 0) => Some(chunk_tokens),
            (None, _) => None,
            (Some(left), 0) => Some(chunk_tokens.min(left).max(1)),
            (Some(left), _) => Some(chunk_tokens.min(left)).filter(|tokens| *tokens > 0),
        }
    }

    fn spend(&mut self, tokens: usize) {
        self.left = self.left.map(|left| left.saturating_sub(tokens));
        self.chunks += 1;
    }
}

impl Scheduler<'_> {
    /// Has those decode that had to compute anew what they had computed before, and have.
    pub(super) fn go_on_decoding(&mut self, clock: &mut Clock, out: &mut Emitter) {
        for sequence in &mut self.running {
            let computed_again = sequence.stage == Stage::Prefilling
                && !sequence.output().is_empty()
                && sequence.computed >= sequence.prefill_end();
            if computed_again && !sequence.is_priming() {
                sequence.start_drafting(clock, out);
                sequence.stage = Stage::Decoding;
            }
        }
    }

    /// The spans of the next forward, in the order in which their sequences were admitted.
    pub(super) fn plan_forward(&mut self) -> Vec<Work> {
        let decoding = self.running.iter().enumerate().filter(|(_, s)| s.stage == Stage::Decoding);
        let mut work: Vec<Work> = decoding.map(|(index, sequence)| Work::decoding(index, sequence)).collect();
        let tokens = work.iter().map(Work::tokens).sum();
        let mut allowance = Allowance::beside(self.config.step_tokens, tokens);
        for (index, sequence) in self.running.iter_mut().enumerate() {
            if sequence.stage != Stage::Prefilling || sequence.is_priming() {
                continue;
            }
            let Some(most) = allowance.next(self.config.chunk_tokens) else { break };
            let (chunk, shrunk) = plan_chunk(sequence, most, &*self.executor);
            allowance.spend(chunk.len());
            work.push(Work::prefilling(index, sequence, chunk, shrunk));
        }
        work.sort_by_key(|w| w.sequence);
        work
    }
}

/// The next chunk of a prefill, as far as there is memory for it, and what memory made of it.
fn plan_chunk(
    sequence: &mut Sequence<'_>,
    chunk_tokens: usize,
    executor: &dyn Executor,
) -> (Range<usize>, Option<ShrunkChunk>) {
    let start = sequence.computed;
    let stop = sequence.recurrent.as_ref().and_then(|state| state.next_stop(start));
    // What is computed densely and what sparsely do not share a chunk.
    let turn = Some(sequence.dense_places()).filter(|turn| start < *turn && *turn < sequence.prompt_places());
    // Nor do what is computed again and what is new: only the latter is told.
    let again = Some(sequence.reached()).filter(|reached| start < *reached);
    let stop = stop.into_iter().chain(turn).chain(again).min();
    let wanted = prefill::chunk(start, sequence.prefill_end(), chunk_tokens, stop);
    let wanted_tokens = wanted.len();
    let chunk = prefill::admitted(wanted, executor.admits(start, wanted_tokens));
    if chunk.len() == wanted_tokens {
        return (chunk, None);
    }
    let shrunk = ShrunkChunk { wanted: wanted_tokens as u64, admitted: chunk.len() as u64 };
    note_shrunk(sequence, shrunk);
    (chunk, Some(shrunk))
}

/// Says in the log that a chunk of the sequence shrinks, once.
pub(super) fn note_shrunk(sequence: &mut Sequence<'_>, ShrunkChunk { wanted, admitted }: ShrunkChunk) {
    if !std::mem::replace(&mut sequence.shrunk, true) {
        let (request, start) = (sequence.request.0, sequence.computed);
        tracing::warn!(
            request,
            start,
            wanted,
            admitted,
            "a prefill chunk shrinks to fit in memory; later ones of the request may too"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens of the chunks of so many prefills, all of them long.
    fn chunks(
        step_tokens: Option<usize>,
        decoding: usize,
        chunk_tokens: usize,
        prefills: usize,
    ) -> Vec<usize> {
        let mut allowance = Allowance::beside(step_tokens, decoding);
        let mut chunks = Vec::new();
        while let Some(tokens) = allowance.next(chunk_tokens).filter(|_| chunks.len() < prefills) {
            allowance.spend(tokens);
            chunks.push(tokens);
        }
        chunks
    }

    #[test]
    fn without_a_budget_a_step_has_one_chunk() {
        assert_eq!(chunks(None, 0, 100, 3), [100]);
        assert_eq!(chunks(None, 1_000, 100, 3), [100]);
    }

    #[test]
    fn prefills_share_what_decoding_leaves_of_the_budget_oldest_first() {
        assert_eq!(chunks(Some(250), 0, 100, 3), [100, 100, 50]);
        assert_eq!(chunks(Some(250), 0, 100, 2), [100, 100]);
        assert_eq!(chunks(Some(250), 120, 100, 3), [100, 30]);
        assert_eq!(chunks(Some(50), 10, 100, 3), [40]);
    }

    #[test]
    fn a_budget_that_decoding_has_used_up_leaves_the_oldest_prefill_a_token() {
        assert_eq!(chunks(Some(16), 16, 100, 3), [1]);
        assert_eq!(chunks(Some(16), 40, 100, 3), [1]);
    }
}
