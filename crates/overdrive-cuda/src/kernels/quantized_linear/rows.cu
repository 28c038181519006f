// `quantized_linear` of a few rows of half floats: weights stay codes until they are in registers, and meet x in the
// tensor cores, with the weights as the left operand, so that sixteen of them share what is read of x.
//
// What bounds it is reading the codes, so each thread reads 16 bytes of two rows at a time, DEPTH of such pairs ahead. The order
// of the contracted index within a CHUNK is the one in which a thread's codes come out of its words (pairs four or
// one apart), and x is read in that order from shared memory, where pieces of 16 bytes lie so that no two lanes meet in a bank.
//
// Learnt from Marlin (codes to half floats by bits of the mantissa, weights streamed past x) and from Machete.
//
// X: bf16 or f16. CODE: i4, f4e2m1 or i8. SCALE, ZERO: types. N, K, GROUP: codes under a scale; SCALE_ROW: scales from row
// to row, 0 where all rows share them. WARPS_N, WARPS_K: warps of a block along rows and along k. TILES: of eight rows
// of x. DEPTH; STEPS_AT_ONCE: steps whose x is in one of the BUFFERS. HAS_ZERO, HAS_TENSOR_SCALE, ALIGNED: whether every row of x
// begins at 16 bytes.

constexpr int CODES = 128 / width<CODE>; // of 16 bytes
constexpr int CHUNK = 4 * CODES;         // of a warp: four lanes side by side, eight pairs of rows
constexpr int PIECES = CODES / 8;        // 16 bytes of x for each lane of a chunk
constexpr int CHUNKS = (K + CHUNK - 1) / CHUNK;
constexpr int STEPS = (CHUNKS + WARPS_K - 1) / WARPS_K;
constexpr int LOADS = (STEPS + STEPS_AT_ONCE - 1) / STEPS_AT_ONCE;
constexpr int THREADS = 32 * WARPS_N * WARPS_K;
constexpr int ROW_BYTES = STEPS_AT_ONCE * WARPS_K * CHUNK * 2;
constexpr int PITCH = ROW_BYTES + (PIECES == 4 ? 64 : 16); // neighbours of a quarter of a warp in other banks
constexpr int COLUMNS = TILES * 8;
constexpr int LINE = WARPS_N * 16 + 4;
// A scale that covers whole chunks multiplies their sums; a smaller one multiplies the weights.
constexpr bool AFTER = GROUP % CHUNK == 0 || GROUP == K;
constexpr int SCALES = AFTER || GROUP >= CODES ? 1 : CODES / GROUP;
constexpr int CHAINS = TILES == 1 ? 2 : 1;
constexpr bool IS_BF16 = same<X, bf16>;

struct Rows {
    i64 x[16], y[16];
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

// Eight codes as four pairs of exact half floats: words of four bits give the pairs (i, i + 4), words of bytes neighbours.
__device__ __forceinline__ void numbers(const Words& words, int piece, u32 (&pairs)[4]) {
    if constexpr (same<CODE, i4>) {
        // As the mantissa of 128 (or 1024): the sign bit turned around makes the code one of 0 to 15.
        constexpr u32 magic = IS_BF16 ? 0x43084308u : 0x64086408u, less = IS_BF16 ? 0xc308c308u : 0xe408e408u;
        u32 word = words.at[piece];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            pairs[i] = multiply_add(logic<0x6a>(word >> (4 * i), 0x000f000fu, magic), ONE, less);
        }
    } else if constexpr (same<CODE, f4e2m1>) {
        // The bytes of 0, 0.5, 1, 1.5, 2, 3, 4 and 6.
        constexpr u32 low[2] = {IS_BF16 ? 0xc0800000u : 0u, IS_BF16 ? 0xc0804000u : 0u};
        constexpr u32 high[2] = {IS_BF16 ? 0x3f3f3f00u : 0x3e3c3800u, IS_BF16 ? 0x40404040u : 0x46444240u};
        const u32 word = words.at[piece], magnitudes = word & 0x77777777u;
        const u32 even = (magnitudes & 0x0f0fu) | (magnitudes >> 12 & 0xf0f0u);
        const u32 odd = (magnitudes >> 4 & 0x0f0fu) | (magnitudes >> 16 & 0xf0f0u);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const u32 at = half ? odd : even;
            const u32 h = select_bytes(high[0], high[1], at), l = IS_BF16 ? select_bytes(low[0], low[1], at) : 0;
            const u32 first = select_bytes(l, h, 0x5140), second = select_bytes(l, h, 0x7362);
            // first | (word << .. & signs)
            pairs[half] = logic<0xea>(word << (12 - 4 * half), 0x80008000u, first);
            pairs[half + 2] = logic<0xea>(word << (4 - 4 * half), 0x80008000u, second);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const u32 word = words.at[piece * 2 + i] ^ 0x80808080u;
            f32 x[4];
#pragma unroll
            for (int byte = 0; byte < 4; ++byte)
                x[byte] = __uint_as_float(select_bytes(word, 0x4b000000u, 0x7440u + byte)) - 8388736.0f;
            pairs[2 * i] = pack(x[0], x[1]);
            pairs[2 * i + 1] = pack(x[2], x[3]);
        }
    }
}

__device__ __forceinline__ void multiply(f32 (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if constexpr (IS_BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ Words read_once(const u8* from) {
    Words words;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.at[0]), "=r"(words.at[1]), "=r"(words.at[2]), "=r"(words.at[3])
                 : "l"(from));
    return words;
}

// Element `index` of scales or zero points.
template <class T>
__device__ __forceinline__ f32 element(const T* from, i64 index) {
    if constexpr (width<T> < 8) return convert<f32>(packed<T>(reinterpret_cast<const u8*>(from), index));
    else return convert<f32>(from[index]);
}

// What a lane holds of a chunk: rows g and g + 8 of its tile.
struct Part {
    Words codes[2];
    f32 scale[2][SCALES], zero[2][SCALES];
};

extern "C" __global__ void __launch_bounds__(THREADS)
quantized_rows(const X* x, const u8* codes, const SCALE* scale, const ZERO* zero, const f32* tensor_scale, X* y, i32 rows,
               i64 y_step, const __grid_constant__ Rows at) {
    extern __shared__ __align__(128) u8 dynamic[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int across = warp % WARPS_N, along = warp / WARPS_N;
    const int first = blockIdx.x * WARPS_N * 16 + across * 16;
    // Rows beyond the last are read as the last.
    const int row[2] = {min(first + g, N - 1), min(first + g + 8, N - 1)};
    constexpr i64 ROW = (i64)K * width<CODE> / 8;
    const auto place = [&](int step, int half) { return codes + row[half] * ROW + ((i64)(step * WARPS_K + along) * 64 + t * 16); };
    const auto has = [&](int step) { return (step * WARPS_K + along) * CHUNK + t * CODES < K; };
#pragma unroll
    for (int d = 0; d < DEPTH; ++d)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            if (d < STEPS && has(d)) asm volatile("prefetch.global.L2 [%0];" ::"l"(place(d, half)));
    after_previous();

    const auto read = [&](int step, Part& part) {
        const bool there = has(step);
        const int k = (step * WARPS_K + along) * CHUNK + (AFTER ? 0 : t * CODES);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            part.codes[half] = there ? read_once(place(step, half)) : Words{};
#pragma unroll
            for (int s = 0; s < SCALES; ++s) {
                const i64 from = (i64)row[half] * SCALE_ROW + k / GROUP + s;
                const bool known = AFTER ? k < K : there;
                part.scale[half][s] = known ? element(scale, from) : 0.0f;
                if constexpr (HAS_ZERO) part.zero[half][s] = known ? element(zero, from) : 0.0f;
            }
        }
    };
    const auto fetch = [&](int load) {
        if (load < LOADS) {
            u8* const buffer = dynamic + load % BUFFERS * (rows * PITCH);
            constexpr int in_row = ROW_BYTES / 16;
            for (int i = threadIdx.x; i < rows * in_row; i += THREADS) {
                const int r = i / in_row, piece = i % in_row, k = load * (ROW_BYTES / 2) + piece * 8;
                const int owner = piece / PIECES % 4, own = piece % PIECES;
                const int to = piece - own + (PIECES == 4 ? own ^ owner : own);
                const u32 shared = (u32)__cvta_generic_to_shared(buffer + r * PITCH + to * 16);
                if (k >= K) {
                    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(shared), "r"(0) : "memory");
                } else if constexpr (ALIGNED) {
                    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(x + at.x[r] + k) : "memory");
                } else {
#pragma unroll
                    for (int e = 0; e < 8; ++e)
                        reinterpret_cast<u16*>(buffer + r * PITCH + to * 16)[e] = x[at.x[r] + (i64)(k + e) * X_STEP].code;
                }
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };

    f32 totals[TILES][4] = {};
    fetch(0);
    Part parts[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; ++d)
        if (d < STEPS) read(d, parts[d]);

    const auto product = [&](int step, const Part& part) {
        const u8* const buffer = dynamic + step / STEPS_AT_ONCE % BUFFERS * (rows * PITCH);
        const int local = (step % STEPS_AT_ONCE * WARPS_K + along) * 4 * PIECES + t * PIECES;
        f32 sums[CHAINS][TILES][4] = {};
        f32 x_sums[HAS_ZERO && AFTER ? TILES : 1][4] = {};
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            u32 own[2][4];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                numbers(part.codes[half], piece, own[half]);
                if constexpr (!AFTER) {
                    const int s = piece * SCALES / PIECES;
                    const f32 factor = part.scale[half][s];
                    constexpr bool exact = IS_BF16 && !HAS_ZERO && (same<SCALE, e8m0> || same<SCALE, f8e4m3>);
                    if constexpr (exact) {
                        const u32 both = pack(factor, factor);
#pragma unroll
                        for (int i = 0; i < 4; ++i) own[half][i] = multiply_add(own[half][i], both, 0x80008000u);
                    } else {
                        const f32 less = HAS_ZERO ? part.zero[half][s] : 0.0f;
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            const u32 pair = own[half][i];
                            own[half][i] = pack((low_of(pair) - less) * factor, (high_of(pair) - less) * factor);
                        }
                    }
                }
            }
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                u32 from[4] = {};
                if (tile * 8 + g < rows) {
                    const u32 shared = (u32)__cvta_generic_to_shared(
                        buffer + (tile * 8 + g) * PITCH + (local + (PIECES == 4 ? piece ^ t : piece)) * 16);
                    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                                 : "=r"(from[0]), "=r"(from[1]), "=r"(from[2]), "=r"(from[3])
                                 : "r"(shared));
                }
                u32 b[4] = {from[0], from[1], from[2], from[3]};
                if constexpr (width<CODE> == 4) {
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        b[2 * i] = select_bytes(from[i], from[i + 2], 0x5410);
                        b[2 * i + 1] = select_bytes(from[i], from[i + 2], 0x7632);
                    }
                }
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const u32 a[4] = {own[0][2 * i], own[1][2 * i], own[0][2 * i + 1], own[1][2 * i + 1]};
                    multiply(sums[i % CHAINS][tile], a, b[2 * i], b[2 * i + 1]);
                    if constexpr (HAS_ZERO && AFTER) {
                        const u32 ones[4] = {ONE, ONE, ONE, ONE};
                        multiply(x_sums[tile], ones, b[2 * i], b[2 * i + 1]);
                    }
                }
            }
        }
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                f32 sum = CHAINS == 2 ? sums[0][tile][i] + sums[CHAINS - 1][tile][i] : sums[0][tile][i];
                if constexpr (AFTER) {
                    if constexpr (HAS_ZERO) sum = fmaf(-part.zero[i / 2][0], x_sums[tile][i], sum);
                    totals[tile][i] = fmaf(part.scale[i / 2][0], sum, totals[tile][i]);
                } else {
                    totals[tile][i] += sum;
                }
            }
    };

    for (int base = 0; base < STEPS; base += DEPTH) {
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            const int step = base + d;
            if (step >= STEPS) break;
            if (step % STEPS_AT_ONCE == 0) {
                const int load = step / STEPS_AT_ONCE;
                // Nobody reads the other buffer any more.
                if (load > 0) __syncthreads();
                if (BUFFERS > 1) fetch(load + 1);
                asm volatile("cp.async.wait_group %0;" ::"n"(BUFFERS - 1) : "memory");
                __syncthreads();
            }
            product(step, parts[d]);
            if (step + DEPTH < STEPS) read(step + DEPTH, parts[d]);
        }
    }

    // Warps that shared k add up, always in the same order.
    __syncthreads();
    f32* const all = reinterpret_cast<f32*>(dynamic);
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            all[(along * COLUMNS + tile * 8 + 2 * t + i % 2) * LINE + across * 16 + g + i / 2 * 8] = totals[tile][i];
    __syncthreads();
    const f32 factor = HAS_TENSOR_SCALE ? *tensor_scale : 1.0f;
    for (int i = threadIdx.x; i < rows * WARPS_N * 16; i += THREADS) {
        const int r = i / (WARPS_N * 16), n = i % (WARPS_N * 16);
        f32 sum = 0.0f;
#pragma unroll
        for (int k = 0; k < WARPS_K; ++k) sum += all[(k * COLUMNS + r) * LINE + n];
        const int column = blockIdx.x * WARPS_N * 16 + n;
        if (column < N) y[at.y[r] + column * y_step] = convert<X>(sum * factor);
    }
}
