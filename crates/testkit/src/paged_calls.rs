//! Calls of `paged_attention` that each kernel of it is held against.

use overdrive_ir::eval::philox;
use overdrive_ir::ops::attention::{mask_region, score_region};
use overdrive_ir::ops::paged_attention::KeysAndValues;
use overdrive_ir::ops::quantized_attention::CodedRows;
use overdrive_ir::ops::{Attention, PagedAttention};
use overdrive_ir::{Array, Builder, Compare, DType, Graph, TensorType};

/// A call: the pages of a sequence and their tokens.
#[derive(Copy, Clone, Debug)]
pub struct PagedCall {
    /// How many sequences there are.
    pub sequences: usize,
    /// Query heads and key heads.
    pub heads: [usize; 2],
    /// Queries of a sequence.
    pub queries: usize,
    /// Channels of a head.
    pub channels: usize,
    /// Pages of a sequence, and tokens of a page.
    pub pages: [usize; 2],
    /// The type of keys and values; `None` for that of q.
    pub codes: Option<DType>,
}

impl PagedCall {
    /// Few keys and many; pages that tiles fit into, pages of any length, and of one token. Also
    /// channels of no vector, and more rows than a block takes.
    pub fn every() -> Vec<Self> {
        let call = |sequences, heads, queries, channels, pages| Self {
            sequences,
            heads,
            queries,
            channels,
            pages,
            codes: None,
        };
        let numbers = [
            call(2, [8, 8], 1, 64, [12, 16]),
            call(3, [32, 8], 1, 128, [40, 64]),
            call(1, [8, 1], 1, 256, [129, 16]),
            call(2, [12, 4], 1, 80, [33, 7]),
            call(1, [14, 2], 3, 96, [5, 100]),
            call(4, [3, 1], 1, 19, [130, 1]),
            call(12, [10, 2], 1, 128, [1041, 1]),
            call(4, [16, 2], 4, 64, [70, 32]),
            call(2, [4, 4], 1, 32, [9, 1000]),
        ];
        let kinds = [None, Some(DType::I8), Some(DType::F8E4M3)];
        let with = |call: Self| kinds.map(|codes| Self { codes, ..call });
        numbers.into_iter().flat_map(with).collect()
    }

    /// Keys of a sequence.
    pub const fn keys(&self) -> usize {
        self.pages[0] * self.pages[1]
    }

    /// The queries of each sequence over the keys up to its position, with a score function if
    /// asked. Inputs: q, pools, pages, position.
    pub fn graph(&self, q: DType, capped: bool) -> Graph {
        let Self { sequences, heads: [heads, shared], queries, channels, .. } = *self;
        let [pages, size] = self.pages;
        let b = Builder::new("paged");
        let position = [TensorType::new(DType::I64, [sequences])];
        let mask = mask_region(&position, |[s, _, _, k], captures| {
            k.convert(DType::I64).compare(Compare::Le, captures[0].at(&[s]))
        });
        let score = score_region(DType::F32, &position, |score, _, _| (score * 0.2).tanh() * 5.0);
        let regions = capped.then_some(score).into_iter().chain([mask]);
        let regions = regions.map(|region| region.expect("the region is well typed")).collect();
        // As many pages as two thirds of the sequences need, so that some are shared.
        let pool = [1 + (sequences * pages * 2).div_ceil(3), shared, size];
        let input = |name: &str, dtype: DType, last: usize| {
            b.input(name, TensorType::new(dtype, [&pool[..], &[last]].concat()))
        };
        let queries = b.input("q", TensorType::new(q, [sequences, heads, queries, channels]));
        let kept = match self.codes {
            None => KeysAndValues::Numbers(["k", "v"].map(|name| input(name, q, channels))),
            Some(codes) => KeysAndValues::Codes(["k", "v"].map(|name| CodedRows {
                codes: input(name, codes, channels),
                scales: input(&format!("{name}_scale"), DType::F32, 1),
            })),
        };
        let pages = b.input("pages", TensorType::new(DType::I32, [sequences, pages]));
        let position = b.input("position", position[0].clone());
        let op = PagedAttention { attention: Attention::FULL };
        let [out, lse] = op.of(queries, (kept, pages), regions, &[position]);
        b.output("out", out);
        b.output("lse", lse);
        b.finish().expect("the call is well typed")
    }

    /// Random inputs of its graph. Positions lie at the borders of pages, and one is past the keys.
    pub fn inputs(&self, graph: &Graph) -> Vec<Array> {
        let types = graph.inputs().iter().map(|port| graph.ty(port.value));
        let fill = |(seed, ty): (u64, &TensorType)| {
            let count = ty.elements();
            let drawn = || philox::uniforms(seed, 3).take(count);
            let largest = self.codes.map_or(1.0, DType::max_value);
            let values: Vec<f64> = match ty.dtype {
                dtype if Some(dtype) == self.codes => {
                    drawn().map(|u| (2.0 * u - 1.0) * largest).collect()
                }
                // Any page, the first and the last among them, and numbers beyond the pool.
                DType::I32 => drawn().map(|u| (u * 1.02 * count as f64).floor() - 1.0).collect(),
                DType::I64 => {
                    let (keys, size) = (self.keys(), self.pages[1]);
                    let places = [keys, size - 1, size, keys / 2, 0, keys / 3];
                    (0..count).map(|s| places[s % places.len()] as f64).collect()
                }
                _ if ty.sizes().last() == Some(&1) => {
                    drawn().map(|u| (0.25 + 2.0 * u) / largest).collect()
                }
                _ => philox::normals(seed, 4).take(count).collect(),
            };
            Array::from(&Array::from_f64(ty.dtype, &ty.sizes(), values).to_tensor())
        };
        (7..).zip(types).map(fill).collect()
    }
}
