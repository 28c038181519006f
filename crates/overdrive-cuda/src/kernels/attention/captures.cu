// Gradients of captured tensors that a score function reads.
//
// Pairs of a query and a key add to one element in no fixed order. The sums are of integers, so
// that every launch gives the same bits. One walk over all pairs finds the largest term of each
// capture. A second adds the terms as multiples of a power of two, chosen so that the sum stays
// within 63 bits. Four warps with 16 queries each walk over blocks of KEYS keys, as in `tensor.cu`.
// Scores and dweights are two of the five products of the gradient.
//
// Terms of reads whose index is the same for all pairs of a head are summed in registers first.
// Memory in addition to operands and results is 64 bits for each element of a capture.
//
// Text before gives KEYS, READS with `slopes`, `capture_of` and `is_shared`, and CAPTURED_TENSORS.

constexpr int QUERIES = 64;
constexpr f32 LOG2E = 1.4426950408889634f;

struct Block {
    Element k[KEYS][D + SKEW];
    Element v[KEYS][DV + SKEW];
};
struct Queries {
    Element q[QUERIES][D + SKEW];
    Element dout[QUERIES][DV + SKEW];
};

// `CaptureRows` of captures.rs: strides of delta, and the bits of the largest term.
struct CaptureRows {
    i64 delta[3];
    i32 bits;
};

// The factor on terms of a capture: a power of two, so that the largest term has `bits` bits.
__device__ __forceinline__ f32 unit(u32 largest, i32 bits) {
    return __uint_as_float((u32)(min(127, bits + 126 - (i32)(largest >> 23)) + 127) << 23);
}

// Adds the products of the warp's queries with the rows of a block.
template <int WIDTH>
__device__ __forceinline__ void multiply_rows(f32 (&sums)[KEYS / 8][4],
                                              const u32 (&left)[WIDTH / 16][4],
                                              const Element (&rows)[KEYS][WIDTH + SKEW]) {
    // Quarters (key, c), (key, c + 8), (key + 8, c), (key + 8, c + 8).
    const int lane = threadIdx.x % 32, at_key = lane % 8 + lane / 16 * 8;
    const int at_channel = lane / 8 % 2 * 8;
#pragma unroll
    for (int c = 0; c < WIDTH / 16; c++) {
#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) {
            u32 right[4];
            load(right, &rows[j * 16 + at_key][c * 16 + at_channel]);
            multiply(sums[2 * j], left[c], right[0], right[1]);
            multiply(sums[2 * j + 1], left[c], right[2], right[3]);
        }
    }
}

// `take(read, term, place)` of all pairs of a tile of queries.
template <class Take>
__device__ __forceinline__ void walk(const Element* q, const Element* k, const Element* v,
                                     const Element* dout, const f32* lse, const f32* delta,
                                     const AttentionShape& s, const CaptureRows& rows,
                                     Take take CAPTURES) {
    extern __shared__ __align__(128) unsigned char bytes[];
    Queries& queries = *reinterpret_cast<Queries*>(bytes);
    Block* blocks = reinterpret_cast<Block*>(bytes + sizeof(Queries));
    i32 matrix, tile;
    s.task(blockIdx.x, (s.queries + QUERIES - 1) / QUERIES, matrix, tile);
    const i32 b = matrix / s.heads, h = matrix % s.heads, first = tile * QUERIES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    q += b * s.q[0] + h * s.q[1];
    dout += b * s.out[0] + h * s.out[1];
    k += b * s.k[0] + h / s.group * s.k[1];
    v += b * s.v[0] + h / s.group * s.v[1];
    const i32 steps = (s.seen(min(first + QUERIES, s.queries) - 1) + KEYS - 1) / KEYS;
    copy<QUERIES, D>(queries.q, q, s.q[2], first, s.queries);
    copy<QUERIES, DV>(queries.dout, dout, s.out[2], first, s.queries);
    if (steps > 0) {
        copy<KEYS, D>(blocks[0].k, k, s.k[2], 0, s.keys);
        copy<KEYS, DV>(blocks[0].v, v, s.v[2], 0, s.keys);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");

    // Row r of a fragment is query `row + 8 r`, columns are keys `8 j + 2 (lane % 4)` and the next.
    const i32 row = first + warp * 16 + lane / 4;
    f32 shift[2], less[2];
    i32 seen[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i64 query = row + 8 * r;
        shift[r] = infinity(0.0f), less[r] = 0.0f, seen[r] = 0;
        if (query < s.queries) {
            const f32 sum = lse[b * s.lse[0] + h * s.lse[1] + query * s.lse[2]];
            // A row that sees nothing: its weights are 0.
            if (sum != -infinity(0.0f)) shift[r] = sum;
            less[r] = delta[b * rows.delta[0] + h * rows.delta[1] + query * rows.delta[2]];
            seen[r] = s.seen(query);
        }
    }
    const f32 factor = (f32)s.factor;
    u32 left[D / 16][4], left_dout[DV / 16][4];
    for (i32 step = 0; step < steps; step++) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (step == 0) {
#pragma unroll
            for (int c = 0; c < D / 16; c++)
                load(left[c], &queries.q[warp * 16 + lane % 16][c * 16 + lane / 16 * 8]);
#pragma unroll
            for (int c = 0; c < DV / 16; c++)
                load(left_dout[c], &queries.dout[warp * 16 + lane % 16][c * 16 + lane / 16 * 8]);
        }
        if (step + 1 < steps) {
            Block& next = blocks[(step + 1) % 2];
            copy<KEYS, D>(next.k, k, s.k[2], (step + 1) * KEYS, s.keys);
            copy<KEYS, DV>(next.v, v, s.v[2], (step + 1) * KEYS, s.keys);
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
        const Block& block = blocks[step % 2];
        f32 scores[KEYS / 8][4] = {}, dweights[KEYS / 8][4] = {};
        multiply_rows<D>(scores, left, block.k);
        multiply_rows<DV>(dweights, left_dout, block.v);
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
            const int r = i / 2 % 2;
            const i32 query = row + 8 * r, at = step * KEYS + i / 4 * 8 + lane % 4 * 2 + i % 2;
            f32 slope[READS];
            i64 place[READS];
            const f32 score = slopes(slope, place, scores[i / 4][i % 4] * factor, b, h, query,
                                     at CAPTURED);
            bool shown = at < seen[r];
#ifdef MASK
            shown &= visible(b, h, query, at CAPTURED);
#endif
            f32 weight;
            asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(weight) : "f"((score - shift[r]) * LOG2E));
            shown &= weight != 0.0f;
            f32 dweight = dweights[i / 4][i % 4];
#ifdef DROPS
            dweight *= kept(SEED, ((u64)matrix * s.queries + query) * s.keys + at);
#endif
            const f32 dscore = weight * (dweight - less[r]);
#pragma unroll
            for (int n = 0; n < READS; n++)
                take(n, shown ? dscore * slope[n] : 0.0f, place[n]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) attention_captures_begin(u64* sums, i64 count) {
    after_previous();
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < count; i += (i64)gridDim.x * 256)
        sums[i] = 0;
}

extern "C" __global__ void __launch_bounds__(128)
    attention_captures_largest(const Element* q, const Element* k, const Element* v,
                               const Element* dout, const f32* lse, const f32* delta,
                               u32* largest, const __grid_constant__ AttentionShape s,
                               const __grid_constant__ CaptureRows rows CAPTURES) {
    after_previous();
    // Compared as bits; those of NaN are the largest.
    u32 most[CAPTURED_TENSORS] = {};
    auto take = [&](int read, f32 term, i64) {
        u32& own = most[capture_of(read)];
        own = max(own, __float_as_uint(term) & 0x7fffffff);
    };
    walk(q, k, v, dout, lse, delta, s, rows, take CAPTURED);
#pragma unroll
    for (int i = 0; i < CAPTURED_TENSORS; i++) {
        const u32 all = __reduce_max_sync(~0u, most[i]);
        if (threadIdx.x % 32 == 0 && all > 0) atomicMax(&largest[i], all);
    }
}

extern "C" __global__ void __launch_bounds__(128)
    attention_captures_add(const Element* q, const Element* k, const Element* v,
                           const Element* dout, const f32* lse, const f32* delta, u64* sums,
                           const u32* largest, const __grid_constant__ AttentionShape s,
                           const __grid_constant__ CaptureRows rows CAPTURES) {
    after_previous();
    f32 units[CAPTURED_TENSORS];
#pragma unroll
    for (int i = 0; i < CAPTURED_TENSORS; i++) units[i] = unit(largest[i], rows.bits);
    i64 totals[READS] = {}, places[READS] = {};
    auto take = [&](int read, f32 term, i64 place) {
        const i64 rounded = __float2ll_rn(term * units[capture_of(read)]);
        if (is_shared(read)) totals[read] += rounded, places[read] = place;
        else if (rounded != 0) atomicAdd(&sums[place], (u64)rounded);
    };
    walk(q, k, v, dout, lse, delta, s, rows, take CAPTURED);
#pragma unroll
    for (int i = 0; i < READS; i++) {
        if (!is_shared(i)) continue;
        i64 all = totals[i];
#pragma unroll
        for (int lanes = 16; lanes > 0; lanes /= 2) all += __shfl_xor_sync(~0u, all, lanes);
        if (threadIdx.x % 32 == 0 && all != 0) atomicAdd(&sums[places[i]], (u64)all);
    }
}

// Rounds the sums of a capture; NaN where a term was not finite.
template <class To>
__device__ __forceinline__ void round_captured(const i64* sums, const u32* largest, To* to,
                                               i64 count, i32 bits) {
    after_previous();
    const f64 by = *largest < 0x7f800000 ? (f64)unit(*largest, bits) : 0.0;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < count; i += (i64)gridDim.x * 256)
        to[i] = convert<To>(by == 0.0 ? 0.0 / by : (f64)sums[i] / by);
}
