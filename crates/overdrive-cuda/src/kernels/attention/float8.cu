// Attention of e4m3 codes on Hopper's tensor cores, along the lines of hopper.cu.
//
// Products of 8 bits take half as long, and the softmax as long as ever. So that has few
// instructions:
// - Sums of weights are a product too: values have eight more channels, which are ones.
// - A row keeps the number that its scores are relative to until one lies SLACK above it. Weights
//   up to 2^(OFFSET + SLACK) still fit into e4m3, and few blocks have sums to multiply.
// - Weights stay in the registers in which scores were. A thread has two neighbouring columns of
//   scores, but four neighbouring keys of weights. So the first two keys of
//   four are neighbours in a block's first half in shared memory, the others in its second.
// Tensor cores keep 14 bits or so of a sum. So it moves to f32 after some blocks, or once its row
// is relative to another number.
//
// Warpgroups take no turns: these gained nothing.
//
// Scales of queries and of blocks of keys are factors of scores, those of channels of values are
// factors of the output.
//
// Text before gives KEYS, CONSUMERS, STAGES, PLACES, the instructions `wgmma` and
// `wgmma_of_registers`, block_mask.cuh if there is a mask function, and walk.cuh. It also gives
// strides of the scales, and SCALE_KEYS that share one. `Element` is the output's.

constexpr int QUERIES = OWN * CONSUMERS;
constexpr int THREADS = (CONSUMERS + 1) * WARPGROUP;
// A line is 128 channels of queries and keys, 128 keys of values, or 64 channels of the output.
constexpr int QUERY_BOX = QUERIES * 128, KEY_BOX = KEYS * 128, VALUE_BOX = DV * 128;
// Outputs leave by the place of the queries, in boxes as large as theirs. Ones are behind values.
constexpr int QUERY_PLACE = QUERY_BOX * PARTS_V, VALUE_PLACE = VALUE_BOX + 1024;
static_assert(KEYS == 128 && D <= 128 && DV <= 128);

constexpr int COPYING = 24, MULTIPLYING = 240;
// Weights are multiplied by 2^OFFSET, and are below the largest e4m3, 448.
constexpr f32 OFFSET = 8.0f, SLACK = 0.8f;
// Blocks whose products are added up before they move to f32.
constexpr int RUN = 7;
// Ones in e4m3.
constexpr u32 ONES = 0x38383838;
constexpr f32 SMALLEST = 1.17549435e-38f;
// Scores of this size times LOG2E are numbers.
constexpr f32 LARGEST = 2e38f;

struct Barriers {
    u64 query_full[PLACES], query_empty[PLACES], key_full[STAGES], key_empty[STAGES],
        value_full[STAGES], value_empty[STAGES];
    // The task whose queries are in each place; negative: there are no more.
    i32 task[PLACES];
};

struct Scales {
    const f32 *q, *k, *v;
};

typedef f32 Scores[KEYS / 2];
// The last four are the sums of weights, twice for each row.
typedef f32 Sums[DV / 2 + 4];
typedef u32 Weights[KEYS / 8];

// Keys of a box that holds those of one half.
__device__ __forceinline__ void copy_keys(u32 to, const TensorMap& map, u32 barrier, int half,
                                          int key, int head, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(0), "r"(2 * half), "r"(key / 4), "r"(head), "r"(batch)
        : "memory");
}
// The key of a score, in its block: `j` is its eight columns, `e` which of two neighbours.
__device__ __forceinline__ int key_of(int lane, int j, int e) {
    constexpr int HALF = KEYS / 16;
    return j % HALF * 16 + lane % 4 * 4 + j / HALF * 2 + e;
}

__device__ __forceinline__ u32 four(f32 a, f32 b, f32 c, f32 d) {
    u32 codes;
    asm("{\n.reg .b16 low, high;\ncvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\nmov.b32 %0, {low, high};\n}"
        : "=r"(codes)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return codes;
}
__device__ __forceinline__ void round_weights(Weights& weights, const Scores& scores) {
#pragma unroll
    for (int g = 0; g < KEYS / 16; g++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const f32 *low = &scores[4 * g + 2 * r], *high = &scores[4 * (g + KEYS / 16) + 2 * r];
            weights[2 * g + r] = four(low[0], low[1], high[0], high[1]);
        }
    }
}

__device__ __forceinline__ void issue_scores(Scores& scores, u64 queries, u64 keys) {
    fence_sums(scores);
    products_begin();
#pragma unroll
    for (int c = 0; c < D / 32; c++) wgmma(scores, queries + 2 * c, keys + 2 * c, c > 0);
    products_commit();
}
__device__ __forceinline__ void issue_values(Sums& sums, Weights& weights, u64 values) {
    fence_sums(sums);
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++) asm volatile("" : "+r"(weights[i])::"memory");
    products_begin();
#pragma unroll
    for (int c = 0; c < KEYS / 32; c++) {
        const u32 chunk[4] = {weights[4 * c], weights[4 * c + 1], weights[4 * c + 2],
                              weights[4 * c + 3]};
        wgmma_of_registers(sums, chunk, values + 2 * c);
    }
    products_commit();
}

// Two rows of a thread: what their scores are relative to, and by what earlier weights shrink once
// that has changed.
struct Softmax {
    f32 base[2] = {-infinity(0.0f), -infinity(0.0f)}, shrink[2] = {1.0f, 1.0f};

    // Scores become weights. A factor makes them logarithms to base 2.
    __device__ __forceinline__ void take(Scores& scores, const f32 (&factor)[2]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            f32 most = scores[2 * r], most2 = scores[2 * r + 1];
#pragma unroll
            for (int j = 1; j < KEYS / 8; j++) {
                most = fmaxf(most, scores[4 * j + 2 * r]);
                most2 = fmaxf(most2, scores[4 * j + 2 * r + 1]);
            }
            most = fmaxf(most, most2);
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2)) * factor[r];
            const bool rises = most > base[r] + SLACK;
            shrink[r] = rises ? power_of_two(base[r] - most) : 1.0f;
            base[r] = rises ? most : base[r];
            // A row that has seen no key has base -infinity, whose difference is NaN: any finite
            // number will do there.
            const f32 shift = OFFSET - (base[r] == -infinity(0.0f) ? 0.0f : base[r]);
#pragma unroll
            for (int i = 0; i < KEYS / 4; i++) {
                f32& score = scores[i / 2 * 4 + 2 * r + i % 2];
                score = power_of_two(fmaf(score, factor[r], shift));
            }
        }
    }
    // Whether a row of the warp has another base than before.
    __device__ __forceinline__ bool moved() const {
        return __any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
              const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap out, f32* lse,
              const Scales scales, Counter* counter, const __grid_constant__ AttentionShape s
#ifdef MASK
              , const __grid_constant__ MaskGrid mask
#endif
              CAPTURES) {
    extern __shared__ unsigned char bytes[];
    __shared__ Barriers barriers;
    const u32 query_place = (shared_address(bytes) + 1023) & ~1023u;
    const u32 key_place = query_place + PLACES * QUERY_PLACE,
              value_place = key_place + STAGES * KEY_BOX;
    const u32 query_full = shared_address(barriers.query_full),
              query_empty = shared_address(barriers.query_empty);
    const u32 key_full = shared_address(barriers.key_full),
              key_empty = shared_address(barriers.key_empty);
    const u32 value_full = shared_address(barriers.value_full),
              value_empty = shared_address(barriers.value_empty);
    if (threadIdx.x == 0) {
        for (int i = 0; i < PLACES; i++)
            barrier_init(query_full + 8 * i, 1), barrier_init(query_empty + 8 * i, CONSUMERS);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(key_full + 8 * i, 1), barrier_init(key_empty + 8 * i, CONSUMERS);
            barrier_init(value_full + 8 * i, 1), barrier_init(value_empty + 8 * i, CONSUMERS);
        }
        barriers_are_set();
    }
    for (int i = threadIdx.x; i < STAGES * 256; i += THREADS) {
        const u32 to = value_place + i / 256 * VALUE_PLACE + VALUE_BOX + i % 256 * 4;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(ONES) : "memory");
    }
    fence_shared();
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
        if (threadIdx.x != CONSUMERS * WARPGROUP) return;
        i32 index = blockIdx.x;
        while (index < tasks) {
            const i32 following = gridDim.x + atomicAdd(&counter->taken, 1);
            i32 matrix, tile;
            s.task(index, tiles, matrix, tile);
            const i32 b = matrix / s.heads, h = matrix % s.heads, group = h / s.group;
            const KeyBlocks blocks = blocks_of(b, h, tile);
            auto copy_block = [&](i32 key) {
                const u32 full = key_full + 8 * key_turn.stage;
                barrier_wait(key_empty + 8 * key_turn.stage, key_turn.parity ^ 1);
                barrier_expect(full, KEY_BOX);
                for (int half = 0; half < 2; half++)
                    copy_keys(key_place + key_turn.stage * KEY_BOX + half * (KEY_BOX / 2), k, full,
                              half, key, group, b);
                key_turn.next();
            };
            const i32 steps = blocks.count;
            if (steps > 0) copy_block(blocks[steps - 1].key);
            barrier_wait(query_empty + 8 * turn.stage, turn.parity ^ 1);
            barriers.task[turn.stage] = index;
            barrier_expect(query_full + 8 * turn.stage, QUERY_BOX);
            copy_head(query_place + turn.stage * QUERY_PLACE, q, query_full + 8 * turn.stage, 0,
                      tile * QUERIES, h, b);
            turn.next();
            for (i32 step = steps - 1; step >= 0; step--) {
                if (step > 0) copy_block(blocks[step - 1].key);
                const u32 full = value_full + 8 * value_turn.stage;
                barrier_wait(value_empty + 8 * value_turn.stage, value_turn.parity ^ 1);
                barrier_expect(full, VALUE_BOX);
                copy_head(value_place + value_turn.stage * VALUE_PLACE, v, full, blocks[step].key,
                          0, group, b);
                value_turn.next();
            }
            index = following;
        }
        barrier_wait(query_empty + 8 * turn.stage, turn.parity ^ 1);
        barriers.task[turn.stage] = -1;
        barrier_arrive<1>(query_full + 8 * turn.stage, 0);
        // The last block leaves the counter as the next launch expects it.
        __threadfence();
        if (atomicAdd(&counter->done, 1) == gridDim.x - 1) *counter = {0, 0};
        return;
    }
    take_registers<MULTIPLYING>();
    const int thread = threadIdx.x % WARPGROUP, lane = thread % 32;
    const bool leads = thread == 0;
    // Row r of the sums is query `row + 8 r`.
    const i32 row = thread / 32 * 16 + lane / 4;
    for (;; turn.next()) {
        barrier_wait(query_full + 8 * turn.stage, turn.parity);
        const i32 index = barriers.task[turn.stage];
        if (index < 0) break;
        const u32 own = query_place + turn.stage * QUERY_PLACE + warpgroup * OWN * 128;
        const u64 queries = descriptor(BY_CHANNEL, own);
        i32 matrix, tile;
        s.task(index, tiles, matrix, tile);
        const i32 b = matrix / s.heads, h = matrix % s.heads, group = h / s.group,
                  first = tile * QUERIES + warpgroup * OWN;
        const KeyBlocks blocks = blocks_of(b, h, tile);
        const i32 steps = blocks.count;
        const i32 inside = s.seen(min(first, s.queries - 1));
        f32 of_query[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const i32 query = min(first + row + 8 * r, s.queries - 1);
            of_query[r] = scales.q[b * Q_SCALE_B + h * Q_SCALE_H + query * Q_SCALE_T] *
                          (f32)s.factor;
#ifndef SCORE
            of_query[r] *= LOG2E;
#endif
        }
        // A product of small scales should not become 0, since it multiplies -infinity.
        auto scale_of = [&](f32 (&factor)[2], i32 key) {
            const f32 of_keys = scales.k[b * K_SCALE_B + group * K_SCALE_H +
                                         key / SCALE_KEYS * K_SCALE_T];
            factor[0] = fmaxf(of_query[0] * of_keys, SMALLEST);
            factor[1] = fmaxf(of_query[1] * of_keys, SMALLEST);
        };
        // Calls `change` with each score, its row, and its key.
        auto each = [&](Scores& scores, i32 key, auto change) {
#pragma unroll
            for (int i = 0; i < KEYS / 4; i++) {
#pragma unroll
                for (int r = 0; r < 2; r++)
                    change(scores[i / 2 * 4 + 2 * r + i % 2], r,
                           key + key_of(lane, i / 2, i % 2));
            }
        };
        auto refine = [&](Scores& scores, KeyBlock block, f32 (&factor)[2]) {
#ifdef SCORE
            each(scores, block.key, [&](f32& product, int r, i32 at) {
                f32 found = score(product * factor[r], b, h, first + row + 8 * r, at CAPTURED);
                // The lowest number of all hides a key: its logarithm to base 2 must be a number.
                if (fabsf(found) > LARGEST && fabsf(found) < infinity(0.0f))
                    found = copysignf(LARGEST, found);
                product = found;
            });
            factor[0] = factor[1] = LOG2E;
#endif
#ifdef MASK
            if (block.is_partial) {
                each(scores, block.key, [&](f32& score, int r, i32 at) {
                    if (!visible(b, h, first + row + 8 * r, at CAPTURED)) score = -infinity(0.0f);
                });
            }
#endif
            // All of the block's keys are seen by all of the warpgroup's queries.
            if (block.key + KEYS <= inside) return;
            each(scores, block.key, [&](f32& score, int r, i32 at) {
                const i32 query = first + row + 8 * r, seen = query < s.queries ? s.seen(query) : 0;
                if (at >= seen) score = -infinity(0.0f);
            });
        };
        Softmax softmax;
        Sums sums;
        f32 kept[DV / 2], total[2] = {}, since[2] = {1.0f, 1.0f};
#pragma unroll
        for (int i = 0; i < DV / 2; i++) kept[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < DV / 2 + 4; i++) sums[i] = 0.0f;
        auto keep = [&] {
#pragma unroll
            for (int i = 0; i < DV / 2; i++) kept[i] = fmaf(kept[i], since[i / 2 % 2], sums[i]);
#pragma unroll
            for (int r = 0; r < 2; r++) total[r] = fmaf(total[r], since[r], sums[DV / 2 + 2 * r]);
#pragma unroll
            for (int i = 0; i < DV / 2 + 4; i++) sums[i] = 0.0f;
        };
        if (steps > 0) {
            Scores scores;
            Weights weights;
            f32 factor[2];
            barrier_wait(key_full + 8 * key_turn.stage, key_turn.parity);
            issue_scores(scores, queries,
                         descriptor(BY_CHANNEL, key_place + key_turn.stage * KEY_BOX));
            const KeyBlock last = blocks[steps - 1];
            scale_of(factor, last.key);
            products_wait<0>();
            fence_sums(scores);
            if (leads) barrier_arrive<1>(key_empty + 8 * key_turn.stage, 0);
            key_turn.next();
            refine(scores, last, factor);
            softmax.take(scores, factor);
            round_weights(weights, scores);
            int run = 0;
            if (steps > 1) barrier_wait(key_full + 8 * key_turn.stage, key_turn.parity);
            for (i32 step = steps - 2; step >= 0; step--) {
                const KeyBlock block = blocks[step];
                scale_of(factor, block.key);
                issue_scores(scores, queries,
                             descriptor(BY_CHANNEL, key_place + key_turn.stage * KEY_BOX));
                barrier_wait(value_full + 8 * value_turn.stage, value_turn.parity);
                issue_values(sums, weights,
                             descriptor(BY_CHANNEL, value_place + value_turn.stage * VALUE_PLACE));
                products_wait<1>();
                fence_sums(scores);
                if (leads) barrier_arrive<1>(key_empty + 8 * key_turn.stage, 0);
                key_turn.next();
                refine(scores, block, factor);
                softmax.take(scores, factor);
                fence_sums(scores);
                // Here, since the compiler moves no wait for products over a loop (hopper.cu).
                if (step > 0) barrier_wait(key_full + 8 * key_turn.stage, key_turn.parity);
                products_wait<0>();
                fence_sums(sums);
                if (leads) barrier_arrive<1>(value_empty + 8 * value_turn.stage, 0);
                value_turn.next();
                if (++run == RUN || softmax.moved()) {
                    keep();
                    since[0] = softmax.shrink[0], since[1] = softmax.shrink[1];
                    run = 0;
                }
                round_weights(weights, scores);
            }
            barrier_wait(value_full + 8 * value_turn.stage, value_turn.parity);
            issue_values(sums, weights,
                         descriptor(BY_CHANNEL, value_place + value_turn.stage * VALUE_PLACE));
            products_wait<0>();
            fence_sums(sums);
            if (leads) barrier_arrive<1>(value_empty + 8 * value_turn.stage, 0);
            value_turn.next();
            keep();
        }
        f32 inverse[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            inverse[r] = total[r] > 0.0f ? 1.0f / total[r] : total[r];
            const i32 query = first + row + 8 * r;
            if (lse && lane % 4 == 0 && query < s.queries) {
                lse[b * s.lse[0] + h * s.lse[1] + query * s.lse[2]] =
                    total[r] == 0.0f ? -infinity(0.0f)
                                     : (softmax.base[r] - OFFSET) / LOG2E + logf(total[r]);
            }
        }
        const f32* of_channels = scales.v + b * V_SCALE_B + group * V_SCALE_H;
#pragma unroll
        for (int i = 0; i < DV / 2; i++)
            kept[i] *= of_channels[(i / 4 * 8 + lane % 4 * 2 + i % 2) * V_SCALE_T];
        // The queries were read by products that are over in every warp once all have come here.
        named_sync<1>(warpgroup, WARPGROUP);
        round_sums<DV, QUERY_BOX>(own, thread, kept, inverse);
        fence_shared();
        named_sync<1>(warpgroup, WARPGROUP);
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
