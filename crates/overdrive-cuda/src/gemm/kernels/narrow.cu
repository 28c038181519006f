// A product of few columns: a block for each row, whose threads share the contracted index
// (split-K).
//
// Such a product has almost no arithmetic. Its bound is how long one thread reads. So the sums of a
// row are cut among as many threads as a block may have. They meet in a tree, in the same order in
// every call.
//
// LHS RHS: element types. SUM: the type of sums. M N K. LHS_ROW LHS_COL RHS_ROW RHS_COL: strides in
// elements. LHS_BATCH RHS_BATCH: functions of the batch index. THREADS: of a block, whole warps.
// AT_ONCE: neighbours of a row of the right operand that one access reads, where they are
// neighbours. From the printed epilogue: Slots, epilogue.

// spills at most 8 bytes before sm_90, of sixteen columns: an address that is read again after the
// loop.

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_narrow(const LHS* lhs, const RHS* rhs, const Slots slots) {
    const i32 row = blockIdx.x, thread = threadIdx.x;
    // Right operands are mostly weights, far away: they set out while the kernel before this one
    // still runs.
    for (i64 k = (i64)row * THREADS + thread; k < K; k += (i64)gridDim.x * THREADS) {
#pragma unroll
        for (int j = 0; j < N; j += RHS_COL == 1 ? N : 1)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(rhs + rhs_batch(blockIdx.y) +
                                                          k * (i64)RHS_ROW + j * (i64)RHS_COL));
    }
    after_previous();
    __shared__ SUM parts[THREADS / 32][N];
    for (u32 batch = blockIdx.y; batch < BATCH; batch += gridDim.y) {
        const LHS* const a = lhs + lhs_batch(batch) + row * (i64)LHS_ROW;
        const RHS* const b = rhs + rhs_batch(batch);
        SUM sums[N];
#pragma unroll
        for (int j = 0; j < N; ++j) sums[j] = convert<SUM>(0);
#pragma unroll 4
        for (i64 k = thread; k < K; k += THREADS) {
            RHS right[N];
            if constexpr (RHS_COL == 1) load<AT_ONCE>(right, b + k * (i64)RHS_ROW);
            else gather(right, b + k * (i64)RHS_ROW, RHS_COL);
            const SUM left = convert<SUM>(a[k * (i64)LHS_COL]);
#pragma unroll
            for (int j = 0; j < N; ++j)
                sums[j] = op_add(sums[j], op_mul(left, convert<SUM>(right[j])));
        }
#pragma unroll
        for (int j = 0; j < N; ++j) {
#pragma unroll
            for (int mask = 1; mask < 32; mask *= 2)
                sums[j] = op_add(sums[j], shuffled(sums[j], mask));
        }
        if (thread % 32 == 0) {
#pragma unroll
            for (int j = 0; j < N; ++j) parts[thread / 32][j] = sums[j];
        }
        __syncthreads();
        if (thread < N) {
            SUM sum[1] = {parts[0][thread]};
            for (int warp = 1; warp < THREADS / 32; ++warp)
                sum[0] = op_add(sum[0], parts[warp][thread]);
            OUT out[1];
            epilogue<1>(slots, batch, row, thread, sum, 1, out);
            store_result<1>(slots, batch, row, thread, out, 1);
        }
        __syncthreads();
    }
}
