//! StableHLO text: snapshots of small graphs, and what XLA cannot say. The meaning of the text is
//! tested by running it in a plugin (`overdrive-foreign/tests/xla.rs`).

use overdrive_formats::{FormatError, stablehlo};
use overdrive_ir::ops::OPS;
use overdrive_ir::{Builder, Channel, DType, Graph, Init, Overflow, Prim, Reducer, TensorType};

fn text(graph: &Graph) -> String {
    stablehlo::text(graph).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_layer_with_a_state_that_is_updated() {
    let b = Builder::new("layer");
    let x = b.input("x", TensorType::new(DType::BF16, [2usize, 3]));
    let w = b.state("w", TensorType::new(DType::BF16, [3usize, 4]), Init::ZEROS);
    let calls = b.state("calls", TensorType::scalar(DType::I64), Init::ZEROS);
    b.output("y", x.matmul(w).softmax(1));
    b.update("calls", calls + 1.0);
    insta::assert_snapshot!(text(&b.finish().unwrap()));
}

#[test]
fn conversions_and_corners_are_spelt_out() {
    let b = Builder::new("corners");
    let x = b.input("x", TensorType::new(DType::F32, [3usize]));
    let n = b.input("n", TensorType::new(DType::I32, [3usize]));
    let convert = |to, overflow| b.op1(Prim::Convert { to, overflow }, &[x]);
    b.output("e4m3", convert(DType::F8E4M3, Overflow::Saturate));
    b.output("e5m2", convert(DType::F8E5M2, Overflow::Saturate));
    b.output("i4", convert(DType::I4, Overflow::Saturate));
    b.output("quotient", n / n);
    insta::assert_snapshot!(text(&b.finish().unwrap()));
}

#[test]
fn regions_pass_on_what_they_capture() {
    let ty = TensorType::new(DType::F32, [2usize]);
    let region =
        |name: &str,
         result: &dyn for<'b> Fn([overdrive_ir::Expr<'b>; 2]) -> overdrive_ir::Expr<'b>| {
            let b = Builder::new(name);
            b.output("y", result([b.input("x", ty.clone()), b.input("step", ty.clone())]));
            b.finish().unwrap()
        };
    let small = region("condition", &|[x, _]| {
        x.sum(&[0]).compare(overdrive_ir::Compare::Lt, x.sum(&[0]).constant(20.0))
    });
    let grow = region("body", &|[x, step]| x + step);
    let b = Builder::new("growing");
    let (x, step) = (b.input("x", ty.clone()), b.input("step", ty.clone()));
    let prim = Prim::While { carried: 1, max_trips: Some(8) };
    b.output("y", b.node(prim, &[x, step], vec![small, grow])[0]);
    insta::assert_snapshot!(text(&b.finish().unwrap()));
}

#[test]
fn every_op_is_written_unless_a_format_or_a_rank_forbids_it() {
    for op in OPS {
        for sample in (op.samples)() {
            let names = |dim: &overdrive_ir::Dim| match dim {
                overdrive_ir::Dim::Named(_) => overdrive_ir::Dim::Size(4),
                size => size.clone(),
            };
            let b = Builder::new(op.name);
            let inputs: Vec<_> = sample
                .operands
                .iter()
                .enumerate()
                .map(|(i, operand)| {
                    let shape = overdrive_ir::Shape(operand.ty.shape.0.iter().map(names).collect());
                    b.input(&format!("x{i}"), operand.ty.with_shape(shape))
                })
                .collect();
            // Sizes of 4 do not fit every sample: those are the business of the harness.
            for (i, y) in
                b.node(sample.op.clone(), &inputs, sample.regions.clone()).iter().enumerate()
            {
                b.output(&format!("y{i}"), *y);
            }
            let Ok(graph) = b.finish() else { continue };
            let short = |dtype| matches!(dtype, DType::F6E2M3 | DType::F6E3M2);
            // Some make such values between others.
            let makes = format!("{:?}", sample.op).contains("F6E");
            if makes || graph.inputs().iter().any(|port| short(graph.ty(port.value).dtype)) {
                assert!(matches!(stablehlo::text(&graph), Err(FormatError::Inexpressible { .. })));
                continue;
            }
            let text = text(&graph);
            assert!(text.contains("func.func public @main") && text.ends_with("}\n"), "{text}");
        }
    }
}

#[test]
fn all_that_cannot_be_said_is_said_at_once() {
    let b = Builder::new("unsaid");
    let x = b.input("x", TensorType::new(DType::F32, [4usize]));
    let six = b.op1(Prim::Convert { to: DType::F6E2M3, overflow: Overflow::Saturate }, &[x]);
    b.output("six", six.convert(DType::F32));
    let channel = Channel { id: 1, group: overdrive_ir::Mesh::new([("data", 2)]) };
    b.output("sum", b.op1(Prim::AllReduce { reducer: Reducer::Sum, channel }, &[x]));
    let error = stablehlo::text(&b.finish().unwrap()).unwrap_err();
    assert!(
        matches!(&error, FormatError::Inexpressible { parts, .. } if parts.len() == 3),
        "{error}"
    );
    let message = error.to_string();
    assert!(message.contains("f6e2m3") && message.contains("all_reduce"), "{message}");
    let b = Builder::new("open");
    b.output("y", b.input("x", TensorType::new(DType::F32, ["batch"])));
    assert!(
        stablehlo::text(&b.finish().unwrap()).unwrap_err().to_string().contains("bind them first")
    );
}

#[test]
fn a_file_appears_whole() {
    let folder = tempfile::tempdir().unwrap();
    let b = Builder::new("copy");
    b.output("y", b.input("x", TensorType::new(DType::F32, [2usize])));
    let graph = b.finish().unwrap();
    let path = folder.path().join("copy.mlir");
    stablehlo::write(&path, &graph).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text(&graph));
    assert!(stablehlo::write(&folder.path().join("none/copy.mlir"), &graph).is_err());
}
