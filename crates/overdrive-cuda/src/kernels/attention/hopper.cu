// Attention of 16-bit floats on Hopper's tensor cores: a producer warp copies queries, keys and
// values by TMA, consumer warpgroups multiply them with wgmma. FlashAttention-3 (Shah et al.,
// arXiv:2407.08608).
//
// Each warpgroup has 64 queries. While its tensor cores multiply the probabilities of one block of
// keys by their values, it exponentiates the scores of the next. While one warpgroup exponentiates,
// another multiplies (ping-pong by named barriers). Blocks of keys are walked from the last to the
// first, so that masked ones come first. Those that a mask function hides are neither loaded nor
// multiplied, and it is evaluated only in those that it hides a part of (block_mask.cuh). A block
// of the grid takes tasks until none are left, longest first. With a threshold, a warpgroup neither
// exponentiates nor weighs a block that none of its queries asks for. Another warp then copies
// values, once it is known that some warpgroup weighs them. Channels past D and DV and
// rows past the end are zeros that TMA fills in and clips.
//
// Text before gives KEYS, CONSUMERS, STAGES, PLACES of queries, the instructions `wgmma` and
// `wgmma_of_registers`, block_mask.cuh if there is a mask function, and walk.cuh. With a
// threshold it defines SKIPS and gives LIMIT, its logarithm to base 2.

constexpr int QUERIES = OWN * CONSUMERS;
constexpr int THREADS = (CONSUMERS + 1) * WARPGROUP;
constexpr int QUERY_BOX = QUERIES * 128, KEY_BOX = KEYS * 128;
constexpr int QUERY_BYTES = QUERY_BOX * PARTS, KEY_BYTES = KEY_BOX * PARTS,
              VALUE_BYTES = KEY_BOX * PARTS_V;
// Outputs leave by the place of the queries.
constexpr int QUERY_PLACE = QUERY_BOX * (PARTS > PARTS_V ? PARTS : PARTS_V);

constexpr u64 BY_KEY = by_row(KEY_BOX);

// Registers of the threads that copy, and of those that multiply. With a threshold two warps copy,
// and both walk the list of a mask function.
#ifdef SKIPS
constexpr int COPYING = CONSUMERS == 2 ? 40 : 32, MULTIPLYING = CONSUMERS == 2 ? 232 : 160;
#else
constexpr int COPYING = CONSUMERS == 2 ? 24 : 32, MULTIPLYING = CONSUMERS == 2 ? 240 : 160;
#endif

struct Barriers {
    u64 query_full[PLACES], query_empty[PLACES], key_full[STAGES], key_empty[STAGES],
        value_full[STAGES], value_empty[STAGES];
    // The task whose queries are in each place; negative: there are no more.
    i32 task[PLACES];
#ifdef SKIPS
    // Complete once each warpgroup has said whether it weighs the next block.
    u64 decided;
    volatile bool weighs[CONSUMERS];
#endif
};

// Ping-pong: a warpgroup multiplies after the one before it has.
__device__ __forceinline__ void await_turn(int warpgroup) {
    named_sync<1>(warpgroup, CONSUMERS * WARPGROUP);
}
__device__ __forceinline__ void pass_turn(int warpgroup) {
#pragma unroll
    for (int i = 1; i < CONSUMERS; i++) {
        const int other = warpgroup + i;
        named_arrive<1>(other < CONSUMERS ? other : other - CONSUMERS, CONSUMERS * WARPGROUP);
    }
}

// Scores of 64 queries for a block of keys; sums of 64 outputs.
typedef f32 Scores[KEYS / 2];
typedef f32 Sums[DV / 2];
typedef u32 Weights[KEYS / 4];

// A score of this size times LOG2E is a number.
constexpr f32 LARGEST = 2e38f;

struct Softmax {
    f32 largest[2] = {-infinity(0.0f), -infinity(0.0f)}, total[2] = {}, shrink[2];

    // The largest of `most` and of the scores of a row.
    __device__ __forceinline__ static f32 largest_of(const Scores& scores, int r, f32 most) {
        f32 most2 = scores[2 * r];
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) {
            most = fmaxf(most, scores[4 * j + 2 * r]);
            most2 = fmaxf(most2, scores[4 * j + 2 * r + 1]);
        }
        most = fmaxf(most, most2);
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        return fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    }
    __device__ __forceinline__ void take(Scores& scores, f32 scale) {
        take(scores, scale, [&](int r) { return largest_of(scores, r, largest[r]); });
    }

    // Scores become powers of two; `shrink` is what sums so far are multiplied by. `largest_now`
    // gives the largest score of a row so far, with these.
    template <typename F>
    __device__ __forceinline__ void take(Scores& scores, f32 scale, F largest_now) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const f32 most = largest_now(r);
            // A row that has seen no key has maximum -infinity, whose difference is NaN: any finite
            // shift will do there.
            f32 base = most == -infinity(0.0f) ? 0.0f : most;
#ifndef SCORE
            shrink[r] = power_of_two(fmaf(largest[r], scale, -base * scale));
#else
            shrink[r] = power_of_two((largest[r] - base) * scale);
            // Masks hide by the lowest number of all, which has no logarithm's base to spare: there
            // the difference comes first.
            if (fabsf(base) > LARGEST) {
#pragma unroll
                for (int i = 0; i < KEYS / 4; i++) scores[i / 2 * 4 + 2 * r + i % 2] -= base;
                base = 0.0f;
            }
#endif
            largest[r] = most;
            // Scores keep their scale until the exponential, where one multiply-add does both; the
            // factor is positive.
            const f32 shift = base * scale;
            f32 sums[2] = {};
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    f32& score = scores[4 * j + 2 * r + e];
                    score = power_of_two(fmaf(score, scale, -shift));
                    sums[e] += score;
                }
            }
            total[r] = fmaf(total[r], shrink[r], sums[0] + sums[1]);
        }
    }
};

__device__ __forceinline__ void round_weights(Weights& weights, const Scores& scores) {
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) weights[i] = pair(scores[2 * i], scores[2 * i + 1]);
}
// Issues the products of queries and a block of keys.
__device__ __forceinline__ void issue_scores(Scores& scores, u64 queries, u64 keys) {
    fence_sums(scores);
    issue_by_channel<D, QUERY_BOX, KEY_BOX>(scores, queries, keys);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
              const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap out, f32* lse,
              Counter* counter, const __grid_constant__ AttentionShape s
#ifdef MASK
              , const __grid_constant__ MaskGrid mask
#endif
              CAPTURES) {
    extern __shared__ unsigned char bytes[];
    __shared__ Barriers barriers;
    const u32 query_place = (shared_address(bytes) + 1023) & ~1023u;
    const u32 key_place = query_place + PLACES * QUERY_PLACE,
              value_place = key_place + STAGES * KEY_BYTES;
    const u32 query_full = shared_address(barriers.query_full),
              query_empty = shared_address(barriers.query_empty);
    const u32 key_full = shared_address(barriers.key_full),
              key_empty = shared_address(barriers.key_empty);
    const u32 value_full = shared_address(barriers.value_full),
              value_empty = shared_address(barriers.value_empty);
#ifdef SKIPS
    const u32 decided = shared_address(&barriers.decided);
    // A warp of the producer reads the tasks too.
    constexpr int READERS = CONSUMERS + 1;
#else
    constexpr int READERS = CONSUMERS;
#endif
    if (threadIdx.x == 0) {
#ifdef SKIPS
        barrier_init(decided, CONSUMERS);
#endif
        for (int i = 0; i < PLACES; i++)
            barrier_init(query_full + 8 * i, 1), barrier_init(query_empty + 8 * i, READERS);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(key_full + 8 * i, 1), barrier_init(key_empty + 8 * i, CONSUMERS);
            barrier_init(value_full + 8 * i, 1), barrier_init(value_empty + 8 * i, CONSUMERS);
        }
        barriers_are_set();
    }
    __syncthreads();
    after_previous();
    const i32 tiles = (s.queries + QUERIES - 1) / QUERIES, tasks = s.matrices * tiles;
    auto blocks_of = [&](i32 b, i32 h, i32 tile) -> KeyBlocks {
#ifdef MASK
        const i32 list = mask.list(b, h, tile);
        return {(i32)mask.lists[list], mask.lists, list + 1};
#else
        return {(s.seen(min(tile * QUERIES + QUERIES, s.queries) - 1) + KEYS - 1) / KEYS};
#endif
    };
    const int warpgroup = threadIdx.x / WARPGROUP;
    Turn<STAGES> key_turn, value_turn;
    Turn<PLACES> turn;
    if (warpgroup == CONSUMERS) {
        give_registers<COPYING>();
        if (threadIdx.x == CONSUMERS * WARPGROUP) {
            auto copy = [&](const TensorMap& map, u32 to, u32 full, u32 empty, Turn<STAGES>& turn,
                            int parts, int row, int head, int batch) {
                barrier_wait(empty + 8 * turn.stage, turn.parity ^ 1);
                barrier_expect(full + 8 * turn.stage, parts * KEY_BOX);
                for (int p = 0; p < parts; p++) {
                    copy_head(to + (turn.stage * parts + p) * KEY_BOX, map, full + 8 * turn.stage,
                              p * LINE, row, head, batch);
                }
                turn.next();
            };
            i32 index = blockIdx.x;
            while (index < tasks) {
                const i32 following = gridDim.x + atomicAdd(&counter->taken, 1);
                i32 matrix, tile;
                s.task(index, tiles, matrix, tile);
                const i32 b = matrix / s.heads, h = matrix % s.heads, first = tile * QUERIES,
                          group = h / s.group;
                const KeyBlocks blocks = blocks_of(b, h, tile);
                const i32 steps = blocks.count;
                if (steps > 0)
                    copy(k, key_place, key_full, key_empty, key_turn, PARTS, blocks[steps - 1].key,
                         group, b);
                barrier_wait(query_empty + 8 * turn.stage, turn.parity ^ 1);
                barriers.task[turn.stage] = index;
                barrier_expect(query_full + 8 * turn.stage, QUERY_BYTES);
                for (int p = 0; p < PARTS; p++) {
                    const u32 to = query_place + turn.stage * QUERY_PLACE + p * QUERY_BOX;
                    copy_head(to, q, query_full + 8 * turn.stage, p * LINE, first, h, b);
                }
                turn.next();
                for (i32 step = steps - 1; step >= 0; step--) {
                    if (step > 0)
                        copy(k, key_place, key_full, key_empty, key_turn, PARTS,
                             blocks[step - 1].key, group, b);
#ifndef SKIPS
                    copy(v, value_place, value_full, value_empty, value_turn, PARTS_V,
                         blocks[step].key, group, b);
#endif
                }
                index = following;
            }
            barrier_wait(query_empty + 8 * turn.stage, turn.parity ^ 1);
            barriers.task[turn.stage] = -1;
            barrier_arrive<1>(query_full + 8 * turn.stage, 0);
            // The last block leaves the counter as the next launch expects it.
            __threadfence();
            if (atomicAdd(&counter->done, 1) == gridDim.x - 1) *counter = {0, 0};
        }
#ifdef SKIPS
        // Values of a block that no warpgroup weighs are not copied: its stage is full as it is.
        if (threadIdx.x == CONSUMERS * WARPGROUP + 32) {
            u32 parity = 0;
            for (;; turn.next()) {
                barrier_wait(query_full + 8 * turn.stage, turn.parity);
                const i32 index = barriers.task[turn.stage];
                if (index < 0) break;
                i32 matrix, tile;
                s.task(index, tiles, matrix, tile);
                const i32 b = matrix / s.heads, h = matrix % s.heads;
                const KeyBlocks blocks = blocks_of(b, h, tile);
                barrier_arrive<1>(query_empty + 8 * turn.stage, 0);
                for (i32 step = blocks.count - 1; step >= 0; step--) {
                    barrier_wait(decided, parity);
                    parity ^= 1;
                    bool weighs = false;
                    for (int i = 0; i < CONSUMERS; i++) weighs |= barriers.weighs[i];
                    barrier_wait(value_empty + 8 * value_turn.stage, value_turn.parity ^ 1);
                    const u32 full = value_full + 8 * value_turn.stage;
                    if (weighs) {
                        barrier_expect(full, VALUE_BYTES);
                        for (int p = 0; p < PARTS_V; p++)
                            copy_head(value_place + (value_turn.stage * PARTS_V + p) * KEY_BOX, v,
                                      full, p * LINE, blocks[step].key, h / s.group, b);
                    } else {
                        barrier_arrive<1>(full, 0);
                    }
                    value_turn.next();
                }
            }
        }
#endif
    } else {
        take_registers<MULTIPLYING>();
        const int thread = threadIdx.x % WARPGROUP, lane = thread % 32;
        const bool leads = thread == 0;
        // Row r of the accumulators is query `row + 8 r`, columns are keys (channels) `8 j + 2
        // (lane % 4)` and the next.
        const i32 row = thread / 32 * 16 + lane / 4;
        const f32 factor = (f32)s.factor;
#ifndef SCORE
        const f32 scale = factor * LOG2E;
#else
        const f32 scale = LOG2E;
#endif
        if (CONSUMERS > 1) {
#pragma unroll
            for (int i = 0; i < CONSUMERS; i++) {
                if (i < warpgroup) named_arrive<1>(i, CONSUMERS * WARPGROUP);
            }
        }
        for (;; turn.next()) {
            barrier_wait(query_full + 8 * turn.stage, turn.parity);
            const i32 index = barriers.task[turn.stage];
            if (index < 0) break;
            const u32 own = query_place + turn.stage * QUERY_PLACE + warpgroup * OWN * 128;
            const u64 queries = descriptor(BY_CHANNEL, own);
            i32 matrix, tile;
            s.task(index, tiles, matrix, tile);
            const i32 b = matrix / s.heads, h = matrix % s.heads,
                      first = tile * QUERIES + warpgroup * OWN;
            const KeyBlocks blocks = blocks_of(b, h, tile);
            const i32 steps = blocks.count;
            const i32 inside = s.seen(min(first, s.queries - 1));
            // Calls `change` with each score, its query and key.
            auto each = [&](Scores& scores, i32 key, auto change) {
#pragma unroll
                for (int i = 0; i < KEYS / 4; i++) {
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        change(scores[i / 2 * 4 + 2 * r + i % 2], first + row + 8 * r,
                               key + i / 2 * 8 + lane % 4 * 2 + i % 2);
                    }
                }
            };
            // Functions are evaluated of hidden pairs too, since what they read is in range in any
            // case: what several pairs read is then read once.
            auto refine = [&](Scores& scores, KeyBlock block) {
                const i32 key = block.key;
#ifdef SCORE
                each(scores, key, [&](f32& product, i32 query, i32 at) {
                    product = score(product * factor, b, h, query, at CAPTURED);
                });
#endif
#ifdef MASK
                if (block.is_partial) {
                    each(scores, key, [&](f32& score, i32 query, i32 at) {
                        if (!visible(b, h, query, at CAPTURED)) score = -infinity(0.0f);
                    });
                }
#endif
                // All of the block's keys are seen by all of the warpgroup's queries.
                if (key + KEYS <= inside) return;
                each(scores, key, [&](f32& score, i32 query, i32 at) {
                    const i32 seen = query < s.queries ? s.seen(query) : 0;
                    if (at >= seen) score = -infinity(0.0f);
                });
            };
            Softmax softmax;
            Sums sums;
#pragma unroll
            for (int i = 0; i < DV / 2; i++) sums[i] = 0.0f;
#ifndef SKIPS
            // After the sums, which are of all weights.
            auto drop = [&]([[maybe_unused]] Scores& scores, [[maybe_unused]] i32 key) {
#ifdef DROPS
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const u64 query = (u64)matrix * s.queries + first + row + 8 * r,
                              place = query * s.keys + key + lane % 4 * 2;
#pragma unroll
                    for (int j = 0; j < KEYS / 8; j++) {
                        f32* at = &scores[4 * j + 2 * r];
                        keep(at[0], at[1], SEED, place + 8 * j);
                    }
                }
#endif
            };
            if (steps > 0) {
                Scores scores;
                Weights weights;
                barrier_wait(key_full + 8 * key_turn.stage, key_turn.parity);
                issue_scores(scores, queries,
                             descriptor(BY_CHANNEL, key_place + key_turn.stage * KEY_BYTES));
                products_wait<0>();
                fence_sums(scores);
                if (leads) barrier_arrive<1>(key_empty + 8 * key_turn.stage, 0);
                key_turn.next();
                const KeyBlock last = blocks[steps - 1];
                refine(scores, last);
                softmax.take(scores, scale);
                drop(scores, last.key);
                round_weights(weights, scores);
                if (steps > 1) barrier_wait(key_full + 8 * key_turn.stage, key_turn.parity);
                for (i32 step = steps - 2; step >= 0; step--) {
                    const KeyBlock block = blocks[step];
                    if (CONSUMERS > 1) await_turn(warpgroup);
                    issue_scores(scores, queries,
                                 descriptor(BY_CHANNEL, key_place + key_turn.stage * KEY_BYTES));
                    barrier_wait(value_full + 8 * value_turn.stage, value_turn.parity);
                    issue_by_row(sums, weights,
                                 descriptor(BY_KEY, value_place + value_turn.stage * VALUE_BYTES));
                    if (CONSUMERS > 1) pass_turn(warpgroup);
                    products_wait<1>();
                    fence_sums(scores);
                    if (leads) barrier_arrive<1>(key_empty + 8 * key_turn.stage, 0);
                    key_turn.next();
                    refine(scores, block);
                    softmax.take(scores, scale);
                    drop(scores, block.key);
                    fence_sums(scores);
                    // Here, since the compiler moves no wait for products over a loop: else it
                    // would wait before the exponentials, which the products are to hide.
                    if (step > 0) barrier_wait(key_full + 8 * key_turn.stage, key_turn.parity);
                    products_wait<0>();
                    fence_sums(sums);
                    if (leads) barrier_arrive<1>(value_empty + 8 * value_turn.stage, 0);
                    value_turn.next();
#pragma unroll
                    for (int i = 0; i < DV / 2; i++) sums[i] *= softmax.shrink[i / 2 % 2];
                    round_weights(weights, scores);
                }
                barrier_wait(value_full + 8 * value_turn.stage, value_turn.parity);
                issue_by_row(sums, weights,
                             descriptor(BY_KEY, value_place + value_turn.stage * VALUE_BYTES));
                products_wait<0>();
                fence_sums(sums);
                if (leads) barrier_arrive<1>(value_empty + 8 * value_turn.stage, 0);
                value_turn.next();
            }
#else
            auto await_key = [&] { barrier_wait(key_full + 8 * key_turn.stage, key_turn.parity); };
            auto issue_keys = [&](Scores& scores) {
                issue_scores(scores, queries,
                             descriptor(BY_CHANNEL, key_place + key_turn.stage * KEY_BYTES));
            };
            auto release_key = [&] {
                if (leads) barrier_arrive<1>(key_empty + 8 * key_turn.stage, 0);
                key_turn.next();
            };
            auto await_value = [&] {
                barrier_wait(value_full + 8 * value_turn.stage, value_turn.parity);
            };
            auto issue_values = [&](Weights& weights) {
                issue_by_row(sums, weights,
                             descriptor(BY_KEY, value_place + value_turn.stage * VALUE_BYTES));
            };
            auto release_value = [&] {
                if (leads) barrier_arrive<1>(value_empty + 8 * value_turn.stage, 0);
                value_turn.next();
            };
            auto shrink = [&] {
#pragma unroll
                for (int i = 0; i < DV / 2; i++) sums[i] *= softmax.shrink[i / 2 % 2];
            };
            // Whether a query of the warpgroup asks for the block (`threshold.rs` of the IR), and
            // the largest scores of its rows there.
            const f32 limit = LIMIT / scale;
            f32 most[2];
            auto is_asked = [&](const Scores& scores) {
                bool asks = false;
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    most[r] = Softmax::largest_of(scores, r, -infinity(0.0f));
                    asks |= first + row + 8 * r < s.queries && most[r] > -infinity(0.0f) &&
                            most[r] >= softmax.largest[r] + limit;
                }
                asks = named_any<1 + 2 * CONSUMERS>(warpgroup, WARPGROUP, asks);
                if (leads) {
                    barriers.weighs[warpgroup] = asks;
                    barrier_arrive<1>(decided, 0);
                }
                return asks;
            };
            auto take = [&](Scores& scores) {
                softmax.take(scores, scale,
                             [&](int r) { return fmaxf(softmax.largest[r], most[r]); });
            };
            // The stage of a block that is skipped is full once all warpgroups have decided. It is
            // released after the next scores were issued, so that they need not wait for that.
            bool owes = false;
            auto release_skipped = [&] {
                if (!owes) return;
                await_value();
                release_value();
                owes = false;
            };
            // One loop has weights whose products are to be issued, the other has none. Around a
            // branch the compiler would run all products one by one. Each block takes one turn.
            Scores scores;
            Weights weights;
            i32 step = steps - 1;
            if (step >= 0) await_key();
            while (step >= 0) {
                if (CONSUMERS > 1) await_turn(warpgroup);
                issue_keys(scores);
                if (CONSUMERS > 1) pass_turn(warpgroup);
                release_skipped();
                products_wait<0>();
                fence_sums(scores);
                release_key();
                refine(scores, blocks[step]);
                bool asked = is_asked(scores);
                if (step > 0) await_key();
                step--;
                if (!asked) {
                    owes = true;
                    continue;
                }
                take(scores);
                shrink();
                round_weights(weights, scores);
                while (asked && step >= 0) {
                    if (CONSUMERS > 1) await_turn(warpgroup);
                    issue_keys(scores);
                    await_value();
                    issue_values(weights);
                    if (CONSUMERS > 1) pass_turn(warpgroup);
                    products_wait<1>();
                    fence_sums(scores);
                    release_key();
                    refine(scores, blocks[step]);
                    asked = is_asked(scores);
                    if (asked) take(scores);
                    fence_sums(scores);
                    if (step > 0) await_key();
                    products_wait<0>();
                    fence_sums(sums);
                    release_value();
                    step--;
                    if (asked) {
                        shrink();
                        round_weights(weights, scores);
                    } else {
                        owes = true;
                    }
                }
                if (asked) {
                    await_value();
                    issue_values(weights);
                    products_wait<0>();
                    fence_sums(sums);
                    release_value();
                }
            }
            release_skipped();
#endif
            f32 inverse[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                f32 sum = softmax.total[r];
                sum += __shfl_xor_sync(~0u, sum, 1);
                sum += __shfl_xor_sync(~0u, sum, 2);
                inverse[r] = sum > 0.0f ? 1.0f / sum : 0.0f;
                const i32 query = first + row + 8 * r;
                if (lse && lane % 4 == 0 && query < s.queries) {
#ifndef SCORE
                    const f32 scaled = softmax.largest[r] * factor;
#else
                    const f32 scaled = softmax.largest[r];
#endif
                    lse[b * s.lse[0] + h * s.lse[1] + query * s.lse[2]] =
                        sum > 0.0f ? scaled + logf(sum) : -infinity(0.0f);
                }
            }
            // The queries were read by products that are over in every warp once all have come
            // here.
            named_sync<1 + CONSUMERS>(warpgroup, WARPGROUP);
            round_sums<DV, QUERY_BOX>(own, thread, sums, inverse);
            fence_shared();
            named_sync<1 + CONSUMERS>(warpgroup, WARPGROUP);
            if (leads) {
                for (int p = 0; p < PARTS_V; p++)
                    copy_head_out(out, own + p * QUERY_BOX, p * LINE, first, h, b);
                asm volatile("cp.async.bulk.commit_group;" ::: "memory");
                copies_have_read<0>();
                barrier_arrive<1>(query_empty + 8 * turn.stage, 0);
            }
        }
        if (leads) copies_are_done();
    }
}
