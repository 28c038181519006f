// Block masks: the blocks of keys that a mask function shows to each tile of queries, of the pairs
// within bounds. Dong et al., "Flex attention", arXiv:2412.05496, section 4.
//
// `attention_classes` evaluates the function for pairs until the class of a block is certain, so
// that it is exact for any function. `attention_lists` lists the blocks of each tile that are not
// empty. Tiles of all masks are rows. A mask is that of one head of one sequence, or of all whose
// index the function does not read.
//
// Text before gives MASK_QUERIES and MASK_KEYS (the tile and the block), BY_BATCH and BY_HEAD
// (which indices the function reads). The function is the same for all pairs of a cell of
// CELL_QUERIES and CELL_KEYS, so that its first pair stands for it. MASK_CHUNK: queries between two
// looks at whether the class is certain. BY_KEYS: blocks of keys have lists of tiles of queries.

constexpr u8 EMPTY = 0, PARTIAL = 1, FULL = 2;
// Warps of a block of the grid, each with a block of keys or with a row.
constexpr int MASK_WARPS = 8;
constexpr int CELLS = MASK_KEYS / CELL_KEYS;
static_assert(MASK_CHUNK % CELL_QUERIES == 0 && MASK_QUERIES % MASK_CHUNK == 0);
static_assert(MASK_KEYS % CELL_KEYS == 0);

// `MaskGrid` of block_mask.rs: classes by row and block, and lists. Then the numbers of rows, of
// tiles of a mask, of blocks, and of query heads of a sequence.
struct MaskGrid {
    u8* classes;
    // A list has its length, then an entry for each block (BY_KEYS: tile), ascending: twice its
    // number, and 1 if it is full.
    u32* lists;
    // BY_KEYS: for each row how many blocks are not empty, then for each block how many before it.
    u32* ranks;
    i32 rows, tiles, blocks, heads;
    // Last tiles of a mask in which no block is empty: each list has an entry for every task.
    i32 least;

    __device__ __forceinline__ i32 mask(i32 b, i32 h) const {
        return (BY_BATCH ? b : 0) * (BY_HEAD ? heads : 1) + (BY_HEAD ? h : 0);
    }
    // The place of the list of a tile (BY_KEYS: of a block).
    __device__ __forceinline__ i32 list(i32 b, i32 h, i32 of) const {
        return BY_KEYS ? (mask(b, h) * blocks + of) * (tiles + 1)
                       : (mask(b, h) * tiles + of) * (blocks + 1);
    }
    __device__ __forceinline__ const u32* ranks_of(i32 b, i32 h, i32 tile) const {
        return ranks + (mask(b, h) * tiles + tile) * (blocks + 1);
    }
};

// Whether any and all pairs within bounds are visible. A lane has cells of keys that are 32 apart.
// `Inside`: all pairs are within bounds.
template <bool Inside>
__device__ __forceinline__ void look(bool& any, bool& all, const AttentionShape& s, i32 b, i32 h,
                                     i32 first, i32 key CAPTURES) {
    const int lane = threadIdx.x % 32;
    for (i32 from = first; from < first + MASK_QUERIES; from += MASK_CHUNK) {
#pragma unroll
        for (i32 q = from; q < from + MASK_CHUNK; q += CELL_QUERIES) {
            // The last query of a cell sees the most keys.
            const i32 last = min(q + CELL_QUERIES, s.queries) - 1,
                      seen = Inside ? 0 : q < s.queries ? s.seen(last) : 0;
#pragma unroll
            for (int j = 0; j < CELLS; j += 32) {
                const i32 k = key + (j + lane) * CELL_KEYS;
                const bool shown = visible(b, h, q, k CAPTURED), is_cell = j + lane < CELLS,
                           is_real = is_cell && (Inside || k < seen);
                any |= is_real && shown;
                all &= !is_real || shown;
            }
        }
        if (__any_sync(~0u, any) && !__all_sync(~0u, all)) break;
    }
    any = __any_sync(~0u, any);
    all = __all_sync(~0u, all);
}

extern "C" __global__ void __launch_bounds__(MASK_WARPS * 32)
    attention_classes(const __grid_constant__ AttentionShape s,
                      const __grid_constant__ MaskGrid g CAPTURES) {
    after_previous();
    const int lane = threadIdx.x % 32;
    const i32 warps = gridDim.x * MASK_WARPS;
    for (u32 i = blockIdx.x * MASK_WARPS + threadIdx.x / 32; i < g.rows * g.blocks; i += warps) {
        const i32 row = i / g.blocks, key = i % g.blocks * MASK_KEYS, mask = row / g.tiles,
                  first = row % g.tiles * MASK_QUERIES, end = first + MASK_QUERIES;
        const i32 b = BY_BATCH ? mask / (BY_HEAD ? g.heads : 1) : 0,
                  h = BY_HEAD ? mask % g.heads : 0;
        bool any = false, all = true;
        if (end <= s.queries && key + MASK_KEYS <= s.seen(first))
            look<true>(any, all, s, b, h, first, key CAPTURED);
        else if (key < s.seen(min(end, s.queries) - 1))
            look<false>(any, all, s, b, h, first, key CAPTURED);
        const bool is_kept = row % g.tiles >= g.tiles - g.least;
        if (lane == 0) g.classes[i] = any && all ? FULL : any || is_kept ? PARTIAL : EMPTY;
    }
}

// Writes the list of a line of classes, or the ranks of its classes.
template <bool Ranks>
__device__ __forceinline__ void write_line(u32* to, const u8* classes, i32 stride, i32 length) {
    const int lane = threadIdx.x % 32;
    u32 count = 0;
    for (i32 from = 0; from < length; from += 32) {
        const i32 at = from + lane;
        const u8 of = at < length ? classes[at * stride] : EMPTY;
        const u32 shown = __ballot_sync(~0u, of != EMPTY);
        const u32 before = count + __popc(shown & ((1u << lane) - 1));
        if (Ranks && at < length) to[1 + at] = before;
        else if (of != EMPTY) to[1 + before] = at << 1 | (of == FULL);
        count += __popc(shown);
    }
    if (lane == 0) *to = count;
}

extern "C" __global__ void __launch_bounds__(MASK_WARPS * 32)
    attention_lists(const __grid_constant__ MaskGrid g) {
    after_previous();
    const i32 lines = g.rows + (BY_KEYS ? g.rows / g.tiles * g.blocks : 0);
    for (i32 i = blockIdx.x * MASK_WARPS + threadIdx.x / 32; i < lines;
         i += gridDim.x * MASK_WARPS) {
        const i32 column = i - g.rows;
        if (column >= 0)
            write_line<false>(g.lists + column * (g.tiles + 1),
                              g.classes + column / g.blocks * g.tiles * g.blocks +
                                  column % g.blocks,
                              g.blocks, g.tiles);
        else
            write_line<BY_KEYS>((BY_KEYS ? g.ranks : g.lists) + i * (g.blocks + 1),
                                g.classes + i * g.blocks, 1, g.blocks);
    }
}
