// Codes of one byte in both orders, and the largest magnitude, in one pass over x.
//
// A block takes a tile of 128 rows and 64 columns, and a thread takes four rows of eight columns of
// it. Neighbours of a row are stored directly. Neighbours of a column meet in shared memory first,
// so that both orders are written by whole lines.
//
// Largest magnitudes are compared as integers, whose order is that of magnitudes with NaN above
// all. A maximum is the same in any order. Blocks meet in a counter, which the last of them leaves
// as the next launch expects it: nothing is cleared before a launch. A block brings its part before
// it stores codes, so that its fence waits for no stores.
//
// X: bf16, f16 or f32. CODE: f8e4m3 or f8e5m2. WHOLE: rows of eight, columns of sixteen, all of
// them aligned and dense. HAS_CODES, HAS_TRANSPOSED, HAS_LARGEST: which results are wanted.

constexpr int TILE_M = 128, TILE_N = 64, THREADS = 256, PITCH = TILE_M / 4 + 1;

// Results of the blocks of a launch, and the number of blocks done; 0 between launches.
struct Counter {
    u32 largest, done;
};

struct Matrices {
    i64 rows, columns;
    i64 x[2], codes[2], transposed[2]; // strides
};

__device__ __forceinline__ u32 select_bytes(u32 a, u32 b, u32 selector) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}

// `x / scale`, rounded once wherever the quotient is a normal number: a product with the reciprocal
// and one correction.
__device__ __forceinline__ f32 quotient(f32 x, f32 scale, f32 reciprocal) {
    const f32 q = x * reciprocal;
    const f32 better = fmaf(fmaf(-q, scale, x), reciprocal, q);
    return fabsf(q) < 1e38f ? better : q;
}

// Two codes in 16 bits, `low` in the low byte.
__device__ __forceinline__ u32 codes_of(f32 low, f32 high) {
#if __CUDA_ARCH__ >= 890
    u16 pair;
    if constexpr (same<CODE, f8e4m3>)
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    else asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    // The definition keeps infinities of e5m2.
    if constexpr (!same<CODE, f8e4m3>) {
        const f32 infinity = __uint_as_float(f32_infinity);
        if (fabsf(low) == infinity || fabsf(high) == infinity)
            pair = convert<CODE, Overflow::saturate>(low).code |
                   convert<CODE, Overflow::saturate>(high).code << 8;
    }
    return pair;
#else
    return convert<CODE, Overflow::saturate>(low).code |
           convert<CODE, Overflow::saturate>(high).code << 8;
#endif
}

__device__ __forceinline__ u32 magnitude(X x) {
    return __float_as_uint(convert<f32>(x)) & 0x7fffffffu;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    cast_transpose(const X* x, const SCALE* scale_of, CODE* codes, CODE* transposed, u32* largest,
                   Counter* counter, const __grid_constant__ Matrices at) {
    __shared__ u32 tile[TILE_N * PITCH];
    __shared__ u32 most[THREADS / 32];
    after_previous();
    const f32 scale = convert<f32>(*scale_of), reciprocal = __frcp_rn(scale);
    const i64 row0 = (i64)blockIdx.y * TILE_M, column0 = (i64)blockIdx.x * TILE_N;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int across = lane % 8 * 8, down = warp * 4 + lane / 8; // columns, fours of rows
    u32 mine = 0;
    f32 numbers[4][8];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        const i64 row = row0 + down * 4 + r;
        X values[8] = {};
        if (row < at.rows) {
            const i64 left = at.columns - column0 - across;
            const X* const from = x + row * at.x[0] + (column0 + across) * at.x[1];
            if constexpr (WHOLE) {
                if (left > 0) load<(sizeof(X) == 2 ? 8 : 4)>(values, from);
            } else {
                gather(values, from, at.x[1], (int)max(0ll, min(left, 8ll)));
            }
        }
#pragma unroll
        for (int c = 0; c < 8; ++c) {
            numbers[r][c] = quotient(convert<f32>(values[c]), scale, reciprocal);
            if constexpr (HAS_LARGEST) mine = max(mine, magnitude(values[c]));
        }
    }
    // Four bytes of a column in each word.
    u32 words[8];
#pragma unroll
    for (int c = 0; c < 8; ++c)
        words[c] = codes_of(numbers[0][c], numbers[1][c]) | codes_of(numbers[2][c], numbers[3][c])
                                                                << 16;
    if constexpr (HAS_TRANSPOSED) {
#pragma unroll
        for (int c = 0; c < 8; ++c) tile[(across + c) * PITCH + down] = words[c];
    }
    if constexpr (HAS_LARGEST) {
        mine = __reduce_max_sync(~0u, mine);
        if (lane == 0) most[warp] = mine;
    }
    if constexpr (HAS_TRANSPOSED || HAS_LARGEST) __syncthreads();
    if constexpr (HAS_LARGEST) {
        if (threadIdx.x == 0) {
#pragma unroll
            for (int w = 1; w < THREADS / 32; ++w) mine = max(mine, most[w]);
            atomicMax(&counter->largest, mine);
            __threadfence();
            if (atomicAdd(&counter->done, 1) == gridDim.x * gridDim.y - 1) {
                __threadfence();
                *largest = atomicExch(&counter->largest, 0);
                counter->done = 0;
            }
        }
    }
    if constexpr (HAS_CODES) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            u32 line[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const u32 first =
                    select_bytes(words[half * 4], words[half * 4 + 1], 0x40u + 0x11u * r);
                const u32 second =
                    select_bytes(words[half * 4 + 2], words[half * 4 + 3], 0x40u + 0x11u * r);
                line[half] = select_bytes(first, second, 0x5410);
            }
            const i64 row = row0 + down * 4 + r, column = column0 + across;
            if (row >= at.rows || column >= at.columns) continue;
            CODE* const to = codes + row * at.codes[0] + column * at.codes[1];
            if constexpr (WHOLE) {
                *reinterpret_cast<u64*>(to) = line[0] | (u64)line[1] << 32;
            } else {
#pragma unroll
                for (int c = 0; c < 8; ++c)
                    if (column + c < at.columns)
                        to[c * at.codes[1]] = CODE{(u8)(line[c / 4] >> c % 4 * 8)};
            }
        }
    }
    if constexpr (HAS_TRANSPOSED) {
#pragma unroll
        for (int i = threadIdx.x; i < TILE_N * TILE_M / 16; i += THREADS) {
            const int n = i / (TILE_M / 16), piece = i % (TILE_M / 16);
            const i64 column = column0 + n, row = row0 + piece * 16;
            if (column >= at.columns || row >= at.rows) continue;
            Vector<u32, 4> line;
#pragma unroll
            for (int j = 0; j < 4; ++j) line.at[j] = tile[n * PITCH + piece * 4 + j];
            CODE* const to = transposed + column * at.transposed[0] + row * at.transposed[1];
            if constexpr (WHOLE) {
                *reinterpret_cast<Vector<u32, 4>*>(to) = line;
            } else {
#pragma unroll
                for (int r = 0; r < 16; ++r)
                    if (row + r < at.rows)
                        to[r * at.transposed[1]] = CODE{(u8)(line.at[r / 4] >> r % 4 * 8)};
            }
        }
    }
}
