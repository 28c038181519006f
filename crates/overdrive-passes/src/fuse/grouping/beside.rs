//! Sums that only collectives read become one loop, some at a time.
//!
//! Gradients of biases and of scales are sums over the rows of a batch. On one rank many of them
//! merge, since the norm of all gradients reads them together. On several ranks a collective stands
//! between each sum and the norm, so that the sums have no common reader. Each alone would be a
//! launch that reads little. Sums of what ranks exchanged stay apart: one loop would wait for the
//! exchange that starts last.

use super::{Grouping, Outline};
use crate::meeting_order::meets;
use overdrive_ir::{NodeId, Prim, Target, Value};
use std::collections::HashMap;

/// Sums of one loop, at most: as many as the norm reads at a time.
const TOGETHER: usize = 8;

/// Extents of what is summed, and the axes that are.
type SumShape = (Vec<usize>, Vec<usize>);

impl Grouping<'_> {
    /// Merges groups that sum values of one shape over the same axes for collectives alone.
    pub(super) fn merge_sums_for_ranks(&mut self, target: &dyn Target) {
        let mut open: HashMap<SumShape, (usize, usize)> = HashMap::new();
        for group in 0..self.groups.len() {
            let Some(shape) = self.sum_for_ranks(group) else { continue };
            match open.get_mut(&shape) {
                Some((into, sums))
                    if *sums < TOGETHER && self.mergeable([*into, group], target).is_ok() =>
                {
                    *sums += 1;
                    self.merge(group, *into);
                }
                _ => drop(open.insert(shape, (group, 1))),
            }
        }
    }

    /// The shape of a group's sum, where collectives alone read all that the group stores.
    fn sum_for_ranks(&self, group: usize) -> Option<SumShape> {
        let sum = self.groups[group].iter().find_map(|&id| {
            let node = self.graph.node(NodeId(id));
            let Some(Prim::Reduce { axes, .. }) = node.op.prim() else { return None };
            let summed = self.graph.ty(node.operands[0]);
            Some((summed.sizes(), axes.clone()))
        })?;
        let Outline { inputs, outputs: stored } = self.outline_of(group);
        let came = |&value: &Value| {
            self.node_of(value).is_some_and(|id| meets(self.graph.node(NodeId(id))))
        };
        if inputs.iter().any(came) {
            return None;
        }
        let is_for_ranks = stored.iter().all(|&value| {
            !self.any_reader(value, &|reader| {
                let prim = reader.and_then(|id| self.graph.node(NodeId(id)).op.prim());
                prim.is_none_or(|prim| prim.channel().is_none())
            })
        });
        is_for_ranks.then_some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;
    use overdrive_ir::plan::StepKind;
    use overdrive_ir::{
        Builder, Channel, DType, Description, Expr, Mesh, Mode, Reducer, TensorType, Tuning,
        WithoutKernels,
    };

    fn across_ranks(x: Expr<'_>) -> Expr<'_> {
        let b = x.builder();
        let channel = Channel { id: b.channel(), group: Mesh::new([("data", 2)]) };
        b.op1(Prim::AllReduce { reducer: Reducer::Sum, channel }, &[x])
    }

    /// Loops of a plan of `count` sums over rows of `[64, width]`, each summed over ranks or not.
    fn loops(count: usize, width: impl Fn(usize) -> usize, ranks: bool) -> usize {
        let b = Builder::new("sums");
        for at in 0..count {
            let ty = TensorType::new(DType::F32, [64, width(at)]);
            let sum = b.input(&format!("x{at}"), ty).sum(&[0]);
            b.output(&format!("y{at}"), if ranks { across_ranks(sum) } else { sum });
        }
        let dtypes = || [DType::F32].into();
        let description = Description {
            contraction_dtypes: dtypes(),
            loop_dtypes: dtypes(),
            ..Description::default()
        };
        let target = WithoutKernels(description);
        let plan = plan(&b.finish().unwrap(), Mode::Compile, &target, &Tuning::default()).unwrap();
        plan.steps.iter().filter(|step| matches!(step.kind, StepKind::Loop(_))).count()
    }

    #[test]
    fn sums_that_ranks_add_up_are_few_loops() {
        assert_eq!(loops(12, |_| 32, true), 2, "of 8 and of 4");
        assert_eq!(loops(12, |at| 32 + at % 2, true), 2, "six of each width");
        assert_eq!(loops(3, |_| 32, false), 3, "outputs of one rank are left alone");
    }
}
