// Tiles of keys and values of `decode_long.cu`: their place in shared memory, and the copies that
// fill them. Products of 16-bit floats and of codes, and q as their operand.
//
// The order of an instruction's contracted index is free. So a lane reads 16 bytes of a key as they
// lie in memory, and q is read the same way. Eight keys of a tile are columns of an instruction.
// Column 2 t + e of part n is key GROUP t + 2 n + e. So lane t gets the weights of GROUP
// neighbouring keys.
//
// Text before gives ROWS, PARTS, SPLIT, WARPS and STAGES. With codes it gives CODES, their type,
// and strides of scales.

template <bool, class A, class B>
struct Same {
    typedef A Type;
};
template <class A, class B>
struct Same<false, A, B> {
    typedef B Type;
};
#ifdef CODES
typedef CODES Row;
#define SCALES const f32 *k_scale, const f32 *v_scale,
constexpr bool HALVES = true, CODED = true, WHOLE_NUMBERS = same<CODES, i8>;
#else
typedef Element Row;
#define SCALES
constexpr bool HALVES = same<Element, f16>, CODED = false, WHOLE_NUMBERS = false;
#endif
typedef Same<WHOLE_NUMBERS, i32, f32>::Type Score;

constexpr int ROW_BYTES = D * sizeof(Row);
constexpr int KEYS = 4096 / ROW_BYTES < 16 ? 16 : 4096 / ROW_BYTES;
constexpr int PIECES = KEYS / 8, GROUP = 2 * PIECES;
// A lane's vectors of a key: 16 bytes, at 64 bytes from each other.
constexpr int K_VECTORS = ROW_BYTES / 64;
// A lane's vectors of a value: those of eight lanes are neighbours.
constexpr int V_BYTES = ROW_BYTES / 8 < 16 ? ROW_BYTES / 8 : 16;
constexpr int V_VECTORS = ROW_BYTES / 8 / V_BYTES, V_CHANNELS = V_BYTES / sizeof(Row);
// Bytes of a tile of keys; of the values of a lane t, with a gap that changes banks; of all values.
// Scales of keys, then of values, follow.
constexpr int K_TILE = KEYS * ROW_BYTES, V_GROUP = GROUP * ROW_BYTES + 32, V_TILE = 4 * V_GROUP;
constexpr int SCALES_AT = K_TILE + V_TILE, STAGE = SCALES_AT + (CODED ? 8 * KEYS : 0);
constexpr int THREADS = WARPS * 32;
// f32 of the result of a block: channels, maxima, sums.
constexpr int PART = (ROWS * (D + 2) + 3) / 4 * 4;

// Copies of 512 bytes: rows of one copy of a warp.
constexpr int PASS = 512 / ROW_BYTES;
static_assert(PASS >= 1 && GROUP % PASS == 0 && K_VECTORS >= 1);
// Numbers of pages that a lane reads for a tile: one if a tile lies in a page.
#ifdef PAGE
constexpr int LOOKUPS = PAGE % KEYS == 0 ? 1 : KEYS / PASS;
#else
constexpr int LOOKUPS = 1;
#endif
// Numbers are read a tile ahead of copies, so that these need not wait, as far as registers last.
constexpr bool PAGES_AHEAD = PAGED && D < 256;

// Place of a byte of a key's row. Odd rows swap the halves of 128 bytes, so that the lanes of a
// read are on banks of their own.
__device__ __forceinline__ u32 in_key(u32 row, u32 byte) {
    return ROW_BYTES % 128 ? byte : byte ^ row % 2 * 64;
}

__device__ __forceinline__ void product(f32 (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#define MMA(type)                                                                        \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, " \
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                  \
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                         \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if constexpr (HALVES) MMA("f16");
    else MMA("bf16");
#undef MMA
}

__device__ __forceinline__ u32 rounded(f32 low, f32 high) {
    u32 both;
    if constexpr (HALVES) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Two numbers rounded to 16 bits, and the remainders.
__device__ __forceinline__ void split(u32& high, u32& rest, f32 x, f32 y) {
    high = rounded(x, y);
    if constexpr (HALVES)
        rest = rounded(x - decode(f16{(u16)high}), y - decode(f16{(u16)(high >> 16)}));
    else rest = rounded(x - __uint_as_float(high << 16), y - __uint_as_float(high & 0xffff0000u));
}

#ifdef CODES
// Codes plus 128 in bytes 0 and 2: as f16 they are subnormals, in 2^-24. Subtracts the 128.
__device__ __forceinline__ u32 of_bytes(u32 x) {
    u32 both;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(both) : "r"(x), "r"(0x80808080u));
    return both;
}

// Two codes as f16, exactly.
__device__ __forceinline__ u32 of_pair(u16 x) {
    u32 both;
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(both) : "h"(x));
#else
    both = rounded(convert<f32>(f8e4m3{(u8)x}), convert<f32>(f8e4m3{(u8)(x >> 8)}));
#endif
    return both;
}

__device__ __forceinline__ void product(i32 (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

// A row of q as the first operand of products with keys, and the factor of these products. `t` is
// the lane of the row.
struct Query {
    static constexpr int STEPS = D / (WHOLE_NUMBERS ? 32 : 16);
    u32 operand[STEPS][4];

    __device__ __forceinline__ f32 load(const Element* from, i32 t, f32 factor) {
#ifdef CODES
        f32 x[K_VECTORS][16], most = 0, wrong = 0;
#pragma unroll
        for (int j = 0; j < K_VECTORS; ++j)
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                x[j][i] = convert<f32>(from[j * 64 + t * 16 + i]);
                most = fmaxf(most, fabsf(x[j][i]));
                // Digits have no NaN, so the factor takes it.
                wrong += x[j][i] * 0.0f;
            }
#pragma unroll
        for (int mask = 1; mask < 4; mask *= 2) {
            most = fmaxf(most, __shfl_xor_sync(~0u, most, mask));
            wrong += __shfl_xor_sync(~0u, wrong, mask);
        }
        if (!(most > 1e-30f)) most = 1e-30f;
        // Whole numbers of 16 bits are two digits. Else the unit is a power of two, and f16 holds
        // each number of q to 2^-25 of the largest.
        const f32 unit = WHOLE_NUMBERS ? most / (127 * 256)
                                       : __uint_as_float(__float_as_uint(most) & 0x7f800000u);
        const f32 by = 1 / unit;
#pragma unroll
        for (int j = 0; j < K_VECTORS; ++j)
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                const f32* const four = x[j] + 4 * w;
                if constexpr (WHOLE_NUMBERS) {
                    u32 high = 0, low = 0;
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const i32 n = __float2int_rn(four[i] / unit), digit = n + 128 >> 8;
                        high |= (u32)(digit & 255) << 8 * i;
                        low |= (u32)(n - digit * 256 & 255) << 8 * i;
                    }
                    operand[2 * j + w / 2][w % 2 * 2] = high;
                    operand[2 * j + w / 2][w % 2 * 2 + 1] = low;
                } else {
                    u32(&to)[4] = operand[4 * j + w];
                    to[0] = rounded(four[0] * by, four[1] * by), to[1] = 0;
                    to[2] = rounded(four[2] * by, four[3] * by), to[3] = 0;
                }
            }
        return factor * unit + wrong;
#else
#pragma unroll
        for (int j = 0; j < K_VECTORS; ++j) {
            const uint4 x = *reinterpret_cast<const uint4*>(from + j * 32 + t * 8);
            operand[2 * j][0] = x.x, operand[2 * j][2] = x.y;
            operand[2 * j + 1][0] = x.z, operand[2 * j + 1][2] = x.w;
#pragma unroll
            for (int i = 1; i < 4; i += 2) operand[2 * j][i] = operand[2 * j + 1][i] = 0;
        }
        return factor;
#endif
    }
};

// Adds four values by their weights to the sums of a lane. `x` has one word of each value:
// neighbouring channels.
__device__ __forceinline__ void add_values(f32 (*given)[4], const u32 (&weights)[4],
                                           const u32 (&x)[4]) {
#ifdef CODES
#pragma unroll
    for (int c = 0; c < 4; c += 2) {
        if constexpr (WHOLE_NUMBERS) {
            const u32 select = c ? 0x7632 : 0x5410;
            const u32 y = __byte_perm(x[0], x[1], select) ^ 0x80808080u;
            const u32 z = __byte_perm(x[2], x[3], select) ^ 0x80808080u;
            product(given[c], weights, of_bytes(y & 0x00ff00ffu), of_bytes(z & 0x00ff00ffu));
            product(given[c + 1], weights, of_bytes(__byte_perm(y, 0, 0x4341)),
                    of_bytes(__byte_perm(z, 0, 0x4341)));
        } else {
            const u32 y = __byte_perm(x[0], x[1], 0x5140 + 0x1111 * c);
            const u32 z = __byte_perm(x[2], x[3], 0x5140 + 0x1111 * c);
            product(given[c], weights, of_pair((u16)y), of_pair((u16)z));
            product(given[c + 1], weights, of_pair((u16)(y >> 16)), of_pair((u16)(z >> 16)));
        }
    }
#else
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        const u32 select = c ? 0x7632 : 0x5410;
        product(given[c], weights, __byte_perm(x[0], x[1], select),
                __byte_perm(x[2], x[3], select));
    }
#endif
}

__device__ __forceinline__ u32 shared_of(const void* at) {
    return (u32)__cvta_generic_to_shared(at);
}
__device__ __forceinline__ void copy16(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
}
__device__ __forceinline__ void copy4(u32 to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `Last` groups of copies of this warp are under way.
template <int Last>
__device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Last) : "memory");
    __syncwarp();
}
__device__ __forceinline__ void prefetch(const void* at) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}
__device__ __forceinline__ uint4 read16(u32 at) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(at));
    return x;
}
__device__ __forceinline__ uint2 read8(u32 at) {
    uint2 x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at));
    return x;
}
