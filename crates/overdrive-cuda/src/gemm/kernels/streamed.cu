// Products of few rows that stream their weights. A warp takes whole rows of weights, which are
// contiguous, and multiplies them by the rows of x in shared memory.
//
// Such a product is as fast as memory. Each warp keeps pieces of its rows under way in a ring of
// its own. A lane reads only what it has copied itself, so no thread waits for another. The first
// pieces set out while the kernels before this one still run. The ring goes on from row to row, so
// it is never empty before the last.
//
// Several products of one x are parts of one grid, one behind the other. A warp may do two of them
// at the same output (a gate and the product that it gates). It stores one after the other, and a
// lane reads only results that it has stored itself. With LEAD each block computes the rows of x by
// the loop that makes them, while its weights are under way.
//
// THREADS: of a block. STAGES: pieces of a warp under way. EACH: copies of 16 bytes that a lane
// makes of a piece. ROW_BYTES: of x, in whole lines. GROUPS: outputs of all parts, those of the
// same warp counted once. SETTLED: no step of the call writes the weights. LEAD: whether a loop
// makes x. The printed text defines Weights, Given, the macros LEAD_ROWS and ASK, and the functions
// parts_of, row_of, store_of and ask_of.

constexpr int UNIT = 16 / (int)sizeof(RHS); // elements of a lane's copy
constexpr int UNITS = (int)(K / UNIT);      // of a row
constexpr int PIECE = 32 * EACH;            // units
constexpr int PIECES = (UNITS + PIECE - 1) / PIECE; // of a row
constexpr int WARPS = THREADS / 32;

// The way of a warp over its rows of weights, piece by piece. Rows of a block are neighbours, which
// memory reads faster. Blocks have the same number of rows but for one.
struct Way {
    int group, end, part, piece;

    __device__ __forceinline__ Way() : part(0), piece(0) {
        constexpr i64 ALL = GROUPS;
        end = (int)(ALL * (blockIdx.x + 1) / gridDim.x);
        group = (int)(ALL * blockIdx.x / gridDim.x) + (int)threadIdx.x / 32;
    }
    __device__ __forceinline__ bool is_over() const { return group >= end; }
    __device__ __forceinline__ bool ends_row() const { return piece == PIECES - 1; }
    __device__ __forceinline__ void next() {
        if (++piece < PIECES) return;
        piece = 0;
        if (++part < parts_of(group)) return;
        part = 0;
        group += WARPS;
    }
};

__device__ __forceinline__ void ask_for(const void* from, int bytes) {
    for (int at = threadIdx.x * 128; at < bytes; at += THREADS * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const u8*)from + at));
}

extern "C" __global__ void __launch_bounds__(THREADS, BESIDE)
    gemm_streamed(const LHS* x, const __grid_constant__ Weights weights,
                  const __grid_constant__ Given given) {
    extern __shared__ __align__(128) u8 dynamic[];
    let_next_begin();
    const int lane = threadIdx.x % 32;
    LHS* const rows = (LHS*)dynamic;
    uint4* const ring =
        (uint4*)(dynamic + ROW_BYTES) + threadIdx.x / 32 * (STAGES * PIECE) + lane;
    const u32 ring_place = (u32)__cvta_generic_to_shared(ring);
    Way way, ahead;
    const auto set_out = [&](int stage) {
        if (!ahead.is_over()) {
            const RHS* const row = row_of(weights, ahead.group, ahead.part);
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                const int unit = ahead.piece * PIECE + i * 32 + lane;
                if (UNITS % PIECE == 0 || unit < UNITS)
                    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                                     ring_place + (stage * PIECE + i * 32) * 16),
                                 "l"(row + unit * UNIT)
                                 : "memory");
            }
            ahead.next();
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    if (SETTLED)
        for (int stage = 0; stage < STAGES; ++stage) set_out(stage);
    ASK(given.lead)
    if (!way.is_over() && lane < M)
        for (int part = 0; part < parts_of(way.group); ++part)
            ask_of(given, way.group, part, lane);
    wait_for_previous();
    if (!SETTLED)
        for (int stage = 0; stage < STAGES; ++stage) set_out(stage);
    if constexpr (LEAD) {
        LEAD_ROWS(dynamic, given.lead);
    } else {
        for (int at = threadIdx.x; at < M * UNITS; at += THREADS)
            ((uint4*)dynamic)[at] =
                *(const uint4*)(x + at / UNITS * (i64)LHS_ROW + at % UNITS * UNIT);
    }
    __syncthreads();
    SUM sums[M] = {};
    for (int stage = 0; !way.is_over(); stage = stage + 1 < STAGES ? stage + 1 : 0) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int unit = way.piece * PIECE + i * 32 + lane;
            if (UNITS % PIECE != 0 && unit >= UNITS) continue;
            RHS weight[UNIT];
            load<UNIT>(weight, (const RHS*)(ring + stage * PIECE + i * 32));
#pragma unroll
            for (int m = 0; m < M; ++m) {
                LHS left[UNIT];
                load<UNIT>(left, rows + (m * UNITS + unit) * UNIT);
#pragma unroll
                for (int j = 0; j < UNIT; ++j)
                    sums[m] = fmaf(convert<SUM>(left[j]), convert<SUM>(weight[j]), sums[m]);
            }
        }
        set_out(stage);
        if (way.ends_row()) {
#pragma unroll
            for (int m = 0; m < M; ++m) {
#pragma unroll
                for (int mask = 16; mask > 0; mask /= 2)
                    sums[m] += __shfl_xor_sync(~0u, sums[m], mask);
                if (lane == m) store_of(given, way.group, way.part, m, sums[m]);
                sums[m] = 0.0f;
            }
        }
        way.next();
    }
}
