//! The named kernels against the f64 definition, at sizes that reach each of their ways. These are
//! whole and partial tiles, several blocks, and both kernels of attention and of convolution.
//!
//! Long because all kernels are held to the definition by one check, on inputs of one kind.

use crate::support::gpu;
use overdrive_ir::eval::philox;
use overdrive_ir::ops::attention::{Mask, mask_region, score_region};
use overdrive_ir::ops::{Attention, AttentionGrad, Conv2d, Dropout};
use overdrive_ir::{
    Array, Builder, Compare, DType, Expr, Graph, Mode, Prim, Reducer, SortOrder, Window,
};
use testkit::check_backend;

/// Standard normal numbers (integers to both sides of 0), as the type holds them.
fn random(dtype: DType, shape: &[usize], site: u64) -> Array {
    let scale = if dtype.is_float() { 1.0 } else { 20.0 };
    let values = philox::normals(7, site).take(shape.iter().product()).map(|x| x * scale).collect();
    Array::from(&Array::from_f64(dtype, shape, values).to_tensor())
}

fn indices(shape: &[usize], low: i64, high: i64) -> Array {
    let span = (high - low) as f64;
    let values = philox::uniforms(9, 9)
        .take(shape.iter().product())
        .map(|u| (low as f64 + u * span).floor());
    Array::from_f64(DType::I32, shape, values.collect())
}

/// Checks `f` over inputs of these values; says which failed.
fn check(
    name: &str,
    inputs: &[Array],
    f: impl for<'b> Fn(&'b Builder, &[Expr<'b>]) -> Vec<Expr<'b>>,
) {
    let Some(backend) = gpu() else { return };
    let b = Builder::new(name);
    let args: Vec<Expr<'_>> =
        inputs.iter().enumerate().map(|(i, a)| b.input(&format!("x{i}"), a.ty())).collect();
    f(&b, &args).iter().enumerate().for_each(|(i, result)| b.output(&format!("y{i}"), *result));
    let graph: Graph = b.finish().unwrap();
    check_backend(&backend, Mode::Compile, &graph, inputs).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn gathers_and_scatters_of_long_rows_and_of_many_duplicates() {
    for dtype in [DType::F32, DType::BF16, DType::I16, DType::U8, DType::F64] {
        let table = random(dtype, &[50, 96], 1);
        let rows = indices(&[7, 41, 1], -3, 55);
        check("gather", &[table.clone(), rows.clone()], |_, x| vec![x[0].gather(x[1], &[0])]);
        let updates = random(dtype, &[7, 41, 96], 2);
        for reducer in [None, Some(Reducer::Sum), Some(Reducer::Max)] {
            check("scatter", &[table.clone(), rows.clone(), updates.clone()], |b, x| {
                vec![b.op1(Prim::Scatter { axes: vec![0], reducer }, x)]
            });
        }
    }
    // Every row to one of two places: runs long enough to be sorted by a walk over all keys.
    let inputs =
        [random(DType::F32, &[9], 1), indices(&[3000, 1], 0, 2), random(DType::F32, &[3000], 2)];
    check("histogram", &inputs, |b, x| {
        vec![b.op1(Prim::Scatter { axes: vec![0], reducer: Some(Reducer::Sum) }, x)]
    });
}

#[test]
fn sorts_of_one_chunk_and_of_many() {
    for (dtype, shape, axis) in [
        (DType::F32, [3, 1000], 1),
        (DType::BF16, [2000, 2], 0),
        (DType::I64, [2, 2049], 1),
        (DType::F64, [2, 9000], 1),
        (DType::U8, [20000, 1], 0),
    ] {
        for order in [SortOrder::Ascending, SortOrder::Descending] {
            let input = random(dtype, &shape, 3);
            // Many equal values, zeros of both signs, NaN.
            let input = if dtype.is_float() {
                input.map(|x| {
                    if x > 2.0 {
                        f64::NAN
                    } else {
                        (x * 2.0).round() * if x < 0.1 { 1.0 } else { -1.0 }
                    }
                })
            } else {
                input
            };
            check("sort", &[Array::from(&input.to_tensor())], |b, x| {
                b.node(Prim::Sort { axis, order }, x, vec![])
            });
        }
    }
}

#[test]
fn windows_and_dynamic_slices() {
    let window = |size, stride, dilation, pad_low, pad_high| Window {
        size,
        stride,
        dilation,
        pad_low,
        pad_high,
    };
    let windows = vec![window(1, 1, 1, 0, 0), window(3, 1, 1, 1, 1), window(3, 2, 2, 2, 3)];
    for dtype in [DType::F32, DType::F16, DType::I16, DType::U64] {
        for reducer in [Reducer::Sum, Reducer::Max, Reducer::Min] {
            check("reduce_window", &[random(dtype, &[3, 17, 18], 1)], |b, x| {
                vec![b.op1(Prim::ReduceWindow { reducer, windows: windows.clone() }, x)]
            });
        }
        for start in [[-3, 0, 2], [1, 3, 1], [9, 9, 9]] {
            let starts = Array::from_f64(DType::I64, &[3], start.map(f64::from).to_vec());
            let inputs = [random(dtype, &[4, 5, 16], 1), random(dtype, &[2, 5, 8], 2), starts];
            check("dynamic slices", &inputs, |b, x| {
                let slice = b.op1(Prim::DynamicSlice { sizes: vec![2, 5, 8] }, &[x[0], x[2]]);
                vec![slice, b.op1(Prim::DynamicUpdateSlice, x)]
            });
        }
    }
}

/// `[B, H, Hkv, Tq, Tk, D, Dv]`
const ATTENTIONS: [[usize; 7]; 6] = [
    [1, 2, 2, 128, 128, 64, 64],
    [2, 4, 2, 70, 70, 64, 64],
    [1, 2, 1, 33, 201, 128, 64],
    [1, 2, 2, 150, 90, 32, 48],
    [1, 1, 1, 3, 300, 16, 128],
    // Not for the tensor cores.
    [1, 2, 1, 70, 131, 20, 24],
];

/// The same where Hopper has a kernel of its own: each of its tiles, whole and partial.
const ATTENTIONS_OF_HOPPER: [[usize; 7]; 9] = [
    [1, 2, 2, 128, 256, 64, 64],
    [2, 4, 1, 200, 777, 64, 64],
    // Three warpgroups.
    [1, 2, 1, 2050, 300, 32, 48],
    [3, 2, 2, 300, 513, 128, 128],
    [1, 2, 1, 130, 1000, 96, 128],
    // Large blocks of keys.
    [1, 1, 1, 130, 12_300, 128, 16],
    [1, 2, 1, 200, 300, 192, 80],
    [1, 2, 2, 200, 300, 256, 256],
    // Queries that see nothing.
    [1, 2, 1, 700, 300, 80, 80],
];

fn attention_inputs(dtype: DType, [b, h, kv, tq, tk, d, dv]: [usize; 7]) -> Vec<Array> {
    [[b, h, tq, d], [b, kv, tk, d], [b, kv, tk, dv]]
        .iter()
        .enumerate()
        .map(|(site, shape)| random(dtype, shape, site as u64))
        .collect()
}

#[test]
fn attention_of_whole_and_partial_tiles() {
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for shape in ATTENTIONS {
            for mask in [Mask::Full, Mask::Causal] {
                let name = format!("attention of {dtype} {shape:?} {mask:?}");
                check(&name, &attention_inputs(dtype, shape), |_, x| {
                    x[0].attention(x[1], x[2], Attention { mask, ..Attention::FULL }).to_vec()
                });
            }
        }
    }
    for dtype in [DType::BF16, DType::F16] {
        for shape in ATTENTIONS_OF_HOPPER {
            for mask in [Mask::Full, Mask::Causal] {
                let name = format!("attention of {dtype} {shape:?} {mask:?}");
                check(&name, &attention_inputs(dtype, shape), |_, x| {
                    x[0].attention(x[1], x[2], Attention { mask, ..Attention::FULL }).to_vec()
                });
            }
        }
    }
    // Heads beside each other, as layers of transformers have them; more tasks than
    // multiprocessors.
    let inputs =
        [(300, 0), (400, 1), (400, 2)].map(|(t, site)| random(DType::BF16, &[2, t, 40, 64], site));
    check("heads beside each other", &inputs, |_, x| {
        let [q, k, v] = [0, 1, 2].map(|i| x[i].transpose(&[0, 2, 1, 3]));
        vec![q.attention(k, v, Attention::CAUSAL)[0].transpose(&[0, 2, 1, 3])]
    });
    let shape = [1, 1, 1, 65, 65, 64, 64];
    check("negative scale", &attention_inputs(DType::BF16, shape), |_, x| {
        x[0].attention(x[1], x[2], Attention { scale: Some(-0.1), ..Attention::CAUSAL }).to_vec()
    });
    // Two fragments of queries a warp.
    check("many tiles", &attention_inputs(DType::BF16, [33, 4, 1, 129, 20, 16, 16]), |_, x| {
        x[0].attention(x[1], x[2], Attention::CAUSAL).to_vec()
    });
}

#[test]
fn attention_with_score_and_mask_functions() {
    for (dtype, shape) in [
        (DType::BF16, [2, 2, 1, 70, 140, 64, 64]),
        (DType::BF16, [2, 2, 1, 200, 400, 64, 64]),
        (DType::F16, [2, 2, 2, 150, 300, 128, 96]),
        (DType::BF16, [2, 2, 1, 140, 270, 256, 144]),
        (DType::F32, [2, 2, 1, 40, 70, 8, 8]),
    ] {
        let (heads, keys) = (shape[1], shape[4]);
        let (bias, length) =
            (random(DType::F32, &[heads, 2 * keys], 5), indices(&[2], 3, keys as i64));
        let captures = [bias.ty(), length.ty()];
        let score = score_region(DType::F32, &captures, |score, [_, h, q, k], captures| {
            let biased = score + captures[0].at(&[h, k - q + k.constant(keys as f64)]);
            (biased * 0.5).tanh() * 2.0
        });
        let mask = mask_region(&captures, |[b, _, _, k], captures| {
            k.compare(Compare::Lt, captures[1].at(&[b]))
        });
        let regions = vec![score.unwrap(), mask.unwrap()];
        let inputs = [attention_inputs(dtype, shape), vec![bias, length]].concat();
        check(&format!("regions in {dtype}"), &inputs, |_, x| {
            x[0].attention_with([x[1], x[2]], Attention::CAUSAL, regions.clone(), &x[3..]).to_vec()
        });
    }
}

/// A seed that needs all of its bits, and a third of the weights dropped.
fn dropping(attention: Attention) -> (Attention, Array) {
    let dropout = Some(Dropout { rate: 1.0 / 3.0, site: 0x1234_5678_9abc });
    let seed = Array::int(DType::U64, &[], vec![0x8765_4321_0fed_cba9]);
    (Attention { dropout, ..attention }, seed)
}

/// Every kernel draws what `dropout` draws, for numbers of keys of every remainder by four.
#[test]
fn attention_with_dropped_weights() {
    let more = [
        [1, 2, 1, 200, 301, 64, 64],
        [1, 2, 1, 130, 302, 128, 128],
        // Few queries: one of decoding.
        [2, 4, 2, 1, 333, 64, 64],
        [1, 2, 1, 2, 500, 128, 128],
    ];
    let shapes: Vec<_> = [&ATTENTIONS[..], &ATTENTIONS_OF_HOPPER, &more].concat();
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for &shape in shapes.iter().filter(|shape| dtype != DType::F32 || shape[5] <= 64) {
            for causal in [Attention::FULL, Attention::CAUSAL] {
                let (attention, seed) = dropping(causal);
                let inputs = [attention_inputs(dtype, shape), vec![seed]].concat();
                check(&format!("dropout of {dtype} {shape:?} {causal:?}"), &inputs, |_, x| {
                    x[0].attention_with([x[1], x[2]], attention, vec![], &x[3..]).to_vec()
                });
            }
        }
    }
    // Together with functions, whose captures come after the seed.
    let lengths = Array::from_f64(DType::I32, &[2], vec![290.0, 0.0]);
    let captures = [lengths.ty()];
    let mask = mask_region(&captures, |[b, _, _, k], captures| {
        k.compare(Compare::Lt, captures[0].at(&[b]))
    });
    let score = score_region(DType::F32, &captures, |score, _, _| (score * 0.5).tanh() * 2.0);
    let regions = vec![score.unwrap(), mask.unwrap()];
    let (attention, seed) = dropping(Attention::CAUSAL);
    let shape = [2, 2, 1, 200, 400, 64, 64];
    let inputs = [attention_inputs(DType::BF16, shape), vec![seed, lengths]].concat();
    check("dropout beside functions", &inputs, |_, x| {
        x[0].attention_with([x[1], x[2]], attention, regions.clone(), &x[3..]).to_vec()
    });
}

/// Padding in two forms. BERT's hidden scores are the lowest number, so that a sequence that is all
/// padding gives the mean. PyTorch's export adds -infinity, and a row without a key gives 0. The
/// graphs are written out, and the plan makes attention of both.
#[test]
fn attention_with_padding() {
    for (dtype, shape) in [
        (DType::BF16, [3, 2, 2, 70, 140, 64, 64]),
        (DType::BF16, [3, 2, 2, 130, 300, 64, 64]),
        (DType::F32, [3, 2, 2, 40, 70, 16, 8]),
    ] {
        let (batch, keys) = (shape[0], shape[4]);
        let lengths = [keys, 0, keys / 3];
        let seen =
            (0..batch * keys).map(|i| f64::from(u8::from(i % keys < lengths[i / keys]))).collect();
        let inputs = attention_inputs(dtype, shape);
        let inputs = [inputs, vec![Array::from_f64(DType::I32, &[batch, keys], seen)]].concat();
        for low in [f64::from(f32::MIN), f64::NEG_INFINITY] {
            check(&format!("padding by {low} in {dtype}"), &inputs, |_, x| {
                let heads = [(0, 0), (1, 1)];
                let scores = x[0].dot_to(x[1], &heads, &[(3, 3)], DType::F32) * 0.125;
                let visible =
                    x[3].compare(Compare::Ne, x[3].constant(0.0)).reshape([batch, 1, 1, keys]);
                let weights = match low.is_finite() {
                    true => visible.select(scores, scores.constant(low)).softmax(3),
                    false => {
                        let added = visible.select(scores.constant(0.0), scores.constant(low));
                        let weights = (scores + added).softmax(3);
                        weights.compare(Compare::Ne, weights).select(weights.constant(0.0), weights)
                    }
                };
                vec![weights.convert(dtype).dot(x[2], &heads, &[(3, 2)])]
            });
        }
    }
}

/// `[B, H, Hkv, Tq, Tk, D, Dv]` of gradients. Hopper has a kernel of its own for heads of up to 128
/// channels.
const GRADIENTS: [[usize; 7]; 14] = [
    [1, 2, 2, 128, 128, 64, 64],
    [2, 4, 1, 200, 333, 64, 64],
    [1, 2, 1, 257, 96, 32, 48],
    [1, 4, 2, 131, 205, 128, 128],
    [1, 2, 1, 70, 300, 96, 128],
    // Queries that see nothing; keys that no tile of queries is without.
    [1, 2, 1, 400, 100, 80, 16],
    [1, 1, 1, 64, 64, 112, 128],
    // Tiles that are split among several tasks, and more tasks than multiprocessors.
    [1, 8, 1, 700, 130, 64, 64],
    [1, 8, 2, 300, 150, 128, 48],
    [9, 8, 4, 130, 500, 16, 32],
    // Sums of dk and dv together in registers, with and without rows of their own, then apart.
    [1, 4, 2, 150, 170, 144, 16],
    [2, 2, 1, 257, 96, 160, 64],
    [1, 4, 1, 131, 205, 256, 256],
    [1, 2, 2, 300, 100, 144, 192],
];

/// The gradients of attention with the log-sum-exp and delta of its own forward.
fn gradients<'b>(
    b: &'b Builder,
    [q, k, v, dout]: [Expr<'b>; 4],
    attention: Attention,
    (regions, captures): (&[Graph], &[Expr<'b>]),
) -> Vec<Expr<'b>> {
    let [out, lse] = q.attention_with([k, v], attention, regions.to_vec(), captures);
    let delta = (dout.widen() * out.widen()).sum(&[3]);
    let operands = [&[q, k, v, lse, dout, delta], captures].concat();
    b.node(AttentionGrad { attention }, &operands, regions.to_vec())
}

fn gradient_inputs(dtype: DType, shape: [usize; 7]) -> Vec<Array> {
    let [b, h, _, tq, .., dv] = shape;
    let mut inputs = attention_inputs(dtype, shape);
    inputs.push(random(dtype, &[b, h, tq, dv], 3));
    inputs
}

#[test]
fn gradients_of_attention() {
    for dtype in [DType::BF16, DType::F16] {
        for shape in GRADIENTS {
            for mask in [Mask::Full, Mask::Causal] {
                let name = format!("gradients of attention of {dtype} {shape:?} {mask:?}");
                check(&name, &gradient_inputs(dtype, shape), |b, x| {
                    let attention = Attention { mask, ..Attention::FULL };
                    gradients(b, [x[0], x[1], x[2], x[3]], attention, (&[], &[]))
                });
            }
        }
    }
    let shape = [2, 2, 1, 150, 170, 64, 64];
    // Heads beside each other, results too; then dout of one number, which TMA cannot copy.
    let inputs = [(150, 0), (170, 1), (170, 2), (150, 3)]
        .map(|(t, site)| random(DType::BF16, &[2, t, 4, 64], site));
    check("gradients of heads beside each other", &inputs, |b, x| {
        let x = [0, 1, 2, 3].map(|i| x[i].transpose(&[0, 2, 1, 3]));
        let results = gradients(b, x, Attention::CAUSAL, (&[], &[]));
        results.into_iter().map(|y| y.transpose(&[0, 2, 1, 3])).collect()
    });
    check("gradients of a sum", &attention_inputs(DType::BF16, shape), |b, x| {
        let ones = b.full(DType::BF16, [2, 2, 150, 64], 1.0);
        gradients(b, [x[0], x[1], x[2], ones], Attention::FULL, (&[], &[]))
    });
    check("channels last but one", &gradient_inputs(DType::BF16, shape), |b, x| {
        let turned = x[1].transpose(&[0, 1, 3, 2]).tanh().transpose(&[0, 1, 3, 2]);
        let results = gradients(b, [x[0], turned, x[2], x[3]], Attention::FULL, (&[], &[]));
        vec![results[0], results[1].transpose(&[0, 1, 3, 2])]
    });
    check("negative scale", &gradient_inputs(DType::BF16, shape), |b, x| {
        let attention = Attention { scale: Some(-0.1), ..Attention::CAUSAL };
        gradients(b, [x[0], x[1], x[2], x[3]], attention, (&[], &[]))
    });
}

#[test]
fn gradients_of_attention_with_dropped_weights() {
    let more = [[1, 2, 1, 150, 201, 64, 64], [1, 4, 2, 131, 206, 128, 128]];
    for dtype in [DType::BF16, DType::F16] {
        for shape in GRADIENTS.into_iter().chain(more) {
            for causal in [Attention::FULL, Attention::CAUSAL] {
                let (attention, seed) = dropping(causal);
                let inputs = [gradient_inputs(dtype, shape), vec![seed]].concat();
                check(&format!("dropout of {dtype} {shape:?} {causal:?}"), &inputs, |b, x| {
                    gradients(b, [x[0], x[1], x[2], x[3]], attention, (&[], &x[4..]))
                });
            }
        }
    }
    // Beside a score function, whose capture has a gradient too.
    let slopes = random(DType::F32, &[4], 4).map(|x| x.abs() / 16.0);
    let slopes = Array::from(&slopes.to_tensor());
    let alibi = score_region(DType::F32, &[slopes.ty()], |score, [_, h, q, k], captures| {
        score + captures[0].at(&[h]) * (k - q).convert(DType::F32)
    });
    let regions = vec![alibi.unwrap()];
    let (attention, seed) = dropping(Attention::CAUSAL);
    let shape = [1, 4, 2, 150, 170, 128, 128];
    let inputs = [gradient_inputs(DType::BF16, shape), vec![seed, slopes]].concat();
    check("dropout beside a score function", &inputs, |b, x| {
        let mut results = gradients(b, [x[0], x[1], x[2], x[3]], attention, (&regions, &x[4..]));
        // Its terms are rounded to 16 bits.
        results[3] = results[3].convert(DType::BF16);
        results
    });
}

#[test]
fn gradients_of_attention_with_mask_functions() {
    for (dtype, shape) in [
        (DType::BF16, [2, 4, 2, 150, 270, 128, 128]),
        (DType::F16, [2, 2, 1, 200, 130, 64, 64]),
        (DType::BF16, [2, 2, 2, 100, 100, 48, 96]),
        (DType::BF16, [2, 8, 1, 300, 100, 64, 64]),
        (DType::BF16, [2, 4, 2, 150, 170, 256, 256]),
        (DType::F16, [2, 2, 1, 100, 130, 160, 64]),
    ] {
        // The second sequence is empty: none of its rows sees a key.
        let length = Array::from_f64(DType::I32, &[2], vec![shape[4] as f64 / 2.0, 0.0]);
        let captures = [length.ty()];
        let mask = mask_region(&captures, |[b, _, _, k], captures| {
            k.compare(Compare::Lt, captures[0].at(&[b]))
        });
        let regions = vec![mask.unwrap()];
        let inputs = [gradient_inputs(dtype, shape), vec![length]].concat();
        for attention in [Attention::FULL, Attention::CAUSAL] {
            check(&format!("masked gradients in {dtype} {shape:?}"), &inputs, |b, x| {
                gradients(b, [x[0], x[1], x[2], x[3]], attention, (&regions, &x[4..]))
            });
        }
    }
}

#[test]
fn gradients_of_capped_attention() {
    check_gradients_of_scores("soft-cap", |score, _, _| (score / 2.0).tanh() * 2.0);
}

#[test]
fn gradients_of_attention_with_slopes() {
    check_gradients_of_scores("alibi", |score, [_, h, q, k], captures| {
        score + captures[0].at(&[h]) * (k - q).convert(DType::F32)
    });
}

#[test]
fn gradients_of_attention_with_relative_bias() {
    // Far keys share the ends of the table.
    check_gradients_of_scores("relative", |score, [_, h, q, k], captures| {
        let at = k - q + k.constant(40.0);
        score * captures[3] + captures[1].at(&[h, at]).convert(DType::F32)
    });
}

#[test]
fn gradients_of_attention_with_bias_and_documents() {
    check_gradients_of_scores("bias and documents", |score, [b, _, q, k], captures| {
        let same = captures[4].at(&[b, q]).compare(Compare::Eq, captures[4].at(&[b, k]));
        let biased = score + captures[2].at(&[q]);
        same.select(biased.tanh(), score.constant(f64::NEG_INFINITY))
    });
}

type Score = for<'b> fn(Expr<'b>, [Expr<'b>; 4], &[Expr<'b>]) -> Expr<'b>;

/// Gradients of captured tensors too. These are rounded to 16 bits, since their summands are.
fn check_gradients_of_scores(name: &str, function: Score) {
    for (dtype, shape) in [
        (DType::BF16, [1, 4, 2, 150, 170, 128, 128]),
        (DType::F16, [2, 2, 1, 100, 130, 64, 64]),
        (DType::BF16, [1, 2, 2, 100, 100, 48, 96]),
        (DType::BF16, [1, 8, 1, 200, 80, 64, 64]),
        (DType::BF16, [1, 4, 2, 150, 170, 256, 256]),
        (DType::F16, [2, 2, 1, 100, 130, 160, 64]),
    ] {
        let [batch, heads, _, queries, keys, ..] = shape;
        let longest = queries.max(keys);
        let documents = indices(&[batch, longest], 0, 3);
        let captures = [
            random(DType::F32, &[heads], 4).map(|x| x.abs() / 16.0),
            random(DType::BF16, &[heads, 80], 5),
            random(DType::F32, &[queries], 6),
            Array::float(DType::F32, &[], vec![0.75]),
            documents,
        ]
        .map(|array| Array::from(&array.to_tensor()));
        let types: Vec<_> = captures.iter().map(Array::ty).collect();
        let mask = mask_region(&types, |[b, _, _, k], captures| {
            let first = captures[4].at(&[b, k.constant(0.0)]);
            k.compare(Compare::Ge, first * first.constant(7.0))
        });
        let mask = mask.unwrap();
        let inputs = [&gradient_inputs(dtype, shape)[..], &captures].concat();
        let score = score_region(DType::F32, &types, function).unwrap();
        for (attention, regions) in
            [(Attention::CAUSAL, vec![score.clone()]), (Attention::FULL, vec![score, mask])]
        {
            let case = format!("{name} in {dtype} {shape:?} {attention:?}");
            check(&case, &inputs, |b, x| {
                let x4 = [x[0], x[1], x[2], x[3]];
                let all = gradients(b, x4, attention, (&regions, &x[4..]));
                all.into_iter().map(|y| y.convert(DType::BF16)).collect()
            });
        }
    }
}

#[test]
fn convolution_of_whole_and_partial_tiles() {
    // Batch, channels, size, outputs, taps, stride, pad.
    for [n, c, size, o, taps, stride, pad] in [
        [2, 3, 20, 64, 3, 1, 1],
        [3, 64, 9, 130, 3, 2, 1],
        [1, 32, 12, 70, 1, 1, 0],
        [2, 5, 13, 7, 5, 3, 2],
    ] {
        for dtype in [DType::BF16, DType::F32, DType::F64] {
            let kernel =
                random(dtype, &[o, c, taps, taps], 2).map(|x| x / (c * taps * taps) as f64);
            let kernel = Array::from(&kernel.to_tensor());
            let inputs = [random(dtype, &[n, c, size, size], 1), kernel, random(dtype, &[o], 3)];
            check(&format!("convolution of {dtype} {c} to {o}, {taps}x{taps}"), &inputs, |_, x| {
                let sums = x[0].conv2d(x[1], Some(x[2]), Conv2d::new(stride, pad));
                vec![
                    sums.relu(),
                    x[0].transpose(&[0, 1, 3, 2]).conv2d(x[1], None, Conv2d::new(stride, pad)),
                ]
            });
        }
    }
}
