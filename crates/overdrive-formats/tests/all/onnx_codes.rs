//! Weights that other quantizers left as codes: a product takes them as they are packed, whatever
//! the file's layout.
//!
//! Each model is written here field by field, and what it means is computed by hand from the codes.

use crate::fields::*;
use overdrive_formats::onnx::{Binding, Model};
use overdrive_ir::ops::QuantizedLinear;
use overdrive_ir::{DType, Graph, Tensor, eval};
use std::path::Path;

const UINT8: i64 = 2;
const INT8: i64 = 3;
const UINT4: i64 = 21;
const INT4: i64 = 22;

/// Rows of x.
const M: usize = 3;

fn floats(name: &str, dims: &[usize], values: &[f32]) -> Vec<u8> {
    let raw: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    raw_tensor(name, FLOAT, dims, &raw)
}

fn raw_tensor(name: &str, kind: i64, dims: &[usize], raw: &[u8]) -> Vec<u8> {
    let dims: Vec<i64> = dims.iter().map(|&n| n as i64).collect();
    tensor(name, kind, &dims, &[bytes(9, raw)])
}

/// Codes of so many bits, the first in the lowest ones; a new byte every `row`.
fn packed(codes: &[i64], bits: usize, row: usize) -> Vec<u8> {
    let byte = |part: &[i64]| {
        part.iter()
            .enumerate()
            .fold(0u8, |all, (i, code)| all | ((*code as u8) & mask(bits)) << (i * bits))
    };
    codes
        .chunks(row.max(1))
        .flat_map(|row| row.chunks(8 / bits).map(byte).collect::<Vec<u8>>())
        .collect()
}

fn mask(bits: usize) -> u8 {
    ((1u16 << bits) - 1) as u8
}

/// Numbers that differ from their neighbours.
fn mixed(count: usize, by: usize) -> impl Iterator<Item = i64> {
    (0..count).map(move |i| ((i * i + i * by) % 251) as i64)
}

fn activations(k: usize) -> Vec<f32> {
    mixed(M * k, 7).map(|x| (x - 125) as f32 / 64.0).collect()
}

fn read(nodes: &[Vec<u8>], initializers: &[Vec<u8>], x: &[usize]) -> Result<Graph, String> {
    let dims: Vec<i64> = x.iter().map(|&n| n as i64).collect();
    let file = model(&graph(nodes, initializers, &[port("x", FLOAT, &dims)]), &[]);
    let model = Model::decode(Path::new("m.onnx"), file.into()).map_err(|e| e.to_string())?;
    model.graph(&Binding::default()).map_err(|e| e.to_string())
}

/// Fails unless the graph multiplies by codes of this type, which it holds once, and gives `x W` of
/// these weights `[N, K]`.
fn multiplies(what: &str, graph: &Graph, codes: DType, (weights, k): (&[f64], usize)) {
    let layers: Vec<_> = graph
        .nodes()
        .iter()
        .filter(|node| node.op.composite::<QuantizedLinear>().is_some())
        .collect();
    assert_eq!(layers.len(), 1, "{what}: one product of codes");
    assert_eq!(graph.ty(layers[0].operands[1]).dtype, codes, "{what}");
    let n = weights.len() / k;
    let large = graph.states().iter().filter(|state| graph.ty(state.value).elements() >= n * k);
    assert_eq!(large.count(), 1, "{what}: the weights are held once");
    let used = graph.use_counts();
    assert!(
        graph.states().iter().all(|state| used[state.value.0 as usize] > 0),
        "{what}: what is held is used"
    );
    let x = activations(k);
    let y = eval::eval_tensors(graph, &[Tensor::from_f32([M, k], &x)])[0].to_f64();
    for row in 0..M {
        for column in 0..n {
            let products = (0..k).map(|i| f64::from(x[row * k + i]) * weights[column * k + i]);
            let (sum, size) =
                products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + f64::abs(p)));
            let found = y[row * n + column];
            assert!((found - sum).abs() <= 1e-6 * (1.0 + size), "{what}: {found} is not {sum}");
        }
    }
}

#[derive(Copy, Clone, PartialEq, Debug)]
enum Zeros {
    None,
    Codes,
    Fractions,
}

/// A model of one MatMulNBits, and the weights that it stands for. Columns belong to the block that
/// `group` gives them.
fn n_bits(
    (n, k): (usize, usize),
    (bits, block): (usize, usize),
    zeros: Zeros,
    group: impl Fn(usize) -> usize,
) -> (Result<Graph, String>, Vec<f64>) {
    let blocks = k.div_ceil(block);
    let codes: Vec<i64> = mixed(n * blocks * block, 3).map(|x| x & i64::from(mask(bits))).collect();
    let scales: Vec<f32> = mixed(n * blocks, 5).map(|x| (x + 1) as f32 / 1024.0).collect();
    let zero_codes: Vec<i64> = mixed(n * blocks, 11).map(|x| x & i64::from(mask(bits))).collect();
    let fractions: Vec<f32> = zero_codes.iter().map(|&x| x as f32 + 0.375).collect();
    let mut initializers = vec![
        raw_tensor("w", UINT8, &[n, blocks, block * bits / 8], &packed(&codes, bits, codes.len())),
        floats("scales", &[n * blocks], &scales),
    ];
    let mut inputs = vec!["x", "w", "scales", "", ""];
    match zeros {
        Zeros::None => {}
        Zeros::Codes => {
            let raw = packed(&zero_codes, bits, blocks);
            initializers.push(raw_tensor("zeros", UINT8, &[raw.len()], &raw));
        }
        Zeros::Fractions => initializers.push(floats("zeros", &[n * blocks], &fractions)),
    }
    if zeros != Zeros::None {
        inputs[3] = "zeros";
    }
    let groups: Vec<i32> = (0..k).map(|column| group(column) as i32).collect();
    if groups.iter().enumerate().any(|(column, &group)| group as usize != column / block) {
        let raw: Vec<u8> = groups.iter().flat_map(|group| group.to_le_bytes()).collect();
        initializers.push(raw_tensor("groups", 6, &[k], &raw));
        inputs[4] = "groups";
    }
    let sizes = [("K", k), ("N", n), ("bits", bits), ("block_size", block)];
    let attributes: Vec<Vec<u8>> =
        sizes.iter().map(|&(name, size)| int_attribute(name, size as i64)).collect();
    let call =
        [node("MatMulNBits", &inputs, "y", &attributes), bytes(7, b"com.microsoft")].concat();
    let weight = |row: usize, column: usize| {
        let at = row * blocks + group(column).min(blocks - 1);
        let zero = match zeros {
            Zeros::None => f64::from(1 << (bits - 1)),
            Zeros::Codes => zero_codes[at] as f64,
            Zeros::Fractions => f64::from(fractions[at]),
        };
        (codes[row * blocks * block + column] as f64 - zero) * f64::from(scales[at])
    };
    let weights = (0..n).flat_map(|row| (0..k).map(move |column| (row, column)));
    let weights = weights.map(|(row, column)| weight(row, column)).collect();
    (read(&[call], &initializers, &[M, k]), weights)
}

#[test]
fn mat_mul_n_bits_keeps_its_codes() {
    for bits in [2, 4, 8] {
        let dtype = if bits == 8 { DType::I8 } else { DType::I4 };
        for zeros in [Zeros::None, Zeros::Codes, Zeros::Fractions] {
            // Whole blocks, a last one that is not whole, and one that is larger than all.
            for (k, block) in [(128, 16), (128, 64), (200, 32), (100, 16), (72, 256)] {
                let (graph, weights) =
                    n_bits((5, k), (bits, block), zeros, |column| column / block);
                let what = format!("{bits} bits, K = {k} in blocks of {block}, zeros: {zeros:?}");
                multiplies(&what, &graph.unwrap(), dtype, (&weights, k));
            }
        }
    }
}

/// GPTQ quantizes columns in the order of how active they are: each says to which block it belongs.
#[test]
fn columns_in_another_order_keep_their_codes() {
    for zeros in [Zeros::None, Zeros::Codes] {
        let (graph, weights) = n_bits((6, 96), (4, 16), zeros, |column| (column * 5 % 96) / 16);
        multiplies("g_idx", &graph.unwrap(), DType::I4, (&weights, 96));
    }
    let (refused, _) = n_bits((6, 96), (4, 16), Zeros::None, |column| usize::from(column % 3 == 0));
    assert!(refused.unwrap_err().contains("blocks of different sizes"));
    let (refused, _) = n_bits((6, 96), (4, 16), Zeros::None, |column| 6 - column / 16);
    assert!(refused.unwrap_err().contains("one of 6 blocks"));
}

/// Weights `[K, N]`, as MatMul has them, or `[N, K]` for a Gemm that turns them, in blocks along K.
#[test]
fn dequantized_weights_of_products_keep_their_codes() {
    let (n, k) = (7usize, 45usize);
    for (kind, bits, dtype) in
        [(INT4, 4, DType::I4), (UINT4, 4, DType::I4), (INT8, 8, DType::I8), (UINT8, 8, DType::U8)]
    {
        for block in [0, 3, 15, 16, 64] {
            for (with_zeros, turned) in [(false, false), (true, false), (false, true), (true, true)]
            {
                let what =
                    format!("type {kind}, blocks of {block}, zeros {with_zeros}, turned {turned}");
                let blocks = if block == 0 { 1 } else { k.div_ceil(block) };
                let unsigned = kind == UINT4 || kind == UINT8;
                let low = if unsigned { 0 } else { -(1i64 << (bits - 1)) };
                let code = |i: i64| (i & i64::from(mask(bits))) + low;
                let codes: Vec<i64> = mixed(n * k, 3).map(code).collect();
                let zeros: Vec<i64> = mixed(n * blocks, 11).map(code).collect();
                let scales: Vec<f32> =
                    mixed(n * blocks, 5).map(|x| (x + 1) as f32 / 1024.0).collect();
                // Positions of a weight and of its scale, in the order of the file.
                let at = |row: usize, column: usize| {
                    if turned { row * k + column } else { column * n + row }
                };
                let of = |row: usize, column: usize| {
                    let group = column.checked_div(block).unwrap_or(0);
                    if turned { row * blocks + group } else { group * n + row }
                };
                let matrix = |across: usize| if turned { [n, across] } else { [across, n] };
                let (dims, counts) = (matrix(k), matrix(blocks));
                let counts = if block == 0 { vec![n] } else { counts.to_vec() };
                let mut initializers = vec![
                    raw_tensor("w", kind, &dims, &packed(&codes, bits, codes.len())),
                    floats("scales", &counts, &scales),
                ];
                let mut inputs = vec!["w", "scales"];
                if with_zeros {
                    initializers.push(raw_tensor(
                        "zeros",
                        kind,
                        &counts,
                        &packed(&zeros, bits, zeros.len()),
                    ));
                    inputs.push("zeros");
                }
                let across = usize::from(turned);
                let axis = if block == 0 { 1 - across } else { across };
                let attributes =
                    [int_attribute("axis", axis as i64), int_attribute("block_size", block as i64)];
                let product = match turned {
                    true => node("Gemm", &["x", "v"], "y", &[int_attribute("transB", 1)]),
                    false => node("MatMul", &["x", "v"], "y", &[]),
                };
                let nodes = [node("DequantizeLinear", &inputs, "v", &attributes), product];
                let weight = |row: usize, column: usize| {
                    let zero = if with_zeros { zeros[of(row, column)] } else { 0 };
                    (codes[at(row, column)] - zero) as f64 * f64::from(scales[of(row, column)])
                };
                let weights: Vec<f64> = (0..n * k).map(|i| weight(i / k, i % k)).collect();
                let graph = read(&nodes, &initializers, &[M, k]).unwrap();
                multiplies(&what, &graph, dtype, (&weights, k));
            }
        }
    }
}

/// Codes of uint4 are read right where no product takes them, too.
#[test]
fn codes_of_uint4_are_numbers_elsewhere() {
    let codes: Vec<i64> = (0..15).collect();
    let initializers =
        [raw_tensor("w", UINT4, &[3, 5], &packed(&codes, 4, 15)), floats("scale", &[], &[0.5])];
    let nodes = [
        node("DequantizeLinear", &["w", "scale"], "v", &[]),
        node("Cast", &["w"], "c", &[int_attribute("to", 1)]),
        node("Add", &["v", "c"], "s", &[]),
        node("Add", &["s", "x"], "y", &[]),
    ];
    let graph = read(&nodes, &initializers, &[3, 5]).unwrap();
    let x = Tensor::from_f32([3, 5], &[0.0; 15]);
    let expected: Vec<f64> = codes.iter().map(|&code| code as f64 * 1.5).collect();
    assert_eq!(eval::eval_tensors(&graph, &[x])[0].to_f64(), expected);
}

#[test]
fn entries_of_a_table_of_codes_are_gathered_packed() {
    let (rows, width, block) = (9, 20, 16);
    let blocks = 2;
    for (bits, with_zeros) in [(4, false), (4, true), (8, false), (8, true)] {
        let codes: Vec<i64> = mixed(rows * width, 3).map(|x| x & i64::from(mask(bits))).collect();
        let zeros: Vec<i64> = mixed(rows * blocks, 11).map(|x| x & i64::from(mask(bits))).collect();
        let scales: Vec<f32> = mixed(rows * blocks, 5).map(|x| (x + 1) as f32 / 1024.0).collect();
        let indices = [3i64, 8, 0, -1];
        let raw: Vec<u8> = indices.iter().flat_map(|i| i.to_le_bytes()).collect();
        let per_byte = 8 / bits;
        let mut initializers = vec![
            raw_tensor("w", UINT8, &[rows, width / per_byte], &packed(&codes, bits, width)),
            raw_tensor("at", INT64, &[4], &raw),
            floats("scales", &[rows, blocks], &scales),
        ];
        let mut inputs = vec!["w", "at", "scales"];
        if with_zeros {
            let row = blocks.div_ceil(per_byte);
            initializers.push(raw_tensor(
                "zeros",
                UINT8,
                &[rows, row],
                &packed(&zeros, bits, blocks),
            ));
            inputs.push("zeros");
        }
        let attributes =
            [("bits", bits), ("block_size", block), ("gather_axis", 0), ("quantize_axis", 1)];
        let attributes: Vec<Vec<u8>> =
            attributes.iter().map(|&(n, v)| int_attribute(n, v as i64)).collect();
        let gather = node("GatherBlockQuantized", &inputs, "g", &attributes);
        let nodes =
            [[gather, bytes(7, b"com.microsoft")].concat(), node("Add", &["g", "x"], "y", &[])];
        let graph = read(&nodes, &initializers, &[4, width]).unwrap();
        let y = eval::eval_tensors(&graph, &[Tensor::from_f32([4, width], &[0.0; 80])])[0].to_f64();
        for (i, found) in y.iter().enumerate() {
            let row = [3, 8, 0, 8][i / width];
            let of = row * blocks + i % width / block;
            let zero = if with_zeros { zeros[of] } else { 1 << (bits - 1) };
            let expected = (codes[row * width + i % width] - zero) as f64 * f64::from(scales[of]);
            assert!(
                (found - expected).abs() <= 1e-6 * (1.0 + expected.abs()),
                "{bits} bits: {found}, {expected}"
            );
        }
    }
}

#[test]
fn softmax_of_codes_is_that_of_their_numbers() {
    let byte = |name: &str, value: u8| raw_tensor(name, UINT8, &[], &[value]);
    let initializers = [
        floats("sx", &[], &[0.1]),
        byte("zx", 128),
        floats("sy", &[], &[1.0 / 256.0]),
        byte("zy", 0),
    ];
    let softmax = node(
        "QLinearSoftmax",
        &["q", "sx", "zx", "sy", "zy"],
        "p",
        &[int_attribute("opset", 13), int_attribute("axis", -1)],
    );
    let nodes = [
        node("QuantizeLinear", &["x", "sx", "zx"], "q", &[]),
        [softmax, bytes(7, b"com.microsoft")].concat(),
        node("DequantizeLinear", &["p", "sy", "zy"], "y", &[]),
    ];
    let graph = read(&nodes, &initializers, &[2, 3]).unwrap();
    let x = [0.1f32, -0.4, 1.2, 2.0, 2.1, -3.0];
    let y = eval::eval_tensors(&graph, &[Tensor::from_f32([2, 3], &x)])[0].to_f64();
    for (row, found) in x.chunks(3).zip(y.chunks(3)) {
        let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
        for (x, y) in row.iter().zip(found) {
            assert!(
                (f64::from(*x).exp() / sum - y).abs() <= 0.5 / 256.0 + 1e-3,
                "{row:?} gave {found:?}"
            );
        }
    }
}

/// Codes that do not fit are an error that says so, not a panic.
#[test]
fn codes_that_do_not_fit_are_errors() {
    let scale = || floats("scale", &[2], &[0.5, 0.25]);
    let codes = |kind| raw_tensor("w", kind, &[2, 3], &[0; 3]);
    let layer = |inputs: &[&str]| {
        let weights = node("DequantizeLinear", inputs, "v", &[int_attribute("axis", 0)]);
        [weights, node("Gemm", &["x", "v"], "y", &[int_attribute("transB", 1)])]
    };
    let three = raw_tensor("zero", INT4, &[3], &[0; 2]);
    let said =
        read(&layer(&["w", "scale", "zero"]), &[codes(INT4), scale(), three], &[1, 3]).unwrap_err();
    assert!(said.contains("a zero point for each scale"), "{said}");
    let other = raw_tensor("zero", INT4, &[2], &[0; 1]);
    let said = read(&layer(&["w", "scale", "zero"]), &[codes(UINT4), scale(), other], &[1, 3])
        .unwrap_err();
    assert!(said.contains("a zero point of the codes' type"), "{said}");
    let short = [raw_tensor("w", UINT8, &[1, 1, 8], &[0; 8]), floats("scale", &[1], &[1.0])];
    let sizes = |k: i64, n: i64| {
        let sizes = [("K", k), ("N", n), ("bits", 4), ("block_size", 16)];
        let attributes: Vec<Vec<u8>> =
            sizes.iter().map(|&(name, size)| int_attribute(name, size)).collect();
        [[node("MatMulNBits", &["x", "w", "scale"], "y", &attributes), bytes(7, b"com.microsoft")]
            .concat()]
    };
    let said = read(&sizes(32, 1), &short, &[1, 32]).unwrap_err();
    assert!(said.contains("16 bytes of codes"), "{said}");
    assert!(read(&sizes((1 << 31) - 1, (1 << 31) - 1), &short, &[1, (1 << 31) - 1]).is_err());
    assert!(read(&sizes(-1, 1), &short, &[1, 3]).is_err());
}
