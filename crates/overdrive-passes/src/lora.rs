//! Low-rank adapters: each chosen weight W `[N, K]` gets A `[r, K]` and B `[N, r]`. The layer
//! computes `x (W + s B A)ᵀ` with `s = alpha / r`.
//!
//! B begins as zeros, so that the graph begins unchanged. A layer of many rows multiplies by the
//! sum, which is what the model runs with later. The gradient of that sum is never made:
//! [`reassociate`](crate::reassociate) multiplies by A and by B first. A layer of few rows computes
//! `x Wᵀ + (s x Aᵀ) Bᵀ`, since it would make a sum of W's size for them. Once adapters have learnt,
//! [`Lora::merged`] adds them to the weights, and they then cost nothing to run. Names and initial
//! values are those of PEFT. Invariant: no other state changes its name, its type or its value.
//! Source: Hu et al., "LoRA: Low-rank adaptation of large language models", arXiv:2106.09685.

use crate::quantize::{Layer, LayerKind, layers};
use overdrive_ir::{
    Builder, DType, Expr, Graph, GraphError, Init, Node, Prim, Tensor, TensorType, Value,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Rank and strength of adapters.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Lora {
    /// r: rows of A and columns of B.
    pub rank: usize,
    /// The product of the adapters is multiplied by `alpha / r`.
    pub alpha: f64,
}

/// The last parts of the names of A and B.
const PARTS: [&str; 2] = ["lora_A.weight", "lora_B.weight"];

/// The last part of the name of a router, which chooses among experts and is no layer of theirs.
const ROUTER: &str = "gate";

impl Lora {
    /// The layers of a model that take adapters: every linear layer of attention and of
    /// feed-forward layers. These are in numbered blocks. The head and routers take none.
    ///
    /// # Errors
    /// When the graph is damaged, or has no such layer.
    pub fn layers(graph: &Graph) -> Result<Vec<Layer>, GraphError> {
        let (mut found, skipped) = layers(graph)?;
        let is_router = |layer: &Layer| layer.name.rsplit('.').next() == Some(ROUTER);
        found.retain(|layer| {
            layer.kind == LayerKind::Linear && layer.block() != layer.name && !is_router(layer)
        });
        if found.is_empty() {
            let reason =
                skipped.first().map_or(String::new(), |s| format!(": `{}`, {}", s.layer, s.reason));
            return Err(GraphError {
                op: "lora".into(),
                scope: graph.name().to_owned(),
                expected: "a linear layer in a numbered block".into(),
                found: format!("none{reason}"),
                remedy: "train all weights: leave out --lora".into(),
            });
        }
        Ok(found)
    }

    /// The states A and B of a layer.
    pub fn states(layer: &str) -> [String; 2] {
        PARTS.map(|part| format!("{layer}.{part}"))
    }

    /// Whether a state is an adapter's.
    pub fn is_adapter(state: &str) -> bool {
        PARTS.iter().any(|part| state.strip_suffix(part).is_some_and(|layer| layer.ends_with('.')))
    }

    fn scale(self) -> f64 {
        self.alpha / self.rank as f64
    }

    /// `graph` with adapters at these layers of it.
    ///
    /// # Errors
    /// When the rank is zero or larger than a side of a weight.
    pub fn adapted(self, graph: &Graph, layers: &[Layer]) -> Result<Graph, GraphError> {
        let smaller = |layer: &&Layer| layer.shape[0].min(layer.shape[1]);
        let smallest = layers.iter().min_by_key(smaller);
        if let Some(layer) = smallest.filter(|layer| !(1..=smaller(layer)).contains(&self.rank)) {
            let [n, k] = layer.shape;
            return Err(GraphError {
                op: "lora".into(),
                scope: layer.weight.clone(),
                expected: format!("a rank from 1 to {}, the smaller side of [{n}, {k}]", n.min(k)),
                found: self.rank.to_string(),
                remedy: "choose a smaller rank, or train all weights".into(),
            });
        }
        let b = Builder::new(graph.name());
        let mut map: Vec<Option<Expr<'_>>> = vec![None; graph.value_count()];
        b.declare(graph).into_iter().for_each(|(value, new)| map[value.0 as usize] = Some(new));
        let mut products = BTreeMap::new();
        for layer in layers {
            let [n, k] = layer.shape;
            let [a_name, b_name] = Self::states(&layer.name);
            // The initialisation of PEFT, which is that of PyTorch's linear layers.
            let uniform = Init::Uniform { bound: 1.0 / (k as f64).sqrt(), seed: 0 };
            let down = b.state_named(&a_name, TensorType::new(DType::F32, [self.rank, k]), uniform);
            let up =
                b.state_named(&b_name, TensorType::new(DType::F32, [n, self.rank]), Init::ZEROS);
            products.extend(layer.parts.iter().map(|part| (part.node.0, (down, up, &part.rows))));
        }
        for (index, node) in graph.nodes().iter().enumerate() {
            let known =
                |value: &overdrive_ir::Value| map[value.0 as usize].expect("operands come first");
            let operands: Vec<Expr<'_>> = node.operands.iter().map(known).collect();
            let results = match products.get(&(index as u32)) {
                Some((down, up, rows)) => {
                    let _scope = b.scope_path(&node.scope);
                    let up = match rows.len() == up.size(0) {
                        true => *up,
                        false => up.slice_axis(0, rows.start, rows.end),
                    };
                    let stored = transposed(graph, node.operands[1]);
                    let stored = stored.map(|value| map[value.0 as usize].expect("it comes first"));
                    self.layer(&b, (node, operands), stored, [*down, up])
                }
                None => b.again(node, &operands),
            };
            node.results.iter().zip(results).for_each(|(v, new)| map[v.0 as usize] = Some(new));
        }
        b.conclude(graph, |v| map[v.0 as usize].expect("every value was copied"));
        b.finish()
    }

    /// The results of a layer with adapters. `stored` is the weight `[N, K]` where the layer reads
    /// that transposed.
    fn layer<'b>(
        self,
        b: &'b Builder,
        (node, mut operands): (&Node, Vec<Expr<'b>>),
        stored: Option<Expr<'b>>,
        [down, up]: [Expr<'b>; 2],
    ) -> Vec<Expr<'b>> {
        let (n, k) = (up.size(0), down.size(1));
        let rows = operands[0].sizes().iter().product::<usize>() / k;
        if sums_weights(rows, [n, k]) {
            operands[1] = match stored {
                Some(stored) => (stored + up.matmul(down) * self.scale()).t(),
                None => operands[1] + down.t().matmul(up.t()) * self.scale(),
            };
            return b.again(node, &operands);
        }
        let mut results = b.again(node, &operands);
        // The scale is that of the few numbers between the adapters. Then sums end a product, and
        // the gradient of a result needs no pass of its own.
        let between = operands[0].linear(down.t(), None) * self.scale();
        results[0] = results[0] + between.linear(up.t(), None);
        results
    }

    /// The weights of these layers of `graph` with their adapters added, by name: `W + s B A`.
    ///
    /// # Errors
    /// With an adapter that is missing.
    pub fn merged(
        self,
        graph: &Graph,
        layers: &[Layer],
        trained: &BTreeMap<String, Tensor>,
    ) -> Result<BTreeMap<String, Tensor>, GraphError> {
        layers
            .iter()
            .map(|layer| Ok((layer.weight.clone(), self.sum(graph, layer, trained)?)))
            .collect()
    }

    fn sum(
        self,
        graph: &Graph,
        layer: &Layer,
        trained: &BTreeMap<String, Tensor>,
    ) -> Result<Tensor, GraphError> {
        let given = |name: &String| {
            trained.get(name).map(Tensor::to_f64).ok_or_else(|| GraphError {
                op: "lora".into(),
                scope: name.clone(),
                expected: "a trained adapter of every layer".into(),
                found: "none".into(),
                remedy: "give what training this very model gave".into(),
            })
        };
        let [a_name, b_name] = Self::states(&layer.name);
        let (down, up) = (given(&a_name)?, given(&b_name)?);
        let [_, k] = layer.shape;
        let mut rows = layer.rows(graph);
        for (row, factors) in rows.chunks_mut(k).zip(up.chunks(self.rank)) {
            for (factor, line) in factors.iter().zip(down.chunks(k)) {
                row.iter_mut().zip(line).for_each(|(w, a)| *w += self.scale() * factor * a);
            }
        }
        let state =
            graph.states().iter().find(|s| s.name == layer.weight).expect("a layer of this graph");
        let ty = graph.ty(state.value);
        Ok(Tensor::from_f64(ty.dtype, ty.shape.clone(), &layer.stored(&rows)))
    }
}

/// Whether a layer of so many rows moves fewer bytes with W + s B A `[N, K]` as its weight. The sum
/// is read in f32 and written in 16 bits. Apart, products by B and A read and write y of the rows
/// once more in 16 bits, and the gradient of x.
fn sums_weights(rows: usize, [n, k]: [usize; 2]) -> bool {
    let (sum, apart) = (6 * n * k, 4 * rows * (n + k));
    sum < apart
}

/// The matrix of which a value is the transpose.
fn transposed(graph: &Graph, value: Value) -> Option<Value> {
    let node = graph.producer(value)?;
    matches!(node.op.prim()?, Prim::Transpose { perm } if perm[..] == [1, 0])
        .then(|| node.operands[0])
}
