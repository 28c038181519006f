// Attention of few queries over a long cache, on tensor cores. Plain multiply-adds would take
// longer than reading the cache, if several query heads share a key head or if keys are codes.
//
// The keys of a head are cut among blocks, as in Dao et al., "Flash-Decoding", 2023. They are taken
// in tiles of KEYS, and tiles in turn by all warps of these blocks. So any length is balanced. A
// warp has a ring of STAGES tiles of its own in shared memory, and waits for no other before the
// end. The last block that ends merges the results of all, in the order of the blocks.
//
// Rows (query heads of a key head times queries, at most eight) are rows 0 to 7 of an instruction's
// 16. Rows 8 to 15 hold the same weights' remainders after rounding to 16 bits. So weights have 16
// bits of mantissa for the price of one product. If there are more rows, PARTS tasks take ROWS
// each.
//
// Keys that are i8 are multiplied as such, with q in two digits. Other codes become f16, exactly.
// The scale of a value multiplies its weight. Rows may lie in pages (`pages.cuh`).
//
// `tickets` counts the blocks of each task that have ended. The last one sets it to zero again.

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention(const Element* q, const Row* k, const Row* v, SCALES PAGES Element* out, Sum* lse,
              AttentionShape s CAPTURES, f32* parts, u32* tickets) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ u32 ticket;
    const i32 rank = blockIdx.x % SPLIT, task = blockIdx.x / SPLIT;
    const Place p = place_of(task, s);
    const i32 b = p.b, head = p.head;
    const i32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const i64 sequence = PAGED ? 0 : b;
    const i32* const table = PAGES_OF(b);
    k += sequence * s.k[0] + head * s.k[1];
    v += sequence * s.v[0] + head * s.v[1];
#ifdef CODES
    k_scale += sequence * K_SCALE_B + head * K_SCALE_H;
    v_scale += sequence * V_SCALE_B + head * V_SCALE_H;
#endif
    constexpr i32 STRIDE = SPLIT * WARPS * KEYS;
    const i32 first = (rank * WARPS + warp) * KEYS;
    // The last tile begins early enough to be whole. It hides the keys of the tile before it.
    const i32 last_start = s.keys - KEYS;
    // The caches are far away, and all but one row of them stays as it is.
    if (first < s.keys) {
#pragma unroll
        for (int i = 0; i < K_TILE; i += 32 * 128) {
            const i32 at = i + lane * 128, byte = at % ROW_BYTES;
            const KeyRow row = row_to_prefetch(table, min(first, last_start) + at / ROW_BYTES);
            prefetch((const u8*)(k + row.at(s.k[0], s.k[2])) + byte);
            prefetch((const u8*)(v + row.at(s.v[0], s.v[2])) + byte);
        }
    }
    after_previous();

    const auto row_of = [&](i32 r) { return min(p.skipped + min(r, ROWS - 1), p.rows - 1); };
    const i32 own_row = row_of(g), own_head = head * s.group + own_row / s.queries;
    const i32 own_query = own_row % s.queries;
    // Lanes take rows and keys in turn when they look for the next tile that a row sees.
    constexpr int ACROSS = ROWS <= 1 ? 1 : ROWS <= 2 ? 2 : ROWS <= 4 ? 4 : 8, ALONG = 32 / ACROSS;
    const i32 row_seen = row_of(lane % ACROSS), head_seen = head * s.group + row_seen / s.queries;
    const i32 query_seen = row_seen % s.queries;
    // The first tile from here on that a row sees.
    const auto seen_from = [&](i32 start) {
#ifdef MASK
        for (; start < s.keys; start += STRIDE) {
            bool seen = false;
#pragma unroll
            for (int i = 0; i < KEYS; i += ALONG) {
                const i32 key = min(start + i + lane / ACROSS, s.keys - 1);
                seen |= visible(b, head_seen, query_seen, key CAPTURED);
            }
            if (__any_sync(~0u, seen)) break;
        }
#endif
        return start;
    };
    const u32 ring = shared_of(memory) + warp * STAGES * STAGE;
    const i32 row = lane * 16 / ROW_BYTES, byte = lane * 16 % ROW_BYTES;
    // Rows of a tile that follow each other, or each row that this lane copies.
    struct Rows {
        KeyRow of[LOOKUPS];
    };
    const auto rows_of = [&](i32 start) {
        Rows rows;
#pragma unroll
        for (int i = 0; i < LOOKUPS; ++i) {
            const i32 key = min(start, last_start) + (LOOKUPS == 1 ? 0 : row + i * PASS);
            rows.of[i] = row_of_key(table, key);
        }
        return rows;
    };
    const i64 first_row = LOOKUPS == 1 ? row : 0;
    const u8* const k_from = (const u8*)(k + first_row * s.k[2]) + byte;
    const u8* const v_from = (const u8*)(v + first_row * s.v[2]) + byte;
    const i64 k_stride = s.k[2] * sizeof(Row), v_stride = s.v[2] * sizeof(Row);
    const i64 k_page = s.k[0] * sizeof(Row), v_page = s.v[0] * sizeof(Row);
    const auto fetch = [&](i32 stage, i32 start, const Rows& rows) {
        const i32 from = min(start, last_start);
        const u32 to = ring + stage * STAGE;
        const u8* k_here = k_from + rows.of[0].at(k_page, k_stride);
        const u8* v_here = v_from + rows.of[0].at(v_page, v_stride);
        const u32 k_to = to + row * ROW_BYTES, v_to = to + K_TILE + row * ROW_BYTES + byte;
        const u32 bytes[2] = {in_key(row, byte), in_key(row + 1, byte)};
#pragma unroll
        for (int i = 0; i < KEYS; i += PASS) {
            if (LOOKUPS > 1) k_here = k_from + rows.of[i / PASS % LOOKUPS].at(k_page, k_stride);
            const i64 behind = LOOKUPS > 1 ? 0 : i;
            copy16(k_to + bytes[i % 2] + i * ROW_BYTES, k_here + behind * k_stride);
        }
#pragma unroll
        for (int i = 0; i < KEYS; i += PASS) {
            if (LOOKUPS > 1) v_here = v_from + rows.of[i / PASS % LOOKUPS].at(v_page, v_stride);
            const i64 behind = LOOKUPS > 1 ? 0 : i;
            copy16(v_to + i * ROW_BYTES + i / GROUP * 32, v_here + behind * v_stride);
        }
#ifdef CODES
#pragma unroll
        for (int i = 0; i < KEYS; i += 32) {
            if (KEYS < 32 && lane >= KEYS) break;
            const u32 scales = to + SCALES_AT + 4 * (i + lane);
            const KeyRow own = LOOKUPS > 1 ? row_of_key(table, from + i + lane) : rows.of[0];
            const i64 behind = LOOKUPS > 1 ? 0 : i + lane;
            copy4(scales, k_scale + own.at(K_SCALE_B, K_SCALE_T) + behind * K_SCALE_T);
            copy4(scales + 4 * KEYS, v_scale + own.at(V_SCALE_B, V_SCALE_T) + behind * V_SCALE_T);
        }
#endif
    };

    // Tiles under way.
    i32 tiles[STAGES], next = seen_from(first);
    Rows rows;
    if (PAGES_AHEAD) rows = rows_of(next);
    const auto fetch_next = [&](i32 stage) {
        if (next >= s.keys) return;
        fetch(stage, next, PAGES_AHEAD ? rows : rows_of(next));
        next = seen_from(next + STRIDE);
        if (PAGES_AHEAD) rows = rows_of(next);
    };
#pragma unroll
    for (int i = 0; i + 1 < STAGES; ++i) {
        tiles[i] = next;
        fetch_next(i);
        commit_copies();
    }
    Query asked;
    f32 factor;
    asm volatile("cvt.rn.f32.f64 %0, %1;" : "=f"(factor) : "d"(s.factor));
    factor = asked.load(q + b * s.q[0] + own_head * s.q[1] + own_query * s.q[2], t, factor);
    f32 given[D / 8][4], largest = -infinity(f32()), total = 0;
    const auto scale_given = [&](f32 by) {
#pragma unroll
        for (int i = 0; i < D / 8; ++i)
#pragma unroll
            for (int c = 0; c < 4; ++c) given[i][c] *= by;
    };
#pragma unroll
    for (int i = 0; i < D / 8; ++i)
#pragma unroll
        for (int c = 0; c < 4; ++c) given[i][c] = 0;
#ifdef CODES
    // A power of two near the scales of values.
    f32 unit = 0, by_unit = 1;
#endif
    const i32 seen = s.seen(own_query);
    // The key and the value of this lane.
    const u32 k_row = GROUP * (g / 2) + g % 2;
    const u32 v_at = K_TILE + t * V_GROUP + g * V_BYTES;

    i32 stage = 0;
    while (tiles[0] < s.keys) {
        // The place that the tile before this one left.
        const i32 behind = stage == 0 ? STAGES - 1 : stage - 1;
        tiles[STAGES - 1] = next;
        fetch_next(behind);
        commit_copies();
        await_copies<STAGES - 1>();
        const u32 here = ring + stage * STAGE;
        const i32 tile = tiles[0], start = min(tile, last_start);
        Score products[PIECES][4];
#pragma unroll
        for (int n = 0; n < PIECES; ++n) {
#pragma unroll
            for (int c = 0; c < 4; ++c) products[n][c] = 0;
#pragma unroll
            for (int j = 0; j < K_VECTORS; ++j) {
                const u32 swapped = in_key(k_row, j % 2 * 64 + t * 16) + j / 2 * 128;
                const uint4 x = read16(here + (k_row + 2 * n) * ROW_BYTES + swapped);
#ifdef CODES
                if constexpr (!WHOLE_NUMBERS) {
                    const u32 words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
                    for (int w = 0; w < 4; ++w)
                        product(products[n], asked.operand[4 * j + w], of_pair((u16)words[w]),
                                of_pair((u16)(words[w] >> 16)));
                    continue;
                }
#endif
                product(products[n], asked.operand[2 * j], x.x, x.y);
                product(products[n], asked.operand[2 * j + 1], x.z, x.w);
            }
        }
#ifdef CODES
        const f32* const k_scales = reinterpret_cast<const f32*>(
            memory + (here - shared_of(memory)) + SCALES_AT);
        const f32* const v_scales = k_scales + KEYS;
#endif
        f32 top = largest, scores[PIECES][2];
#pragma unroll
        for (int n = 0; n < PIECES; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const i32 place = GROUP * t + 2 * n + e, key = start + place;
                f32 x = products[n][e];
#ifdef CODES
                if constexpr (WHOLE_NUMBERS) x = 256 * products[n][e] + products[n][2 + e];
                x *= k_scales[place];
#endif
                x *= factor;
                x = refined(x, b, own_head, own_query, key, key >= tile ? seen : 0 CAPTURED);
                scores[n][e] = x;
                top = fmaxf(top, x);
            }
        }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        if (__any_sync(~0u, top > largest)) {
            const f32 before = shrink(largest, top);
            total *= before;
            scale_given(before);
            largest = top;
        }
        constexpr f32 LOG2E = 1.4426950408889634f;
        const f32 shift = top == -infinity(f32()) ? 0.0f : top * LOG2E;
        u32 weights[PIECES / 2][4];
#ifdef CODES
        f32 scales[PIECES][2], most = 0;
#pragma unroll
        for (int n = 0; n < PIECES; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                scales[n][e] = v_scales[GROUP * t + 2 * n + e];
                most = fmaxf(most, fabsf(scales[n][e]));
            }
        // Weights are f16 in the unit, so at most 2^11.
        if (__any_sync(~0u, most > unit * 1024.0f)) {
#pragma unroll
            for (int mask = 1; mask < 4; mask *= 2)
                most = fmaxf(most, __shfl_xor_sync(~0u, most, mask));
            const u32 power = min(__float_as_uint(most) & 0x7f800000u, 0x7e000000u);
            const f32 wider = __uint_as_float(power);
            scale_given(wider > 0 ? unit / wider : 1.0f);
            if (wider > 0) unit = wider, by_unit = 1 / wider;
        }
#endif
#pragma unroll
        for (int n = 0; n < PIECES; ++n) {
            f32 w[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                w[e] = fast_exp2(fmaf(scores[n][e], LOG2E, -shift));
                total += w[e];
#ifdef CODES
                w[e] *= scales[n][e] * by_unit;
#endif
#ifdef DROPS
                const u64 of_row = (u64)(b * s.heads + own_head) * s.queries + own_query;
                w[e] *= kept(SEED, of_row * s.keys + start + GROUP * t + 2 * n + e);
#endif
            }
            split(weights[n / 2][n % 2 * 2], weights[n / 2][n % 2 * 2 + 1], w[0], w[1]);
        }
#pragma unroll
        for (int n = 0; n < PIECES / 2; ++n) {
#pragma unroll
            for (int i = 0; i < V_VECTORS; ++i) {
                const u32 at = here + v_at + 4 * n * ROW_BYTES + i * 8 * V_BYTES;
                u32 x[4][V_BYTES / 4];
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    if constexpr (V_BYTES == 16) {
                        const uint4 y = read16(at + e * ROW_BYTES);
                        x[e][0] = y.x, x[e][1] = y.y, x[e][2] = y.z, x[e][3] = y.w;
                    } else {
                        const uint2 y = read8(at + e * ROW_BYTES);
                        x[e][0] = y.x, x[e][1] = y.y;
                    }
                }
#pragma unroll
                for (int w = 0; w < V_BYTES / 4; ++w) {
                    const u32 words[4] = {x[0][w], x[1][w], x[2][w], x[3][w]};
                    add_values(given + i * V_CHANNELS + w * (4 / sizeof(Row)), weights[n], words);
                }
            }
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i + 1 < STAGES; ++i) tiles[i] = tiles[i + 1];
        if (++stage == STAGES) stage = 0;
    }
#ifdef CODES
    scale_given(WHOLE_NUMBERS ? unit * 16777216.0f : unit);
#endif
    // The warps of a block.
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    await_copies<0>();
    static_assert(STAGES * STAGE >= PART * 4 && STAGES * STAGE >= 32 * 6 * 4);
    f32* const sums = reinterpret_cast<f32*>(memory);
    constexpr int OF_WARP = STAGES * STAGE / 4;
    if (g < ROWS) {
        f32* const own = sums + warp * OF_WARP;
#pragma unroll
        for (int i = 0; i < D / 8; ++i)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int eight = 2 * t + e + i / V_CHANNELS * 8;
                own[g * D + eight * V_CHANNELS + i % V_CHANNELS] = given[i][e] + given[i][2 + e];
            }
        if (t == 0) own[ROWS * D + g] = largest, own[ROWS * D + ROWS + g] = total;
    }
    __syncthreads();
    f32* const part = parts + (i64)blockIdx.x * PART;
    for (i32 place = threadIdx.x; place < ROWS * D; place += THREADS) {
        const i32 r = place / D, c = place % D;
        f32 top = -infinity(f32()), sum = 0, all = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) top = fmaxf(top, sums[w * OF_WARP + ROWS * D + r]);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const f32* const of = sums + w * OF_WARP;
            const f32 by = shrink(of[ROWS * D + r], top);
            sum = fmaf(of[place], by, sum);
            all = fmaf(of[ROWS * D + ROWS + r], by, all);
        }
        if (SPLIT == 1) {
            store(out, lse, s, p, r, c, sum, all, top);
            continue;
        }
        part[place] = sum;
        if (c == 0) part[ROWS * D + r] = top, part[ROWS * D + ROWS + r] = all;
    }
    if (SPLIT == 1) return;
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                     : "=r"(ticket)
                     : "l"(tickets + task)
                     : "memory");
        if (ticket == SPLIT - 1) tickets[task] = 0;
    }
    __syncthreads();
    if (ticket == SPLIT - 1) merge(parts, sums, out, lse, s, task);
}
