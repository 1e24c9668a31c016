//! A model: its shape, its tensors, its state, its tokenizer and template.

use std::path::Path;

use serde::Serialize;

use super::super::Failure;
use super::super::output::Output;
use crate::model::{self, ModelSummary};
use crate::report::{Align, Table, bytes, or_dash, printable, thousands};

/// What `--json` prints.
#[derive(Serialize)]
struct Model<'a> {
    kind: &'static str,
    #[serde(flatten)]
    summary: &'a ModelSummary,
}

pub(super) fn inspect(path: &Path, contexts: &[u64], json: bool, output: &mut Output) -> Result<(), Failure> {
    let summary = model::inspect_at(path, contexts)?;
    if json {
        return output.json(&Model { kind: "model", summary: &summary });
    }
    output.text(&text(&summary))
}

fn text(summary: &ModelSummary) -> String {
    let path = printable(&summary.path.display().to_string());
    let (facts, memory) = (facts(summary), memory(summary));
    let (encodings, fates) = (encodings(summary), fates(summary));
    let mut text = format!("{path}\n\n{facts}\n{memory}\n{encodings}\n{fates}");
    for name in &summary.unknown_tensors {
        text.push_str(&format!("unknown: {}\n", printable(name)));
    }
    text
}

fn number(n: usize) -> String {
    thousands(n as u64)
}

/// Name and value, one fact a line.
fn facts(summary: &ModelSummary) -> Table {
    let mut facts = Table::new(&[("model", Align::Left), (&summary.name, Align::Left)]);
    let mut fact = |name: &str, value: String| facts.row([name, &value]);
    fact("format", summary.format.to_owned());
    fact("architecture", summary.architecture.to_owned());
    fact("parameters", thousands(summary.parameters));
    let kinds: Vec<_> = summary.layers.iter().map(|(kind, n)| format!("{} {kind}", number(*n))).collect();
    fact("layers", kinds.join(", "));
    fact("hidden", format!("{} columns", number(summary.hidden)));
    let heads = |n: usize, what: &str| format!("{} {what}", number(n));
    fact(
        "attention",
        [
            heads(summary.heads, "heads"),
            heads(summary.kv_heads, "key/value heads"),
            format!("{} columns each", number(summary.head_dim)),
        ]
        .join(", "),
    );
    let kinds = [(summary.head_norms, "norms of queries and keys"), (summary.gated, "gated output")];
    let kinds: Vec<_> = kinds.into_iter().filter_map(|(has, what)| has.then_some(what)).collect();
    if !kinds.is_empty() {
        fact("", kinds.join(", "));
    }
    fact("rotary", format!("{} columns a head, base {}", number(summary.rotary_dims), summary.rotary_base));
    if let Some(recurrent) = &summary.recurrent {
        let keys = heads(recurrent.key_heads, "key heads");
        let values = heads(recurrent.value_heads, "value heads");
        fact("recurrence", format!("{keys} of {}, {values} of {}", recurrent.key_dim, recurrent.value_dim));
        fact("", format!("convolution over {} tokens", recurrent.taps));
    }
    match &summary.experts {
        None => fact("MLP", format!("{} columns inside", number(summary.intermediate))),
        Some(experts) => {
            let (all, each) = (number(experts.experts), number(summary.intermediate));
            fact("experts", format!("{all} of {each} columns, {} a token", experts.per_token));
            let weights = if experts.normalised { "weights sum to 1" } else { "weights as they come" };
            fact("", format!("1 shared of {} columns; {weights}", number(experts.shared)));
        }
    }
    let head = match summary.prediction_layers {
        0 => "none".to_owned(),
        layers => format!("{} {}", number(layers), if layers == 1 { "layer" } else { "layers" }),
    };
    fact("prediction head", head);
    fact("vocabulary", number(summary.vocab));
    fact("tokenizer", or_dash(summary.tokenizer_tokens, |n| format!("{} tokens", number(n))));
    let template =
        if summary.template_takes_tools { "lays out tools itself" } else { "tools are folded into messages" };
    fact("chat template", template.to_owned());
    fact("context", format!("{} tokens", number(summary.context_tokens)));
    fact("weights", or_dash(summary.weight_bytes, bytes));
    let (int8, f32) = (summary.state_bytes_per_token, 2 * summary.state_bytes_per_token);
    fact("sliceable state", format!("{} a token at int8, {} at f32", bytes(int8), bytes(f32)));
    if let Some(snapshot) = summary.snapshot_bytes {
        fact("recurrent snapshot", bytes(snapshot));
    }
    facts
}

/// What a context costs.
fn memory(summary: &ModelSummary) -> Table {
    let mut memory = Table::new(&[
        ("tokens in context", Align::Right),
        ("state, int8", Align::Right),
        ("with weights, int8", Align::Right),
        ("with weights, f32", Align::Right),
    ]);
    for at in &summary.memory {
        memory.row([thousands(at.tokens), bytes(at.state), or_dash(at.int8, bytes), or_dash(at.f32, bytes)]);
    }
    memory
}

fn encodings(summary: &ModelSummary) -> Table {
    let mut encodings = Table::new(&[
        ("encoding", Align::Left),
        ("tensors", Align::Right),
        ("numbers", Align::Right),
        ("bytes", Align::Right),
    ]);
    for kind in &summary.tensor_types {
        let size = or_dash(kind.bytes, bytes);
        encodings.row([&kind.kind, &number(kind.tensors), &thousands(kind.elements), &size]);
    }
    encodings
}

fn fates(summary: &ModelSummary) -> Table {
    let mut fates = Table::new(&[("tensors", Align::Left), ("count", Align::Right), ("bytes", Align::Right)]);
    for summary in &summary.tensor_fates {
        let size = or_dash(summary.bytes, bytes);
        fates.row([summary.fate.name(), &number(summary.tensors), &size]);
    }
    fates
}
