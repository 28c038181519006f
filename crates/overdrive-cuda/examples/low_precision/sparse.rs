//! Layers by 2:4 weights, against dense products of the same extents by whatever the tuner finds
//! fastest.

use crate::bench::{Bench, error, line, noise};
use overdrive_ir::backend::CacheState;
use overdrive_ir::ops::SparseLinear;
use overdrive_ir::{Array, Builder, DType, Graph, Op, Tensor, TensorType};

/// Rows of x, outputs, inputs.
const LAYERS: [[usize; 3]; 7] = [
    [8192, 8192, 8192],
    [8192, 16384, 4096],
    [4096, 4096, 1024],
    [2048, 4096, 4096],
    [512, 8192, 8192],
    [64, 8192, 8192],
    [16, 8192, 8192],
];

fn types([rows, n, k]: [usize; 3]) -> [TensorType; 3] {
    [
        TensorType::new(DType::BF16, [rows, k]),
        TensorType::new(DType::BF16, [n, k / 2]),
        TensorType::new(DType::U8, [n, k / 8]),
    ]
}

/// Two places of each four, each pair as often.
fn mask(ty: &TensorType) -> Tensor {
    const PAIRS: [u8; 6] = [0b0011, 0b0101, 0b0110, 0b1001, 0b1010, 0b1100];
    let random = noise(ty, 3);
    let groups = |byte: &u8| PAIRS[usize::from(byte % 6)] | PAIRS[usize::from(byte / 6 % 6)] << 4;
    let bytes: Vec<u8> = random.bytes().iter().map(groups).collect();
    Tensor::from_bytes(ty.clone(), bytes).expect("the bytes of the type")
}

fn sparse(layer: [usize; 3]) -> (Graph, Vec<Tensor>) {
    let b = Builder::new("sparse");
    let types = types(layer);
    let [x, values, mask_of] =
        [0, 1, 2].map(|i| b.input(["x", "values", "mask"][i], types[i].clone()));
    b.output("y", x.sparse_linear(values, mask_of));
    (
        b.finish().expect("well typed"),
        vec![noise(&types[0], 1), noise(&types[1], 2), mask(&types[2])],
    )
}

fn dense([rows, n, k]: [usize; 3]) -> (Graph, Vec<Tensor>) {
    let b = Builder::new("bf16");
    let types = [TensorType::new(DType::BF16, [rows, k]), TensorType::new(DType::BF16, [n, k])];
    let [x, w] = [0, 1].map(|i| b.input(["x", "w"][i], types[i].clone()));
    b.output("y", x.dot_to(w, &[], &[(1, 1)], DType::BF16));
    (b.finish().expect("well typed"), vec![noise(&types[0], 1), noise(&types[1], 2)])
}

/// The last row's last results against the definition.
fn check(tensors: &[Tensor], y: &Tensor) {
    const COLUMNS: usize = 64;
    let last = |tensor: &Tensor, rows: usize| {
        let ty = TensorType::new(tensor.ty().dtype, [rows, tensor.ty().sizes()[1]]);
        let bytes = &tensor.bytes()[tensor.bytes().len() - ty.bytes()..];
        Array::from(&Tensor::from_bytes(ty, bytes.to_vec()).expect("whole rows"))
    };
    let operands = [last(&tensors[0], 1), last(&tensors[1], COLUMNS), last(&tensors[2], COLUMNS)];
    let expected = &SparseLinear.eval(&operands, &[])[0];
    let found = line(y, y.ty().elements() - COLUMNS, 1, COLUMNS);
    let pairs: Vec<_> = found.into_iter().enumerate().map(|(i, y)| (y, expected.get(i))).collect();
    let error = error(&pairs);
    assert!(error < 5e-3, "2:4 is off by {error:e}");
    println!("    error {error:.1e}");
}

pub(crate) fn run(bench: &Bench<'_>) {
    for layer in LAYERS {
        let [rows, n, k] = layer;
        let ((whole, of_whole), (half, of_half)) = (dense(layer), sparse(layer));
        let [of_whole, on_device] = [&of_whole, &of_half]
            .map(|tensors| tensors.iter().map(|t| bench.upload(t)).collect::<Vec<_>>());
        let tuning = bench.tuned(&whole);
        let rate = |ns: f64| 2.0 * (rows * n * k) as f64 / ns / 1e3;
        // Turn by turn, so that a change of clocks meets both.
        let mut ratios = Vec::new();
        for turn in 0..5 {
            let (dense, _) = bench.time_as(&tuning, &whole, &of_whole, CacheState::Cold);
            let (sparse, outputs) = bench.time(&half, &on_device, CacheState::Cold);
            if turn == 0 {
                check(&of_half, &bench.download(&outputs[0]));
                println!("{}", bench.plan(&whole, &tuning));
                println!("{}", bench.plan(&half, &tuning));
            }
            let (of_dense, of_sparse) = (rate(dense.median), rate(sparse.median));
            println!(
                "    dense {dense} {of_dense:7.1} TFLOP/s, 2:4 {sparse} {of_sparse:7.1} TFLOP/s \
                 of the dense product"
            );
            ratios.push(dense.median / sparse.median);
        }
        ratios.sort_by(f64::total_cmp);
        let [low, median, high] = [0, 2, 4].map(|i| ratios[i]);
        println!(
            "{rows} rows by {n}x{k} 2:4: {median:.3}x bf16 [{low:.3}, {high:.3}] of five turns"
        );
    }
}
