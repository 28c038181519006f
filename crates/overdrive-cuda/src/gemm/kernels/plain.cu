// A product of any strides and types: 64 x 64 sums a block, 4 x 4 a thread, operands through shared
// memory.
//
// Every product can run here, so it is written to be right; speed is the business of the others.
// The operands' own strides are walked, so loads are coalesced only where the shorter stride runs
// along the threads.
//
// LHS RHS: element types. SUM: the type of sums. M N K. LHS_ROW LHS_COL RHS_ROW RHS_COL: strides in
// elements. LHS_BATCH RHS_BATCH: functions of the batch index. From the printed epilogue: Slots,
// epilogue.

// spills at most 256 bytes around the epilogue of f64 sums, whose functions take all registers.

constexpr int TILE = 64, DEPTH = 16, THREADS = 256, EACH = 4;

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_plain(const LHS* lhs, const RHS* rhs, const Slots slots) {
    __shared__ SUM left[DEPTH][TILE + 1], right[DEPTH][TILE + 1];
    after_previous();
    const i32 tiles = (N + TILE - 1) / TILE;
    const i32 row0 = blockIdx.x / tiles * TILE, col0 = blockIdx.x % tiles * TILE;
    const i32 thread = threadIdx.x, across = thread % 16, down = thread / 16;
    for (u32 batch = blockIdx.y; batch < BATCH; batch += gridDim.y) {
        const LHS* const a = lhs + lhs_batch(batch);
        const RHS* const b = rhs + rhs_batch(batch);
        SUM sums[EACH][EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i)
#pragma unroll
            for (int j = 0; j < EACH; ++j) sums[i][j] = convert<SUM>(0);
        for (i64 k0 = 0; k0 < K; k0 += DEPTH) {
#pragma unroll
            for (int part = 0; part < TILE * DEPTH / THREADS; ++part) {
                const int at = part * THREADS + thread;
                // Threads side by side read along the shorter stride.
                const int i = LHS_COL == 1 ? at / DEPTH : at % TILE,
                          lk = LHS_COL == 1 ? at % DEPTH : at / TILE;
                const int j = RHS_COL == 1 ? at % TILE : at / DEPTH,
                          rk = RHS_COL == 1 ? at / TILE : at % DEPTH;
                const bool has_left = row0 + i < M && k0 + lk < K,
                           has_right = col0 + j < N && k0 + rk < K;
                left[lk][i] =
                    has_left ? convert<SUM>(a[(row0 + i) * (i64)LHS_ROW + (k0 + lk) * (i64)LHS_COL])
                             : convert<SUM>(0);
                right[rk][j] =
                    has_right
                        ? convert<SUM>(b[(k0 + rk) * (i64)RHS_ROW + (col0 + j) * (i64)RHS_COL])
                        : convert<SUM>(0);
            }
            __syncthreads();
#pragma unroll
            for (int k = 0; k < DEPTH; ++k) {
#pragma unroll
                for (int i = 0; i < EACH; ++i)
#pragma unroll
                    for (int j = 0; j < EACH; ++j)
                        sums[i][j] = op_add(sums[i][j], op_mul(left[k][down * EACH + i],
                                                               right[k][across * EACH + j]));
            }
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const i32 row = row0 + down * EACH + i, col = col0 + across * EACH;
            if (row < M && col < N) {
                OUT out[EACH];
                epilogue<EACH>(slots, batch, row, col, sums[i], N - col, out);
                store_result<EACH>(slots, batch, row, col, out, N - col);
            }
        }
    }
}
