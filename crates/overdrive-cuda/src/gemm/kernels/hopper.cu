// Products on Hopper's tensor cores: a producer warp copies tiles to shared memory by TMA, consumer warpgroups
// multiply them with wgmma and apply the printed epilogue to the sums in their registers.
//
// Learnt from CUTLASS's warp-specialised persistent kernels (cooperative and ping-pong), from DeepGEMM (registers moved
// to the consumers, stores by TMA from swizzled shared memory) and from Pranjal Shankhdhar's "Fast CUDA kernels"
// worklog (clusters that share a tile, order of tiles that keeps operands in L2).
//
// TILE_M TILE_N: sums of a block (cooperative) or of a warpgroup (ping-pong). CONSUMERS: warpgroups. PINGPONG: each
// warpgroup has tiles of its own, so that one's epilogue runs under the other's products. CLUSTER: blocks, neighbours
// in rows, that share right tiles. STAGES: tiles in flight. LHS_BY_K, RHS_BY_K: contracted index contiguous.
// LHS_BATCHED, RHS_BATCHED: the operand differs from batch to batch. STORE_BY_TMA: the result goes through shared
// memory. PROMOTE: sums of fp8 leave the tensor core's narrow accumulator after each tile. GROUP: tiles of rows that
// are walked before the next column of tiles. BLOCKS: of the grid. TOGETHER: products of one left operand that differ
// in addresses alone; more than one have no batch.
// SUM: f32, or i32 of i8. From the printed text: wgmma (one instruction), Slots, epilogue, store_result.

#include "hopper.cuh"

constexpr int ELEMENT_BYTES = sizeof(LHS);
constexpr int TILE_K = 128 / ELEMENT_BYTES;
constexpr int STEPS = 4; // instructions of 32 bytes along k in a tile
constexpr int OWN_M = PINGPONG ? TILE_M : TILE_M / CONSUMERS; // rows of a warpgroup
constexpr int HEIGHTS = OWN_M / 64;
constexpr int LHS_BYTES = TILE_M * 128;
constexpr int RHS_BYTES = TILE_N * 128;
constexpr int TILES_K = (int)((K + TILE_K - 1) / TILE_K);
constexpr int TILES_M = (M + TILE_M - 1) / TILE_M, TILES_N = (N + TILE_N - 1) / TILE_N;
constexpr int PAIRS_M = (TILES_M + CLUSTER - 1) / CLUSTER;
constexpr i64 LAYERS = (i64)BATCH * TOGETHER;
constexpr i64 TILES = PAIRS_M * TILES_N * LAYERS; // of clusters
constexpr int STORE_BYTES = 64 * 128; // 64 rows of one swizzle's width
constexpr int STORE_BUFFERS = 2;
constexpr bool WHOLE = M % TILE_M == 0 && N % TILE_N == 0 && PAIRS_M * CLUSTER == TILES_M;

struct Maps {
    TensorMap of[TOGETHER];
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

// Tiles in groups of GROUP rows of tiles, so that what runs at once shares operands in L2.
__device__ __forceinline__ Tile tile_at(i64 index, u32 rank) {
    const int per_batch = PAIRS_M * TILES_N;
    const int layer = LAYERS == 1 ? 0 : (int)(index / per_batch);
    const int in = LAYERS == 1 ? (int)index : (int)(index % per_batch);
    const int per_group = GROUP * TILES_N, group = in / per_group, within = in % per_group;
    const int rows = min(GROUP, PAIRS_M - group * GROUP);
    const int m = group * GROUP + within % rows, n = within / rows;
    return {TOGETHER == 1 ? 0 : layer, TOGETHER == 1 ? layer : 0, (m * CLUSTER + (int)rank) * TILE_M, n * TILE_N};
}

typedef SUM Sums[TILE_N / 2];

__device__ __forceinline__ void fence_sums(Sums& sums) {
#pragma unroll
    for (int i = 0; i < TILE_N / 2; ++i) fence_sum(sums[i]);
}

// Two neighbours of a row as they are stored.
struct alignas(2 * sizeof(OUT)) Pair {
    OUT at[2];
};

__device__ __forceinline__ void store_shared(u32 to, const Pair& pair) {
    if constexpr (sizeof(OUT) == 4) {
        const u64 both = bitcast<u32>(pair.at[0]) | (u64)bitcast<u32>(pair.at[1]) << 32;
        asm volatile("st.shared.b64 [%0], %1;" ::"r"(to), "l"(both));
    } else if constexpr (sizeof(OUT) == 2) {
        const u32 both = (u32)bitcast<u16>(pair.at[0]) | (u32)bitcast<u16>(pair.at[1]) << 16;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(both));
    } else {
        const u16 both = (u16)(bitcast<u8>(pair.at[0]) | bitcast<u8>(pair.at[1]) << 8);
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(both));
    }
}

// Applies the epilogue to a warpgroup's 64 rows of sums and stores them, a slice of columns at a time: all of a slice's
// values first, so that their loads and chains overlap.
__device__ __forceinline__ void finish(Sums& sums, const Tile& tile, const TensorMap& map, const Slots& slots, u32 buffers, int& used, int warpgroup) {
    const int thread = threadIdx.x % WARPGROUP, lane = thread % 32;
    const int row = thread / 32 * 16 + lane / 4, col = lane % 4 * 2;
    constexpr int SLICE = STORE_BY_TMA ? 128 / (int)sizeof(OUT) : TILE_N < 64 ? TILE_N : 64;
#pragma unroll
    for (int slice = 0; slice < TILE_N; slice += SLICE) {
        // Until the copy that last read the buffer has done so. First, because the branch also parts the wait for wgmma
        // from the first use of its sums: without one ptxas finds them used too early and serialises all wgmma (C7514).
        if (STORE_BY_TMA && thread == 0) copies_have_read<STORE_BUFFERS - 1>();
        Pair values[SLICE / 8][2];
#pragma unroll
        for (int j = 0; j < SLICE; j += 8) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int r = tile.row + row + half * 8, c = tile.col + slice + j + col, at = (slice + j) / 2 + half * 2;
                const SUM pair[2] = {sums[at], sums[at + 1]};
                if (WHOLE || (r < M && c < N)) {
                    OUT(&out)[2] = values[j / 8][half].at;
                    epilogue<2>(slots, tile.batch, r, c, pair, WHOLE ? 2 : N - c, out);
                    if constexpr (!STORE_BY_TMA) store_result<2>(slots, tile.batch, r, c, out, WHOLE ? 2 : N - c);
                }
            }
        }
        if constexpr (STORE_BY_TMA) {
            const u32 buffer = buffers + (used % STORE_BUFFERS) * STORE_BYTES;
            named_sync<4>(warpgroup, WARPGROUP);
#pragma unroll
            for (int j = 0; j < SLICE; j += 8) {
                const int at = (j + col) * (int)sizeof(OUT);
                const u32 to = buffer + row * 128 + ((at / 16 ^ (row & 7)) << 4) + at % 16;
                store_shared(to, values[j / 8][0]);
                store_shared(to + 8 * 128, values[j / 8][1]);
            }
            fence_shared();
            named_sync<4>(warpgroup, WARPGROUP);
            if (thread == 0) copy_out(map, buffer, tile.col + slice, tile.row, tile.batch);
            ++used;
        }
    }
}

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
gemm_hopper(const __grid_constant__ TensorMap lhs_map, const __grid_constant__ Maps rhs_maps,
            const __grid_constant__ Maps out_maps, const __grid_constant__ Buffers buffers_of) {
    extern __shared__ u8 dynamic[];
    __shared__ alignas(8) u64 full[STAGES], empty[STAGES];
    const u32 base = (shared_address(dynamic) + 1023) & ~1023u;
    const u32 lhs_tiles = base, rhs_tiles = lhs_tiles + STAGES * LHS_BYTES, stores = rhs_tiles + STAGES * RHS_BYTES;
    const u32 filled = shared_address(full), freed = shared_address(empty);
    const u32 rank = cluster_rank<CLUSTER>();
    const int warpgroup = threadIdx.x / WARPGROUP;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(filled + s * 8, 1);
            barrier_init(freed + s * 8, 4 * (PINGPONG ? 1 : CONSUMERS) * CLUSTER);
        }
        barriers_are_set();
        asm volatile("prefetch.tensormap [%0];" ::"l"(&lhs_map) : "memory");
        asm volatile("prefetch.tensormap [%0];" ::"l"(&rhs_maps) : "memory");
    }
    __syncthreads();
    cluster_sync<CLUSTER>();
    constexpr i64 CLUSTERS = BLOCKS / CLUSTER;
    const i64 first = blockIdx.x / CLUSTER;
    // Right operands are mostly weights, far away: they set out while the kernel before this one still runs.
    if (threadIdx.x == 0) {
        const Tile tile = tile_at(first, rank);
        constexpr int share = TILE_N / CLUSTER;
        for (int k = 0; k < (STAGES < TILES_K ? STAGES : TILES_K); ++k)
            Rhs::ask(rhs_maps.of[tile.member], tile.col + share * (int)rank, k * TILE_K, RHS_BATCHED ? tile.batch : 0);
    }
    after_previous();
    if (warpgroup == 0) {
        if constexpr (CONSUMERS > 1) give_registers<40>();
        if (threadIdx.x == 0) {
            u32 stage = 0, parity = 1;
            for (i64 index = first; index < TILES; index += CLUSTERS) {
                const Tile tile = tile_at(index, rank);
                for (int k = 0; k < TILES_K; ++k) {
                    barrier_wait(freed + stage * 8, parity);
                    const u32 barrier = filled + stage * 8;
                    barrier_expect(barrier, LHS_BYTES + RHS_BYTES);
                    const u32 lhs = lhs_tiles + stage * LHS_BYTES, rhs = rhs_tiles + stage * RHS_BYTES;
                    Lhs::copy<1>(lhs, lhs_map, barrier, tile.row, k * TILE_K, LHS_BATCHED ? tile.batch : 0);
                    constexpr int share = TILE_N / CLUSTER;
                    Rhs::copy<CLUSTER>(rhs + Rhs::BOX_BYTES * (share / Rhs::WIDTH) * rank, rhs_maps.of[tile.member], barrier,
                                             tile.col + share * (int)rank, k * TILE_K, RHS_BATCHED ? tile.batch : 0);
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        }
    } else {
        if constexpr (CONSUMERS > 1) take_registers<232>();
        const int consumer = warpgroup - 1;
        const u32 buffers = stores + consumer * STORE_BUFFERS * STORE_BYTES;
        const int own = PINGPONG ? 0 : consumer * OWN_M;
        int used = 0;
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
        for (i64 index = first + (PINGPONG ? consumer * CLUSTERS : 0); index < TILES; index += stride) {
            Tile tile = tile_at(index, rank);
            tile.row += own;
            // What the epilogue reads is on its way while the products are formed.
            for (int c = threadIdx.x % WARPGROUP / 64 * 64; c < TILE_N; c += 128) {
                const int r = tile.row + threadIdx.x % 64, at = tile.col + c;
#pragma unroll
                for (int h = 0; h < HEIGHTS; ++h)
                    if (r + h * 64 < M && at < N) prefetch(buffers_of.of[tile.member], tile.batch, r + h * 64, at);
            }
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
                        wgmma(sums[h], lhs + (Lhs::row(h * 64) >> 4) + step * Lhs::STEP, rhs + step * Rhs::STEP,
                              (PROMOTE ? 0 : k) | step);
                products_commit();
#pragma unroll
                for (int h = 0; h < HEIGHTS; ++h) fence_sums(sums[h]);
#if PROMOTE
                products_wait<0>();
                if (threadIdx.x % 32 < CLUSTER) barrier_arrive<CLUSTER>(freed + stage * 8, threadIdx.x % 32);
#pragma unroll
                for (int h = 0; h < HEIGHTS; ++h) {
                    fence_sums(sums[h]);
#pragma unroll
                    for (int i = 0; i < TILE_N / 2; ++i) totals[h][i] += sums[h][i];
                }
#else
                // The tile before this one has been read once only this one's products are under way.
                products_wait<1>();
                if (k > 0 && threadIdx.x % 32 < CLUSTER) barrier_arrive<CLUSTER>(freed + previous * 8, threadIdx.x % 32);
                previous = stage;
#endif
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
            if (PINGPONG) named_arrive<1>(1 - consumer, 2 * WARPGROUP);
#if PROMOTE
#pragma unroll
            for (int h = 0; h < HEIGHTS; ++h)
                for (int i = 0; i < TILE_N / 2; ++i) sums[h][i] = totals[h][i];
#else
            products_wait<0>();
#pragma unroll
            for (int h = 0; h < HEIGHTS; ++h) fence_sums(sums[h]);
            if (threadIdx.x % 32 < CLUSTER) barrier_arrive<CLUSTER>(freed + previous * 8, threadIdx.x % 32);
#endif
            if (PINGPONG) skip(TILES_K);
#pragma unroll
            for (int h = 0; h < HEIGHTS; ++h) {
                Tile part = tile;
                part.row += h * 64;
                finish(sums[h], part, out_maps.of[tile.member], buffers_of.of[tile.member], buffers, used, consumer);
            }
        }
        if (STORE_BY_TMA && threadIdx.x % WARPGROUP == 0) copies_are_done();
    }
    // A block's barriers stay until its neighbours' last arrivals.
    cluster_sync<CLUSTER>();
}
