//! A recovery job: what it recovers, how far it has come, and how that ends.
//!
//! A job is named by the tokens of a prompt alone: what was generated after it may be rendered differently the next time. Its *target* is the last whole
//! block of that prompt, all of it: unlike a request, which computes its last token in any case to have logits, a job holds none back. Between the two lie
//! two counts. *Committed* tokens are published: stored, and found again by the lookup that serves requests. The count rises by a publication only, and
//! may be lowered when the cache turns out to hold less, to whole blocks. *Processed* tokens are computed in live state on top of that.
//!
//! There is one job an engine, in a [`Place`]. A longer prompt of the same history extends it; another history replaces it. Nothing queues: the debt of
//! a history that nobody goes on with need not be paid.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::standing::Why;
use crate::cache::served::common_prefix;
use crate::event::{Nanos, RequestId, Route};

/// When a job publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// At every block boundary.
    Progressive,
    /// All at once, when all is computed.
    Terminal,
}

/// A request that has ended, as a candidate for recovery.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The request.
    pub request: RequestId,
    /// Its prompt, without the reply.
    pub prompt: Arc<[u32]>,
    /// How its suffix was computed.
    pub route: Route,
    /// Leading tokens of the prompt that are restorable now.
    pub canonical: u64,
}

/// Why a request's debt is not taken on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Declined {
    /// Its suffix was computed densely, or not at all: what it stored is all there is.
    NotSparse,
    /// The budget allows nothing.
    NoBudget,
    /// All whole blocks of its prompt are restorable.
    NothingOwed,
    /// The model's state cannot be restored from the cache: recurrent state is captured nowhere.
    Unrestorable,
}

impl Declined {
    /// In words, for a line of its own.
    pub fn words(self) -> &'static str {
        match self {
            Declined::NotSparse => "nothing of it was computed sparsely",
            Declined::NoBudget => "the budget allows nothing",
            Declined::NothingOwed => "all of it is restorable",
            Declined::Unrestorable => "recurrent state is captured nowhere, so nothing could be restored",
        }
    }
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Everything up to the target is published.
    Complete,
    /// Everything up to the target is restorable, by what others stored meanwhile.
    NothingLeft,
    /// The cache did not take what was computed.
    StoreFailed,
    /// The lookup that serves requests does not find all of what was stored.
    ReadBackShort,
    /// The cache lost its state, or another one serves.
    CacheReset,
    /// The device has no memory for it.
    OutOfMemory,
    /// The device failed.
    DeviceFailed,
    /// A request of another history took its place.
    Replaced,
    /// Recovery was switched off, or the engine ends.
    Cancelled,
}

impl End {
    /// In words, for a line of its own.
    pub fn words(self) -> &'static str {
        match self {
            End::Complete => "complete",
            End::NothingLeft => "others published what was left",
            End::StoreFailed => "the cache did not take it",
            End::ReadBackShort => "what was stored is not found again",
            End::CacheReset => "the cache lost its state",
            End::OutOfMemory => "out of memory",
            End::DeviceFailed => "the device failed",
            End::Replaced => "another history took its place",
            End::Cancelled => "cancelled",
        }
    }
}

/// What a job has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Slices that ran.
    pub slices: u64,
    /// Publications that counted.
    pub publications: u64,
    /// Tokens computed, again or for the first time.
    pub computed: u64,
    /// Of these, tokens that had been computed in live state that was given up.
    pub computed_again: u64,
    /// Times that live state was given up.
    pub retired: u64,
    /// Compute time.
    pub service: Nanos,
}

/// A job.
#[derive(Debug, Clone)]
pub struct Job {
    request: RequestId,
    prompt: Arc<[u32]>,
    mode: Mode,
    block_tokens: u64,
    target: u64,
    committed: u64,
    /// Tokens that live state stands after; `None` where there is none.
    live: Option<u64>,
    /// Tokens after which live state has ever stood, since the last publication.
    reached: u64,
    tally: Tally,
}

impl Job {
    /// A job for what `candidate` owes.
    ///
    /// # Errors
    /// Why there is nothing to do.
    pub fn of(candidate: &Candidate, mode: Mode, block_tokens: u64, budget: bool) -> Result<Job, Declined> {
        let target = whole_blocks(candidate.prompt.len() as u64, block_tokens);
        let committed = whole_blocks(candidate.canonical.min(target), block_tokens);
        match () {
            () if candidate.route != Route::Sparse => Err(Declined::NotSparse),
            () if !budget => Err(Declined::NoBudget),
            () if committed >= target => Err(Declined::NothingOwed),
            () => Ok(Job {
                request: candidate.request,
                prompt: Arc::clone(&candidate.prompt),
                mode,
                block_tokens,
                target,
                committed,
                live: None,
                reached: committed,
                tally: Tally::default(),
            }),
        }
    }

    /// The request whose debt it pays.
    pub fn request(&self) -> RequestId {
        self.request
    }

    /// The tokens it recovers.
    pub fn tokens(&self) -> &[u32] {
        &self.prompt[..self.target as usize]
    }

    /// Tokens it is to recover: the whole blocks of the prompt.
    pub fn target(&self) -> u64 {
        self.target
    }

    /// Tokens that are published.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// Tokens that are published or stand in live state.
    pub fn processed(&self) -> u64 {
        self.live.unwrap_or(self.committed)
    }

    /// Whether it holds live state.
    pub fn is_live(&self) -> bool {
        self.live.is_some()
    }

    /// Tokens it has yet to publish.
    pub fn owes(&self) -> u64 {
        self.target.saturating_sub(self.committed)
    }

    /// Tokens of the prompt whose debt it pays, those behind the target too.
    pub fn prompt(&self) -> &Arc<[u32]> {
        &self.prompt
    }

    /// Whether everything is published.
    pub fn is_complete(&self) -> bool {
        self.committed >= self.target
    }

    /// What it has done so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Takes note of what the cache restores, of a prompt whose model has a cache that can be restored at all: `None` where it cannot say. Less than
    /// is committed lowers that; more does not raise it.
    pub fn ground(&mut self, restorable: Option<u64>) {
        let Some(restorable) = restorable else { return };
        let ground = whole_blocks(restorable, self.block_tokens);
        if ground < self.committed {
            self.committed = ground;
            self.reached = self.reached.max(ground);
        }
    }

    /// Live state was built from what the cache restored, which is taken as [`Job::ground`].
    pub fn build(&mut self, restored: u64) {
        self.ground(Some(restored));
        self.live = Some(whole_blocks(restored, self.block_tokens).min(self.target));
    }

    /// The next slice: at most `slice_tokens`, up to the next block boundary, within the target. `None` where nothing is left, or nothing is live.
    pub fn next_slice(&self, slice_tokens: u64) -> Option<Range<u64>> {
        let at = self.live.filter(|at| *at < self.target)?;
        let edge = whole_blocks(at, self.block_tokens) + self.block_tokens;
        Some(at..edge.min(at + slice_tokens.max(1)).min(self.target))
    }

    /// A slice was computed up to `end`, in `took`. One that was interrupted between two layers took time and computed nothing: its `end` is where it
    /// began.
    pub fn computed(&mut self, end: u64, took: Nanos) {
        let Some(at) = self.live else { return };
        let end = end.clamp(at, self.target);
        self.tally.slices += 1;
        self.tally.service.0 += took.0;
        self.tally.computed += end - at;
        self.tally.computed_again += end.min(self.reached).saturating_sub(at);
        self.reached = self.reached.max(end);
        self.live = Some(end);
    }

    /// The boundary that is to be published now. `None` where live state stands at none that is due.
    pub fn due(&self) -> Option<u64> {
        let at = self.live.filter(|at| *at > self.committed)?;
        let due = match self.mode {
            Mode::Progressive => at.is_multiple_of(self.block_tokens.max(1)),
            Mode::Terminal => at == self.target,
        };
        due.then_some(at)
    }

    /// What became of publishing `boundary`: tokens of it that the store says it holds, and tokens that the serving lookup found afterwards. Only
    /// where both reach the boundary is it committed.
    ///
    /// # Errors
    /// How the job ends, for it does.
    pub fn published(&mut self, boundary: u64, stored: u64, read_back: u64) -> Result<(), End> {
        if self.due() != Some(boundary) || stored < boundary {
            return Err(End::StoreFailed);
        }
        if read_back < boundary {
            return Err(End::ReadBackShort);
        }
        self.committed = boundary;
        self.reached = self.reached.max(boundary);
        self.tally.publications += 1;
        Ok(())
    }

    /// Live state is given up, for a reason of the list of [`Why::retires`]. Less than a block is lost by it where every block is published.
    pub fn retire(&mut self, why: Why) {
        debug_assert!(why.retires(), "{why:?} lets nothing go");
        if self.live.take().is_some() {
            self.tally.retired += 1;
        }
    }

    /// Whether `prompt` goes on with the history that the job recovers: it begins with all of the job's prompt.
    fn is_history_of(&self, prompt: &[u32]) -> bool {
        common_prefix(&self.prompt, prompt) == self.prompt.len()
    }

    /// Whether the job recovers all whole blocks of `prompt`, and more.
    fn covers(&self, prompt: &[u32]) -> bool {
        common_prefix(&self.prompt, prompt) as u64 >= whole_blocks(prompt.len() as u64, self.block_tokens)
    }
}

/// What became of a candidate.
#[derive(Debug)]
pub enum Taken {
    /// Nothing: why.
    Declined(Declined),
    /// A job began.
    Began,
    /// The job goes on to a later target.
    Extended {
        /// Its target before.
        from: u64,
    },
    /// Nothing: the job recovers all of it already.
    Covered,
    /// A job began in place of this one.
    Replaced(Box<Job>),
}

/// The one place for a job that an engine has.
#[derive(Debug, Default)]
pub struct Place {
    job: Option<Job>,
}

impl Place {
    /// The job in it.
    pub fn job(&self) -> Option<&Job> {
        self.job.as_ref()
    }

    /// The job in it.
    pub fn job_mut(&mut self) -> Option<&mut Job> {
        self.job.as_mut()
    }

    /// Whether there is a job with something left to do.
    pub fn is_runnable(&self) -> bool {
        self.job.as_ref().is_some_and(|job| !job.is_complete())
    }

    /// The job under way that `candidate`'s would replace: one of another history, with something left to do.
    pub fn rival(&self, candidate: &Candidate) -> Option<&Job> {
        let job = self.job.as_ref().filter(|job| !job.is_complete())?;
        (!job.is_history_of(&candidate.prompt) && !job.covers(&candidate.prompt)).then_some(job)
    }

    /// Takes a request's debt on, where it owes any. A job of the same history goes on, with its live state; one of another makes room, complete or not.
    pub fn take(&mut self, candidate: &Candidate, mode: Mode, block_tokens: u64, budget: bool) -> Taken {
        let new = match Job::of(candidate, mode, block_tokens, budget) {
            Ok(new) => new,
            Err(why) => return Taken::Declined(why),
        };
        match self.job.take() {
            Some(mut job) if job.is_history_of(&candidate.prompt) && job.mode == mode => {
                let from = job.target;
                // What others published meanwhile is not the job's to count: its own restore finds it.
                job.ground(Some(candidate.canonical));
                (job.request, job.prompt, job.target) = (new.request, new.prompt, new.target);
                self.job = Some(job);
                Taken::Extended { from }
            }
            Some(job) if job.mode == mode && job.covers(&candidate.prompt) => {
                self.job = Some(job);
                Taken::Covered
            }
            Some(old) => {
                self.job = Some(new);
                Taken::Replaced(Box::new(old))
            }
            None => {
                self.job = Some(new);
                Taken::Began
            }
        }
    }

    /// Ends the job, whatever it has come to.
    pub fn end(&mut self) -> Option<Job> {
        self.job.take()
    }
}

/// The whole blocks of `tokens`.
fn whole_blocks(tokens: u64, block_tokens: u64) -> u64 {
    let block = block_tokens.max(1);
    tokens / block * block
}

#[cfg(test)]
mod tests;
