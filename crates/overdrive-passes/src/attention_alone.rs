//! Attention alone: the attentions of a model without the rest, so that their time is known.
//!
//! One graph is the model with the operands of its attentions as further outputs. The other has
//! these operands as inputs and computes nothing but the attentions. Passes that change attention
//! take it like any model, and they number attentions in the same order. Invariant: outputs of the
//! second, fed by the first, are those of the attentions within the model.

use crate::{dce, recognise};
use overdrive_ir::ops::Attention;
use overdrive_ir::{Builder, Graph, GraphError};

/// The attentions of a bound model.
#[derive(Clone, Debug)]
pub struct AttentionAlone {
    /// The model. Its first outputs are the operands, one for each input of
    /// [`attentions`](Self::attentions) in the same order.
    pub operands: Graph,
    /// The attentions alone: an output for each.
    pub attentions: Graph,
}

impl AttentionAlone {
    /// Those of a bound model; a model without attention has none.
    ///
    /// # Errors
    /// If an output has such a name.
    pub fn of(graph: &Graph) -> Result<Self, GraphError> {
        let graph = recognise(graph)?;
        let alone = Builder::new(graph.name());
        let mut count = 0;
        let operands = graph.rewrite(&mut |b, node, operands| {
            node.op.composite::<Attention>()?;
            let inputs = operands.iter().enumerate().map(|(at, &operand)| {
                let name = format!("attention.{count}.operand.{at}");
                b.output(&name, operand);
                alone.input(&name, operand.ty())
            });
            let inputs: Vec<_> = inputs.collect();
            alone.output(&format!("attention.{count}"), alone.again(node, &inputs)[0]);
            count += 1;
            None
        })?;
        Ok(Self { operands: dce(&operands)?, attentions: alone.finish()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::eval::{eval_tensors, philox};
    use overdrive_ir::ops::attention::mask_region;
    use overdrive_ir::{Compare, DType, Tensor, TensorType};

    /// The second attention reads the first, and a mask function captures a tensor.
    #[test]
    fn attentions_alone_give_what_they_give_within_the_model() {
        let b = Builder::new("model");
        let x = b.input("x", TensorType::new(DType::F32, [1, 2, 12, 4]));
        let ids = b.input("ids", TensorType::new(DType::I32, [12]));
        let [first, _] = x.attention(x * 0.5, x, Attention::CAUSAL);
        let mask = mask_region(&[ids.ty()], |[_, _, q, k], captures| {
            let [q, k] = [q, k].map(|at| captures[0].at(&[at]));
            q.compare(Compare::Eq, k)
        });
        let mask = mask.expect("the test's function is well typed");
        let y = first.exp();
        let [second, _] = y.attention_with([x, first], Attention::FULL, vec![mask], &[ids]);
        b.output("first", first);
        b.output("second", second);
        b.output("y", second + y);
        let graph = b.finish().expect("the test's graph is well typed");
        let drawn: Vec<f64> = philox::normals(5, 0).take(2 * 12 * 4).collect();
        let inputs = [
            Tensor::from_f64(DType::F32, [1, 2, 12, 4], &drawn),
            Tensor::from_ints(DType::I32, [12usize], &[0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2]),
        ];
        let AttentionAlone { operands, attentions } =
            AttentionAlone::of(&graph).expect("new names");
        let all = eval_tensors(&operands, &inputs);
        let count = attentions.inputs().len();
        assert_eq!(count, 7);
        let found = eval_tensors(&attentions, &all[..count]);
        // Values within the model are not rounded between its ops.
        for (alone, within) in found.iter().zip(&all[count..][..2]) {
            let (alone, within) = (alone.to_f64(), within.to_f64());
            assert!(alone.iter().zip(&within).all(|(a, b)| (a - b).abs() < 1e-5), "{alone:?}");
        }
    }
}
