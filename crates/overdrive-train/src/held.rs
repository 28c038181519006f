//! `Held`: which part of each state of a step this rank holds.
//!
//! The optimizer's states may be split among ranks (ZeRO-1: Rajbhandari et al., "ZeRO: memory
//! optimizations toward training trillion parameter models", 2020). Each rank then updates its part
//! of every parameter, from its part of the reduced gradient, and all gather the parameters.
//! Invariant: what leaves this crate, checkpoints say, is whole, so that any number of ranks
//! continues from it.
//!
//! Errors of compressed gradients differ from rank to rank. Whole, they are those of all ranks,
//! along a dimension of their own. Their sum is what the parameters have yet to receive. So another
//! number of ranks continues with the sum on rank 0 and nothing on others.

use crate::TrainError;
use overdrive_ir::{
    Axis, Binary, Communicator, Exchange, Graph, Prim, Sharding, Tensor, TensorType, Value,
};
use overdrive_passes::Sharded;
use std::collections::BTreeMap;

/// The states that are sharded over the ranks, in addition to the batch.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Shards {
    /// Nothing: each rank holds every state.
    #[default]
    Nothing,
    /// The optimizer's states, along a dimension that the ranks divide.
    Optimizer,
}

/// The parts of states that a rank holds; all of those that are not listed.
#[derive(Default)]
pub(crate) struct Held {
    split: BTreeMap<String, (TensorType, Sharding)>,
    sharded: Option<Sharded>,
}

/// Begins the names of states that are the optimizer's.
const OPTIMIZER: &str = "optimizer.";

/// Begins the names of states that compression of gradients keeps.
const COMPRESSION: &str = "compression.";

/// Ends the names of those that each rank has for itself.
const ERROR: &str = ".error";

/// How the optimizer's states lie on ranks along `axis`, and the gradients that they take.
pub(crate) fn optimizer(whole: &Graph, axis: &Axis, ranks: usize) -> BTreeMap<Value, Sharding> {
    let mut split = BTreeMap::new();
    for state in whole.states().iter().filter(|state| state.name.starts_with(OPTIMIZER)) {
        let sizes = whole.ty(state.value).sizes();
        if let Some(dim) = sizes.iter().position(|size| size.is_multiple_of(ranks)) {
            split.insert(state.value, Sharding::whole(sizes.len()).and_split(dim, axis));
        }
    }
    for node in whole.nodes().iter().filter(|node| node.op.name() == "adamw") {
        let [gradient, moment] = [node.operands[1], node.operands[2]];
        let Some(sharding) = split.get(&moment).cloned() else { continue };
        // Clipping multiplies gradients, after their norm was taken: they are split before both.
        let unclipped = whole.producer(gradient).filter(|producer| {
            matches!(producer.op.prim(), Some(Prim::Binary { kind: Binary::Mul, .. }))
        });
        let unclipped = unclipped.map(|product| product.operands[0]);
        for value in [Some(gradient), unclipped].into_iter().flatten() {
            split.insert(value, sharding.clone());
        }
    }
    split
}

/// Whether a state of a checkpoint continues as one of type `expected`.
pub(crate) fn continues(name: &str, found: &TensorType, expected: &TensorType) -> bool {
    let each = |ty: &TensorType| ty.sizes().get(1..).map(<[usize]>::to_vec);
    let is_of_each_rank = name.starts_with(COMPRESSION) && name.ends_with(ERROR);
    found == expected
        || is_of_each_rank
            && found.dtype == expected.dtype
            && found.rank() == expected.rank()
            && each(found) == each(expected)
}

/// A whole state of a checkpoint as the ranks of this run have it, which may be others in number.
pub(crate) fn of_ranks(saved: &Tensor, expected: &TensorType) -> Tensor {
    if saved.ty() == expected {
        return saved.clone();
    }
    let each: usize = expected.sizes()[1..].iter().product();
    let mut sums = vec![0.0; expected.elements()];
    for of_rank in saved.to_f64().chunks(each) {
        sums.iter_mut().zip(of_rank).for_each(|(sum, error)| *sum += error);
    }
    Tensor::from_f64(expected.dtype, expected.shape.clone(), &sums)
}

impl Held {
    /// Those of a step that was sharded.
    pub(crate) fn of(sharded: Sharded) -> Self {
        let states = sharded.graph.states().iter().zip(&sharded.states);
        let split = states.filter(|(_, sharding)| sharding.split.iter().any(Option::is_some));
        let split = split.map(|(state, sharding)| {
            let whole = sharded.whole_type(sharded.graph.ty(state.value), sharding);
            (state.name.clone(), (whole, sharding.clone()))
        });
        Self { split: split.collect(), sharded: Some(sharded) }
    }

    /// The type of a whole state. `own` is the type of the part that this rank holds.
    pub(crate) fn whole_type<'a>(&'a self, name: &str, own: &'a TensorType) -> &'a TensorType {
        self.split.get(name).map_or(own, |(ty, _)| ty)
    }

    /// Whether a rank holds less than all.
    pub(crate) fn is_split(&self) -> bool {
        !self.split.is_empty()
    }

    /// This rank's part of a whole state.
    pub(crate) fn part(&self, name: &str, whole: &Tensor, rank: usize) -> Tensor {
        match (self.split.get(name), &self.sharded) {
            (Some((_, sharding)), Some(sharded)) => sharded.part(whole, sharding, rank),
            _ => whole.clone(),
        }
    }

    /// On rank 0 the whole state from the parts of all ranks, which all come here; elsewhere the
    /// rank's own part.
    pub(crate) fn gathered(
        &self,
        name: &str,
        own: Tensor,
        communicator: &dyn Communicator,
    ) -> Result<Tensor, TrainError> {
        let (Some((_, sharding)), Some(sharded)) = (self.split.get(name), &self.sharded) else {
            return Ok(own);
        };
        let rank = communicator.rank();
        let mut parts = vec![own.clone()];
        // In pairs: no rank but 0 needs what others have.
        for other in 1..communicator.mesh().ranks() {
            if rank != 0 && rank != other {
                continue;
            }
            let what = format!("the parts of `{name}`");
            let bytes = if rank == 0 { &[] } else { own.bytes() };
            let exchange = Exchange { group: &[0, other], what: &what, bytes };
            let mut part = None;
            communicator.share(&exchange, &mut |position, bytes| {
                if rank == 0 && position == 1 {
                    part = Some(bytes.to_vec());
                }
            })?;
            let part = part.map(|bytes| Tensor::from_bytes(own.ty().clone(), bytes));
            parts.extend(part.map(|part| part.expect("all parts of a state are of one type")));
        }
        Ok(if rank == 0 { sharded.join(&parts, sharding) } else { own })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::DType;

    #[test]
    fn errors_of_other_ranks_are_those_of_the_first() {
        let errors = Tensor::from_f64(DType::F32, [3usize, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let of = |ranks: usize| TensorType::new(DType::F32, [ranks, 2]);
        let name = "compression.0.error";
        assert!(continues(name, errors.ty(), &of(2)) && continues(name, errors.ty(), &of(3)));
        assert!(!continues("optimizer.m.error", errors.ty(), &of(2)), "it is of no rank");
        assert!(!continues(name, errors.ty(), &TensorType::new(DType::F32, [2usize, 3])));
        assert_eq!(of_ranks(&errors, &of(3)), errors, "the same ranks have their own");
        assert_eq!(of_ranks(&errors, &of(2)).to_f64(), [9.0, 12.0, 0.0, 0.0]);
    }
}
