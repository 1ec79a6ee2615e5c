/*
 * Loops over the events of a batch, for workers: keyed hashes, plain queries, texts of answers, Kafka's records.
 *
 * Each function has a twin in Python that gives the same bytes, and leaves to the twin every input that it does not
 * support. The caller owns all memory; nothing is kept between calls. Texts are a buffer with the position and the size of
 * each text; a size below 0 means that there is no text.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "texts.h"

#ifndef SOURCE
#define SOURCE ""
#endif

/* The digest of the sources of this library: a kernel built from other sources is not loaded. */
PUBLIC const char *sotto_source(void) { return SOURCE; }

/* ---- BLAKE3, keyed, of messages that fit one chunk (github.com/BLAKE3-team/BLAKE3-specs, section 2) ---- */

enum { CHUNK_BYTES = 1024, BLOCK_BYTES = 64, CHUNK_START = 1, CHUNK_END = 2, ROOT = 8, KEYED_HASH = 16 };

static const uint32_t IV[8] = {0x6A09E667u, 0xBB67AE85u, 0x3C6EF372u, 0xA54FF53Au,
                               0x510E527Fu, 0x9B05688Cu, 0x1F83D9ABu, 0x5BE0CD19u};

static const uint8_t SCHEDULE[7][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8},
    {3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1}, {10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6},
    {12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4}, {9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7},
    {11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13}};

/* Number of rows by which memory at scattered addresses is prefetched before it is read. */
#define AHEAD 32

/* Bytes of a cache line. */
#define LINE_BYTES 64

/* Number of messages that are hashed in parallel, one in each lane of a vector. */
#define LANES 8
typedef uint32_t lanes __attribute__((vector_size(4 * LANES)));

#define ROTATE(x, by) (((x) >> (by)) | ((x) << (32 - (by))))
#define MIX(a, b, c, d, x, y)                                                                                          \
    do {                                                                                                               \
        v[a] = v[a] + v[b] + (x);                                                                                      \
        v[d] = ROTATE(v[d] ^ v[a], 16);                                                                                \
        v[c] = v[c] + v[d];                                                                                            \
        v[b] = ROTATE(v[b] ^ v[c], 12);                                                                                \
        v[a] = v[a] + v[b] + (y);                                                                                      \
        v[d] = ROTATE(v[d] ^ v[a], 8);                                                                                 \
        v[c] = v[c] + v[d];                                                                                            \
        v[b] = ROTATE(v[b] ^ v[c], 7);                                                                                 \
    } while (0)
#define ROUND(s)                                                                                                       \
    do {                                                                                                               \
        MIX(0, 4, 8, 12, m[s[0]], m[s[1]]);                                                                            \
        MIX(1, 5, 9, 13, m[s[2]], m[s[3]]);                                                                            \
        MIX(2, 6, 10, 14, m[s[4]], m[s[5]]);                                                                           \
        MIX(3, 7, 11, 15, m[s[6]], m[s[7]]);                                                                           \
        MIX(0, 5, 10, 15, m[s[8]], m[s[9]]);                                                                           \
        MIX(1, 6, 11, 12, m[s[10]], m[s[11]]);                                                                         \
        MIX(2, 7, 8, 13, m[s[12]], m[s[13]]);                                                                          \
        MIX(3, 4, 9, 14, m[s[14]], m[s[15]]);                                                                          \
    } while (0)

static inline __attribute__((always_inline)) lanes all(uint32_t x) {
    lanes v;
    for (int i = 0; i < LANES; i++) v[i] = x;
    return v;
}

/* Compress one block of each lane; ``out`` gets 16 words, and the first 8 are the chaining value. */
static inline __attribute__((always_inline)) void compress(const lanes chained[8], const lanes m[16], uint32_t counter,
                                                           lanes length, lanes flags, lanes out[16]) {
    lanes v[16];
    for (int i = 0; i < 8; i++) v[i] = chained[i];
    for (int i = 0; i < 4; i++) v[8 + i] = all(IV[i]);
    v[12] = all(counter);
    v[13] = all(0);
    v[14] = length;
    v[15] = flags;
    ROUND(SCHEDULE[0]);
    ROUND(SCHEDULE[1]);
    ROUND(SCHEDULE[2]);
    ROUND(SCHEDULE[3]);
    ROUND(SCHEDULE[4]);
    ROUND(SCHEDULE[5]);
    ROUND(SCHEDULE[6]);
    for (int i = 0; i < 8; i++) {
        out[i] = v[i] ^ v[i + 8];
        out[i + 8] = v[i + 8] ^ chained[i];
    }
}

static inline uint32_t word_at(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline void put_word(uint8_t *p, uint32_t x) {
    p[0] = (uint8_t)x, p[1] = (uint8_t)(x >> 8), p[2] = (uint8_t)(x >> 16), p[3] = (uint8_t)(x >> 24);
}

/* Hash up to LANES messages of 1 to CHUNK_BYTES bytes, each in its own buffer, which is filled up with zeros. */
static inline __attribute__((always_inline)) void hash_lanes(uint8_t messages[LANES][CHUNK_BYTES],
                                                             const int64_t *sizes, const uint8_t *const *keys,
                                                             int count, int64_t width, uint8_t *const *digests) {
    lanes chained[8], m[16], out[16], length = all(0), flags = all(0);
    int64_t blocks[LANES], most = 1;
    for (int lane = 0; lane < LANES; lane++) {
        int own = lane < count ? lane : 0;
        blocks[lane] = sizes[own] <= BLOCK_BYTES ? 1 : (sizes[own] + BLOCK_BYTES - 1) / BLOCK_BYTES;
        if (blocks[lane] > most) most = blocks[lane];
        for (int i = 0; i < 8; i++) chained[i][lane] = word_at(keys[own] + 4 * i);
    }
    lanes last_chained[8], last_m[16], last_length = all(0), last_flags = all(0);
    for (int i = 0; i < 8; i++) last_chained[i] = chained[i];
    for (int i = 0; i < 16; i++) last_m[i] = all(0);
    for (int64_t block = 0; block < most; block++) {
        for (int lane = 0; lane < LANES; lane++) {
            int own = lane < count ? lane : 0;
            const uint8_t *p = messages[own] + block * BLOCK_BYTES;
            int is_last = block + 1 == blocks[lane];
            for (int i = 0; i < 16; i++) m[i][lane] = block < blocks[lane] ? word_at(p + 4 * i) : 0;
            length[lane] = (uint32_t)(is_last ? sizes[own] - block * BLOCK_BYTES : BLOCK_BYTES);
            flags[lane] = KEYED_HASH | (block == 0 ? CHUNK_START : 0) | (is_last ? CHUNK_END | ROOT : 0);
            if (is_last) {
                for (int i = 0; i < 8; i++) last_chained[i][lane] = chained[i][lane];
                for (int i = 0; i < 16; i++) last_m[i][lane] = m[i][lane];
                last_length[lane] = length[lane];
                last_flags[lane] = flags[lane];
            }
        }
        if (block + 1 == most) break;
        compress(chained, m, 0, length, flags, out);
        for (int i = 0; i < 8; i++) chained[i] = out[i];
    }
    for (int64_t done = 0, part = 0; done < width; done += BLOCK_BYTES, part++) {
        compress(last_chained, last_m, (uint32_t)part, last_length, last_flags, out);
        int64_t words = (width - done < BLOCK_BYTES ? width - done : BLOCK_BYTES) / 4;
        for (int lane = 0; lane < count; lane++)
            for (int i = 0; i < words; i++) put_word(digests[lane] + done + 4 * i, out[i][lane]);
    }
}

/*
 * Compute keyed digests of ``width`` bytes, a multiple of 4. Message n is the prefix, number n in 8 bytes (if there are
 * numbers) and text n; its key is the 32 bytes at ``key_at[n]``. Return how many messages were hashed before one that is
 * empty or too long.
 */
static inline __attribute__((always_inline)) int64_t derive(int64_t count, const uint8_t *keys, const int64_t *key_at,
                                                            const uint8_t *prefix, int64_t prefix_size,
                                                            const int64_t *numbers, const uint8_t *data,
                                                            const int64_t *at, const int32_t *size, int64_t width,
                                                            uint8_t *digests) {
    uint8_t messages[LANES][CHUNK_BYTES];
    int64_t sizes[LANES];
    const uint8_t *lane_keys[LANES];
    uint8_t *lane_digests[LANES];
    int64_t head = prefix_size + (numbers ? 8 : 0);
    for (int64_t first = 0; first < count; first += LANES) {
        int lanes_used = count - first < LANES ? (int)(count - first) : LANES;
        for (int lane = 0; lane < lanes_used; lane++) {
            int64_t n = first + lane;
            int64_t total = head + size[n];
            if (size[n] < 0 || total < 1 || total > CHUNK_BYTES) {
                lanes_used = lane;
                break;
            }
            uint8_t *p = messages[lane];
            memcpy(p, prefix, (size_t)prefix_size);
            p += prefix_size;
            if (n + AHEAD / 2 < count) {
                __builtin_prefetch(keys + key_at[n + AHEAD / 2]);
                __builtin_prefetch(data + at[n + AHEAD / 2]);
            }
            if (numbers)
                for (int i = 0; i < 8; i++) *p++ = (uint8_t)((uint64_t)numbers[n] >> (56 - 8 * i));
            memcpy(p, data + at[n], (size_t)size[n]);
            int64_t rest = (BLOCK_BYTES - total % BLOCK_BYTES) % BLOCK_BYTES;
            memset(messages[lane] + total, 0, (size_t)rest);
            sizes[lane] = total;
            lane_keys[lane] = keys + key_at[n];
            lane_digests[lane] = digests + n * width;
        }
        if (lanes_used) hash_lanes(messages, sizes, lane_keys, lanes_used, width, lane_digests);
        if (lanes_used < LANES && first + lanes_used < count) return first + lanes_used;
    }
    return count;
}

#define DERIVE_ARGUMENTS                                                                                               \
    int64_t count, const uint8_t *keys, const int64_t *key_at, const uint8_t *prefix, int64_t prefix_size,             \
        const int64_t *numbers, const uint8_t *data, const int64_t *at, const int32_t *size, int64_t width,            \
        uint8_t *digests
#define DERIVE_GIVEN count, keys, key_at, prefix, prefix_size, numbers, data, at, size, width, digests

static int64_t derive_anywhere(DERIVE_ARGUMENTS) { return derive(DERIVE_GIVEN); }

#if defined(__x86_64__)
__attribute__((target("avx2"))) static int64_t derive_wide(DERIVE_ARGUMENTS) { return derive(DERIVE_GIVEN); }

PUBLIC int64_t sotto_derive(DERIVE_ARGUMENTS) {
    return __builtin_cpu_supports("avx2") ? derive_wide(DERIVE_GIVEN) : derive_anywhere(DERIVE_GIVEN);
}
#else
PUBLIC int64_t sotto_derive(DERIVE_ARGUMENTS) { return derive_anywhere(DERIVE_GIVEN); }
#endif

/* ---- Names: the slot of each stream ---- */

/* Enter the names of slots from ``first`` on. The table's size is a power of 2 and at least twice the number of slots. */
PUBLIC void sotto_enter(entry *table, int64_t entries, uint64_t seed, const uint8_t *data, const int64_t *at,
                        const int32_t *size, int64_t first, int64_t slots) {
    uint64_t mask = (uint64_t)entries - 1;
    for (int64_t slot = first; slot < slots; slot++) {
        uint64_t h = hash_of(data + at[slot], size[slot], seed), place = h & mask;
        while (table[place].tag) place = next_place(place, h, mask);
        table[place].tag = (h & 0xFFFFFFFF00000000ull) | (uint64_t)(slot + 1);
        table[place].name = (uint64_t)at[slot] << SIZE_BITS | (uint64_t)(size[slot] < LONG ? size[slot] : LONG);
    }
}

/* ---- Plain queries: "id", "stream", "value" and optionally "threshold", each once, in any order, in plain text ---- */

/* Read a text of 1 to 128 printable ASCII characters without escapes; return the position after it, or NULL. */
static inline const uint8_t *text(const uint8_t *p, const uint8_t *end, const uint8_t **start, int64_t *size) {
    if (p >= end || *p != '"') return NULL;
    *start = ++p;
    p = past_plain(p, end);
    *size = p - *start;
    if (p >= end || *p != '"' || *size < 1 || *size > 128) return NULL;
    return p + 1;
}

#define MAX_MAGNITUDE 1e15
enum { ID = 1, STREAM = 2, VALUE = 4, THRESHOLD = 8 };

static int field_of(const uint8_t *name, int64_t size) {
    if (size == 2 && !memcmp(name, "id", 2)) return ID;
    if (size == 6 && !memcmp(name, "stream", 6)) return STREAM;
    if (size == 5 && !memcmp(name, "value", 5)) return VALUE;
    if (size == 9 && !memcmp(name, "threshold", 9)) return THRESHOLD;
    return 0;
}

/* Read one event: its id, stream, value and threshold; a missing threshold leaves the output unchanged. */
static inline int read_query(const uint8_t *p, const uint8_t *end, const uint8_t **id, int64_t *id_size,
                             const uint8_t **stream, int64_t *stream_size, double *value, double *threshold) {
    const uint8_t *start = NULL;
    int64_t length = 0;
    int found = 0, closed = 0;
    p = blank(p, end);
    if (p >= end || *p++ != '{') return 0;
    while ((p = text(blank(p, end), end, &start, &length))) {
        int field = field_of(start, length);
        if (!field || found & field) break;
        found |= field;
        p = blank(p, end);
        if (p >= end || *p != ':') break;
        p = blank(p + 1, end);
        if (field == ID)
            p = text(p, end, id, id_size);
        else if (field == STREAM)
            p = text(p, end, stream, stream_size);
        else
            p = number(p, end, field == VALUE ? value : threshold);
        if (!p) break;
        p = blank(p, end);
        if (p >= end) break;
        if (*p == '}') {
            closed = blank(p + 1, end) == end;
            break;
        }
        if (*p++ != ',') break;
    }
    if (!closed || (found & (ID | STREAM | VALUE)) != (ID | STREAM | VALUE)) return 0;
    return !(found & THRESHOLD) || (*threshold >= -MAX_MAGNITUDE && *threshold <= MAX_MAGNITUDE);
}

/* Number of events that are read before their streams are looked up. */
enum { AT_ONCE = 128 };

/*
 * Read events: the position of the id, value, threshold (unchanged if it is missing) and the stream's slot. ``read[n]`` is
 * set if event n is a plain query to a known stream. Scattered memory (the table's line, then the name) is prefetched one
 * pass before the pass that reads it. A pass does nothing else, so that a processor fetches many addresses at a time.
 */
PUBLIC void sotto_scan(int64_t count, const uint8_t *data, const int64_t *at, const int32_t *size, int64_t limit,
                       const entry *table, int64_t entries, uint64_t seed, const uint8_t *name_data, uint8_t *read,
                       int64_t *id_at, int32_t *id_size, int64_t *slots, double *values, double *thresholds) {
    names known = {table, (uint64_t)entries - 1, seed, name_data};
    uint64_t hashes[AT_ONCE];
    const uint8_t *stream[AT_ONCE];
    int64_t stream_size[AT_ONCE], event[AT_ONCE];
    for (int64_t first = 0; first < count; first += AT_ONCE) {
        int64_t end = count - first < AT_ONCE ? count : first + AT_ONCE, found = 0;
        for (int64_t n = first; n < end; n++) {
            const uint8_t *id = NULL;
            int64_t length = 0;
            read[n] = size[n] >= 0 && size[n] <= limit &&
                      read_query(data + at[n], data + at[n] + size[n], &id, &length, &stream[found],
                                 &stream_size[found], &values[n], &thresholds[n]);
            if (!read[n]) continue;
            id_at[n] = id - data, id_size[n] = (int32_t)length;
            hashes[found] = hash_of(stream[found], stream_size[found], seed);
            event[found++] = n;
        }
        for (int64_t i = 0; i < found; i++) __builtin_prefetch(&table[hashes[i] & known.mask]);
        for (int64_t i = 0; i < found; i++) {
            const entry *one = likely(&known, hashes[i] & known.mask, hashes[i]);
            if (!one) continue;
            __builtin_prefetch(name_data + (one->name >> SIZE_BITS));
            __builtin_prefetch(name_data + (one->name >> SIZE_BITS) + stream_size[i] - 1);
        }
        for (int64_t i = 0; i < found; i++) {
            int64_t slot = slot_of(&known, stream[i], stream_size[i], hashes[i]);
            slots[event[i]] = slot;
            read[event[i]] = slot >= 0;
        }
    }
}

/* ---- Columns of rows ---- */

typedef struct {
    int64_t offset, size; /* where it stands in a row, and its 1, 4 or 8 bytes */
    uint8_t *column;
} field;

/* Copy fields of some rows, each field into its own array. */
PUBLIC void sotto_gather(int64_t count, const int64_t *slots, const uint8_t *from, int64_t row_bytes,
                         const field *fields, int64_t field_count) {
    for (int64_t n = 0; n < count; n++) {
        const uint8_t *row = from + slots[n] * row_bytes;
        if (n + AHEAD / 2 < count)
            for (int64_t line = 0; line < row_bytes; line += LINE_BYTES)
                __builtin_prefetch(from + slots[n + AHEAD / 2] * row_bytes + line);
        for (const field *one = fields; one < fields + field_count; one++) {
            if (one->size == 8)
                memcpy(one->column + 8 * n, row + one->offset, 8);
            else if (one->size == 4)
                memcpy(one->column + 4 * n, row + one->offset, 4);
            else
                one->column[n] = row[one->offset];
        }
    }
}

/* Write fields of some rows, each field from its own array; if a row is given twice, the last one counts. */
PUBLIC void sotto_scatter(int64_t count, const int64_t *slots, uint8_t *to, int64_t row_bytes, const field *fields,
                          int64_t field_count) {
    for (int64_t n = 0; n < count; n++) {
        uint8_t *row = to + slots[n] * row_bytes;
        if (n + AHEAD / 2 < count)
            for (const field *one = fields; one < fields + field_count; one++)
                __builtin_prefetch(to + slots[n + AHEAD / 2] * row_bytes + one->offset, 1);
        for (const field *one = fields; one < fields + field_count; one++) {
            if (one->size == 8)
                memcpy(row + one->offset, one->column + 8 * n, 8);
            else if (one->size == 4)
                memcpy(row + one->offset, one->column + 4 * n, 4);
            else
                row[one->offset] = one->column[n];
        }
    }
}

/* ---- Texts built from parts: constants, texts by index, whole numbers ---- */

typedef struct {
    const uint8_t *data;  /* texts, or one constant; NULL for numbers */
    const int64_t *at;    /* where each text begins, or the numbers; NULL for a constant */
    const int32_t *size;
    const int64_t *which; /* which text each row has; NULL: that of its own number */
    int64_t length;       /* of a constant */
} part;

/* Copy bytes, usually a few: calling memcpy would take longer than the copy. */
static inline uint8_t *put(uint8_t *p, const uint8_t *from, int64_t size) {
    if (size > 64) {
        memcpy(p, from, (size_t)size);
    } else if (size >= 16) {
        for (int64_t done = 0; done < size - 16; done += 16) memcpy(p + done, from + done, 16);
        memcpy(p + size - 16, from + size - 16, 16);
    } else if (size >= 8) {
        memcpy(p, from, 8), memcpy(p + size - 8, from + size - 8, 8);
    } else if (size >= 4) {
        memcpy(p, from, 4), memcpy(p + size - 4, from + size - 4, 4);
    } else {
        for (int64_t i = 0; i < size; i++) p[i] = from[i];
    }
    return p + size;
}

static const char PAIRS[] = "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
                            "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";

static inline uint8_t *decimal(uint8_t *p, int64_t number) {
    uint8_t digits[20], *first = digits + sizeof digits;
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    if (number < 0) *p++ = '-';
    if (rest < 10) {
        *p++ = (uint8_t)('0' + rest);
        return p;
    }
    for (; rest >= 100; rest /= 100) memcpy(first -= 2, PAIRS + 2 * (rest % 100), 2);
    if (rest >= 10)
        memcpy(first -= 2, PAIRS + 2 * rest, 2);
    else
        *--first = (uint8_t)('0' + rest);
    return put(p, first, digits + sizeof digits - first);
}

/* Return an upper bound on the bytes of ``count`` texts. */
PUBLIC int64_t sotto_room(int64_t count, const part *parts, int64_t part_count) {
    int64_t room = 0;
    for (const part *one = parts; one < parts + part_count; one++) {
        if (!one->data) {
            room += 20 * count;
        } else if (!one->at) {
            room += one->length * count;
        } else {
            for (int64_t n = 0; n < count; n++) {
                if (one->which && n + AHEAD < count) __builtin_prefetch(&one->size[one->which[n + AHEAD]]);
                room += one->size[one->which ? one->which[n] : n];
            }
        }
    }
    return room;
}

/* Write ``count`` texts one after another; the caller has reserved room for all. Return the number of bytes. */
PUBLIC int64_t sotto_pack(int64_t count, const part *parts, int64_t part_count, uint8_t *out, int64_t *at,
                          int32_t *size) {
    uint8_t *p = out;
    for (int64_t n = 0; n < count; n++) {
        uint8_t *start = p;
        for (const part *one = parts; one < parts + part_count; one++) {
            if (!one->data) {
                p = decimal(p, one->at[n]);
            } else if (!one->at) {
                p = put(p, one->data, one->length);
            } else {
                int64_t which = one->which ? one->which[n] : n;
                if (one->which && n + AHEAD < count) {
                    __builtin_prefetch(&one->at[one->which[n + AHEAD]]);
                    __builtin_prefetch(&one->size[one->which[n + AHEAD]]);
                }
                if (n + AHEAD / 2 < count)
                    __builtin_prefetch(one->data + one->at[one->which ? one->which[n + AHEAD / 2] : n + AHEAD / 2]);
                p = put(p, one->data + one->at[which], one->size[which]);
            }
        }
        at[n] = start - out;
        size[n] = (int32_t)(p - start);
    }
    return p - out;
}

/* ---- CRC-32C, the checksum of Kafka's batches ---- */

#if defined(__x86_64__)
#define CRC_POLYNOMIAL 0x82F63B78u

/* Bytes of each of three runs that are read in parallel: the instruction takes three cycles, and one starts in each. */
enum { CRC_RUN = 8192 };

/* x^(8 * CRC_RUN) modulo the polynomial, with reversed bits: the effect of a run of zeros on a checksum. */
#define CRC_PAST_RUN 0x28461564u

static uint32_t crc_past_run(uint32_t crc) {
    uint32_t product = 0, power = CRC_PAST_RUN;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (crc & bit) product ^= power;
        power = power & 1 ? power >> 1 ^ CRC_POLYNOMIAL : power >> 1;
    }
    return product;
}

static inline uint64_t eight_at(const uint8_t *p) {
    uint64_t eight;
    memcpy(&eight, p, 8);
    return eight;
}

__attribute__((target("sse4.2"))) static uint32_t crc_by_instruction(const uint8_t *p, int64_t size) {
    uint64_t crc = 0xFFFFFFFFu;
    for (; size >= 3 * CRC_RUN; p += 3 * CRC_RUN, size -= 3 * CRC_RUN) {
        uint64_t second = 0, third = 0;
        for (int64_t i = 0; i < CRC_RUN; i += 8) {
            crc = __builtin_ia32_crc32di(crc, eight_at(p + i));
            second = __builtin_ia32_crc32di(second, eight_at(p + CRC_RUN + i));
            third = __builtin_ia32_crc32di(third, eight_at(p + 2 * CRC_RUN + i));
        }
        crc = crc_past_run(crc_past_run((uint32_t)crc) ^ (uint32_t)second) ^ (uint32_t)third;
    }
    for (; size >= 8; p += 8, size -= 8) crc = __builtin_ia32_crc32di(crc, eight_at(p));
    for (; size > 0; p++, size--) crc = __builtin_ia32_crc32qi((uint32_t)crc, *p);
    return ~(uint32_t)crc;
}

/* Return the checksum, or -1 if the processor has no instruction for it. */
PUBLIC int64_t sotto_crc32c(const uint8_t *data, int64_t size) {
    return __builtin_cpu_supports("sse4.2") ? (int64_t)crc_by_instruction(data, size) : -1;
}
#else
PUBLIC int64_t sotto_crc32c(const uint8_t *data, int64_t size) { return (void)data, (void)size, -1; }
#endif

/* ---- Kafka's records (KIP-98, message format 2), without headers ---- */

static inline uint64_t zigzag(int64_t x) { return ((uint64_t)x << 1) ^ (uint64_t)(x >> 63); }

static inline int64_t varint_size(int64_t x) {
    uint64_t u = zigzag(x);
    int64_t size = 1;
    while (u >>= 7) size++;
    return size;
}

static inline uint8_t *put_varint(uint8_t *p, int64_t x) {
    uint64_t u = zigzag(x);
    for (; u > 0x7F; u >>= 7) *p++ = (uint8_t)(u | 0x80);
    *p++ = (uint8_t)u;
    return p;
}

static inline uint8_t *put_sized(uint8_t *p, const uint8_t *text, int64_t size) {
    p = put_varint(p, size < 0 ? -1 : size);
    return size > 0 ? put(p, text, size) : p;
}

/*
 * Write records from ``first`` on into a batch that already has ``delta`` records of ``*written`` bytes, until it has
 * ``room`` bytes or ``most`` records. All records have the batch's first timestamp. ``out`` has room for one more record,
 * since the first record of a batch is always written. Return how many were written; ``written`` gets the batch's bytes.
 */
PUBLIC int64_t sotto_frame(int64_t first, int64_t count, int64_t delta, int64_t most, const uint8_t *key_data,
                           const int64_t *key_at, const int32_t *key_size, const uint8_t *data, const int64_t *at,
                           const int32_t *size, uint8_t *out, int64_t room, int64_t *written) {
    uint8_t *p = out + *written;
    int64_t n = first;
    for (; n < count && delta < most; n++, delta++) {
        int64_t key_length = key_size[n] < 0 ? 0 : key_size[n], length = size[n] < 0 ? 0 : size[n];
        int64_t body = 3 + varint_size(delta) + varint_size(key_size[n] < 0 ? -1 : key_length) + key_length +
                       varint_size(size[n] < 0 ? -1 : length) + length;
        if (delta > 0 && p - out + varint_size(body) + body > room) break;
        p = put_varint(p, body);
        *p++ = 0; /* attributes */
        *p++ = 0; /* time */
        p = put_varint(p, delta);
        p = put_sized(p, key_data + key_at[n], key_size[n]);
        p = put_sized(p, data + at[n], size[n]);
        *p++ = 0; /* headers */
    }
    *written = p - out;
    return n - first;
}

static inline const uint8_t *get_varint(const uint8_t *p, const uint8_t *end, int64_t *x) {
    uint64_t u = 0;
    for (int shift = 0; shift < 63 && p < end; shift += 7) {
        u |= (uint64_t)(*p & 0x7F) << shift;
        if (*p++ < 0x80) {
            *x = (int64_t)(u >> 1) ^ -(int64_t)(u & 1);
            return p;
        }
    }
    return NULL;
}

static inline const uint8_t *get_sized(const uint8_t *p, const uint8_t *end, const uint8_t *data, int64_t *at,
                                       int32_t *size) {
    int64_t length = 0;
    if (!(p = get_varint(p, end, &length)) || length > end - p || length < -1) return NULL;
    *at = p - data;
    *size = (int32_t)length;
    return p + (length > 0 ? length : 0);
}

/*
 * Read the records between two positions of ``data``, of a batch that begins with offset ``base`` and time ``first_time``:
 * each record's offset, time (``appended`` if that is not below 0), and the positions of key and value. The arrays are
 * filled from ``row`` on. Return the number of records, or -1 if any has headers or a malformed layout.
 */
PUBLIC int64_t sotto_unframe(const uint8_t *data, int64_t start, int64_t stop, int64_t count, int64_t last_delta,
                             int64_t base, int64_t first_time, int64_t appended, int64_t row, int64_t *offset,
                             int64_t *time, int64_t *key_at, int32_t *key_size, int64_t *at, int32_t *size) {
    const uint8_t *p = data + start, *end = data + stop;
    int64_t before = -1;
    offset += row, time += row, key_at += row, key_size += row, at += row, size += row;
    for (int64_t n = 0; n < count; n++) {
        int64_t length = 0;
        if (!(p = get_varint(p, end, &length)) || length < 1 || length > end - p) return -1;
        const uint8_t *next = p + length;
        p++; /* attributes */
        if (!(p = get_varint(p, next, &time[n])) || !(p = get_varint(p, next, &offset[n]))) return -1;
        if (offset[n] <= before || offset[n] > last_delta) return -1;
        before = offset[n];
        offset[n] += base;
        time[n] = appended < 0 ? (int64_t)((uint64_t)first_time + (uint64_t)time[n]) : appended;
        if (!(p = get_sized(p, next, data, &key_at[n], &key_size[n]))) return -1;
        if (!(p = get_sized(p, next, data, &at[n], &size[n]))) return -1;
        if (p + 1 != next || *p != 0) return -1;
        p = next;
    }
    return p == end ? count : -1;
}
