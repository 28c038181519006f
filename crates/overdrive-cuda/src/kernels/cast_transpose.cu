// Codes of one byte in both orders, the largest magnitude, and sums of columns, in one pass over
// the tensors that x is computed from.
//
// Blocks stay and take tiles of 128 rows and 128 columns in turns. A thread takes four rows of
// eight columns of each half of a tile. It copies numbers of 16 bits to shared memory one half
// ahead, into places of its own, so that no barrier is needed for them. Codes of a row are stored
// directly. Those of a column meet in shared memory first, so that both orders are written by whole
// lines. Tiles alternate between two places there, so that one barrier a tile is enough.
//
// Largest magnitudes are compared as integers, whose order is that of magnitudes with NaN above
// all. A maximum is the same in any order. Blocks meet once in a counter, which the last of them
// leaves as the next launch expects it: nothing is cleared before a launch.
//
// A launch may cast several matrices, each of them by blocks of its own. Casts of weights are such
// a launch: one after another, most end before memory is busy.
//
// X: bf16, f16 or f32, the type of x. EACH_OPERAND(f): f(n, type) of each tensor that x is computed
// from. COMPUTED: whether x is `value` of them, in f32, before it is rounded to X; else it is the
// first. CODE: f8e4m3 or f8e5m2. WHOLE: rows of eight, columns of sixteen, all of them aligned and
// dense. FULL: no tile reaches outside. LINES: whether each row and each column has a scale, a
// power of two; else one covers all. HAS_CODES, HAS_TRANSPOSED, HAS_LARGEST, HAS_SUMS: which
// results are wanted. RESIDENT: blocks of a multiprocessor. PARTS: matrices of a launch.
// PART_BYTES: of what the launch brings of each. Numbers of 32 bits are read where they are used:
// copies of half a sector would take each sector twice.

constexpr int TILE = 128, THREADS = 256, HALVES = 2, ROWS = 4, STAGES = 2;
constexpr int ACROSS = TILE / 8, DOWN = THREADS / ACROSS; // threads along rows, and down
constexpr int HALF = DOWN * ROWS, WORDS = TILE / 4, WARPS = THREADS / 32;
constexpr bool AHEAD = WHOLE && sizeof(X) == 2;
static_assert(HALF * HALVES == TILE, "halves make a tile");
static_assert(WHOLE || !FULL, "whole tiles have whole rows");

// Results of the blocks of a matrix, and the number of blocks done; 0 between launches.
struct Counter {
    u32 largest, done;
};

struct Matrices {
    i64 rows, columns;
    i64 x[2][2], codes[2], transposed[2], sums[2], scales[2]; // strides
};

// A matrix with its blocks.
struct Part {
#define POINTER(n, T) const T* x##n;
    EACH_OPERAND(POINTER)
    const SCALE *scale, *scale_of_column;
    CODE *codes, *transposed;
    u32* largest;
    f32* sums;
    Counter* counter;
    Matrices at;
    u32 first, blocks;
};

struct Parts {
    Part at[PARTS];
};
static_assert(sizeof(Part) == PART_BYTES, "a part is as long as what the launch brings");

#define COUNT(n, T) +1
// Pieces of 16 bytes in which eight columns of a row are brought.
constexpr int PIECES = 0 EACH_OPERAND(COUNT);
// Places between which tiles alternate. Beside two operands there is room for one, which takes a
// barrier more.
constexpr int PLACES = PIECES == 1 ? 2 : 1;

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

// Eight codes.
__device__ __forceinline__ void codes_of(u32 (&to)[2], const f32 (&numbers)[8]) {
#pragma unroll
    for (int four = 0; four < 2; ++four)
        to[four] = codes_of(numbers[four * 4], numbers[four * 4 + 1]) |
                   codes_of(numbers[four * 4 + 2], numbers[four * 4 + 3]) << 16;
}

// The largest magnitude of what a thread has seen. Numbers of 16 bits are compared in pairs.
struct Largest {
    u32 bits = 0;

    __device__ __forceinline__ void see_pair(u32 pair) {
        bits = __vmaxu2(bits, pair & 0x7fff7fffu);
    }
    __device__ __forceinline__ void see(X x) {
        if constexpr (sizeof(X) == 2) see_pair(bitcast<u16>(x));
        else bits = max(bits, __float_as_uint(convert<f32>(x)) & 0x7fffffffu);
    }
    // As bits of f32.
    __device__ __forceinline__ u32 wide() const {
        if constexpr (sizeof(X) == 2)
            return __float_as_uint(convert<f32>(bitcast<X>((u16)max(bits >> 16, bits & 0xffffu))));
        else return bits;
    }
};

// Both rounded to X. A conversion of two takes no longer than that of one.
__device__ __forceinline__ void round_two(f32& low, f32& high, Largest& largest) {
    if constexpr (same<X, bf16>) {
        u32 pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
        low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000u);
        if constexpr (HAS_LARGEST) largest.see_pair(pair);
    } else {
        const X rounded[2] = {convert<X>(low), convert<X>(high)};
        low = convert<f32>(rounded[0]), high = convert<f32>(rounded[1]);
        if constexpr (HAS_LARGEST) largest.see(rounded[0]), largest.see(rounded[1]);
    }
}

// Places of the codes of a column are turned by this in shared memory. So neither writing nor
// reading meets in a bank.
__device__ __forceinline__ int turn(int column) {
    return (column & 3) ^ (column / 8 * (32 / ACROSS) & 31);
}

extern __shared__ __align__(16) u8 ahead[];

// A thread's place for a piece: neighbours among threads are neighbours in memory.
__device__ __forceinline__ u8* place(int stage, int row, int piece) {
    return ahead + (((stage * ROWS + row) * PIECES + piece) * THREADS + threadIdx.x) * 16;
}

// Asks for eight elements of 16 bits.
template <class T>
__device__ __forceinline__ void ask(const T* from, int stage, int row, int& piece) {
    const u32 to = (u32)__cvta_generic_to_shared(place(stage, row, piece++));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Eight elements that came, or that are read now.
template <class T>
__device__ __forceinline__ void take(T (&to)[8], const T* from, i64 stride, int count, int stage,
                                     int row, int& piece) {
    if constexpr (AHEAD) {
        memcpy(to, __builtin_assume_aligned(place(stage, row, piece++), 16), 16);
    } else if constexpr (WHOLE) {
        if (count > 0) load<(int)(16 / sizeof(T))>(to, from);
    } else {
        gather(to, from, stride, count);
    }
}

// spills at most 8 bytes on sm_100a: x of 32 bits without codes of rows, in three blocks.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    cast_transpose(const __grid_constant__ Parts matrices) {
    __shared__ u32 exchange[PLACES][HAS_TRANSPOSED ? TILE * WORDS : 1];
    __shared__ f32 parts[PLACES][HAS_SUMS ? WARPS : 1][TILE];
    __shared__ u32 most[WARPS];
    const Part& part = matrices.at[PARTS == 1 ? 0 : last_from(matrices.at, blockIdx.x)];
    const Matrices& at = part.at;
    // The grid says it of one matrix, without a register.
    const u32 block = PARTS == 1 ? blockIdx.x : blockIdx.x - part.first;
    const u32 blocks = PARTS == 1 ? gridDim.x : part.blocks;
    after_previous();
    const auto number = [](const SCALE* scale) { return convert<f32>(*scale); };
    const f32 scale = LINES ? 1 : number(part.scale), reciprocal = __frcp_rn(scale);
    // A product with a power of two is the quotient.
    const bool is_power =
        (__float_as_uint(scale) & 0x7fffff) == 0 && 1e-37f < scale && scale < 1e37f;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int across = threadIdx.x % ACROSS * 8, down = threadIdx.x / ACROSS;
    const u32 wide = (u32)((at.columns + TILE - 1) / TILE);
    const u32 tiles = wide * (u32)((at.rows + TILE - 1) / TILE);
    Largest seen;
    int stage = 0;
    // Asks for a half of a tile, if there is such a tile.
    const auto bring = [&](u32 tile, int half, int stage) {
        const i64 row = (i64)(tile / wide) * TILE + half * HALF + down * ROWS;
        const i64 column = (i64)(tile % wide) * TILE + across;
        if (tile < tiles && (FULL || (row < at.rows && column < at.columns))) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                int piece = 0;
#define ASK(n, T) ask(part.x##n + row * at.x[n][0] + column + r * at.x[n][0], stage, r, piece);
                EACH_OPERAND(ASK)
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    if constexpr (AHEAD) bring(block, 0, 0);
    int turns = 0;
    for (u32 tile = block; tile < tiles; tile += blocks, ++turns) {
        const i64 row0 = (i64)(tile / wide) * TILE, column0 = (i64)(tile % wide) * TILE;
        const i64 column = column0 + across;
        const int columns = FULL ? 8 : (int)max(0ll, min(at.columns - column, 8ll));
        const int side = turns % PLACES;
        u32* const met = exchange[side];
        if constexpr (PLACES == 1) __syncthreads();
        f32 sum[8] = {}, by_column[8];
        if constexpr (LINES && HAS_TRANSPOSED) {
#pragma unroll
            for (int c = 0; c < 8; ++c) {
                const SCALE* const own = part.scale_of_column + (column + c) * at.scales[1];
                by_column[c] = c < columns ? __frcp_rn(number(own)) : 1;
            }
        }
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
            if constexpr (AHEAD) {
                const bool is_last = half + 1 == HALVES;
                bring(is_last ? tile + blocks : tile, is_last ? 0 : half + 1, stage ^ 1);
                asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
            }
            const i64 row = row0 + half * HALF + down * ROWS;
            u32 words[ROWS][2]; // of columns
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const int count = FULL || row + r < at.rows ? columns : 0;
                f32 numbers[8];
                int piece = 0;
#define TAKE(n, T)                                                                               \
    T v##n[8] = {};                                                                              \
    take(v##n, part.x##n + row * at.x[n][0] + column * at.x[n][1] + r * at.x[n][0],              \
         at.x[n][1], count, stage, r, piece);
                EACH_OPERAND(TAKE)
#if COMPUTED
#define ELEMENT(n, T) , v##n[c]
#pragma unroll
                for (int c = 0; c < 8; ++c)
                    numbers[c] = c < count ? value(0 EACH_OPERAND(ELEMENT)) : 0;
#pragma unroll
                for (int c = 0; c < 8; c += 2) round_two(numbers[c], numbers[c + 1], seen);
#else
                // Numbers outside were not brought.
                if (AHEAD && count == 0) memset(v0, 0, sizeof v0);
                if constexpr (HAS_LARGEST && sizeof(X) == 2) {
                    u32 pairs[4];
                    memcpy(pairs, v0, 16);
#pragma unroll
                    for (int two = 0; two < 4; ++two) seen.see_pair(pairs[two]);
                }
#pragma unroll
                for (int c = 0; c < 8; ++c) {
                    numbers[c] = convert<f32>(v0[c]);
                    if constexpr (HAS_LARGEST && sizeof(X) != 2) seen.see(v0[c]);
                }
#endif
                if constexpr (HAS_SUMS)
#pragma unroll
                    for (int c = 0; c < 8; ++c) sum[c] += numbers[c];
                u32 line[2]; // of the row
                if constexpr (LINES) {
                    const SCALE* const own = part.scale + (row + r) * at.scales[0];
                    const f32 by_row = HAS_CODES && count > 0 ? __frcp_rn(number(own)) : 1;
                    f32 turned[8];
#pragma unroll
                    for (int c = 0; c < 8; ++c) {
                        if constexpr (HAS_TRANSPOSED) turned[c] = numbers[c] * by_column[c];
                        numbers[c] *= by_row;
                    }
                    if constexpr (HAS_TRANSPOSED) codes_of(words[r], turned);
                    codes_of(line, numbers);
                } else {
                    if (is_power) {
#pragma unroll
                        for (int c = 0; c < 8; ++c) numbers[c] *= reciprocal;
                    } else {
#pragma unroll
                        for (int c = 0; c < 8; ++c)
                            numbers[c] = quotient(numbers[c], scale, reciprocal);
                    }
                    codes_of(line, numbers);
                    words[r][0] = line[0], words[r][1] = line[1];
                }
                if constexpr (HAS_CODES) {
                    CODE* const to =
                        part.codes + row * at.codes[0] + column * at.codes[1] + r * at.codes[0];
                    if constexpr (WHOLE) {
                        if (count > 0)
                            *reinterpret_cast<u64*>(to) = line[0] | (u64)line[1] << 32;
                    } else {
#pragma unroll
                        for (int c = 0; c < 8; ++c)
                            if (c < count)
                                to[c * at.codes[1]] = CODE{(u8)(line[c / 4] >> c % 4 * 8)};
                    }
                }
            }
            stage ^= 1;
            if constexpr (HAS_TRANSPOSED) {
                // Four bytes of a column in each word.
#pragma unroll
                for (int four = 0; four < 2; ++four) {
                    const u32 low01 = select_bytes(words[0][four], words[1][four], 0x5140);
                    const u32 high01 = select_bytes(words[0][four], words[1][four], 0x7362);
                    const u32 low23 = select_bytes(words[2][four], words[3][four], 0x5140);
                    const u32 high23 = select_bytes(words[2][four], words[3][four], 0x7362);
                    const u32 turned[4] = {
                        select_bytes(low01, low23, 0x5410), select_bytes(low01, low23, 0x7632),
                        select_bytes(high01, high23, 0x5410), select_bytes(high01, high23, 0x7632)};
#pragma unroll
                    for (int c = 0; c < 4; ++c) {
                        const int n = across + four * 4 + c;
                        met[n * WORDS + ((half * DOWN + down) ^ turn(n))] = turned[c];
                    }
                }
            }
        }
        if constexpr (HAS_SUMS) {
#pragma unroll
            for (int c = 0; c < 8; ++c) {
#pragma unroll
                for (int apart = ACROSS; apart < 32; apart *= 2)
                    sum[c] += __shfl_xor_sync(~0u, sum[c], apart);
                if (lane < ACROSS) parts[side][warp][across + c] = sum[c];
            }
        }
        if constexpr (HAS_TRANSPOSED || HAS_SUMS) __syncthreads();
        if constexpr (HAS_SUMS) {
            if (threadIdx.x < TILE && (FULL || column0 + threadIdx.x < at.columns)) {
                f32 all = parts[side][0][threadIdx.x];
#pragma unroll
                for (int w = 1; w < WARPS; ++w) all += parts[side][w][threadIdx.x];
                part.sums[row0 / TILE * at.sums[0] + (column0 + threadIdx.x) * at.sums[1]] = all;
            }
        }
        if constexpr (HAS_TRANSPOSED) {
#pragma unroll
            for (int i = threadIdx.x; i < TILE * TILE / 16; i += THREADS) {
                const int n = i / (TILE / 16), piece = i % (TILE / 16);
                const i64 column = column0 + n, row = row0 + piece * 16;
                if (!FULL && (column >= at.columns || row >= at.rows)) continue;
                Vector<u32, 4> line;
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    line.at[j] = met[n * WORDS + ((piece * 4 + j) ^ turn(n))];
                CODE* const to =
                    part.transposed + column * at.transposed[0] + row * at.transposed[1];
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
    if constexpr (HAS_LARGEST) {
        u32 mine = __reduce_max_sync(~0u, seen.wide());
        if (lane == 0) most[warp] = mine;
        __syncthreads();
        if (threadIdx.x == 0) {
#pragma unroll
            for (int w = 1; w < WARPS; ++w) mine = max(mine, most[w]);
            Counter* const counter = part.counter;
            atomicMax(&counter->largest, mine);
            __threadfence();
            if (atomicAdd(&counter->done, 1) == blocks - 1) {
                __threadfence();
                *part.largest = atomicExch(&counter->largest, 0);
                counter->done = 0;
            }
        }
    }
}
