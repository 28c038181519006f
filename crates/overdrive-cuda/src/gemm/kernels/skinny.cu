// Skinny GEMMs on Hopper's tensor cores. They compute y^T = w^T x^T: outputs fill the 64 rows of a
// matrix instruction, and rows of x are its few columns.
//
// In a chain of layers the time from the last result of one layer to the first of the next counts.
// Three measures make it short:
//
// - The contracted index is cut among the blocks of a cluster, which fill the device.
// - It is cut again among the warpgroups of a block, whose instructions would otherwise wait for
//   each other.
// - Weights that no step of the call writes are copied while the kernels before this one still run.
//
// Sums meet in the block's shared memory, then in that of the cluster's block that stores them,
// always in the same order.
//
// Several products of one x are parts of one grid. A block may do two of them in the same tile (a
// gate and the product that it gates), each by half of the warpgroups. It stores one after the
// other, and a thread reads only results that it has stored itself. With LEAD each block computes
// the rows of x by the loop that makes them, while its weights are under way.
//
// SPLIT: blocks of a cluster. PARTS: the most parts of a block. GROUPS: warpgroups; each takes
// every GROUPS-th tile of a part. STAGES: tiles of a part in flight, a multiple of its warpgroups.
// RHS_BY_K: contracted index contiguous in the weights. PROMOTE: sums of fp8 leave the tensor
// core's narrow accumulator after each tile. SETTLED: no step of the call writes them.
// LEAD: whether a loop makes x. The printed text defines wgmma (one instruction), Maps, Given, and
// the macros LEAD_ROWS, ASK and BODIES. For each part it defines a type that prefetches and stores.

#include "hopper.cuh"

constexpr int ELEMENT_BYTES = sizeof(LHS);
constexpr int TILE_K = 128 / ELEMENT_BYTES;
constexpr int STEPS = 4; // instructions of 32 bytes along k in a tile
constexpr int OUTPUTS = 64;
constexpr int COLUMNS = (M + 7) / 8 * 8; // rows of x, as columns of an instruction
constexpr int WEIGHT_BYTES = OUTPUTS * 128;
constexpr int INPUT_BYTES = COLUMNS * 128;
constexpr int STAGE_BYTES = WEIGHT_BYTES + (LEAD ? 0 : INPUT_BYTES);
constexpr int TILES_K = (int)((K + TILE_K - 1) / TILE_K);
constexpr int OWN = (TILES_K + SPLIT - 1) / SPLIT; // tiles of a block
constexpr int OF_PART = GROUPS / PARTS;         // warpgroups
constexpr int ACTIVE = OWN < OF_PART ? OWN : OF_PART;
constexpr int FOURS = COLUMNS / 8 * WARPGROUP; // of a block's sums, as threads have them
constexpr int SHARE = FOURS / SPLIT;           // of these that a block stores
constexpr int SHARE_BYTES = SPLIT > 1 ? FOURS * 16 : 0;
constexpr int PART_BYTES = STAGES * STAGE_BYTES; // of one part's tiles
constexpr int THREADS = GROUPS * WARPGROUP;

typedef Operand<ELEMENT_BYTES, RHS_BY_K, OUTPUTS> Weights;
typedef Operand<ELEMENT_BYTES, true, COLUMNS> Inputs;

struct alignas(16) Four {
    SUM at[4];
};

__device__ __forceinline__ Four load_four(u32 from) {
    u32 bits[4];
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
                 : "r"(from)
                 : "memory");
    Four four;
#pragma unroll
    for (int i = 0; i < 4; ++i) four.at[i] = bitcast<SUM>(bits[i]);
    return four;
}
__device__ __forceinline__ void store_four(u32 to, const Four& four) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(bitcast<u32>(four.at[0])), "r"(bitcast<u32>(four.at[1])),
                 "r"(bitcast<u32>(four.at[2])), "r"(bitcast<u32>(four.at[3]))
                 : "memory");
}
// To the same place in block `rank` of the cluster.
__device__ __forceinline__ void send_four(u32 to, u32 rank, const Four& four) {
    asm volatile(
        "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
        "st.shared::cluster.v4.u32 [remote], {%2, %3, %4, %5};\n}" ::"r"(to),
        "r"(rank), "r"(bitcast<u32>(four.at[0])), "r"(bitcast<u32>(four.at[1])),
        "r"(bitcast<u32>(four.at[2])), "r"(bitcast<u32>(four.at[3]))
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

// The place of a thread.
struct Here {
    u32 rank;
    int group, thread, first, count; // tiles of the block

    __device__ __forceinline__ Here()
        : rank(cluster_rank<SPLIT>()), group(threadIdx.x / WARPGROUP),
          thread(threadIdx.x % WARPGROUP), first((int)rank * OWN),
          count(min(OWN, TILES_K - first)) {}
};

// One product in a block, whose tiles lie at `base` behind the barriers at `filled`.
template <class Part>
struct Product {
    const TensorMap &weight_map, &input_map;
    const typename Part::Buffers& slots;
    u32 base, filled, shares;
    int output; // the first of the tile
    int place;  // of the block's parts

    // The number of a warpgroup among those that multiply; none of the others'.
    __device__ __forceinline__ bool is_own(const Here& here, int& mine) const {
        mine = here.group - place * OF_PART;
        return mine >= 0 && mine < OF_PART;
    }

    // Calls `each(row, output, j)` for the four sums of a place: of two rows of x, by an output and
    // the eighth after it.
    template <class Each>
    __device__ __forceinline__ void of_four(int place, const Each& each) const {
        const int thread = place % WARPGROUP;
        const int row = place / WARPGROUP * 8 + thread % 4 * 2,
                  out = output + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int r = row + j % 2, c = out + j / 2 * 8;
            if (r < M && c < Part::EXTENT) each(r, c, j);
        }
    }
    __device__ __forceinline__ void copy_weights(const Here& here, int tile) const {
        const int stage = tile % STAGES, k = (here.first + tile) * TILE_K;
        Weights::template copy<1>(base + stage * STAGE_BYTES, weight_map, filled + stage * 8,
                                  output, k, 0);
    }
    __device__ __forceinline__ void copy_inputs(const Here& here, int tile) const {
        const int stage = tile % STAGES, k = (here.first + tile) * TILE_K;
        if constexpr (!LEAD)
            Inputs::template copy<1>(base + stage * STAGE_BYTES + WEIGHT_BYTES, input_map,
                                     filled + stage * 8, 0, k, 0);
    }
    __device__ __forceinline__ void ask_for_weights(const Here& here, int tile) const {
        Weights::ask(weight_map, output, (here.first + tile) * TILE_K, 0);
    }

    // Before the kernels before this one are over.
    __device__ __forceinline__ void set_out(const Here& here) const {
        int mine;
        if (is_own(here, mine) && here.thread == 0) {
            for (int tile = mine; tile < min(here.count, STAGES); tile += OF_PART) {
                barrier_expect(filled + tile * 8, STAGE_BYTES);
                if (SETTLED) copy_weights(here, tile);
                else ask_for_weights(here, tile);
            }
            // Those of the second turn come from near by then.
            for (int tile = STAGES + mine; tile < min(here.count, 2 * STAGES); tile += OF_PART)
                ask_for_weights(here, tile);
        }
        for (int place = threadIdx.x; place < SHARE; place += THREADS)
            of_four((int)here.rank * SHARE + place,
                    [&](int r, int c, int) { Part::ask(slots, r, c); });
    }
    __device__ __forceinline__ void take_inputs(const Here& here) const {
        int mine;
        if (!is_own(here, mine) || here.thread != 0) return;
        for (int tile = mine; tile < min(here.count, STAGES); tile += OF_PART) {
            if (!SETTLED) copy_weights(here, tile);
            copy_inputs(here, tile);
        }
    }

    // The sums of a block, in the places of the warpgroups' first tiles. `led` are the tiles of x.
    __device__ __forceinline__ void multiply(const Here& here, u32 led) const {
        int mine;
        if (!is_own(here, mine)) return;
        SUM sums[COLUMNS / 2] = {};
        [[maybe_unused]] SUM totals[COLUMNS / 2] = {};
        for (int tile = mine; tile < here.count; tile += OF_PART) {
            const int stage = tile % STAGES;
            barrier_wait(filled + stage * 8, tile / STAGES & 1);
            const u64 left = Weights::descriptor(base + stage * STAGE_BYTES);
            const u64 right = Inputs::descriptor(
                LEAD ? led + tile * INPUT_BYTES : base + stage * STAGE_BYTES + WEIGHT_BYTES);
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; ++i) fence_sum(sums[i]);
            products_begin();
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
                wgmma(sums, left + step * Weights::STEP, right + step * Inputs::STEP,
                      PROMOTE ? step : 1);
            products_commit();
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; ++i) fence_sum(sums[i]);
            products_wait<0>();
            if constexpr (PROMOTE) {
#pragma unroll
                for (int i = 0; i < COLUMNS / 2; ++i) {
                    fence_sum(sums[i]);
                    totals[i] += sums[i];
                }
            }
            if (OWN > STAGES && tile + STAGES < here.count) {
                named_sync<1>(here.group, WARPGROUP);
                if (here.thread == 0) {
                    barrier_expect(filled + stage * 8, STAGE_BYTES);
                    copy_weights(here, tile + STAGES);
                    copy_inputs(here, tile + STAGES);
                    if (tile + 2 * STAGES < here.count) ask_for_weights(here, tile + 2 * STAGES);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) {
            fence_sum(sums[i]);
            if constexpr (PROMOTE) sums[i] = totals[i];
        }
        // All warps of a warpgroup have read its first tile by now.
        if (mine < ACTIVE) {
            named_sync<1>(here.group, WARPGROUP);
#pragma unroll
            for (int i = 0; i < COLUMNS / 8; ++i) {
                const Four four = {sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]};
                store_four(base + mine * STAGE_BYTES + (i * WARPGROUP + here.thread) * 16, four);
            }
        }
    }

    __device__ __forceinline__ void store(int place, const Four& four) const {
        of_four(place, [&](int r, int c, int j) { Part::store(slots, r, c, four.at[j]); });
    }
    // Stores the sums of a block that is alone, or sends them to the blocks that store them.
    __device__ __forceinline__ void hand_over(const Here& here) const {
        for (int place = threadIdx.x; place < FOURS; place += THREADS) {
            const Four sum = total<ACTIVE>(base + place * 16, STAGE_BYTES);
            if constexpr (SPLIT > 1)
                send_four(shares + (here.rank * SHARE + place % SHARE) * 16, place / SHARE, sum);
            else store(place, sum);
        }
    }
    // Stores the shares that the blocks of a cluster have sent.
    __device__ __forceinline__ void store_shares(const Here& here) const {
        for (int place = threadIdx.x; place < SHARE; place += THREADS)
            store((int)here.rank * SHARE + place, total<SPLIT>(shares + place * 16, SHARE * 16));
    }
};

// The tiles of a block's part of x, from its rows one behind the other: as TMA would bring them.
__device__ __forceinline__ void spread(const Here& here, u32 led, u32 rows) {
    constexpr int UNIT = 16 / ELEMENT_BYTES, UNITS = (int)(K / UNIT);
    for (int at = threadIdx.x; at < M * here.count * 8; at += THREADS) {
        const int row = at / (here.count * 8), unit = at % (here.count * 8);
        const int from = here.first * 8 + unit;
        Four four = {};
        if (from < UNITS) four = load_four(rows + (row * UNITS + from) * 16);
        store_four(led + unit / 8 * INPUT_BYTES + row * 128 + ((unit % 8 ^ row % 8) << 4), four);
    }
    fence_shared();
}

// The work of a block for its products: `lead` computes x, where it is not given.
template <class Lead, class... Products>
__device__ __forceinline__ void compute(const Here& here, u32 led, const Lead& lead,
                                        const Products&... products) {
    (products.set_out(here), ...);
    wait_for_previous();
    lead();
    (products.take_inputs(here), ...);
    (products.multiply(here, led), ...);
    __syncthreads();
    if constexpr (SPLIT > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    (products.hand_over(here), ...);
    if constexpr (SPLIT > 1) {
        cluster_sync<SPLIT>();
        (products.store_shares(here), ...);
    }
}

__device__ __forceinline__ void ask_for(const void* from, int bytes) {
    for (int at = threadIdx.x * 128; at < bytes; at += THREADS * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const u8*)from + at));
}

extern "C" __global__ void
#if SPLIT > 1
__cluster_dims__(SPLIT, 1, 1)
#endif
__launch_bounds__(THREADS, 2)
gemm_skinny(const __grid_constant__ TensorMap input_map, const __grid_constant__ Maps maps,
            const __grid_constant__ Given given) {
    extern __shared__ u8 dynamic[];
    __shared__ alignas(8) u64 full[PARTS * STAGES];
    let_next_begin();
    const u32 base = (shared_address(dynamic) + 1023) & ~1023u,
              shares = base + PARTS * PART_BYTES, led = shares + PARTS * SHARE_BYTES;
    const u32 filled = shared_address(full), rows = led + OWN * INPUT_BYTES;
    const Here here;
    if (threadIdx.x == 0) {
        for (int s = 0; s < PARTS * STAGES; ++s) barrier_init(filled + s * 8, 1);
        barriers_are_set();
    }
    __syncthreads();
    // The other blocks have begun when this is waited for, before anything is sent to them.
    if constexpr (SPLIT > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    const int tile = (int)blockIdx.x / SPLIT;
    const auto product = [&](auto part, int id, int place, const auto& slots, int first) {
        return Product<decltype(part)>{maps.at[id],
                                       input_map,
                                       slots,
                                       base + place * PART_BYTES,
                                       filled + place * STAGES * 8,
                                       shares + place * SHARE_BYTES,
                                       (tile - first) * OUTPUTS,
                                       place};
    };
    const auto before = [&] {
        LEAD_ROWS(dynamic + (rows - shared_address(dynamic)), given.lead);
        if constexpr (LEAD) {
            __syncthreads();
            spread(here, led, rows);
            __syncthreads();
        }
    };
    ASK(given.lead)
    BODIES
}
