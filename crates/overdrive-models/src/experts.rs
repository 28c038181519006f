//! Mixture of experts: a router chooses a few feed-forward layers for each token and weighs them.
//!
//! Every expert computes every token, and those that were not chosen are weighed with 0. The result
//! is that of running the chosen ones alone. A device that leaves out the steps of experts that no
//! token chose does less; others do `count / chosen` times the work. Sources: Shazeer et al.,
//! arXiv:1701.06538; Jiang et al., "Mixtral of experts", arXiv:2401.04088.

use crate::parameters::{Bias, projection};
use overdrive_ir::{Binary, Compare, DType, Dim, Expr, Shape};

/// Experts whose results are there at once, before they are summed.
const TOGETHER: usize = 8;

/// The experts of a block, and how the router weighs them.
#[derive(Clone, PartialEq, Debug)]
pub struct Experts {
    /// E.
    pub count: usize,
    /// How many a token is given to, at most `count`.
    pub chosen: usize,
    /// Whether the weights of the chosen ones sum to 1.
    pub normalised: bool,
    /// Width of each.
    pub hidden: usize,
    /// Blocks that have one plain feed-forward layer instead.
    pub plain_blocks: Vec<usize>,
    /// Their names in checkpoints.
    pub names: &'static ExpertNames,
}

/// Names of a mixture's parts in checkpoints.
#[derive(PartialEq, Debug)]
pub struct ExpertNames {
    /// Scope of the whole.
    pub(crate) scope: &'static str,
    /// Names of an expert's gate, up projection and down projection.
    pub(crate) layers: [&'static str; 3],
}

impl ExpertNames {
    /// As Mixtral has them.
    pub const MIXTRAL: ExpertNames =
        ExpertNames { scope: "block_sparse_moe", layers: ["w1", "w3", "w2"] };
    /// As Qwen has them.
    pub const QWEN: ExpertNames =
        ExpertNames { scope: "mlp", layers: ["gate_proj", "up_proj", "down_proj"] };
}

impl Experts {
    /// The weighed sum of the experts' results for x `[batch, T, width]`.
    pub(crate) fn mixed<'b>(&self, x: Expr<'b>, width: usize) -> Expr<'b> {
        let b = x.builder();
        if x.is_poison() {
            return x;
        }
        let _scope = b.scope(self.names.scope);
        let weights = self.weights(projection(x, "gate", [width, self.count], Bias::None));
        let [gate, up, down] = self.names.layers;
        let expert = |index: usize| {
            let _scope = b.scope_path(&format!("experts/{index}"));
            let wide = |name| projection(x, name, [width, self.hidden], Bias::None);
            projection(wide(gate).silu() * wide(up), down, [self.hidden, width], Bias::None)
        };
        let sum = |first: usize| {
            let last = self.count.min(first + TOGETHER);
            weights.weighed_sum(first, &(first..last).map(expert).collect::<Vec<_>>())
        };
        let sums = (0..self.count).step_by(TOGETHER).map(sum);
        sums.reduce(|sum, next| sum + next).expect("a mixture has an expert")
    }

    /// Router scores `[batch, T, E]` as weights, 0 for the experts that are not chosen.
    fn weights<'b>(&self, scores: Expr<'b>) -> Expr<'b> {
        let p = scores.softmax(2);
        // An expert is chosen where fewer than `chosen` are better, the first of equals counting as
        // better.
        let (other, own) = (split(p, [1, self.count]), split(p, [self.count, 1]));
        let [row, column] =
            [0, 1].map(|axis| p.builder().iota(DType::I32, [self.count, self.count], axis));
        let tie = other.compare(Compare::Eq, own);
        let first = column.compare(Compare::Lt, row);
        let better = other.compare(Compare::Gt, own);
        let better = better.binary(Binary::Or, tie.binary(Binary::And, first));
        let count = better.select(own.constant(1.0), own.constant(0.0)).sum(&[3]);
        let is_chosen = count.compare(Compare::Lt, count.constant(self.chosen as f64));
        let weights = is_chosen.select(p, p.constant(0.0));
        if self.normalised { weights / with_extents(weights.sum(&[2]), &[1]) } else { weights }
    }
}

/// `[batch, T, E]` as `[batch, T, ...]`.
fn split<'b>(x: Expr<'b>, extents: [usize; 2]) -> Expr<'b> {
    let mut dims: Vec<Dim> = x.shape().0[..2].to_vec();
    dims.extend(extents.map(Dim::from));
    x.reshape(Shape(dims))
}

/// x with these extents behind its own.
fn with_extents<'b>(x: Expr<'b>, extents: &[usize]) -> Expr<'b> {
    let mut dims = x.shape().0;
    dims.extend(extents.iter().map(|&extent| Dim::from(extent)));
    x.reshape(Shape(dims))
}
