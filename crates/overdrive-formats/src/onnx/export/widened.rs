//! Composites of bf16 operands as the same of f32 ones, between casts.
//!
//! ONNX Runtime moves bf16 on a processor and computes nothing in it: it refuses a file with a
//! MatMul of bf16. Products of bf16 are exact in f32, so the casts change nothing but the order of
//! sums. TensorRT has bf16, and reads the op as it is.

use super::signature::Signature;
use overdrive_ir::ops::Embedding;
use overdrive_ir::{Builder, DType, Graph, Node};

/// A graph of the node in f32, with inputs and outputs of the types that it has. `None` where it
/// has no operand in bf16, only moves numbers, or has no form in f32.
pub(super) fn widened(node: &Node, types: &Signature) -> Option<Graph> {
    let is_narrow = types.operands.iter().any(|ty| ty.dtype == DType::BF16);
    if !is_narrow || node.op.prim().is_some() || node.op.composite::<Embedding>().is_some() {
        return None;
    }
    let b = Builder::new("widened");
    let inputs: Vec<_> = types
        .operands
        .iter()
        .enumerate()
        .map(|(i, ty)| b.input(&format!("x{i}"), ty.clone()))
        .collect();
    let scope = b.scope_path(&node.scope);
    let wide: Vec<_> = inputs
        .iter()
        .map(|x| if x.dtype() == DType::BF16 { x.convert(DType::F32) } else { *x })
        .collect();
    let results = b.node(node.op.clone(), &wide, node.regions.clone());
    for (i, (result, ty)) in results.into_iter().zip(&types.results).enumerate() {
        b.output(&format!("y{i}"), result.convert(ty.dtype));
    }
    drop(scope);
    b.finish().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.
mod tests {
    use super::*;
    use overdrive_ir::TensorType;

    /// The types of the operands of each node of this name.
    fn widened_operands(build: impl Fn(&Builder)) -> Option<Vec<DType>> {
        let b = Builder::new("half");
        build(&b);
        let graph = b.finish().unwrap();
        let node = graph.nodes().last().unwrap();
        let types = Signature {
            operands: graph.types(&node.operands),
            results: graph.types(&node.results),
        };
        let wide = widened(node, &types)?;
        let same = |ports: &[overdrive_ir::Port], types: &[TensorType]| {
            assert_eq!(ports.len(), types.len());
            ports.iter().zip(types).for_each(|(port, ty)| assert_eq!(wide.ty(port.value), ty));
        };
        same(wide.inputs(), &types.operands);
        same(wide.outputs(), &types.results);
        let inner = wide.nodes().iter().find(|inner| inner.op == node.op).unwrap();
        Some(wide.types(&inner.operands).iter().map(|ty| ty.dtype).collect())
    }

    #[test]
    fn what_computes_in_bf16_computes_in_f32_between_casts() {
        let product = |dtype: DType| {
            widened_operands(move |b| {
                let x = b.input("x", TensorType::new(dtype, [2usize, 3]));
                let w = b.input("w", TensorType::new(dtype, [3usize, 4]));
                b.output("y", x.linear(w, None));
            })
        };
        assert_eq!(product(DType::BF16), Some(vec![DType::F32; 2]));
        assert_eq!(product(DType::F16), None);
        let rows = widened_operands(|b| {
            let table = b.input("table", TensorType::new(DType::BF16, [5usize, 3]));
            b.output("y", table.embedding(b.input("ids", TensorType::new(DType::I32, [4usize]))));
        });
        assert_eq!(rows, None);
    }
}
