//! Collectives: what crosses ranks. Evaluated over simulated ranks in lockstep.

use super::{check_axis, known, movement};
use crate::{Array, Channel, DType, Dim, Mismatch, Prim, Reducer, TensorType, Types};

fn scaled(
    a: &TensorType,
    axis: usize,
    scale: impl Fn(usize) -> Option<usize>,
) -> Result<TensorType, Mismatch> {
    check_axis(axis, &a.shape)?;
    let size = known(&a.with_shape(vec![a.shape[axis].clone()]))?[0];
    let new = scale(size).ok_or_else(|| {
        Mismatch::new(format!("an extent of axis {axis} that the ranks divide"), a.to_string())
    })?;
    let mut shape = a.shape.clone();
    shape.0[axis] = Dim::Size(new);
    Ok(a.with_shape(shape))
}

pub(super) fn infer(prim: &Prim, types: &Types<'_>) -> Result<TensorType, Mismatch> {
    if let Some(Channel { group, .. }) = prim.channel() {
        let ranks = group.axes.iter().try_fold(1usize, |n, (_, size)| n.checked_mul(*size));
        if ranks.is_none_or(|ranks| ranks == 0 || !group.has_group(group)) {
            let expected = "distinct axes of at least one rank each";
            return Err(Mismatch::new(expected, group.to_string()));
        }
    }
    if matches!(prim, Prim::RankIndex { .. }) {
        types.exactly::<0>()?;
        return Ok(TensorType::scalar(DType::I32));
    }
    let [a] = types.exactly()?;
    match prim {
        Prim::AllReduce { .. } => Ok(a.clone()),
        Prim::AllGather { axis, channel } => scaled(a, *axis, |n| n.checked_mul(channel.ranks())),
        Prim::ReduceScatter { axis, channel, .. } => {
            scaled(a, *axis, |n| n.is_multiple_of(channel.ranks()).then(|| n / channel.ranks()))
        }
        Prim::AllToAll { split, concat, channel } => {
            let ranks = channel.ranks();
            let cut = scaled(a, *split, |n| n.is_multiple_of(ranks).then(|| n / ranks))?;
            scaled(&cut, *concat, |n| n.checked_mul(ranks))
        }
        Prim::Permute { pairs, channel } => {
            let once = |side: fn(&(usize, usize)) -> usize| {
                let mut ranks: Vec<usize> = pairs.iter().map(side).collect();
                ranks.sort_unstable();
                ranks.windows(2).all(|w| w[0] != w[1]) && ranks.iter().all(|&r| r < channel.ranks())
            };
            if !once(|p| p.0) || !once(|p| p.1) {
                let expected =
                    format!("each of {} ranks at most once on each side", channel.ranks());
                return Err(Mismatch::new(expected, format!("{pairs:?}")));
            }
            Ok(a.clone())
        }
        _ => unreachable!("`{}` is not a collective", prim.name()),
    }
}

/// Result of each rank of a group from the operands of each rank, in the group's order.
pub(crate) fn eval(prim: &Prim, args: &[Vec<Array>]) -> Vec<Array> {
    let ranks = args.len();
    let fold = |reducer: Reducer| {
        let prim = Prim::Binary { kind: reducer.binary() };
        let mut operands = args.iter().map(|a| a[0].clone());
        let first = operands.next().expect("there is at least one rank");
        operands.fold(first, |sum, a| super::eval(&prim, &[sum, a], &[]).remove(0))
    };
    match prim {
        Prim::AllReduce { reducer, .. } => vec![fold(*reducer); ranks],
        Prim::AllGather { axis, .. } => {
            let parts: Vec<Array> = args.iter().map(|a| a[0].clone()).collect();
            vec![movement::join(&parts, *axis); ranks]
        }
        Prim::ReduceScatter { reducer, axis, .. } => {
            let sum = fold(*reducer);
            (0..ranks).map(|rank| part(&sum, *axis, (rank, ranks))).collect()
        }
        Prim::AllToAll { split, concat, .. } => {
            let arrives = |rank: usize| -> Vec<Array> {
                args.iter().map(|a| part(&a[0], *split, (rank, ranks))).collect()
            };
            (0..ranks).map(|rank| movement::join(&arrives(rank), *concat)).collect()
        }
        Prim::Permute { pairs, .. } => {
            let mut results: Vec<Array> = args
                .iter()
                .map(|a| Array::from_f64(a[0].dtype, &a[0].shape, vec![0.0; a[0].len()]))
                .collect();
            pairs.iter().for_each(|&(source, target)| results[target] = args[source][0].clone());
            results
        }
        _ => unreachable!("`{}` is not a collective", prim.name()),
    }
}

/// Part `index` of `count` along an axis.
fn part(array: &Array, axis: usize, (index, count): (usize, usize)) -> Array {
    let size = array.shape[axis] / count;
    let (mut start, mut limit) = (vec![0; array.shape.len()], array.shape.clone());
    (start[axis], limit[axis]) = (index * size, (index + 1) * size);
    let prim = Prim::Slice { start, limit, stride: vec![1; array.shape.len()] };
    super::eval(&prim, std::slice::from_ref(array), &[]).remove(0)
}
