// Reads the cycle counter and the timer of each multiprocessor: one block each, as far as the
// scheduler spreads them.
extern "C" __global__ void read_clocks(unsigned long long* readings) {
    if (threadIdx.x == 0) {
        unsigned int multiprocessor;
        unsigned long long nanoseconds;
        asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
        readings[2 * multiprocessor] = clock64();
        readings[2 * multiprocessor + 1] = nanoseconds;
    }
}
