//! A model: its shape, its tensors, its tokenizer and template.

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
    /// Weights, and the state of a full context.
    full_context_bytes: Option<u64>,
}

pub(super) fn inspect(path: &Path, json: bool, output: &mut Output) -> Result<(), Failure> {
    let summary = model::inspect(path)?;
    if json {
        let full_context_bytes = summary.memory_bytes(summary.context_tokens as u64);
        return output.json(&Model { kind: "model", summary: &summary, full_context_bytes });
    }
    output.text(&text(&summary))
}

fn text(summary: &ModelSummary) -> String {
    let number = |n: usize| thousands(n as u64);
    let layers: Vec<_> = summary.layers.iter().map(|(kind, n)| format!("{} {kind}", number(*n))).collect();
    let context = summary.context_tokens as u64;
    let template =
        if summary.template_takes_tools { "lays out tools itself" } else { "tools are folded into messages" };
    let mut facts = Table::new(&[("model", Align::Left), (&summary.name, Align::Left)]);
    for (name, value) in [
        ("format", summary.format.to_owned()),
        ("architecture", summary.architecture.to_owned()),
        ("parameters", thousands(summary.parameters)),
        ("layers", layers.join(", ")),
        ("hidden, inside the MLP", format!("{}, {}", number(summary.hidden), number(summary.intermediate))),
        (
            "heads, key/value heads, columns",
            format!("{}, {}, {}", number(summary.heads), number(summary.kv_heads), number(summary.head_dim)),
        ),
        ("rotary base", summary.rotary_base.to_string()),
        ("vocabulary", number(summary.vocab)),
        ("tokenizer", or_dash(summary.tokenizer_tokens, |n| format!("{} tokens", number(n)))),
        ("chat template", template.to_owned()),
        ("context", format!("{} tokens", thousands(context))),
        ("weights", or_dash(summary.weight_bytes, bytes)),
        ("state of a token", bytes(summary.state_bytes_per_token)),
        ("weights and a full context", or_dash(summary.memory_bytes(context), bytes)),
    ] {
        facts.row([name, &value]);
    }
    let mut tensors = Table::new(&[
        ("encoding", Align::Left),
        ("tensors", Align::Right),
        ("numbers", Align::Right),
        ("bytes", Align::Right),
    ]);
    for kind in &summary.tensor_types {
        let size = or_dash(kind.bytes, bytes);
        tensors.row([&kind.kind, &number(kind.tensors), &thousands(kind.elements), &size]);
    }
    format!("{}\n\n{facts}\n{tensors}", printable(&summary.path.display().to_string()))
}
