//! Which part of a sequence a decoder's graph computes: all of it, its beginning, or its next
//! token.
//!
//! A decoder is one function of the tokens; computing it token by token needs the keys and values
//! of those before. They are states `cache.<layer>.key` and `.value`, `[1, Hkv, C, D]`, which the
//! graphs of a beginning and of a next token declare alike and so share. The new ones are written
//! in place at a position that is data, so that one executable serves every position. Invariant:
//! all three spans give the same logits for the same token after the same tokens.

use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::{Mask, mask_region, score_region};
use overdrive_ir::{Binary, Builder, Compare, DType, Dim, Expr, Init, Prim, Tensor, TensorType};

/// What a decoder's graph computes.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Span {
    /// x `[batch, tokens]` to all logits y `[batch, tokens, V]`; both dimensions are names, nothing
    /// is kept.
    Whole,
    /// The beginning of a sequence: x `[1, tokens]` to y `[1, V]`, the logits at `position`, which
    /// is that of the last token that counts: what stands behind it in x only fills it up, and is
    /// overwritten later.
    Prefill {
        /// T of x.
        tokens: usize,
        /// C of the caches, at least `tokens`.
        capacity: usize,
    },
    /// One more token: x `[1, 1]`, which stands at `position`, to y `[1, V]`.
    Step {
        /// C of the caches.
        capacity: usize,
    },
}

/// What becomes of the scores of queries and keys.
#[derive(Copy, Clone, Default)]
pub(crate) struct Scores {
    /// How many tokens a query sees, its own included; all before it where none is given.
    pub(crate) window: Option<usize>,
    /// Factor; `1 / √D` where none is given.
    pub(crate) scale: Option<f64>,
    /// Bound, which they approach as tanh does.
    pub(crate) cap: Option<f64>,
}

impl Scores {
    fn attention(&self) -> Attention {
        Attention { scale: self.scale, ..Attention::CAUSAL }
    }
}

/// A span under construction: its inputs, and what depends on it.
pub(crate) struct Sequence<'b> {
    span: Span,
    /// Token ids, i32 `[batch, T]`.
    pub(crate) ids: Expr<'b>,
    /// Index of each token in the sequence, i32 `[T]`.
    pub(crate) positions: Expr<'b>,
    /// i64 scalar; of a whole sequence there is none.
    position: Option<Expr<'b>>,
    /// Where new keys and values begin in a cache `[1, Hkv, C, D]`; all layers share it.
    starts: Option<Expr<'b>>,
}

impl<'b> Sequence<'b> {
    /// Declares the inputs `x` and, where something is kept, `position`.
    pub(crate) fn begin(b: &'b Builder, span: Span) -> Self {
        let [batch, tokens] = match span {
            Span::Whole => [Dim::from("batch"), Dim::from("tokens")],
            Span::Prefill { tokens, .. } => [1.into(), tokens.into()],
            Span::Step { .. } => [1.into(), 1.into()],
        };
        let ids = b.input("x", TensorType::new(DType::I32, [batch, tokens.clone()]));
        let position =
            (span != Span::Whole).then(|| b.input("position", TensorType::scalar(DType::I64)));
        let positions = match (span, position) {
            (Span::Step { .. }, Some(position)) => position.convert(DType::I32).reshape([1usize]),
            _ => b.iota(DType::I32, [tokens], 0),
        };
        let start = match span {
            Span::Whole => None,
            Span::Prefill { .. } => Some(b.constant(Tensor::scalar(DType::I64, 0.0))),
            Span::Step { .. } => position,
        };
        let starts = start.map(|start| start_of(start, 4, 2));
        Self { span, ids, positions, position, starts }
    }

    /// `[batch, T]` and these.
    pub(crate) fn shape(&self, rest: &[usize]) -> Vec<Dim> {
        self.ids.shape().0.into_iter().chain(rest.iter().map(|&n| n.into())).collect()
    }

    /// `[batch, T, H D]` as `[batch, H, T, D]`.
    pub(crate) fn split(&self, x: Expr<'b>, heads: usize, depth: usize) -> Expr<'b> {
        x.reshape(self.shape(&[heads, depth])).transpose(&[0, 2, 1, 3])
    }

    /// `[batch, H, T, D]` as `[batch, T, H D]`.
    pub(crate) fn join(&self, x: Expr<'b>, heads: usize, depth: usize) -> Expr<'b> {
        x.transpose(&[0, 2, 1, 3]).reshape(self.shape(&[heads * depth]))
    }

    /// Causal attention of q `[batch, H, T, D]` over the tokens so far, of which k and v
    /// `[batch, Hkv, T, D]` are the last.
    pub(crate) fn attend(
        &self,
        layer: usize,
        [q, k, v]: [Expr<'b>; 3],
        scores: Scores,
    ) -> Expr<'b> {
        match self.span {
            Span::Whole => causal([q, k, v], scores),
            Span::Prefill { capacity, .. } => {
                self.kept(layer, [k, v], capacity);
                causal([q, k, v], scores)
            }
            Span::Step { capacity } => {
                let position = self.position.expect("a step has a position");
                one_query(q, self.kept(layer, [k, v], capacity), (position, scores))
            }
        }
    }

    /// The caches of a layer with these keys and values written.
    fn kept(&self, layer: usize, [k, v]: [Expr<'b>; 2], capacity: usize) -> [Expr<'b>; 2] {
        let starts = self.starts.expect("what keeps something knows where");
        [("key", k), ("value", v)]
            .map(|(name, new)| keep(&format!("cache.{layer}.{name}"), new, starts, capacity))
    }

    /// The rows of h `[batch, T, D]` of which logits are wanted: all, or `[1, D]`.
    pub(crate) fn wanted(&self, h: Expr<'b>, width: usize) -> Expr<'b> {
        match (self.span, self.position) {
            (Span::Prefill { .. }, Some(position)) => {
                let starts = start_of(position, 3, 1);
                let row =
                    h.builder().op1(Prim::DynamicSlice { sizes: vec![1, 1, width] }, &[h, starts]);
                row.reshape([1, width])
            }
            (Span::Step { .. }, _) => h.reshape([1, width]),
            _ => h,
        }
    }
}

/// Starts of a block of rank `rank` that lies at `position` on `axis` and at 0 on the others.
fn start_of(position: Expr<'_>, rank: usize, axis: usize) -> Expr<'_> {
    let position = position.reshape([1usize]);
    let zero = position.builder().full(DType::I64, [1usize], 0.0);
    let parts: Vec<Expr<'_>> = (0..rank).map(|i| if i == axis { position } else { zero }).collect();
    position.builder().concat(&parts, 0)
}

/// Writes `new` `[1, Hkv, T, D]` into the cache of this name at `starts`; the whole cache
/// `[1, Hkv, C, D]`.
fn keep<'b>(name: &str, new: Expr<'b>, starts: Expr<'b>, capacity: usize) -> Expr<'b> {
    let b = new.builder();
    let mut shape = new.shape();
    if let Some(tokens) = shape.0.get_mut(2) {
        *tokens = capacity.into();
    }
    let cache = b.state_named(name, TensorType::new(new.dtype(), shape), Init::ZEROS);
    let updated = b.op1(Prim::DynamicUpdateSlice, &[cache, new, starts]);
    b.update(name, updated);
    updated
}

/// Causal attention over as many keys as there are queries.
fn causal<'b>([q, k, v]: [Expr<'b>; 3], scores: Scores) -> Expr<'b> {
    let mask = scores.window.map(|window| {
        let inside = mask_region(&[], |[_, _, q, k], _| {
            (q - k).compare(Compare::Lt, q.constant(window as f64))
        });
        inside.expect("a comparison of two indices is well typed")
    });
    let cap = scores.cap.map(|cap| {
        let region = score_region(DType::F32, &[], |score, _, _| capped(score, cap));
        region.expect("a function of one number is well typed")
    });
    let regions = cap.into_iter().chain(mask).collect();
    q.attention_with([k, v], scores.attention(), regions, &[])[0]
}

/// Attention of one query `[1, H, 1, D]` over the keys up to `position` of caches `[1, Hkv, C, D]`.
fn one_query<'b>(
    q: Expr<'b>,
    [keys, values]: [Expr<'b>; 2],
    (position, scores): (Expr<'b>, Scores),
) -> Expr<'b> {
    let position_ty = TensorType::scalar(DType::I64);
    let mask = mask_region(&[position_ty], |[_, _, _, k], captures| {
        let (k, position) = (k.convert(DType::I64), captures[0]);
        let mut visible = k.compare(Compare::Le, position);
        if let Some(window) = scores.window {
            let first = position - position.constant(window as f64);
            visible = visible.binary(Binary::And, k.compare(Compare::Gt, first));
        }
        visible
    });
    let mask = mask.expect("comparisons of whole numbers are well typed");
    let cap = scores.cap.map(|cap| {
        let ty = [TensorType::scalar(DType::I64)];
        let region = score_region(DType::F32, &ty, |score, _, _| capped(score, cap));
        region.expect("a function of one number is well typed")
    });
    let regions = cap.into_iter().chain([mask]).collect();
    let attention = Attention { mask: Mask::Full, ..scores.attention() };
    q.attention_with([keys, values], attention, regions, &[position])[0]
}

/// `cap tanh(x / cap)`.
pub(crate) fn capped(x: Expr<'_>, cap: f64) -> Expr<'_> {
    (x * (1.0 / cap)).tanh() * cap
}
