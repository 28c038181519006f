//! `attention`, a tile at a time: scores exist for one panel of queries and one block of keys,
//! never as a whole.
//!
//! A task is a tile of queries of one head. It walks over blocks of keys. For each panel of queries
//! it computes `Sᵀ = K Qᵀ` (keys down, queries across) and folds it into the running maximum and
//! sum of each query (`softmax`). Then it adds `Vᵀ Pᵀ` to the panel's output. Transposed on
//! purpose: the micro-kernel leaves Sᵀ in the form in which it takes the right operand of the
//! second product. So probabilities are never packed, and maximum and sum run down columns, which
//! are vector lanes. Keys that a mask hides from a whole panel are not computed. Score and mask
//! functions run over the scores of a panel as fused loops do (`function`). `task` is one tile,
//! `call` the compiled step, `dropout` what is drawn of the weights. The gradients are `grad`,
//! `grad_shape`, `grad_task`, `slope` and `captures`. Few queries have no tiles (`few`). Keys and
//! values that are codes or lie in pages have `kept`. `threshold` skips tiles whose scores are far
//! below the largest.
//!
//! Sources: Dao et al., FlashAttention, arXiv:2205.14135; Milakov and Gimelshein, "Online
//! normalizer calculation for softmax", arXiv:1805.02867. Invariant: beyond operands and results
//! memory is O(tile), whatever the length. A mask function that is the same for cells of pairs is
//! evaluated once a cell (`visible`). Blocks of keys begin where cells do, and a block that no
//! panel sees is not read.

mod call;
mod captures;
mod dropout;
mod few;
mod function;
mod grad;
mod grad_shape;
mod grad_task;
mod head_rows;
mod kept;
mod reach;
mod results;
mod row_passes;
mod slope;
mod softmax;
mod task;
mod threshold;
mod translator;
mod visible;
mod weigh;

pub(crate) use call::KERNEL;
pub(crate) use grad::KERNEL as GRAD;
pub(crate) use kept::{CODED, PAGED};
