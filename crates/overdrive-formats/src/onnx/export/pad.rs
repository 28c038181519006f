//! Slices and padding as nodes.

use super::writer::{Writer, text};
use overdrive_ir::Pad;

/// Some elements of each axis.
pub(super) fn slice(w: &mut Writer, x: &str, parts: [&Vec<usize>; 3]) -> String {
    let [start, limit, stride] = parts.map(|part| w.sizes(part));
    let axes = w.sizes(&(0..parts[0].len()).collect::<Vec<usize>>());
    w.one("Slice", &[x, &start, &limit, &axes, &stride], vec![])
}

/// Interior padding is padding of an extra dimension; edges, negative ones too, are ONNX's own.
pub(super) fn pad(w: &mut Writer, [x, value]: [&str; 2], sizes: &[usize], pads: &[Pad]) -> String {
    let mut shape = sizes.to_vec();
    let mut spread = x.to_owned();
    for (axis, gaps) in pads.iter().map(|p| p.interior).enumerate().filter(|(_, gaps)| *gaps > 0) {
        if shape[axis] == 0 {
            continue;
        }
        let mut apart = shape.clone();
        apart.insert(axis + 1, 1);
        let column = w.reshape(&spread, &apart);
        let mut edges = vec![0; 2 * apart.len()];
        edges[apart.len() + axis + 1] = gaps as i64;
        let edges = w.ints(&edges);
        let padded = w.one("Pad", &[&column, &edges, value], vec![text("mode", "constant")]);
        let whole = shape[axis] * (gaps + 1);
        shape[axis] = whole;
        let flat = w.reshape(&padded, &shape);
        let (start, stride) = (vec![0; shape.len()], vec![1; shape.len()]);
        shape[axis] = whole - gaps;
        spread = slice(w, &flat, [&start, &shape, &stride]);
    }
    let edges: Vec<i64> = pads.iter().map(|p| p.low).chain(pads.iter().map(|p| p.high)).collect();
    if edges.iter().all(|e| *e == 0) {
        return spread;
    }
    let edges = w.ints(&edges);
    w.one("Pad", &[&spread, &edges, value], vec![text("mode", "constant")])
}
