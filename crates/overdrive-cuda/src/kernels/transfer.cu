// Strided copies. -D BYTES: width of an element; POSITION: type that counts elements.

typedef BitsOf<BYTES>::type Bits;

extern "C" __global__ void transfer(const Bits* from, Bits* to, Nest<2> nest) {
    POSITION i = (POSITION)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= nest.count) return;
    i64 at[2];
    nest.locate(i, at);
    to[at[1]] = from[at[0]];
}
