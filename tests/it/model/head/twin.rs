//! The head in f64, from the tensors of a folder: a dense layer with gated attention.

use super::Draft;

/// An entry of the head.
pub(super) struct Entry {
    pub(super) place: usize,
    pub(super) token: u32,
    pub(super) hidden: Vec<f32>,
}

pub(super) struct Twin {
    draft: Draft,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    base: f64,
    rotated: usize,
}

fn norm(x: &[f64], gain: &[f32]) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + 1e-6).sqrt();
    x.iter().zip(gain).map(|(x, gain)| x * factor * f64::from(*gain)).collect()
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl Twin {
    pub(super) fn new(mut draft: Draft) -> Twin {
        let text = draft.text().clone();
        let size = |key: &str| text[key].as_u64().unwrap() as usize;
        let rope = &text["rope_parameters"];
        let head_dim = size("head_dim");
        Twin {
            hidden: size("hidden_size"),
            heads: size("num_attention_heads"),
            kv_heads: size("num_key_value_heads"),
            head_dim,
            base: rope["rope_theta"].as_f64().unwrap(),
            rotated: (rope["partial_rotary_factor"].as_f64().unwrap() * head_dim as f64) as usize,
            draft,
        }
    }

    fn numbers(&self, name: &str) -> Vec<f32> {
        self.draft.tensors[name].numbers()
    }

    fn product(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weights = self.numbers(name);
        weights
            .chunks_exact(x.len())
            .map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum())
            .collect()
    }

    fn layer(&self, part: &str) -> String {
        format!("mtp.layers.0.{part}.weight")
    }

    fn embedding(&self, token: u32) -> Vec<f64> {
        let table = self.numbers("language_model.model.embed_tokens.weight");
        table[token as usize * self.hidden..][..self.hidden].iter().map(|x| f64::from(*x)).collect()
    }

    fn rotate(&self, head: &mut [f64], place: usize) {
        let half = self.rotated / 2;
        for i in 0..half {
            let angle = place as f64 * self.base.powf(-2.0 * i as f64 / self.rotated as f64);
            let (a, b) = (head[i], head[i + half]);
            head[i] = a * angle.cos() - b * angle.sin();
            head[i + half] = b * angle.cos() + a * angle.sin();
        }
    }

    /// The input of the layer, and its norm.
    fn input(&self, entry: &Entry) -> [Vec<f64>; 2] {
        let hidden: Vec<f64> = entry.hidden.iter().map(|x| f64::from(*x)).collect();
        let token = norm(&self.embedding(entry.token), &self.numbers("mtp.pre_fc_norm_embedding.weight"));
        let hidden = norm(&hidden, &self.numbers("mtp.pre_fc_norm_hidden.weight"));
        let x = self.product("mtp.fc.weight", &[token, hidden].concat());
        let normed = norm(&x, &self.numbers(&self.layer("input_layernorm")));
        [x, normed]
    }

    /// Logits and the head's own hidden state at the last entry.
    pub(super) fn read(&self, entries: &[Entry]) -> (Vec<f64>, Vec<f64>) {
        let d = self.head_dim;
        let gains = ["q_norm", "k_norm"].map(|part| self.numbers(&self.layer(&format!("self_attn.{part}"))));
        let [mut keys, mut values] = [Vec::new(), Vec::new()];
        for entry in entries {
            let [_, normed] = self.input(entry);
            let mut key = self.product(&self.layer("self_attn.k_proj"), &normed);
            for head in key.chunks_exact_mut(d) {
                head.copy_from_slice(&norm(head, &gains[1]));
                self.rotate(head, entry.place);
            }
            keys.push(key);
            values.push(self.product(&self.layer("self_attn.v_proj"), &normed));
        }
        let last = entries.last().unwrap();
        let [mut x, normed] = self.input(last);
        let projected = self.product(&self.layer("self_attn.q_proj"), &normed);
        let mut attended = Vec::new();
        for (head, both) in projected.chunks_exact(2 * d).enumerate() {
            let mut query = norm(&both[..d], &gains[0]);
            self.rotate(&mut query, last.place);
            let own = head / (self.heads / self.kv_heads) * d;
            let score = |key: &Vec<f64>| {
                let dot: f64 = query.iter().zip(&key[own..own + d]).map(|(q, k)| q * k).sum();
                (dot / (d as f64).sqrt()).exp()
            };
            let weights: Vec<f64> = keys.iter().map(score).collect();
            let total: f64 = weights.iter().sum();
            for column in 0..d {
                let sum: f64 = weights.iter().zip(&values).map(|(w, v)| w * v[own + column]).sum();
                attended.push(sum / total * logistic(both[d + column]));
            }
        }
        let add = |x: &mut Vec<f64>, y: Vec<f64>| x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
        add(&mut x, self.product(&self.layer("self_attn.o_proj"), &attended));
        let normed = norm(&x, &self.numbers(&self.layer("post_attention_layernorm")));
        let gates = self.product(&self.layer("mlp.gate_proj"), &normed);
        let ups = self.product(&self.layer("mlp.up_proj"), &normed);
        let inner: Vec<f64> = gates.iter().zip(ups).map(|(gate, up)| gate * logistic(*gate) * up).collect();
        add(&mut x, self.product(&self.layer("mlp.down_proj"), &inner));
        let own = norm(&x, &self.numbers("mtp.norm.weight"));
        (self.product("language_model.model.embed_tokens.weight", &own), own)
    }
}
