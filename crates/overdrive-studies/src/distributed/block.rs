//! A pre-norm decoder block whose layers are split (tensor parallel): Shoeybi et al., "Megatron-LM:
//! training multi-billion parameter language models using model parallelism", arXiv:1909.08053.
//!
//! Queries, keys, values and the wide layer are split by columns, and what follows them by rows. So
//! each half of the block ends with one sum over the ranks.

use super::joint::{Joint, Judge, Split, of_graph, of_shards};
use overdrive_bench::case::Workload;
use overdrive_bench::failure::Failure;
use overdrive_bench::work::Items;
use overdrive_ir::ops::{Attention, gelu::Approximation};
use overdrive_ir::{
    Axis, Builder, DType, Expr, Graph, GraphError, Init, Mesh, Sharding, StateDecl, Tensor,
    TensorType,
};
use overdrive_passes::{Recipe, draw, precision, shard};
use serde_json::{Value, json};

/// The axis of all ranks.
const AXIS: &str = "tensor";
/// Standard deviation of the weights.
const STD: f64 = 0.02;
/// Tokens and width at which outputs are held against f64; the width for each head.
const SMALL: (usize, usize) = (32, 16);

/// A block over `[1, T, D]`.
pub(super) struct Block {
    pub(super) tokens: usize,
    pub(super) width: usize,
    pub(super) heads: usize,
    /// The format of contractions.
    pub(super) dtype: DType,
}

/// The parts, in the order in which `Block::graph` uses them, with the dimension of the weight that
/// is split.
const COLUMNS: [&str; 4] = ["query", "key", "value", "expand"];
const ROWS: [&str; 2] = ["projection", "contract"];

fn linear<'b>(x: Expr<'b>, name: &str, [from, to]: [usize; 2]) -> Expr<'b> {
    let b = x.builder();
    let _scope = b.scope(name);
    let normal = Init::Normal { std: STD, seed: 0 };
    let w = b.state("weight", TensorType::new(DType::F32, [from, to]), normal);
    let bias = b.state("bias", TensorType::new(DType::F32, [to]), Init::ZEROS);
    x.linear(w, Some(bias))
}

fn norm<'b>(x: Expr<'b>, name: &str, width: usize) -> Expr<'b> {
    let b = x.builder();
    let _scope = b.scope(name);
    let ty = || TensorType::new(DType::F32, [width]);
    let scale = b.state("scale", ty(), Init::Constant(1.0));
    x.layer_norm(scale, b.state("bias", ty(), Init::ZEROS), 1e-5)
}

impl Block {
    fn graph(&self) -> Result<Graph, GraphError> {
        let Self { tokens, width, heads, dtype } = *self;
        let b = Builder::new("transformer block");
        let x = b.input("x", TensorType::new(DType::F32, [1, tokens, width]));
        let seen = norm(x, "norm1", width);
        let part = |name| {
            let projected = linear(seen, name, [width, width]);
            projected.reshape([1, tokens, heads, width / heads]).transpose(&[0, 2, 1, 3])
        };
        let [mixed, _] = part("query").attention(part("key"), part("value"), Attention::CAUSAL);
        let joined = mixed.transpose(&[0, 2, 1, 3]).reshape([1, tokens, width]);
        let x = x + linear(joined, "projection", [width, width]);
        let wide = linear(norm(x, "norm2", width), "expand", [width, 4 * width]);
        b.output("y", x + linear(wide.gelu(Approximation::Tanh), "contract", [4 * width, width]));
        precision(&b.finish()?, &Recipe { contractions: dtype })
    }

    fn of_ranks(&self, ranks: usize) -> Result<Split, Failure> {
        let whole = self.graph().map_err(of_graph)?;
        let axis = Axis::from(AXIS);
        let split = |state: &StateDecl| {
            let (part, kind) = state.name.split_once('.')?;
            let dim = match (COLUMNS.contains(&part), ROWS.contains(&part), kind) {
                (true, _, "weight") => 1,
                (true, _, _) | (_, true, "weight") => 0,
                _ => return None,
            };
            let rank = whole.ty(state.value).rank();
            Some((state.value, Sharding::whole(rank).and_split(dim, &axis)))
        };
        let shardings = whole.states().iter().filter_map(split).collect();
        let mesh = Mesh::new([(AXIS, ranks)]);
        let sharded =
            (ranks > 1).then(|| shard(&whole, &mesh, &shardings)).transpose().map_err(of_shards)?;
        Ok(Split { whole, sharded, inputs: same })
    }
}

/// Every rank sees all tokens.
fn same(graph: &Graph, _rank: usize) -> Vec<Tensor> {
    let init = Init::Normal { std: 1.0, seed: 1 };
    graph.inputs().iter().map(|port| draw(&init, &port.name, graph.ty(port.value))).collect()
}

impl Joint for Block {
    fn workload(&self, _ranks: usize) -> Workload {
        let [t, d, h] = [self.tokens, self.width, self.heads].map(|size| size as u64);
        Workload::new("transformer block", [("B", 1), ("T", t), ("D", d), ("H", h)])
    }

    fn variant(&self) -> Option<&'static str> {
        Some("tensor parallel")
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn refusal(&self, ranks: usize) -> Option<String> {
        let heads = self.heads;
        let divided = heads.is_multiple_of(ranks);
        (!divided).then(|| format!("expected ranks that divide {heads} heads, found {ranks}"))
    }

    fn items(&self, _ranks: usize) -> Option<Items> {
        Some(Items { per_call: self.tokens as u64, name: "tokens".to_owned() })
    }

    fn axis(&self) -> &'static str {
        AXIS
    }

    fn split(&self, ranks: usize) -> Result<Split, Failure> {
        self.of_ranks(ranks)
    }

    fn judge(&self, ranks: usize) -> Result<Judge, Failure> {
        let (tokens, width) = SMALL;
        let small = Block { tokens, width: width * self.heads, ..*self };
        Ok(Judge::Small(Box::new(small.of_ranks(ranks)?), self.dtype))
    }

    fn peers(&self) -> Vec<(&'static str, Value)> {
        let sizes = json!({ "tokens": self.tokens, "width": self.width, "heads": self.heads });
        ["tensor parallel", "async tensor parallel"].map(|part| (part, sizes.clone())).into()
    }
}
