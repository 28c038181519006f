//! Layers by 2:4 weights against the f64 definition: every tile of the kernel, ragged shapes,
//! operands that lie oddly.

use crate::support::gpu;
use overdrive_cuda::CudaBackend;
use overdrive_cuda::compiler::Architecture;
use overdrive_cuda::kernels::answer;
use overdrive_cuda::loops::PrinterMachine;
use overdrive_ir::eval::philox;
use overdrive_ir::ops::SparseLinear;
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::plan::{Note, StepKind};
use overdrive_ir::{
    Array, Backend, Builder, Call, DType, Expr, Graph, Mode, Op, Operation, Plan, State,
    TensorType, Tuning,
};
use testkit::{Needs, check_backend};

fn normal(dtype: DType, shape: &[usize], site: u64) -> Array {
    let values = philox::normals(5, site).take(shape.iter().product()).collect();
    Array::from(&Array::from_f64(dtype, shape, values).to_tensor())
}

/// Places of two of each four. Some groups have more bits; the first two count.
fn mask(n: usize, k: usize) -> Array {
    const GROUPS: [u8; 8] = [0b0011, 0b0101, 0b0110, 0b1001, 0b1010, 0b1100, 0b1110, 0b1111];
    let groups: Vec<u8> = philox::uniforms(5, 9)
        .take(n * k / 4)
        .map(|u| GROUPS[(u * u * GROUPS.len() as f64) as usize])
        .collect();
    let bytes = groups.chunks(2).map(|pair| f64::from(pair[0] | pair[1] << 4)).collect();
    Array::from_f64(DType::U8, &[n, k / 8], bytes)
}

#[derive(Clone, Copy, Debug)]
struct Layer {
    dtype: DType,
    rows: usize,
    n: usize,
    k: usize,
}

impl Layer {
    fn inputs(&self) -> Vec<Array> {
        let Layer { dtype, rows, n, k } = *self;
        vec![normal(dtype, &[rows, k], 1), normal(dtype, &[n, k / 2], 2), mask(n, k)]
    }

    fn declined(&self) -> Option<String> {
        let types: Vec<TensorType> = self.inputs().iter().map(Array::ty).collect();
        let op = Operation::from(SparseLinear);
        let call = Call::Op { op: &op, operands: &types, regions: &[], wanted: &[] };
        let machine = PrinterMachine { multiprocessors: 132, architecture: Architecture::Sm90a };
        answer(&call, machine).err().map(|decline| decline.reason("Hopper"))
    }
}

fn graph(inputs: &[Array], f: impl for<'b> Fn(&[Expr<'b>]) -> Expr<'b>) -> Graph {
    let b = Builder::new("layer");
    let args: Vec<Expr<'_>> =
        inputs.iter().enumerate().map(|(i, a)| b.input(&format!("x{i}"), a.ty())).collect();
    b.output("y", f(&args));
    b.finish().unwrap()
}

fn sparse<'b>(args: &[Expr<'b>]) -> Expr<'b> {
    args[0].sparse_linear(args[1], args[2])
}

/// With a bias, an activation and a residual.
fn block<'b>(args: &[Expr<'b>]) -> Expr<'b> {
    (sparse(args) + args[3]).gelu(Approximation::Tanh) + args[4]
}

/// In a wider type than that of x.
fn halved<'b>(args: &[Expr<'b>]) -> Expr<'b> {
    let wide = sparse(args).convert(DType::F32);
    wide * wide.constant(0.5)
}

/// The GPU, if it is one with the kernel; otherwise the test is skipped.
fn hopper() -> Option<CudaBackend> {
    let gpu = gpu()?;
    let architecture = gpu.device().architecture();
    if architecture != Architecture::Sm90a {
        let reason = format!("the kernel needs {}, found {architecture}", Architecture::Sm90a);
        testkit::skip(Needs::Hopper, reason);
        return None;
    }
    Some(gpu)
}

/// Panics unless a kernel multiplies, and no weight is unpacked.
fn assert_sparse(plan: &Plan) {
    let products = plan.steps.iter().filter(|step| matches!(step.kind, StepKind::Kernel(_)));
    assert_eq!(products.count(), 1, "{plan}");
    assert!(!plan.to_string().contains("unpack_24"), "{plan}");
    assert!(!plan.notes.iter().any(|note| matches!(note, Note::Declined { .. })), "{plan}");
}

#[test]
fn few_rows_in_every_tile() {
    let layer = |rows, n, k| Layer { dtype: DType::BF16, rows, n, k };
    for layer in [
        layer(1, 4096, 128),
        layer(16, 4160, 256),
        Layer { dtype: DType::F16, ..layer(17, 4104, 384) },
        layer(32, 4096, 640),
        Layer { dtype: DType::F16, ..layer(33, 4097, 128) },
        layer(63, 4100, 128),
        layer(2, 4096, 1152),
    ] {
        assert_eq!(layer.declined(), None, "{layer:?}");
        let Some(backend) = hopper() else { return };
        let inputs = layer.inputs();
        let graph = graph(&inputs, sparse);
        assert_sparse(backend.compile(&graph, Mode::Compile, &Tuning::default()).unwrap().plan());
        check_backend(&backend, Mode::Compile, &graph, &inputs)
            .unwrap_or_else(|e| panic!("{layer:?}: {e}"));
    }
}

#[test]
fn operands_and_results_that_lie_oddly() {
    let layer = Layer { dtype: DType::BF16, rows: 24, n: 4096, k: 128 };
    let Some(backend) = hopper() else { return };
    let mut inputs = layer.inputs();
    inputs[0] = normal(DType::BF16, &[128, 24], 1);
    // A transposed x, a result that is wanted transposed.
    let turned = graph(&inputs, |args| args[0].t().sparse_linear(args[1], args[2]).t());
    // Rows of x in two dimensions, a part of a longer row each.
    let mut wide = layer.inputs();
    wide[0] = normal(DType::BF16, &[3, 8, 200], 1);
    let sliced = graph(&wide, |args| args[0].slice_axis(2, 8, 136).sparse_linear(args[1], args[2]));
    for (graph, inputs) in [(turned, inputs), (sliced, wide)] {
        for mode in [Mode::Eager, Mode::Compile, Mode::Graph] {
            check_backend(&backend, mode, &graph, &inputs)
                .unwrap_or_else(|e| panic!("{mode}: {e}"));
        }
    }
}

#[test]
fn what_follows_is_fused() {
    let layer = Layer { dtype: DType::BF16, rows: 24, n: 4096, k: 128 };
    let mut inputs = layer.inputs();
    inputs.extend([normal(DType::BF16, &[4096], 3), normal(DType::BF16, &[24, 4096], 4)]);
    let ragged = Layer { n: 4100, ..layer };
    let mut of_ragged = ragged.inputs();
    of_ragged.extend([normal(DType::BF16, &[4100], 3), normal(DType::BF16, &[24, 4100], 4)]);
    // Sums of quarters' products are exact, so that codes are the same whatever the order of the
    // sums.
    let quarters = |array: &Array| {
        let values = array.floats().iter().map(|v| (v * 2.0).round() / 4.0).collect();
        Array::from_f64(array.dtype, &array.shape, values)
    };
    let exact = vec![quarters(&inputs[0]), quarters(&inputs[1]), inputs[2].clone()];
    let Some(backend) = hopper() else { return };
    for (name, steps, inputs, graph) in [
        ("bias, gelu and a residual", 1, &inputs, graph(&inputs, block)),
        (
            "the same, of rows that the copy engine cannot store",
            1,
            &of_ragged,
            graph(&of_ragged, block),
        ),
        ("wider results", 1, &inputs, graph(&inputs, halved)),
        (
            "heads",
            // A result that is seen otherwise than it lies is copied.
            2,
            &inputs,
            graph(&inputs, |args| {
                (sparse(args) + args[3]).reshape([2, 12, 32, 128]).transpose(&[0, 2, 1, 3])
            }),
        ),
        ("codes of four bits", 1, &exact, graph(&exact, |args| sparse(args).convert(DType::I4))),
    ] {
        let session =
            backend.compile(&graph, Mode::Compile, &Tuning::default()).unwrap().session().unwrap();
        assert_sparse(session.plan());
        assert_eq!(session.plan().steps.len(), steps, "{name}: {}", session.plan());
        check_backend(&backend, Mode::Compile, &graph, inputs)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// Rows of y that are compared with the definition.
const SAMPLED: usize = 16;

#[test]
fn many_rows() {
    for dtype in [DType::BF16, DType::F16] {
        // The last tiles of outputs and of rows are not whole, and inputs end in the middle of a
        // turn.
        let layer = Layer { dtype, rows: 3100, n: 1032, k: 1152 };
        assert_eq!(layer.declined(), None, "{layer:?}");
        let Some(backend) = hopper() else { return };
        let inputs = layer.inputs();
        let graph = graph(&inputs, sparse);
        let mut session =
            backend.compile(&graph, Mode::Compile, &Tuning::default()).unwrap().session().unwrap();
        assert_sparse(session.plan());
        let buffers: Vec<_> =
            inputs.iter().map(|a| backend.upload(&a.to_tensor()).unwrap()).collect();
        let mut outputs = vec![backend.output(graph.ty(graph.outputs()[0].value)).unwrap()];
        let mut state = State::initial(&graph, &backend).unwrap();
        session.run(state.with(&buffers, &mut outputs)).unwrap().wait().unwrap();
        let y = Array::from(&backend.download(&outputs[0]).unwrap());
        let rows: Vec<usize> = (0..SAMPLED).map(|i| i * (layer.rows - 1) / (SAMPLED - 1)).collect();
        let mut some = inputs.clone();
        some[0] =
            Array::build(dtype, &[SAMPLED, layer.k], |at| inputs[0].at(&[rows[at[0]], at[1]]));
        let expected = &SparseLinear.eval(&some, &[])[0];
        for (i, &row) in rows.iter().enumerate() {
            for output in 0..layer.n {
                let (found, expected) = (y.at(&[row, output]), expected.at(&[i, output]));
                // Half a step of the format, and f32 sums of products of about one.
                let step = if dtype == DType::BF16 { 2f64.powi(-8) } else { 2f64.powi(-11) };
                let tolerance = step * expected.abs() + layer.k as f64 * 2f64.powi(-23) * 4.0;
                assert!(
                    (found - expected).abs() <= tolerance,
                    "[{row}, {output}] is {found}, not {expected}"
                );
            }
        }
    }
}
