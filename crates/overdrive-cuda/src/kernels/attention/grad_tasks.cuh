// The tasks of the gradient kernel: the tile of keys of each, and its way over the blocks of
// queries that see the tile. If there is a mask function, these are a list of block_mask.cuh.
//
// Text before gives BLOCK_QUERIES.

constexpr int CONSUMERS = 2;
constexpr int TILE = OWN * CONSUMERS;

// `Grad` of grad.rs: strides of rows, tasks of a tile of keys, and tasks of all.
struct Grad {
    i64 delta[3], dk[3], dv[3];
    i32 splits, tasks;
};

// Blocks of queries.
__device__ __forceinline__ i32 blocks_of(const AttentionShape& s) {
    return (s.queries + BLOCK_QUERIES - 1) / BLOCK_QUERIES;
}

#ifdef MASK
#define MASK_GIVEN , mask
#define MASK_ALONE mask
#else
#define MASK_GIVEN
#define MASK_ALONE
#endif

// A part of the work of a tile of keys of a head: `steps` steps over blocks of queries. They begin
// at `block` of query head `h` and go from block `last` to `begin` of each head. If there is a mask
// function, `block` is the place in the head's list. Negative steps: there are no more tasks.
struct Task {
    i32 b, head, tile, key, part, last, begin, h, block, steps;
};

__device__ __forceinline__ void decode(volatile Task& to, const AttentionShape& s, const Grad& g,
                                       i32 index
#ifdef MASK
                                       , const MaskGrid& mask
#endif
) {
    const i32 tiles = (s.keys + TILE - 1) / TILE, part = index % g.splits;
    i32 matrix, tile;
    s.task(index / g.splits, tiles, matrix, tile);
    // Under a causal mask the first keys are seen by most.
    tile = tiles - 1 - tile;
    const i32 b = matrix / s.heads, head = matrix % s.heads, last = blocks_of(s) - 1;
    to.b = b, to.head = head, to.tile = tile, to.key = tile * TILE, to.part = part;
    i32 begin = 0;
#ifdef CAUSAL
    begin = max(0, tile * TILE - (s.keys - s.queries)) / BLOCK_QUERIES;
#endif
    to.last = last, to.begin = begin;
    // The host sees to it that no part is empty.
#ifdef MASK
    i32 all = 0, h = head * s.group;
    for (i32 i = 0; i < s.group; i++) all += mask.lists[mask.list(b, h + i, tile)];
#else
    const i32 each = last + 1 - begin, all = each * s.group;
#endif
    const i32 more = all % g.splits;
    i32 from = all / g.splits * part + min(part, more);
    to.steps = all / g.splits + (part < more);
#ifdef MASK
    i32 each;
    while (from >= (each = mask.lists[mask.list(b, h, tile)])) from -= each, h++;
    to.h = h, to.block = each - from;
#else
    to.h = head * s.group + from / each, to.block = last - from % each;
#endif
}

// The block of queries that a task is at, and whether a mask function hides a part of it.
struct Seen {
    i32 h, block;
    bool is_partial;
};

// The way of a task from block to block: `at` is a block, or the place of an entry of a list.
struct Place {
    i32 h, at;

#ifdef MASK
    __device__ __forceinline__ Place(const volatile Task& t, const MaskGrid& mask)
        : h(t.h), at(mask.list(t.b, t.h, t.tile) + t.block) {}
    __device__ __forceinline__ Seen seen(const MaskGrid& mask) const {
        const u32 entry = mask.lists[at];
        return {h, (i32)(entry >> 1), entry % 2 == 0};
    }
    __device__ __forceinline__ void next(const volatile Task& t, const MaskGrid& mask) {
        if (--at != mask.list(t.b, h, t.tile)) return;
        // After the last head of all there is no list.
        h = min(h + 1, mask.heads - 1);
        at = mask.list(t.b, h, t.tile);
        at += mask.lists[at];
    }
#else
    __device__ __forceinline__ Place(const volatile Task& t) : h(t.h), at(t.block) {}
    __device__ __forceinline__ Seen seen() const { return {h, at, false}; }
    __device__ __forceinline__ void next(const volatile Task& t) {
        if (--at < t.begin) at = t.last, h++;
    }
#endif
};

