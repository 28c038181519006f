// Results of `decode_long.cu`: where a row of a task belongs, and the merge of partial results.
//
// A part is the result of one block: ROWS x D sums of weighted values, then the largest score of
// each row, then the sum of its weights. Parts are added in order, whichever block ends last.

// e^(from - to), where both may be -infinity.
__device__ __forceinline__ f32 shrink(f32 from, f32 to) {
    return from == to ? 1.0f : __expf(from - to);
}

// Reads past the L1, which may hold the bytes of an earlier launch.
__device__ __forceinline__ f32 read_far(const f32* at) {
    f32 x;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(at) : "memory");
    return x;
}
__device__ __forceinline__ float4 read_far4(const f32* at) {
    float4 x;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(at)
                 : "memory");
    return x;
}

// A task: a sequence, a key head, and the rows of it from `skipped` on, of `rows` in all.
struct Place {
    i32 b, head, skipped, rows;
};
__device__ __forceinline__ Place place_of(i32 task, const AttentionShape& s) {
    const i32 matrix = task / PARTS, heads = s.heads / s.group;
    return {matrix / heads, matrix % heads, task % PARTS * ROWS, s.group * s.queries};
}

// One result, from its sum and the sum of weights.
__device__ __forceinline__ void store(Element* out, Sum* lse, const AttentionShape& s,
                                      const Place& p, i32 r, i32 c, f32 sum, f32 weights, f32 top) {
    const i32 row = p.skipped + r;
    if (row >= p.rows) return;
    const i32 h = p.head * s.group + row / s.queries, query = row % s.queries;
    // A sum that is NaN stays NaN.
    const f32 inverse = weights > 0 ? 1 / weights : 0.0f;
    if (out)
        out[p.b * s.out[0] + h * s.out[1] + query * s.out[2] + c * s.out[3]] =
            convert<Element>(sum * inverse);
    if (lse && c == 0)
        lse[p.b * s.lse[0] + h * s.lse[1] + query * s.lse[2]] =
            weights > 0 ? top + logarithm(weights) : -infinity(f32());
}

// Merges the parts of a task. A thread has four channels of a row. Groups of threads share the
// parts, as far as there are threads. `shared` has 6 f32 for each thread.
__device__ __forceinline__ void merge(const f32* parts, f32* shared, Element* out, Sum* lse,
                                      const AttentionShape& s, i32 task) {
    constexpr int QUADS = ROWS * D / 4, GROUPS = THREADS / QUADS > 0 ? THREADS / QUADS : 1;
    constexpr int PASSES = (QUADS + THREADS - 1) / THREADS, AT_ONCE = 16;
    const Place p = place_of(task, s);
    const i32 group = threadIdx.x / QUADS;
    parts += (i64)task * SPLIT * PART;
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        const i32 quad = threadIdx.x % QUADS + pass * THREADS;
        if (quad >= QUADS) break;
        const i32 r = quad * 4 / D;
        f32 top = -infinity(f32()), weights = 0, sum[4] = {0, 0, 0, 0};
        for (i32 first = group; first < SPLIT; first += GROUPS * AT_ONCE) {
            float4 x[AT_ONCE];
            f32 tops[AT_ONCE], totals[AT_ONCE], now = top;
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const i32 part = first + i * GROUPS;
                tops[i] = -infinity(f32()), totals[i] = 0, x[i] = {0, 0, 0, 0};
                if (part < SPLIT) {
                    const f32* const from = parts + part * PART;
                    x[i] = read_far4(from + quad * 4);
                    tops[i] = read_far(from + ROWS * D + r);
                    totals[i] = read_far(from + ROWS * D + ROWS + r);
                }
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) now = fmaxf(now, tops[i]);
            const f32 before = shrink(top, now);
            weights *= before;
#pragma unroll
            for (int c = 0; c < 4; ++c) sum[c] *= before;
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const f32 by = shrink(tops[i], now);
                weights = fmaf(totals[i], by, weights);
                sum[0] = fmaf(x[i].x, by, sum[0]), sum[1] = fmaf(x[i].y, by, sum[1]);
                sum[2] = fmaf(x[i].z, by, sum[2]), sum[3] = fmaf(x[i].w, by, sum[3]);
            }
            top = now;
        }
        if (GROUPS > 1) {
            f32* const own = shared + threadIdx.x * 6;
#pragma unroll
            for (int c = 0; c < 4; ++c) own[c] = sum[c];
            own[4] = top, own[5] = weights;
            __syncthreads();
        }
        // Threads past the last whole group, too, have no result.
        if (group > 0) return;
        if (GROUPS > 1) {
            const f32* const own = shared + threadIdx.x * 6;
            f32 now = -infinity(f32());
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) now = fmaxf(now, own[g * QUADS * 6 + 4]);
            weights = 0;
#pragma unroll
            for (int c = 0; c < 4; ++c) sum[c] = 0;
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                const f32* const other = own + g * QUADS * 6;
                const f32 by = shrink(other[4], now);
                weights = fmaf(other[5], by, weights);
#pragma unroll
                for (int c = 0; c < 4; ++c) sum[c] = fmaf(other[c], by, sum[c]);
            }
            top = now;
        }
#pragma unroll
        for (int c = 0; c < 4; ++c)
            store(out, lse, s, p, r, quad * 4 % D + c, sum[c], weights, top);
    }
}
