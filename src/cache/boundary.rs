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
    /// The last boundary that the prompt shares with an earlier sequence which goes on differently; `None` where there is no such
    /// sequence.
    pub branch: Option<usize>,
    /// First and last position that may be captured at all: state behind a skipped token must not be, and a scorer's is captured once.
    pub within: (usize, usize),
}

impl Boundaries {
    /// Any position may be captured.
    pub const ANYWHERE: (usize, usize) = (0, usize::MAX);

    /// Whether the state after `position` tokens is to be captured.
    pub fn captures(&self, position: usize) -> bool {
        let boundary = position > 0 && position.is_multiple_of(self.block_tokens) && self.allows(position);
        let last = || position == self.last_of_prompt() || self.in_reply(position);
        boundary
            && match self.policy {
                SnapshotPolicy::None => false,
                SnapshotPolicy::Every(_) => position.is_multiple_of(self.stride()),
                SnapshotPolicy::Last => last(),
                SnapshotPolicy::Branch => self.is_branch(position) || last(),
            }
    }

    /// Whether a capture at the boundary `earlier` is worth nothing any more once `later` is captured: of a reply `last` keeps the last
    /// one only, and `branch` does of the whole sequence, but for the branch point.
    pub fn supersedes(&self, later: usize, earlier: usize) -> bool {
        earlier < later
            && match self.policy {
                SnapshotPolicy::Every(_) | SnapshotPolicy::None => false,
                SnapshotPolicy::Last => self.in_reply(earlier),
                SnapshotPolicy::Branch => !self.is_branch(earlier),
            }
    }

    /// Whether, with room for one of them only, a capture at `later` is worth more than one at `earlier`. The next prompt may
    /// depart from the reply, so under `last` the prompt's own capture is worth most, and under `branch` the branch point's.
    pub fn replaces(&self, later: usize, earlier: usize) -> bool {
        earlier < later
            && match self.policy {
                SnapshotPolicy::Every(_) => true,
                SnapshotPolicy::Last | SnapshotPolicy::None => self.in_reply(earlier),
                SnapshotPolicy::Branch => !self.is_branch(earlier),
            }
    }

    /// The next boundary of the prompt behind `position` that is to be captured: a prefill chunk must end there.
    pub fn next_in_prompt(&self, position: usize) -> Option<usize> {
        let ahead = |boundary: &usize| {
            *boundary > position && *boundary < self.prompt_tokens && self.allows(*boundary)
        };
        match self.policy {
            SnapshotPolicy::None => None,
            SnapshotPolicy::Every(_) => {
                let next = (position / self.stride() + 1) * self.stride();
                Some(next.max(self.within.0.next_multiple_of(self.stride()))).filter(ahead)
            }
            SnapshotPolicy::Last => Some(self.last_of_prompt()).filter(ahead),
            SnapshotPolicy::Branch => {
                let points = self.branch.into_iter().chain([self.last_of_prompt()]);
                points.filter(|point| self.captures(*point)).filter(ahead).min()
            }
        }
    }

    fn allows(&self, position: usize) -> bool {
        (self.within.0..=self.within.1).contains(&position)
    }

    /// Tokens between the boundaries that `every` captures.
    fn stride(&self) -> usize {
        match self.policy {
            SnapshotPolicy::Every(blocks) => self.block_tokens.saturating_mul(blocks.get() as usize),
            _ => self.block_tokens,
        }
    }

    fn is_branch(&self, position: usize) -> bool {
        self.branch == Some(position)
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

    const POLICIES: [&str; 6] = ["every", "every:3", "last", "branch", "none", "every:100"];

    fn boundaries(policy: &str, prompt_tokens: usize, branch: Option<usize>) -> Boundaries {
        let policy = SnapshotPolicy::parse(policy).unwrap();
        Boundaries { policy, block_tokens: 4, prompt_tokens, branch, within: Boundaries::ANYWHERE }
    }

    fn captured(policy: &str, prompt_tokens: usize, branch: Option<usize>) -> Vec<usize> {
        let boundaries = boundaries(policy, prompt_tokens, branch);
        (0..26).filter(|position| boundaries.captures(*position)).collect()
    }

    #[test]
    fn a_policy_chooses_boundaries() {
        assert_eq!(captured("every", 10, None), [4, 8, 12, 16, 20, 24]);
        assert_eq!(captured("every:3", 10, None), [12, 24]);
        assert_eq!(captured("last", 10, None), [8, 12, 16, 20, 24]);
        assert_eq!(captured("last", 12, None), [8, 12, 16, 20, 24], "a full prompt ends a block");
        assert_eq!(captured("last", 3, None), [4, 8, 12, 16, 20, 24]);
        assert_eq!(captured("branch", 18, Some(8)), [8, 16, 20, 24]);
        assert_eq!(captured("branch", 18, None), [16, 20, 24]);
        assert_eq!(captured("none", 10, Some(8)), [0; 0]);
    }

    #[test]
    fn nothing_is_captured_outside_the_positions_allowed() {
        for policy in POLICIES {
            let boundaries = Boundaries { within: (5, 9), ..boundaries(policy, 30, Some(12)) };
            assert!((0..40).filter(|p| boundaries.captures(*p)).all(|position| position == 8), "{policy}");
        }
    }

    #[test]
    fn what_a_later_capture_makes_worthless_depends_on_the_policy() {
        let last = boundaries("last", 10, None);
        assert!(last.supersedes(16, 12) && !last.supersedes(16, 8));
        assert!(!boundaries("every", 10, None).supersedes(16, 12));
        let branch = boundaries("branch", 18, Some(8));
        assert!(branch.supersedes(20, 16) && !branch.supersedes(20, 8) && !branch.replaces(16, 8));
    }

    #[test]
    fn chunks_end_where_something_is_captured() {
        for policy in POLICIES {
            for (prompt_tokens, branch) in
                (1..20).flat_map(|n| [(n, None), (n, Some(4)), (n, Some(n / 4 * 4))])
            {
                for within in [Boundaries::ANYWHERE, (0, 0), (5, 9), (8, 8), (0, 12)] {
                    let boundaries = Boundaries { within, ..boundaries(policy, prompt_tokens, branch) };
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
}
