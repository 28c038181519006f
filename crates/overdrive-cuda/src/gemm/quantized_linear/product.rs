//! `CodedProduct`: a call of `quantized_linear` as its kernel takes it, alone or in a bunch.

use super::shape::Extents;
use crate::gemm::bunch::Member;
use crate::gemm::led::RowsSource;
use overdrive_ir::ops::QuantizedLinear;
use overdrive_ir::plan::{
    GemmCall, KernelCall, KernelOp, MatrixView, SlotId, Step, StepKind, View,
};
use overdrive_ir::{DType, Precision};

/// A product by codes.
#[derive(Clone)]
pub(in crate::gemm) struct CodedProduct {
    /// As a product by a matrix of codes: epilogues know no more of one.
    pub(super) call: GemmCall,
    pub(super) codes: View,
    pub(super) scale: View,
    pub(super) zero: Option<View>,
    pub(super) tensor_scale: Option<View>,
}

impl CodedProduct {
    /// `None` for a call of another op, or one that has no epilogue or no such operands.
    pub(super) fn new(call: &KernelCall) -> Option<Self> {
        let KernelOp::Composite(op, _) = &call.op else { return None };
        let names = op.downcast::<QuantizedLinear>()?.operands();
        let find =
            |name: &str| names.iter().position(|n| *n == name).map(|at| call.operands[at].clone());
        let (x, codes, scale) = (find("x")?, find("codes")?, find("scale")?);
        let epilogue = call.epilogue.clone()?;
        let [batch @ .., m, n] = &epilogue.0.extents[..] else { return None };
        let (batch, m, n, k) = (batch.to_vec(), *m, *n, codes.ty.sizes()[1]);
        let view = |view: &View| MatrixView {
            slot: view.slot,
            dtype: view.ty.dtype,
            offset: view.offset,
            row_stride: k as i64,
            col_stride: 1,
            batch_strides: vec![0; batch.len()],
        };
        // The weights are a matrix [k, n] that lies output after output.
        let rhs = MatrixView { row_stride: 1, col_stride: k as i64, ..view(&codes) };
        let (lhs, accumulate, precision) = (view(&x), DType::F32, Precision::Exact);
        let call = GemmCall { batch, m, n, k, lhs, rhs, accumulate, precision, epilogue };
        let (zero, tensor_scale) = (find("zero"), find("tensor_scale"));
        Some(Self { call, codes, scale, zero, tensor_scale })
    }

    /// Codes, scale, zero and tensor scale.
    pub(super) fn weights(&self) -> [Option<&View>; 4] {
        [Some(&self.codes), Some(&self.scale), self.zero.as_ref(), self.tensor_scale.as_ref()]
    }

    /// Rows of x.
    pub(super) fn rows(&self) -> usize {
        self.call.m * self.call.batch.iter().product::<usize>()
    }

    /// Codes under a scale.
    pub(super) fn group(&self) -> usize {
        self.call.k / self.scale.ty.sizes()[1]
    }

    /// Those of a launch of such products, in tiles of so many outputs with at most so many parts.
    pub(super) fn extents<'a>(
        &self,
        outputs: &'a [usize],
        parts: usize,
        source: RowsSource,
    ) -> Extents<'a> {
        let bits = self.codes.ty.dtype.bits();
        let scales = Extents::half(bits).div_ceil(self.group());
        let each = [Some(&self.scale), self.zero.as_ref()].into_iter().flatten();
        let scale_bytes = scales * each.map(|view| view.ty.dtype.bits().div_ceil(8)).sum::<usize>();
        Extents { rows: self.rows(), k: self.call.k, bits, scale_bytes, outputs, parts, source }
    }

    /// Scales from one row of the weights to the next; 0 where all rows share them.
    pub(super) fn scale_row(&self) -> usize {
        let [rows, groups] = [0, 1].map(|axis| self.scale.ty.sizes()[axis]);
        if rows == 1 { 0 } else { groups }
    }
}

impl Member for CodedProduct {
    fn of(step: &Step) -> Option<Self> {
        match &step.kind {
            StepKind::Kernel(call) => Self::new(call),
            _ => None,
        }
    }

    fn call(&self) -> &GemmCall {
        &self.call
    }

    fn operands(&self) -> Vec<SlotId> {
        let weights = self.weights().into_iter().flatten().map(|view| view.slot);
        [self.call.lhs.slot].into_iter().chain(weights).collect()
    }

    fn is_like(&self, like: &Self) -> bool {
        let types = |of: &Self| of.weights().map(|view| view.map(|view| view.ty.dtype));
        types(self) == types(like)
            && (self.group(), self.scale_row()) == (like.group(), like.scale_row())
    }

    fn threads(&self) -> usize {
        32 * self.extents(&[], 1, RowsSource::Given).warps()
    }
}
