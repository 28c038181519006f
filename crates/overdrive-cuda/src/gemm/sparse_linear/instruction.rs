//! Prints the sparse `wgmma`: one matrix instruction of a warpgroup, whose operand list has a place
//! for every register.

use overdrive_ir::DType;

/// `wgmma<selector>(sums, left, right, places, accumulate)` for `columns` columns of the dense
/// right operand, both contiguous along k.
pub(super) fn print(columns: usize, dtype: DType) -> String {
    let registers = columns / 2;
    let list =
        |each: &dyn Fn(usize) -> String| (0..registers).map(each).collect::<Vec<_>>().join(", ");
    let (places, sums) = (list(&|i| format!("%{i}")), list(&|i| format!("\"+f\"(d[{i}])")));
    let [left, right, meta, scale, selector] = std::array::from_fn(|i| registers + i);
    format!(
        "template <int Selector>
__device__ __forceinline__ void wgmma(f32 (&d)[{registers}], u64 left, u64 right, u32 places, int \
         accumulate) {{
    asm volatile(\"{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{scale}, 0;\\n\"
        \"wgmma.mma_async.sp.sync.aligned.m64n{columns}k32.f32.{dtype}.{dtype} {{{places}}}, \
         %{left}, %{right}, %{meta}, %{selector}, p, 1, 1, 0, 0;\\n}}\"
        : {sums} : \"l\"(left), \"l\"(right), \"r\"(places), \"r\"(accumulate), \"n\"(Selector));
}}
"
    )
}
