//! The statements that recovery, restore and their accounts must hold, by number, and the tests that hold them to it.
//!
//! H are what hardening found, S what the review of a prototype asked for, F what the measurements rest on. A statement about another runtime's
//! internals is here as what it means for this program.
//!
//! | id | statement | tests |
//! |---|---|---|
//! | H1 | a job keeps no request's drafter state, and requests are primed as without it | `h1_a_job_has_no_drafter_no_reply_and_no_arrival` |
//! | H1b | outside of slices priming is what it was | `h1b_a_request_after_a_job_is_primed_as_one_before_it` |
//! | H2 | published state is durable, live state disposable: gone within a step, less than a block is read again | `h2_every_trigger_of_the_list_lets_live_state_go`, `h2_live_state_is_disposable_and_what_is_published_is_not`, `h2_whoever_comes_finds_live_state_gone_within_a_step_and_what_was_published_stays` |
//! | H2b | spacing of idle steps and a peer's slice do not let it go | `h2b_neither_idle_steps_nor_a_peers_slice_let_it_go` |
//! | H2c | it is gone before memory is taken from anybody | `h2c_a_request_that_needs_the_memory_finds_live_state_gone_before_anything_is_evicted_for_it` |
//! | H2d | the question whether a step is wanted changes nothing | `h2d_asking_whether_a_step_is_wanted_changes_nothing` |
//! | H2e | a parked job takes one step for its live state and then none | `h2e_f9_a_parked_job_takes_one_step_for_its_live_state_and_then_none` |
//! | H3 | an arrival is seen by all engines until it departs, on every path | `h3_a_request_is_visible_from_arrival_until_departure_on_every_path`, `h3_an_arrival_on_one_engine_withdraws_the_grant_of_another_until_it_departs`, `h3_what_one_engine_announces_or_serves_the_others_see_and_it_ends_with_the_engine` |
//! | H3b | one that never departs expires | `h3b_a_stale_arrival_expires_and_an_admission_renews_it` |
//! | H4 | what another thread writes is read whole | `h4_a_question_while_others_come_and_go_is_answered_from_whole_entries` |
//! | H5 | the commit may fall, to whole blocks, and rises by a publication only | `h5_the_watermark_may_move_down_to_whole_blocks_and_up_by_a_publication_only`, `h5_what_the_cache_lost_lowers_the_commit_and_is_published_again` |
//! | H5b | a model that cannot say what is restorable lowers nothing | `h5b_a_zero_from_a_model_that_cannot_say_lowers_nothing` |
//! | H6 | a prompt of exactly N blocks recovers N | `h6_a_prompt_of_exactly_n_blocks_recovers_n`, `h6_a_prompt_of_exactly_n_blocks_recovers_n_and_any_other_its_whole_blocks` |
//! | H7 | one job an engine: another history replaces it, nothing queues | `h7_another_history_replaces_a_longer_prompt_extends_and_nothing_queues`, `h7_another_history_takes_the_place_and_nothing_queues` |
//! | S1 | background work stores the way a request does | `s1_background_work_stores_the_way_a_request_does` |
//! | S2 | a job that is dropped gives back every hold | `s2_a_job_that_is_dropped_gives_back_every_page_and_keeps_what_it_published` |
//! | S3 | what cannot be restored is not published | `s3_where_recurrent_state_is_captured_nowhere_there_is_no_job` |
//! | S4 | idleness is the scheduler's own state | `s4_a_request_that_never_ran_leaves_nothing_that_keeps_a_job_from_running` |
//! | F1 | committed is restorable at every step; a store that reports success is no evidence | `f1_a_store_that_reports_success_is_no_evidence`, `any_order_of_arrivals_cancels_losses_and_slices_keeps_every_invariant` |
//! | F2 | a published block holds every layer's state | `f2_with_a_prediction_head_a_published_block_has_its_entries_too`, `f10_what_recovery_publishes_is_what_a_dense_run_leaves_bit_for_bit` |
//! | F3 | nothing of a sparse prefill's positions reaches a slice, also where it was cut short | `f3_a_sparse_prefill_that_was_cut_short_leaves_no_positions_behind_for_a_slice` |
//! | F4 | boundaries published are the same for any slice | `f4_boundaries_are_the_same_in_the_same_order_whatever_the_slice`, `f4_the_boundaries_published_are_the_same_for_any_slice` |
//! | F5 | the slice bounds recovery only | `f5_the_slice_bounds_recovery_and_no_chunk_of_a_request` |
//! | F6 | a finished job runs no more | `f6_a_finished_job_has_no_slice_left`, `f6_a_finished_job_is_not_runnable`, `f6_a_finished_job_takes_no_step_and_no_budget` |
//! | F7 | the budget: nothing at zero, the share kept but for a slice, overshoot carried up to one allowance, one object a process | `f7_a_share_that_is_not_above_zero_grants_nothing`, `f7_over_any_windows_the_share_is_kept_but_for_one_slice_a_window_pair`, `f7_overshoot_is_carried_up_to_one_allowance_and_what_is_unspent_is_lost`, `f7_two_engines_charge_one_object_and_one_that_goes_takes_nothing_with_it`, `f7_engines_that_joined_charge_one_budget_and_strangers_have_their_own`, `f7_without_a_budget_no_debt_is_taken_on` |
//! | F8 | below a slice the share is half a slice a window | `f8_below_a_slice_the_share_is_half_a_slice_a_window_whatever_was_set` |
//! | F9 | a parked job costs no step and goes on when the window ends | `f9_a_parked_job_costs_no_step_and_goes_on_when_the_window_ends` |
//! | F10 | recovered state is the dense state, bit for bit | `f10_what_recovery_publishes_is_what_a_dense_run_leaves_bit_for_bit` |
//! | F11 | a sparse turn adds no canonical tokens | `f11_a_sparse_request_adds_no_canonical_tokens_and_the_next_one_is_told_so` |
//! | F12 | selected positions are index and origin; decoding begins at the prompt's length | `f12_positions_are_indices_and_the_origin_behind_a_dense_protected_prefix`, `f12_the_protected_prefix_is_computed_densely_and_positions_are_the_prompts_own` |
//! | F13 | the scorer misses where the origin moved; a changed history restores below the change | `f13_the_scorers_cache_makes_the_44_published_transitions`, `f13_the_standalone_cases_restore_what_was_published` |
//! | F14 | a warm scoring selects what a cold one does | `f14_the_same_seed_selects_the_same_and_says_the_same_whether_the_scorer_is_warm_or_cold` |
//! | F15 | where state stands is checked against where it is read | `f15_a_span_starts_where_its_slot_stands` |
//! | F16 | nothing of the scorer's state survives its eviction | `f16_nothing_of_the_scorers_state_survives_its_eviction` |
//! | F17 | nothing protected can be dropped; the boundary is the true one under templates that depend on roles | `f17_nothing_protected_is_dropped_and_everything_kept_is_computed_where_it_stood`, `f17_a_template_that_depends_on_roles_is_measured_where_subtraction_is_wrong` |
//! | F18 | the route is recorded at admission, and one that is derived differently is told | `f18_the_route_taken_and_the_one_derived_are_told_apart` |
//! | F19 | the cached count is the one at admission | `f19_what_a_request_was_admitted_with_is_told_once_and_not_changed_by_its_own_progress` |
//! | F20 | adoption changes what is shown, never what is durable | `f20_adoption_changes_what_a_request_is_shown_and_never_what_is_durable`, `f20_what_is_visible_is_whole_blocks_within_what_is_durable_and_falls_back_only_with_it` |
//! | F21 | accounts of speculation follow from raw counters | `f21_the_11_matched_rows_follow_from_the_runs_to_four_decimals` |
//! | F23 | a job's identity excludes what was generated | `f23_what_was_generated_is_no_part_of_it` |
//! | F24 | null is not zero, through record and table | `f24_what_nobody_measured_is_null_and_what_was_measured_as_zero_is_zero` |
//! | F25 | no slice overlaps a request | `f25_a_slice_never_runs_while_a_request_is_there_and_every_resumption_is_told`, `f25_a_slice_runs_only_if_nobody_is_served_or_about_to_be` |
//! | F26 | a request overrides the model's settings, and `false` beats on | `f26_a_transport_overrides_the_model_and_a_request_overrides_it`, `f26_false_beats_everything_but_a_transports_is_a_default`, `f26_none_beats_everything_but_a_transports_is_a_default` |
//! | F27 | recovery delays no shutdown | `f27_an_engine_that_is_to_end_does_not_wait_for_a_slice` |
//!
//! F22 is about an accelerator that this program does not drive.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => sources(&path, found),
            false if path.extension().is_some_and(|e| e == "rs") => found.push(path),
            false => {}
        }
    }
}

/// Functions of the library and its tests whose names begin with a statement's number.
fn numbered_tests() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    sources(&root.join("tests"), &mut files);
    let mut names = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        for line in text.lines() {
            let Some(rest) = line.trim_start().strip_prefix("fn ") else { continue };
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            names.insert(name);
        }
    }
    names
}

fn table() -> Vec<(String, Vec<String>)> {
    let rows = include_str!("invariants.rs").lines().filter_map(|line| line.strip_prefix("//! | "));
    let rows = rows.filter_map(|row| {
        let cells: Vec<&str> = row.trim_end_matches(" |").split(" | ").collect();
        let [id, _, tests] = cells[..] else { return None };
        let tests = tests.split(", ").map(|name| name.trim_matches('`').to_owned()).collect();
        (id != "id").then(|| (id.to_owned(), tests))
    });
    rows.collect()
}

#[test]
fn every_statement_has_its_tests_and_every_numbered_test_its_statement() {
    let (table, known) = (table(), numbered_tests());
    let mut expected: BTreeSet<String> =
        ["H1", "H1b", "H2", "H2b", "H2c", "H2d", "H2e", "H3", "H3b", "H4", "H5", "H5b", "H6", "H7"]
            .map(str::to_owned)
            .into();
    expected.extend((1..=4).map(|n| format!("S{n}")));
    expected.extend((1..=27).filter(|n| *n != 22).map(|n| format!("F{n}")));
    let told: BTreeSet<String> = table.iter().map(|(id, _)| id.clone()).collect();
    assert_eq!(told, expected);
    for (id, tests) in &table {
        for test in tests {
            assert!(known.contains(test), "{id}: there is no test `{test}`");
        }
        let prefix = format!("{}_", id.to_lowercase());
        assert!(
            tests.iter().any(|test| test.starts_with(&prefix) || test.contains(&format!("_{prefix}"))),
            "{id}"
        );
    }
    let named: BTreeSet<&String> = table.iter().flat_map(|(_, tests)| tests).collect();
    let is_numbered = |name: &str| {
        let digits = name.strip_prefix(['h', 's', 'f']).and_then(|rest| rest.split('_').next());
        digits.is_some_and(|digits| {
            let number = digits.trim_end_matches(|c: char| c.is_ascii_lowercase());
            number.len() + 1 >= digits.len()
                && number.parse().is_ok_and(|number: u32| (1..=27).contains(&number))
        })
    };
    for test in known.iter().filter(|name| name.contains('_') && is_numbered(name)) {
        assert!(named.contains(test), "`{test}` stands in no row of the table");
    }
}
