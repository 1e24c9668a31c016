//! Where the scorer can leave a snapshot.

/// The last block boundary at which the scorer stands exactly, on its way from `cached` to the end of a window of `tokens` tokens in chunks of
/// `chunk`; `None` where it passes none. Positions count from the window's origin.
///
/// Found by walking: the chunk before the end leaves one token for the call that gives logits, and chunks do not stop at boundaries, so which
/// boundaries are met depends on where the walk starts. The boundary at the window's own end is met by that last call.
pub fn last_reachable_boundary(cached: usize, tokens: usize, chunk: usize, block: usize) -> Option<usize> {
    let (chunk, block) = (chunk.max(1), block.max(1));
    let mut position = cached;
    let mut last = None;
    while position < tokens {
        position += (tokens - position - 1).clamp(1, chunk);
        if position.is_multiple_of(block) {
            last = Some(position);
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (cached, tokens, published) of scorings on a hybrid scorer in chunks of 2,048; snapshots at multiples of 256 (Oliver Yu,
    /// specprefill-scoring-window-origin, live-scorings and standalone-mechanism, CC BY 4.0; Observed).
    const PUBLISHED: &[(usize, usize, Option<usize>)] = &[
        (0, 32_344, Some(30_720)),
        (30_720, 32_344, None),
        (32_768, 35_247, Some(34_816)),
        (34_816, 35_498, None),
        (0, 67_949, Some(67_584)),
        (65_536, 68_126, Some(67_584)),
        (34_816, 69_398, Some(67_584)),
        (67_584, 70_028, Some(69_632)),
        (38_912, 41_986, Some(40_960)),
        (0, 40_960, Some(40_960)),
        (40_960, 41_984, Some(41_984)),
        (0, 10_960, Some(10_240)),
        (10_240, 11_984, None),
        (0, 25_008, Some(24_576)),
        (0, 21_876, Some(20_480)),
        (0, 41_984, Some(41_984)),
    ];

    #[test]
    fn the_published_boundaries_are_those_the_walk_meets() {
        for (cached, tokens, published) in PUBLISHED {
            assert_eq!(last_reachable_boundary(*cached, *tokens, 2048, 256), *published, "{cached} {tokens}");
        }
    }

    #[test]
    fn a_boundary_that_the_last_chunk_would_end_on_is_missed_by_the_token_it_leaves() {
        // Chunks of 100 end at 100 and 199; 200 is met by the logits call.
        assert_eq!(last_reachable_boundary(0, 200, 100, 100), Some(200));
        // 201 tokens: the chunks end at 100 and 200.
        assert_eq!(last_reachable_boundary(0, 201, 100, 100), Some(200));
        // Chunks of 96 meet no multiple of 64 but 192.
        assert_eq!(last_reachable_boundary(0, 250, 96, 64), Some(192));
        assert_eq!(last_reachable_boundary(0, 60, 96, 64), None);
        assert_eq!(last_reachable_boundary(64, 64, 96, 64), None);
        assert_eq!(last_reachable_boundary(0, 1, 0, 0), Some(1));
    }
}
