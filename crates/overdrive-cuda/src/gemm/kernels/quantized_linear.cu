// `quantized_linear` of few rows of half floats, with the printed epilogue. Weights stay codes
// until they are in registers, and meet x in the tensor cores. The weights are the left operand, so
// that sixteen of them share each read of x.
//
// Between two of these kernels in a row, memory must not rest. The obstacle is that each needs all
// results of the one before. So codes set out before those results are there. The bulk copy engine
// brings them, which keeps no thread waiting. Each warp has chunks of its own (one in WARPS), in a
// ring of its own in shared memory, AHEAD of them at once. It waits for no other warp until sums
// meet at the end. Then only the time of the products is left between two kernels. So codes become
// numbers in as few instructions as possible: the integer pipes take two cycles for each of theirs.
//
// Several products of one x are parts of one grid. A block may do two of them in the same tile (a
// gate and the product that it gates). It stores one after the other, and a thread reads only
// results that it has stored itself. With LEAD each block computes the rows of x by the loop that
// makes them, while its codes are under way.
//
// A piece is 32 codes of a row: two matrix instructions, in which each of four lanes has eight
// neighbours. So a scale of a whole piece or more multiplies sums, and not each weight. The order
// of the contracted index within eight codes is the order in which they come out of their words.
// The code at bit 0 comes with the one at bit 16. x is rearranged to fit.
//
// Learnt from Marlin (codes to half floats by bits, weights streamed past x) and from Machete.
//
// LHS: bf16 or f16. RHS: i4, f4e2m1 or i8. SCALE, ZERO, TENSOR_SCALE: types. K; GROUP: codes under
// a scale; SCALE_ROW: scales from row to row, 0 where all rows share them. M rows of x in each of
// BATCH that the epilogue tells apart. WARPS of a block, along k. MTILES: of sixteen rows of the
// weights. PARTS: the most products of a tile. HALVES: of 64 bytes of a row of codes in a chunk.
// AHEAD. BLOCKS that a multiprocessor has room for. HAS_ZERO, HAS_TENSOR_SCALE. LEAD: whether a
// loop makes x. SETTLED: whether all that belongs to the weights was there before this call. The
// printed text defines Maps, Given, and the macros LEAD_ROWS, ASK and BODIES. For each product it
// defines a type that prefetches and stores. From codes.cuh: codes as half floats.

#include "hopper.cuh"

constexpr int ROWS = M * (int)BATCH, INPUTS = (int)K;
constexpr int TILES = (ROWS + 7) / 8;
constexpr int HALF = 512 / width<CODE>; // codes of 64 bytes
constexpr int PIECES = HALF / 32;
constexpr int CHUNK = HALVES * HALF;
constexpr int LINE_BYTES = HALVES * 64; // of a row in a chunk
constexpr int CHUNKS = (INPUTS + CHUNK - 1) / CHUNK;
constexpr int STEPS = (CHUNKS + WARPS - 1) / WARPS;
constexpr int THREADS = 32 * WARPS;
constexpr int OUTPUTS = 16 * MTILES; // of a product in a block
constexpr int CODE_BYTES = OUTPUTS * LINE_BYTES;
constexpr int X_BYTES = ROWS * CHUNK * 2;
constexpr i64 ROW_BYTES = (i64)INPUTS * width<CODE> / 8;
// Codes under a scale as a lane has it, and such scales of half a chunk.
constexpr int SPAN =
    GROUP == INPUTS || GROUP % HALF == 0 ? HALF : HALF % GROUP == 0 ? GROUP : 32;
constexpr int SCALES = HALF / SPAN;
// Whether scales multiply sums.
constexpr bool AFTER = SPAN % 32 == 0;
constexpr int SPAN_PIECES = AFTER ? SPAN / 32 : 1;
// Products of a code and a scale that need no more digits than half floats have.
constexpr bool EXACT = same<CODE, f4e2m1> && !HAS_ZERO && same<SCALE, f8e4m3>;

// d += a b
__device__ __forceinline__ void multiply(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if constexpr (IS_BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, "
            "%7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Eight codes, or eight of x; zeros where nothing lies there.
__device__ __forceinline__ void read_codes(u32 from, u32 (&words)[WORDS]) {
    if constexpr (WORDS == 1)
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(words[0]) : "r"(from) : "memory");
    else
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                     : "=r"(words[0]), "=r"(words[WORDS - 1])
                     : "r"(from)
                     : "memory");
}
__device__ __forceinline__ void read_eight(u32 from, bool there, u32 (&words)[4]) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\nmov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\n"
        "mov.u32 %3, 0;\n"
        "@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
        : "=&r"(words[0]), "=&r"(words[1]), "=&r"(words[2]), "=&r"(words[3])
        : "r"(from), "r"((u32)there)
        : "memory");
}
// `there` or zeros.
__device__ __forceinline__ void copy_async(u32 to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

// The scales (or zero points) of half a chunk of a row, packed as memory has them.
template <class T>
struct Spans {
    static constexpr int BYTES = SCALES * (int)sizeof(T);
    // Whether they are neighbours that begin at a multiple of their bytes.
    static constexpr bool WHOLE =
        width<T> >= 8 && (SCALES == 1 || (SPAN == GROUP && INPUTS % HALF == 0));
    u32 words[(BYTES + 3) / 4];

    // Those of `row`, from input `k` on.
    __device__ __forceinline__ void read(const T* from, int row, int k) {
        const i64 first = (i64)row * SCALE_ROW;
#pragma unroll
        for (int i = 0; i < (BYTES + 3) / 4; ++i) words[i] = 0;
        if constexpr (WHOLE) {
            if (k >= INPUTS) return;
            const T* const at = from + first + k / GROUP;
            if constexpr (BYTES == 1) words[0] = *reinterpret_cast<const u8*>(at);
            else if constexpr (BYTES == 2) words[0] = *reinterpret_cast<const u16*>(at);
            else load<(BYTES < 16 ? BYTES / 4 : 4)>(words, reinterpret_cast<const u32*>(at));
        } else {
#pragma unroll
            for (int s = 0; s < SCALES; ++s) {
                if (k + s * SPAN >= INPUTS) continue;
                const i64 index = first + (k + s * SPAN) / GROUP;
                T one;
                const u8* const bytes = reinterpret_cast<const u8*>(from);
                if constexpr (width<T> < 8) one = packed<T>(bytes, index);
                else one = from[index];
                u32 code = 0;
                memcpy(&code, &one, sizeof(T));
                words[s * sizeof(T) / 4] |= code << (s * sizeof(T) % 4 * 8);
            }
        }
    }
    __device__ __forceinline__ f32 at(int s) const {
        const u32 code = words[s * sizeof(T) / 4] >> (s * sizeof(T) % 4 * 8);
        if constexpr (same<T, e8m0>) {
            // Its exponent in place; the least is a subnormal, and infinity is NaN.
            const f32 power = __uint_as_float(max((code & 0xff) << 23, 0x400000u));
            return fmaf(power, 0.0f, power);
        }
        T one;
        memcpy(&one, &code, sizeof(T));
        return convert<f32>(one);
    }
    // That of lane `t`'s eight codes of a piece, where scales are of less than a piece.
    __device__ __forceinline__ f32 of_lane(int piece, int t) const {
        constexpr int each = AFTER ? 1 : 32 / SPAN;
        f32 found = at(piece * each);
#pragma unroll
        for (int i = 1; i < each; ++i)
            if (t * 8 / SPAN == i) found = at(piece * each + i);
        return found;
    }
    // The same twice, as half floats that hold it.
    __device__ __forceinline__ u32 pair_of_lane(int piece, int t) const {
#if __CUDA_ARCH__ >= 890
        if constexpr (same<T, f8e4m3> && SPAN == 16) {
            u32 both;
            asm("cvt.rn.f16x2.e4m3x2 %0, %1;"
                : "=r"(both)
                : "h"((u16)(words[piece / 2] >> (piece % 2 * 16))));
            const u32 pair = select_bytes(both, both, t < 2 ? 0x1010 : 0x3232);
            if constexpr (!IS_BF16) return pair;
            const f32 scale = decode(f16{(u16)pair});
            return pack(scale, scale);
        }
#endif
        const f32 scale = of_lane(piece, t);
        return pack(scale, scale);
    }
};

// The weights of a product.
struct Weights {
    const u8* codes;
    const SCALE* scale;
    const ZERO* zero;
    const TENSOR_SCALE* tensor_scale;
    const TensorMap* map;
    int rows;
};
template <class Part>
struct Product {
    Weights weights;
    const typename Part::Buffers& slots;
    f32 factor = AFTER ? UNIT : 1.0f;
    typename Part::Early early = {};

    // Calls `each(row, output)` for the elements of a tile that this thread stores.
    template <class Each>
    __device__ __forceinline__ static void of_tile(int first, const Each& each) {
        for (int i = threadIdx.x; i < ROWS * OUTPUTS; i += THREADS)
            if (first + i % OUTPUTS < Part::EXTENT) each(i / OUTPUTS, first + i % OUTPUTS);
    }
    __device__ __forceinline__ void ask(int first) const {
        of_tile(first, [&](int r, int c) { Part::ask(slots, r, c); });
    }
    // Loads what the epilogue reads of the one element that a thread stores.
    __device__ __forceinline__ void load(int first) {
        of_tile(first, [&](int r, int c) { Part::load(early, slots, r, c); });
    }
    // Adds up the sums of all warps, whose rows are `line` apart.
    template <bool IS_LOADED>
    __device__ __forceinline__ void store(const f32* sums, int line, int first) const {
        of_tile(first, [&](int r, int c) {
            f32 sum = 0.0f;
#pragma unroll
            for (int warp = 0; warp < WARPS; ++warp)
                sum += sums[(warp * ROWS + r) * line + c - first];
            if constexpr (IS_LOADED) Part::store(early, slots, r, c, sum * factor);
            else Part::store(slots, r, c, sum * factor);
        });
    }
};

#define COPIES_IN_BULK (__CUDA_ARCH__ >= 900)

// Shared memory of a block.
struct Room {
    u8* base;
    u32 filled, ring, x;
};

// A warp's part of the sums of a tile, by COUNT products of one x.
template <int COUNT>
struct Stream {
    static constexpr int SLOT = COUNT * CODE_BYTES;
    static constexpr int BLOCKS_M = COUNT * MTILES;
    static constexpr int LINE = COUNT * OUTPUTS + 4; // of sums

    struct Factors {
        Spans<SCALE> scale[HALVES][BLOCKS_M][2];
        Spans<ZERO> zero[HAS_ZERO ? HALVES : 1][HAS_ZERO ? BLOCKS_M : 1][2];
    };

    const Weights (&weights)[COUNT];
    const X* x;
    int first;
    u32 barriers, ring, x_at;
    int lane, warp, g, t, own;

    __device__ __forceinline__ Stream(const Weights (&weights)[COUNT], const X* x, int first,
                                      const Room& room)
        : weights(weights), x(x), first(first), lane(threadIdx.x % 32), warp(threadIdx.x / 32),
          g(lane / 4), t(lane % 4) {
        barriers = room.filled + warp * AHEAD * 8;
        ring = room.ring + warp * AHEAD * SLOT;
        x_at = LEAD ? room.x : room.x + warp * AHEAD * X_BYTES;
        // A lane has the row `own` of a tile and the one eight later. The lanes that read at once
        // have theirs in different banks.
        own = WORDS == 1    ? g
              : HALVES == 2 ? (g & 3) << 1 | g >> 2
                            : (g & 1) | (g & 2) << 1 | (g >> 1 & 2);
    }

    // The place to which the bulk copy engine swizzles 16 bytes of a line.
    __device__ __forceinline__ static int turned(int row, int piece) {
        return HALVES == 2 ? piece ^ (row & 7) : piece ^ (row >> 1 & 3);
    }
    __device__ __forceinline__ int chunk(int step) const { return step * WARPS + warp; }
    // Rows beyond the last are read as the last.
    __device__ __forceinline__ int row_of(int part, int local) const {
        return min(first + local, weights[part].rows - 1);
    }

    __device__ __forceinline__ void set_barriers() const {
#if COPIES_IN_BULK
        if (lane == 0) {
            for (int slot = 0; slot < AHEAD; ++slot) barrier_init(barriers + slot * 8, 1);
            barriers_are_set();
        }
        __syncwarp();
#endif
    }
    __device__ __forceinline__ void fetch_codes(int step, int slot) const {
        const int from = chunk(step) * LINE_BYTES;
        const u32 to = ring + slot * SLOT;
#if COPIES_IN_BULK
        if (lane == 0) {
            barrier_expect(barriers + slot * 8, SLOT);
#pragma unroll
            for (int part = 0; part < COUNT; ++part)
                copy_in(to + part * CODE_BYTES, *weights[part].map, barriers + slot * 8, from,
                        first, 0);
        }
#else
#pragma unroll
        for (int part = 0; part < COUNT; ++part)
#pragma unroll 1
            for (int i = lane; i < CODE_BYTES / 16; i += 32) {
                const int row = i / (LINE_BYTES / 16), piece = i % (LINE_BYTES / 16);
                const bool there = from + piece * 16 < ROW_BYTES;
                const u8* const codes = weights[part].codes;
                const u8* const place = codes + row_of(part, row) * ROW_BYTES + from + piece * 16;
                copy_async(to + part * CODE_BYTES + row * LINE_BYTES + turned(row, piece) * 16,
                           there ? place : codes, there);
            }
#endif
    }
    __device__ __forceinline__ void read_factors(int step, Factors& to) const {
#pragma unroll
        for (int h = 0; h < HALVES; ++h)
#pragma unroll
            for (int m = 0; m < BLOCKS_M; ++m)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int k = chunk(step) * CHUNK + h * HALF, part = m / MTILES;
                    const int row = row_of(part, m % MTILES * 16 + half * 8 + own);
                    to.scale[h][m][half].read(weights[part].scale, row, k);
                    if constexpr (HAS_ZERO) to.zero[h][m][half].read(weights[part].zero, row, k);
                }
    }
    // 16 bytes of x at a time, which no two lanes that read at once have in one bank.
    __device__ __forceinline__ void fetch_x(int step, int slot) const {
        constexpr int in_row = CHUNK / 8;
#pragma unroll 1
        for (int i = lane; i < ROWS * in_row; i += 32) {
            const int r = i / in_row, piece = i % in_row, k = chunk(step) * CHUNK + piece * 8;
            const u32 to = x_at + slot * X_BYTES + r * CHUNK * 2 + (piece ^ (r & 1) << 2) * 16;
            copy_async(to, k < INPUTS ? x + (i64)r * INPUTS + k : x, k < INPUTS);
        }
    }
    // Eight of a row of x: those of this lane in a piece.
    __device__ __forceinline__ void read_x(int step, int slot, int at, int tile,
                                           u32 (&b)[4]) const {
        const int row = tile * 8 + g, k = at + t * 8, in_k = chunk(step) * CHUNK + k;
        const u32 from = LEAD ? x_at + (row * INPUTS + in_k) * 2
                              : x_at + slot * X_BYTES + row * CHUNK * 2 +
                                    (k / 8 ^ (row & 1) << 2) * 16;
        read_eight(from, row < ROWS && (!LEAD || in_k < INPUTS), b);
        arrange(b);
    }

    __device__ __forceinline__ void multiply_half(int step, int slot, int h,
                                                  const Factors& factors,
                                                  f32 (&totals)[BLOCKS_M][TILES][4]) const {
        f32 sums[BLOCKS_M][TILES][4], x_sums[TILES][4];
        const u32 codes_at = ring + slot * SLOT + own * LINE_BYTES +
                             (WORDS == 1 ? t * 4 : (t & 1) * 8);
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            const bool begins = piece % SPAN_PIECES == 0 && (AFTER || piece == 0),
                       ends = AFTER ? (piece + 1) % SPAN_PIECES == 0 : piece + 1 == PIECES;
            u32 b[TILES][4];
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                read_x(step, slot, h * HALF + piece * 32, tile, b[tile]);
                if (begins)
#pragma unroll
                    for (int i = 0; i < 4; ++i) x_sums[tile][i] = 0.0f;
                // With zero points the sums of x.
                if constexpr (AFTER && HAS_ZERO) {
                    const u32 a[4] = {ONE, ONE, ONE, ONE};
                    multiply(x_sums[tile], a, b[tile][0], b[tile][1]);
                    multiply(x_sums[tile], a, b[tile][2], b[tile][3]);
                }
            }
            const int place = WORDS == 1 ? turned(own, h * 4 + piece)
                                         : turned(own, h * 4 + piece * 2 + t / 2);
#pragma unroll
            for (int m = 0; m < BLOCKS_M; ++m) {
                u32 pairs[2][4];
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    u32 words[WORDS];
                    read_codes(codes_at + place * 16 + (m * 16 + half * 8) * LINE_BYTES, words);
                    numbers(words, pairs[half]);
                    if constexpr (!AFTER)
                        scale_pairs(factors, {h, m, half}, piece, pairs[half]);
                }
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile) {
                    if (begins)
#pragma unroll
                        for (int i = 0; i < 4; ++i) sums[m][tile][i] = 0.0f;
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const u32 a[4] = {pairs[0][2 * i], pairs[1][2 * i], pairs[0][2 * i + 1],
                                          pairs[1][2 * i + 1]};
                        multiply(sums[m][tile], a, b[tile][2 * i], b[tile][2 * i + 1]);
                    }
                }
            }
            if (!ends) continue;
#pragma unroll
            for (int m = 0; m < BLOCKS_M; ++m)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int s = piece / SPAN_PIECES;
                    const f32 factor = AFTER ? factors.scale[h][m][half].at(s) : 1.0f;
                    f32 less = 0.0f;
                    if constexpr (AFTER && HAS_ZERO) less = factors.zero[h][m][half].at(s) / UNIT;
#pragma unroll
                    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                        for (int i = 2 * half; i < 2 * half + 2; ++i) {
                            f32 sum = sums[m][tile][i];
                            if constexpr (AFTER && HAS_ZERO)
                                sum = fmaf(-less, x_sums[tile][i], sum);
                            totals[m][tile][i] = AFTER ? fmaf(factor, sum, totals[m][tile][i])
                                                       : totals[m][tile][i] + sum;
                        }
                }
        }
    }

    struct Place {
        int h, m, half;
    };
    // Multiplies eight weights of a lane by their scale.
    __device__ __forceinline__ void scale_pairs(const Factors& factors, Place of, int piece,
                                                u32 (&pairs)[4]) const {
        const Spans<SCALE>& scale = factors.scale[of.h][of.m][of.half];
        if constexpr (EXACT) {
            const u32 both = scale.pair_of_lane(piece, t);
#pragma unroll
            for (int i = 0; i < 4; ++i) pairs[i] = multiply_add(pairs[i], both, 0x80008000u);
        } else {
            const f32 factor = scale.of_lane(piece, t) * UNIT;
            f32 less = 0.0f;
            if constexpr (HAS_ZERO)
                less = factors.zero[of.h][of.m][of.half].of_lane(piece, t) / UNIT;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                pairs[i] = pack((low_of(pairs[i]) - less) * factor,
                                (high_of(pairs[i]) - less) * factor);
        }
    }
};

__device__ __forceinline__ void ask_for(const void* from, int bytes) {
    for (int at = threadIdx.x * 128; at < bytes; at += THREADS * 128)
        ask_for((const u8*)from + at);
}

// The work of a block for its products: `lead` computes x, where it is not given.
template <class Lead, class... Products>
__device__ __forceinline__ void compute(const Room& room, const X* x, const Lead& lead, int first,
                                        Products... products) {
    constexpr int COUNT = sizeof...(Products);
    // A product that is gated reads a result that this thread stores before.
    constexpr bool EARLY = COUNT == 1 && ROWS * OUTPUTS <= THREADS;
    typedef Stream<COUNT> Codes;
    const Weights weights[COUNT] = {products.weights...};
    const Codes codes(weights, x, first, room);
    typename Codes::Factors factors;
    const auto begin = [&] {
        for (int step = 0; step < AHEAD && step < STEPS; ++step) codes.fetch_codes(step, step);
        codes.read_factors(0, factors);
        if constexpr (HAS_TENSOR_SCALE)
            ((products.factor *= convert<f32>(*products.weights.tensor_scale)), ...);
    };
    codes.set_barriers();
    if (SETTLED) begin();
    (products.ask(first), ...);
    wait_for_previous();
    if (!SETTLED) begin();
    // All codes of the block are under way. Otherwise the next kernel's blocks would take their
    // share of the memory traffic that this one still waits for.
    if (STEPS <= AHEAD) let_next_begin();
    lead();
    if constexpr (EARLY) (products.load(first), ...);
    for (int step = 0; step < AHEAD; ++step) {
        if (!LEAD && step < STEPS) codes.fetch_x(step, step);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    f32 totals[Codes::BLOCKS_M][TILES][4] = {};
    int slot = 0;
    u32 parity = 0;
    for (int step = 0; step < STEPS; ++step) {
        typename Codes::Factors next;
        if (GROUP != INPUTS && STEPS > 1)
            codes.read_factors(step + 1 < STEPS ? step + 1 : step, next);
#if COPIES_IN_BULK
        barrier_wait(codes.barriers + slot * 8, parity);
#endif
        asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
        __syncwarp();
#pragma unroll
        for (int h = 0; h < HALVES; ++h) codes.multiply_half(step, slot, h, factors, totals);
        // All lanes have read the slot.
        __syncwarp();
        if (step + AHEAD < STEPS) {
            codes.fetch_codes(step + AHEAD, slot);
            if (!LEAD) codes.fetch_x(step + AHEAD, slot);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (STEPS > AHEAD && step + AHEAD + 1 == STEPS) let_next_begin();
        if (GROUP != INPUTS && STEPS > 1) factors = next;
        if (++slot == AHEAD) slot = 0, parity ^= 1;
    }

    // Warps add up, always in the same order.
    __syncthreads();
    f32* const all = reinterpret_cast<f32*>(room.base);
#pragma unroll
    for (int m = 0; m < Codes::BLOCKS_M; ++m)
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (const int r = tile * 8 + 2 * codes.t + i % 2; r < ROWS)
                    all[(codes.warp * ROWS + r) * Codes::LINE + m * 16 + codes.own + i / 2 * 8] =
                        totals[m][tile][i];
    __syncthreads();
    int part = 0;
    (products.template store<EARLY>(all + part++ * OUTPUTS, Codes::LINE, first), ...);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    quantized_rows(const X* x, const __grid_constant__ Maps maps,
                   const __grid_constant__ Given given) {
    extern __shared__ u8 dynamic[];
    __shared__ alignas(8) u64 full[WARPS * AHEAD];
    const u32 base = (shared_address(dynamic) + 1023) & ~1023u;
    const Room room = {dynamic + (base - shared_address(dynamic)), shared_address(full), base,
                       base + WARPS * AHEAD * PARTS * CODE_BYTES};
    const int tile = (int)blockIdx.x;
    const auto product = [&](auto part, int id, const auto& slots) {
        return Product<decltype(part)>{{(const u8*)given.weights[id][0],
                                        (const SCALE*)given.weights[id][1],
                                        (const ZERO*)given.weights[id][2],
                                        (const TENSOR_SCALE*)given.weights[id][3], &maps.at[id],
                                        decltype(part)::EXTENT},
                                       slots};
    };
    const auto before = [&] {
        LEAD_ROWS(room.base + (room.x - room.ring), given.lead);
        if constexpr (LEAD) __syncthreads();
    };
    ASK(given.lead)
    BODIES
}
