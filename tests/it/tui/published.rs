//! The published trace in the interface: a recording that knows checkpoints and suffixes, and nothing else.

use super::*;

fn bench() -> Bench {
    Bench::recording(escarp::event::record::open(std::path::Path::new("trace-b")).unwrap())
}

#[test]
fn every_pane_draws_it_at_every_request() {
    for (width, height) in [(80, 24), (160, 48)] {
        let mut bench = bench();
        for left in (0..=20).rev() {
            for pane in '1'..='6' {
                bench.press(pane);
                bench.frame(width, height);
                bench.press('z');
                let text = bench.text(width, height);
                bench.press('z');
                assert!(text.contains(&format!("RECORDING {left} of 20")), "{text}");
            }
            bench.press('p');
        }
    }
}

#[test]
fn its_cliff_is_in_sight_and_what_it_does_not_tell_is_a_dash() {
    let mut bench = bench();
    bench.write("1z");
    let session = bench.text(160, 48);
    let row = |text: &str, words: &str| {
        let row = text.lines().find(|line| line.contains(words));
        row.unwrap_or_else(|| panic!("no {words} in\n{text}")).to_owned()
    };
    let cliff = row(&session, "restore 11");
    for figure in ["45,732", "28,672", "-9,216", "17,060", "–"] {
        assert!(cliff.contains(figure), "{figure} in {cliff}");
    }
    assert!(session.contains("oMLX imported"), "{session}");
    bench.press('3');
    let request = bench.text(160, 48);
    assert!(request.contains("not in the trace"), "{request}");
}
