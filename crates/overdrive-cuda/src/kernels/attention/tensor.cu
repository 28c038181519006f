// Attention of 16-bit floats on the tensor cores: FlashAttention-2 (Dao, arXiv:2307.08691) with
// `mma.sync`.
//
// Four warps, each with 16 MF queries, walk over blocks of KEYS keys. Probabilities go from the
// accumulators of the first product into the operands of the second within registers. Keys and
// values of the next block arrive by `cp.async` while this one is worked on. Blocks that a causal
// mask hides are not visited, and only those on its edge are masked. Rows of q, k, v are dense and
// 16-byte aligned; D and DV are multiples of 16. Text before this file defines MF and KEYS.

// spills at most 16 bytes on sm_89: one address more than there are registers, once a block of
// keys.

constexpr int QUERIES = 64 * MF;
#ifdef SKIPS
#define KEY_OF(step) ((steps - 1 - (step)) * KEYS)
#else
#define KEY_OF(step) ((step) * KEYS)
#endif
// Scores become those of the definition before the maximum is taken.
#if defined(SCORE) || defined(MASK) || defined(SKIPS)
#define REFINES
#endif
constexpr f32 LOG2E = 1.4426950408889634f;

struct Block {
    Element k[KEYS][D + SKEW];
    Element v[KEYS][DV + SKEW];
};
union Queries {
    Element q[QUERIES][D + SKEW];
    Element out[QUERIES][DV + SKEW];
};

extern "C" __global__ void __launch_bounds__(128)
    attention(const Element* q, const Element* k, const Element* v, Element* out, f32* lse,
              AttentionShape s CAPTURES) {
    extern __shared__ __align__(128) unsigned char bytes[];
    after_previous();
    Queries& queries = *reinterpret_cast<Queries*>(bytes);
    Block* blocks = reinterpret_cast<Block*>(bytes + sizeof(Queries));
    i32 matrix, tile;
    s.task(blockIdx.x, (s.queries + QUERIES - 1) / QUERIES, matrix, tile);
    const i32 b = matrix / s.heads, h = matrix % s.heads, first = tile * QUERIES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    q += b * s.q[0] + h * s.q[1];
    k += b * s.k[0] + h / s.group * s.k[1];
    v += b * s.v[0] + h / s.group * s.v[1];
    const i32 end = s.seen(min(first + QUERIES, s.queries) - 1);
    const i32 steps = (end + KEYS - 1) / KEYS;
    copy<QUERIES, D>(queries.q, q, s.q[2], first, s.queries);
    if (steps > 0) {
        copy<KEYS, D>(blocks[0].k, k, s.k[2], KEY_OF(0), s.keys);
        copy<KEYS, DV>(blocks[0].v, v, s.v[2], KEY_OF(0), s.keys);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");

    // Row r of a fragment is query `row + 16 m + 8 r`, columns are keys (channels) `8 j + 2 (lane %
    // 4)` and the next.
    const i32 row = warp * 16 * MF + lane / 4;
    f32 sums[MF][DV / 8][4] = {}, largest[MF][2], total[MF][2] = {};
    u32 left[MF][D / 16][4];
#pragma unroll
    for (int m = 0; m < MF; m++) largest[m][0] = largest[m][1] = -infinity(0.0f);

    for (i32 step = 0; step < steps; step++) {
        if (BUFFERS == 1 && step > 0) {
            __syncthreads();
            copy<KEYS, D>(blocks[0].k, k, s.k[2], KEY_OF(step), s.keys);
            copy<KEYS, DV>(blocks[0].v, v, s.v[2], KEY_OF(step), s.keys);
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (step == 0) {
#pragma unroll
            for (int m = 0; m < MF; m++) {
#pragma unroll
                for (int c = 0; c < D / 16; c++) {
                    load(left[m][c],
                         &queries.q[warp * 16 * MF + m * 16 + lane % 16][c * 16 + lane / 16 * 8]);
                }
            }
        }
        if (BUFFERS == 2 && step + 1 < steps) {
            Block& next = blocks[(step + 1) % 2];
            copy<KEYS, D>(next.k, k, s.k[2], KEY_OF(step + 1), s.keys);
            copy<KEYS, DV>(next.v, v, s.v[2], KEY_OF(step + 1), s.keys);
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
        Block& block = blocks[step % BUFFERS];
        f32 scores[MF][KEYS / 8][4] = {};
#pragma unroll
        for (int c = 0; c < D / 16; c++) {
#pragma unroll
            for (int j = 0; j < KEYS / 16; j++) {
                // Quarters (key, c), (key, c + 8), (key + 8, c), (key + 8, c + 8).
                u32 right[4];
                load(right, &block.k[j * 16 + lane % 8 + lane / 16 * 8][c * 16 + lane / 8 % 2 * 8]);
#pragma unroll
                for (int m = 0; m < MF; m++) {
                    multiply(scores[m][2 * j], left[m][c], right[0], right[1]);
                    multiply(scores[m][2 * j + 1], left[m][c], right[2], right[3]);
                }
            }
        }
        const i32 key = KEY_OF(step);
        // All of the block's keys are seen by all of the tile's queries.
        const bool inside = key + KEYS <= s.seen(first);
        const f32 factor = (f32)s.factor;
#ifdef SKIPS
        // `threshold.rs` of the IR. A block of the grid has one tile of queries.
        bool asks = false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const i32 query = first + row + 8 * r, seen = query < s.queries ? s.seen(query) : 0;
            f32 most = -infinity(0.0f);
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const i32 at = key + 8 * j + lane % 4 * 2 + e;
                    f32& score = scores[0][j][2 * r + e];
                    score = refined(score * factor, b, h, query, at, seen CAPTURED);
                    most = fmaxf(most, score);
                }
            }
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            asks |= most > -infinity(0.0f) && most >= largest[0][r] + LIMIT / LOG2E;
        }
        if (!__syncthreads_or(asks)) continue;
#endif
#pragma unroll
        for (int m = 0; m < MF; m++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const i32 query = first + row + 16 * m + 8 * r;
                f32 most = largest[m][r];
#ifndef REFINES
                if (!inside) {
                    const i32 seen = s.seen(query);
#pragma unroll
                    for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            if (key + 8 * j + lane % 4 * 2 + e >= seen)
                                scores[m][j][2 * r + e] = -infinity(0.0f);
                        }
                    }
                }
#elif !defined(SKIPS)
                const i32 seen = query < s.queries ? s.seen(query) : 0;
#pragma unroll
                for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const i32 at = key + 8 * j + lane % 4 * 2 + e;
                        f32& score = scores[m][j][2 * r + e];
                        score = refined(score * factor, b, h, query, at, seen CAPTURED);
                    }
                }
#endif
#pragma unroll
                for (int j = 0; j < KEYS / 8; j++)
                    most = fmaxf(most, fmaxf(scores[m][j][2 * r], scores[m][j][2 * r + 1]));
                most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
                most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
                // A row that has seen no key has maximum -infinity, whose difference is NaN: any
                // finite shift will do there.
                const f32 base = most == -infinity(0.0f) ? 0.0f : most;
#ifndef REFINES
                // Scores keep their scale until the exponential, where one multiply-add does both;
                // the factor is positive.
                const f32 scale = factor * LOG2E, shift = base * scale;
                auto exponent = [=](f32 score) { return fmaf(score, scale, -shift); };
#else
                // The difference first: masks hide by the lowest number of all, which has no
                // logarithm's base to spare.
                auto exponent = [=](f32 score) { return (score - base) * LOG2E; };
#endif
                f32 shrink;
                asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(shrink) : "f"(exponent(largest[m][r])));
                largest[m][r] = most;
                f32 sum = 0.0f;
#pragma unroll
                for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        f32& score = scores[m][j][2 * r + e];
                        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(score) : "f"(exponent(score)));
                        sum += score;
                    }
                }
                total[m][r] = total[m][r] * shrink + sum;
#ifdef DROPS
                const u64 place =
                    ((u64)matrix * s.queries + query) * s.keys + key + lane % 4 * 2;
#pragma unroll
                for (int j = 0; j < KEYS / 8; j++) {
                    f32* at = &scores[m][j][2 * r];
                    keep(at[0], at[1], SEED, place + 8 * j);
                }
#endif
#pragma unroll
                for (int j = 0; j < DV / 8; j++)
                    sums[m][j][2 * r] *= shrink, sums[m][j][2 * r + 1] *= shrink;
            }
        }
#pragma unroll
        for (int c = 0; c < KEYS / 16; c++) {
            u32 weights[MF][4];
#pragma unroll
            for (int m = 0; m < MF; m++) {
                weights[m][0] = pair(scores[m][2 * c][0], scores[m][2 * c][1]);
                weights[m][1] = pair(scores[m][2 * c][2], scores[m][2 * c][3]);
                weights[m][2] = pair(scores[m][2 * c + 1][0], scores[m][2 * c + 1][1]);
                weights[m][3] = pair(scores[m][2 * c + 1][2], scores[m][2 * c + 1][3]);
            }
#pragma unroll
            for (int j = 0; j < DV / 16; j++) {
                u32 right[4];
                load_transposed(right, &block.v[c * 16 + lane % 16][j * 16 + lane / 16 * 8]);
#pragma unroll
                for (int m = 0; m < MF; m++) {
                    multiply(sums[m][2 * j], weights[m], right[0], right[1]);
                    multiply(sums[m][2 * j + 1], weights[m], right[2], right[3]);
                }
            }
        }
    }
    // Queries were read into registers at the first step, so that their place can take the outputs.
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
#pragma unroll
    for (int m = 0; m < MF; m++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            f32 sum = total[m][r];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            const f32 inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
            const i32 at = row + 16 * m + 8 * r;
#pragma unroll
            for (int j = 0; j < DV / 8; j++) {
                const u32 both = pair(sums[m][j][2 * r] * inverse, sums[m][j][2 * r + 1] * inverse);
                *reinterpret_cast<u32*>(&queries.out[at][8 * j + lane % 4 * 2]) = both;
            }
            if (lse && lane % 4 == 0 && first + at < s.queries) {
#ifndef REFINES
                const f32 scaled = largest[m][r] * (f32)s.factor;
#else
                const f32 scaled = largest[m][r];
#endif
                lse[b * s.lse[0] + h * s.lse[1] + (first + at) * s.lse[2]] =
                    sum > 0.0f ? scaled + logf(sum) : -infinity(0.0f);
            }
        }
    }
    if (!out) return;
    // A warp stores what it wrote itself.
    __syncwarp();
    out += b * s.out[0] + h * s.out[1];
    if (s.out[3] == 1 && s.out[2] % 8 == 0 && s.out[1] % 8 == 0 && s.out[0] % 8 == 0 &&
        (u64)out % 16 == 0) {
        for (int i = lane; i < 16 * MF * (DV / 8); i += 32) {
            const i32 at = warp * 16 * MF + i / (DV / 8), part = i % (DV / 8) * 8;
            if (first + at < s.queries) {
                *reinterpret_cast<uint4*>(&out[(first + at) * s.out[2] + part]) =
                    *reinterpret_cast<const uint4*>(&queries.out[at][part]);
            }
        }
    } else {
        for (int i = lane; i < 16 * MF * DV; i += 32) {
            const i32 at = warp * 16 * MF + i / DV, channel = i % DV;
            if (first + at < s.queries)
                out[(first + at) * s.out[2] + channel * s.out[3]] = queries.out[at][channel];
        }
    }
}
