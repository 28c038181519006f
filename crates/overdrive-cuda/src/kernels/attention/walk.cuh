// Code that Hopper's kernels of attention share: tasks, and the blocks of keys that a task walks.
//
// Text before gives KEYS, and block_mask.cuh if there is a mask function.

// Counts tasks: the next one to take, and the blocks that found none.
struct Counter {
    u32 taken, done;
};

// A block of keys: its first key, and whether a mask function hides a part of it.
struct KeyBlock {
    i32 key;
    bool is_partial;
};

// The blocks of keys that the queries of a task see, by ascending keys.
struct KeyBlocks {
    i32 count;
#ifdef MASK
    const u32* lists;
    i32 first;
#endif
    __device__ __forceinline__ KeyBlock operator[](i32 i) const {
#ifdef MASK
        const u32 entry = lists[first + i];
        return {(i32)(entry >> 1) * KEYS, entry % 2 == 0};
#else
        return {i * KEYS, false};
#endif
    }
};
