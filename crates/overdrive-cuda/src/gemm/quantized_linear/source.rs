//! The source of the kernel for products by codes, alone and in a bunch.

use super::product::CodedProduct;
use super::shape::QuantizedLinearShape;
use crate::compiler::KernelSource;
use crate::gemm::problem::sums;
use crate::gemm::{epilogue, led};
use crate::loops::Lead;
use overdrive_ir::DType;
use overdrive_ir::plan::View;
use std::fmt::Write as _;

/// Whether a step of the call may write codes or scales while it runs.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum CodeWrites {
    /// None does.
    Settled,
    /// One may.
    Moving,
}

/// The work of one launch.
#[derive(Copy, Clone)]
pub(super) struct CodedWork<'a> {
    /// Products of one left operand; those of a list share their tiles, in this order.
    pub(super) tiles: &'a [Vec<CodedProduct>],
    /// The loop that makes their left operand.
    pub(super) lead: Option<&'a Lead>,
}

impl CodedWork<'_> {
    pub(super) fn products(&self) -> impl Iterator<Item = &CodedProduct> {
        self.tiles.iter().flatten()
    }
}

/// The source for products that share their work so. `asks` are the addresses of the loop that are
/// prefetched early, with their bytes.
pub(super) fn print(
    work: CodedWork<'_>,
    shape: &QuantizedLinearShape,
    writes: CodeWrites,
    asks: &[(usize, usize)],
) -> KernelSource {
    let like = &work.tiles[0][0];
    let dtype = |view: &Option<View>| view.as_ref().map_or(DType::F32, |view| view.ty.dtype);
    // Parts differ in the number of outputs alone.
    let mut defines = epilogue::defines(&like.call, sums(&like.call));
    defines.retain(|(name, _)| *name != "N");
    defines.extend([
        ("SCALE", like.scale.ty.dtype.to_string()),
        ("ZERO", dtype(&like.zero).to_string()),
        // A model in bf16 has a tensor scale of bf16 too.
        ("TENSOR_SCALE", dtype(&like.tensor_scale).to_string()),
        ("GROUP", like.group().to_string()),
        ("SCALE_ROW", like.scale_row().to_string()),
        ("WARPS", shape.warps.to_string()),
        ("MTILES", shape.weight_tiles.to_string()),
        ("PARTS", shape.parts.to_string()),
        ("HALVES", shape.halves.to_string()),
        ("AHEAD", shape.ahead.to_string()),
        ("BLOCKS", shape.beside.to_string()),
        ("HAS_ZERO", like.zero.is_some().to_string()),
        ("HAS_TENSOR_SCALE", like.tensor_scale.is_some().to_string()),
        ("LEAD", u8::from(work.lead.is_some()).to_string()),
        ("SETTLED", u8::from(writes == CodeWrites::Settled).to_string()),
    ]);
    let mut text = String::new();
    for (at, product) in work.products().enumerate() {
        let _ = write!(
            text,
            "namespace part{at} {{\nconstexpr int N = {};\n{}{PART}}}\n",
            product.call.n,
            epilogue::print(&product.call).text
        );
    }
    let count = work.products().count();
    let slots: String = (0..count).map(|at| format!("    part{at}::Slots of{at};\n")).collect();
    let _ = write!(
        text,
        "#include \"hopper.cuh\"\nstruct Maps {{\n    TensorMap at[{count}];\n}};\nstruct Given \
         {{\n    void* weights[{count}][4];\n{slots}    void* lead[{}];\n}};\n",
        led::count(work.lead)
    );
    text += &led::print(work.lead, asks);
    let _ = writeln!(text, "#define BODIES {}", bodies(work, shape));
    text += include_str!("../kernels/codes.cuh");
    text += include_str!("../kernels/quantized_linear.cu");
    epilogue::source("quantized_linear", &defines, &text)
}

/// The facts that `Product` needs of a part.
const PART: &str = "struct Part {
    typedef Slots Buffers;
    typedef Loaded<1> Early;
    static constexpr int EXTENT = N;
    __device__ __forceinline__ static void ask(const Slots& slots, int r, int c) {
        prefetch(slots, r / M, r % M, c);
    }
    __device__ __forceinline__ static void load(Early& early, const Slots& slots, int r, int c) {
        early.load_all(slots, r / M, r % M, c, 1);
    }
    __device__ __forceinline__ static void store(Early early, const Slots& slots, int r, int c,
                                                 f32 value) {
        const SUM sum[1] = {value};
        OUT out[1];
        early.apply(slots, r / M, r % M, c, sum, 1, out);
        store_result<1>(slots, r / M, r % M, c, out, 1);
    }
    __device__ __forceinline__ static void store(const Slots& slots, int r, int c, f32 value) {
        Early early;
        early.load_all(slots, r / M, r % M, c, 1);
        store(early, slots, r, c, value);
    }
};
";

/// The products that a block computes, by the number of its tile.
fn bodies(work: CodedWork<'_>, shape: &QuantizedLinearShape) -> String {
    let (mut text, mut id, mut first) = (String::new(), 0, 0);
    for products in work.tiles {
        let last = first + products[0].call.n.div_ceil(16 * shape.weight_tiles);
        let product = |id: usize| format!(", product(part{id}::Part(), {id}, given.of{id})");
        let all: String = (id..id + products.len()).map(product).collect();
        let _ = write!(
            text,
            "if (tile < {last}) return compute(room, x, before, (tile - {first}) * OUTPUTS{all}); "
        );
        (id, first) = (id + products.len(), last);
    }
    text
}
