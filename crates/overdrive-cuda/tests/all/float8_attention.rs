//! Attention whose products are of fp8 codes, on Hopper: its kernel compiles and keeps all in
//! registers, and computes what the definition says.
//!
//! Weights are rounded to e4m3, by at most 2^-4 of themselves, and so is each of their sums. The
//! definition rounds none.

use crate::support::{gpu, h200, outputs_of};
use overdrive_cuda::compiler::{Architecture, resources};
use overdrive_cuda::{Error, Gpu, kernels};
use overdrive_ir::eval::{States, eval, philox};
use overdrive_ir::ops::attention::{Mask, mask_region, score_region};
use overdrive_ir::ops::float8_attention::Float8Codes;
use overdrive_ir::ops::{Attention, Float8Attention};
use overdrive_ir::plan::StepKind;
use overdrive_ir::{Array, Builder, Compare, DType, Graph, Mode, Plan, Tuning};
use testkit::Needs;

/// The largest relative error of a weight.
const ROUNDING: f64 = 0.0625;

#[derive(Clone, Copy, Debug)]
struct Case {
    to: DType,
    /// B, H, Hkv, Tq, Tk, D, Dv.
    sizes: [usize; 7],
    mask: Mask,
    /// Keys that share a scale.
    shared: usize,
    /// Scores through `4 tanh(score / 4)`.
    is_capped: bool,
    /// Only documents of 200 keys, and no key for every seventh query.
    hides: bool,
}

impl Case {
    fn new(to: DType, sizes: [usize; 7], mask: Mask) -> Self {
        Self { to, sizes, mask, shared: sizes[4], is_capped: false, hides: false }
    }

    fn regions(self) -> Vec<Graph> {
        let capped = score_region(DType::F32, &[], |score, _, _| (score / 4.0).tanh() * 4.0);
        let shown = mask_region(&[], |[_, _, q, k], _| {
            let seventh = (q - q / q.constant(7.0) * 7.0).compare(Compare::Ne, q.constant(3.0));
            let [q, k] = [q, k].map(|at| at / at.constant(200.0));
            seventh.select(q.compare(Compare::Eq, k), seventh)
        });
        let capped = self.is_capped.then(|| capped.unwrap());
        capped.into_iter().chain(self.hides.then(|| shown.unwrap())).collect()
    }

    /// Codes of normal numbers, and scales that make numbers of one at most.
    fn inputs(self) -> Vec<Array> {
        let [b, h, shared, queries, keys, d, dv] = self.sizes;
        let codes = [[b, h, queries, d], [b, shared, keys, d], [b, shared, dv, keys]];
        let scales = [[b, h, queries, 1], [b, shared, keys / self.shared, 1], [b, shared, dv, 1]];
        let rounded = |dtype, shape: [usize; 4], values: Vec<f64>| {
            Array::from(&Array::from_f64(dtype, &shape, values).to_tensor())
        };
        let codes = codes.into_iter().zip(0..).map(|(shape, operand)| {
            let count = shape.iter().product();
            let values = philox::normals(5, operand)
                .take(count)
                .map(|x| (100.0 * x).clamp(-448.0, 448.0))
                .collect();
            rounded(DType::F8E4M3, shape, values)
        });
        let scales = scales.into_iter().zip(0..).map(|(shape, operand)| {
            let count = shape.iter().product();
            let values = philox::uniforms(6, operand).take(count);
            rounded(DType::F32, shape, values.map(|u| 0.005 * (1.0 + u)).collect())
        });
        codes.chain(scales).collect()
    }

    fn graph(self) -> Graph {
        let b = Builder::new(&format!("{self:?}"));
        let x: Vec<_> =
            self.inputs().iter().zip(0..).map(|(x, i)| b.input(&format!("x{i}"), x.ty())).collect();
        let [q, k, v] = [0, 1, 2].map(|i| Float8Codes { codes: x[i], scales: x[i + 3] });
        let attention = Attention { mask: self.mask, ..Attention::FULL };
        let op = Float8Attention { attention, to: self.to };
        let [out, lse] = op.of([q, k, v], self.regions(), &[]);
        b.output("out", out);
        b.output("lse", lse);
        b.finish().unwrap()
    }

    fn plan(self) -> Plan {
        overdrive_passes::plan(&self.graph(), Mode::Graph, &Gpu::new(&h200()), &Tuning::default())
            .unwrap()
    }

    /// Panics unless one kernel computes it, which keeps all in registers.
    fn compiles(self) {
        let plan = self.plan();
        let is_kernel = |kind: &StepKind| matches!(kind, StepKind::Kernel(_));
        assert_eq!(plan.steps.len(), 1, "{self:?}: {plan}");
        assert!(is_kernel(&plan.steps[0].kind), "{self:?}: {plan}");
        let sources = kernels::sources_of(&plan).unwrap_or_else(|refusal| panic!("{refusal}"));
        for (source, _) in sources {
            match resources(&source, Architecture::Sm90a) {
                Ok(used) => {
                    let spilled: u32 = used.iter().map(|entry| entry.spilled_bytes).sum();
                    assert_eq!(spilled, 0, "{self:?}");
                }
                Err(missing @ Error::Missing { .. }) => testkit::skip(Needs::Nvrtc, missing),
                Err(error) => panic!("{error}\n{}", source.text),
            }
        }
    }

    /// The keys that a query sees.
    fn seen(self, query: usize) -> usize {
        let [.., queries, keys, _, _] = self.sizes;
        let inside = match self.mask {
            Mask::Full => keys,
            Mask::Causal => (query + 1 + keys).saturating_sub(queries).min(keys),
        };
        match self.hides {
            true if query % 7 == 3 => 0,
            true => inside.saturating_sub(query / 200 * 200).min(200),
            false => inside,
        }
    }

    fn check(self) {
        self.compiles();
        let Some(backend) = gpu() else { return };
        let (graph, inputs) = (self.graph(), self.inputs());
        let expected = eval(&graph, &inputs, &mut States::new());
        let [found, again] = [(); 2].map(|()| outputs_of(&backend, &graph, &inputs));
        for (found, again) in found.iter().zip(&again) {
            assert!(found.bytes() == again.bytes(), "{self:?}: a second run gives other bits");
        }
        let [out, lse] = [0, 1].map(|i| Array::from(&found[i]));
        // Sums of so many rounded weights err by less than one of them.
        let less = |query: usize| (8.0 / (self.seen(query) as f64).sqrt()).min(1.0);
        let queries = self.sizes[3];
        for (i, (expected, found)) in expected[1].to_f64().iter().zip(lse.to_f64()).enumerate() {
            let error = (expected - found).abs();
            let is_empty = *expected == f64::NEG_INFINITY && found == f64::NEG_INFINITY;
            let bound = 1e-4 + ROUNDING * less(i % queries);
            assert!(
                is_empty || error <= bound,
                "{self:?}: log-sum-exp {i}: {found} for {expected}"
            );
        }
        let (expected, out) = (expected[0].to_f64(), out.to_f64());
        let largest = expected.iter().fold(0.0f64, |a, x| a.max(x.abs()));
        let rows = expected.chunks(self.sizes[6]).zip(out.chunks(self.sizes[6])).enumerate();
        let (mut errors, mut squares) = (0.0, 0.0);
        for (i, (expected, found)) in rows {
            for (expected, found) in expected.iter().zip(found) {
                let error = (expected - found).abs();
                let bound = 0.01 * expected.abs() + 2.0 * ROUNDING * largest * less(i % queries);
                assert!(error <= bound, "{self:?}: row {i}: {found} for {expected}");
                errors += error * error;
                squares += expected * expected;
            }
        }
        let error = (errors / squares).sqrt();
        assert!(error < 0.035, "{self:?}: error {error} of the norm");
    }
}

use DType::{BF16, F16};
use Mask::{Causal, Full};

#[test]
fn products_of_codes_attend() {
    Case::new(BF16, [1, 4, 2, 300, 704, 128, 128], Causal).check();
    Case::new(F16, [1, 4, 4, 256, 1024, 64, 64], Full).check();
    Case { shared: 128, ..Case::new(BF16, [1, 2, 1, 330, 1024, 128, 64], Causal) }.check();
    Case { shared: 256, ..Case::new(F16, [2, 3, 1, 130, 512, 96, 80], Full) }.check();
    // More queries than keys, so that the first see nothing; heads of 32 channels.
    Case::new(BF16, [2, 2, 1, 450, 304, 32, 16], Causal).check();
    // One query, aligned with the last key; one block in part.
    Case::new(BF16, [1, 16, 4, 1, 48, 64, 128], Causal).check();
}

/// More tasks than multiprocessors, so that blocks of the grid go on with the next.
#[test]
fn many_heads_attend_by_codes() {
    Case::new(BF16, [2, 60, 4, 260, 528, 32, 16], Causal).check();
}

#[test]
fn products_of_codes_have_score_and_mask_functions() {
    for (to, sizes, mask) in
        [(BF16, [1, 4, 2, 300, 704, 128, 128], Causal), (F16, [2, 2, 2, 640, 640, 64, 64], Full)]
    {
        Case { hides: true, ..Case::new(to, sizes, mask) }.check();
        Case { is_capped: true, ..Case::new(to, sizes, mask) }.check();
        Case { is_capped: true, hides: true, ..Case::new(to, sizes, mask) }.check();
    }
}
