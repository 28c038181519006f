//! Unmask: attention whose mask function hides nothing loses it.
//!
//! A model of a sliding window asks for it whatever the sequence is. If the sequence is no longer
//! than the window, kernels without mask functions do the same, faster. Whether anything is hidden
//! follows from the ranges of the four indices, by interval arithmetic on the function (Moore,
//! "Interval Analysis", 1966). Invariant: a mask is dropped only where it is true of every index of
//! its attention.

use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::find_mask;
use overdrive_ir::{Binary, Compare, DType, Graph, GraphError, Origin, Prim, Value};
use std::collections::HashMap;

/// Drops masks that hide nothing.
pub(crate) fn unmask(graph: &Graph) -> Result<Graph, GraphError> {
    let masked = |graph: &Graph| {
        let hides = |regions: &[Graph]| find_mask(regions).is_some();
        graph
            .nodes()
            .iter()
            .any(|node| node.op.composite::<Attention>().is_some() && hides(&node.regions))
    };
    if !masked(graph) {
        return Ok(graph.clone());
    }
    graph.rewrite(&mut |b, node, operands| {
        let attention = node.op.composite::<Attention>()?;
        let mask = find_mask(&node.regions)?;
        let [q, k] = [operands[0].sizes(), operands[1].sizes()];
        if !is_always_true(mask, [q[0], q[1], q[2], k[2]]) {
            return None;
        }
        let kept: Vec<Graph> =
            node.regions.iter().filter(|region| *region != mask).cloned().collect();
        let (_, captures) = attention.seed_and_captures(&operands[3..]);
        let unread = if kept.is_empty() { captures.len() } else { 0 };
        Some(b.node(*attention, &operands[..operands.len() - unread], kept))
    })
}

/// All values that an integer or a truth may have, both ends included.
type Range = [i64; 2];

/// Whether a mask function is true of every `[b, h, q, k]` below `extents`.
fn is_always_true(mask: &Graph, extents: [usize; 4]) -> bool {
    let mut ranges: HashMap<Value, Range> = HashMap::new();
    for (port, extent) in mask.inputs().iter().zip(extents) {
        let Ok(last) = i64::try_from(extent.saturating_sub(1)) else { return false };
        ranges.insert(port.value, [0, last]);
    }
    for node in mask.nodes() {
        let Some(prim) = node.op.prim() else { continue };
        let operands: Option<Vec<Range>> =
            node.operands.iter().map(|v| ranges.get(v).copied()).collect();
        let dtype = mask.ty(node.results[0]).dtype;
        let range = operands.and_then(|operands| range(prim, &operands));
        // A value that wraps around has no range.
        let fits = |n: i64| {
            dtype == DType::Bool
                || dtype.int_range().is_some_and(|(l, h)| (l..=h).contains(&n.into()))
        };
        if let Some(range) = range.filter(|range| range.iter().all(|&n| fits(n))) {
            ranges.insert(node.results[0], range);
        }
    }
    let visible = mask.outputs()[0].value;
    !matches!(mask.origin(visible), Origin::State(_)) && ranges.get(&visible) == Some(&[1, 1])
}

/// The range of a result, where it is known.
fn range(prim: &Prim, operands: &[Range]) -> Option<Range> {
    match (prim, operands) {
        (Prim::Constant { value }, []) if !value.ty().dtype.is_float() => match value.to_ints()[..]
        {
            [n] => i64::try_from(n).ok().map(|n| [n, n]),
            _ => None,
        },
        (Prim::Convert { .. } | Prim::Broadcast { .. } | Prim::Reshape { .. }, &[x]) => Some(x),
        (Prim::Binary { kind }, &[[a, b], [c, d]]) => Some(match kind {
            Binary::Add => [a.checked_add(c)?, b.checked_add(d)?],
            Binary::Sub => [a.checked_sub(d)?, b.checked_sub(c)?],
            Binary::Max => [a.max(c), b.max(d)],
            Binary::Min => [a.min(c), b.min(d)],
            // For booleans; for integers only if both are 0 or 1.
            Binary::And if [a, c].iter().all(|&n| n >= 0) && b <= 1 && d <= 1 => [a & c, b & d],
            Binary::Or if [a, c].iter().all(|&n| n >= 0) && b <= 1 && d <= 1 => [a | c, b | d],
            _ => return None,
        }),
        (Prim::Compare { kind }, &[[a, b], [c, d]]) => {
            let (always, never) = match kind {
                Compare::Lt => (b < c, a >= d),
                Compare::Le => (b <= c, a > d),
                Compare::Gt => (a > d, b <= c),
                Compare::Ge => (a >= d, b < c),
                _ => return None,
            };
            Some([always.into(), (!never).into()])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::ops::attention::mask_region;

    #[test]
    fn a_window_hides_nothing_of_sequences_that_are_no_longer() {
        let window =
            mask_region(&[], |[_, _, q, k], _| (q - k).compare(Compare::Lt, q.constant(5.0)));
        let window = window.expect("a mask");
        assert!(is_always_true(&window, [2, 3, 5, 5]));
        assert!(!is_always_true(&window, [2, 3, 6, 6]));
        let both = mask_region(&[], |[b, h, q, k], _| {
            let near = (q - k).max(k - q).compare(Compare::Le, q.constant(4.0));
            near.binary(Binary::And, (b + h).compare(Compare::Ge, b.constant(0.0)))
        });
        let both = both.expect("a mask");
        assert!(is_always_true(&both, [2, 3, 5, 4]));
        assert!(!is_always_true(&both, [2, 3, 4, 6]));
        // Products have no range here: what is not known to hide nothing stays.
        let unknown =
            mask_region(&[], |[_, _, q, k], _| (q * k).compare(Compare::Ge, q.constant(0.0)));
        assert!(!is_always_true(&unknown.expect("a mask"), [1, 1, 2, 2]));
    }
}
