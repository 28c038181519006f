//! Attention over more keys than a block holds, under scales that turn the order of the scores
//! around, and with score and mask functions.

#![allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.

mod support;

use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::{Mask, mask_region, score_region};
use overdrive_ir::plan::StepKind;
use overdrive_ir::{Array, Binary, Builder, Compare, DType, TensorType};
use support::{MODES, Session, check, random};
use testkit::Tolerance;

/// Two query heads that share a key head: `queries` by `keys`, four channels and three values.
fn attention(dtype: DType, [queries, keys]: [usize; 2], attention: Attention) {
    // Later keys are larger, so that the largest score moves from block to block.
    let grow =
        |index: &[usize], key: &Array| key.at(index) * (0.5 + index[2] as f64 / (4 * keys) as f64);
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

#[test]
fn score_and_mask_functions_run_here_and_not_in_the_reference() {
    for (dtype, scores) in
        [(DType::F32, DType::F32), (DType::BF16, DType::F32), (DType::F64, DType::F64)]
    {
        let types = [TensorType::new(dtype, [2usize, 9]), TensorType::new(DType::I32, [2usize])];
        // T5's bias by distance and a soft cap; keys beyond a sequence's length, and those out of a
        // window, are hidden.
        let score = score_region(scores, &types, |score, [_, h, q, k], captures| {
            let near = (k - q).max(k.constant(-4.0)).min(k.constant(4.0)) + 4.0;
            ((score + captures[0].at(&[h, near]).convert(scores)) * 0.5).tanh() * 2.0
        });
        let mask = mask_region(&types, |[b, _, q, k], captures| {
            let inside = k.compare(Compare::Lt, captures[1].at(&[b]));
            inside.binary(Binary::And, (q - k).compare(Compare::Lt, q.constant(6.0)))
        });
        let [score, mask] = [score, mask].map(Result::unwrap);
        for regions in [vec![mask.clone()], vec![score.clone()], vec![score.clone(), mask.clone()]]
        {
            for causal in [Attention::FULL, Attention::CAUSAL] {
                let b = Builder::new(&format!("{dtype} {} {causal:?}", regions.len()));
                let lengths = Array::from_f64(DType::I32, &[2], vec![11.0, 0.0]);
                let shapes = [[2, 4, 13, 8], [2, 2, 13, 8], [2, 2, 13, 5]];
                let mut inputs: Vec<Array> =
                    (1..).zip(&shapes).map(|(i, s)| random(dtype, s, i)).collect();
                inputs.extend([random(dtype, &[2, 9], 4), lengths]);
                let x: Vec<_> = inputs
                    .iter()
                    .enumerate()
                    .map(|(i, x)| b.input(&format!("x{i}"), x.ty()))
                    .collect();
                let [out, lse] =
                    x[0].attention_with([x[1], x[2]], causal, regions.clone(), &x[3..]);
                b.output("out", out);
                b.output("lse", lse);
                let graph = b.finish().unwrap();
                check(&graph, &inputs, Tolerance::new(dtype, 13, 8.0));
                let tensors: Vec<_> = inputs.iter().map(Array::to_tensor).collect();
                for mode in MODES {
                    let session = Session::new(&graph, mode, 1, &tensors).unwrap();
                    let plan = session.compiled.plan();
                    let host =
                        plan.steps.iter().find(|step| matches!(step.kind, StepKind::Host(_)));
                    assert!(host.is_none(), "{}, {mode}: {host:?}", graph.name());
                }
            }
        }
    }
}
