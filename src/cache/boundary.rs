//! At which block boundaries a sequence's recurrent state is captured.

use crate::config::SnapshotPolicy;

/// The boundaries of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boundaries {
    /// Which of them are captured.
    pub policy: SnapshotPolicy,
    /// Tokens a block holds.
    pub block_tokens: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
}

impl Boundaries {
    /// Whether the state after `position` tokens is to be captured.
    pub fn captures(&self, position: usize) -> bool {
        let boundary = position > 0 && position.is_multiple_of(self.block_tokens);
        boundary
            && match self.policy {
                SnapshotPolicy::None => false,
                SnapshotPolicy::Every => true,
                SnapshotPolicy::Last => position == self.last_of_prompt() || self.in_reply(position),
            }
    }

    /// Whether a capture at the boundary `earlier` is worth nothing any more once `later` is captured: under `last`, only
    /// the last one of the reply is kept.
    pub fn supersedes(&self, later: usize, earlier: usize) -> bool {
        self.policy == SnapshotPolicy::Last && earlier < later && self.in_reply(earlier)
    }

    /// Whether, with room for one of them only, a capture at `later` is worth more than one at `earlier`. The next prompt may
    /// depart from the reply, so under `last` the prompt's own capture is worth most.
    pub fn replaces(&self, later: usize, earlier: usize) -> bool {
        earlier < later && (self.policy == SnapshotPolicy::Every || self.in_reply(earlier))
    }

    /// The next boundary of the prompt behind `position` that is to be captured: a prefill chunk must end there.
    pub fn next_in_prompt(&self, position: usize) -> Option<usize> {
        let next = match self.policy {
            SnapshotPolicy::None => return None,
            SnapshotPolicy::Every => (position / self.block_tokens + 1) * self.block_tokens,
            SnapshotPolicy::Last => self.last_of_prompt(),
        };
        (next > position && next < self.prompt_tokens).then_some(next)
    }

    /// The prompt's last boundary from which its last token can still be computed.
    fn last_of_prompt(&self) -> usize {
        self.prompt_tokens.saturating_sub(1) / self.block_tokens * self.block_tokens
    }

    fn in_reply(&self, position: usize) -> bool {
        position >= self.prompt_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(policy: SnapshotPolicy, prompt_tokens: usize) -> Vec<usize> {
        let boundaries = Boundaries { policy, block_tokens: 4, prompt_tokens };
        (0..22).filter(|position| boundaries.captures(*position)).collect()
    }

    #[test]
    fn a_policy_chooses_boundaries() {
        assert_eq!(captured(SnapshotPolicy::Every, 10), [4, 8, 12, 16, 20]);
        assert_eq!(captured(SnapshotPolicy::Last, 10), [8, 12, 16, 20]);
        assert_eq!(captured(SnapshotPolicy::Last, 12), [8, 12, 16, 20], "a full prompt ends a block");
        assert_eq!(captured(SnapshotPolicy::Last, 3), [4, 8, 12, 16, 20]);
        assert_eq!(captured(SnapshotPolicy::None, 10), [0; 0]);
    }

    #[test]
    fn of_a_reply_only_the_last_capture_is_kept_under_last() {
        let last = Boundaries { policy: SnapshotPolicy::Last, block_tokens: 4, prompt_tokens: 10 };
        assert!(last.supersedes(16, 12) && !last.supersedes(16, 8));
        assert!(!Boundaries { policy: SnapshotPolicy::Every, ..last }.supersedes(16, 12));
    }

    #[test]
    fn chunks_end_where_something_is_captured() {
        for policy in [SnapshotPolicy::Every, SnapshotPolicy::Last, SnapshotPolicy::None] {
            for prompt_tokens in 1..20 {
                let boundaries = Boundaries { policy, block_tokens: 4, prompt_tokens };
                let mut position = 0;
                let mut stops = Vec::new();
                while let Some(next) = boundaries.next_in_prompt(position) {
                    stops.push(next);
                    position = next;
                }
                let wanted: Vec<_> = (1..prompt_tokens).filter(|p| boundaries.captures(*p)).collect();
                assert_eq!(stops, wanted, "{boundaries:?}");
            }
        }
    }
}
