//! The table of actions.

use super::*;
use std::collections::HashSet;

#[test]
fn no_key_means_two_things_in_one_mode() {
    for mode in [Exists::Live, Exists::Recording] {
        let mut seen = HashSet::new();
        for action in ACTIONS.iter().filter(|a| a.exists == Exists::Always || a.exists == mode) {
            for key in action.keys {
                assert!(seen.insert(key.name()), "{} is bound twice", key.name());
            }
        }
    }
}

#[test]
fn every_action_has_a_key_and_a_description_of_its_own() {
    let mut seen = HashSet::new();
    for action in ACTIONS {
        let in_palette_only = matches!(action.id, ActionId::Inflict(_));
        assert_eq!(action.keys.is_empty(), in_palette_only, "{:?}", action.id);
        assert!(seen.insert(action.description), "`{}` is there twice", action.description);
    }
}

#[test]
fn every_fault_is_an_action() {
    let faults = ACTIONS.iter().filter_map(|action| match action.id {
        ActionId::Inflict(form) => Some((key_names(action), form)),
        _ => None,
    });
    let faults: Vec<_> = faults.collect();
    let forms = Fault::FORMS.iter().enumerate().map(|(at, (form, _))| ((*form).to_owned(), at));
    assert_eq!(faults, forms.collect::<Vec<_>>());
}

#[test]
fn the_readme_table_has_a_row_for_every_action() {
    let table = readme_table();
    assert_eq!(table.lines().count(), 2 + ACTIONS.len() + TEXT_KEYS.len());
    assert!(table.contains("| `x` | cancel the running request |"));
    assert!(table.contains("| `q` `Esc` |"));
}

#[test]
fn descriptions_fit_the_help_of_an_80_column_terminal() {
    for action in ACTIONS {
        assert!(action.description.len() <= 62, "{}", action.description);
    }
}
