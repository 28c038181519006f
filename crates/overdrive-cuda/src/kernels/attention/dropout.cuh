// Draws which weights are kept, when they are needed: Philox of the seed, the site and the weight's
// place among [B, H, Tq, Tk], as `dropout` of the IR draws it.
//
// Text before this file defines SITE, REACH (least random bits of a weight that stays), STAYS (its
// factor) and SEED_AT (index of the seed). EVEN and FOURS: whether rows have a multiple of 2 and of
// 4 keys.

#define SEED seed_of[SEED_AT]

// Factor on the weight at a place.
__device__ __forceinline__ Sum kept(u64 seed, u64 place) {
    return random_bits(seed, SITE, place) >= REACH ? (Sum)STAYS : Sum(0);
}

// Multiplies the weights at a place and the next. The first has an even key.
__device__ __forceinline__ void keep(f32& first, f32& second, u64 seed, u64 place) {
    if constexpr (EVEN) {
        const uint4 words = philox_block(seed, SITE, place >> 2);
        const bool late = place & 2;
        first = (late ? words.z : words.x) >= REACH ? first * (f32)STAYS : 0.0f;
        second = (late ? words.w : words.y) >= REACH ? second * (f32)STAYS : 0.0f;
    } else {
        first *= (f32)kept(seed, place);
        second *= (f32)kept(seed, place + 1);
    }
}
