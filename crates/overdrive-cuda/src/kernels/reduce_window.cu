// Folds of a sliding window: a thread per result. -D ELEMENT, FOLD.

// `Windows` in reduce_window.rs; the dimensions of the result.
struct Windows {
    u32 rank;
    u64 count;
    u32 results[8];
    i64 result_strides[8];
    u32 operands[8];
    i64 operand_strides[8];
    u32 taps[8];
    u32 strides[8];
    u32 dilations[8];
    u32 pads[8];
    u32 all_taps;
};

extern "C" __global__ void reduce_window(const ELEMENT* operand, ELEMENT* result, Windows w) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= w.count) return;
    i64 to = 0;
    i32 first[8];
    for (int d = (int)w.rank - 1; d >= 0; d--) {
        u64 q = i / w.results[d];
        u32 at = (u32)(i - q * w.results[d]);
        to += at * w.result_strides[d];
        first[d] = (i32)(at * w.strides[d]) - (i32)w.pads[d];
        i = q;
    }
    Wide<ELEMENT> sum = FOLD::identity<Wide<ELEMENT>>();
    for (u32 tap = 0; tap < w.all_taps; tap++) {
        u32 rest = tap;
        i64 from = 0;
        bool inside = true;
        for (int d = (int)w.rank - 1; d >= 0; d--) {
            u32 q = rest / w.taps[d];
            i32 at = first[d] + (i32)((rest - q * w.taps[d]) * w.dilations[d]);
            inside = inside && at >= 0 && at < (i32)w.operands[d];
            from += at * w.operand_strides[d];
            rest = q;
        }
        if (inside) sum = FOLD::of(sum, convert<Wide<ELEMENT>>(operand[from]));
    }
    result[to] = convert<ELEMENT>(sum);
}
