// Products of few rows on Hopper's tensor cores: y^T = w^T x^T, so that outputs fill the 64 rows of
// a matrix instruction, and rows of x are its few columns.
//
// In a chain of layers what counts is the time from the last result of one to the first of the
// next. So the contracted index is cut among the blocks of a cluster, which fill the device, and
// again among the warpgroups of a block, whose instructions would wait for each other otherwise;
// weights that no step of the call writes are copied while the kernels before this one still run.
// Sums meet in shared memory, of a block, then of the block of the cluster that stores them, always
// in the same order.
//
// SPLIT: blocks of a cluster. GROUPS: warpgroups, each with every GROUPS-th tile of a block's part.
// STAGES: tiles in flight, a multiple of GROUPS. RHS_BY_K: contracted index contiguous in the
// weights. SETTLED: no step of the call writes them. From the printed text: wgmma (one
// instruction), Slots, epilogue, store_result.

#include "hopper.cuh"

constexpr int ELEMENT_BYTES = sizeof(LHS);
constexpr int TILE_K = 128 / ELEMENT_BYTES;
constexpr int STEPS = 4; // instructions of 32 bytes along k in a tile
constexpr int OUTPUTS = 64;
constexpr int COLUMNS = (M + 7) / 8 * 8; // rows of x, as columns of an instruction
constexpr int WEIGHT_BYTES = OUTPUTS * 128;
constexpr int STAGE_BYTES = WEIGHT_BYTES + COLUMNS * 128;
constexpr int TILES_K = (int)((K + TILE_K - 1) / TILE_K);
constexpr int OWN = (TILES_K + SPLIT - 1) / SPLIT; // tiles of a block
constexpr int ACTIVE = OWN < GROUPS ? OWN : GROUPS;
constexpr int FOURS = COLUMNS / 8 * WARPGROUP; // of a block's sums, as threads have them
constexpr int SHARE = FOURS / SPLIT;           // of these that a block stores

typedef Operand<ELEMENT_BYTES, RHS_BY_K, OUTPUTS> Weights;
typedef Operand<ELEMENT_BYTES, true, COLUMNS> Inputs;

struct alignas(16) Four {
    f32 at[4];
};

__device__ __forceinline__ Four load_four(u32 from) {
    Four four;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(four.at[0]), "=f"(four.at[1]), "=f"(four.at[2]), "=f"(four.at[3])
                 : "r"(from)
                 : "memory");
    return four;
}
__device__ __forceinline__ void store_four(u32 to, const Four& four) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(four.at[0]),
                 "f"(four.at[1]), "f"(four.at[2]), "f"(four.at[3])
                 : "memory");
}
// To the same place in block `rank` of the cluster.
__device__ __forceinline__ void send_four(u32 to, u32 rank, const Four& four) {
    asm volatile(
        "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
        "st.shared::cluster.v4.f32 [remote], {%2, %3, %4, %5};\n}" ::"r"(to),
        "r"(rank), "f"(four.at[0]), "f"(four.at[1]), "f"(four.at[2]), "f"(four.at[3])
        : "memory");
}

// The sum of `Count` fours that are `step` bytes apart.
template <int Count>
__device__ __forceinline__ Four total(u32 from, u32 step) {
    Four sum = load_four(from);
#pragma unroll
    for (int i = 1; i < Count; ++i) {
        const Four next = load_four(from + i * step);
#pragma unroll
        for (int j = 0; j < 4; ++j) sum.at[j] += next.at[j];
    }
    return sum;
}

// Calls `each(row, output, j)` for the four sums of a place: of two rows of x, by an output and the
// eighth after it.
template <class Each>
__device__ __forceinline__ void of_four(int place, int first_output, const Each& each) {
    const int thread = place % WARPGROUP;
    const int row = place / WARPGROUP * 8 + thread % 4 * 2,
              output = first_output + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int r = row + j % 2, c = output + j / 2 * 8;
        if (r < M && c < N) each(r, c, j);
    }
}

extern "C" __global__ void
#if SPLIT > 1
__cluster_dims__(SPLIT, 1, 1)
#endif
__launch_bounds__(GROUPS * WARPGROUP, 2)
gemm_few(const __grid_constant__ TensorMap weight_map, const __grid_constant__ TensorMap input_map,
         const __grid_constant__ Slots slots) {
    extern __shared__ u8 dynamic[];
    __shared__ alignas(8) u64 full[STAGES];
    let_next_begin();
    const u32 base = (shared_address(dynamic) + 1023) & ~1023u,
              shares = base + STAGES * STAGE_BYTES;
    const u32 filled = shared_address(full), rank = cluster_rank<SPLIT>();
    const int group = threadIdx.x / WARPGROUP, thread = threadIdx.x % WARPGROUP;
    const int output = (int)blockIdx.x / SPLIT * OUTPUTS;
    const int first = (int)rank * OWN, count = min(OWN, TILES_K - first);
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) barrier_init(filled + s * 8, 1);
        barriers_are_set();
    }
    __syncthreads();
    // The other blocks have begun when this is waited for, before anything is sent to them.
    if constexpr (SPLIT > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");

    const auto copy_weights = [&](int tile) {
        const int stage = tile % STAGES, k = (first + tile) * TILE_K;
        Weights::copy<1>(base + stage * STAGE_BYTES, weight_map, filled + stage * 8, output, k, 0);
    };
    const auto copy_inputs = [&](int tile) {
        const int stage = tile % STAGES, k = (first + tile) * TILE_K;
        Inputs::copy<1>(base + stage * STAGE_BYTES + WEIGHT_BYTES, input_map, filled + stage * 8, 0,
                        k, 0);
    };
    const int ahead = min(count, STAGES);
    if (thread == 0) {
        for (int tile = group; tile < ahead; tile += GROUPS) {
            barrier_expect(filled + tile * 8, STAGE_BYTES);
            if (SETTLED) copy_weights(tile);
            else Weights::ask(weight_map, output, (first + tile) * TILE_K, 0);
        }
        // Those of the second turn come from near by then.
        for (int tile = STAGES + group; tile < min(count, 2 * STAGES); tile += GROUPS)
            Weights::ask(weight_map, output, (first + tile) * TILE_K, 0);
    }
    for (int place = threadIdx.x; place < SHARE; place += GROUPS * WARPGROUP)
        of_four((int)rank * SHARE + place, output,
                [&](int r, int c, int) { prefetch(slots, 0, r, c); });
    wait_for_previous();
    if (thread == 0) {
        for (int tile = group; tile < ahead; tile += GROUPS) {
            if (!SETTLED) copy_weights(tile);
            copy_inputs(tile);
        }
    }

    f32 sums[COLUMNS / 2];
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) sums[i] = 0.0f;
    for (int tile = group; tile < count; tile += GROUPS) {
        const int stage = tile % STAGES;
        barrier_wait(filled + stage * 8, tile / STAGES & 1);
        const u64 left = Weights::descriptor(base + stage * STAGE_BYTES);
        const u64 right = Inputs::descriptor(base + stage * STAGE_BYTES + WEIGHT_BYTES);
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) fence_sum(sums[i]);
        products_begin();
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
            wgmma(sums, left + step * Weights::STEP, right + step * Inputs::STEP, 1);
        products_commit();
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) fence_sum(sums[i]);
        products_wait<0>();
        if (OWN > STAGES && tile + STAGES < count) {
            named_sync<1>(group, WARPGROUP);
            if (thread == 0) {
                barrier_expect(filled + stage * 8, STAGE_BYTES);
                copy_weights(tile + STAGES);
                copy_inputs(tile + STAGES);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) fence_sum(sums[i]);

    // Each warpgroup's sums take the place of its first tile, which all its warps have read by now.
    if (group < ACTIVE) {
        named_sync<1>(group, WARPGROUP);
#pragma unroll
        for (int i = 0; i < COLUMNS / 8; ++i) {
            const Four four = {sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]};
            store_four(base + group * STAGE_BYTES + (i * WARPGROUP + thread) * 16, four);
        }
    }
    __syncthreads();
    if constexpr (SPLIT > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    const auto finish = [&](int place, const Four& four) {
        of_four(place, output, [&](int r, int c, int j) {
            const SUM sum[1] = {four.at[j]};
            OUT out[1];
            epilogue<1>(slots, 0, r, c, sum, 1, out);
            store_result<1>(slots, 0, r, c, out, 1);
        });
    };
    for (int place = threadIdx.x; place < FOURS; place += GROUPS * WARPGROUP) {
        const Four sum = total<ACTIVE>(base + place * 16, STAGE_BYTES);
        if constexpr (SPLIT > 1)
            send_four(shares + (rank * SHARE + place % SHARE) * 16, place / SHARE, sum);
        else finish(place, sum);
    }
    if constexpr (SPLIT > 1) {
        cluster_sync<SPLIT>();
        for (int place = threadIdx.x; place < SHARE; place += GROUPS * WARPGROUP)
            finish((int)rank * SHARE + place, total<SPLIT>(shares + place * 16, SHARE * 16));
    }
}
