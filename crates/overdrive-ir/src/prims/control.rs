//! `if` and `while`: types only; their meaning is in the graph evaluator.

use crate::{DType, Graph, Mismatch, Prim, TensorType, Types};

/// Errs unless `region` takes `inputs`; returns its output types.
fn signature(
    region: &Graph,
    name: &str,
    inputs: &[TensorType],
) -> Result<Vec<TensorType>, Mismatch> {
    let list =
        |types: &[TensorType]| types.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", ");
    let declared: Vec<TensorType> =
        region.inputs().iter().map(|p| region.ty(p.value).clone()).collect();
    if declared != inputs {
        let expected = format!("region `{name}` with inputs ({})", list(inputs));
        return Err(Mismatch::new(expected, format!("({})", list(&declared))));
    }
    Ok(region.outputs().iter().map(|p| region.ty(p.value).clone()).collect())
}

pub(super) fn infer(prim: &Prim, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
    let flag = TensorType::scalar(DType::Bool);
    let [first, second] = types.regions else {
        return Err(Mismatch::new("two regions", types.regions.len().to_string()));
    };
    match prim {
        Prim::If => {
            let Some((condition, captures)) = types.operands.split_first() else {
                return Err(Mismatch::new("a bool[] condition", "no operand"));
            };
            if *condition != flag {
                return Err(Mismatch::new("a bool[] condition", condition.to_string()));
            }
            let yes = signature(first, "then", captures)?;
            let no = signature(second, "else", captures)?;
            if yes != no {
                return Err(Mismatch::new(
                    "branches of equal result types",
                    format!("{yes:?} and {no:?}"),
                ));
            }
            Ok(yes)
        }
        Prim::While { carried, .. } => {
            let Some(state) = types.operands.get(..*carried) else {
                return Err(Mismatch::new(
                    format!("{carried} carried operands"),
                    types.operands.len().to_string(),
                ));
            };
            let condition = signature(first, "condition", types.operands)?;
            if condition != [flag] {
                return Err(Mismatch::new(
                    "a condition that gives one bool[]",
                    format!("{condition:?}"),
                ));
            }
            let next = signature(second, "body", types.operands)?;
            if next != state {
                let expected = format!("a body that gives the carried types {state:?}");
                return Err(Mismatch::new(expected, format!("{next:?}")));
            }
            Ok(next)
        }
        _ => unreachable!("`{}` has no control flow", prim.name()),
    }
}
