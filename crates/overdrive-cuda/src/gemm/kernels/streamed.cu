// Products of few rows that stream their weights. Warps that share a row of weights are a team. A
// lane has the same units of each row, so that it holds those of x in registers.
//
// Such a product is as fast as memory. If x were read from shared memory beside each weight, it
// would take as much of that memory's bandwidth as the weights. Each warp keeps rows under way in a
// ring of its own. A lane reads only what it has copied itself, so no thread waits for another
// before sums are folded. The first rows set out while the kernels before this one still run. The
// ring goes on from turn to turn, so it is never empty before the last.
//
// Several products of one x are parts of one grid, one behind the other. An output may have rows of
// two of them (a gate and the product that it gates). One thread stores one after the other, and
// reads only results that it has stored itself. With LEAD each block computes the rows of x by the
// loop that makes them, while its weights are under way.
//
// THREADS: of a block. SLICES: warps of a team. EACH: units of a lane in a row. OUTPUTS, PARTS:
// outputs of a stage, and rows of weights of one. STAGES: stages of a warp under way. ROW_BYTES: of
// x, in whole lines. TURNS: stages of a team until sums are folded. GROUPS: outputs of all parts.
// SETTLED: no step of the call writes the weights. LEAD: whether a loop makes x. HELD: whether a
// lane's x fits into registers. The printed text defines Weights, Given, the macros LEAD_ROWS and
// ASK, and the functions parts_of, row_of, store_of and ask_of.

constexpr int up_to_a_power(int n) {
    int power = 1;
    while (power < n) power *= 2;
    return power;
}
constexpr int UNIT = 16 / (int)sizeof(RHS); // elements of a lane's copy
constexpr int UNITS = (int)(K / UNIT);      // of a row
constexpr int ABREAST = 32 * SLICES;        // units that a team takes at once
constexpr int WARPS = THREADS / 32, TEAMS = WARPS / SLICES;
constexpr int ROWS = OUTPUTS * PARTS;  // rows of weights of a stage
constexpr int STAGE = ROWS * EACH * 32; // units
// Sums of a stage: rows by rows of x, both up to a power of two. Lanes that each is left in.
constexpr int OF_ROW = up_to_a_power(M), SUMS = up_to_a_power(ROWS) * OF_ROW, LEFT = 32 / SUMS;
static_assert(SUMS <= 32);
constexpr int AT_ONCE = TEAMS * OUTPUTS; // outputs of a turn

// The place of the sums that warps share, in two halves that take turns.
struct Folded {
    SUM at[2][WARPS][TURNS * SUMS];
};

__device__ __forceinline__ void ask_for(const void* from, int bytes) {
    for (int at = threadIdx.x * 128; at < bytes; at += THREADS * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const u8*)from + at));
}

// Adds the sums of all lanes. Sum i is left in lanes i LEFT and those behind.
__device__ __forceinline__ SUM fold(SUM (&sums)[SUMS], int lane) {
#pragma unroll
    for (int half = SUMS / 2, mask = 16; half > 0; half /= 2, mask /= 2) {
#pragma unroll
        for (int i = 0; i < SUMS / 2; ++i) {
            if (i >= half) continue;
            const SUM kept = lane & mask ? sums[i + half] : sums[i];
            const SUM given = lane & mask ? sums[i] : sums[i + half];
            sums[i] = kept + __shfl_xor_sync(~0u, given, mask);
        }
    }
#pragma unroll
    for (int mask = LEFT / 2; mask > 0; mask /= 2) sums[0] += __shfl_xor_sync(~0u, sums[0], mask);
    return sums[0];
}

extern "C" __global__ void __launch_bounds__(THREADS, BESIDE)
    gemm_streamed(const LHS* x, const __grid_constant__ Weights weights,
                  const __grid_constant__ Given given) {
    extern __shared__ __align__(128) u8 dynamic[];
    let_next_begin();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int team = warp / SLICES, own = warp % SLICES * 32 + lane;
    LHS* const rows = (LHS*)dynamic;
    Folded& folded = *(Folded*)(dynamic + ROW_BYTES);
    uint4* const ring =
        (uint4*)(dynamic + ROW_BYTES + sizeof(Folded)) + warp * (STAGES * STAGE) + lane;
    const u32 ring_place = (u32)__cvta_generic_to_shared(ring);
    const int first = (int)((i64)GROUPS * blockIdx.x / gridDim.x);
    const int end = (int)((i64)GROUPS * (blockIdx.x + 1) / gridDim.x);
    const auto has = [](int unit) { return UNITS % ABREAST == 0 || unit < UNITS; };
    int ahead = first + team * OUTPUTS;
    const auto set_out = [&](int stage) {
#pragma unroll
        for (int j = 0; j < ROWS; ++j) {
            const int output = ahead + j / PARTS;
            if (output >= end || j % PARTS >= parts_of(output)) continue;
            const RHS* const row = row_of(weights, output, j % PARTS);
#pragma unroll
            for (int e = 0; e < EACH; ++e)
                if (has(own + e * ABREAST))
                    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                                     ring_place + (stage * STAGE + (j * EACH + e) * 32) * 16),
                                 "l"(row + (own + e * ABREAST) * UNIT)
                                 : "memory");
        }
        ahead += AT_ONCE;
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    if (SETTLED)
        for (int stage = 0; stage < STAGES; ++stage) set_out(stage);
    ASK(given.lead)
    if (threadIdx.x / M < TURNS * AT_ONCE && first + (int)threadIdx.x / M < end) {
        const int output = first + threadIdx.x / M;
        for (int part = 0; part < parts_of(output); ++part)
            ask_of(given, output, part, threadIdx.x % M);
    }
    wait_for_previous();
    if (!SETTLED)
        for (int stage = 0; stage < STAGES; ++stage) set_out(stage);
    if constexpr (LEAD) {
        LEAD_ROWS(dynamic, given.lead);
    } else if constexpr (!HELD) {
        for (int at = threadIdx.x; at < M * UNITS; at += THREADS)
            ((uint4*)dynamic)[at] =
                *(const uint4*)(x + at / UNITS * (i64)LHS_ROW + at % UNITS * UNIT);
    }
    if (LEAD || !HELD) __syncthreads();
    SUM held[HELD ? M : 1][HELD ? EACH : 1][UNIT];
    if constexpr (HELD) {
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int e = 0; e < EACH; ++e) {
                const int unit = own + e * ABREAST;
                LHS left[UNIT] = {};
                if (has(unit))
                    load<UNIT>(left, LEAD ? rows + (m * UNITS + unit) * UNIT
                                          : x + m * (i64)LHS_ROW + unit * UNIT);
#pragma unroll
                for (int i = 0; i < UNIT; ++i) held[m][e][i] = convert<SUM>(left[i]);
            }
    }
    int stage = 0, half = 0;
    for (int from = first; from < end; from += TURNS * AT_ONCE, half ^= 1) {
        for (int turn = 0; turn < TURNS; ++turn) {
            if (from + turn * AT_ONCE + team * OUTPUTS >= end) break;
            SUM sums[SUMS] = {};
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
#pragma unroll
            for (int e = 0; e < EACH; ++e) {
                const int unit = own + e * ABREAST;
                if (!has(unit)) continue;
#pragma unroll
                for (int j = 0; j < ROWS; ++j) {
                    RHS weight[UNIT];
                    load<UNIT>(weight, (const RHS*)(ring + stage * STAGE + (j * EACH + e) * 32));
#pragma unroll
                    for (int m = 0; m < M; ++m) {
                        SUM& sum = sums[j * OF_ROW + m];
                        if constexpr (HELD) {
#pragma unroll
                            for (int i = 0; i < UNIT; ++i)
                                sum = fmaf(held[m][e][i], convert<SUM>(weight[i]), sum);
                        } else {
                            LHS left[UNIT];
                            load<UNIT>(left, rows + (m * UNITS + unit) * UNIT);
#pragma unroll
                            for (int i = 0; i < UNIT; ++i)
                                sum = fmaf(convert<SUM>(left[i]), convert<SUM>(weight[i]), sum);
                        }
                    }
                }
            }
            set_out(stage);
            stage = stage + 1 < STAGES ? stage + 1 : 0;
            const SUM sum = fold(sums, lane);
            if (lane % LEFT == 0) folded.at[half][warp][turn * SUMS + lane / LEFT] = sum;
        }
        __syncthreads();
        for (int at = threadIdx.x; at < TURNS * AT_ONCE * M; at += THREADS) {
            const int place = at / M, m = at % M, output = from + place;
            if (output >= end) break;
            const int warps = place / OUTPUTS % TEAMS * SLICES;
            const int sums = place / AT_ONCE * SUMS + place % OUTPUTS * PARTS * OF_ROW + m;
            for (int part = 0; part < parts_of(output); ++part) {
                SUM sum = 0;
#pragma unroll
                for (int slice = 0; slice < SLICES; ++slice)
                    sum += folded.at[half][warps + slice][sums + part * OF_ROW];
                store_of(given, output, part, m, sum);
            }
        }
    }
}
