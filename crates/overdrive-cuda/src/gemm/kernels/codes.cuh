// Codes as half floats, eight at a time, in as few instructions as possible.
//
// LHS: bf16 or f16, the type of x. RHS: i4, f4e2m1 or i8, the type of codes.

typedef LHS X;
typedef RHS CODE;
constexpr int WORDS = width<CODE> / 4; // of eight codes
constexpr bool IS_BF16 = same<X, bf16>;
// The factor for the pairs of `numbers`.
constexpr f32 UNIT = same<CODE, f4e2m1> ? 1.0f : IS_BF16 ? 128.0f : 512.0f;

__device__ __forceinline__ u32 select_bytes(u32 a, u32 b, u32 selector) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}
template <u32 Table>
__device__ __forceinline__ u32 logic(u32 a, u32 b, u32 c) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(d) : "r"(a), "r"(b), "r"(c), "n"(Table));
    return d;
}
__device__ __forceinline__ u32 multiply_add(u32 a, u32 b, u32 c) {
    u32 d;
    if constexpr (IS_BF16) asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    else asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
__device__ __forceinline__ u32 pack(f32 low, f32 high) {
    u32 d;
    if constexpr (IS_BF16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}
__device__ __forceinline__ f32 low_of(u32 pair) { return decode(X{(u16)pair}); }
__device__ __forceinline__ f32 high_of(u32 pair) { return decode(X{(u16)(pair >> 16)}); }
constexpr u32 ONE = IS_BF16 ? 0x3f803f80u : 0x3c003c00u;

// Eight codes as four pairs of half floats, exact but for UNIT. Bits at the low end of a half float
// are a subnormal, and `fma` takes a subnormal like any other number. The same holds for two codes
// of four bits beside each other, each in its place.
__device__ __forceinline__ void numbers(const u32 (&words)[WORDS], u32 (&pairs)[4]) {
    if constexpr (same<CODE, i4>) {
        // The sign bit turned around makes the code one of 0 to 15. Pairs (i, i + 4).
        constexpr u32 first = IS_BF16 ? 0x7e807e80u : 0x78007800u,
                      second = IS_BF16 ? 0x7c807c80u : 0x68006800u;
        constexpr u32 less = IS_BF16 ? 0xbd80bd80u : 0xa400a400u;
        const u32 word = words[0], high = word >> 8;
        pairs[0] = multiply_add(logic<0x6a>(word, 0x000f000fu, 0x00080008u), first, less);
        pairs[1] = multiply_add(logic<0x6a>(word, 0x00f000f0u, 0x00800080u), second, less);
        pairs[2] = multiply_add(logic<0x6a>(high, 0x000f000fu, 0x00080008u), first, less);
        pairs[3] = multiply_add(logic<0x6a>(high, 0x00f000f0u, 0x00800080u), second, less);
    } else if constexpr (same<CODE, f4e2m1>) {
        // Exponent and mantissa in place, and the sign: a number of the format's own but for the
        // bias. Pairs (i, i + 4).
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 word = words[0] >> (i / 2 * 8);
            u32 tiny;
            if constexpr (IS_BF16) {
                // The product has the code in two places.
                const u32 twice = (word & 0x000f000fu << i % 2 * 4) * (0x1040u >> i % 2 * 4);
                tiny = twice & 0x81c081c0u;
            } else {
                const u32 magnitude = word << (9 - i % 2 * 4) & 0x0e000e00u;
                tiny = logic<0xea>(word << (12 - i % 2 * 4), 0x80008000u, magnitude);
            }
            pairs[i] = multiply_add(tiny, IS_BF16 ? 0x7e807e80u : 0x74007400u, 0x80008000u);
        }
    } else {
        // Pairs (i, i + 2) of a word.
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 word = words[i / 2 % WORDS] >> (i % 2 * 8);
            pairs[i] = multiply_add(logic<0x6a>(word, 0x00ff00ffu, 0x00800080u),
                                    IS_BF16 ? 0x7e807e80u : 0x78007800u,
                                    IS_BF16 ? 0xbf80bf80u : 0xb400b400u);
        }
    }
}

// Eight of x in the order of the pairs of `numbers`.
__device__ __forceinline__ void arrange(u32 (&x)[4]) {
    const u32 from[4] = {x[0], x[1], x[2], x[3]};
    constexpr int apart = width<CODE> == 4 ? 2 : 1;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32 a = from[apart == 2 ? i : 2 * i], b = from[apart == 2 ? i + 2 : 2 * i + 1];
        x[2 * i] = select_bytes(a, b, 0x5410);
        x[2 * i + 1] = select_bytes(a, b, 0x7632);
    }
}
