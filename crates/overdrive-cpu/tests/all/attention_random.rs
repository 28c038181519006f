//! Random attentions, forward and gradients, against the f64 definition. They combine masks,
//! grouped heads, sinks, dropped weights, score functions and odd lengths. Every run must give the
//! same bits.

use crate::support::{Session, agrees, random};
use overdrive_ir::ops::attention::{Mask, mask_region, score_region};
use overdrive_ir::ops::{Attention, Dropout};
use overdrive_ir::{Array, Backend, Binary, Builder, Compare, DType, Graph, Mode};
use proptest::prelude::*;
use std::ops::Range;
use testkit::{Gradients, Tolerance, derivative};

/// Masks in addition to `Attention::mask`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hides {
    Nothing,
    /// Keys farther than three.
    Far,
    /// All keys of every third query.
    Rows,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    dtype: DType,
    /// B, H / Hkv, Hkv, Tq, Tk, D, Dv.
    sizes: [usize; 7],
    causal: bool,
    hides: Hides,
    is_capped: bool,
    has_sink: bool,
    rate: Option<f64>,
}

impl Case {
    fn attention(self) -> Attention {
        let mask = if self.causal { Mask::Causal } else { Mask::Full };
        let dropout = self.rate.map(|rate| Dropout { rate, site: 11 });
        Attention { mask, dropout, ..Attention::FULL }
    }

    fn regions(self) -> Vec<Graph> {
        let capped = score_region(self.dtype.accumulation(), &[], |score, [_, h, q, k], _| {
            let far = (q - k).convert(score.dtype()) * 0.02 * (h.convert(score.dtype()) + 1.0);
            (score * 0.5).tanh() * 2.0 - far
        });
        let seen = mask_region(&[], |[_, _, q, k], _| match self.hides {
            Hides::Rows => {
                let third = q.binary(Binary::Rem, q.constant(3.0));
                third.compare(Compare::Ne, q.constant(1.0))
            }
            _ => (q - k).max(k - q).compare(Compare::Le, q.constant(3.0)),
        });
        let capped = self.is_capped.then(|| capped.unwrap());
        let seen = (self.hides != Hides::Nothing).then(|| seen.unwrap());
        capped.into_iter().chain(seen).collect()
    }

    fn inputs(self) -> Vec<Array> {
        let [b, group, kv, tq, tk, d, dv] = self.sizes;
        let shapes = [[b, group * kv, tq, d], [b, kv, tk, d], [b, kv, tk, dv]];
        let mut inputs: Vec<Array> =
            shapes.iter().zip(1..).map(|(shape, seed)| random(self.dtype, shape, seed)).collect();
        inputs.extend(self.has_sink.then(|| random(self.dtype, &[group * kv], 4)));
        let seed = Array::int(DType::U64, &[], vec![(7 << 33) + 2]);
        inputs.extend(self.rate.map(|_| seed));
        inputs
    }

    /// `out`, and the log-sum-exp where every row has one.
    fn graph(self, inputs: &[Array]) -> Graph {
        let b = Builder::new(&format!("{self:?}"));
        let x: Vec<_> =
            inputs.iter().enumerate().map(|(i, x)| b.input(&format!("x{i}"), x.ty())).collect();
        let seed = if self.rate.is_some() { &x[x.len() - 1..] } else { &[] };
        let kv = [x[1], x[2]];
        let [mut out, mut lse] = x[0].attention_with(kv, self.attention(), self.regions(), seed);
        if self.has_sink {
            [out, lse] = out.attention_sink(lse, x[3]);
        }
        b.output("out", out);
        b.output("lse", lse);
        b.finish().unwrap()
    }
}

fn cases(dtypes: &'static [DType]) -> impl Strategy<Value = Case> {
    cases_of(dtypes, [1..3, 1..4, 1..3, 1..40, 1..45])
}

/// Cases of such B, H / Hkv, Hkv, Tq and Tk.
fn cases_of(
    dtypes: &'static [DType],
    [b, group, kv, queries, keys]: [Range<usize>; 5],
) -> impl Strategy<Value = Case> {
    let sizes = (b, group, kv, queries, keys, 1usize..10, 1usize..7)
        .prop_map(|(b, group, kv, tq, tk, d, dv)| [b, group, kv, tq, tk, d, dv]);
    let hides = prop_oneof![Just(Hides::Nothing), Just(Hides::Far), Just(Hides::Rows)];
    let rate = prop_oneof![Just(None), Just(Some(0.0)), Just(Some(0.1)), Just(Some(0.6))];
    let dtype = proptest::sample::select(dtypes);
    (dtype, sizes, any::<bool>(), hides, any::<bool>(), any::<bool>(), rate).prop_map(
        |(dtype, sizes, causal, hides, is_capped, has_sink, rate)| Case {
            dtype,
            sizes,
            causal,
            hides,
            is_capped,
            has_sink,
            rate,
        },
    )
}

/// The bits of every output, computed by so many threads.
fn bits(graph: &Graph, inputs: &[Array], threads: usize) -> Vec<Vec<u8>> {
    let tensors: Vec<_> = inputs.iter().map(Array::to_tensor).collect();
    let mut session = Session::new(graph, Mode::Compile, threads, &tensors).unwrap();
    session.run().unwrap();
    let download = |buffer| session.backend.download(buffer).unwrap().bytes().to_vec();
    session.outputs.iter().map(download).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn forwards_agree_with_the_definition(
        case in cases(&[DType::F64, DType::F32, DType::BF16, DType::F16])
    ) {
        let inputs = case.inputs();
        let graph = case.graph(&inputs);
        let tolerance = Tolerance::new(case.dtype, case.sizes[4], 16.0);
        agrees(&graph, &inputs, tolerance).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn gradients_agree_with_the_definition(case in cases(&[DType::F64, DType::F32])) {
        let inputs = case.inputs();
        let graph = case.graph(&inputs);
        if case.dtype == DType::F64 {
            let gradients = Gradients::at(&graph, &inputs, 3).map_err(TestCaseError::fail)?;
            gradients.check(5).map_err(TestCaseError::fail)?;
        }
        let (derived, point) = derivative(&graph, &inputs, 3).map_err(TestCaseError::fail)?;
        let [.., tq, tk, _, _] = case.sizes;
        let tolerance = Tolerance::new(case.dtype, tq.max(tk) * case.sizes[1], 64.0);
        agrees(&derived, &point, tolerance).map_err(TestCaseError::fail)?;
        prop_assert_eq!(bits(&derived, &point, 1), bits(&derived, &point, 3));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    /// The largest score moves from block to block, and masks end within one.
    #[test]
    fn several_blocks_of_keys_agree_too(
        case in cases_of(&[DType::F64, DType::F32], [1..2, 1..3, 1..2, 40..200, 130..420])
    ) {
        let inputs = case.inputs();
        let graph = case.graph(&inputs);
        let [.., tq, tk, _, _] = case.sizes;
        agrees(&graph, &inputs, Tolerance::new(case.dtype, tk, 16.0))
            .map_err(TestCaseError::fail)?;
        let (derived, point) = derivative(&graph, &inputs, 3).map_err(TestCaseError::fail)?;
        let tolerance = Tolerance::new(case.dtype, tq.max(tk) * case.sizes[1], 64.0);
        agrees(&derived, &point, tolerance).map_err(TestCaseError::fail)?;
        prop_assert_eq!(bits(&derived, &point, 1), bits(&derived, &point, 3));
    }
}
