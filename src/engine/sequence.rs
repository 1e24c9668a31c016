//! One request on its way through the engine.

use crate::cache::pool::PageRef;
use std::borrow::Cow;
use std::ops::Range;

use super::scheduler::Speculating;
use crate::cache::recurrent::RecurrentState;
use crate::cache::served::Predecessor;
use crate::config::{SparseOverride, SpeculationOverride};
use crate::decode::draft::HeadEntries;
use crate::decode::{Sampler, Sampling};
use crate::event::{
    FinishReason, HistoryChange, LaneId, Nanos, RequestId, SegmentRun, Source, Stamp, TierStored,
    TranscriptItem,
};
use crate::model::text::TextStream;
use crate::prefill::scorer::Scoring;
use crate::prefill::sparse::Admission;
use crate::recovery::arrivals::Announced;
use crate::recovery::job::Mode;

/// A request as it is handed to the scheduler.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The lane it belongs to.
    pub lane: LaneId,
    /// Turn number in the lane, from 1.
    pub turn: u32,
    /// Its name.
    pub name: String,
    /// Why it exists.
    pub source: Source,
    /// How its history relates to its predecessor's.
    pub change: HistoryChange,
    /// The idle gap that came before it.
    pub idle: Nanos,
    /// The prompt; at least one token.
    pub prompt: Vec<u32>,
    /// The prompt's segments.
    pub segments: Vec<SegmentRun>,
    /// What it adds to the transcript.
    pub items: Vec<TranscriptItem>,
    /// Reply tokens allowed.
    pub max_output_tokens: u64,
    /// How reply tokens are chosen.
    pub sampling: Sampling,
    /// Whether the prefix cache is read and written.
    pub use_cache: bool,
    /// What it says about sparse prefill.
    pub specprefill: SparseOverride,
    /// What it says about speculative decoding.
    pub speculation: SpeculationOverride,
    /// The transport it came by.
    pub transport: Option<String>,
    /// Tokens of the protected prefix: those that cannot depend on the conversation.
    pub protected_tokens: usize,
    /// Where this is no request but a recovery job's: when that publishes.
    pub recovers: Option<Mode>,
    /// The request before it in its lane's history.
    pub predecessor: Option<std::sync::Arc<Predecessor>>,
}

impl Submission {
    /// A prompt about which nothing more is known: the first of its history, greedy, with the cache.
    pub(super) fn of(lane: LaneId, prompt: Vec<u32>, max_output_tokens: u64) -> Submission {
        Submission {
            lane,
            turn: 1,
            name: String::new(),
            source: Source::Replay,
            change: HistoryChange::First,
            idle: Nanos(0),
            prompt,
            segments: Vec::new(),
            items: Vec::new(),
            max_output_tokens,
            sampling: Sampling::default(),
            use_cache: true,
            specprefill: SparseOverride::default(),
            speculation: SpeculationOverride::default(),
            transport: None,
            protected_tokens: 0,
            recovers: None,
            predecessor: None,
        }
    }
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// The request.
    pub request: RequestId,
    /// The lane.
    pub lane: LaneId,
    /// Its reply; what there was of it when it was cancelled or failed.
    pub text: String,
    /// What the next request of the lane is compared with. `None` when nothing was computed.
    pub served: Option<std::sync::Arc<Predecessor>>,
}

/// Where a sequence stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Queued,
    /// A scorer reads the suffix.
    Scoring,
    Prefilling,
    Decoding,
    /// The reply is complete; blocks remain to be stored.
    Storing(FinishReason),
}

/// A scoring under way, or one that waits.
#[derive(Debug)]
pub(super) struct UnderScoring {
    /// `None` until the scorer gets to it.
    pub(super) scoring: Option<Scoring>,
    /// The admission it follows, and the fraction of the scored units that will be computed.
    pub(super) admitted: (Admission, f64),
}

/// Which tokens of a prompt are computed.
///
/// A token's *place* in the pages is the number of tokens computed before it. It is also its position as long as none was skipped.
#[derive(Debug)]
pub(super) enum Course {
    /// All: place and position are the same.
    Dense,
    /// Some.
    Sparse {
        /// The position of every place of the prompt, ascending.
        positions: Vec<u32>,
        /// Places before the first skipped token.
        dense: usize,
        /// Whether blocks before the first skipped token are stored.
        stores: bool,
    },
}

/// A sequence: a request with its state.
pub(super) struct Sequence<'a> {
    pub(super) request: RequestId,
    pub(super) arrived_at: Stamp,
    pub(super) stage: Stage,
    /// Prompt, then reply.
    pub(super) tokens: Vec<u32>,
    /// Which tokens of the prompt are computed; settled before the first is.
    pub(super) course: Course,
    /// The scoring under way.
    pub(super) scoring: Option<UnderScoring>,
    /// Places in the pages whose state exists.
    pub(super) computed: usize,
    /// Leading tokens that were restored rather than computed.
    pub(super) restored: usize,
    pub(super) pages: Vec<PageRef>,
    /// `None` before admission, and for a model without recurrent layers.
    pub(super) recurrent: Option<RecurrentState>,
    pub(super) sampler: Sampler,
    pub(super) stream: TextStream<'a>,
    pub(super) text: String,
    pub(super) prefill: Nanos,
    pub(super) decode: Nanos,
    /// Forwards of its decoding that other sequences shared.
    pub(super) shared_forwards: u64,
    /// Blocks evicted to make room for this request.
    pub(super) evicted_blocks: u64,
    /// Snapshots dropped to make room for this request, with their blocks or without.
    pub(super) dropped_snapshots: u64,
    /// Whether a chunk of it was shrunk for want of memory.
    pub(super) shrunk: bool,
    /// What drafts; `None` where nothing does.
    pub(super) speculating: Option<Box<Speculating>>,
    /// The prediction head's entries; `None` where no head is loaded.
    pub(super) head: Option<HeadEntries>,
    /// Tokens the head read with the prompt, and the time that took.
    pub(super) head_priming: (u64, Nanos),
    /// Its presence in the process; `None` for a recovery job, which is nobody's arrival.
    pub(super) announced: Option<Announced>,
    /// What was of it when it was preempted.
    pub(super) earlier: Earlier,
    /// What it waits for at the head of the queue; `None` where it is only its turn.
    pub(super) waits: Option<WaitsForRoom>,
    /// Where it stood when it was resumed: places computed and tokens of the reply.
    pub(super) resumed_at: Option<(usize, usize)>,
    pub(super) submission: Submission,
}

impl<'a> Sequence<'a> {
    /// A sequence of which nothing is computed.
    pub(super) fn new(
        request: RequestId,
        arrived_at: Stamp,
        submission: Submission,
        stream: TextStream<'a>,
    ) -> Sequence<'a> {
        Sequence {
            request,
            arrived_at,
            stage: Stage::Queued,
            tokens: submission.prompt.clone(),
            course: Course::Dense,
            scoring: None,
            computed: 0,
            restored: 0,
            pages: Vec::new(),
            recurrent: None,
            sampler: Sampler::new(submission.sampling),
            stream,
            text: String::new(),
            prefill: Nanos(0),
            decode: Nanos(0),
            shared_forwards: 0,
            evicted_blocks: 0,
            dropped_snapshots: 0,
            shrunk: false,
            speculating: None,
            head: None,
            head_priming: (0, Nanos(0)),
            announced: None,
            earlier: Earlier::default(),
            waits: None,
            resumed_at: None,
            submission,
        }
    }
}

/// What was of a sequence each time that it was preempted.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    /// How often it was.
    pub(super) preemptions: u32,
    /// Places that had been computed by then, at most.
    pub(super) reached: usize,
    /// Whether something drafted for it.
    pub(super) drafts: bool,
    /// Snapshots it left in the cache.
    pub(super) snapshots: u64,
    /// Boundaries that were to be captured and were not.
    pub(super) not_taken: u64,
    /// What it left in the SSD tier.
    pub(super) tier: Option<TierStored>,
}

/// What a sequence waits for that there was no room for.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitsForRoom {
    /// Whether nothing else may run: the device had no memory for its forward, and nobody knows how much it lacks.
    pub(super) alone: bool,
    /// How often state had been given back when there was last no room.
    pub(super) releases: u64,
}

impl Sequence<'_> {
    pub(super) fn prompt_tokens(&self) -> usize {
        self.submission.prompt.len()
    }

    pub(super) fn output(&self) -> &[u32] {
        &self.tokens[self.prompt_tokens()..]
    }

    /// Places the prompt takes.
    pub(super) fn prompt_places(&self) -> usize {
        match &self.course {
            Course::Dense => self.prompt_tokens(),
            Course::Sparse { positions, .. } => positions.len(),
        }
    }

    /// Places that prompt and reply take.
    pub(super) fn places(&self) -> usize {
        self.prompt_places() + self.output().len()
    }

    /// Places that are computed in chunks: the prompt's, and where it was preempted while it decoded also those of its reply, but for the last, which
    /// gives the next token.
    pub(super) fn prefill_end(&self) -> usize {
        if self.output().is_empty() { self.prompt_places() } else { self.places() - 1 }
    }

    /// Places that are computed, or were before it was preempted.
    pub(super) fn reached(&self) -> usize {
        self.computed.max(self.earlier.reached)
    }

    /// Whether it has yet to get anywhere since it was resumed, by at least a block of `block_tokens` tokens or a token of its reply.
    pub(super) fn is_protected(&self, block_tokens: usize) -> bool {
        self.resumed_at.is_some_and(|(computed, output)| {
            self.computed < computed + block_tokens && self.output().len() == output
        })
    }

    /// Leading tokens from which what was stored of it can be found again.
    pub(super) fn findable(&self) -> &[u32] {
        // The token behind the last whole block has it restored; whether it was computed is no matter.
        let end = self.last_storable().saturating_add(1).min(self.tokens.len());
        if self.last_storable() == 0 { &[] } else { &self.tokens[..end] }
    }

    /// Places before the first skipped token.
    pub(super) fn dense_places(&self) -> usize {
        match &self.course {
            Course::Dense => self.places(),
            Course::Sparse { dense, positions, .. } if *dense == positions.len() => self.places(),
            Course::Sparse { dense, .. } => *dense,
        }
    }

    /// The position of a place.
    fn position(&self, place: usize) -> usize {
        match &self.course {
            Course::Dense => place,
            Course::Sparse { positions, .. } => match positions.get(place) {
                Some(position) => *position as usize,
                None => self.prompt_tokens() + place - positions.len(),
            },
        }
    }

    /// The tokens at some places.
    pub(super) fn tokens_at(&self, places: Range<usize>) -> Cow<'_, [u32]> {
        match &self.course {
            Course::Dense => Cow::Borrowed(&self.tokens[places]),
            Course::Sparse { .. } => {
                Cow::Owned(places.map(|place| self.tokens[self.position(place)]).collect())
            }
        }
    }

    /// The positions of some places, where they are not the places themselves.
    pub(super) fn positions_at(&self, places: Range<usize>) -> Option<Vec<u32>> {
        match &self.course {
            Course::Dense => None,
            Course::Sparse { .. } if places.end <= self.dense_places() => None,
            Course::Sparse { .. } => Some(places.map(|place| self.position(place) as u32).collect()),
        }
    }

    /// The last position up to which anything may be stored, however far the sequence gets.
    pub(super) fn last_storable(&self) -> usize {
        match &self.course {
            Course::Sparse { stores: false, .. } => 0,
            Course::Sparse { dense, positions, .. } if *dense < positions.len() => *dense,
            _ => usize::MAX,
        }
    }

    /// Leading tokens whose blocks may be stored. Sparse state never is, nor anything computed after it.
    pub(super) fn storable(&self) -> usize {
        self.storable_of(self.computed)
    }

    /// The same if so many places were computed.
    pub(super) fn storable_of(&self, computed: usize) -> usize {
        match &self.course {
            Course::Dense => computed,
            // With everything kept there is nothing that a dense run would not have left.
            Course::Sparse { stores: true, .. } => computed.min(self.dense_places()),
            Course::Sparse { stores: false, .. } => 0,
        }
    }

    /// What a later request can be compared with: the tokens it read or skipped, as far as it came.
    pub(super) fn served(&self) -> Option<Predecessor> {
        let last = self.reached().checked_sub(1)?;
        let tokens = self.position(last) + 1;
        Some(Predecessor {
            request: self.request,
            tokens: self.tokens[..tokens].to_vec(),
            prompt_tokens: self.prompt_tokens().min(tokens),
            dense_tokens: self.storable_of(self.reached()).max(self.restored),
        })
    }
}
