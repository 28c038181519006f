//! `Sizes`: what depends on the free dimensions, computed from the shapes of inputs.
//!
//! Invariant: each product, list and range is computed once, whoever asks for it.

use super::sum::Sum;
use crate::onnx::export::{Writer, int};
use crate::onnx::proto::NodeProto;
use overdrive_ir::{DType, Tensor};
use std::collections::HashMap;

/// Scope of the nodes.
const SCOPE: &str = "sizes";

/// The nodes of the file so far.
pub(super) struct Sizes {
    writer: Writer,
    /// The input and its axis that have each dimension.
    places: Vec<(String, usize)>,
    products: HashMap<usize, String>,
    fields: HashMap<(Vec<Sum>, Vec<usize>), String>,
    ranges: HashMap<Sum, String>,
}

impl Sizes {
    pub(super) fn new(places: &[(String, usize)]) -> Self {
        Self {
            writer: Writer::default(),
            places: places.to_vec(),
            products: HashMap::new(),
            fields: HashMap::new(),
            ranges: HashMap::new(),
        }
    }

    /// Keeps a name from being given to a value.
    pub(super) fn reserve(&mut self, name: &str) {
        self.writer.reserve(name);
    }

    /// Writes a node that is the same at every size.
    pub(super) fn push(&mut self, node: NodeProto) {
        self.writer.nodes.push(node);
    }

    /// All nodes.
    pub(super) fn finish(self) -> Vec<NodeProto> {
        self.writer.nodes
    }

    /// The writer of a value's nodes.
    pub(super) fn writer(&mut self) -> &mut Writer {
        self.writer.enter(SCOPE);
        &mut self.writer
    }

    /// A list of numbers.
    pub(super) fn ints(&mut self, values: &[i64]) -> String {
        self.writer().ints(values)
    }

    /// A list of numbers that depend on the sizes.
    pub(super) fn list(&mut self, values: &[Sum]) -> String {
        self.field(values, &[values.len()])
    }

    /// A tensor of such numbers, of at least one dimension.
    pub(super) fn field(&mut self, values: &[Sum], shape: &[usize]) -> String {
        let key = (values.to_vec(), shape.to_vec());
        if let Some(name) = self.fields.get(&key) {
            return name.clone();
        }
        let mut total: Option<String> = None;
        for set in 0..1 << self.places.len() {
            let factors: Vec<i64> = values.iter().map(|sum| sum.factor(set)).collect();
            if factors.iter().all(|factor| *factor == 0) {
                continue;
            }
            let part = self.part(set, &factors, shape);
            total = Some(match total {
                Some(before) => self.writer().one("Add", &[&before, &part], vec![]),
                None => part,
            });
        }
        let name = total.unwrap_or_else(|| self.constant(&vec![0; values.len()], shape));
        self.fields.insert(key, name.clone());
        name
    }

    /// A product of dimensions, times these factors.
    fn part(&mut self, set: usize, factors: &[i64], shape: &[usize]) -> String {
        if set == 0 {
            return self.constant(factors, shape);
        }
        let product = self.product(set);
        if *shape == [1] && factors == [1] {
            return product;
        }
        let factors = self.constant(factors, shape);
        self.writer().one("Mul", &[&product, &factors], vec![])
    }

    fn constant(&mut self, values: &[i64], shape: &[usize]) -> String {
        let values: Vec<i128> = values.iter().map(|&x| x.into()).collect();
        let tensor = Tensor::from_ints(DType::I64, shape.to_vec(), &values);
        self.writer().tensor(&tensor).expect("ONNX has i64")
    }

    /// `[product]` of a set of dimensions.
    fn product(&mut self, set: usize) -> String {
        if let Some(name) = self.products.get(&set) {
            return name.clone();
        }
        let last = set.ilog2() as usize;
        let rest = set & !(1 << last);
        let name = if rest == 0 {
            let (input, axis) = self.places[last].clone();
            let ends = vec![int("start", axis as i64), int("end", axis as i64 + 1)];
            self.writer().one("Shape", &[&input], ends)
        } else {
            let (rest, last) = (self.product(rest), self.product(1 << last));
            self.writer().one("Mul", &[&rest, &last], vec![])
        };
        self.products.insert(set, name.clone());
        name
    }

    /// `[0, 1, ..]`, as many numbers as `count` is, along one of `rank` axes.
    pub(super) fn along(&mut self, axis: usize, rank: usize, count: &Sum) -> String {
        let range = match self.ranges.get(count) {
            Some(range) => range.clone(),
            None => {
                let list = self.list(std::slice::from_ref(count));
                let end = self.number(&list);
                let w = self.writer();
                let [zero, one] = [0, 1].map(|n| w.integer(DType::I64, n).expect("ONNX has i64"));
                let range = w.one("Range", &[&zero, &end, &one], vec![]);
                self.ranges.insert(count.clone(), range.clone());
                range
            }
        };
        let mut shape = vec![1; rank];
        shape[axis] = -1;
        let shape = self.ints(&shape);
        self.writer().one("Reshape", &[&range, &shape], vec![int("allowzero", 1)])
    }

    /// The one number of a list.
    pub(super) fn number(&mut self, list: &str) -> String {
        let axis = self.ints(&[0]);
        self.writer().one("Squeeze", &[list, &axis], vec![])
    }
}
