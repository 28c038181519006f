//! Widen: contractions on element types that the device does not multiply run in a wider type that
//! it does.
//!
//! Nothing is cast in silence: each cast is a note that the plan shows.
//! - Floats of at most 8 bits become bf16, which holds every one of them. Their products are exact
//!   in the f32 that they are summed in.
//! - Other narrow floats, and all narrow floats where the device lacks bf16, become f32. It sums as
//!   `accumulate` asks or better.
//! - Integers become f64, which is exact up to 2^53. The reference evaluator sums in it too.
//!
//! Invariant: afterwards every contraction outside claimed composites is on a type of
//! `Description::contraction_dtypes`, or on one that no wider native type holds.

use crate::legalize::{Uses, primitives, scope_of, types};
use overdrive_ir::plan::Note;
use overdrive_ir::{DType, Expr, Graph, GraphError, Node, Operation, Prim, Target};

/// Puts conversions around contractions on types that the device lacks.
pub(crate) fn widen(
    graph: &Graph,
    target: &dyn Target,
    notes: &mut Vec<Note>,
) -> Result<Graph, GraphError> {
    let uses = Uses::of(graph);
    graph.rewrite(&mut |b, node, operands| {
        let prim = match &node.op {
            Operation::Prim(prim) => prim,
            Operation::Composite(_) => {
                let types = types(operands);
                if !uses.must_expand(node, &types, target) {
                    return None;
                }
                let flat = primitives(&node.op.expansion(&types, &node.regions), target);
                let lacks = |n: &Node| {
                    let dtype = n.operands.first().map(|&v| flat.ty(v).dtype);
                    n.op.prim()
                        .zip(dtype)
                        .is_some_and(|(prim, dtype)| wider(prim, dtype, target).is_some())
                };
                if !flat.nodes().iter().any(lacks) {
                    return None;
                }
                let flat = widen(&flat, target, notes)
                    .unwrap_or_else(|e| panic!("expansions are well typed: {e}"));
                let _scope = b.scope_path(&scope_of(&node.op));
                return Some(b.inline(&flat, operands));
            }
        };
        let narrow = operands.first()?.dtype();
        let wide = wider(prim, narrow, target)?;
        notes.push(Note::Cast {
            scope: node.scope.to_string(),
            reason: format!(
                "{} multiplies no {narrow}: {} runs in {wide}",
                target.description().device,
                prim.name()
            ),
        });
        let mut prim = prim.clone();
        let out = match &mut prim {
            Prim::DotGeneral(dot) => (&mut dot.accumulate, &mut dot.out),
            Prim::Convolution(conv) => (&mut conv.accumulate, &mut conv.out),
            _ => unreachable!("only contractions are widened"),
        };
        let result = *out.1;
        let sums = wide.accumulation();
        (*out.0, *out.1) = (sums, sums);
        let operands: Vec<Expr<'_>> = operands.iter().map(|x| x.convert(wide)).collect();
        Some(vec![b.op1(prim, &operands).convert(result)])
    })
}

/// The type in which a contraction on `narrow` should run instead, if it should.
fn wider(prim: &Prim, narrow: DType, target: &dyn Target) -> Option<DType> {
    let accumulate = match prim {
        Prim::DotGeneral(dot) => dot.accumulate,
        Prim::Convolution(conv) => conv.accumulate,
        _ => return None,
    };
    // Devices that multiply integers sum them in i32.
    let sums = narrow.is_float() || accumulate == DType::I32;
    if sums && target.description().contraction_dtypes.contains(&narrow) {
        return None;
    }
    let wider: &[DType] = match (narrow.is_float() && accumulate != DType::F64, narrow.bits()) {
        (true, ..=8) => &[DType::BF16, DType::F32],
        (true, _) => &[DType::F32],
        (false, _) => &[DType::F64],
    };
    wider
        .iter()
        .copied()
        .find(|&wide| narrow != wide && target.description().contraction_dtypes.contains(&wide))
}
