// `quantized_linear` of few rows of half floats. Weights stay codes until they are in registers,
// and meet x in the tensor cores. The weights are the left operand, so that sixteen of them share
// each read of x.
//
// Between two of these kernels in a row, memory must not rest. The obstacle is that each needs all
// results of the one before. So codes set out before those results are there. The bulk copy engine
// brings them, which keeps no thread waiting. Each warp has chunks of its own (one in WARPS), in a
// ring of its own in shared memory, AHEAD of them at once. It waits for no other warp until sums
// meet at the end. Then only the time of the products is left between two kernels. So codes become
// numbers in as few instructions as possible: the integer pipes take two cycles for each of theirs.
//
// The order of the contracted index within a chunk is the order in which codes come out of their
// words. The code at bit 0 comes with the one at bit 16. x is rearranged to fit.
//
// Learnt from Marlin (codes to half floats by bits, weights streamed past x) and from Machete.
//
// X: bf16 or f16. CODE: i4, f4e2m1 or i8. SCALE, ZERO: types. N, K, GROUP: codes under a scale;
// SCALE_ROW: scales from row to row, 0 where all rows share them. WARPS of a block, along k.
// MTILES: of sixteen weights' rows; TILES: of eight rows of x; ROWS: places of rows, no more than
// there are, since a launch takes longer the more parameters it has. HALVES: of 64 bytes of a row
// of codes in a chunk. AHEAD. X_STEP: elements of x from one to the next in a row. HAS_ZERO,
// HAS_TENSOR_SCALE, ALIGNED: whether every row of x begins at 16 bytes; SETTLED: whether all that
// belongs to the weights was there before this call.

constexpr int CODES = 128 / width<CODE>; // of 16 bytes
constexpr int LINE_BYTES = HALVES * 64;  // of a row in a chunk
constexpr int CHUNK = HALVES * 4 * CODES;
constexpr int PIECES = CODES / 8; // 16 bytes of x for each lane of half a chunk
constexpr int CHUNKS = (K + CHUNK - 1) / CHUNK;
constexpr int STEPS = (CHUNKS + WARPS - 1) / WARPS;
constexpr int THREADS = 32 * WARPS;
constexpr int BLOCK_N = 16 * MTILES;
constexpr int CODE_BYTES = BLOCK_N * LINE_BYTES;
constexpr int COLUMNS = TILES * 8;
constexpr int LINE = BLOCK_N + 4;
constexpr int BARRIERS = 1024; // bytes before the rings
constexpr i64 ROW_BYTES = (i64)K * width<CODE> / 8;
// A scale that covers whole halves multiplies their sums; a smaller one multiplies the weights.
constexpr bool AFTER = GROUP % (4 * CODES) == 0 || GROUP == K;
constexpr int SCALES = AFTER || GROUP >= CODES ? 1 : CODES / GROUP;
constexpr bool IS_BF16 = same<X, bf16>;
// The factor for the pairs of `numbers`.
constexpr f32 UNIT = same<CODE, f4e2m1> ? 1.0f : IS_BF16 ? 128.0f : 512.0f;
// Whether x is kept in registers from tile to tile.
constexpr bool KEEPS_X = TILES <= 2;

struct Rows {
    i64 x[ROWS], y[ROWS];
};
struct alignas(16) Words {
    u32 at[4];
};

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
__device__ __forceinline__ void numbers(const Words& words, int piece, u32 (&pairs)[4]) {
    if constexpr (same<CODE, i4>) {
        // The sign bit turned around makes the code one of 0 to 15. Pairs (i, i + 4).
        constexpr u32 first = IS_BF16 ? 0x7e807e80u : 0x78007800u,
                      second = IS_BF16 ? 0x7c807c80u : 0x68006800u;
        constexpr u32 less = IS_BF16 ? 0xbd80bd80u : 0xa400a400u;
        const u32 word = words.at[piece], high = word >> 8;
        pairs[0] = multiply_add(logic<0x6a>(word, 0x000f000fu, 0x00080008u), first, less);
        pairs[1] = multiply_add(logic<0x6a>(word, 0x00f000f0u, 0x00800080u), second, less);
        pairs[2] = multiply_add(logic<0x6a>(high, 0x000f000fu, 0x00080008u), first, less);
        pairs[3] = multiply_add(logic<0x6a>(high, 0x00f000f0u, 0x00800080u), second, less);
    } else if constexpr (same<CODE, f4e2m1>) {
        // Exponent and mantissa in place: a number of the format's own but for the bias. Pairs (i,
        // i + 4).
        const u32 word = words.at[piece];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int by = (IS_BF16 ? 6 : 9) - 4 * i;
            const u32 moved = by > 0 ? word << (by > 0 ? by : 0) : word >> (by > 0 ? 0 : -by);
            const u32 magnitude = moved & (IS_BF16 ? 0x01c001c0u : 0x0e000e00u);
            const u32 tiny = logic<0xea>(word << (12 - 4 * i), 0x80008000u, magnitude);
            pairs[i] = multiply_add(tiny, IS_BF16 ? 0x7e807e80u : 0x74007400u, 0x80008000u);
        }
    } else {
        // Pairs (i, i + 2) of a word.
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 word = words.at[piece * 2 + i / 2] >> (i % 2 * 8);
            pairs[i] = multiply_add(logic<0x6a>(word, 0x00ff00ffu, 0x00800080u),
                                    IS_BF16 ? 0x7e807e80u : 0x78007800u,
                                    IS_BF16 ? 0xbf80bf80u : 0xb400b400u);
        }
    }
}

// Eight of x in the order of the pairs of `numbers`.
__device__ __forceinline__ void arrange(u32 (&x)[4]) {
    if constexpr (width<CODE> == 4) {
        const u32 from[4] = {x[0], x[1], x[2], x[3]};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            x[2 * i] = select_bytes(from[i], from[i + 2], 0x5410);
            x[2 * i + 1] = select_bytes(from[i], from[i + 2], 0x7632);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const u32 a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = select_bytes(a, b, 0x5410);
            x[2 * i + 1] = select_bytes(a, b, 0x7632);
        }
    }
}

// d = a b + c
__device__ __forceinline__ void multiply(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1,
                                         const f32* c) {
    if constexpr (IS_BF16)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, "
            "%7}, {%8, %9}, {%10, %11, %12, %13};"
            : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]),
              "f"(c[2]), "f"(c[3]));
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%10, %11, %12, %13};"
            : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]),
              "f"(c[2]), "f"(c[3]));
}

// The words that lie there, or zeros where nothing does.
__device__ __forceinline__ Words read_shared(u32 from, bool there = true) {
    Words words;
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\nmov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\n"
        "mov.u32 %3, 0;\n"
        "@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
        : "=&r"(words.at[0]), "=&r"(words.at[1]), "=&r"(words.at[2]), "=&r"(words.at[3])
        : "r"(from), "r"((u32)there));
    return words;
}
// `there` or zeros.
__device__ __forceinline__ void copy_in(u32 to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

// Element `index` of scales or zero points.
template <class T>
__device__ __forceinline__ T raw_element(const T* from, i64 index) {
    if constexpr (width<T> < 8) return packed<T>(reinterpret_cast<const u8*>(from), index);
    else return from[index];
}

// Scales and zero points that a lane holds for a chunk: those of rows g and g + 8 of each tile.
struct Factors {
    SCALE scale[HALVES][MTILES][2][SCALES];
    ZERO zero[HALVES][MTILES][2][SCALES];
};

struct alignas(64) TensorMap {
    u64 opaque[16];
};
#define COPIES_IN_BULK (__CUDA_ARCH__ >= 900)

// The place to which the bulk copy engine swizzles 16 bytes of a line. The same bytes of other
// lines are then in other banks.
__device__ __forceinline__ int turned(int row, int piece) {
    return HALVES == 2 ? piece ^ (row & 7) : piece ^ (row >> 1 & 3);
}
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred p;\nagain: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra again;\n}" ::
            "r"(barrier),
        "r"(parity)
        : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    quantized_rows(const X* x, const u8* codes, const SCALE* scale, const ZERO* zero,
                   const f32* tensor_scale, X* y, i32 rows, i64 y_step,
                   const __grid_constant__ Rows at, const __grid_constant__ TensorMap map) {
    extern __shared__ __align__(1024) u8 dynamic[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int first = blockIdx.x * BLOCK_N;
    // A lane has the row `own` of a tile and the one eight later; neighbours lie where the copy put
    // them into other banks.
    const int own = HALVES == 2 ? g >> 1 | (g & 1) << 2 : g;
    const int x_bytes = rows * CHUNK * 2;
    const u32 base = (u32)__cvta_generic_to_shared(dynamic), barriers = base + warp * AHEAD * 8;
    const u32 ring = base + BARRIERS + warp * AHEAD * CODE_BYTES;
    const u32 x_offset = BARRIERS + WARPS * AHEAD * CODE_BYTES + warp * AHEAD * x_bytes;

    // Rows beyond the last are read as the last.
    const auto row_of = [&](int local) {
        return N % BLOCK_N == 0 ? first + local : min(first + local, N - 1);
    };
    const auto fetch_codes = [&](int step, int slot) {
        const int from = (step * WARPS + warp) * LINE_BYTES;
        const u32 to = ring + slot * CODE_BYTES;
#if COPIES_IN_BULK
        if (lane == 0) {
            const u32 barrier = barriers + slot * 8;
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                         "r"(CODE_BYTES)
                         : "memory");
            asm volatile(
                "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                "[%0], [%1, {%3, %4, %5}], [%2];" ::
                    "r"(to),
                "l"(&map), "r"(barrier), "r"(from), "r"(first), "r"(0)
                : "memory");
        }
#else
#pragma unroll 1
        for (int i = lane; i < CODE_BYTES / 16; i += 32) {
            const int row = i / (LINE_BYTES / 16), piece = i % (LINE_BYTES / 16);
            const bool there = from + piece * 16 < ROW_BYTES;
            const u8* const place = codes + row_of(row) * ROW_BYTES + from + piece * 16;
            copy_in(to + row * LINE_BYTES + turned(row, piece) * 16, there ? place : codes, there);
        }
#endif
    };
    const auto read_factors = [&](int step, Factors& to) {
#pragma unroll
        for (int h = 0; h < HALVES; ++h) {
            const int k = (step * WARPS + warp) * CHUNK + h * 4 * CODES + (AFTER ? 0 : t * CODES);
            const bool known = (CHUNKS * CHUNK == K && CHUNKS % WARPS == 0) || k < K;
#pragma unroll
            for (int m = 0; m < MTILES; ++m)
#pragma unroll
                for (int half = 0; half < 2; ++half)
#pragma unroll
                    for (int s = 0; s < SCALES; ++s) {
                        const i64 from =
                            (i64)row_of(m * 16 + half * 8 + own) * SCALE_ROW + k / GROUP + s;
                        to.scale[h][m][half][s] = known ? raw_element(scale, from) : SCALE{};
                        if constexpr (HAS_ZERO)
                            to.zero[h][m][half][s] = known ? raw_element(zero, from) : ZERO{};
                    }
        }
    };
    constexpr int in_row = CHUNK / 8;
    // 16 bytes of x at a time, where no two lanes of a quarter of a warp meet in a bank.
    const auto fetch_x = [&](int step, int slot) {
        const int first_k = (step * WARPS + warp) * CHUNK;
#pragma unroll 1
        for (int i = lane; i < rows * in_row; i += 32) {
            const int r = i / in_row, piece = i % in_row, k = first_k + piece * 8,
                      owner = piece / PIECES;
            const int turn = PIECES == 4 ? (owner >> 1 & 1) | (r & 1) << 1 : r & 1;
            const int to = x_offset + slot * x_bytes + r * CHUNK * 2 + (piece ^ turn) * 16;
            const X* const from = x + at.x[r] + (i64)k * X_STEP;
            if constexpr (ALIGNED) {
                copy_in(base + to, k < K ? from : x, k < K);
            } else {
#pragma unroll
                for (int e = 0; e < 8; ++e)
                    reinterpret_cast<u16*>(dynamic + to)[e] =
                        k < K ? from[e * X_STEP].code : (u16)0;
            }
        }
    };
    const auto close = [] { asm volatile("cp.async.commit_group;" ::: "memory"); };

#if COPIES_IN_BULK
    if (lane == 0) {
        for (int slot = 0; slot < AHEAD; ++slot)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers + slot * 8)
                         : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
#endif
    Factors factors;
    const auto begin = [&] {
        for (int step = 0; step < AHEAD && step < STEPS; ++step) fetch_codes(step, step);
        read_factors(0, factors);
    };
    if (SETTLED) begin();
    wait_for_previous();
    if (!SETTLED) begin();
    for (int step = 0; step < AHEAD; ++step) {
        if (step < STEPS) fetch_x(step, step);
        close();
    }

    f32 totals[MTILES][TILES][4] = {};
    const int from_x = g * CHUNK * 2 + t * PIECES * 16,
              turn = PIECES == 4 ? t >> 1 | (g & 1) << 1 : g & 1;
    const auto read_x = [&](u32 slot, int h, int tile, int piece, u32(&b)[4]) {
        const Words words = read_shared(
            slot + from_x + h * 4 * PIECES * 16 + tile * 8 * CHUNK * 2 + ((piece ^ turn) * 16),
            tile * 8 + g < rows);
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i] = words.at[i];
        arrange(b);
    };
    int slot = 0;
    u32 parity = 0;
    for (int step = 0; step < STEPS; ++step) {
        Factors next;
        if (GROUP != K) read_factors(step + 1 < STEPS ? step + 1 : step, next);
#if COPIES_IN_BULK
        barrier_wait(barriers + slot * 8, parity);
#endif
        asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
        __syncwarp();
        const u32 x_here = base + x_offset + slot * x_bytes;
#pragma unroll
        for (int h = 0; h < HALVES; ++h) {
            u32 b[KEEPS_X ? TILES : 1][PIECES][4];
            // With zero points the sums of x.
            f32 x_sums[TILES][4] = {};
            if constexpr (KEEPS_X) {
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                    for (int piece = 0; piece < PIECES; ++piece)
                        read_x(x_here, h, tile, piece, b[tile][piece]);
            }
            if constexpr (AFTER && HAS_ZERO) {
                const u32 a[4] = {ONE, ONE, ONE, ONE};
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                    for (int piece = 0; piece < PIECES; ++piece) {
                        u32 other[4];
                        if constexpr (!KEEPS_X) read_x(x_here, h, tile, piece, other);
                        const u32(&from)[4] = KEEPS_X ? b[KEEPS_X ? tile : 0][piece] : other;
                        multiply(x_sums[tile], a, from[0], from[1], x_sums[tile]);
                        multiply(x_sums[tile], a, from[2], from[3], x_sums[tile]);
                    }
            }
            const u32 from_codes =
                ring + slot * CODE_BYTES + own * LINE_BYTES + turned(own, h * 4 + t) * 16;
#pragma unroll
            for (int m = 0; m < MTILES; ++m) {
                const Words words[2] = {read_shared(from_codes + m * 16 * LINE_BYTES),
                                        read_shared(from_codes + (m * 16 + 8) * LINE_BYTES)};
                f32 sums[TILES][4];
                const f32 none[4] = {};
#pragma unroll
                for (int piece = 0; piece < PIECES; ++piece) {
                    u32 pairs[2][4];
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        numbers(words[half], piece, pairs[half]);
                        if constexpr (!AFTER) {
                            const int s = piece * SCALES / PIECES;
                            const f32 factor = convert<f32>(factors.scale[h][m][half][s]) * UNIT;
                            // Products that need no more digits than there are.
                            constexpr bool exact =
                                IS_BF16 && !HAS_ZERO && (same<SCALE, e8m0> || same<SCALE, f8e4m3>);
                            if constexpr (exact) {
                                const u32 both = pack(factor, factor);
#pragma unroll
                                for (int i = 0; i < 4; ++i)
                                    pairs[half][i] =
                                        multiply_add(pairs[half][i], both, 0x80008000u);
                            } else {
                                const f32 less =
                                    HAS_ZERO ? convert<f32>(factors.zero[h][m][half][s]) / UNIT
                                             : 0.0f;
#pragma unroll
                                for (int i = 0; i < 4; ++i) {
                                    const u32 pair = pairs[half][i];
                                    pairs[half][i] = pack((low_of(pair) - less) * factor,
                                                          (high_of(pair) - less) * factor);
                                }
                            }
                        }
                    }
#pragma unroll
                    for (int tile = 0; tile < TILES; ++tile) {
                        u32 other[4];
                        if constexpr (!KEEPS_X) read_x(x_here, h, tile, piece, other);
                        const u32(&from)[4] = KEEPS_X ? b[KEEPS_X ? tile : 0][piece] : other;
#pragma unroll
                        for (int i = 0; i < 2; ++i) {
                            const u32 a[4] = {pairs[0][2 * i], pairs[1][2 * i], pairs[0][2 * i + 1],
                                              pairs[1][2 * i + 1]};
                            multiply(sums[tile], a, from[2 * i], from[2 * i + 1],
                                     piece + i > 0 ? sums[tile] : none);
                        }
                    }
                }
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const f32 factor =
                        AFTER ? convert<f32>(factors.scale[h][m][half][0]) * UNIT : 1.0f;
                    const f32 less =
                        AFTER && HAS_ZERO ? convert<f32>(factors.zero[h][m][half][0]) / UNIT : 0.0f;
#pragma unroll
                    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                        for (int i = 2 * half; i < 2 * half + 2; ++i) {
                            f32 sum = sums[tile][i];
                            if constexpr (AFTER && HAS_ZERO)
                                sum = fmaf(-less, x_sums[tile][i], sum);
                            totals[m][tile][i] = AFTER ? fmaf(factor, sum, totals[m][tile][i])
                                                       : totals[m][tile][i] + sum;
                        }
                }
            }
        }
        // All lanes have read the slot.
        __syncwarp();
        if (step + AHEAD < STEPS) {
            fetch_codes(step + AHEAD, slot);
            fetch_x(step + AHEAD, slot);
        }
        close();
        // The next kernel's blocks would take their share of the memory traffic that this one still
        // waits for.
        if (step + AHEAD + 1 == STEPS || (STEPS <= AHEAD && step == 0)) let_next_begin();
        if (GROUP != K) factors = next;
        if (++slot == AHEAD) slot = 0, parity ^= 1;
    }

    // Warps add up, always in the same order.
    __syncthreads();
    f32* const all = reinterpret_cast<f32*>(dynamic + BARRIERS);
#pragma unroll
    for (int m = 0; m < MTILES; ++m)
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (tile * 8 + 2 * t + i % 2 < rows)
                    all[(warp * COLUMNS + tile * 8 + 2 * t + i % 2) * LINE + m * 16 + own +
                        i / 2 * 8] = totals[m][tile][i];
    __syncthreads();
    const f32 factor = HAS_TENSOR_SCALE ? *tensor_scale : 1.0f;
    for (int i = threadIdx.x; i < rows * BLOCK_N; i += THREADS) {
        const int r = i / BLOCK_N, n = i % BLOCK_N;
        f32 sum = 0.0f;
#pragma unroll
        for (int k = 0; k < WARPS; ++k) sum += all[(k * COLUMNS + r) * LINE + n];
        if (first + n < N) y[at.y[r] + (first + n) * y_step] = convert<X>(sum * factor);
    }
}
