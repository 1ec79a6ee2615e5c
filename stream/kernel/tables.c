/*
 * Loops for counting: 16-byte keys numbered in order of appearance, counts up to a bound, and sums by place.
 *
 * As in kernel.c, each function has a twin in Python with the same results, and the caller owns all memory.
 */
#include "texts.h"

/* Number of rows by which memory at scattered addresses is prefetched before it is read. */
#define AHEAD 16

/* ---- Numbers of keys. The index has a power of 2 of entries, at least half of them free: number + 1, or 0 if free ---- */

static inline uint64_t home(uint64_t word, uint64_t seed, int64_t bits) { return (word * seed) >> (64 - bits); }

/*
 * Find the number of each key of two words. A new key gets the next number and is written into ``known``, which has room for
 * ``room`` keys. Return how many rows were looked up before the room was used up.
 */
PUBLIC int64_t sotto_number(int64_t count, const uint64_t *keys, uint32_t *index, int64_t bits, uint64_t seed,
                            uint64_t *known, int64_t room, int64_t *taken, int64_t *numbers) {
    uint64_t mask = ((uint64_t)1 << bits) - 1;
    int64_t entries = *taken, n = 0;
    for (; n < count; n++) {
        uint64_t first = keys[2 * n], second = keys[2 * n + 1], place = home(first, seed, bits);
        if (n + 2 * AHEAD < count) __builtin_prefetch(&index[home(keys[2 * (n + 2 * AHEAD)], seed, bits)]);
        if (n + AHEAD < count) {
            uint32_t entry = index[home(keys[2 * (n + AHEAD)], seed, bits)];
            if (entry) __builtin_prefetch(&known[2 * (int64_t)(entry - 1)]);
        }
        for (;; place = (place + 1) & mask) {
            int64_t entry = (int64_t)index[place] - 1;
            if (entry < 0) {
                if (entries == room) {
                    *taken = entries;
                    return n;
                }
                known[2 * entries] = first, known[2 * entries + 1] = second;
                numbers[n] = entries++;
                index[place] = (uint32_t)entries;
                break;
            }
            if (known[2 * entry] == first && known[2 * entry + 1] == second) {
                numbers[n] = entry;
                break;
            }
        }
    }
    *taken = entries;
    return n;
}

/* Enter the first ``entries`` known keys into an empty index. */
PUBLIC void sotto_index(int64_t entries, const uint64_t *known, uint32_t *index, int64_t bits, uint64_t seed) {
    uint64_t mask = ((uint64_t)1 << bits) - 1;
    for (int64_t n = 0; n < entries; n++) {
        uint64_t place = home(known[2 * n], seed, bits);
        if (n + AHEAD < entries) __builtin_prefetch(&index[home(known[2 * (n + AHEAD)], seed, bits)]);
        while (index[place]) place = (place + 1) & mask;
        index[place] = (uint32_t)(n + 1);
    }
}

/* ---- Counts up to a bound: a row of ``width`` counts for each number, one column for each bit ---- */

/*
 * In each column whose bit row n has, count its number unless it was counted ``most`` times. ``let`` gets the columns in
 * which it was counted, and ``first`` those in which this was the first time. Numbers with a changed count are marked and
 * listed once; return how many there are.
 */
#define BOUND(NAME, TYPE)                                                                                              \
    static int64_t NAME(int64_t count, const int64_t *numbers, const uint64_t *wanted, TYPE *counts, int64_t width,    \
                        uint64_t most, int32_t *marks, int32_t mark, uint64_t *let, uint64_t *first,                   \
                        int64_t *changed) {                                                                            \
        int64_t found = 0;                                                                                             \
        for (int64_t n = 0; n < count; n++) {                                                                          \
            TYPE *row = counts + numbers[n] * width;                                                                   \
            uint64_t counted = 0, new = 0;                                                                             \
            if (n + AHEAD < count) {                                                                                   \
                __builtin_prefetch(counts + numbers[n + AHEAD] * width);                                               \
                __builtin_prefetch(&marks[numbers[n + AHEAD]]);                                                        \
            }                                                                                                          \
            for (uint64_t left = wanted[n]; left; left &= left - 1) {                                                  \
                int column = __builtin_ctzll(left);                                                                    \
                if ((uint64_t)row[column] >= most) continue;                                                           \
                uint64_t bit = (uint64_t)1 << column;                                                                  \
                if (!row[column]++) new |= bit;                                                                        \
                counted |= bit;                                                                                        \
            }                                                                                                          \
            let[n] = counted, first[n] = new;                                                                          \
            if (counted && marks[numbers[n]] != mark) {                                                                \
                marks[numbers[n]] = mark;                                                                              \
                changed[found++] = numbers[n];                                                                         \
            }                                                                                                          \
        }                                                                                                              \
        return found;                                                                                                  \
    }

BOUND(bound_1, uint8_t)
BOUND(bound_2, uint16_t)
BOUND(bound_4, uint32_t)

PUBLIC int64_t sotto_bound(int64_t count, const int64_t *numbers, const uint64_t *wanted, void *counts, int64_t bytes,
                           int64_t width, uint64_t most, int32_t *marks, int64_t mark, uint64_t *let, uint64_t *first,
                           int64_t *changed) {
    int32_t own = (int32_t)mark;
    if (bytes == 1) return bound_1(count, numbers, wanted, counts, width, most, marks, own, let, first, changed);
    if (bytes == 2) return bound_2(count, numbers, wanted, counts, width, most, marks, own, let, first, changed);
    return bound_4(count, numbers, wanted, counts, width, most, marks, own, let, first, changed);
}

/* ---- Sums by place ---- */

/*
 * Count each row with the bit at its place, and add its code there if there are codes. Changed places are marked and listed
 * once; return how many there are. ``rows`` gets the number of rows with the bit, and how many changed places had a mark
 * below 0.
 */
PUBLIC int64_t sotto_add(int64_t count, const int64_t *places, const uint64_t *bits, int64_t bit, const int64_t *codes,
                         int64_t *counts, int64_t *sums, int32_t *marks, int64_t mark, int64_t *changed,
                         int64_t *rows) {
    int64_t found = 0, added = 0, fresh = 0;
    for (int64_t n = 0; n < count; n++) {
        if (!(bits[n] >> bit & 1)) continue;
        int64_t place = places[n];
        added++;
        counts[place]++;
        if (codes) sums[place] += codes[n];
        if (marks[place] != (int32_t)mark) {
            fresh += marks[place] < 0;
            marks[place] = (int32_t)mark;
            changed[found++] = place;
        }
    }
    rows[0] = added, rows[1] = fresh;
    return found;
}

/* ---- Groups of equal numbers ---- */

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

/*
 * Sort the rows stably by their numbers, which are not below 0. Also find the distinct numbers in ascending order, and each
 * row's index in them. Return how many distinct numbers there are. ``order`` and ``spare`` have room for all rows.
 */
PUBLIC int64_t sotto_group(int64_t count, const int64_t *numbers, int64_t *order, int64_t *spare, int64_t *distinct,
                           int64_t *group_of) {
    uint64_t bits = 0;
    int64_t *from = order, *to = spare, found = 0;
    for (int64_t n = 0; n < count; n++) from[n] = n, bits |= (uint64_t)numbers[n];
    for (int shift = 0; shift < 64 && bits >> shift; shift += DIGIT_BITS) {
        int64_t next[DIGITS] = {0}, before = 0;
        for (int64_t n = 0; n < count; n++) next[(uint64_t)numbers[n] >> shift & (DIGITS - 1)]++;
        for (int digit = 0; digit < DIGITS; digit++) {
            int64_t own = next[digit];
            next[digit] = before, before += own;
        }
        for (int64_t n = 0; n < count; n++) to[next[(uint64_t)numbers[from[n]] >> shift & (DIGITS - 1)]++] = from[n];
        int64_t *last = from;
        from = to, to = last;
    }
    if (from != order) memcpy(order, from, (size_t)count * sizeof *order);
    for (int64_t n = 0; n < count; n++) {
        int64_t number = numbers[order[n]];
        if (!found || distinct[found - 1] != number) distinct[found++] = number;
        group_of[order[n]] = found - 1;
    }
    return found;
}
