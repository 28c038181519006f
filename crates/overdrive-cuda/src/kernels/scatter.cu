// Updates folded into windows of the result, in the order of their rows, with no atomics on the
// values. Few rows that overwrite are one launch, `few`; all else
// goes through lists:
//
// 1. `count`: rows of each destination. 2. `allocate`: a run of the list for each destination. 3.
//    `fill`: rows into the runs, in any order. 4. `order`: each run sorted by row. 5. `fold`: a
//    thread per element of each window that is hit walks its run. Threads race for the places of
//    runs; the content and order of each run do not depend on that. -D ELEMENT, INDEX; FOLD: `Sum`,
//    ... or absent if the last update wins.

// `Destinations` in scatter.rs.
struct Destinations {
    IndexedRows rows;
    Nest<2> window;  // Over the elements of a window: strides in the updates, and in the result.

    // First element of the window of a key, the row-major number of its indices.
    __device__ i64 destination(u32 key) const {
        i64 at = 0;
        for (int a = (int)rows.axes - 1; a >= 0; a--) {
            u32 extent = (u32)(rows.limits[a] + 1), quotient = key / extent;
            at += (i64)(key - quotient * extent) * rows.strides[a];
            key = quotient;
        }
        return at;
    }
};

extern "C" __global__ void count(const INDEX* indices, Destinations places, u32* keys,
                                 u32* counts) {
    u32 row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= places.rows.nest.count) return;
    i64 at[2], key = 0;
    places.rows.nest.locate(row, at);
    for (int a = 0; a < places.rows.axes; a++) {
        i64 index =
            clamped(saturated(indices[at[0] + a * places.rows.step]), places.rows.limits[a]);
        key = key * (places.rows.limits[a] + 1) + index;
    }
    keys[row] = key;
    atomicAdd(counts + key, 1);
}

// `total` is the first free place of the list.
extern "C" __global__ void allocate(const u32* counts, u32* starts, u32* cursors, u32* total,
                                    u32 destinations) {
    u32 key = blockIdx.x * blockDim.x + threadIdx.x;
    if (key >= destinations || counts[key] == 0) return;
    u32 start = atomicAdd(total, counts[key]);
    starts[key] = start;
    cursors[key] = start;
}

extern "C" __global__ void fill(const u32* keys, u32* cursors, u32* list, u32 rows) {
    u32 row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) list[atomicAdd(cursors + keys[row], 1)] = row;
}

// One block per place of the list; only the block at the head of a run works. It sorts a short run
// by counting, for each row, those before it. It sorts a long run by walking over all keys in
// order, which is the cheaper above sqrt(8 rows).
extern "C" __global__ void order(const u32* keys, const u32* counts, const u32* starts,
                                 const u32* list, u32* ordered, u32 rows) {
    u32 place = blockIdx.x, key = keys[list[place]], length = counts[key];
    if (starts[key] != place) return;
    if ((u64)length * length <= 8ull * rows) {
        for (u32 i = threadIdx.x; i < length; i += blockDim.x) {
            u32 row = list[place + i], before = 0;
            for (u32 j = 0; j < length; j++) before += list[place + j] < row;
            ordered[place + before] = row;
        }
        return;
    }
    __shared__ u32 found[32];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, next = place;
    for (u32 first = 0; first < rows; first += blockDim.x) {
        u32 row = first + threadIdx.x;
        u32 mine = __ballot_sync(~0u, row < rows && keys[row] == key);
        if (lane == 0) found[warp] = __popc(mine);
        __syncthreads();
        u32 before = __popc(mine & ((1u << lane) - 1)), all = 0;
        for (u32 w = 0; w < blockDim.x / 32; w++) {
            if (w < warp) before += found[w];
            all += found[w];
        }
        if (mine >> lane & 1) ordered[next + before] = row;
        next += all;
        __syncthreads();
    }
}

extern "C" __global__ void fold(const ELEMENT* updates, ELEMENT* result, Destinations places,
                                const u32* keys, const u32* counts, const u32* starts,
                                const u32* ordered) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u64 window = places.window.count;
    u32 place = i / window;
    if (place >= places.rows.nest.count) return;
    u32 key = keys[ordered[place]], length = counts[key];
    if (starts[key] != place) return;
    i64 at[2], row[2];
    places.window.locate((u32)(i - place * window), at);
    ELEMENT* to = result + places.destination(key) + at[1];
#ifdef FOLD
    Wide<ELEMENT> sum = convert<Wide<ELEMENT>>(*to);
    // A frequent token has thousands of rows, one after another: as many as can be are under way.
#pragma unroll 16
    for (u32 j = 0; j < length; j++) {
        places.rows.nest.locate(ordered[place + j], row);
        sum = FOLD::of(sum, convert<Wide<ELEMENT>>(updates[row[1] + at[0]]));
    }
    *to = convert<ELEMENT>(sum);
#else
    places.rows.nest.locate(ordered[place + length - 1], row);
    *to = updates[row[1] + at[0]];
#endif
}

// For scatters that overwrite. A thread per element of the window walks over all rows, so that rows
// of one destination meet in their order.
extern "C" __global__ void few(const INDEX* indices, const ELEMENT* updates, ELEMENT* result,
                               Destinations places) {
    after_previous();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= places.window.count) return;
    i64 at[2], row[2];
    places.window.locate((u32)i, at);
    for (u32 r = 0; r < places.rows.nest.count; r++) {
        places.rows.nest.locate(r, row);
        i64 to = at[1];
        for (int a = 0; a < places.rows.axes; a++)
            to += clamped(saturated(indices[row[0] + a * places.rows.step]),
                          places.rows.limits[a]) * places.rows.strides[a];
        result[to] = updates[row[1] + at[0]];
    }
}
