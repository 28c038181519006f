//! The compiled step: source, parameters, launch (`rows.cu` says how it works).

use super::shape::{LINE_BYTES, QuantizedLinearShape, declines};
use crate::Error;
use crate::compiler::{Architecture, KernelSource};
use crate::entry::Entry;
use crate::kernels::line::{Compile, Launched, NamedKernel, Sources};
use crate::kernels::nest::ViewStart;
use crate::launch::{Addresses, Launch, Refusal, Site};
use crate::tensor_map::{Boxes, Extent, Maps};
use cudarc::driver::sys::CUtensorMap;
use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::ops::QuantizedLinear;
use overdrive_ir::plan::{KernelCall, SlotId, View};
use overdrive_ir::{DType, Graph, OpRef};
use std::ffi::c_void;
use std::sync::Arc;

#[derive(Debug)]
struct CompiledQuantizedLinear {
    entry: Entry,
    x: ViewStart,
    /// Codes, scale, zero, tensor scale.
    weights: [Option<SlotId>; 4],
    y: ViewStart,
    rows: i32,
    y_step: i64,
    /// `Rows` of `rows.cu`: first elements of the rows of x, then of y.
    at: Vec<i64>,
    /// Tensor maps of the codes for the bulk copy engine, if the device has one.
    map: Option<Maps>,
}

/// The parameters that the source depends on.
struct Wanted {
    x: DType,
    codes: DType,
    scale: DType,
    zero: Option<DType>,
    has_tensor_scale: bool,
    n: usize,
    k: usize,
    groups: usize,
    /// Scales from row to row.
    scale_row: usize,
    x_step: i64,
    is_aligned: bool,
    /// Whether all that belongs to the weights is there before the call.
    is_settled: bool,
}

impl Wanted {
    fn source(&self, shape: &QuantizedLinearShape) -> KernelSource {
        let defines = [
            ("X", self.x.to_string()),
            ("CODE", self.codes.to_string()),
            ("SCALE", self.scale.to_string()),
            ("ZERO", self.zero.unwrap_or(DType::F32).to_string()),
            ("N", self.n.to_string()),
            ("K", self.k.to_string()),
            ("GROUP", (self.k / self.groups).to_string()),
            ("SCALE_ROW", self.scale_row.to_string()),
            ("X_STEP", self.x_step.to_string()),
            ("ROWS", shape.rows.to_string()),
            ("WARPS", shape.warps.to_string()),
            ("MTILES", shape.weight_tiles.to_string()),
            ("TILES", shape.tiles.to_string()),
            ("HALVES", shape.halves.to_string()),
            ("AHEAD", shape.ahead.to_string()),
            ("HAS_ZERO", self.zero.is_some().to_string()),
            ("HAS_TENSOR_SCALE", self.has_tensor_scale.to_string()),
            ("ALIGNED", self.is_aligned.to_string()),
            ("SETTLED", self.is_settled.to_string()),
        ];
        let defines: String =
            defines.iter().map(|(key, value)| format!("#define {key} {value}\n")).collect();
        let text = format!("#include \"loop.cuh\"\n{defines}{}", include_str!("rows.cu"));
        KernelSource { name: "quantized_linear".into(), text: text.into(), defines: vec![] }
    }
}

/// `quantized_linear` of float activations.
pub(in crate::kernels) const KERNEL: NamedKernel = NamedKernel {
    declines,
    needs: |call, op, _, _| operands(call, op).map(|_| 0),
    ..NamedKernel::new("quantized_linear", Compile::Composite(compile), Sources::All(sources))
};

/// Representative specialisations of all sources.
fn sources() -> Vec<KernelSource> {
    let plain = |x, codes, scale, group: usize| Wanted {
        x,
        codes,
        scale,
        zero: None,
        has_tensor_scale: false,
        n: 4096,
        k: 4096,
        groups: 4096 / group,
        scale_row: 4096 / group,
        x_step: 1,
        is_aligned: true,
        is_settled: true,
    };
    let int4 = plain(DType::BF16, DType::I4, DType::F32, 128);
    let asymmetric = Wanted {
        zero: Some(DType::F32),
        x_step: 2,
        is_aligned: false,
        is_settled: false,
        ..plain(DType::F16, DType::I4, DType::F16, 32)
    };
    let shifted =
        Wanted { zero: Some(DType::I4), ..plain(DType::BF16, DType::I4, DType::F32, 128) };
    let mx = plain(DType::BF16, DType::F4E2M1, DType::E8M0, 32);
    let two_level =
        Wanted { has_tensor_scale: true, ..plain(DType::BF16, DType::F4E2M1, DType::F8E4M3, 16) };
    let int8 = plain(DType::BF16, DType::I8, DType::F32, 4096);
    let all = [(1, int4), (3, asymmetric), (1, shifted), (1, mx), (12, two_level), (24, int8)];
    all.map(|(rows, wanted)| {
        wanted.source(&QuantizedLinearShape::new(
            rows,
            [wanted.n, wanted.k],
            wanted.codes.bits(),
            132,
        ))
    })
    .into()
}

/// x, and codes, scale, zero and tensor scale of a call.
///
/// # Errors
/// `Unsupported` for weights that do not lie row after row.
fn operands<'c>(
    call: &'c KernelCall,
    op: &OpRef,
) -> Result<(&'c View, [Option<&'c View>; 4]), Refusal> {
    let op = op.downcast::<QuantizedLinear>().expect("the table is by name");
    let names = op.operands();
    let find = |name: &str| names.iter().position(|n| *n == name).map(|at| &call.operands[at]);
    let weights = ["codes", "scale", "zero", "tensor_scale"].map(find);
    if let Some(view) = weights.into_iter().flatten().find(|view| !view.is_dense()) {
        let reason =
            format!("weights of {} whose rows do not follow each other; copy them first", view.ty);
        return Err(Refusal::Unsupported(reason));
    }
    Ok((find("x").expect("the op multiplies x"), weights))
}

/// Compiles a product by quantized weights.
///
/// # Errors
/// As `operands`.
fn compile(site: &Site<'_>, call: &KernelCall, op: &OpRef, _: &[Graph]) -> Launched {
    let (x, weights) = operands(call, op)?;
    let ([Some(codes), Some(scale), zero, tensor_scale], [Some(y)]) = (weights, &call.results[..])
    else {
        unreachable!("the op has codes, scales and a result, which somebody reads")
    };
    let [n, k] = [codes.ty.sizes()[0], codes.ty.sizes()[1]];
    let [scale_rows, groups] = [scale.ty.sizes()[0], scale.ty.sizes()[1]];
    let (of_x, x_step) = row_offsets(x);
    let (of_y, y_step) = row_offsets(y);
    let eighth = |offset: &i64| offset % 8 == 0;
    let wanted = Wanted {
        x: x.ty.dtype,
        codes: codes.ty.dtype,
        scale: scale.ty.dtype,
        zero: zero.map(|view| view.ty.dtype),
        has_tensor_scale: tensor_scale.is_some(),
        n,
        k,
        groups,
        scale_row: if scale_rows == 1 { 0 } else { groups },
        x_step,
        is_aligned: x_step == 1 && ViewStart::new(x).is_aligned(16) && of_x.iter().all(eighth),
        is_settled: weights.into_iter().flatten().all(|view| site.is_settled(view.slot)),
    };
    let rows = of_x.len();
    let shape = QuantizedLinearShape::new(
        rows,
        [n, k],
        codes.ty.dtype.bits(),
        site.device.properties().multiprocessors as usize,
    );
    let config = LaunchConfig {
        grid_dim: (shape.blocks as u32, 1, 1),
        block_dim: (shape.threads() as u32, 1, 1),
        shared_mem_bytes: shape.shared_bytes as u32,
    };
    Ok(Box::new(CompiledQuantizedLinear {
        entry: Entry::new(site.device, (&wanted.source(&shape), "quantized_rows"), config)?,
        x: ViewStart::new(x),
        weights: weights.map(|view| view.map(|view| view.slot)),
        y: ViewStart::new(y),
        rows: rows as i32,
        y_step,
        at: [of_x, of_y].concat(),
        map: copies_in_bulk(site.device.architecture()).then(|| {
            let row = k * codes.ty.dtype.bits() / 8;
            let extents =
                [Extent::new(row, 1), Extent::new(n, row as i64), Extent::new(1, row as i64)];
            let boxes = Boxes::new(
                DType::U8,
                extents,
                [shape.halves * LINE_BYTES, shape.weight_tiles * 16],
            );
            Maps::new(vec![boxes])
        }),
    }))
}

/// Whether the device has the bulk copy engine: `COPIES_IN_BULK` of `rows.cu`.
fn copies_in_bulk(architecture: Architecture) -> bool {
    match architecture {
        Architecture::Sm80 | Architecture::Sm89 => false,
        Architecture::Sm90a | Architecture::Sm100a => true,
        Architecture::Other(capability) => capability >= 90,
    }
}

/// Starts of the rows of a view, in elements from its first, and the step along them.
fn row_offsets(view: &View) -> (Vec<i64>, i64) {
    let sizes = view.ty.sizes();
    let (outer, last) = (&sizes[..sizes.len() - 1], sizes.len() - 1);
    let mut offsets = Vec::new();
    overdrive_ir::eval::for_each_index(outer, |index| {
        offsets.push(index.iter().zip(&view.strides).map(|(&at, step)| at as i64 * step).sum());
    });
    (offsets, view.strides[last])
}

impl Launch for CompiledQuantizedLinear {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let mut places: Vec<u64> = vec![self.x.of(addresses)];
        places.extend(self.weights.map(|slot| slot.map_or(0, |slot| addresses.of(slot))));
        places.push(self.y.of(addresses));
        let mut parameters: Vec<*mut c_void> =
            places.iter_mut().map(|place| (&raw mut *place).cast()).collect();
        let (mut rows, mut y_step) = (self.rows, self.y_step);
        parameters.extend([(&raw mut rows).cast(), (&raw mut y_step).cast()]);
        // The driver only reads parameters.
        parameters.push(self.at.as_ptr().cast_mut().cast());
        let codes = self.weights[0].map_or(0, |slot| addresses.of(slot));
        let map = self.map.as_ref().map(|map| map.at(&[codes])).transpose()?;
        // Other devices' kernels do not look at it.
        let mut map = map.map_or(CUtensorMap { opaque: [0; 16] }, |maps| maps[0]);
        parameters.push((&raw mut map).cast());
        // SAFETY: the parameters are those of the kernel; rows beyond the weights' last are not
        // stored.
        unsafe { self.entry.launch(stream, &mut parameters) }
    }
}
