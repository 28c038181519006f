//! Few rows by weights that stay codes.

use crate::bench::{Bench, all, error, line, noise};
use overdrive_ir::backend::CacheState;
use overdrive_ir::ops::QuantizedLinear;
use overdrive_ir::ops::quantized_linear::{Activations, WeightScales};
use overdrive_ir::{Buffer, Builder, DType, Graph, Tensor, TensorType};

const WIDTH: usize = 8192;
/// Layers of a chain: the fewest codes are 33 MB a layer, and a second-level cache 50 to 60 MB.
const LAYERS: usize = 12;
/// Rows of x.
const ROWS: [usize; 4] = [1, 4, 16, 32];
/// Columns of a result that are checked.
const CHECKED: usize = 64;

struct Format {
    name: &'static str,
    codes: DType,
    /// Type, codes under each scale, and the scales' value, which keeps the size of the numbers
    /// that pass through.
    scale: (DType, usize, f64),
    tensor_scale: Option<f64>,
}

const FORMATS: [Format; 4] = [
    Format {
        name: "int4 g128",
        codes: DType::I4,
        scale: (DType::F32, 128, 0.0024),
        tensor_scale: None,
    },
    Format {
        name: "mxfp4",
        codes: DType::F4E2M1,
        scale: (DType::E8M0, 32, 0.00390625),
        tensor_scale: None,
    },
    Format {
        name: "nvfp4",
        codes: DType::F4E2M1,
        scale: (DType::F8E4M3, 16, 1.0),
        tensor_scale: Some(0.0039),
    },
    Format {
        name: "int8",
        codes: DType::I8,
        scale: (DType::F32, WIDTH, 0.00015),
        tensor_scale: None,
    },
];

impl Format {
    fn types(&self) -> Vec<TensorType> {
        let (dtype, group, _) = self.scale;
        let mut types = vec![
            TensorType::new(self.codes, [WIDTH, WIDTH]),
            TensorType::new(dtype, [WIDTH, WIDTH / group]),
        ];
        types.extend(self.tensor_scale.map(|_| TensorType::scalar(DType::F32)));
        types
    }

    fn tensors(&self) -> Vec<Tensor> {
        let types = self.types();
        let mut tensors = vec![noise(&types[0], 7), all(&types[1], self.scale.2)];
        tensors.extend(self.tensor_scale.map(|scale| Tensor::scalar(DType::F32, scale)));
        tensors
    }

    fn graph(&self, rows: usize, layers: usize) -> Graph {
        let b = Builder::new(self.name);
        let mut x = b.input("x", TensorType::new(DType::BF16, [rows, WIDTH]));
        let weights = if self.tensor_scale.is_some() {
            WeightScales::TwoLevel
        } else {
            WeightScales::Symmetric
        };
        let op = QuantizedLinear { weights, activations: Activations::Float };
        for layer in 0..layers {
            let named = |(i, ty): (usize, TensorType)| b.input(&format!("w{layer}_{i}"), ty);
            let operands: Vec<_> = self.types().into_iter().enumerate().map(named).collect();
            x = x.quantized_linear(op, &operands);
        }
        b.output("y", x);
        b.finish().expect("well typed")
    }

    /// One layer against the definition, on some columns.
    fn check(
        &self,
        bench: &Bench<'_>,
        (rows, inputs): (usize, &[Buffer]),
        tensors: &[Tensor],
    ) -> f64 {
        let (_, outputs) =
            bench.time(&self.graph(rows, 1), &inputs[..=tensors.len()], CacheState::Warm);
        let (y, x) = (bench.download(&outputs[0]), noise(&x_type(rows), 3).to_f64());
        let row_bytes = tensors[0].bytes().len() / WIDTH;
        let factor = self.scale.2 * self.tensor_scale.unwrap_or(1.0);
        let mut pairs = Vec::new();
        for column in (0..WIDTH).step_by(WIDTH / CHECKED).map(|c| c + 5) {
            let bytes = tensors[0].bytes()[column * row_bytes..(column + 1) * row_bytes].to_vec();
            let codes = Tensor::from_bytes(TensorType::new(self.codes, [WIDTH]), bytes)
                .expect("a row")
                .to_f64();
            let found = line(&y, column, WIDTH, rows);
            for (row, found) in found.into_iter().enumerate() {
                let sum: f64 =
                    x[row * WIDTH..(row + 1) * WIDTH].iter().zip(&codes).map(|(x, c)| x * c).sum();
                pairs.push((found, sum * factor));
            }
        }
        let error = error(&pairs);
        assert!(error < 4e-3, "{} of {rows} rows is off by {error:e}", self.name);
        error
    }
}

fn x_type(rows: usize) -> TensorType {
    TensorType::new(DType::BF16, [rows, WIDTH])
}

/// The chain in bf16, with its weights.
fn plain(rows: usize) -> Graph {
    let b = Builder::new("bf16");
    let mut x = b.input("x", x_type(rows));
    for layer in 0..LAYERS {
        let w = b.input(&format!("w{layer}"), TensorType::new(DType::BF16, [WIDTH, WIDTH]));
        x = x.dot_to(w, &[], &[(1, 1)], DType::BF16);
    }
    b.output("y", x);
    b.finish().expect("well typed")
}

/// As small as a unit matrix's, so that the numbers that pass through keep their size, and as
/// random as any.
fn small() -> Tensor {
    let ty = TensorType::new(DType::BF16, [WIDTH, WIDTH]);
    let mut weights = noise(&ty, 7).bytes().to_vec();
    weights.iter_mut().skip(1).step_by(2).for_each(|high| *high -= 4);
    Tensor::from_bytes(ty, weights).expect("the same type")
}

pub(crate) fn run(bench: &Bench<'_>) {
    let moved = |rows: usize, weights: usize| weights + 2 * rows * WIDTH * 2;
    let mut inputs = vec![bench.upload(&noise(&x_type(1), 3))];
    let weights = small();
    inputs.extend((0..LAYERS).map(|_| bench.upload(&weights)));
    let bf16 = ROWS.map(|rows| {
        inputs[0] = bench.upload(&noise(&x_type(rows), 3));
        let time = bench.time(&plain(rows), &inputs, CacheState::Warm).0.per(LAYERS);
        let bytes = moved(rows, weights.bytes().len());
        println!(
            "{rows:3} rows bf16      {time}  {:5.1} % of copy, {bytes} B",
            bench.share(bytes, time)
        );
        time
    });
    for format in &FORMATS {
        let tensors = format.tensors();
        inputs.truncate(1);
        for _ in 0..LAYERS {
            inputs.extend(tensors.iter().map(|tensor| bench.upload(tensor)));
        }
        for (rows, bf16) in ROWS.into_iter().zip(bf16) {
            inputs[0] = bench.upload(&noise(&x_type(rows), 3));
            let error = format.check(bench, (rows, &inputs), &tensors);
            let time =
                bench.time(&format.graph(rows, LAYERS), &inputs, CacheState::Warm).0.per(LAYERS);
            let bytes = moved(rows, tensors.iter().map(|tensor| tensor.bytes().len()).sum());
            println!(
                "{rows:3} rows {:<9} {time}  {:5.1} % of copy, {bytes} B, {:.2}x bf16, error \
                 {error:.1e}",
                format.name,
                bench.share(bytes, time),
                bf16.median / time.median
            );
        }
    }
}
