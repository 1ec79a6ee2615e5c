/*
 * Shared by several files: the look-up of names, and numbers in JSON.
 */
#ifndef TEXTS_H
#define TEXTS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define PUBLIC __declspec(dllexport)
#else
#define PUBLIC __attribute__((visibility("default")))
#endif

/* ---- Names: the slot of each name ---- */

static inline uint64_t hash_of(const uint8_t *p, int64_t size, uint64_t seed) {
    uint64_t h = seed ^ ((uint64_t)size * 0x9E3779B97F4A7C15ull);
    for (; size > 0; p += 8, size -= 8) {
        uint64_t part = 0;
        memcpy(&part, p, (size_t)(size < 8 ? size : 8));
        h = (h ^ part) * 0xBF58476D1CE4E5B9ull;
        h ^= h >> 29;
    }
    h *= 0x94D049BB133111EBull;
    return h ^ h >> 32;
}

/* Everything that a look-up needs except the name. */
typedef struct {
    uint64_t tag;  /* slot + 1 in the low half, part of the hash in the high half; 0 is free */
    uint64_t name; /* where it stands, and in the lowest SIZE_BITS its size, LONG for more than any text has that is looked up */
} entry;

enum { SIZE_BITS = 24, LONG = (1 << SIZE_BITS) - 1, LINE_ENTRIES = 4 };

typedef struct {
    const entry *table;
    uint64_t mask, seed;
    const uint8_t *data;
} names;

/* The next entry to try if a name's entry is taken: first the others in its cache line, which is loaded already. */
static inline uint64_t next_place(uint64_t place, uint64_t home, uint64_t mask) {
    uint64_t next = (place & ~(uint64_t)(LINE_ENTRIES - 1)) | ((place + 1) % LINE_ENTRIES);
    return (next ^ home) % LINE_ENTRIES ? next : (next + LINE_ENTRIES) & mask;
}

/* Return the first entry from a position on whose tag fits this hash; NULL if there is none. */
static inline const entry *likely(const names *known, uint64_t place, uint64_t h) {
    for (;; place = next_place(place, h, known->mask)) {
        const entry *one = &known->table[place];
        if (!one->tag) return NULL;
        if (!((one->tag ^ h) >> 32)) return one;
    }
}

static inline int64_t slot_of(const names *known, const uint8_t *name, int64_t size, uint64_t h) {
    uint64_t place = h & known->mask;
    for (const entry *one; (one = likely(known, place, h));
         place = next_place((uint64_t)(one - known->table), h, known->mask)) {
        if ((int64_t)(one->name & LONG) != size || size >= LONG) continue;
        if (!memcmp(known->data + (one->name >> SIZE_BITS), name, (size_t)size))
            return (int64_t)(one->tag & 0xFFFFFFFFu) - 1;
    }
    return -1;
}

/* ---- JSON ---- */

/* Return where printable ASCII without quotation marks and escapes ends; eight bytes at a time if the byte order allows. */
static inline const uint8_t *past_plain(const uint8_t *p, const uint8_t *end) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    const uint64_t each = 0x0101010101010101ull, high = 0x80 * each;
    for (uint64_t bytes; end - p >= 8; p += 8) {
        memcpy(&bytes, p, 8);
        uint64_t quote = bytes ^ ('"' * each), escape = bytes ^ ('\\' * each);
        /* The first match of each kind is certain: borrows and carries can mark wrong bytes only after a match. */
        uint64_t found = ((bytes - 0x20 * each) & ~bytes) | ((quote - each) & ~quote) | ((escape - each) & ~escape) |
                         (bytes + each) | bytes;
        if (found &= high) return p + __builtin_ctzll(found) / 8;
    }
#endif
    while (p < end && *p >= 0x20 && *p < 0x7F && *p != '"' && *p != '\\') p++;
    return p;
}

static const double POWERS[23] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                  1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

static inline const uint8_t *blank(const uint8_t *p, const uint8_t *end) {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    return p;
}

/*
 * Read a number that converts to a double in one rounding: a whole number of at most 2^53, multiplied or divided by a power
 * of ten of at most 10^22 (Clinger 1990). Return NULL for other numbers and for a negative zero.
 */
static inline const uint8_t *number(const uint8_t *p, const uint8_t *end, double *value) {
    int minus = 0, digits = 0;
    int64_t exponent = 0;
    uint64_t whole = 0;
    if (p < end && *p == '-') minus = 1, p++;
    if (p >= end || *p < '0' || *p > '9') return NULL;
    if (*p == '0' && p + 1 < end && p[1] >= '0' && p[1] <= '9') return NULL;
    for (; p < end && *p >= '0' && *p <= '9'; p++, digits++) {
        if (digits == 18) return NULL;
        whole = 10 * whole + (uint64_t)(*p - '0');
    }
    if (p < end && *p == '.') {
        const uint8_t *point = p++;
        for (; p < end && *p >= '0' && *p <= '9'; p++, digits++, exponent--) {
            if (digits == 18) return NULL;
            whole = 10 * whole + (uint64_t)(*p - '0');
        }
        if (p == point + 1) return NULL;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        int64_t power = 0;
        int below = 0;
        p++;
        if (p < end && (*p == '+' || *p == '-')) below = *p++ == '-';
        if (p >= end || *p < '0' || *p > '9') return NULL;
        for (; p < end && *p >= '0' && *p <= '9'; p++)
            if ((power = 10 * power + (*p - '0')) > 99) return NULL;
        exponent += below ? -power : power;
    }
    if (whole > (1ull << 53) || exponent > 22 || exponent < -22 || (minus && !whole)) return NULL;
    *value = (double)whole;
    *value = exponent < 0 ? *value / POWERS[-exponent] : *value * POWERS[exponent];
    if (minus) *value = -*value;
    return p;
}

#endif
