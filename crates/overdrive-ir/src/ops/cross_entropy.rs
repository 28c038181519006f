//! `cross_entropy(logits, targets)`: `-log softmax(logits)[target] = lse(logits) - logits[target]`
//! for each row.
//!
//! logits are `[..., V]`, targets integers `[...]`. Targets out of range are clamped, as in
//! `gather`. Both results are in the accumulation type:
//! - the loss of each row, 0 where the target is `ignore_index`;
//! - the log-sum-exp, from which backward recomputes the softmax, so that no second `[..., V]` is
//!   stored.
//!
//! Source: Bridle (1990), "Probabilistic interpretation of feedforward classification network
//! outputs". Source of the log-sum-exp: Wijmans et al., "Cut your losses in large-vocabulary
//! language models", arXiv:2411.09009.

use crate::{
    Array, Builder, Compare, DType, Expr, Fill, Gradient, Graph, Mismatch, Op, Reducer, Sample,
    Shape, TensorType, Types,
};
use serde::{Deserialize, Serialize};

/// Cross entropy of logits with integer targets.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CrossEntropy {
    /// Rows with this target (padding, prompts) have loss 0 and no gradient.
    pub ignore_index: Option<i64>,
}

impl<'b> Expr<'b> {
    /// Loss of self `[..., V]` against integer targets `[...]`. Returns `[loss, log-sum-exp]`, each
    /// `[...]`.
    pub fn cross_entropy(self, targets: Expr<'b>, ignore_index: Option<i64>) -> [Expr<'b>; 2] {
        let results = self.builder().op(CrossEntropy { ignore_index }, &[self, targets]);
        [results[0], results[1]]
    }
}

impl CrossEntropy {
    /// Bool `[..., V]`: true at each row's target.
    fn one_hot<'b>(&self, logits: Expr<'b>, targets: Expr<'b>) -> Expr<'b> {
        let (shape, last) = (logits.shape(), logits.rank() - 1);
        let wide = targets.convert(DType::I64);
        let top = wide.constant(logits.size(last) as f64 - 1.0);
        let class = wide.max(wide.constant(0.0)).min(top).convert(DType::I32);
        let rows: Vec<usize> = (0..last).collect();
        let classes = logits.builder().iota(DType::I32, shape.clone(), last);
        class.broadcast_in(&shape, &rows).compare(Compare::Eq, classes)
    }

    /// `per_row` where the target counts, 0 where it is ignored.
    fn counted<'b>(&self, targets: Expr<'b>, per_row: Expr<'b>) -> Expr<'b> {
        let Some(ignored) = self.ignore_index else { return per_row };
        let ignored = targets.compare(Compare::Eq, targets.constant(ignored as f64));
        ignored.select(per_row.constant(0.0), per_row)
    }
}

impl Op for CrossEntropy {
    const NAME: &'static str = "cross_entropy";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [logits, targets] = types.exactly()?;
        let dtype = types.same_float(&types.operands[..1])?;
        let rows = Shape(logits.shape.0[..logits.rank().saturating_sub(1)].to_vec());
        if logits.rank() == 0 || !targets.dtype.is_int() || targets.shape != rows {
            let expected = format!("logits of [..., V] and integer targets {rows}");
            return Err(Mismatch::new(expected, format!("{logits} and {targets}")));
        }
        if logits.shape.0.last().and_then(crate::Dim::size) == Some(0) {
            return Err(Mismatch::new("at least one class", logits.to_string()));
        }
        if let (Some(ignored), Some((low, high))) = (self.ignore_index, targets.dtype.int_range())
            && !(low..=high).contains(&(ignored as i128))
        {
            let remedy = "use signed targets, or an ignore_index that they can hold";
            let expected = format!("ignore_index within {}", targets.dtype);
            return Err(Mismatch::new(expected, ignored.to_string()).remedy(remedy));
        }
        let row = TensorType::new(dtype.accumulation(), rows);
        Ok(vec![row.clone(), row])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let (logits, targets) = (&args[0], &args[1]);
        let classes = *logits.shape.last().expect("logits have a last dimension");
        let (mut loss, mut lse) = (vec![], vec![]);
        for (row, &target) in logits.floats().chunks(classes).zip(targets.ints()) {
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let log_sum = max + row.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
            let ignored = self.ignore_index.is_some_and(|ignored| ignored as i128 == target);
            let class = target.clamp(0, classes as i128 - 1) as usize;
            loss.push(if ignored { 0.0 } else { log_sum - row[class] });
            lse.push(log_sum);
        }
        let dtype = logits.dtype.accumulation();
        [loss, lse].map(|rows| Array::float(dtype, &targets.shape, rows)).to_vec()
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let (x, targets) = (args[0].widen(), args[1]);
        let class = [x.rank() - 1];
        let max = x.reduce_keep(Reducer::Max, &class);
        let lse = (x - max).exp().sum(&class).log() + max.reshape(targets.shape());
        // A select and a sum read the logits in the same pass as the rest; a gather would be a
        // second one.
        let picked = self.one_hot(x, targets).select(x, x.constant(0.0)).sum(&class);
        vec![self.counted(targets, lse - picked), lse]
    }

    /// `(softmax - one_hot) dloss + softmax dlse`
    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        let (logits, targets, lse) = (g.inputs[0], g.inputs[1], g.outputs[1]);
        let x = logits.widen();
        let rows: Vec<usize> = (0..x.rank() - 1).collect();
        let over_classes = |row: Expr<'b>| row.broadcast_in(&x.shape(), &rows);
        let softmax = || (x - over_classes(lse)).exp();
        let dloss = g.cotangents[0].map(|dloss| self.counted(targets, dloss));
        let through_sum = match (dloss, g.cotangents[1]) {
            (Some(dloss), Some(dlse)) => Some(dloss + dlse),
            (dloss, dlse) => dloss.or(dlse),
        };
        let mut dx = through_sum.map(|row| softmax() * over_classes(row));
        if let (Some(sum), Some(dloss)) = (dx, dloss) {
            dx = Some(sum - self.one_hot(x, targets).select(over_classes(dloss), x.constant(0.0)));
        }
        Some(vec![dx.map(|dx| dx.convert(logits.dtype())), None])
    }

    fn samples() -> Vec<Sample> {
        let sample = |ignore_index| Sample::new(CrossEntropy { ignore_index });
        let targets = |dtype, shape: Shape| TensorType::new(dtype, shape);
        let some_ignored = Fill::Values(vec![3.0, -100.0, 0.0, 4.0, -100.0, 1.0]);
        vec![
            sample(None)
                .normal([crate::Dim::from("N"), 7.into()])
                .operand(targets(DType::I64, ["N"].into()), Fill::Index(7)),
            sample(Some(-100))
                .normal([2usize, 3, 5])
                .operand(targets(DType::I32, [2usize, 3].into()), some_ignored),
            sample(Some(0))
                .normal([4usize, 33])
                .operand(targets(DType::U8, [4usize].into()), Fill::Index(3)),
            // Logits whose exponentials overflow, one class only, a single row, targets beyond both
            // ends.
            sample(None)
                .uniform([3usize, 9], 900.0, 1000.0)
                .operand(targets(DType::I32, [3usize].into()), Fill::Index(9)),
            sample(None)
                .normal([3usize, 1])
                .operand(targets(DType::I32, [3usize].into()), Fill::Index(1)),
            sample(None)
                .normal([6usize])
                .operand(targets(DType::I32, Shape::default()), Fill::Values(vec![-1.0])),
        ]
    }
}
