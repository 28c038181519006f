// Gradients of attention of 16-bit floats on Hopper's tensor cores, in two kernels without atomic
// additions: each sum belongs to one warpgroup, which adds in a fixed order, so that every launch
// gives the same bits. Dao et al., arXiv:2205.14135, algorithm 4; Shah et al., arXiv:2407.08608.
//
// `attention_grad_keys` owns a tile of keys and walks over the queries that see it, of all query
// heads of the key head. Scores are transposed (keys by queries), so that weights stay in registers
// as the left operand of both sums. `attention_grad_queries` owns a tile of queries and walks over
// keys. Scores and dweights are computed in both: seven products for five, in return for which
// nothing is added up in memory.
//
// While a warpgroup exponentiates, its tensor cores compute the dweights of this block and the last
// sum of the block before. Channels past D and DV and rows past the end are zeros that TMA fills in
// and clips.
//
// Text before gives CONSUMERS, STAGES, BLOCK_QUERIES (of a step over queries), BLOCK_KEYS (of a
// step over keys), and the instructions `wgmma` and `wgmma_of_registers`.

constexpr int TILE = OWN * CONSUMERS;
constexpr int THREADS = (CONSUMERS + 1) * WARPGROUP;
constexpr int TILE_BOX = TILE * 128, QUERY_BOX = BLOCK_QUERIES * 128, KEY_BOX = BLOCK_KEYS * 128;
// Each warp tells that it has read a stage.
constexpr int READERS = CONSUMERS * 4;

struct Strides {
    i64 at[3];
};

// What a row's exponent is less, in powers of two. A row that sees nothing has -infinity, and its
// weights are 0 for a shift of +infinity.
__device__ __forceinline__ f32 shift_of(f32 lse) {
    return lse == -infinity(0.0f) ? infinity(0.0f) : lse * LOG2E;
}

// What the stages of both kernels are told by: pairs of boxes, the first for scores, the second for
// dweights.
struct Barriers {
    u64 own, full[2][STAGES], empty[2][STAGES];
};

struct Ring {
    u32 own, full[2], empty[2];

    __device__ __forceinline__ Ring(Barriers& barriers) {
        own = shared_address(&barriers.own);
        for (int i = 0; i < 2; i++) {
            full[i] = shared_address(barriers.full[i]);
            empty[i] = shared_address(barriers.empty[i]);
        }
    }
    __device__ __forceinline__ void init() {
        barrier_init(own, 1);
        for (int i = 0; i < 2; i++) {
            for (int stage = 0; stage < STAGES; stage++) {
                barrier_init(full[i] + 8 * stage, 1);
                barrier_init(empty[i] + 8 * stage, READERS);
            }
        }
        barriers_are_set();
    }
};

template <int Parts, int Box>
__device__ __forceinline__ void copy_boxes(u32 to, const TensorMap& map, u32 barrier, int row,
                                           int head, int batch) {
    for (int p = 0; p < Parts; p++)
        copy_head(to + p * Box, map, barrier, p * LINE, row, head, batch);
}

// Sums of 64 rows leave by the place of the warpgroup's operand, which no product reads any more.
template <int Channels>
__device__ __forceinline__ void store_sums(const TensorMap& map, u32 own, int thread,
                                           const f32 (&sums)[Channels / 2], f32 factor, int row,
                                           int head, int batch) {
    const f32 factors[2] = {factor, factor};
    round_sums<Channels, TILE_BOX>(own, thread, sums, factors);
    fence_shared();
    named_sync<1>(threadIdx.x / WARPGROUP, WARPGROUP);
    if (thread == 0) {
        for (int p = 0; p < (Channels + LINE - 1) / LINE; p++)
            copy_head_out(map, own + p * TILE_BOX, p * LINE, row, head, batch);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_grad_keys(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap dout,
                        const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                        const __grid_constant__ TensorMap dk, const __grid_constant__ TensorMap dv,
                        const f32* lse, const f32* delta,
                        const __grid_constant__ Shape s,
                        const __grid_constant__ Strides by CAPTURES) {
    extern __shared__ unsigned char bytes[];
    __shared__ Barriers barriers;
    __shared__ f32 shifts[STAGES][BLOCK_QUERIES], deltas[STAGES][BLOCK_QUERIES];
    const u32 key_place = (shared_address(bytes) + 1023) & ~1023u,
              value_place = key_place + PARTS * TILE_BOX,
              query_place = value_place + PARTS_V * TILE_BOX,
              dout_place = query_place + STAGES * PARTS * QUERY_BOX;
    Ring ring(barriers);
    if (threadIdx.x == 0) ring.init();
    __syncthreads();
    after_previous();
    // `Shape` counts key heads here.
    const i32 tiles = (s.keys + TILE - 1) / TILE;
    i32 matrix, tile;
    s.task(blockIdx.x, tiles, matrix, tile);
    // Under a causal mask the first keys are seen by most.
    const i32 b = matrix / s.heads, head = matrix % s.heads, key = (tiles - 1 - tile) * TILE;
#ifdef CAUSAL
    // A query sees the keys up to so many past its own position.
    const i32 ahead = s.keys - s.queries;
    const i32 begin = max(0, key - ahead) / BLOCK_QUERIES * BLOCK_QUERIES;
#else
    const i32 begin = 0;
#endif
    const int warpgroup = threadIdx.x / WARPGROUP;
    if (warpgroup == CONSUMERS) {
        give_registers<CONSUMERS == 2 ? 24 : 32>();
        const int lane = threadIdx.x % WARPGROUP;
        if (lane < 32) {
            if (lane == 0) {
                barrier_expect(ring.own, (PARTS + PARTS_V) * TILE_BOX);
                copy_boxes<PARTS, TILE_BOX>(key_place, k, ring.own, key, head, b);
                copy_boxes<PARTS_V, TILE_BOX>(value_place, v, ring.own, key, head, b);
            }
            Turn<STAGES> turn;
            for (i32 h = head * s.group; h < (head + 1) * s.group; h++) {
                for (i32 first = begin; first < s.queries; first += BLOCK_QUERIES, turn.next()) {
                    constexpr int EACH = (BLOCK_QUERIES + 31) / 32;
                    f32 shift[EACH], less[EACH];
#pragma unroll
                    for (int i = 0; i < EACH; i++) {
                        const i32 query = first + lane + 32 * i;
                        const bool is_in = query < s.queries;
                        shift[i] = infinity(0.0f), less[i] = 0.0f;
                        if (is_in) {
                            shift[i] = shift_of(
                                lse[b * s.lse[0] + h * s.lse[1] + query * s.lse[2]]);
                            less[i] = delta[b * by.at[0] + h * by.at[1] + query * by.at[2]];
                        }
                    }
                    barrier_wait(ring.empty[0] + 8 * turn.stage, turn.parity ^ 1);
#pragma unroll
                    for (int i = 0; i < EACH; i++) {
                        if (lane + 32 * i < BLOCK_QUERIES) {
                            shifts[turn.stage][lane + 32 * i] = shift[i];
                            deltas[turn.stage][lane + 32 * i] = less[i];
                        }
                    }
                    __syncwarp();
                    if (lane == 0) {
                        u32 full = ring.full[0] + 8 * turn.stage;
                        barrier_expect(full, PARTS * QUERY_BOX);
                        copy_boxes<PARTS, QUERY_BOX>(
                            query_place + turn.stage * PARTS * QUERY_BOX, q, full, first, h, b);
                        full = ring.full[1] + 8 * turn.stage;
                        barrier_wait(ring.empty[1] + 8 * turn.stage, turn.parity ^ 1);
                        barrier_expect(full, PARTS_V * QUERY_BOX);
                        copy_boxes<PARTS_V, QUERY_BOX>(
                            dout_place + turn.stage * PARTS_V * QUERY_BOX, dout, full, first, h, b);
                    }
                }
            }
        }
    } else {
        take_registers<CONSUMERS == 2 ? 240 : 160>();
        const int thread = threadIdx.x % WARPGROUP, lane = thread % 32;
        // Row r of the accumulators is key `thread / 32 * 16 + lane / 4 + 8 r`, columns are queries
        // (channels) `8 j + column` and the next.
        const i32 column = lane % 4 * 2, own_key = key + warpgroup * OWN;
        const f32 factor = (f32)s.factor, scale = factor * LOG2E;
        const u32 own_k = key_place + warpgroup * OWN * 128,
                  own_v = value_place + warpgroup * OWN * 128;
        f32 dks[D / 2], dvs[DV / 2];
#pragma unroll
        for (int i = 0; i < D / 2; i++) dks[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < DV / 2; i++) dvs[i] = 0.0f;
        const i32 blocks = max(0, s.queries - begin + BLOCK_QUERIES - 1) / BLOCK_QUERIES;
        barrier_wait(ring.own, 0);
        if (blocks > 0) {
            u32 weights[BLOCK_QUERIES / 4], dscores[BLOCK_QUERIES / 4];
            const i32 steps = blocks * s.group;
            i32 first = begin;
#ifdef MASK
            i32 h = head * s.group;
#endif
            Turn<STAGES> turn;
            fence_sums(dks);
            fence_sums(dvs);
            for (i32 step = 0; step < steps; step++) {
                const int stage = turn.stage;
                const u32 queries = query_place + stage * PARTS * QUERY_BOX,
                          douts = dout_place + stage * PARTS_V * QUERY_BOX;
                f32 scores[BLOCK_QUERIES / 2], dweights[BLOCK_QUERIES / 2];
                barrier_wait(ring.full[0] + 8 * stage, turn.parity);
                issue_by_channel<D, TILE_BOX, QUERY_BOX>(scores, descriptor(BY_CHANNEL, own_k),
                                                         descriptor(BY_CHANNEL, queries));
                barrier_wait(ring.full[1] + 8 * stage, turn.parity);
                issue_by_channel<DV, TILE_BOX, QUERY_BOX>(dweights, descriptor(BY_CHANNEL, own_v),
                                                          descriptor(BY_CHANNEL, douts));
                products_wait<1>();
                fence_sums(scores);
                fence_sums(dks);
                // The sum of the block before is done too, so that its queries may go.
                if (lane == 0 && step > 0)
                    barrier_arrive<1>(ring.empty[0] + 8 * (stage == 0 ? STAGES - 1 : stage - 1), 0);
#pragma unroll
                for (int j = 0; j < BLOCK_QUERIES / 8; j++) {
                    const float2 shift = *(const float2*)&shifts[stage][8 * j + column];
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        f32* at = &scores[4 * j + 2 * r];
                        at[0] = power_of_two(fmaf(at[0], scale, -shift.x));
                        at[1] = power_of_two(fmaf(at[1], scale, -shift.y));
                    }
                }
#if defined(CAUSAL) || defined(MASK)
#ifndef MASK
                // Not all of the warpgroup's keys are seen by all of the block's queries.
                if (own_key + OWN - 1 > first + ahead)
#endif
                {
#pragma unroll
                    for (int i = 0; i < BLOCK_QUERIES / 2; i++) {
                        const i32 query = first + i / 4 * 8 + column + i % 2,
                                  at = own_key + thread / 32 * 16 + lane / 4 + i / 2 % 2 * 8;
                        bool shown = true;
#ifdef CAUSAL
                        shown = at <= query + ahead;
#endif
#ifdef MASK
                        shown &= visible(b, h, query, at CAPTURED);
#endif
                        scores[i] = shown ? scores[i] : 0.0f;
                    }
                }
#endif
#pragma unroll
                for (int i = 0; i < BLOCK_QUERIES / 4; i++)
                    weights[i] = pair(scores[2 * i], scores[2 * i + 1]);
                issue_by_row(dvs, weights, descriptor(by_row(QUERY_BOX), douts));
                // Weights and dscores at once do not fit in registers.
                products_wait<0>();
                fence_sums(dweights);
                fence_sums(dvs);
                if (lane == 0) barrier_arrive<1>(ring.empty[1] + 8 * stage, 0);
#pragma unroll
                for (int j = 0; j < BLOCK_QUERIES / 8; j++) {
                    const float2 less = *(const float2*)&deltas[stage][8 * j + column];
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const int at = 4 * j + 2 * r;
                        dscores[2 * j + r] = pair(scores[at] * (dweights[at] - less.x),
                                                  scores[at + 1] * (dweights[at + 1] - less.y));
                    }
                }
                issue_by_row(dks, dscores, descriptor(by_row(QUERY_BOX), queries));
                turn.next();
                first += BLOCK_QUERIES;
                if (first >= s.queries) {
                    first = begin;
#ifdef MASK
                    h++;
#endif
                }
            }
            products_wait<0>();
            fence_sums(dks);
        }
        // No warp of the warpgroup's products reads keys or values any more.
        named_sync<1>(warpgroup, WARPGROUP);
        store_sums<DV>(dv, own_v, thread, dvs, 1.0f, own_key, head, b);
        store_sums<D>(dk, own_k, thread, dks, factor, own_key, head, b);
        if (thread == 0) copies_are_done();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_grad_queries(const __grid_constant__ TensorMap q,
                           const __grid_constant__ TensorMap dout,
                           const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                           const __grid_constant__ TensorMap dq, const f32* lse,
                           const f32* delta, const __grid_constant__ Shape s,
                           const __grid_constant__ Strides by CAPTURES) {
    extern __shared__ unsigned char bytes[];
    __shared__ Barriers barriers;
    const u32 query_place = (shared_address(bytes) + 1023) & ~1023u,
              dout_place = query_place + PARTS * TILE_BOX,
              key_place = dout_place + PARTS_V * TILE_BOX,
              value_place = key_place + STAGES * PARTS * KEY_BOX;
    Ring ring(barriers);
    if (threadIdx.x == 0) ring.init();
    __syncthreads();
    after_previous();
    const i32 tiles = (s.queries + TILE - 1) / TILE;
    i32 matrix, tile;
    s.task(blockIdx.x, tiles, matrix, tile);
    const i32 b = matrix / s.heads, h = matrix % s.heads, head = h / s.group,
              first = tile * TILE;
    const i32 steps = (s.seen(min(first + TILE, s.queries) - 1) + BLOCK_KEYS - 1) / BLOCK_KEYS;
    const int warpgroup = threadIdx.x / WARPGROUP;
    if (warpgroup == CONSUMERS) {
        give_registers<CONSUMERS == 2 ? 24 : 32>();
        if (threadIdx.x == CONSUMERS * WARPGROUP) {
            barrier_expect(ring.own, (PARTS + PARTS_V) * TILE_BOX);
            copy_boxes<PARTS, TILE_BOX>(query_place, q, ring.own, first, h, b);
            copy_boxes<PARTS_V, TILE_BOX>(dout_place, dout, ring.own, first, h, b);
            Turn<STAGES> turn;
            for (i32 step = 0; step < steps; step++, turn.next()) {
                const u32 full = ring.full[0] + 8 * turn.stage;
                barrier_wait(ring.empty[0] + 8 * turn.stage, turn.parity ^ 1);
                barrier_expect(full, PARTS * KEY_BOX);
                copy_boxes<PARTS, KEY_BOX>(key_place + turn.stage * PARTS * KEY_BOX, k, full,
                                           step * BLOCK_KEYS, head, b);
                const u32 full_v = ring.full[1] + 8 * turn.stage;
                barrier_wait(ring.empty[1] + 8 * turn.stage, turn.parity ^ 1);
                barrier_expect(full_v, PARTS_V * KEY_BOX);
                copy_boxes<PARTS_V, KEY_BOX>(value_place + turn.stage * PARTS_V * KEY_BOX, v,
                                             full_v, step * BLOCK_KEYS, head, b);
            }
        }
    } else {
        take_registers<CONSUMERS == 2 ? 240 : 160>();
        const int thread = threadIdx.x % WARPGROUP, lane = thread % 32;
        // Row r of the accumulators is query `row + 8 r`, columns are keys (channels) `8 j + 2
        // (lane % 4)` and the next.
        const i32 row = thread / 32 * 16 + lane / 4, column = lane % 4 * 2,
                  own_query = first + warpgroup * OWN;
        const f32 factor = (f32)s.factor, scale = factor * LOG2E;
        const u32 own_q = query_place + warpgroup * OWN * 128,
                  own_dout = dout_place + warpgroup * OWN * 128;
        f32 shift[2], less[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const i32 query = own_query + row + 8 * r;
            shift[r] = infinity(0.0f), less[r] = 0.0f;
            if (query < s.queries) {
                shift[r] = shift_of(lse[b * s.lse[0] + h * s.lse[1] + query * s.lse[2]]);
                less[r] = delta[b * by.at[0] + h * by.at[1] + query * by.at[2]];
            }
        }
        f32 dqs[D / 2];
#pragma unroll
        for (int i = 0; i < D / 2; i++) dqs[i] = 0.0f;
        barrier_wait(ring.own, 0);
        if (steps > 0) {
            u32 dscores[BLOCK_KEYS / 4];
            const i32 inside = s.seen(min(own_query, s.queries - 1));
            Turn<STAGES> turn;
            fence_sums(dqs);
            for (i32 step = 0; step < steps; step++) {
                const int stage = turn.stage;
                const u32 keys = key_place + stage * PARTS * KEY_BOX;
                f32 scores[BLOCK_KEYS / 2], dweights[BLOCK_KEYS / 2];
                barrier_wait(ring.full[0] + 8 * stage, turn.parity);
                issue_by_channel<D, TILE_BOX, KEY_BOX>(scores, descriptor(BY_CHANNEL, own_q),
                                                       descriptor(BY_CHANNEL, keys));
                barrier_wait(ring.full[1] + 8 * stage, turn.parity);
                issue_by_channel<DV, TILE_BOX, KEY_BOX>(
                    dweights, descriptor(BY_CHANNEL, own_dout),
                    descriptor(BY_CHANNEL, value_place + stage * PARTS_V * KEY_BOX));
                products_wait<1>();
                fence_sums(scores);
                fence_sums(dqs);
                // The sum of the block before is done too, so that its keys may go.
                if (lane == 0 && step > 0)
                    barrier_arrive<1>(ring.empty[0] + 8 * (stage == 0 ? STAGES - 1 : stage - 1), 0);
#pragma unroll
                for (int i = 0; i < BLOCK_KEYS / 2; i++)
                    scores[i] = power_of_two(fmaf(scores[i], scale, -shift[i / 2 % 2]));
#ifndef MASK
                // Not all of the block's keys are seen by all of the warpgroup's queries.
                if ((step + 1) * BLOCK_KEYS > inside)
#endif
                {
#pragma unroll
                    for (int i = 0; i < BLOCK_KEYS / 2; i++) {
                        const i32 query = own_query + row + i / 2 % 2 * 8,
                                  at = step * BLOCK_KEYS + i / 4 * 8 + column + i % 2;
                        bool shown = at < s.seen(query);
#ifdef MASK
                        shown &= visible(b, h, query, at CAPTURED);
#endif
                        scores[i] = shown ? scores[i] : 0.0f;
                    }
                }
                products_wait<0>();
                fence_sums(dweights);
                if (lane == 0) barrier_arrive<1>(ring.empty[1] + 8 * stage, 0);
#pragma unroll
                for (int i = 0; i < BLOCK_KEYS / 4; i++) {
                    const f32 delta = less[i % 2];
                    dscores[i] = pair(scores[2 * i] * (dweights[2 * i] - delta),
                                      scores[2 * i + 1] * (dweights[2 * i + 1] - delta));
                }
                issue_by_row(dqs, dscores, descriptor(by_row(KEY_BOX), keys));
                turn.next();
            }
            products_wait<0>();
            fence_sums(dqs);
        }
        named_sync<1>(warpgroup, WARPGROUP);
        store_sums<D>(dq, own_q, thread, dqs, factor, own_query, h, b);
        if (thread == 0) copies_are_done();
    }
}
