//! Attention over more keys than a block holds, and under scales that turn the order of the scores around.

#![allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.

mod support;

use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::Mask;
use overdrive_ir::{Array, Builder, DType};
use support::{check, random};
use testkit::Tolerance;

/// Two query heads that share a key head: `queries` by `keys`, four channels and three values.
fn attention(dtype: DType, [queries, keys]: [usize; 2], attention: Attention) {
    // Later keys are larger, so that the largest score moves from block to block.
    let grow = |index: &[usize], key: &Array| key.at(index) * (0.5 + index[2] as f64 / (4 * keys) as f64);
    let k = random(dtype, &[1, 1, keys, 4], 2);
    let k = Array::build(dtype, &[1, 1, keys, 4], |index| grow(index, &k));
    let inputs = [random(dtype, &[1, 2, queries, 4], 1), k, random(dtype, &[1, 1, keys, 3], 3)];
    let b = Builder::new(&format!("{dtype} {queries}x{keys} {attention:?}"));
    let [q, k, v] = [0, 1, 2].map(|i| b.input(&format!("x{i}"), inputs[i].ty()));
    let [out, lse] = q.attention(k, v, attention);
    b.output("out", out);
    b.output("lse", lse);
    check(&b.finish().unwrap(), &inputs, Tolerance::new(dtype, keys, 8.0));
}

#[test]
fn running_maxima_and_sums_carry_over_blocks_of_keys() {
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        for mask in [Mask::Full, Mask::Causal] {
            attention(dtype, [37, 530], Attention { scale: None, mask });
        }
        // The first panel sees no key, the second some.
        attention(dtype, [300, 257], Attention::CAUSAL);
    }
}

#[test]
fn hidden_keys_stay_hidden_under_scales_of_every_sign() {
    for scale in [-0.75, 0.0, 1.5] {
        attention(DType::F32, [9, 9], Attention { scale: Some(scale), mask: Mask::Causal });
    }
}
