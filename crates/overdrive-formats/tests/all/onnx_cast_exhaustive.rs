//! Casts to floats of 8 bits, over every f16 and every code, in and out again. They are held
//! against a search over all codes by the tables of ONNX's specification.

use crate::fields::*;
use overdrive_formats::onnx::{self, Binding, Dialect, Model};
use overdrive_ir::{Builder, DType, Graph, Overflow, Prim, Tensor, TensorType, eval};
use std::path::Path;

const FORMATS: [(DType, i64); 2] = [(DType::F8E4M3, 17), (DType::F8E5M2, 19)];

/// Every f16 in order of its bits, then some f32 between and beyond them.
fn numbers() -> Vec<f32> {
    let halves = (0..=u16::MAX)
        .map(|bits| Tensor::from_bytes(TensorType::new(DType::F16, [1]), bits.to_le_bytes()));
    let halves = halves.map(|tensor| tensor.unwrap().to_f64()[0] as f32);
    let wide = (0..1u32 << 13).map(|high| f32::from_bits(high << 19 | 0x1234));
    halves.chain(wide).chain([f32::MAX, f32::MIN, f32::MIN_POSITIVE]).collect()
}

fn read(file: Vec<u8>) -> Graph {
    let model = Model::decode(Path::new("m.onnx"), file.into()).expect("the file is well-formed");
    model.graph(&Binding::default()).expect("every op is known")
}

fn of(graph: &Graph, x: &Tensor) -> Tensor {
    eval::eval_tensors(graph, std::slice::from_ref(x)).remove(0)
}

/// The nearest finite value of a format, of two as near the one with the even code.
fn nearest(codes: &[(f64, u8)], x: f64) -> f64 {
    let near = |&(value, code): &(f64, u8)| ((value - x).abs(), code & 1);
    let by = |a: &&(f64, u8), b: &&(f64, u8)| near(a).partial_cmp(&near(b)).unwrap();
    codes.iter().min_by(by).unwrap().0
}

/// The cast of `x` by the specification.
fn specified(codes: &[(f64, u8)], dtype: DType, saturates: bool, x: f64) -> f64 {
    let most = dtype.max_value();
    // The step above the largest number, at whose middle rounding leaves the range.
    let step = if dtype == DType::F8E5M2 { 8192.0 } else { 32.0 };
    // In e4m3 the tie between 448 and 480 goes to the even mantissa of 448.
    let is_beyond = match dtype {
        DType::F8E5M2 => x.abs() >= most + step / 2.0,
        _ => x.abs() > most + step / 2.0,
    };
    match (saturates, dtype) {
        _ if x.is_nan() => f64::NAN,
        (true, _) if x.abs() > most => most.copysign(x),
        (false, DType::F8E5M2) if is_beyond => f64::INFINITY.copysign(x),
        (false, _) if is_beyond => f64::NAN,
        _ => nearest(codes, x),
    }
}

#[track_caller]
fn same(found: &Tensor, wanted: &[f64], x: &[f32], what: &str) {
    for ((found, wanted), x) in found.to_f64().iter().zip(wanted).zip(x) {
        assert!(
            found == wanted || found.is_nan() && wanted.is_nan(),
            "{what} of {x:e}: {found}, not {wanted}"
        );
    }
}

#[test]
fn casts_in_are_those_of_the_specification() {
    let x = numbers();
    let given = Tensor::from_f32([x.len()], &x);
    for (dtype, code) in FORMATS {
        let values = (0..=u8::MAX).map(|code| {
            let tensor = Tensor::from_bytes(TensorType::new(dtype, [1]), [code]).unwrap();
            (tensor.to_f64()[0], code)
        });
        let codes: Vec<(f64, u8)> = values.filter(|(value, _)| value.is_finite()).collect();
        for saturates in [true, false] {
            let attributes =
                [int_attribute("to", code), int_attribute("saturate", saturates.into())];
            let nodes = [node("Cast", &["a"], "y", &attributes)];
            let found = of(
                &read(model(&graph(&nodes, &[], &[port("a", FLOAT, &[x.len() as i64])]), &[])),
                &given,
            );
            let wanted: Vec<f64> =
                x.iter().map(|&x| specified(&codes, dtype, saturates, x.into())).collect();
            same(&found, &wanted, &x, &format!("{dtype}, saturate {saturates}"));
        }
    }
}

#[test]
fn what_is_written_casts_as_the_graph_does() {
    let x = numbers();
    let of_ints: Vec<i128> = (-70_000..70_000).step_by(7).collect();
    let narrow = [DType::F8E4M3, DType::F8E5M2, DType::F4E2M1, DType::F16, DType::BF16];
    for (from, to) in [DType::F32, DType::F16, DType::BF16, DType::F64, DType::F8E5M2, DType::I32]
        .into_iter()
        .flat_map(|from| {
            narrow.into_iter().chain([DType::I8, DType::U16]).map(move |to| (from, to))
        })
        .filter(|(from, to)| from != to && (from.is_int() || to.is_float()))
    {
        let given = match from {
            DType::I32 => Tensor::from_ints(from, [of_ints.len()], &of_ints),
            _ => Tensor::from_f64(
                from,
                [x.len()],
                &x.iter().map(|&x| x.into()).collect::<Vec<f64>>(),
            ),
        };
        for overflow in [Overflow::Ieee, Overflow::Saturate] {
            let b = Builder::new("cast");
            let input = b.input("x", given.ty().clone());
            let y = b.op1(Prim::Convert { to, overflow }, &[input]);
            // Files hold no outputs of four bits.
            b.output("y", if to == DType::F4E2M1 { y.convert(DType::F32) } else { y });
            let graph = b.finish().unwrap();
            let again = read(onnx::encode(Path::new("m.onnx"), &graph, Dialect::Standard).unwrap());
            let (found, wanted) = (of(&again, &given), of(&graph, &given));
            assert_eq!(found.ty(), wanted.ty());
            same(&found, &wanted.to_f64(), &x, &format!("{from} to {to}, {overflow:?}"));
        }
    }
}

#[test]
fn codes_saturate_as_quantize_linear_says() {
    let x = [f32::INFINITY, f32::NEG_INFINITY, 1e9, -1e9, f32::NAN, 3.0];
    let given = Tensor::from_f32([x.len()], &x);
    let scale = tensor("s", FLOAT, &[], &[bytes(9, &2f32.to_le_bytes())]);
    let quantized = |code: i64, saturate: i64| {
        let attributes = [int_attribute("output_dtype", code), int_attribute("saturate", saturate)];
        let nodes = [node("QuantizeLinear", &["a", "s"], "y", &attributes)];
        let ports = [port("a", FLOAT, &[x.len() as i64])];
        let graph = read(model(&graph(&nodes, std::slice::from_ref(&scale), &ports), &[]));
        let again = read(onnx::encode(Path::new("m.onnx"), &graph, Dialect::Standard).unwrap());
        let [found, again] = [of(&graph, &given), of(&again, &given)];
        assert_eq!(found.bytes(), again.bytes(), "written and read again");
        found
    };
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    same(&quantized(17, 1), &[448.0, -448.0, 448.0, -448.0, nan, 1.5], &x, "e4m3");
    same(&quantized(17, 0), &[nan, nan, nan, nan, nan, 1.5], &x, "e4m3");
    same(&quantized(19, 1), &[57344.0, -57344.0, 57344.0, -57344.0, nan, 1.5], &x, "e5m2");
    same(&quantized(19, 0), &[inf, -inf, inf, -inf, nan, 1.5], &x, "e5m2");
}
