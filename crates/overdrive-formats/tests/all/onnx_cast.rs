//! Cast to the small floats by the tables of ONNX's specification, and shifts by counts that are
//! none.

use crate::fields::*;
use overdrive_formats::onnx::{Binding, Model};
use overdrive_ir::{DType, Tensor, eval};
use std::path::Path;

const E5M2: i64 = 19;
const E4M3: i64 = 17;
const E2M1: i64 = 23;
const E8M0: i64 = 24;

fn text_attribute(name: &str, value: &str) -> Vec<u8> {
    [bytes(1, name.as_bytes()), bytes(4, value.as_bytes()), number(20, 3)].concat()
}

/// The result of one node on these inputs, each of one dimension.
fn result(op: &str, attributes: &[Vec<u8>], inputs: &[(i64, Tensor)]) -> Tensor {
    let names = ["a", "b"];
    let count = |tensor: &Tensor| tensor.ty().elements() as i64;
    let ports: Vec<Vec<u8>> =
        inputs.iter().zip(names).map(|((kind, t), name)| port(name, *kind, &[count(t)])).collect();
    let nodes = [node(op, &names[..inputs.len()], "y", attributes)];
    let file = model(&graph(&nodes, &[], &ports), &[]);
    let model = Model::decode(Path::new("m.onnx"), file.into()).expect("the file is well-formed");
    let graph = model.graph(&Binding::default()).expect("the node is one that is known");
    let given: Vec<Tensor> = inputs.iter().map(|(_, tensor)| tensor.clone()).collect();
    eval::eval_tensors(&graph, &given).remove(0)
}

fn cast(x: &[f32], to: i64, saturate: i64, mode: &str) -> Tensor {
    let attributes = [
        int_attribute("to", to),
        int_attribute("saturate", saturate),
        text_attribute("round_mode", mode),
    ];
    let kept = if to == E8M0 { &attributes[..] } else { &attributes[..2] };
    result("Cast", kept, &[(FLOAT, Tensor::from_f32([x.len()], x))])
}

/// Positive numbers around every power of two and between any two, subnormal ones too.
fn around_powers() -> Vec<f32> {
    let mantissas =
        [0, 1, 0x1F_FFFF, 0x20_0000, 0x3F_FFFF, 0x40_0000, 0x40_0001, 0x60_0000, 0x7F_FFFF];
    let all =
        (0..255u32).flat_map(|exponent| mantissas.map(|m| f32::from_bits(exponent << 23 | m)));
    all.filter(|x| *x > 0.0).collect()
}

#[test]
fn a_power_of_two_is_above_below_or_nearest() {
    let (least, most) = (2f64.powi(-127), 2f64.powi(127));
    let below = |x: f64| (-149..=127).map(|n| 2f64.powi(n)).rfind(|power| *power <= x).unwrap();
    let x = around_powers();
    for (mode, saturate) in
        ["up", "down", "nearest"].into_iter().flat_map(|mode| [(mode, 1), (mode, 0)])
    {
        let found = cast(&x, E8M0, saturate, mode).to_f64();
        for (&x, found) in x.iter().zip(found) {
            let x = f64::from(x);
            let (low, high) = (below(x), if below(x) == x { x } else { 2.0 * below(x) });
            // Nothing lies between 0 and the smallest power.
            let (low, high) = if x < least { (0.0, least) } else { (low, high) };
            let rounded = match mode {
                "up" => high,
                "down" => low,
                _ if x < least => 0.0,
                _ if x - low < high - x => low,
                _ => high,
            };
            let fits = (least..=most).contains(&rounded);
            let wanted = if fits { rounded } else { rounded.clamp(least, most) };
            match fits || saturate == 1 {
                true => assert_eq!(found, wanted, "{x:e} {mode} {saturate}"),
                false => assert!(found.is_nan(), "{x:e} {mode}: {found}"),
            }
        }
    }
    let special = [0.0, f32::INFINITY, f32::NAN];
    let found = cast(&special, E8M0, 1, "up");
    assert_eq!(found.bytes(), [0, 254, 255]);
    assert_eq!(cast(&special, E8M0, 0, "nearest").bytes(), [255; 3]);
}

#[test]
fn infinities_saturate_where_it_is_asked_for() {
    let x = [f32::INFINITY, f32::NEG_INFINITY, 1e9, -1e9, f32::NAN, 1.0];
    let finite = |to: i64, most: f64| {
        let found = cast(&x, to, 1, "").to_f64();
        assert_eq!(found[..4], [most, -most, most, -most]);
        assert!(found[4].is_nan() && found[5] == 1.0);
    };
    finite(E5M2, 57344.0);
    finite(E4M3, 448.0);
    let kept = cast(&x, E5M2, 0, "").to_f64();
    assert_eq!(kept[..4], [f64::INFINITY, f64::NEG_INFINITY, f64::INFINITY, f64::NEG_INFINITY]);
    assert!(cast(&x, E4M3, 0, "").to_f64()[..5].iter().all(|x| x.is_nan()));
    // No format of four bits has NaN: the reference makes -0 of it.
    assert_eq!(cast(&x, E2M1, 1, "").bytes(), [0xF7, 0xF7, 0x28]);
}

#[test]
fn a_count_that_is_none_shifts_everything_out_but_the_sign() {
    let ints = |dtype: DType, values: &[i128]| Tensor::from_ints(dtype, [values.len()], values);
    let right = |kind: i64, x: Tensor, counts: Tensor| {
        result("BitShift", &[text_attribute("direction", "RIGHT")], &[(kind, x), (kind, counts)])
    };
    let (int32, uint8) = (6, 2);
    let x = ints(DType::I32, &[-8, -8, -8, 8, 8, 8, -8]);
    let counts = ints(DType::I32, &[1, 32, -1, 1, 32, -1, i128::from(i32::MAX)]);
    assert_eq!(right(int32, x, counts).to_ints(), [-4, -1, -1, 4, 0, 0, -1]);
    let x = ints(DType::U8, &[200, 200, 200]);
    assert_eq!(right(uint8, x, ints(DType::U8, &[1, 8, 255])).to_ints(), [100, 0, 0]);
}
