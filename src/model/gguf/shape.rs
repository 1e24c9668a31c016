//! The sizes of a `llama` model from GGUF metadata.

use super::Gguf;
use crate::device::ops::Rotary;
use crate::model::ModelError;
use crate::model::shape::{Architecture, AttentionSizes, LayerKind, MAX_LAYERS, MlpKind, ModelShape};
use crate::model::tensor::Checkpoint;

const CONVERT: &str = "convert the model again with current tools";

impl Gguf {
    /// The model's sizes, or what about them is unsupported.
    pub fn shape(&self) -> Result<ModelShape, ModelError> {
        let wrong = |problem: String| ModelError::file(self.path(), problem, CONVERT);
        self.refuse_extensions()?;
        let need = |key: &str| -> Result<usize, ModelError> {
            let value = self.uint(key)?.ok_or_else(|| wrong(format!("`{key}` is missing")))?;
            usize::try_from(value).map_err(|_| wrong(format!("`{key}` is {value}")))
        };
        let optional =
            |key: &str| -> Result<Option<usize>, ModelError> { self.has(key).then(|| need(key)).transpose() };
        let hidden = need("llama.embedding_length")?;
        let heads = need("llama.attention.head_count")?;
        if heads == 0 {
            return Err(wrong("`llama.attention.head_count` is 0".into()));
        }
        let head_dim = match optional("llama.attention.key_length")? {
            Some(head_dim) => head_dim,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let problem = format!("`llama.embedding_length` {hidden} is not a multiple of {heads} heads");
                return Err(wrong(problem));
            }
        };
        if let Some(value_dim) = optional("llama.attention.value_length")?.filter(|n| *n != head_dim) {
            let problem =
                format!("`llama.attention.value_length` {value_dim} differs from the keys' {head_dim}");
            return Err(wrong(problem));
        }
        let layers = need("llama.block_count")?;
        if layers > MAX_LAYERS {
            return Err(wrong(format!("`llama.block_count` is {layers}, more than {MAX_LAYERS}")));
        }
        let tokens = self.strings("tokenizer.ggml.tokens")?.map(|tokens| tokens.len());
        let vocab = match optional("llama.vocab_size")? {
            Some(vocab) => vocab,
            None => tokens.ok_or_else(|| {
                wrong("both `llama.vocab_size` and `tokenizer.ggml.tokens` are missing".into())
            })?,
        };
        let shape = ModelShape {
            architecture: Architecture::Llama,
            layers: vec![LayerKind::Attention; layers],
            hidden,
            vocab,
            context: need("llama.context_length")?,
            norm_eps: self
                .number("llama.attention.layer_norm_rms_epsilon")?
                .ok_or_else(|| wrong("`llama.attention.layer_norm_rms_epsilon` is missing".into()))?
                as f32,
            attention: AttentionSizes {
                heads,
                kv_heads: optional("llama.attention.head_count_kv")?.unwrap_or(heads),
                head_dim,
                rotary: Rotary {
                    base: self.number("llama.rope.freq_base")?.unwrap_or(10_000.0),
                    dims: optional("llama.rope.dimension_count")?.unwrap_or(head_dim),
                },
                head_norms: false,
                gated: false,
            },
            delta: None,
            mlp: MlpKind::Dense { intermediate: need("llama.feed_forward_length")? },
            prediction_layers: 0,
        };
        shape.checked().map_err(wrong)
    }

    /// Refuses keys that would change what is computed: ignoring them would give another model.
    fn refuse_extensions(&self) -> Result<(), ModelError> {
        let unsupported = |problem: String| {
            let remedy = "use a model without it; leaving it out would silently compute something else";
            ModelError::file(self.path(), problem, remedy)
        };
        for key in self.keys_with("llama.rope.scal") {
            let harmless = match key {
                "llama.rope.scaling.type" => self.text(key)? == Some("none"),
                "llama.rope.scaling.factor" | "llama.rope.scale_linear" => {
                    matches!(self.number(key)?, Some(factor) if factor == 1.0 || factor == 0.0)
                }
                "llama.rope.scaling.finetuned" | "llama.rope.scaling.original_context_length" => true,
                _ => false,
            };
            if !harmless {
                return Err(unsupported(format!(
                    "`{key}` is present, and scaled rotary embedding is not supported"
                )));
            }
        }
        for key in ["llama.expert_count", "llama.attention.sliding_window"] {
            if self.uint(key)?.is_some_and(|n| n > 0) {
                return Err(unsupported(format!("`{key}` is not supported")));
            }
        }
        Ok(())
    }
}
