//! Caches of keys and values: their states, and how new ones are written and all are read.
//!
//! They are states `cache.<layer>.key` and `.value`, `[S, Hkv, C, D]` for S sequences, or a pool of
//! pages that sequences share. A cache of codes has 8 bits for each number, and states `_scale`
//! beside, `[S, Hkv, C, 1]`. A row, one token of one head, becomes codes when it is written and is
//! never written again. So its scale is that of its own largest number, and no outlier of another
//! token makes its steps coarser.
//!
//! Pages: Kwon et al., "PagedAttention", arXiv:2309.06180.

use overdrive_ir::ops::QuantizeRows;
use overdrive_ir::ops::block_scale::ScaleFormat;
use overdrive_ir::ops::paged_attention::KeysAndValues;
use overdrive_ir::ops::quantized_attention::CodedRows;
use overdrive_ir::{Builder, DType, Dim, Expr, Init, Mismatch, Prim, TensorType};
use std::num::NonZeroUsize;

/// The beginning of the names of all states of caches.
const PREFIX: &str = "cache.";
/// The end of the names of those that hold scales.
const SCALE: &str = "_scale";
/// Channels of a head, of which kernels over codes hold all in registers.
const MOST_CHANNELS: usize = 256;

/// Room for keys and values.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Caches {
    /// S, sequences that are decoded together, at positions of their own.
    pub sequences: usize,
    /// C, tokens of each.
    pub capacity: usize,
    /// The pool that sequences take pages of; without one each has room of its own.
    pub pages: Option<Pages>,
    /// Codes of 8 bits; `None` keeps numbers in the format of the graph.
    pub codes: Option<CacheCodes>,
}

/// Codes of keys and values, each row of a token and a head with an f32 scale of its own.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum CacheCodes {
    /// i8: 127 steps up to the largest number of a row.
    Int8,
    /// f8e4m3: 3 bits of mantissa, so that small numbers of a row keep their precision.
    Fp8,
}

impl CacheCodes {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Int8, Self::Fp8];

    /// Those of this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|codes| codes.name() == name)
    }

    /// The name that users give it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Fp8 => "fp8",
        }
    }

    /// How a row, one token of one head, becomes codes.
    pub const fn rows(self) -> QuantizeRows {
        let element = match self {
            Self::Int8 => DType::I8,
            Self::Fp8 => DType::F8E4M3,
        };
        QuantizeRows { block: None, element, scale: ScaleFormat::Wide }
    }
}

impl Caches {
    /// Room for one sequence.
    pub const fn of_one(capacity: usize) -> Self {
        Self::of(1, capacity)
    }

    /// Room of its own for each of several sequences.
    pub const fn of(sequences: usize, capacity: usize) -> Self {
        Self { sequences, capacity, pages: None, codes: None }
    }

    /// Whether a state of this name is a part of the caches.
    pub fn holds(state: &str) -> bool {
        state.starts_with(PREFIX)
    }

    /// Whether a state of this name has the scales of codes in a cache.
    pub fn holds_scales(state: &str) -> bool {
        Self::holds(state) && state.ends_with(SCALE)
    }
}

/// A pool of pages: caches are `[P + 1, Hkv, size, D]`. Page 0 is nobody's: keys and values that
/// belong to no sequence go there.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Pages {
    /// Tokens of a page.
    pub size: NonZeroUsize,
    /// P, pages for all sequences together, numbered from 1.
    pub count: usize,
}

impl Pages {
    /// Pages that so many tokens take.
    pub const fn of(self, tokens: usize) -> usize {
        tokens.div_ceil(self.size.get())
    }
}

/// Places of new keys and values in a cache.
#[derive(Copy, Clone)]
pub(crate) enum Places<'b> {
    /// i64 `[4]`: where the block of one sequence begins in `[S, Hkv, C, D]`.
    Block(Expr<'b>),
    /// i64 `[n, 2]`: of each new token, its sequence or page, and its place in that.
    Rows(Expr<'b>),
}

/// The caches of a layer, each `[S, Hkv, C, D]` or the pool, with these keys and values
/// `[1, Hkv, T, D]` written.
pub(crate) fn write<'b>(
    layer: usize,
    [k, v]: [Expr<'b>; 2],
    (places, caches): (Places<'b>, Caches),
) -> KeysAndValues<'b> {
    let new = [("key", k), ("value", v)].map(|(of, new)| (format!("{PREFIX}{layer}.{of}"), new));
    let Some(codes) = caches.codes else {
        return KeysAndValues::Numbers(new.map(|(name, new)| keep(&name, new, places, caches)));
    };
    for (name, new) in &new {
        if let Some(Dim::Size(depth)) = new.shape().0.last()
            && *depth > MOST_CHANNELS
        {
            let expected = format!("heads of at most {MOST_CHANNELS} channels");
            let mismatch = Mismatch::new(expected, format!("`{name}` of {depth}"));
            new.builder().fail("a cache of codes", mismatch.remedy("keep numbers in the cache"));
        }
    }
    KeysAndValues::Codes(new.map(|(name, new)| {
        let (codes, scales) = new.quantize_rows(codes.rows());
        let scales = scales.expect("a wide scale of a row is a result");
        let codes = keep(&name, codes, places, caches);
        CodedRows { codes, scales: keep(&(name + SCALE), scales, places, caches) }
    }))
}

/// Starts of a block of rank `rank` that lies at `position` on `axis` and at 0 on the others.
pub(crate) fn start_of(position: Expr<'_>, rank: usize, axis: usize) -> Expr<'_> {
    let position = position.reshape([1usize]);
    let zero = position.builder().full(DType::I64, [1usize], 0.0);
    let parts: Vec<Expr<'_>> = (0..rank).map(|i| if i == axis { position } else { zero }).collect();
    position.builder().concat(&parts, 0)
}

/// Page of each of a sequence's first `tokens` tokens, and the token's place in it, i64 `[T, 2]`.
/// Declares `pages`, their numbers.
pub(crate) fn rows_of(b: &Builder, tokens: usize, pages: Pages) -> Expr<'_> {
    let count = pages.of(tokens);
    let all = [count, pages.size.get()];
    let numbers = b.input("pages", TensorType::new(DType::I32, [count]));
    let page = numbers.convert(DType::I64).broadcast_in(&all.into(), &[0]);
    let place = b.iota(DType::I64, all, 1);
    let columns = [page, place].map(|x| x.reshape([all[0] * all[1], 1]).slice_axis(0, 0, tokens));
    b.concat(&columns, 1)
}

/// Writes `new` `[1, Hkv, T, D]` into the cache of this name; the whole cache `[S, Hkv, C, D]`, or
/// the pool.
fn keep<'b>(name: &str, new: Expr<'b>, places: Places<'b>, caches: Caches) -> Expr<'b> {
    let b = new.builder();
    let mut shape = new.shape();
    if let [sequences, _, tokens, _] = &mut shape.0[..] {
        let (of, each) = match caches.pages {
            None => (caches.sequences, caches.capacity),
            Some(pages) => (pages.count + 1, pages.size.get()),
        };
        (*sequences, *tokens) = (of.into(), each.into());
    }
    let cache = b.state_named(name, TensorType::new(new.dtype(), shape), Init::ZEROS);
    let updated = match places {
        Places::Block(starts) => b.op1(Prim::DynamicUpdateSlice, &[cache, new, starts]),
        Places::Rows(rows) => {
            let made = new.shape();
            let [_, heads, tokens, depth] = &made.0[..] else { return new };
            let new = new.transpose(&[2, 1, 0, 3]);
            let new = new.reshape([tokens.clone(), heads.clone(), depth.clone()]);
            let scatter = Prim::Scatter { axes: vec![0, 2], reducer: None };
            b.op1(scatter, &[cache, rows, new])
        }
    };
    b.update(name, updated);
    updated
}
