//! Prints `wgmma` and its kin: one matrix instruction of a warpgroup, whose operand list has a
//! place for every register.

use overdrive_ir::DType;

/// `name(sums, left, right, accumulate)` for `columns` columns; operands that are not contiguous
/// along k are read transposed.
pub(crate) fn print(name: &str, columns: usize, dtypes: [DType; 2], by_k: [bool; 2]) -> String {
    let registers = columns / 2;
    let list =
        |each: &dyn Fn(usize) -> String| (0..registers).map(each).collect::<Vec<_>>().join(", ");
    let whole = dtypes[0] == DType::I8;
    let (sum, constraint, out) = if whole { ("i32", "r", "s32") } else { ("f32", "f", "f32") };
    let (places, sums) =
        (list(&|i| format!("%{i}")), list(&|i| format!("\"+{constraint}\"(d[{i}])")));
    let [lhs, rhs] = dtypes.map(spelling);
    let (depth, transposed) = match dtypes[0].bits() {
        8 => (32, String::new()),
        _ => (16, by_k.map(|by_k| format!(", {}", u8::from(!by_k))).concat()),
    };
    // Sums of integers have no factors of one.
    let factors = if whole { "" } else { ", 1, 1" };
    let (left, right, scale) = (registers, registers + 1, registers + 2);
    format!(
        "__device__ __forceinline__ void {name}({sum} (&d)[{registers}], u64 left, u64 right, int \
         accumulate) {{
    asm volatile(\"{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{scale}, 0;\\n\"
        \"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.{out}.{lhs}.{rhs} {{{places}}}, \
         %{left}, %{right}, p{factors}{transposed};\\n}}\"
        : {sums} : \"l\"(left), \"l\"(right), \"r\"(accumulate));
}}
"
    )
}

/// `wgmma_of_registers(sums, left, right)` adds products to sums of `columns` columns. The left
/// operand comes from registers. The right one is contiguous along k if it has 8 bits, and is not
/// if it has 16.
pub(crate) fn print_of_registers(columns: usize, dtype: DType) -> String {
    let registers = columns / 2;
    let list = |each: &dyn Fn(usize) -> String, count: std::ops::Range<usize>| {
        count.map(each).collect::<Vec<_>>().join(", ")
    };
    let places = list(&|i| format!("%{i}"), 0..registers);
    let left = list(&|i| format!("%{i}"), registers..registers + 4);
    let sums = list(&|i| format!("\"+f\"(d[{i}])"), 0..registers);
    let (depth, by_row) = if dtype.bits() == 8 { (32, "") } else { (16, ", 1") };
    let (dtype, right) = (spelling(dtype), registers + 4);
    format!(
        "__device__ __forceinline__ void wgmma_of_registers(f32 (&d)[{registers}], const u32 \
         (&left)[4], u64 right) {{
    asm volatile(\"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.f32.{dtype}.{dtype} \
         {{{places}}}, {{{left}}}, %{right}, 1, 1, 1{by_row};\"
        : {sums} : \"r\"(left[0]), \"r\"(left[1]), \"r\"(left[2]), \"r\"(left[3]), \"l\"(right));
}}
"
    )
}

fn spelling(dtype: DType) -> &'static str {
    match dtype {
        DType::F8E4M3 => "e4m3",
        DType::F8E5M2 => "e5m2",
        DType::F16 => "f16",
        DType::I8 => "s8",
        _ => "bf16",
    }
}
