// Products on Hopper's tensor cores. A producer warp copies tiles to shared memory by TMA. Consumer
// warpgroups multiply them with wgmma and apply the printed epilogue to the sums in their
// registers.
//
// Learnt from:
//
// - CUTLASS's warp-specialised persistent kernels (cooperative and ping-pong);
// - DeepGEMM (registers moved to the consumers, stores by TMA from swizzled shared memory);
// - Pranjal Shankhdhar's "Fast CUDA kernels" worklog (clusters that share a tile, order of tiles
//   that keeps operands in L2).
//
// TILE_M TILE_N: sums of a block (cooperative) or of a warpgroup (ping-pong). CONSUMERS:
// warpgroups. PINGPONG: each warpgroup has tiles of its own, so that one's epilogue runs under the
// other's products. CLUSTER: blocks, neighbours in rows, that share right tiles. STAGES: tiles in
// flight. LHS_BY_K, RHS_BY_K: contracted index contiguous. LHS_BATCHED, RHS_BATCHED: the operand
// differs from batch to batch. STORE_BY_TMA: the first RESULTS results go through shared memory.
// PROMOTE: sums of fp8 leave the tensor core's narrow accumulator after each tile. GROUP: tiles of
// rows that are walked before the next column of tiles. BLOCKS: of the grid. TOGETHER: products of
// one left operand that differ in addresses alone; more than one have no batch. TERMS: products
// that are added up, the contracted index of one after that of the other; more than one have no
// batch and one result. SPAN: blocks, neighbours in columns, that hold whole rows of the result
// between them, where a loop over its rows follows; FOLDS: times that they meet. Such blocks have
// one tile each. LEAN: one warp copies and registers stay where they are, so that half of them are
// left to blocks of the next kernel. SUM: f32, or i32 of i8. From the printed text: wgmma (one
// instruction), Slots, epilogue, store_result; follow.

#include "hopper.cuh"

constexpr int ELEMENT_BYTES = sizeof(LHS);
constexpr int TILE_K = 128 / ELEMENT_BYTES;
constexpr int STEPS = 4; // instructions of 32 bytes along k in a tile
constexpr int OWN_M = PINGPONG ? TILE_M : TILE_M / CONSUMERS; // rows of a warpgroup
constexpr int HEIGHTS = OWN_M / 64;
constexpr int LHS_BYTES = TILE_M * 128;
constexpr int RHS_BYTES = TILE_N * 128;
constexpr int TILES_TERM = (int)((K + TILE_K - 1) / TILE_K); // of one product's contracted index
constexpr int TILES_K = TILES_TERM * TERMS;
constexpr int TILES_M = (M + TILE_M - 1) / TILE_M, TILES_N = (N + TILE_N - 1) / TILE_N;
constexpr int PAIRS_M = (TILES_M + CLUSTER - 1) / CLUSTER;
constexpr i64 LAYERS = (i64)BATCH * TOGETHER;
constexpr bool FOLLOWED = SPAN > 0;
constexpr int GANG = FOLLOWED ? SPAN : CLUSTER; // blocks of a cluster
constexpr i64 TILES = FOLLOWED ? TILES_M : PAIRS_M * TILES_N * LAYERS; // of clusters
constexpr int STORE_BYTES = 64 * 128; // 64 rows of one swizzle's width
constexpr int STORE_BUFFERS = 2;
constexpr int FIRST =
    CONSUMERS * WARPGROUP;  // of the threads behind the consumers, the one that copies
constexpr int THREADS = FIRST + (LEAN ? 32 : WARPGROUP);
constexpr bool WHOLE = M % TILE_M == 0 && N % TILE_N == 0 && PAIRS_M * CLUSTER == TILES_M;

struct Lefts {
    TensorMap of[TERMS];
};
struct Rights {
    TensorMap of[TERMS > 1 ? TERMS : TOGETHER];
};
struct Results {
    TensorMap of[TOGETHER][RESULTS];
};
struct Buffers {
    Slots of[TOGETHER];
};

typedef Operand<ELEMENT_BYTES, LHS_BY_K, TILE_M> Lhs;
// Each block of a cluster copies its share of the right tile to all.
typedef Operand<ELEMENT_BYTES, RHS_BY_K, TILE_N / CLUSTER> Rhs;

struct Tile {
    int member, batch, row, col;
};

// Tiles in groups of GROUP rows of tiles, so that tiles that run at once share operands in L2.
__device__ __forceinline__ Tile tile_at(i64 index, u32 rank) {
    if constexpr (FOLLOWED) return {0, 0, (int)index * TILE_M, (int)rank * TILE_N};
    const int per_batch = PAIRS_M * TILES_N;
    const int layer = LAYERS == 1 ? 0 : (int)(index / per_batch);
    const int in = LAYERS == 1 ? (int)index : (int)(index % per_batch);
    const int per_group = GROUP * TILES_N, group = in / per_group, within = in % per_group;
    const int rows = min(GROUP, PAIRS_M - group * GROUP);
    const int m = group * GROUP + within % rows, n = within / rows;
    return {TOGETHER == 1 ? 0 : layer, TOGETHER == 1 ? layer : 0,
            (m * CLUSTER + (int)rank) * TILE_M, n * TILE_N};
}

typedef SUM Sums[TILE_N / 2];

__device__ __forceinline__ void fence_sums(Sums& sums) {
#pragma unroll
    for (int i = 0; i < TILE_N / 2; ++i) fence_sum(sums[i]);
}

// Two neighbours of a row as they are stored.
__device__ __forceinline__ void store_shared(u32 to, const OUT* pair) {
    if constexpr (sizeof(OUT) == 4) {
        const u64 both = bitcast<u32>(pair[0]) | (u64)bitcast<u32>(pair[1]) << 32;
        asm volatile("st.shared.b64 [%0], %1;" ::"r"(to), "l"(both));
    } else if constexpr (sizeof(OUT) == 2) {
        const u32 both = (u32)bitcast<u16>(pair[0]) | (u32)bitcast<u16>(pair[1]) << 16;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(both));
    } else {
        const u16 both = (u16)(bitcast<u8>(pair[0]) | bitcast<u8>(pair[1]) << 8);
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(both));
    }
}

#if SPAN == 0
// The epilogue takes a warpgroup's sums in slices of 64 rows.
constexpr int SLICE = STORE_BY_TMA ? 128 / (int)sizeof(OUT) : TILE_N < 64 ? TILE_N : 64; // columns
constexpr int SLICES = TILE_N / SLICE; // of 64 rows
// Whether a slice's operands set out while the slice before it is computed: where registers are
// left for both. Elements that may lie outside need some for their conditions.
constexpr bool AHEAD = !LEAN && WHOLE;
typedef Loaded<2> Operands[AHEAD ? 2 : 1][SLICE / 8][2];

__device__ __forceinline__ void load_slice(Operands& operands, int at, const Tile& tile,
                                           const Slots& slots) {
    const int thread = threadIdx.x % WARPGROUP, lane = thread % 32;
    const int row = tile.row + at / SLICES * 64 + thread / 32 * 16 + lane / 4,
              col = tile.col + at % SLICES * SLICE + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < SLICE; j += 8)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int r = row + half * 8, c = col + j;
            if (WHOLE || (r < M && c < N))
                operands[AHEAD ? at % 2 : 0][j / 8][half].load_all(slots, tile.batch, r, c,
                                                                   WHOLE ? 2 : N - c);
        }
}

// Applies the epilogue to a warpgroup's sums and stores them, a slice at a time. All of a slice's
// values come first, so that their chains overlap. The operands of the first slice are already
// there.
__device__ __forceinline__ void finish(Sums (&sums)[HEIGHTS], Operands& operands, const Tile& tile,
                                       const TensorMap (&maps)[RESULTS], const Slots& slots,
                                       u32 buffers, int& used, int warpgroup) {
    const int thread = threadIdx.x % WARPGROUP, lane = thread % 32;
    const int row = thread / 32 * 16 + lane / 4, col = lane % 4 * 2;
#pragma unroll
    for (int at = 0; at < HEIGHTS * SLICES; ++at) {
        const int h = at / SLICES, slice = at % SLICES * SLICE, top = tile.row + h * 64;
        // Waits until the last copy from the buffer has read it. This comes first because its
        // branch also separates the wait for wgmma from the first use of its sums. Without a branch
        // ptxas finds them used too early and serialises all wgmma (C7514).
        if (STORE_BY_TMA && thread == 0) copies_have_read<STORE_BUFFERS - 1>();
        if (!AHEAD) load_slice(operands, at, tile, slots);
        else if (at + 1 < HEIGHTS * SLICES) load_slice(operands, at + 1, tile, slots);
        OUT values[SLICE / 8][2][RESULTS * 2];
#pragma unroll
        for (int j = 0; j < SLICE; j += 8) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int r = top + row + half * 8, c = tile.col + slice + j + col,
                          first = (slice + j) / 2 + half * 2;
                const SUM pair[2] = {sums[h][first], sums[h][first + 1]};
                if (WHOLE || (r < M && c < N)) {
                    auto& out = values[j / 8][half];
                    operands[AHEAD ? at % 2 : 0][j / 8][half].apply(slots, tile.batch, r, c, pair,
                                                                    WHOLE ? 2 : N - c, out);
                    if constexpr (!STORE_BY_TMA)
                        store_result<2>(slots, tile.batch, r, c, out, WHOLE ? 2 : N - c);
                }
            }
        }
        if constexpr (STORE_BY_TMA) {
#pragma unroll
            for (int result = 0; result < RESULTS; ++result) {
                const u32 buffer = buffers + (used % STORE_BUFFERS) * STORE_BYTES;
                if (result > 0 && thread == 0) copies_have_read<STORE_BUFFERS - 1>();
                named_sync<4>(warpgroup, WARPGROUP);
#pragma unroll
                for (int j = 0; j < SLICE; j += 8) {
                    const int line = (j + col) * (int)sizeof(OUT);
                    const u32 to = buffer + row * 128 + ((line / 16 ^ (row & 7)) << 4) + line % 16;
                    store_shared(to, values[j / 8][0] + result * 2);
                    store_shared(to + 8 * 128, values[j / 8][1] + result * 2);
                }
                fence_shared();
                named_sync<4>(warpgroup, WARPGROUP);
                if (thread == 0)
                    copy_out(maps[result], buffer, tile.col + slice, top, tile.batch);
                ++used;
            }
        }
    }
}
#endif

#if SPAN > 0
// How the threads that have parts of a row fold it: first four lanes of a warp, then the blocks of
// the cluster. Each block tells all others its part. Every meeting has places and a barrier of its
// own.
struct Meeting {
    u32 parts, barriers; // of this warpgroup
    u32 rank;
    int row; // in this warpgroup

    static constexpr u32 BYTES = SPAN * 64 * 4;

    template <class R, int Which, class Meanwhile>
    __device__ __forceinline__ void fold(f32 (&part)[2], const Meanwhile& meanwhile) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            part[half] = R::of(part[half], __shfl_xor_sync(~0u, part[half], 1));
            part[half] = R::of(part[half], __shfl_xor_sync(~0u, part[half], 2));
        }
        if constexpr (SPAN > 1) {
            const u32 here = parts + Which * CONSUMERS * BYTES + row * 4,
                      barrier = barriers + Which * CONSUMERS * 8;
#pragma unroll
            for (int first = 0; first < SPAN; first += 4) {
                const u32 to = first + threadIdx.x % 4;
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    if (to < SPAN) push(here + rank * 256 + half * 32, barrier, to, part[half]);
            }
            meanwhile();
            barrier_wait(barrier, 0);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                f32 all[SPAN];
#pragma unroll
                for (int block = 0; block < SPAN; ++block) {
                    const u32 at = here + block * 256 + half * 32;
                    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(all[block]) : "r"(at) : "memory");
                }
                part[half] = all[0];
#pragma unroll
                for (int block = 1; block < SPAN; ++block)
                    part[half] = R::of(part[half], all[block]);
            }
        } else {
            meanwhile();
        }
    }
};

// The epilogue's operands for a thread's elements. They are loaded before the products where
// registers have room for them.
constexpr bool EARLY = TILE_N <= 64;
typedef Loaded<2> Operands[2][TILE_N / 8];

__device__ __forceinline__ void load_operands(Operands& operands, const Tile& tile,
                                              const Slots& slots) {
    const int thread = threadIdx.x % WARPGROUP, lane = thread % 32;
    const int row = tile.row + thread / 32 * 16 + lane / 4, col = tile.col + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < TILE_N / 8; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            if (row + half * 8 < M)
                operands[half][j].load_all(slots, 0, row + half * 8, col + j * 8, 2);
}

// Does the work of `finish`, then runs the loop over the product's rows on the rounded result.
__device__ __forceinline__ void finish_rows(Sums& sums, Operands& operands, const Tile& tile,
                                            const Slots& slots, Meeting meeting) {
    const int thread = threadIdx.x % WARPGROUP, lane = thread % 32;
    const int row = tile.row + thread / 32 * 16 + lane / 4, col = tile.col + lane % 4 * 2;
    meeting.row = row - tile.row;
    OUT values[2][TILE_N / 8][2] = {};
    if (!EARLY) load_operands(operands, tile, slots);
#pragma unroll
    for (int j = 0; j < TILE_N / 8; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const SUM pair[2] = {sums[j * 4 + half * 2], sums[j * 4 + half * 2 + 1]};
            if (row + half * 8 < M)
                operands[half][j].apply(slots, 0, row + half * 8, col + j * 8, pair, 2,
                                        values[half][j]);
        }
    wait_for_cluster<GANG>();
    follow(slots, row, col, values, meeting, [&] {
#pragma unroll
        for (int j = 0; j < TILE_N / 8; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (row + half * 8 < M)
                    store_result<2>(slots, 0, row + half * 8, col + j * 8, values[half][j], 2);
    });
}
#endif

extern "C" __global__ void
#if CLUSTER > 1 || SPAN > 1
__cluster_dims__(GANG, 1, 1)
#endif
__launch_bounds__(THREADS, LEAN ? 2 : 1)
gemm_hopper(const __grid_constant__ Lefts lhs_maps, const __grid_constant__ Rights rhs_maps,
            const __grid_constant__ Results out_maps, const __grid_constant__ Buffers buffers_of) {
    extern __shared__ u8 dynamic[];
    __shared__ alignas(8) u64 full[STAGES], empty[STAGES];
    const u32 base = (shared_address(dynamic) + 1023) & ~1023u;
    const u32 lhs_tiles = base, rhs_tiles = lhs_tiles + STAGES * LHS_BYTES,
              stores = rhs_tiles + STAGES * RHS_BYTES;
    const u32 filled = shared_address(full), freed = shared_address(empty);
    const u32 rank = cluster_rank<GANG>();
    const u32 own_share = CLUSTER > 1 ? rank : 0; // of right tiles
#if SPAN > 0
    __shared__ alignas(8) u64 met[(FOLDS > 0 ? FOLDS : 1) * CONSUMERS];
    const u32 meetings = shared_address(met);
#endif
    const int warpgroup = threadIdx.x / WARPGROUP;
    if (threadIdx.x == FIRST) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(filled + s * 8, 1);
            barrier_init(freed + s * 8, 4 * (PINGPONG ? 1 : CONSUMERS) * CLUSTER);
        }
#if SPAN > 1
        for (int meeting = 0; meeting < FOLDS * CONSUMERS; ++meeting) {
            barrier_init(meetings + meeting * 8, 1);
            barrier_expect(meetings + meeting * 8, Meeting::BYTES);
        }
#endif
        barriers_are_set();
        asm volatile("prefetch.tensormap [%0];" ::"l"(&lhs_maps) : "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(&rhs_maps) : "memory");
    }
    __syncthreads();
    if constexpr (FOLLOWED) arrive_in_cluster<GANG>();
    else cluster_sync<CLUSTER>();
    constexpr i64 CLUSTERS = BLOCKS / GANG;
    const i64 first = blockIdx.x / GANG;
    // Right operands are mostly weights, far away: they set out while the kernel before this one
    // still runs.
    if (threadIdx.x == FIRST) {
        const Tile tile = tile_at(first, rank);
        constexpr int share = TILE_N / CLUSTER;
        for (int k = 0; k < (STAGES < TILES_K ? STAGES : TILES_K); ++k)
            Rhs::ask(rhs_maps.of[TERMS > 1 ? k / TILES_TERM : tile.member],
                     tile.col + share * (int)own_share, k % TILES_TERM * TILE_K,
                     RHS_BATCHED ? tile.batch : 0);
    }
    after_previous();
    if (warpgroup == CONSUMERS) {
        if constexpr (CONSUMERS > 1 && !LEAN) give_registers<40>();
        if (threadIdx.x == FIRST) {
            u32 stage = 0, parity = 1;
            for (i64 index = first; index < TILES; index += CLUSTERS) {
                const Tile tile = tile_at(index, rank);
                for (int k = 0; k < TILES_K; ++k) {
                    barrier_wait(freed + stage * 8, parity);
                    const u32 barrier = filled + stage * 8;
                    barrier_expect(barrier, LHS_BYTES + RHS_BYTES);
                    const u32 lhs = lhs_tiles + stage * LHS_BYTES,
                              rhs = rhs_tiles + stage * RHS_BYTES;
                    const int term = TERMS > 1 ? k / TILES_TERM : 0;
                    const int from = (k - term * TILES_TERM) * TILE_K;
                    Lhs::copy<1>(lhs, lhs_maps.of[term], barrier, tile.row, from,
                                 LHS_BATCHED ? tile.batch : 0);
                    constexpr int share = TILE_N / CLUSTER;
                    Rhs::copy<CLUSTER>(rhs + Rhs::BOX_BYTES * (share / Rhs::WIDTH) * own_share,
                                       rhs_maps.of[TERMS > 1 ? term : tile.member], barrier,
                                       tile.col + share * (int)own_share, from,
                                       RHS_BATCHED ? tile.batch : 0);
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        }
    } else {
        if constexpr (CONSUMERS > 1 && !LEAN) take_registers<232>();
        const int consumer = warpgroup;
        [[maybe_unused]] const u32 buffers = stores + consumer * STORE_BUFFERS * STORE_BYTES;
        const int own = PINGPONG ? 0 : consumer * OWN_M;
        [[maybe_unused]] int used = 0;
        u32 stage = 0, parity = 0;
        const auto skip = [&](u32 by) {
            const u32 at = stage + by;
            parity ^= (at / STAGES) & 1;
            stage = at % STAGES;
        };
        if (PINGPONG && consumer == 1) {
            named_arrive<1>(0, 2 * WARPGROUP);
            skip(TILES_K);
        }
        const i64 stride = PINGPONG ? 2 * CLUSTERS : CLUSTERS;
        for (i64 index = first + (PINGPONG ? consumer * CLUSTERS : 0); index < TILES;
             index += stride) {
            Tile tile = tile_at(index, rank);
            tile.row += own;
            // All sectors of the epilogue's operands are prefetched while the products are formed.
            constexpr int EIGHTS = TILE_N / 8;
            for (int at = threadIdx.x % WARPGROUP; at < OWN_M * EIGHTS; at += WARPGROUP) {
                const int r = tile.row + at / EIGHTS, c = tile.col + at % EIGHTS * 8;
                if (r < M && c < N) prefetch(buffers_of.of[tile.member], tile.batch, r, c);
            }
#if SPAN > 0
            for (int c = threadIdx.x % WARPGROUP / 64 * 64; c < TILE_N; c += 128)
                if (const int r = threadIdx.x % 64; r < 8 && tile.col + c < N)
                    prefetch_following(buffers_of.of[0], min(tile.row + r, M - 1),
                                       tile.col + c + r * 8);
#endif
#if SPAN > 0
            Operands operands;
            if (EARLY) load_operands(operands, tile, buffers_of.of[0]);
#endif
            Sums sums[HEIGHTS];
#if PROMOTE
            Sums totals[HEIGHTS] = {};
#endif
            if (PINGPONG) named_sync<1>(consumer, 2 * WARPGROUP);
            [[maybe_unused]] u32 previous = stage;
            for (int k = 0; k < TILES_K; ++k) {
                barrier_wait(filled + stage * 8, parity);
                const u64 lhs = Lhs::descriptor(lhs_tiles + stage * LHS_BYTES + Lhs::row(own));
                const u64 rhs = Rhs::descriptor(rhs_tiles + stage * RHS_BYTES);
#pragma unroll
                for (int h = 0; h < HEIGHTS; ++h) fence_sums(sums[h]);
                products_begin();
#pragma unroll
                for (int step = 0; step < STEPS; ++step)
#pragma unroll
                    for (int h = 0; h < HEIGHTS; ++h)
                        wgmma(sums[h], lhs + (Lhs::row(h * 64) >> 4) + step * Lhs::STEP,
                              rhs + step * Rhs::STEP, (PROMOTE ? 0 : k) | step);
                products_commit();
#pragma unroll
                for (int h = 0; h < HEIGHTS; ++h) fence_sums(sums[h]);
#if PROMOTE
                products_wait<0>();
                if (threadIdx.x % 32 < CLUSTER)
                    barrier_arrive<CLUSTER>(freed + stage * 8, threadIdx.x % 32);
#pragma unroll
                for (int h = 0; h < HEIGHTS; ++h) {
                    fence_sums(sums[h]);
#pragma unroll
                    for (int i = 0; i < TILE_N / 2; ++i) totals[h][i] += sums[h][i];
                }
#else
                // The tile before this one has been read once only this one's products are under
                // way.
                products_wait<1>();
                if (k > 0 && threadIdx.x % 32 < CLUSTER)
                    barrier_arrive<CLUSTER>(freed + previous * 8, threadIdx.x % 32);
                previous = stage;
#endif
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
            if (PINGPONG) named_arrive<1>(1 - consumer, 2 * WARPGROUP);
#if SPAN == 0
            Operands operands;
            if (AHEAD) load_slice(operands, 0, tile, buffers_of.of[tile.member]);
#endif
#if PROMOTE
#pragma unroll
            for (int h = 0; h < HEIGHTS; ++h)
                for (int i = 0; i < TILE_N / 2; ++i) sums[h][i] = totals[h][i];
#else
            products_wait<0>();
#pragma unroll
            for (int h = 0; h < HEIGHTS; ++h) fence_sums(sums[h]);
            if (threadIdx.x % 32 < CLUSTER)
                barrier_arrive<CLUSTER>(freed + previous * 8, threadIdx.x % 32);
#endif
            if (PINGPONG) skip(TILES_K);
#if SPAN > 0
#pragma unroll
            for (int h = 0; h < HEIGHTS; ++h) {
                Tile part = tile;
                part.row += h * 64;
                const u32 parts = stores + consumer * Meeting::BYTES;
                finish_rows(sums[h], operands, part, buffers_of.of[0],
                            {parts, meetings + consumer * 8, rank, 0});
            }
#else
            finish(sums, operands, tile, out_maps.of[tile.member], buffers_of.of[tile.member],
                   buffers, used, consumer);
#endif
        }
        if (STORE_BY_TMA && threadIdx.x % WARPGROUP == 0) copies_are_done();
    }
    // A block's barriers stay until its neighbours' last arrivals; consumers of rows have met.
    if (FOLLOWED && warpgroup == CONSUMERS) wait_for_cluster<GANG>();
    cluster_sync<CLUSTER>();
}
