// Gradients of attention of 16-bit floats with `mma.sync`, for GPUs and heads that grad.cu is not
// for. Dao, arXiv:2307.08691, section 3.1.
//
// A task is a tile of rows of its own, queries or keys, and walks over blocks of the others. Four
// warps have 16 own rows each. Tiles of queries add up dq, tiles of keys dk and dv over the query
// heads of their key head. Each computes the scores and dweights of its pairs anew. That is seven
// products where five would do, or eight if dk and dv do not fit into registers together. In
// return no sum has two writers. So every launch gives the same bits, and memory in addition to
// operands and results is none.
//
// Text before gives OTHER (rows of a block) and BUFFERS (blocks in shared memory together), then
// fragments.cuh. Text behind instantiates the kernels.

// spills at most 96 bytes beside dropout: what it draws takes more than the sums leave.

constexpr int OWN = 64;
constexpr f32 LOG2E = 1.4426950408889634f;

// Rows of q and dout, or of k and v.
template <int ROWS>
struct Rows {
    Element wide[ROWS][D + SKEW];
    Element values[ROWS][DV + SKEW];
};

// `GradRows` of grad_portable.rs.
struct GradRows {
    i64 delta[3], dq[3], dk[3], dv[3];
};

// A fragment of the warp's own rows.
template <int WIDTH>
__device__ __forceinline__ void load_own(u32 (&to)[4], const Element (&rows)[OWN][WIDTH + SKEW],
                                         int c) {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16;
    load(to, &rows[first + lane % 16][c * 16 + lane / 16 * 8]);
}

// Products of the warp's own rows with those of a block.
template <int WIDTH, bool KEEPS>
__device__ __forceinline__ void multiply_rows(f32 (&sums)[OTHER / 8][4],
                                              const u32 (&held)[KEEPS ? WIDTH / 16 : 1][4],
                                              const Element (&own)[OWN][WIDTH + SKEW],
                                              const Element (&rows)[OTHER][WIDTH + SKEW]) {
    // Quarters (row, c), (row, c + 8), (row + 8, c), (row + 8, c + 8).
    const int lane = threadIdx.x % 32, at_row = lane % 8 + lane / 16 * 8;
    const int at_channel = lane / 8 % 2 * 8;
#pragma unroll
    for (int c = 0; c < WIDTH / 16; c++) {
        u32 left[4];
        if constexpr (KEEPS) {
#pragma unroll
            for (int i = 0; i < 4; i++) left[i] = held[c][i];
        } else {
            load_own<WIDTH>(left, own, c);
        }
#pragma unroll
        for (int j = 0; j < OTHER / 16; j++) {
            u32 right[4];
            load(right, &rows[j * 16 + at_row][c * 16 + at_channel]);
            multiply(sums[2 * j], left, right[0], right[1]);
            multiply(sums[2 * j + 1], left, right[2], right[3]);
        }
    }
}

// Adds factors of a block's rows times the rows.
template <int WIDTH>
__device__ __forceinline__ void add_rows(f32 (&sums)[WIDTH / 8][4],
                                         const f32 (&factors)[OTHER / 8][4],
                                         const Element (&rows)[OTHER][WIDTH + SKEW]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < OTHER / 16; c++) {
        const f32(&low)[4] = factors[2 * c];
        const f32(&high)[4] = factors[2 * c + 1];
        const u32 left[4] = {pair(low[0], low[1]), pair(low[2], low[3]), pair(high[0], high[1]),
                             pair(high[2], high[3])};
#pragma unroll
        for (int j = 0; j < WIDTH / 16; j++) {
            u32 right[4];
            load_transposed(right, &rows[c * 16 + lane % 16][j * 16 + lane / 16 * 8]);
            multiply(sums[2 * j], left, right[0], right[1]);
            multiply(sums[2 * j + 1], left, right[2], right[3]);
        }
    }
}

// Stores the warp's sums to rows of a tensor; rows past `count` are none.
template <int WIDTH>
__device__ __forceinline__ void store_rows(Element* to, i64 stride, i32 first, i32 count,
                                           const f32 (&sums)[WIDTH / 8][4], f32 factor) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 row = first + 8 * r;
        if (row >= count) continue;
        Element* at = to + row * stride + threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j++)
            *(u32*)(at + 8 * j) = pair(sums[j][2 * r] * factor, sums[j][2 * r + 1] * factor);
    }
}

// The number that is subtracted from the scores of a row. A row that sees nothing has an lse of
// -infinity. The shift of +infinity makes its weights 0.
__device__ __forceinline__ f32 shift_of(f32 lse) {
    return lse == -infinity(0.0f) ? infinity(0.0f) : lse;
}

// A tile of keys (OF_KEYS) or of queries. WIDE sums are dk or dq, VALUES sums are dv.
template <bool OF_KEYS, bool WIDE, bool VALUES>
__device__ __forceinline__ void gradients(const Element* q, const Element* k, const Element* v,
                                          const Element* dout, const f32* lse, const f32* delta,
                                          Element* wide, Element* values, const AttentionShape& s,
                                          const GradRows& g CAPTURES) {
    // Fragments of own rows stay in registers where there are enough.
    constexpr bool KEEPS = (WIDE ? D / 2 : 0) + (VALUES ? DV / 2 : 0) + (D + DV) / 4 <= 144;
    extern __shared__ __align__(128) unsigned char bytes[];
    __shared__ f32 shifts[2][OTHER], deltas[2][OTHER];
    Rows<OWN>& own = *reinterpret_cast<Rows<OWN>*>(bytes);
    Rows<OTHER>* blocks = reinterpret_cast<Rows<OTHER>*>(bytes + sizeof(Rows<OWN>));
    const int lane = threadIdx.x % 32;
    const i32 own_count = OF_KEYS ? s.keys : s.queries;
    const i32 tiles = (own_count + OWN - 1) / OWN;
    // Tiles that take longest come first: the first keys, the last queries.
    i32 matrix, tile;
    s.task(blockIdx.x, tiles, matrix, tile);
    if (OF_KEYS) tile = tiles - 1 - tile;
    const i32 own_heads = OF_KEYS ? s.heads / s.group : s.heads;
    const i32 b = matrix / own_heads, own_head = matrix % own_heads, first = tile * OWN;
    const i32 key_head = OF_KEYS ? own_head : own_head / s.group;
    const i32 first_head = OF_KEYS ? own_head * s.group : own_head;
    q += b * s.q[0];
    dout += b * s.out[0];
    k += b * s.k[0] + key_head * s.k[1];
    v += b * s.v[0] + key_head * s.v[1];
    // Blocks of a head: of the keys that the last query sees, or from the first query that sees the
    // first key on.
    i32 begin = 0, end = 0;
    if constexpr (OF_KEYS) {
        end = (s.queries + OTHER - 1) / OTHER;
#ifdef CAUSAL
        begin = min(end, max(0, first + s.queries - s.keys) / OTHER);
#endif
    } else {
        end = (s.seen(min(first + OWN, s.queries) - 1) + OTHER - 1) / OTHER;
    }
    const i32 each = end - begin, steps = OF_KEYS ? s.group * each : each;
    auto head_of = [&](i32 step) { return OF_KEYS ? first_head + step / each : first_head; };
    auto row_of = [&](i32 step) { return (begin + (OF_KEYS ? step % each : step)) * OTHER; };
    auto fetch = [&](i32 step) {
        Rows<OTHER>& to = blocks[step % BUFFERS];
        const i32 row = row_of(step);
        if constexpr (OF_KEYS) {
            const i32 h = head_of(step);
            copy<OTHER, D>(to.wide, q + h * s.q[1], s.q[2], row, s.queries);
            copy<OTHER, DV>(to.values, dout + h * s.out[1], s.out[2], row, s.queries);
        } else {
            copy<OTHER, D>(to.wide, k, s.k[2], row, s.keys);
            copy<OTHER, DV>(to.values, v, s.v[2], row, s.keys);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    // The shift and delta of a query.
    auto rows_of = [&](i32 h, i32 query, f32& shift, f32& less) {
        shift = infinity(0.0f), less = 0.0f;
        if (query >= s.queries) return;
        shift = shift_of(lse[b * s.lse[0] + h * s.lse[1] + query * s.lse[2]]);
        less = delta[b * g.delta[0] + h * g.delta[1] + query * g.delta[2]];
    };
    auto rows_of_step = [&](i32 step, f32& shift, f32& less) {
        if (OF_KEYS && threadIdx.x < OTHER && step < steps)
            rows_of(head_of(step), row_of(step) + threadIdx.x, shift, less);
    };
    if constexpr (OF_KEYS) {
        copy<OWN, D>(own.wide, k, s.k[2], first, s.keys);
        copy<OWN, DV>(own.values, v, s.v[2], first, s.keys);
    } else {
        copy<OWN, D>(own.wide, q + own_head * s.q[1], s.q[2], first, s.queries);
        copy<OWN, DV>(own.values, dout + own_head * s.out[1], s.out[2], first, s.queries);
    }
    if (steps > 0) fetch(0);

    // Row r of a fragment is own row `row + 8 r`, columns are others `8 j + 2 (lane % 4)` and the
    // next.
    const i32 row = first + threadIdx.x / 32 * 16 + lane / 4;
    f32 own_shift[2], own_less[2], next_shift = 0.0f, next_less = 0.0f;
    if constexpr (!OF_KEYS) {
#pragma unroll
        for (int r = 0; r < 2; r++) rows_of(own_head, row + 8 * r, own_shift[r], own_less[r]);
    } else {
        rows_of_step(0, next_shift, next_less);
        if (threadIdx.x < OTHER)
            shifts[0][threadIdx.x] = next_shift, deltas[0][threadIdx.x] = next_less;
    }
    const f32 factor = (f32)s.factor;
    f32 wide_sums[WIDE ? D / 8 : 1][4] = {}, value_sums[VALUES ? DV / 8 : 1][4] = {};
    u32 kept_wide[KEEPS ? D / 16 : 1][4], kept_values[KEEPS ? DV / 16 : 1][4];
    for (i32 step = 0; step < steps; step++) {
        if (BUFFERS == 1 && step > 0) {
            __syncthreads();
            fetch(step);
        }
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if constexpr (KEEPS) {
            if (step == 0) {
#pragma unroll
                for (int c = 0; c < D / 16; c++) load_own<D>(kept_wide[c], own.wide, c);
#pragma unroll
                for (int c = 0; c < DV / 16; c++) load_own<DV>(kept_values[c], own.values, c);
            }
        }
        if (BUFFERS == 2 && step + 1 < steps) fetch(step + 1);
        rows_of_step(step + 1, next_shift, next_less);
        const Rows<OTHER>& block = blocks[step % BUFFERS];
        f32 scores[OTHER / 8][4] = {}, dweights[OTHER / 8][4] = {};
        multiply_rows<D, KEEPS>(scores, kept_wide, own.wide, block.wide);
        if constexpr (WIDE)
            multiply_rows<DV, KEEPS>(dweights, kept_values, own.values, block.values);
        const i32 h = head_of(step), other_row = row_of(step);
#pragma unroll
        for (int i = 0; i < OTHER / 2; i++) {
            const int r = i / 2 % 2, other = i / 4 * 8 + lane % 4 * 2 + i % 2;
            const i32 query = OF_KEYS ? other_row + other : row + 8 * r;
            const i32 key = OF_KEYS ? row + 8 * r : other_row + other;
            const f32 shift = OF_KEYS ? shifts[step % 2][other] : own_shift[r];
            const f32 less = OF_KEYS ? deltas[step % 2][other] : own_less[r];
            f32 score = scores[i / 4][i % 4] * factor;
            [[maybe_unused]] f32 slope = 1.0f;
#ifdef SLOPES
            const Scored result = scored(score, b, h, query, key CAPTURED);
            score = result.score, slope = result.slope;
#endif
            // Queries past the end count for nothing, whatever a function returns for them.
            bool shown = shift < infinity(0.0f) && key < s.seen(query);
#ifdef MASK
            shown &= visible(b, h, query, key CAPTURED);
#endif
            f32 weight;
            asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(weight) : "f"((score - shift) * LOG2E));
            weight = shown ? weight : 0.0f;
            f32 stays = 1.0f;
#ifdef DROPS
            const u64 drawn = (u64)b * s.heads + h;
            stays = kept(SEED, (drawn * s.queries + query) * s.keys + key);
#endif
            const f32 dscore = weight * slope * (stays * dweights[i / 4][i % 4] - less);
            dweights[i / 4][i % 4] = weight == 0.0f ? 0.0f : dscore;
            scores[i / 4][i % 4] = weight * stays;
        }
        if constexpr (VALUES) add_rows<DV>(value_sums, scores, block.values);
        if constexpr (WIDE) add_rows<D>(wide_sums, dweights, block.wide);
        // The barrier of the next step comes before these are read.
        if (OF_KEYS && threadIdx.x < OTHER) {
            shifts[(step + 1) % 2][threadIdx.x] = next_shift;
            deltas[(step + 1) % 2][threadIdx.x] = next_less;
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    if constexpr (WIDE) {
        const i64(&at)[3] = OF_KEYS ? g.dk : g.dq;
        Element* to = wide + b * at[0] + own_head * at[1];
        store_rows<D>(to, at[2], row, own_count, wide_sums, factor);
    }
    if constexpr (VALUES)
        store_rows<DV>(values + b * g.dv[0] + own_head * g.dv[1], g.dv[2], row, own_count,
                       value_sums, 1.0f);
}
