// Attention a tile at a time in any element type, on plain multiply-adds: scores exist for TILE
// queries by TILE keys.
//
// A block of 16 x 16 threads has a tile of queries of one head and walks over the keys that they
// see. Maximum and sum of each row move on as in Milakov and Gimelshein, arXiv:1805.02867. Outputs
// are rescaled when the maximum moves. Text before gives TILE: 64, 32 or 16.
//
// spills at most 8 bytes on sm_89: one address more than there are registers, once a block of keys.

// Heads may have no channels; arrays have one.
constexpr int WIDTH = D > 0 ? D : 1, VALUES = DV > 0 ? DV : 1, EACH = TILE / 16,
              COLUMNS = (VALUES + 15) / 16;

struct Tiles {
    Sum q[WIDTH][TILE + 1];
    Sum k[WIDTH][TILE + 1];
    Sum v[TILE][VALUES];
    Sum weights[TILE][TILE + 1];
};

// Rows `first..` of a matrix, transposed; rows past `count` are zeros.
__device__ __forceinline__ void load(Sum (&to)[WIDTH][TILE + 1], const Element* from,
                                     const i64* strides, i32 first, i32 count) {
    for (int i = threadIdx.x; i < TILE * D; i += 256) {
        const i32 row = first + i / WIDTH, channel = i % WIDTH;
        to[channel][i / WIDTH] =
            row < count ? convert<Sum>(from[row * strides[2] + channel * strides[3]]) : Sum(0);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    attention(const Element* q, const Element* k, const Element* v, Element* out, Sum* lse,
              AttentionShape s CAPTURES) {
    extern __shared__ __align__(16) unsigned char bytes[];
    after_previous();
    Tiles& tiles = *reinterpret_cast<Tiles*>(bytes);
    i32 matrix, tile;
    s.task(blockIdx.x, (s.queries + TILE - 1) / TILE, matrix, tile);
    const i32 b = matrix / s.heads, h = matrix % s.heads, first = tile * TILE;
    const i32 row = threadIdx.x / 16, column = threadIdx.x % 16;
    q += b * s.q[0] + h * s.q[1];
    k += b * s.k[0] + h / s.group * s.k[1];
    v += b * s.v[0] + h / s.group * s.v[1];
    load(tiles.q, q, s.q, first, s.queries);
    Sum sums[EACH][COLUMNS] = {}, largest[EACH], total[EACH] = {};
#pragma unroll
    for (int i = 0; i < EACH; i++) largest[i] = -infinity(Sum());
    const i32 end = s.seen(min(first + TILE, s.queries) - 1);
    for (i32 key = 0; key < end; key += TILE) {
        __syncthreads();
        load(tiles.k, k, s.k, key, s.keys);
        for (int i = threadIdx.x; i < TILE * DV; i += 256) {
            const i32 at = key + i / VALUES, channel = i % VALUES;
            tiles.v[i / VALUES][channel] =
                at < s.keys ? convert<Sum>(v[at * s.v[2] + channel * s.v[3]]) : Sum(0);
        }
        __syncthreads();
        Sum scores[EACH][EACH] = {};
#pragma unroll 4
        for (int c = 0; c < D; c++) {
            Sum left[EACH], right[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++)
                left[i] = tiles.q[c][row + 16 * i], right[i] = tiles.k[c][column + 16 * i];
#pragma unroll
            for (int i = 0; i < EACH; i++) {
#pragma unroll
                for (int j = 0; j < EACH; j++) scores[i][j] += left[i] * right[j];
            }
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const i32 query = first + row + 16 * i, seen = s.seen(query);
            Sum most = largest[i];
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                const i32 at = key + column + 16 * j;
                scores[i][j] =
                    query < s.queries && at < s.keys
                        ? refined(scores[i][j] * (Sum)s.factor, b, h, query, at, seen CAPTURED)
                        : -infinity(Sum());
                most = max(most, scores[i][j]);
            }
            for (int lane = 8; lane > 0; lane /= 2)
                most = max(most, __shfl_xor_sync(~0u, most, lane));
            // A row that has seen no key has maximum -infinity, whose difference is NaN: any finite
            // shift will do there.
            const Sum shift = most == -infinity(Sum()) ? Sum(0) : most,
                      shrink = power(largest[i] - shift);
            largest[i] = most;
            Sum sum = 0;
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                Sum weight = power(scores[i][j] - shift);
                sum += weight;
#ifdef DROPS
                weight *= kept(SEED, ((u64)matrix * s.queries + query) * s.keys + key + column +
                                         16 * j);
#endif
                tiles.weights[row + 16 * i][column + 16 * j] = weight;
            }
            for (int lane = 8; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
            total[i] = total[i] * shrink + sum;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) sums[i][j] *= shrink;
        }
        __syncthreads();
#pragma unroll 4
        for (int at = 0; at < TILE; at++) {
            Sum left[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++) left[i] = tiles.weights[row + 16 * i][at];
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                const Sum right = column + 16 * j < DV ? tiles.v[at][column + 16 * j] : Sum(0);
#pragma unroll
                for (int i = 0; i < EACH; i++) sums[i][j] += left[i] * right;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const i32 query = first + row + 16 * i;
        if (query >= s.queries) continue;
        const Sum inverse = total[i] > 0 ? 1 / total[i] : Sum(0);
        if (out) {
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                const i32 channel = column + 16 * j;
                if (channel >= DV) continue;
                out[b * s.out[0] + h * s.out[1] + query * s.out[2] + channel * s.out[3]] =
                    convert<Element>(sums[i][j] * inverse);
            }
        }
        if (lse && column == 0) {
            const Sum value = total[i] > 0 ? largest[i] + logarithm(total[i]) : -infinity(Sum());
            lse[b * s.lse[0] + h * s.lse[1] + query * s.lse[2]] = value;
        }
    }
}
