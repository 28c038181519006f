//! Files of ONNX, written field by field, so that each says exactly what its test is about.

/// A field of bytes.
pub(crate) fn bytes(field: u64, body: &[u8]) -> Vec<u8> {
    [&varint(field << 3 | 2)[..], &varint(body.len() as u64), body].concat()
}

/// A field that is a number.
pub(crate) fn number(field: u64, value: i64) -> Vec<u8> {
    [varint(field << 3), varint(value as u64)].concat()
}

pub(crate) fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value > 127 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

pub(crate) const FLOAT: i64 = 1;
pub(crate) const INT64: i64 = 7;

pub(crate) fn tensor(name: &str, kind: i64, dims: &[i64], more: &[Vec<u8>]) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|&n| number(1, n)).collect();
    [dims, number(2, kind), bytes(8, name.as_bytes()), more.concat()].concat()
}

/// i64s.
#[allow(dead_code)] // For `onnx_bad`, a program of its own.
pub(crate) fn ints(name: &str, values: &[i64]) -> Vec<u8> {
    let raw: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    tensor(name, INT64, &[values.len() as i64], &[bytes(9, &raw)])
}

pub(crate) fn scalar(name: &str, value: i64) -> Vec<u8> {
    tensor(name, INT64, &[], &[bytes(9, &value.to_le_bytes())])
}

pub(crate) fn port(name: &str, kind: i64, dims: &[i64]) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|&n| bytes(1, &number(1, n))).collect();
    let tensor = [number(1, kind), bytes(2, &dims)].concat();
    [bytes(1, name.as_bytes()), bytes(2, &bytes(1, &tensor))].concat()
}

pub(crate) fn node(op: &str, inputs: &[&str], output: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|name| bytes(1, name.as_bytes())).collect();
    let attributes: Vec<u8> = attributes.iter().flat_map(|a| bytes(5, a)).collect();
    [inputs, bytes(2, output.as_bytes()), bytes(4, op.as_bytes()), attributes].concat()
}

pub(crate) fn int_attribute(name: &str, value: i64) -> Vec<u8> {
    [bytes(1, name.as_bytes()), number(3, value), number(20, 2)].concat()
}

#[allow(dead_code)] // For `onnx_bad`, a program of its own.
pub(crate) fn ints_attribute(name: &str, values: &[i64]) -> Vec<u8> {
    let values: Vec<u8> = values.iter().flat_map(|&n| number(8, n)).collect();
    [bytes(1, name.as_bytes()), values, number(20, 7)].concat()
}

/// A graph with the output `y`.
pub(crate) fn graph(nodes: &[Vec<u8>], initializers: &[Vec<u8>], inputs: &[Vec<u8>]) -> Vec<u8> {
    let each = |field, parts: &[Vec<u8>]| {
        parts.iter().flat_map(|part| bytes(field, part)).collect::<Vec<u8>>()
    };
    let output = bytes(12, &port("y", FLOAT, &[]));
    [each(1, nodes), bytes(2, b"g"), each(5, initializers), each(11, inputs), output].concat()
}

pub(crate) fn model(graph: &[u8], functions: &[Vec<u8>]) -> Vec<u8> {
    let opset = [bytes(1, b""), number(2, 21)].concat();
    let functions: Vec<u8> = functions.iter().flat_map(|f| bytes(25, f)).collect();
    [number(1, 10), bytes(8, &opset), bytes(7, graph), functions].concat()
}
