//! Prints `wgmma`: one matrix instruction of a warpgroup, whose operand list has a place for every register.

use overdrive_ir::DType;

/// `wgmma(sums, left, right, accumulate)` for `columns` columns; operands that are not contiguous along k are read
/// transposed.
pub(in crate::gemm) fn print(columns: usize, dtypes: [DType; 2], by_k: [bool; 2]) -> String {
    let registers = columns / 2;
    let list = |each: &dyn Fn(usize) -> String| (0..registers).map(each).collect::<Vec<_>>().join(", ");
    let whole = dtypes[0] == DType::I8;
    let (sum, constraint, out) = if whole { ("i32", "r", "s32") } else { ("f32", "f", "f32") };
    let (places, sums) = (list(&|i| format!("%{i}")), list(&|i| format!("\"+{constraint}\"(d[{i}])")));
    let [lhs, rhs] = dtypes.map(|dtype| match dtype {
        DType::F8E4M3 => "e4m3",
        DType::F8E5M2 => "e5m2",
        DType::F16 => "f16",
        DType::I8 => "s8",
        _ => "bf16",
    });
    let (depth, transposed) = match dtypes[0].bits() {
        8 => (32, String::new()),
        _ => (16, by_k.map(|by_k| format!(", {}", u8::from(!by_k))).concat()),
    };
    // Sums of integers have no factors of one.
    let factors = if whole { "" } else { ", 1, 1" };
    let (left, right, scale) = (registers, registers + 1, registers + 2);
    format!(
        "__device__ __forceinline__ void wgmma({sum} (&d)[{registers}], u64 left, u64 right, int accumulate) {{
    asm volatile(\"{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{scale}, 0;\\n\"
        \"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.{out}.{lhs}.{rhs} {{{places}}}, %{left}, %{right}, p{factors}{transposed};\\n}}\"
        : {sums} : \"l\"(left), \"l\"(right), \"r\"(accumulate));
}}
"
    )
}
