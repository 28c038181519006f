// Lines sorted by (key, position): the position makes the network of Batcher (AFIPS 1968), which is
// not stable, a stable sort.
//
// A line of at most CHUNK elements is sorted in shared memory by one block (`sort_lines`). A longer
// one lies in the workspace, padded to a power of two. Its kernels are, in order:
//
// - `load`;
// - `sort_chunks`, which sorts chunks in shared memory;
// - for each larger block of the network, `merge_step` for steps across chunks and `merge_chunks`
//   for the rest within them;
// - `store`.
//
// -D ELEMENT, CHUNK; DESCENDING.

// Ascending, NaN last, -0 equal to +0.
__device__ inline u32 ordered(f32 x) {
    u32 bits = x != x ? 0x7fffffffu : __float_as_uint(x + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ inline u32 ordered(f16 x) { return ordered(decode(x)); }
__device__ inline u32 ordered(bf16 x) { return ordered(decode(x)); }
__device__ inline u32 ordered(bool x) { return x; }
__device__ inline u32 ordered(u8 x) { return x; }
__device__ inline u32 ordered(u16 x) { return x; }
__device__ inline u32 ordered(u32 x) { return x; }
__device__ inline u32 ordered(i8 x) { return (u32)x ^ 0x80000000u; }
__device__ inline u32 ordered(i16 x) { return (u32)x ^ 0x80000000u; }
__device__ inline u32 ordered(i32 x) { return (u32)x ^ 0x80000000u; }
__device__ inline u64 ordered(u64 x) { return x; }
__device__ inline u64 ordered(i64 x) { return (u64)x ^ 0x8000000000000000ull; }
__device__ inline u64 ordered(f64 x) {
    u64 bits = x != x ? 0x7fffffffffffffffull : (u64)__double_as_longlong(x + 0.0);
    return bits >> 63 ? ~bits : bits | 0x8000000000000000ull;
}

// Key and position in one number, where both fit.
template <int WIDTH> struct PairOf {
    typedef u64 type;
    __device__ static u64 of(u32 key, u32 position) { return (u64)key << 32 | position; }
    __device__ static u64 last() { return ~0ull; }
    __device__ static bool less(u64 a, u64 b) { return a < b; }
    __device__ static u32 position(u64 pair) { return (u32)pair; }
};
struct WidePair { u64 key; u32 position; };
template <> struct PairOf<8> {
    typedef WidePair type;
    __device__ static WidePair of(u64 key, u32 position) { return WidePair{key, position}; }
    __device__ static WidePair last() { return WidePair{~0ull, ~0u}; }
    __device__ static bool less(const WidePair& a, const WidePair& b) {
        return a.key < b.key || (a.key == b.key && a.position < b.position);
    }
    __device__ static u32 position(const WidePair& pair) { return pair.position; }
};
typedef PairOf<sizeof(ELEMENT)> Pairs;
typedef Pairs::type Pair;

// `SortLines` in sort.rs: strides in the operand, the values and the indices.
struct SortLines {
    Nest<3> nest;  // Over lines.
    i64 steps[3];  // Along a line.
    u32 length;
};

__device__ inline Pair pair(const ELEMENT* line, const SortLines& lines, u32 position) {
    if (position >= lines.length) return Pairs::last();
    auto key = ordered(line[position * lines.steps[0]]);
#ifdef DESCENDING
    key = ~key;
#endif
    return Pairs::of(key, position);
}

__device__ inline void store_one(const ELEMENT* operand, ELEMENT* values, i32* indices,
                                 const SortLines& lines, const i64 (&at)[3], u32 i, u32 position) {
    if (values) values[at[1] + i * lines.steps[1]] = operand[at[0] + position * lines.steps[0]];
    if (indices) indices[at[2] + i * lines.steps[2]] = position;
}

__device__ inline void exchange(Pair& a, Pair& b, bool ascending) {
    if (Pairs::less(b, a) == ascending) {
        Pair c = a;
        a = b;
        b = c;
    }
}

// Steps `distance`, `distance / 2`, ... 1 of the blocks of `block` elements; `first` is the
// position of pairs[0] in its line.
__device__ inline void merge(Pair* pairs, u32 count, u32 first, u32 block, u32 distance) {
    for (; distance > 0; distance /= 2) {
        for (u32 t = threadIdx.x; t < count / 2; t += blockDim.x) {
            u32 i = 2 * t - (t & (distance - 1));
            exchange(pairs[i], pairs[i + distance], ((first + i) & block) == 0);
        }
        __syncthreads();
    }
}

extern "C" __global__ void sort_lines(const ELEMENT* operand, ELEMENT* values, i32* indices,
                                      SortLines lines, u32 padded) {
    __shared__ Pair pairs[CHUNK];
    i64 at[3];
    lines.nest.locate((u32)blockIdx.x, at);
    for (u32 i = threadIdx.x; i < padded; i += blockDim.x)
        pairs[i] = pair(operand + at[0], lines, i);
    __syncthreads();
    for (u32 block = 2; block <= padded; block *= 2) merge(pairs, padded, 0, block, block / 2);
    for (u32 i = threadIdx.x; i < lines.length; i += blockDim.x) {
        store_one(operand, values, indices, lines, at, i, Pairs::position(pairs[i]));
    }
}

extern "C" __global__ void load(const ELEMENT* operand, Pair* pairs, SortLines lines, u32 padded) {
    u32 i = blockIdx.y * blockDim.x + threadIdx.x;
    i64 at[3];
    lines.nest.locate((u32)blockIdx.x, at);
    if (i < padded) pairs[(u64)blockIdx.x * padded + i] = pair(operand + at[0], lines, i);
}

extern "C" __global__ void sort_chunks(Pair* all, u32 padded) {
    __shared__ Pair pairs[CHUNK];
    Pair* chunk = all + (u64)blockIdx.x * padded + blockIdx.y * CHUNK;
    for (u32 i = threadIdx.x; i < CHUNK; i += blockDim.x) pairs[i] = chunk[i];
    __syncthreads();
    for (u32 block = 2; block <= CHUNK; block *= 2)
        merge(pairs, CHUNK, blockIdx.y * CHUNK, block, block / 2);
    for (u32 i = threadIdx.x; i < CHUNK; i += blockDim.x) chunk[i] = pairs[i];
}

extern "C" __global__ void merge_step(Pair* all, u32 padded, u32 block, u32 distance) {
    u32 t = blockIdx.y * blockDim.x + threadIdx.x;
    if (t >= padded / 2) return;
    Pair* pairs = all + (u64)blockIdx.x * padded;
    u32 i = 2 * t - (t & (distance - 1));
    exchange(pairs[i], pairs[i + distance], (i & block) == 0);
}

extern "C" __global__ void merge_chunks(Pair* all, u32 padded, u32 block) {
    __shared__ Pair pairs[CHUNK];
    Pair* chunk = all + (u64)blockIdx.x * padded + blockIdx.y * CHUNK;
    for (u32 i = threadIdx.x; i < CHUNK; i += blockDim.x) pairs[i] = chunk[i];
    __syncthreads();
    merge(pairs, CHUNK, blockIdx.y * CHUNK, block, CHUNK / 2);
    for (u32 i = threadIdx.x; i < CHUNK; i += blockDim.x) chunk[i] = pairs[i];
}

extern "C" __global__ void store(const ELEMENT* operand, ELEMENT* values, i32* indices,
                                 const Pair* pairs, SortLines lines, u32 padded) {
    u32 i = blockIdx.y * blockDim.x + threadIdx.x;
    i64 at[3];
    lines.nest.locate((u32)blockIdx.x, at);
    if (i < lines.length)
        store_one(operand, values, indices, lines, at, i,
                  Pairs::position(pairs[(u64)blockIdx.x * padded + i]));
}
