//! Attention and its gradients over more keys than a block holds. Cases: scales that reverse the
//! order of the scores, score and mask functions, dropped weights.

use crate::support::{MODES, Session, check, graph, random};
use overdrive_ir::ops::attention::{Mask, mask_region, score_region};
use overdrive_ir::ops::{Attention, AttentionGrad, Dropout};
use overdrive_ir::plan::{KernelOp, StepKind};
use overdrive_ir::{Array, Binary, Builder, Compare, DType, Graph, TensorType};
use testkit::Tolerance;

/// Two query heads that share a key head: `queries` by `keys`, four channels and three values.
fn attention(dtype: DType, [queries, keys]: [usize; 2], attention: Attention) {
    // Later keys are larger, so that the largest score moves from block to block.
    let grow =
        |index: &[usize], key: &Array| key.at(index) * (0.5 + index[2] as f64 / (4 * keys) as f64);
    let k = random(dtype, &[1, 1, keys, 4], 2);
    let k = Array::build(dtype, &[1, 1, keys, 4], |index| grow(index, &k));
    let mut inputs =
        vec![random(dtype, &[1, 2, queries, 4], 1), k, random(dtype, &[1, 1, keys, 3], 3)];
    inputs.extend(seed_of(attention));
    let b = Builder::new(&format!("{dtype} {queries}x{keys} {attention:?}"));
    let x: Vec<_> =
        inputs.iter().enumerate().map(|(i, x)| b.input(&format!("x{i}"), x.ty())).collect();
    let [out, lse] = x[0].attention_with([x[1], x[2]], attention, vec![], &x[3..]);
    b.output("out", out);
    b.output("lse", lse);
    let graph = b.finish().unwrap();
    check(&graph, &inputs, Tolerance::new(dtype, keys, 8.0));
    runs_as(&graph, &inputs, "attention");
}

/// The operand that dropout takes.
fn seed_of(attention: Attention) -> Option<Array> {
    attention.dropout.map(|_| Array::int(DType::U64, &[], vec![(1 << 35) + 3]))
}

/// Panics unless the plan of a graph has the kernel.
fn runs_as(graph: &Graph, inputs: &[Array], kernel: &str) {
    let tensors: Vec<_> = inputs.iter().map(Array::to_tensor).collect();
    for mode in MODES {
        let session = Session::new(graph, mode, 1, &tensors).unwrap();
        let steps = &session.compiled.plan().steps;
        let found = steps.iter().any(|step| is_kernel(&step.kind, kernel));
        assert!(found, "{}, {mode}: {steps:?}", graph.name());
    }
}

/// A seventh of the weights dropped.
fn dropping(attention: Attention) -> Attention {
    Attention { dropout: Some(Dropout { rate: 1.0 / 7.0, site: 0x12_3456_789a }), ..attention }
}

#[test]
fn running_maxima_and_sums_carry_over_blocks_of_keys() {
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        for mask in [Mask::Full, Mask::Causal] {
            attention(dtype, [37, 530], Attention { mask, ..Attention::FULL });
        }
        // The first panel sees no key, the second some.
        attention(dtype, [300, 257], Attention::CAUSAL);
    }
}

#[test]
fn hidden_keys_stay_hidden_under_scales_of_every_sign() {
    for scale in [-0.75, 0.0, 1.5] {
        attention(DType::F32, [9, 9], Attention { scale: Some(scale), ..Attention::CAUSAL });
    }
}

#[test]
fn score_and_mask_functions_run_in_the_kernel() {
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
                runs_as(&graph, &inputs, "attention");
            }
        }
    }
}

fn is_kernel(kind: &StepKind, name: &str) -> bool {
    let StepKind::Kernel(call) = kind else { return false };
    matches!(&call.op, KernelOp::Composite(op, _) if op.name() == name)
}

/// Documents of 100 keys; a query sees only its own document.
fn documents() -> Graph {
    mask_region(&[], |[_, _, q, k], _| {
        let [q, k] = [q, k].map(|i| i.binary(Binary::Div, i.constant(100.0)));
        q.compare(Compare::Eq, k)
    })
    .unwrap()
}

#[test]
fn blocks_that_a_mask_function_hides_leave_no_trace() {
    // Panels whose first or last block of keys is hidden. Those of the last queries see no key.
    let b = Builder::new("documents");
    let inputs = [[1, 2, 330, 4], [1, 1, 290, 4], [1, 1, 290, 3]];
    let inputs: Vec<Array> = (1..).zip(&inputs).map(|(i, s)| random(DType::F32, s, i)).collect();
    let [q, k, v] = [0, 1, 2].map(|i| b.input(&format!("x{i}"), inputs[i].ty()));
    let [out, lse] = q.attention_with([k, v], Attention::FULL, vec![documents()], &[]);
    b.output("out", out);
    b.output("lse", lse);
    check(&b.finish().unwrap(), &inputs, Tolerance::new(DType::F32, 100, 8.0));
}

/// A mask that reads a table at a query and a key divided by these, and is the same for a cell.
fn cells([of_queries, of_keys]: [usize; 2], captures: &[TensorType]) -> Graph {
    let mask = mask_region(captures, |[_, h, q, k], captures| {
        let cell = [(q, of_queries), (k, of_keys)].map(|(at, by)| at / at.constant(by as f64));
        captures[0].at(&[h, cell[0], cell[1]])
    });
    mask.unwrap()
}

/// A third of the cells is visible, none of the first row, and all of the second.
fn table([queries, keys]: [usize; 2], [of_queries, of_keys]: [usize; 2]) -> Array {
    let sizes = [2, queries.div_ceil(of_queries), keys.div_ceil(of_keys)];
    let drawn = random(DType::F64, &sizes, 9);
    Array::build(DType::Bool, &sizes, |at| match at[1] {
        0 => 0.0,
        1 => 1.0,
        _ => f64::from(u8::from(drawn.at(at) > 0.4)),
    })
}

#[test]
fn a_mask_of_cells_is_that_of_each_of_their_pairs() {
    let (queries, keys) = (75, 310);
    // Cells smaller than a panel, larger than a block, of neither's size, and of one row or column.
    let sizes = [[7, 5], [48, 16], [64, 64], [40, 128], [70, 301], [1, 128], [64, 1], [999, 90]];
    for (dtype, sizes) in sizes
        .map(|sizes| (DType::F32, sizes))
        .into_iter()
        .chain([(DType::BF16, [64, 64]), (DType::F64, [48, 16])])
    {
        for causal in [Attention::FULL, Attention::CAUSAL] {
            let table = table([queries, keys], sizes);
            let region = cells(sizes, &[table.ty()]);
            let b = Builder::new(&format!("{dtype} {sizes:?} {causal:?}"));
            let shapes = [[1, 2, queries, 4], [1, 1, keys, 4], [1, 1, keys, 3]];
            let mut inputs: Vec<Array> =
                (1..).zip(&shapes).map(|(i, s)| random(dtype, s, i)).collect();
            inputs.push(table);
            let x: Vec<_> =
                inputs.iter().enumerate().map(|(i, x)| b.input(&format!("x{i}"), x.ty())).collect();
            let [out, lse] = x[0].attention_with([x[1], x[2]], causal, vec![region], &x[3..]);
            b.output("out", out);
            b.output("lse", lse);
            let graph = b.finish().unwrap();
            check(&graph, &inputs, Tolerance::new(dtype, keys, 8.0));
            runs_as(&graph, &inputs, "attention");
        }
    }
}

/// Padding: which keys are there depends on the sequence and the key alone.
#[test]
fn a_mask_of_keys_alone_is_that_of_each_query() {
    let lengths = Array::from_f64(DType::I32, &[3], vec![300.0, 0.0, 17.0]);
    let mask = mask_region(&[lengths.ty()], |[b, _, _, k], captures| {
        k.compare(Compare::Lt, captures[0].at(&[b]))
    });
    let b = Builder::new("lengths");
    let shapes = [[3, 2, 45, 4], [3, 2, 300, 4], [3, 2, 300, 3]];
    let mut inputs: Vec<Array> =
        (1..).zip(&shapes).map(|(i, s)| random(DType::F32, s, i)).collect();
    inputs.push(lengths);
    let x: Vec<_> =
        inputs.iter().enumerate().map(|(i, x)| b.input(&format!("x{i}"), x.ty())).collect();
    let regions = vec![mask.unwrap()];
    let [out, lse] = x[0].attention_with([x[1], x[2]], Attention::FULL, regions, &x[3..]);
    b.output("out", out);
    b.output("lse", lse);
    check(&b.finish().unwrap(), &inputs, Tolerance::new(DType::F32, 300, 8.0));
}

#[test]
fn the_largest_negative_number_is_a_score_and_hides_nothing() {
    let lowest = f64::from(f32::MIN);
    // All keys of the first queries, and a key of all others.
    let score = score_region(DType::F32, &[], |score, [_, _, q, k], _| {
        let early = q.compare(Compare::Lt, q.constant(3.0));
        let first = k.compare(Compare::Eq, k.constant(0.0));
        early.binary(Binary::Or, first).select(score.constant(lowest), score)
    });
    let inputs: Vec<Array> = (1..4).map(|i| random(DType::F32, &[1, 1, 20, 4], i)).collect();
    let b = Builder::new("lowest");
    let [q, k, v] = [0, 1, 2].map(|i| b.input(&format!("x{i}"), inputs[i].ty()));
    let regions = vec![score.unwrap()];
    let [out, lse] = q.attention_with([k, v], Attention::FULL, regions, &[]);
    b.output("out", out);
    b.output("lse", lse);
    check(&b.finish().unwrap(), &inputs, Tolerance::new(DType::F32, 20, 8.0));
}

/// The gradients of two query heads that share a key head.
fn gradients(dtype: DType, sizes: [usize; 2], attention: Attention, regions: &[Graph]) {
    gradients_with((dtype, sizes), attention, regions, &[]);
}

/// The same with functions that read captures.
fn gradients_with(
    (dtype, [queries, keys]): (DType, [usize; 2]),
    attention: Attention,
    regions: &[Graph],
    captures: &[Array],
) {
    let b = Builder::new(&format!("{dtype} {queries}x{keys} {attention:?} {}", regions.len()));
    let (rows, shared) = ([1, 2, queries, 4], [1, 1, keys, 4]);
    let wide = dtype.accumulation();
    // Rows whose weights add up to about one.
    let lse = random(wide, &[1, 2, queries], 4);
    let raised = (keys as f64).ln() + 1.0;
    let lse = Array::build(wide, &[1, 2, queries], |index| 0.2 * lse.at(index) + raised);
    let mut inputs = vec![
        random(dtype, &rows, 1),
        random(dtype, &shared, 2),
        random(dtype, &[1, 1, keys, 3], 3),
        lse,
        random(dtype, &[1, 2, queries, 3], 5),
        random(wide, &[1, 2, queries], 6),
    ];
    inputs.extend(seed_of(attention));
    inputs.extend_from_slice(captures);
    let x: Vec<_> =
        inputs.iter().enumerate().map(|(i, x)| b.input(&format!("x{i}"), x.ty())).collect();
    let results = b.node(AttentionGrad { attention }, &x, regions.to_vec());
    ["dq", "dk", "dv"].iter().zip(results).for_each(|(name, result)| b.output(name, result));
    let graph = b.finish().unwrap();
    check(&graph, &inputs, Tolerance::new(dtype, queries.max(keys), 8.0));
    runs_as(&graph, &inputs, "attention_grad");
}

#[test]
fn gradients_add_up_over_blocks_and_groups() {
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        for attention in [Attention::FULL, Attention::CAUSAL] {
            // More keys than a tile has, more queries than a task of dq has.
            gradients(dtype, [90, 700], attention, &[]);
            gradients(dtype, [500, 140], attention, &[]);
        }
    }
    for scale in [-0.75, 0.0] {
        gradients(DType::F32, [9, 9], Attention { scale: Some(scale), ..Attention::CAUSAL }, &[]);
    }
}

/// Numbers of keys with every remainder by four: blocks of the generator lie across rows.
#[test]
fn dropped_weights_are_those_of_the_definition() {
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        for causal in [Attention::FULL, Attention::CAUSAL] {
            attention(dtype, [37, 530], dropping(causal));
            attention(dtype, [70, 257], dropping(causal));
            gradients(dtype, [90, 700], dropping(causal), &[]);
            gradients(dtype, [500, 143], dropping(causal), &[]);
        }
    }
    let far = score_region(DType::F32, &[], |score, [_, _, q, k], _| {
        (score * 0.5).tanh() * 2.0 - (q - k).convert(DType::F32) * 0.01
    });
    let regions = [far.unwrap(), documents()];
    gradients(DType::F32, [130, 150], dropping(Attention::CAUSAL), &regions);
    gradients(DType::BF16, [130, 150], dropping(Attention::FULL), &regions[1..]);
}

#[test]
fn gradients_through_mask_functions() {
    for attention in [Attention::FULL, Attention::CAUSAL] {
        gradients(DType::F32, [330, 290], attention, &[documents()]);
        gradients(DType::BF16, [40, 150], attention, &[documents()]);
    }
}

#[test]
fn gradients_through_masks_of_cells() {
    for sizes in [[7, 5], [64, 64], [1, 128], [999, 90]] {
        let (queries, keys) = (75, 310);
        let table = table([queries, keys], sizes);
        let region = [cells(sizes, &[table.ty()])];
        let of = (DType::F32, [queries, keys]);
        gradients_with(of, Attention::FULL, &region, std::slice::from_ref(&table));
        gradients_with(of, Attention::CAUSAL, &region, &[table]);
    }
}

#[test]
fn gradients_through_score_functions() {
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let score = score_region(dtype.accumulation(), &[], |score, [_, h, q, k], _| {
            let far = (q - k).convert(score.dtype()) * 0.01 * (h.convert(score.dtype()) + 1.0);
            let capped = (score * 0.5).tanh() * 2.0 - far;
            // Keys far ahead are hidden by the score itself.
            let hidden = (k - q).compare(Compare::Gt, k.constant(60.0));
            hidden.select(score.constant(f64::NEG_INFINITY), capped)
        });
        let score = score.unwrap();
        gradients(dtype, [150, 140], Attention::FULL, std::slice::from_ref(&score));
        gradients(dtype, [150, 140], Attention::CAUSAL, &[score, documents()]);
    }
}

/// Slopes by head and a bias by distance, as functions of scores read them.
fn captured(dtype: DType) -> (Graph, [Array; 2]) {
    let captures = [random(dtype, &[2], 8), random(dtype, &[2, 9], 9)];
    let types = [0, 1].map(|i| captures[i].ty());
    let score = score_region(dtype.accumulation(), &types, |score, [_, h, q, k], captures| {
        let near = (k - q).max(k.constant(-4.0)).min(k.constant(4.0)) + 4.0;
        let [slope, bias] = [captures[0].at(&[h]), captures[1].at(&[h, near])];
        score * slope.convert(score.dtype()) + bias.convert(score.dtype())
    });
    (score.unwrap(), captures)
}

#[test]
fn gradients_beside_floats_that_need_none() {
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let (score, captures) = captured(dtype);
        let score = std::slice::from_ref(&score);
        gradients_with((dtype, [50, 140]), Attention::FULL, score, &captures);
        gradients_with((dtype, [110, 60]), Attention::CAUSAL, score, &captures);
    }
}

/// The least finite score hides nothing either, of few queries and of many: a row of it has the
/// mean of the values.
#[test]
fn a_row_of_the_least_scores_has_the_mean_of_the_values() {
    for queries in [1, 4, 40] {
        let of = |rows: usize, seed| random(DType::F32, &[1, 2, rows, 16], seed);
        let given = [of(queries, 1), of(12, 2), of(12, 3)];
        let made = graph("least", &given, |_, x| {
            let score = score_region(DType::F32, &[], |score, _, _| {
                score.constant(f64::from(f32::MIN)) + score * 0.0
            });
            let regions = vec![score.unwrap()];
            x[0].attention_with([x[1], x[2]], Attention::FULL, regions, &[])[..1].to_vec()
        });
        check(&made, &given, Tolerance::new(DType::F32, 64, 8.0));
    }
}
