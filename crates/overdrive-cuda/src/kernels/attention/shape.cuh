// Code that the kernels of attention share: the shape (`AttentionShape` in call.rs), pairs of
// 16-bit floats, and scores by the printed functions.
//
// Text before this file defines `Element`, `Sum`, D (channels of q and k) and DV (channels of v).
// It defines CAPTURES (parameters of the captured tensors, after a comma) and CAPTURED (their
// names). If the op has them, it defines SCORE with `score` and MASK with `visible`. -D CAUSAL.

struct AttentionShape {
    // Heads of a sequence; query heads of a key head; heads of all sequences; heads whose tiles are
    // issued together.
    i32 heads, group, matrices, together;
    i32 queries, keys;
    i64 q[4], k[4], v[4], out[4], lse[3];
    f64 factor;

    // The head and the tile of a task. The last tile comes first, since later tiles take longer
    // under a causal mask. Heads come in bunches whose keys and values stay in the L2 together.
    __device__ __forceinline__ void task(i32 index, i32 tiles, i32& matrix, i32& tile) const {
        const i32 bunch = index / (together * tiles), rest = index % (together * tiles);
        const i32 heads = min(together, matrices - bunch * together);
        matrix = bunch * together + rest % heads;
        tile = tiles - 1 - rest / heads;
    }

    // One past the last key that query `q` sees before masks.
    __device__ __forceinline__ i32 seen(i32 q) const {
#ifdef CAUSAL
        return min(keys, max(0, q + 1 + keys - queries));
#else
        return keys;
#endif
    }
};

__device__ __forceinline__ f32 infinity(f32) { return __int_as_float(0x7f800000); }
__device__ __forceinline__ f64 infinity(f64) { return __longlong_as_double(0x7ff0000000000000ll); }
__device__ __forceinline__ f32 power(f32 x) { return expf(x); }
__device__ __forceinline__ f64 power(f64 x) { return exp(x); }
__device__ __forceinline__ f32 logarithm(f32 x) { return logf(x); }
__device__ __forceinline__ f64 logarithm(f64 x) { return log(x); }

// Two values of an `Element` of 16 bits in one register, the first in the low half.
__device__ __forceinline__ u32 pair(f32 low, f32 high) {
    u32 both;
    if constexpr (same<Element, bf16>)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// The score of a pair from its scaled product, -infinity where it is hidden. Functions are
// evaluated of hidden pairs too, since what they read is in range in any case: what several pairs
// read is then read once.
__device__ __forceinline__ Sum refined(Sum product, i32 b, i32 h, i32 q, i32 k, i32 seen CAPTURES) {
    Sum result = product;
#ifdef SCORE
    result = score(result, b, h, q, k CAPTURED);
#endif
    bool shown = k < seen;
#ifdef MASK
    shown &= visible(b, h, q, k CAPTURED);
#endif
    return shown ? result : -infinity(Sum());
}
