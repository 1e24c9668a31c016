//! EXP-002 in escarp's own form: what 36 runs counted and measured, and what was published of them. Oliver Yu, EXP-002, CC BY 4.0; evidence label
//! Observed. Runs are named by what they wrote and how long the prompt was, "27b" by their model.

use escarp::decode::economics::{Counters, MatchedRun, Position};

/// A run: what it wrote, its policy, its counters and times, and what was published of it.
#[derive(Debug, Clone)]
pub struct Run {
    pub cell: String,
    pub policy: String,
    pub run: MatchedRun,
    /// Seconds from the first reply token to the last.
    pub decode_s: f64,
    /// Acceptance, tokens per cycle, share, milliseconds per cycle; of a run without a drafter none.
    pub told: Option<[f64; 4]>,
}

/// A run without a drafter.
fn dense(cell: &str, tokens: u64, decode_s: f64, end_to_end_s: f64, ms_per_token: f64) -> Run {
    let counters = Counters { output_tokens: tokens, replies: 1, ..Counters::default() };
    let run = MatchedRun {
        counters,
        ms_per_token: Some(ms_per_token),
        end_to_end_s: Some(end_to_end_s),
        cycles_ms: None,
    };
    Run { cell: cell.to_owned(), policy: "dense".to_owned(), run, decode_s, told: None }
}

/// What a drafter did in a run: cycles, those of depth 0, `(tested, accepted)` by position, and milliseconds in backbone, head, sampling and
/// cache operations.
pub type Cycles = (u64, u64, [(u64, u64); 3], [f64; 4]);

impl Run {
    /// The same run with a drafter.
    pub fn with(self, policy: &str, cycles: Cycles, told: [f64; 4]) -> Run {
        let run = MatchedRun {
            counters: counters(self.run.counters.output_tokens, &cycles),
            cycles_ms: Some(cycles.3.iter().sum()),
            ..self.run
        };
        Run { policy: policy.to_owned(), run, told: Some(told), ..self }
    }
}

/// The counters of a reply of `output_tokens`. The study does not tell what it drafted beyond what it tested.
pub fn counters(output_tokens: u64, (cycles, zero_cycles, positions, _): &Cycles) -> Counters {
    let sum = |of: fn(&(u64, u64)) -> u64| positions.iter().map(of).sum();
    let tested = sum(|(tested, _)| *tested);
    Counters {
        output_tokens,
        replies: 1,
        cycles: *cycles,
        zero_cycles: *zero_cycles,
        drafted: tested,
        tested,
        accepted: sum(|(_, accepted)| *accepted),
        positions: positions
            .iter()
            .map(|(tested, accepted)| Position { tested: *tested, accepted: *accepted })
            .collect(),
    }
}

/// The 36 runs.
#[rustfmt::skip]
pub fn runs() -> Vec<Run> {
    vec![
        dense("code long", 256, 2.7064, 12.5783, 10.6134)
            .with("adaptive", (138, 3, [(135, 86), (44, 28), (2, 2)], [2602.32, 99.31, 2.89, 21.98]), [0.6409, 1.8406, 0.9922, 19.7572]),
        dense("code long", 256, 2.6427, 12.6701, 10.3637)
            .with("adaptive", (151, 3, [(148, 99), (11, 4), (0, 0)], [2625.2, 71.45, 2.78, 23.0]), [0.6478, 1.6821, 0.9922, 18.0293]),
        dense("code long", 256, 2.7594, 12.0549, 10.8213),
        dense("code long", 256, 2.7385, 12.0428, 10.7392),
        dense("code long", 256, 3.166, 13.06, 12.4157)
            .with("fixed-3", (122, 0, [(122, 74), (74, 44), (44, 14)], [2867.08, 304.25, 2.04, 19.89]), [0.55, 2.082, 0.9922, 26.1743]),
        dense("code long", 256, 3.1635, 13.1284, 12.406)
            .with("fixed-3", (124, 0, [(124, 76), (76, 41), (41, 13)], [2906.33, 310.69, 2.26, 20.83]), [0.5394, 2.0484, 0.9922, 26.1299]),
        dense("code short", 256, 2.4618, 4.5645, 9.6541)
            .with("adaptive", (146, 3, [(143, 94), (31, 14), (0, 0)], [2430.11, 79.29, 2.56, 22.15]), [0.6207, 1.7397, 0.9922, 17.3569]),
        dense("code short", 256, 2.5352, 4.648, 9.942)
            .with("adaptive", (153, 3, [(150, 89), (24, 12), (0, 0)], [2516.38, 78.88, 2.83, 23.5]), [0.5805, 1.6601, 0.9922, 17.1346]),
        dense("code short", 256, 2.5022, 4.4733, 9.8126),
        dense("code short", 256, 2.4726, 4.5312, 9.6966),
        dense("code short", 256, 2.4909, 4.7073, 9.7684),
        dense("code short", 256, 2.5011, 4.7993, 9.8084),
        dense("code short", 256, 2.7777, 4.9031, 10.8928)
            .with("fixed-3", (121, 0, [(121, 76), (76, 41), (41, 16)], [2562.32, 287.02, 2.1, 19.73]), [0.5588, 2.0992, 0.9922, 23.7287]),
        dense("code short", 256, 2.7751, 4.8967, 10.8827)
            .with("fixed-3", (121, 0, [(121, 76), (76, 41), (41, 16)], [2561.89, 286.2, 1.95, 19.55]), [0.5588, 2.0992, 0.9922, 23.7156]),
        dense("copy short", 199, 1.6757, 3.7871, 8.4631)
            .with("adaptive", (89, 3, [(86, 68), (68, 41), (1, 0)], [1663.43, 74.27, 1.77, 14.05]), [0.7032, 2.2247, 0.995, 19.7025]),
        dense("copy short", 199, 1.6061, 4.0685, 8.1115)
            .with("adaptive", (95, 3, [(92, 80), (42, 23), (0, 0)], [1620.9, 56.22, 1.78, 14.16]), [0.7687, 2.0842, 0.995, 17.8217]),
        dense("copy short", 199, 1.9095, 3.9623, 9.6442),
        dense("copy short", 199, 1.9252, 3.6582, 9.7234),
        dense("copy short", 199, 1.8545, 3.958, 9.3664)
            .with("fixed-3", (81, 0, [(81, 64), (64, 37), (37, 16)], [1718.54, 194.04, 1.36, 13.0]), [0.6429, 2.4444, 0.995, 23.7894]),
        dense("copy short", 199, 1.8355, 4.2437, 9.2703)
            .with("fixed-3", (81, 0, [(81, 64), (64, 37), (37, 16)], [1722.57, 194.41, 1.49, 13.21]), [0.6429, 2.4444, 0.995, 23.8479]),
        dense("prose long", 256, 3.0091, 12.748, 11.8005)
            .with("adaptive", (6, 2, [(4, 0), (0, 0), (0, 0)], [110.31, 3.63, 0.12, 0.98]), [0.0, 1.0, 0.0234, 19.1733]),
        dense("prose long", 256, 2.9781, 12.7466, 11.6786)
            .with("adaptive", (7, 3, [(4, 1), (1, 0), (0, 0)], [124.66, 5.87, 0.12, 1.09]), [0.2, 1.1429, 0.0312, 18.82]),
        dense("prose long", 256, 2.7617, 11.8313, 10.8303),
        dense("prose long", 256, 2.7179, 11.8285, 10.6583),
        dense("prose long", 256, 4.7225, 14.4269, 18.5195)
            .with("fixed-3", (182, 0, [(182, 59), (59, 12), (12, 1)], [4250.77, 451.62, 4.51, 33.61]), [0.2846, 1.3956, 0.9922, 26.0468]),
        dense("prose long", 256, 4.882, 14.6056, 19.1453)
            .with("fixed-3", (190, 0, [(190, 56), (56, 7), (7, 1)], [4427.39, 473.93, 5.19, 35.99]), [0.253, 1.3368, 0.9922, 26.0132]),
        dense("prose short", 256, 2.8763, 5.1617, 11.2796)
            .with("adaptive", (113, 3, [(110, 37), (5, 1), (0, 0)], [1812.78, 52.35, 1.97, 17.57]), [0.3304, 1.3363, 0.5898, 16.6785]),
        dense("prose short", 256, 2.6404, 5.0245, 10.3547)
            .with("adaptive", (31, 3, [(28, 7), (0, 0), (0, 0)], [487.16, 14.13, 0.58, 4.82]), [0.25, 1.2258, 0.1484, 16.3448]),
        dense("prose short", 256, 2.4933, 4.4711, 9.7775),
        dense("prose short", 256, 2.4662, 4.7157, 9.6712),
        dense("prose short", 256, 4.4239, 6.8276, 17.3488)
            .with("fixed-3", (191, 0, [(191, 54), (54, 8), (8, 1)], [4029.24, 446.75, 3.44, 32.41]), [0.249, 1.3298, 0.9922, 23.6222]),
        dense("prose short", 256, 4.4036, 6.5291, 17.2688)
            .with("fixed-3", (190, 0, [(190, 58), (58, 6), (6, 0)], [4015.65, 440.71, 3.11, 31.66]), [0.252, 1.3368, 0.9922, 23.6375]),
        dense("code long 27b", 256, 5.52, 61.2691, 21.6471)
            .with("adaptive", (103, 3, [(100, 85), (84, 60), (9, 6)], [5313.39, 82.5, 2.3, 27.22]), [0.7824, 2.466, 0.9922, 52.6739]),
        dense("code long 27b", 256, 5.51, 61.3144, 21.6078)
            .with("adaptive", (99, 3, [(96, 80), (77, 58), (21, 17)], [5251.37, 134.58, 2.41, 26.49]), [0.799, 2.5657, 0.9922, 54.6955]),
        dense("code long 27b", 256, 10.0, 64.5776, 39.2157),
        dense("code long 27b", 256, 9.99, 64.5521, 39.1765),
    ]
}

/// A published comparison of matched repeats.
pub struct Row {
    pub cell: &'static str,
    pub policy: &'static str,
    /// Milliseconds per token without a drafter and with, speed-up of decoding and of the whole, acceptance, tokens per cycle, share,
    /// milliseconds per cycle, cost ratio, predicted speed-up, width of the repeats with a drafter and without.
    pub told: [f64; 12],
    /// Whether a cycle gives more than it costs.
    pub pays: bool,
}

const fn row(cell: &'static str, policy: &'static str, told: [f64; 12], pays: bool) -> Row {
    Row { cell, policy, told, pays }
}

/// The 11 matched rows.
#[rustfmt::skip]
pub const MATCHED: [Row; 11] = [
    row("code long", "adaptive", [10.7803, 10.4886, 1.0278, 0.9544, 0.64435, 1.7613, 0.9922, 18.8933, 1.7526, 1.005, 0.0238, 0.0076], true),
    row("code long", "fixed-3", [10.7803, 12.4108, 0.8686, 0.9202, 0.5447, 2.0652, 0.9922, 26.1521, 2.4259, 0.8523, 0.0008, 0.0076], false),
    row("code short", "adaptive", [9.7884, 9.798, 0.999, 1.0028, 0.6006, 1.6999, 0.9922, 17.2458, 1.7619, 0.9651, 0.0294, 0.0119], false),
    row("code short", "fixed-3", [9.7884, 10.8878, 0.899, 0.9427, 0.5588, 2.0992, 0.9922, 23.7221, 2.4235, 0.8671, 0.0009, 0.0119], false),
    row("copy short", "adaptive", [9.6838, 8.2873, 1.1685, 0.9701, 0.73595, 2.1544, 0.995, 18.7621, 1.9375, 1.1114, 0.0424, 0.0082], true),
    row("copy short", "fixed-3", [9.6838, 9.3184, 1.0392, 0.9291, 0.6429, 2.4444, 0.995, 23.8186, 2.4596, 0.9938, 0.0103, 0.0082], false),
    row("prose long", "adaptive", [10.7443, 11.7395, 0.9152, 0.928, 0.1, 1.0715, 0.0273, 18.9967, 1.7681, 0.9826, 0.0104, 0.016], false),
    row("prose long", "fixed-3", [10.7443, 18.8324, 0.5705, 0.8149, 0.2688, 1.3662, 0.9922, 26.03, 2.4227, 0.5658, 0.0332, 0.016], false),
    row("prose short", "adaptive", [9.7244, 10.8171, 0.899, 0.9019, 0.2902, 1.2811, 0.3691, 16.5116, 1.698, 0.8928, 0.0855, 0.0109], false),
    row("prose short", "fixed-3", [9.7244, 17.3088, 0.5618, 0.6878, 0.2505, 1.3333, 0.9922, 23.6298, 2.43, 0.5506, 0.0046, 0.0109], false),
    row("code long 27b", "adaptive", [39.1961, 21.6274, 1.8123, 1.0534, 0.7907, 2.5159, 0.9922, 53.6847, 1.3696, 1.825, 0.0018, 0.001], true),
];

/// Tokens of 17 replies in daily use, and their cycles.
#[rustfmt::skip]
pub const PRODUCTION: [(u64, Cycles); 17] = [
    (16, (8, 3, [(5, 4), (3, 3), (1, 1)], [372.0, 7.3, 0.1, 0.3])),
    (16, (8, 3, [(5, 4), (3, 3), (1, 1)], [372.0, 7.3, 0.1, 0.3])),
    (16, (7, 3, [(4, 3), (3, 2), (2, 2)], [317.5, 4.4, 0.1, 0.3])),
    (16, (7, 3, [(4, 3), (3, 2), (2, 2)], [317.5, 4.4, 0.1, 0.3])),
    (8, (2, 0, [(2, 2), (2, 1), (1, 1)], [135.1, 7.0, 0.0, 0.1])),
    (8, (2, 0, [(2, 2), (2, 1), (1, 1)], [135.1, 7.0, 0.0, 0.1])),
    (8, (3, 0, [(3, 3), (3, 0), (0, 0)], [162.2, 4.5, 0.0, 0.4])),
    (8, (3, 0, [(3, 3), (3, 0), (0, 0)], [162.2, 4.5, 0.0, 0.4])),
    (8, (2, 0, [(2, 2), (2, 1), (1, 1)], [128.7, 5.0, 0.0, 0.2])),
    (8, (2, 0, [(2, 2), (2, 1), (1, 1)], [128.7, 5.0, 0.0, 0.2])),
    (8, (2, 0, [(2, 2), (2, 1), (1, 1)], [115.0, 4.0, 0.0, 0.1])),
    (8, (2, 0, [(2, 2), (2, 1), (1, 1)], [115.0, 4.0, 0.0, 0.1])),
    (12, (3, 0, [(3, 3), (3, 3), (2, 2)], [162.5, 2.5, 0.1, 0.1])),
    (335, (127, 3, [(124, 111), (107, 77), (26, 19)], [7407.0, 211.9, 1.1, 6.9])),
    (160, (70, 3, [(67, 47), (47, 38), (6, 5)], [4078.1, 115.2, 0.7, 8.0])),
    (96, (40, 3, [(37, 24), (24, 19), (15, 12)], [2398.7, 124.4, 0.6, 3.0])),
    (194, (82, 3, [(79, 65), (64, 44), (4, 2)], [4509.5, 81.9, 1.1, 10.6])),
];
