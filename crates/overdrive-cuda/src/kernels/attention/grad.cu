// Gradients of attention of 16-bit floats on Hopper's tensor cores, in one pass of five products.
// Dao et al., arXiv:2205.14135, algorithm 4; Shah et al., arXiv:2407.08608.
//
// A task is a tile of keys. It walks over the blocks of queries that see the tile, last to first,
// in all query heads of the key head. Scores and dweights are transposed (keys by queries), so that
// weights and dscores stay in registers as left operands of dv and dk. For dq the dscores go
// through shared memory, and both warpgroups multiply 64 channels of all keys of the tile by them.
//
// Sums of dq of several tiles of keys meet in memory as f32, by bulk additions of whole blocks. A
// counter of each block says which tile's turn it is. So tiles are added in order, and every launch
// gives the same bits. Tasks begin in that order too, one per multiprocessor, and all of a head
// walk the same way. So a tile follows the one before by about a block, and rarely waits. Blocks
// take tasks as they begin. So a tile waits only for blocks that run, however few find room beside
// kernels of collectives, which wait for other GPUs in turn.
// `attention_grad_round` rounds the sums.
//
// A warpgroup multiplies dq of the block before this one, so that it need not wait for the other's
// dscores. Two warpgroups take turns (ping-pong): while one exponentiates, the other multiplies.
//
// If there are few tiles, each is split among several tasks, whose dk and dv are added up by
// `attention_grad_round`. Channels past D and DV and rows past the end are zeros that TMA fills in
// and clips.
//
// If there is a mask function, a tile walks the list of its blocks that are not empty
// (block_mask.cuh). Its turn is then its rank among the tiles that have the block.
//
// Text before gives QUERY_STAGES, BLOCK_QUERIES, and the instructions `wgmma` (of scores and
// dweights), `wgmma_of_columns` (of dq) and `wgmma_of_registers` (of dk and dv). Then comes
// grad_tasks.cuh.

constexpr int THREADS = (CONSUMERS + 1) * WARPGROUP;
constexpr int TILE_BOX = TILE * 128, QUERY_BOX = BLOCK_QUERIES * 128;
// Each warp tells that it has read a stage.
constexpr int READERS = CONSUMERS * 4;
// Stages of dout, and of dscores.
constexpr int STAGES = 2;
// A warpgroup's share of dq is 64 channels of so many queries, in the order of its registers.
constexpr int SUM_QUERIES = PARTS > 1 ? BLOCK_QUERIES : BLOCK_QUERIES / 2;
constexpr int SUM = 64 * SUM_QUERIES;

// The number that is subtracted from the exponents of a row, in powers of two. With a score
// function it is in units of the scores, since these may be the lowest number of all. A row that
// sees nothing has an lse of -infinity. The shift of +infinity makes its weights 0.
__device__ __forceinline__ f32 shift_of(f32 lse) {
#ifdef SLOPES
    constexpr f32 UNIT = 1.0f;
#else
    constexpr f32 UNIT = LOG2E;
#endif
    return lse == -infinity(0.0f) ? infinity(0.0f) : lse * UNIT;
}

// Registers of each thread of the warps that copy; the others share the rest. Walks of lists take
// more than 24. Dropout leaves no more.
#if defined(MASK) && !defined(DROPS)
constexpr int COPY_REGISTERS = 40;
#else
constexpr int COPY_REGISTERS = 24;
#endif
constexpr int OWN_REGISTERS = (504 - COPY_REGISTERS) / CONSUMERS;

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

// Four numbers of each thread of a warpgroup beside each other.
template <int Count>
__device__ __forceinline__ float4* store_plain(float4* to, const f32 (&sums)[Count]) {
#pragma unroll
    for (int i = 0; i < Count / 4; i++, to += WARPGROUP)
        *to = make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
    return to;
}

#ifdef DROPS
typedef u32 Stays[(BLOCK_QUERIES / 2 + 31) / 32];

// Bit i: weight i of a thread stays. `first` is the place of the weight of its first query and key.
__device__ __forceinline__ void draw(Stays& stays, u64 seed, u64 first, u64 keys) {
    constexpr int PARTS_OF = sizeof(Stays) / 4;
#pragma unroll
    for (int part = 0; part < PARTS_OF; part++) stays[part] = 0;
    if constexpr (FOURS) {
        // One draw covers four keys of a query, which are in four lanes. Each lane draws for one of
        // the two queries and two rows of the four lanes.
        const int lane = threadIdx.x % 32, own = lane / 4 % 4;
        u32 bits[PARTS_OF] = {};
        const u64 block = (first - own + own % 2 * keys + own / 2 * 8) >> 2;
#pragma unroll
        for (int j = 0; j < BLOCK_QUERIES / 8; j++) {
            const uint4 words = philox_block(seed, SITE, block + j * 2 * keys);
            const u32 four = (words.x >= REACH) | (words.y >= REACH) << 1 |
                             (words.z >= REACH) << 2 | (words.w >= REACH) << 3;
            bits[j / 8] |= four << j % 8 * 4;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int part = 0; part < PARTS_OF; part++) {
                const u32 of = __shfl_sync(~0u, bits[part], (lane & ~12) | i << 2);
                stays[part] |= (of >> own & 0x11111111u) << i;
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < BLOCK_QUERIES / 2; i++) {
            const u64 place = first + (i / 4 * 8 + i % 2) * keys + i / 2 % 2 * 8;
            stays[i / 32] |= (u32)(random_bits(seed, SITE, place) >= REACH) << i % 32;
        }
    }
}

__device__ __forceinline__ f32 kept_of(const Stays& stays, int i) {
    return stays[i / 32] >> i % 32 & 1 ? (f32)STAYS : 0.0f;
}
#define KEPT(i, x) (kept_of(stays, i) * (x))
#else
#define KEPT(i, x) (x)
#endif

struct Barriers {
    u64 key_full, value_full, own_empty, query_full[QUERY_STAGES], query_empty[QUERY_STAGES],
        dout_full[STAGES], dout_empty[STAGES], dscores_full[STAGES], task_full[2], task_empty[2],
        sum_full[CONSUMERS], sum_empty[CONSUMERS];
    // Read anew wherever they are used, which is less than to keep them in registers.
    volatile Task tasks[2];
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_grad(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap dout,
                   const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                   const __grid_constant__ TensorMap dk, const __grid_constant__ TensorMap dv,
                   const f32* lse, const f32* delta, f32* sums, f32* partial, u32* counters,
                   const __grid_constant__ AttentionShape s, const __grid_constant__ Grad g
#ifdef MASK
                   , const __grid_constant__ MaskGrid mask
#endif
                   CAPTURES) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    __shared__ Barriers barriers;
    __shared__ f32 shifts[QUERY_STAGES][BLOCK_QUERIES], deltas[QUERY_STAGES][BLOCK_QUERIES];
#ifdef MASK
    __shared__ Seen places[QUERY_STAGES];
#endif
    // Constants, which take no registers.
    const u32 key_place = shared_address(bytes), value_place = key_place + PARTS * TILE_BOX,
              query_place = value_place + PARTS_V * TILE_BOX,
              dout_place = query_place + QUERY_STAGES * PARTS * QUERY_BOX,
              dscore_place = dout_place + STAGES * PARTS_V * QUERY_BOX,
              sum_place = dscore_place + STAGES * CONSUMERS * QUERY_BOX;
    const u32 key_full = shared_address(&barriers.key_full),
              value_full = shared_address(&barriers.value_full),
              own_empty = shared_address(&barriers.own_empty),
              query_full = shared_address(barriers.query_full),
              query_empty = shared_address(barriers.query_empty),
              dout_full = shared_address(barriers.dout_full),
              dout_empty = shared_address(barriers.dout_empty),
              dscores_full = shared_address(barriers.dscores_full),
              task_full = shared_address(barriers.task_full),
              task_empty = shared_address(barriers.task_empty),
              sum_full = shared_address(barriers.sum_full),
              sum_empty = shared_address(barriers.sum_empty);
    if (threadIdx.x == 0) {
        // The swizzle of boxes is by address.
        if (key_place % 1024 != 0) __trap();
        barrier_init(key_full, 1), barrier_init(value_full, 1);
        barrier_init(own_empty, CONSUMERS);
        for (int i = 0; i < QUERY_STAGES; i++)
            barrier_init(query_full + 8 * i, 2), barrier_init(query_empty + 8 * i, READERS);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(dout_full + 8 * i, 1), barrier_init(dout_empty + 8 * i, READERS);
            barrier_init(dscores_full + 8 * i, READERS);
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(task_full + 8 * i, 1);
            barrier_init(task_empty + 8 * i, READERS + CONSUMERS + 1);
        }
        for (int i = 0; i < CONSUMERS; i++)
            barrier_init(sum_full + 8 * i, 4), barrier_init(sum_empty + 8 * i, 1);
        barriers_are_set();
    }
    __syncthreads();
    after_previous();
    const int warpgroup = threadIdx.x / WARPGROUP, lane = threadIdx.x % 32;
    // Tasks so far, and steps so far of all of them, which tell the stage and the parity of its
    // turn.
    u32 count = 0, n = 0;
    if (warpgroup == CONSUMERS) {
        give_registers<COPY_REGISTERS>();
        const int warp = threadIdx.x % WARPGROUP / 32;
        if (warp == 0 && lane == 0) {
            for (i32 index = atomicAdd(counters, 1);;) {
                barrier_wait(task_empty + 8 * (count % 2), count / 2 % 2 ^ 1);
                volatile Task& t = barriers.tasks[count % 2];
                if (index < g.tasks) decode(t, s, g, index MASK_GIVEN);
                else t.steps = -1;
                barrier_arrive<1>(task_full + 8 * (count % 2), 0);
                count++;
                if (index >= g.tasks) break;
                Place place(t MASK_GIVEN);
                for (i32 left = t.steps; left > 0; left--, n++) {
                    const Seen at = place.seen(MASK_ALONE);
                    const i32 first = at.block * BLOCK_QUERIES;
                    const u32 stage = n % QUERY_STAGES;
                    barrier_wait(query_empty + 8 * stage, n / QUERY_STAGES % 2 ^ 1);
                    u32 full = query_full + 8 * stage;
                    barrier_expect(full, PARTS * QUERY_BOX);
                    copy_boxes<PARTS, QUERY_BOX>(query_place + stage * PARTS * QUERY_BOX, q, full,
                                                 first, at.h, t.b);
                    barrier_wait(dout_empty + 8 * (n % 2), n / 2 % 2 ^ 1);
                    full = dout_full + 8 * (n % 2);
                    barrier_expect(full, PARTS_V * QUERY_BOX);
                    copy_boxes<PARTS_V, QUERY_BOX>(dout_place + n % 2 * PARTS_V * QUERY_BOX, dout,
                                                   full, first, at.h, t.b);
                    // After the first queries, whose place is free earlier.
                    if (left == t.steps) {
                        barrier_wait(own_empty, count % 2);
                        barrier_expect(key_full, PARTS * TILE_BOX);
                        copy_boxes<PARTS, TILE_BOX>(key_place, k, key_full, t.key, t.head, t.b);
                        barrier_expect(value_full, PARTS_V * TILE_BOX);
                        copy_boxes<PARTS_V, TILE_BOX>(value_place, v, value_full, t.key, t.head,
                                                      t.b);
                    }
                    place.next(t MASK_GIVEN);
                }
                // As late as can be, so that tasks begin in order.
                index = atomicAdd(counters, 1);
            }
        } else if (warp == CONSUMERS + 1) {
            for (;; count++) {
                barrier_wait(task_full + 8 * (count % 2), count / 2 % 2);
                const volatile Task& t = barriers.tasks[count % 2];
                if (t.steps < 0) break;
                Place place(t MASK_GIVEN);
                for (i32 left = t.steps; left > 0; left--, n++, place.next(t MASK_GIVEN)) {
                    const Seen at = place.seen(MASK_ALONE);
                    constexpr int EACH = (BLOCK_QUERIES + 31) / 32;
                    f32 shift[EACH], less[EACH];
#pragma unroll
                    for (int i = 0; i < EACH; i++) {
                        const i32 query = at.block * BLOCK_QUERIES + lane + 32 * i;
                        shift[i] = infinity(0.0f), less[i] = 0.0f;
                        if (query < s.queries) {
                            shift[i] = shift_of(
                                lse[t.b * s.lse[0] + at.h * s.lse[1] + query * s.lse[2]]);
                            less[i] =
                                delta[t.b * g.delta[0] + at.h * g.delta[1] + query * g.delta[2]];
                        }
                    }
                    const u32 stage = n % QUERY_STAGES;
                    barrier_wait(query_empty + 8 * stage, n / QUERY_STAGES % 2 ^ 1);
#pragma unroll
                    for (int i = 0; i < EACH; i++) {
                        if (lane + 32 * i < BLOCK_QUERIES) {
                            shifts[stage][lane + 32 * i] = shift[i];
                            deltas[stage][lane + 32 * i] = less[i];
                        }
                    }
#ifdef MASK
                    if (lane == 0) places[stage] = at;
#endif
                    __syncwarp();
                    if (lane == 0) barrier_arrive<1>(query_full + 8 * stage, 0);
                }
                __syncwarp();
                if (lane == 0) barrier_arrive<1>(task_empty + 8 * (count % 2), 0);
            }
        } else if (warp > 0 && lane == 0) {
            const int own = warp - 1;
            const u32 from = sum_place + own * SUM * 4;
            for (;; count++) {
                barrier_wait(task_full + 8 * (count % 2), count / 2 % 2);
                const volatile Task& t = barriers.tasks[count % 2];
                if (t.steps < 0) break;
                Place place(t MASK_GIVEN);
                for (i32 left = t.steps; left > 0; left--, n++, place.next(t MASK_GIVEN)) {
                    const Seen at = place.seen(MASK_ALONE);
                    const i32 block = (t.b * s.heads * s.group + at.h) * blocks_of(s) + at.block,
                              sum = block * CONSUMERS + own;
                    f32* const to = sums + (i64)sum * SUM;
                    u32* const turns = counters + 1 + sum;
#ifdef MASK
                    const u32 rank = mask.ranks_of(t.b, at.h, at.block)[1 + t.tile];
#else
                    // All tiles before this one have blocks that this one has.
                    const u32 rank = t.tile;
#endif
                    u32 turn = rank;
                    if (rank > 0) {
                        do {
                            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                                         : "=r"(turn)
                                         : "l"(turns)
                                         : "memory");
                        } while (turn != rank);
                    }
                    barrier_wait(sum_full + 8 * own, n % 2);
                    if (rank == 0) {
                        asm volatile(
                            "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                            "r"(from), "n"(SUM * 4)
                            : "memory");
                    } else {
                        // From what was acquired to what the copy engine reads.
                        asm volatile("fence.proxy.async.global;" ::: "memory");
                        asm volatile(
                            "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], "
                            "[%1], %2;" ::"l"(to),
                            "r"(from), "n"(SUM * 4)
                            : "memory");
                    }
                    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
                    copies_have_read<0>();
                    barrier_arrive<1>(sum_empty + 8 * own, 0);
                    copies_are_done();
                    asm volatile("fence.proxy.async.global;" ::: "memory");
                    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(turns) : "memory");
                }
                barrier_arrive<1>(task_empty + 8 * (count % 2), 0);
            }
        }
    } else {
        take_registers<OWN_REGISTERS>();
        const int thread = threadIdx.x % WARPGROUP;
        // Row r of the accumulators is key `thread / 32 * 16 + lane / 4 + 8 r`, columns are queries
        // (channels) `8 j + column` and the next.
        const i32 column = lane % 4 * 2;
        [[maybe_unused]] const f32 factor = (f32)s.factor, scale = factor * LOG2E;
        // Address of a lane's line of four transposed matrices of 8 x 8 dscores.
        const u32 own_dscore = dscore_place + warpgroup * QUERY_BOX +
                               (lane / 16 * 8 + lane % 8) * 128 +
                               (((thread / 32 * 2 + lane / 8 % 2) ^ lane % 8) << 4);
        auto issue_sum = [&](f32(&dqs)[SUM_QUERIES / 2], u32 n) {
            const u64 columns = descriptor(by_row(TILE_BOX),
                                           key_place + (PARTS > 1 ? warpgroup * TILE_BOX : 0));
            const u64 rows =
                descriptor(BY_CHANNEL, dscore_place + n % 2 * CONSUMERS * QUERY_BOX +
                                           (PARTS > 1 ? 0 : warpgroup * SUM_QUERIES * 128));
            products_begin();
#pragma unroll
            for (int c = 0; c < TILE / 16; c++) {
                wgmma_of_columns(dqs, columns + c * (16 * 128 / 16),
                                 rows + c / 4 * (QUERY_BOX / 16) + c % 4 * 2, c > 0);
            }
            products_commit();
        };
        auto hand_over = [&](f32(&dqs)[SUM_QUERIES / 2], u32 n) {
            barrier_wait(sum_empty + 8 * warpgroup, n % 2 ^ 1);
            const u32 to = sum_place + warpgroup * SUM * 4 + thread * 16;
#pragma unroll
            for (int j = 0; j < SUM_QUERIES / 8; j++) {
                asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + j * 2048),
                             "f"(dqs[4 * j]), "f"(dqs[4 * j + 1]), "f"(dqs[4 * j + 2]),
                             "f"(dqs[4 * j + 3])
                             : "memory");
            }
            fence_shared();
            __syncwarp();
            if (lane == 0) barrier_arrive<1>(sum_full + 8 * warpgroup, 0);
        };
        // Ping-pong: a warpgroup issues the sums of a step and the scores of the next after the
        // other has.
        auto await_turn = [&] { named_sync<4>(warpgroup, CONSUMERS * WARPGROUP); };
        auto pass_turn = [&] { named_arrive<4>(warpgroup ^ 1, CONSUMERS * WARPGROUP); };
        for (;; count++) {
            barrier_wait(task_full + 8 * (count % 2), count / 2 % 2);
            const volatile Task& t = barriers.tasks[count % 2];
            if (t.steps < 0) break;
            const u32 begin = n, end = n + t.steps;
            f32 dks[D / 2], dvs[DV / 2];
#pragma unroll
            for (int i = 0; i < D / 2; i++) dks[i] = 0.0f;
#pragma unroll
            for (int i = 0; i < DV / 2; i++) dvs[i] = 0.0f;
            {
#ifndef MASK
                Place way(t);
#endif
                const i32 own_key = t.key + warpgroup * OWN, inside = s.keys - own_key;
#ifdef CAUSAL
                // A query sees the keys up to so many past its own position.
                const i32 ahead = s.keys - s.queries - own_key;
#endif
                barrier_wait(key_full, count % 2);
                barrier_wait(value_full, count % 2);
                fence_sums(dks);
                fence_sums(dvs);
                for (; n != end; n++) {
                    const u32 stage = n % 2, query_stage = n % QUERY_STAGES;
                    const u32 queries = query_place + query_stage * PARTS * QUERY_BOX,
                              douts = dout_place + stage * PARTS_V * QUERY_BOX;
                    u32 weights[BLOCK_QUERIES / 4], dscores[BLOCK_QUERIES / 4];
                    f32 scores[BLOCK_QUERIES / 2], dweights[BLOCK_QUERIES / 2];
                    barrier_wait(query_full + 8 * query_stage, n / QUERY_STAGES % 2);
#ifdef MASK
                    const Seen place = places[query_stage];
#else
                    const Seen place = way.seen();
#endif
                    issue_by_channel<D, TILE_BOX, QUERY_BOX>(
                        scores, descriptor(BY_CHANNEL, key_place + warpgroup * OWN * 128),
                        descriptor(BY_CHANNEL, queries));
                    barrier_wait(dout_full + 8 * stage, n / 2 % 2);
                    issue_by_channel<DV, TILE_BOX, QUERY_BOX>(
                        dweights, descriptor(BY_CHANNEL, value_place + warpgroup * OWN * 128),
                        descriptor(BY_CHANNEL, douts));
                    if (n != begin || warpgroup == 1) pass_turn();
#ifdef DROPS
                    Stays stays;
                    {
                        const u64 query = ((u64)t.b * s.heads * s.group + place.h) * s.queries +
                                          place.block * BLOCK_QUERIES + column;
                        const i32 key = own_key + thread / 32 * 16 + lane / 4;
                        draw(stays, SEED, query * s.keys + key, s.keys);
                    }
#endif
                    products_wait<1>();
                    fence_sums(scores);
                    fence_sums(dks);
                    // The sum of the step before is done too, so that its queries may go.
                    if (lane == 0 && n != begin)
                        barrier_arrive<1>(query_empty + 8 * ((n - 1) % QUERY_STAGES), 0);
                    const i32 first = place.block * BLOCK_QUERIES;
                    [[maybe_unused]] const i32 b = t.b;
                    [[maybe_unused]] i32 first_key = own_key;
                    // Stops the compiler from keeping values that depend on keys alone over all
                    // blocks of queries. There are no registers for them.
                    asm volatile("" : "+r"(first_key));
#ifdef SLOPES
                    // Weights go to their products as they are; what becomes dscores is multiplied
                    // by the slope of the score function.
#pragma unroll
                    for (int i = 0; i < BLOCK_QUERIES / 2; i += 2) {
                        const i32 query = first + i / 4 * 8 + column;
                        const i32 at = thread / 32 * 16 + lane / 4 + i / 2 % 2 * 8;
                        const float2 shift = *(const float2*)&shifts[query_stage][query - first];
                        f32 both[2];
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            const Scored result = scored(scores[i + e] * factor, b, place.h,
                                                         query + e, first_key + at CAPTURED);
                            const f32 less = e ? shift.y : shift.x;
                            // Queries past the end count for nothing, whatever the function returns
                            // for them.
                            bool shown = at < inside && less < infinity(0.0f);
#ifdef CAUSAL
                            shown &= at <= query + e + ahead;
#endif
                            const f32 weight = power_of_two((result.score - less) * LOG2E);
                            both[e] = shown ? weight : 0.0f;
                            scores[i + e] = both[e] != 0.0f ? both[e] * result.slope : 0.0f;
                        }
                        weights[i / 2] = pair(KEPT(i, both[0]), KEPT(i + 1, both[1]));
                    }
#ifdef MASK
                    if (place.is_partial) {
#pragma unroll
                        for (int i = 0; i < BLOCK_QUERIES / 2; i++) {
                            const i32 query = first + i / 4 * 8 + column + i % 2;
                            const i32 at = thread / 32 * 16 + lane / 4 + i / 2 % 2 * 8;
                            if (!visible(b, place.h, query, first_key + at CAPTURED)) {
                                scores[i] = 0.0f;
                                weights[i / 2] &= i % 2 ? 0xffffu : 0xffff0000u;
                            }
                        }
                    }
#endif
#else
#pragma unroll
                    for (int j = 0; j < BLOCK_QUERIES / 8; j++) {
                        const float2 shift = *(const float2*)&shifts[query_stage][8 * j + column];
#pragma unroll
                        for (int r = 0; r < 2; r++) {
                            f32* at = &scores[4 * j + 2 * r];
                            at[0] = power_of_two(fmaf(at[0], scale, -shift.x));
                            at[1] = power_of_two(fmaf(at[1], scale, -shift.y));
                        }
                    }
                    // Not all of the warpgroup's keys are there and seen by all of the block.
                    bool is_partial = place.is_partial || OWN > inside;
#ifdef CAUSAL
                    is_partial |= OWN - 1 > first + ahead;
#endif
                    if (is_partial) {
#pragma unroll
                        for (int i = 0; i < BLOCK_QUERIES / 2; i++) {
                            [[maybe_unused]] const i32 query = first + i / 4 * 8 + column + i % 2;
                            const i32 at = thread / 32 * 16 + lane / 4 + i / 2 % 2 * 8;
                            bool shown = at < inside;
#ifdef CAUSAL
                            shown &= at <= query + ahead;
#endif
#ifdef MASK
                            shown &= visible(b, place.h, query, first_key + at CAPTURED);
#endif
                            scores[i] = shown ? scores[i] : 0.0f;
                        }
                    }
#pragma unroll
                    for (int i = 0; i < BLOCK_QUERIES / 4; i++)
                        weights[i] =
                            pair(KEPT(2 * i, scores[2 * i]), KEPT(2 * i + 1, scores[2 * i + 1]));
#endif
                    issue_by_row(dvs, weights, descriptor(by_row(QUERY_BOX), douts));
                    // Weights and dscores at once do not fit in registers.
                    products_wait<0>();
                    fence_sums(dweights);
                    fence_sums(dvs);
#pragma unroll
                    for (int j = 0; j < BLOCK_QUERIES / 8; j++) {
                        const float2 less = *(const float2*)&deltas[query_stage][8 * j + column];
#pragma unroll
                        for (int r = 0; r < 2; r++) {
                            const int at = 4 * j + 2 * r;
                            const f32 x = KEPT(at, dweights[at]) - less.x,
                                      y = KEPT(at + 1, dweights[at + 1]) - less.y;
                            dscores[2 * j + r] = pair(scores[at] * x, scores[at + 1] * y);
                        }
                    }
                    // The dscores of the other warpgroup; its place for those of this step is then
                    // free too.
                    if (n != begin) barrier_wait(dscores_full + 8 * (stage ^ 1), (n - 1) / 2 % 2);
#pragma unroll
                    for (int j = 0; j < BLOCK_QUERIES / 16; j++) {
                        asm volatile(
                            "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, "
                            "%4};" ::"r"(own_dscore + stage * CONSUMERS * QUERY_BOX + j * 2048),
                            "r"(dscores[4 * j]), "r"(dscores[4 * j + 1]), "r"(dscores[4 * j + 2]),
                            "r"(dscores[4 * j + 3])
                            : "memory");
                    }
                    fence_shared();
                    __syncwarp();
                    await_turn();
                    // The first step of a task multiplies stale dscores and drops the result. With
                    // a branch here the compiler would serialise all products.
                    f32 dqs[SUM_QUERIES / 2];
                    issue_sum(dqs, n - 1);
                    issue_by_row(dks, dscores, descriptor(by_row(QUERY_BOX), queries));
                    products_wait<1>();
                    fence_sums(dqs);
                    if (lane == 0) {
                        barrier_arrive<1>(dout_empty + 8 * stage, 0);
                        // After the products of the step before, whose place is written next.
                        barrier_arrive<1>(dscores_full + 8 * stage, 0);
                    }
                    if (n != begin) hand_over(dqs, n - 1);
#ifndef MASK
                    way.next(t);
#endif
                }
            }
            {
                f32 dqs[SUM_QUERIES / 2];
                if (warpgroup == 0) pass_turn();
                barrier_wait(dscores_full + 8 * ((n - 1) % 2), (n - 1) / 2 % 2);
                issue_sum(dqs, n - 1);
                products_wait<0>();
                fence_sums(dks);
                fence_sums(dqs);
                if (lane == 0) barrier_arrive<1>(query_empty + 8 * ((n - 1) % QUERY_STAGES), 0);
                hand_over(dqs, n - 1);
            }
            // No product of either warpgroup reads keys any more.
            named_sync<3>(0, CONSUMERS * WARPGROUP);
            const i32 b = t.b, head = t.head;
            if (g.splits == 1) {
                const i32 own_key = t.key + warpgroup * OWN;
                store_sums<DV>(dv, value_place + warpgroup * OWN * 128, thread, dvs, 1.0f, own_key,
                               head, b);
                store_sums<D>(dk, key_place + warpgroup * OWN * 128, thread, dks, (f32)s.factor,
                              own_key, head, b);
                if (thread == 0) copies_have_read<0>();
            } else {
                const i32 tiles = (s.keys + TILE - 1) / TILE;
                const i64 at = ((b * s.heads + head) * tiles + t.tile) * g.splits + t.part;
                float4* to = (float4*)partial +
                             (at * CONSUMERS + warpgroup) * ((D + DV) / 8 * WARPGROUP) + thread;
                store_plain(store_plain(to, dks), dvs);
            }
            if (thread == 0) barrier_arrive<1>(own_empty, 0);
            __syncwarp();
            if (lane == 0) barrier_arrive<1>(task_empty + 8 * (count % 2), 0);
        }
        if (thread == 0) copies_are_done();
    }
}

// Rounds a block of sums of dq, or adds up what parts of a tile have of eight channels of dk or dv.
// Leaves the counters as the next launch expects them.
extern "C" __global__ void __launch_bounds__(CONSUMERS* WARPGROUP)
    attention_grad_round(const f32* sums, const f32* partial, u32* counters, Element* dq,
                         Element* dk, Element* dv, const __grid_constant__ AttentionShape s,
                         const __grid_constant__ Grad g
#ifdef MASK
                         , const __grid_constant__ MaskGrid mask
#endif
    ) {
    // Lines of a warp are banks apart.
    constexpr int WIDTH = PARTS * LINE + 8;
    __shared__ __align__(16) Element rows[BLOCK_QUERIES * WIDTH];
    after_previous();
    const i32 blocks = blocks_of(s), heads = s.heads * s.group;
    const int own = threadIdx.x / WARPGROUP, thread = threadIdx.x % WARPGROUP, lane = thread % 32;
    const f32 factor = (f32)s.factor;
    const i32 part = (i32)blockIdx.x - s.matrices * s.group * blocks;
    if (part >= 0) {
        constexpr int EIGHTS = (D + DV) / 8;
        const i32 tile = part / EIGHTS, eight = part % EIGHTS, tiles = (s.keys + TILE - 1) / TILE,
                  matrix = tile / tiles,
                  row = tile % tiles * TILE + own * OWN + thread / 32 * 16 + lane / 4;
        const i64 first = ((i64)tile * g.splits * CONSUMERS + own) * EIGHTS + eight;
        const float4* from = (const float4*)partial + first * WARPGROUP + thread;
        float4 sum = {};
#pragma unroll 4
        for (i32 i = 0; i < g.splits; i++) {
            const float4 x = from[(i64)i * CONSUMERS * EIGHTS * WARPGROUP];
            sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
        }
        const bool is_dk = eight < D / 8;
        const i64* stride = is_dk ? g.dk : g.dv;
        const f32 by = is_dk ? factor : 1.0f;
        Element* to = (is_dk ? dk : dv) + matrix / s.heads * stride[0] +
                      matrix % s.heads * stride[1] + row * stride[2] +
                      (is_dk ? eight : eight - D / 8) * 8 + lane % 4 * 2;
        if (row < s.keys) *(u32*)to = pair(sum.x * by, sum.y * by);
        if (row + 8 < s.keys) *(u32*)(to + 8 * stride[2]) = pair(sum.z * by, sum.w * by);
        return;
    }
    const i32 matrix = blockIdx.x / blocks, first = blockIdx.x % blocks * BLOCK_QUERIES;
    const i64 b = matrix / heads, h = matrix % heads;
    if (blockIdx.x == 0 && threadIdx.x == 0) *counters = 0;
    if (thread == 0) counters[1 + blockIdx.x * CONSUMERS + own] = 0;
    // A block that sees no key has no sums.
#ifdef MASK
    const bool is_seen = *mask.ranks_of(b, h, blockIdx.x % blocks) > 0;
#else
    const bool is_seen = s.seen(min(first + BLOCK_QUERIES, s.queries) - 1) > 0;
#endif
    const float4* from =
        (const float4*)(sums + ((i64)blockIdx.x * CONSUMERS + own) * SUM) + thread;
    u32 halves[SUM_QUERIES / 4];
#pragma unroll
    for (int j = 0; j < SUM_QUERIES / 8; j++) {
        const float4 x = is_seen ? from[j * WARPGROUP] : float4{};
        halves[2 * j] = pair(x.x * factor, x.y * factor);
        halves[2 * j + 1] = pair(x.z * factor, x.w * factor);
    }
    const u32 to = shared_address(rows) +
                   ((PARTS > 1 ? 0 : own * SUM_QUERIES) + lane / 16 * 8 + lane % 8) * WIDTH * 2 +
                   (PARTS > 1 ? own * 128 : 0) + (thread / 32 * 2 + lane / 8 % 2) * 16;
#pragma unroll
    for (int j = 0; j < SUM_QUERIES / 16; j++) {
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         to + j * 16 * WIDTH * 2),
                     "r"(halves[4 * j]), "r"(halves[4 * j + 1]), "r"(halves[4 * j + 2]),
                     "r"(halves[4 * j + 3])
                     : "memory");
    }
    __syncthreads();
    constexpr int UNITS = D / 8;
    for (int i = threadIdx.x; i < BLOCK_QUERIES * UNITS; i += CONSUMERS * WARPGROUP) {
        const i32 query = first + i / UNITS, channel = i % UNITS * 8;
        if (query < s.queries) {
            *(uint4*)&dq[b * s.q[0] + h * s.q[1] + query * s.q[2] + channel] =
                *(const uint4*)&rows[i / UNITS * WIDTH + channel];
        }
    }
}
