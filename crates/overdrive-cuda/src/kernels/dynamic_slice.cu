// A block at a position that is data. -D BYTES, POSITION as in transfer.cu; OUTWARD: the position
// is in `to`.

typedef BitsOf<BYTES>::type Bits;

// `Starts` in dynamic_slice.rs: the largest start of each dimension, and elements per step there.
struct Starts {
    u32 rank;
    i64 limits[8];
    i64 strides[8];
    i64 step;
};

extern "C" __global__ void dynamic_slice(const Bits* from, Bits* to, const i64* starts,
                                         Starts place, Nest<2> nest) {
    POSITION i = (POSITION)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= nest.count) return;
    i64 first = 0;
    for (int d = 0; d < place.rank; d++)
        first += clamped(starts[d * place.step], place.limits[d]) * place.strides[d];
    i64 at[2];
    nest.locate(i, at);
    at[OUTWARD] += first;
    to[at[1]] = from[at[0]];
}
