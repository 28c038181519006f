//! Which part of a sequence a decoder's graph computes: all of it, its beginning, its next token,
//! or several next tokens.
//!
//! A decoder is one function of the tokens; computing it token by token needs the keys and values
//! of those before (`cache`). The graphs of a beginning and of next tokens declare caches alike,
//! and so share them. New keys and values are written in place at positions that are data, so that
//! one executable serves every position. Invariant: all spans give the same logits for the
//! same token after the same tokens, but for what a cache of codes rounds. Other sequences and
//! their pages change nothing.

use crate::cache::{self, Caches, Places, rows_of, start_of};
use overdrive_ir::ops::attention::{Mask, mask_region, score_region};
use overdrive_ir::ops::paged_attention::KeysAndValues;
use overdrive_ir::ops::{Attention, PagedAttention};
use overdrive_ir::{Binary, Builder, Compare, DType, Dim, Expr, Prim, Shape, Tensor, TensorType};

/// The part of a sequence that a decoder's graph computes.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Span {
    /// x `[batch, tokens]` to all logits y `[batch, tokens, V]`; both dimensions are names, nothing
    /// is kept.
    Whole,
    /// As `Whole`, of this many tokens: a built-in model has one length.
    Fixed(usize),
    /// The beginning of a sequence: x `[1, tokens]` to y `[1, V]`, the logits at `position`.
    /// `position` is that of the last token that counts. The tokens behind it in x are padding, and
    /// are overwritten later. With caches for several sequences, the input `sequence` says whose
    /// beginning it is. With pages it is `pages`, i32: the numbers of the pages that x fills.
    Prefill {
        /// T of x.
        tokens: usize,
        /// Their capacity is at least `tokens`.
        caches: Caches,
    },
    /// One more token of each sequence: x `[S, 1]` to y `[S, V]`. They stand at `position`, a
    /// scalar for one sequence and else `[S]`. With pages it is always `[S]`, and `pages`, i32
    /// `[S, pages of C tokens]`, has the numbers of each sequence's pages, in order.
    Step {
        /// The caches of earlier tokens.
        caches: Caches,
    },
    /// Several more tokens of each sequence: x `[S, tokens]` to y `[S, tokens, V]`. The first ones
    /// stand at `position`, always `[S]`, and the others behind it. A token that would stand behind
    /// the end of the caches stands at their last place. There it must be the token that belongs
    /// there. `pages` is as for `Step`.
    Several {
        /// N, tokens of each sequence.
        tokens: usize,
        /// The caches of earlier tokens.
        caches: Caches,
    },
}

/// Options for the scores of queries and keys.
#[derive(Copy, Clone, Default)]
pub(crate) struct ScoreOptions {
    /// Number of tokens that a query sees, including its own; `None` means all before it.
    pub(crate) window: Option<usize>,
    /// Factor; `1 / √D` where none is given.
    pub(crate) scale: Option<f64>,
    /// Bound, which they approach as tanh does.
    pub(crate) cap: Option<f64>,
}

impl ScoreOptions {
    fn attention(&self) -> Attention {
        Attention { scale: self.scale, ..Attention::CAUSAL }
    }
}

/// A span under construction: its inputs, and what depends on it.
pub(crate) struct Sequence<'b> {
    span: Span,
    /// Token ids, i32 `[batch, T]`; the tokens of a step lie along T, so that only attention sees
    /// that they are of several sequences.
    pub(crate) ids: Expr<'b>,
    /// Index of each token in its sequence, i32 `[T]`.
    pub(crate) positions: Expr<'b>,
    /// i64; of a whole sequence there is none.
    position: Option<Expr<'b>>,
    /// Positions of new keys and values in the caches; all layers share them.
    places: Option<Places<'b>>,
    /// i32 `[S, N]`: the pages of each sequence, of a step with pages.
    table: Option<Expr<'b>>,
}

impl<'b> Sequence<'b> {
    /// Declares the inputs: `x`, where something is kept `position`, and where it could be
    /// another's `sequence`; `pages`, where there are any.
    pub(crate) fn begin(b: &'b Builder, span: Span) -> Self {
        let ids =
            |batch: Dim, tokens: Dim| b.input("x", TensorType::new(DType::I32, [batch, tokens]));
        let number = |name: &str| b.input(name, TensorType::scalar(DType::I64));
        match span {
            Span::Whole | Span::Fixed(_) => {
                let tokens = match span {
                    Span::Fixed(tokens) => Dim::from(tokens),
                    _ => "tokens".into(),
                };
                let ids = ids("batch".into(), tokens.clone());
                let positions = b.iota(DType::I32, [tokens], 0);
                Self { span, ids, positions, position: None, places: None, table: None }
            }
            Span::Prefill { tokens, caches } => {
                let (ids, position) = (ids(1.into(), tokens.into()), number("position"));
                let positions = b.iota(DType::I32, [tokens], 0);
                let places = match caches {
                    Caches { pages: Some(pages), .. } => Places::Rows(rows_of(b, tokens, pages)),
                    Caches { sequences: 1, .. } => {
                        Places::Block(start_of(b.constant(Tensor::scalar(DType::I64, 0.0)), 4, 2))
                    }
                    Caches { .. } => Places::Block(start_of(number("sequence"), 4, 0)),
                };
                let (position, places) = (Some(position), Some(places));
                Self { span, ids, positions, position, places, table: None }
            }
            Span::Step { caches: Caches { sequences: 1, pages: None, .. } } => {
                let (ids, position) = (ids(1.into(), 1.into()), number("position"));
                let positions = position.convert(DType::I32).reshape([1usize]);
                let places = Some(Places::Block(start_of(position, 4, 2)));
                Self { span, ids, positions, position: Some(position), places, table: None }
            }
            Span::Step { caches } => Self::behind(b, (span, 1), caches),
            Span::Several { tokens, caches } => Self::behind(b, (span, tokens), caches),
        }
    }

    /// The inputs of so many tokens of each sequence, behind those in its caches.
    fn behind(b: &'b Builder, (span, tokens): (Span, usize), caches: Caches) -> Self {
        let Caches { sequences, capacity, pages, .. } = caches;
        let all = sequences * tokens;
        let ids = b.input("x", TensorType::new(DType::I32, [sequences, tokens])).reshape([1, all]);
        let first = b.input("position", TensorType::new(DType::I64, [sequences]));
        // The sequence of each token, and its position.
        let (each, position, flat) = match span {
            Span::Several { .. } => {
                let grid = [sequences, tokens];
                let each = b.iota(DType::I64, grid, 0).reshape([all]);
                let behind = b.iota(DType::I64, grid, 1);
                let position = first.broadcast_in(&grid.into(), &[0]) + behind;
                let last = position.constant(capacity.saturating_sub(1) as f64);
                let position = position.min(last);
                (each, position, position.reshape([all]))
            }
            _ => (b.iota(DType::I64, [sequences], 0), first, first),
        };
        let pair = |of: Expr<'b>, at: Expr<'b>| b.concat(&[of, at].map(|x| x.reshape([all, 1])), 1);
        let positions = flat.convert(DType::I32);
        let table = pages.map(|pages| {
            b.input("pages", TensorType::new(DType::I32, [sequences, pages.of(capacity)]))
        });
        let rows = match pages.zip(table) {
            None => pair(each, flat),
            Some((pages, table)) => {
                let size = flat.constant(pages.size.get() as f64);
                let page = pair(each, flat.binary(Binary::Div, size));
                let page = table.gather(page, &[0, 1]).convert(DType::I64);
                pair(page, flat.binary(Binary::Rem, size))
            }
        };
        let (position, places) = (Some(position), Some(Places::Rows(rows)));
        Self { span, ids, positions, position, places, table }
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

    /// Causal attention of q `[batch, H, T, D]` over the tokens so far. k and v
    /// `[batch, Hkv, T, D]` are those of the last T tokens.
    pub(crate) fn attend(
        &self,
        layer: usize,
        [q, k, v]: [Expr<'b>; 3],
        scores: ScoreOptions,
    ) -> Expr<'b> {
        match self.span {
            Span::Whole | Span::Fixed(_) => causal([q, k, v], scores),
            Span::Prefill { caches, .. } => {
                self.kept(layer, [k, v], caches);
                causal([q, k, v], scores)
            }
            Span::Step { caches } | Span::Several { caches, .. } => {
                let position = self.position.expect("these tokens have a position");
                let kept = self.kept(layer, [k, v], caches);
                let out = queries(self.apart(q), (kept, self.table), (position, scores));
                self.together(out)
            }
        }
    }

    /// Sequences whose tokens lie along T, and the tokens of each; none where there is one.
    fn side_by_side(&self) -> Option<[usize; 2]> {
        let (tokens, Caches { sequences, .. }) = match self.span {
            Span::Step { caches } => (1, caches),
            Span::Several { tokens, caches } => (tokens, caches),
            Span::Whole | Span::Fixed(_) | Span::Prefill { .. } => return None,
        };
        (sequences > 1).then_some([sequences, tokens])
    }

    /// `[1, H, S N, D]` as `[S, H, N, D]`: a sequence is an entry of the batch.
    fn apart(&self, x: Expr<'b>) -> Expr<'b> {
        match (self.side_by_side(), &x.shape().0[..]) {
            (Some([_, 1]), _) => x.transpose(&[2, 1, 0, 3]),
            (Some([sequences, tokens]), [_, heads, _, depth]) => {
                let all = [heads.clone(), sequences.into(), tokens.into(), depth.clone()];
                x.reshape(Shape(all.into())).transpose(&[1, 0, 2, 3])
            }
            _ => x,
        }
    }

    /// The inverse of `apart`.
    fn together(&self, x: Expr<'b>) -> Expr<'b> {
        match (self.side_by_side(), &x.shape().0[..]) {
            (Some([_, 1]), _) => x.transpose(&[2, 1, 0, 3]),
            (Some([sequences, tokens]), [_, heads, _, depth]) => {
                let all = [1.into(), heads.clone(), (sequences * tokens).into(), depth.clone()];
                x.transpose(&[1, 0, 2, 3]).reshape(Shape(all.into()))
            }
            _ => x,
        }
    }

    /// The caches of a layer with these keys and values `[1, Hkv, T, D]` written.
    fn kept(&self, layer: usize, new: [Expr<'b>; 2], caches: Caches) -> KeysAndValues<'b> {
        let places = self.places.expect("what keeps something knows where");
        cache::write(layer, new, (places, caches))
    }

    /// The rows of h `[batch, T, D]` that logits are computed for: all, or `[1, D]`, or `[S, D]`,
    /// or `[S, N, D]`.
    pub(crate) fn wanted(&self, h: Expr<'b>, width: usize) -> Expr<'b> {
        match (self.span, self.position) {
            (Span::Prefill { .. }, Some(position)) => {
                let starts = start_of(position, 3, 1);
                let row =
                    h.builder().op1(Prim::DynamicSlice { sizes: vec![1, 1, width] }, &[h, starts]);
                row.reshape([1, width])
            }
            (Span::Step { caches }, _) => h.reshape([caches.sequences, width]),
            (Span::Several { tokens, caches }, _) => h.reshape([caches.sequences, tokens, width]),
            _ => h,
        }
    }
}

/// Causal attention over as many keys as there are queries.
fn causal<'b>([q, k, v]: [Expr<'b>; 3], scores: ScoreOptions) -> Expr<'b> {
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

/// Attention of the queries `[S, H, N, D]` of each sequence, each over the keys up to its
/// `position`. The caches are `[S, Hkv, C, D]`, or pools with the pages of each sequence.
/// `position` is a scalar or `[S]` for N = 1, else `[S, N]`.
fn queries<'b>(
    q: Expr<'b>,
    (kept, pages): (KeysAndValues<'b>, Option<Expr<'b>>),
    (position, scores): (Expr<'b>, ScoreOptions),
) -> Expr<'b> {
    let position_ty = [position.ty()];
    let mask = mask_region(&position_ty, |[sequence, _, q, k], captures| {
        let position = match captures[0].rank() {
            0 => captures[0],
            1 => captures[0].at(&[sequence]),
            _ => captures[0].at(&[sequence, q]),
        };
        let k = k.convert(DType::I64);
        let mut visible = k.compare(Compare::Le, position);
        if let Some(window) = scores.window {
            let first = position - position.constant(window as f64);
            visible = visible.binary(Binary::And, k.compare(Compare::Gt, first));
        }
        visible
    });
    let mask = mask.expect("comparisons of whole numbers are well typed");
    let cap = scores.cap.map(|cap| {
        let region = score_region(DType::F32, &position_ty, |score, _, _| capped(score, cap));
        region.expect("a function of one number is well typed")
    });
    let regions = cap.into_iter().chain([mask]).collect();
    let attention = Attention { mask: Mask::Full, ..scores.attention() };
    let captures = [position];
    let [out, _] = match (kept, pages) {
        (kept, Some(pages)) => {
            PagedAttention { attention }.of(q, (kept, pages), regions, &captures)
        }
        (KeysAndValues::Numbers(kept), None) => {
            q.attention_with(kept, attention, regions, &captures)
        }
        (KeysAndValues::Codes(kept), None) => {
            q.quantized_attention(kept, attention, regions, &captures)
        }
    };
    out
}

/// `cap tanh(x / cap)`.
pub(crate) fn capped(x: Expr<'_>, cap: f64) -> Expr<'_> {
    (x * (1.0 / cap)).tanh() * cap
}
