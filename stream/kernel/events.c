/*
 * People's events: the declared fields of plain JSON objects, and digests of people's names.
 *
 * As in kernel.c, each function has a twin in Python, to which it leaves inputs that it does not support. A plain event is a
 * valid JSON object in printable ASCII without escapes, with every declared field once, each a text or a number.
 */
#include "texts.h"

enum { TEXT = 1, NUMBER = 2, DEEPEST = 32, LONGEST_WHOLE = 18, LONGEST_NAME = 256 };

/* ---- Fields of objects. Node 0 is the event; a node's children are consecutive; a leaf has a column ---- */

typedef struct {
    const uint8_t *names;
    const int32_t *at, *size, *first, *count, *leaf;
} tree;

typedef struct {
    const tree *fields;
    const uint8_t *data, *end;
    int64_t n, rows;
    int64_t *at;
    int32_t *size;
    uint8_t *kind;
    uint64_t seen;
} scan;

/* Return the quotation mark that ends a plain text; NULL if the text is not plain. */
static inline const uint8_t *plain(const uint8_t *p, const uint8_t *end) {
    p = past_plain(p, end);
    return p < end && *p == '"' ? p : NULL;
}

static inline const uint8_t *digits(const uint8_t *p, const uint8_t *end) {
    const uint8_t *start = p;
    while (p < end && *p >= '0' && *p <= '9') p++;
    return p > start ? p : NULL;
}

/* Return the position after a number of any size; NULL if there is none. */
static inline const uint8_t *past_number(const uint8_t *p, const uint8_t *end) {
    if (p < end && *p == '-') p++;
    if (p < end && *p == '0')
        p++;
    else if (!(p = digits(p, end)))
        return NULL;
    if (p < end && *p == '.' && !(p = digits(p + 1, end))) return NULL;
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        if (p < end && (*p == '+' || *p == '-')) p++;
        if (!(p = digits(p, end))) return NULL;
    }
    return p;
}

static inline int is_word(const uint8_t *p, const uint8_t *end, const char *word, int64_t size) {
    return end - p >= size && !memcmp(p, word, (size_t)size);
}

static const uint8_t *object(scan *own, const uint8_t *p, int node, int depth);

/* Return the position after the value of an undeclared field; NULL if it is not plain. */
static const uint8_t *past_value(scan *own, const uint8_t *p, int depth) {
    const uint8_t *end = own->end;
    if (p >= end || depth > DEEPEST) return NULL;
    if (*p == '"') return (p = plain(p + 1, end)) ? p + 1 : NULL;
    if (*p == '{') return object(own, p + 1, -1, depth + 1);
    if (*p == '[') {
        p = blank(p + 1, end);
        if (p < end && *p == ']') return p + 1;
        for (;;) {
            if (!(p = past_value(own, blank(p, end), depth + 1))) return NULL;
            p = blank(p, end);
            if (p >= end) return NULL;
            if (*p == ']') return p + 1;
            if (*p++ != ',') return NULL;
        }
    }
    if (is_word(p, end, "true", 4) || is_word(p, end, "null", 4)) return p + 4;
    if (is_word(p, end, "false", 5)) return p + 5;
    return past_number(p, end);
}

/* Return the child of a node with this name; -1 if there is none. */
static inline int child_of(const tree *fields, int node, const uint8_t *name, int64_t size) {
    if (node < 0) return -1;
    for (int child = fields->first[node], end = child + fields->count[node]; child < end; child++)
        if (fields->size[child] == size && !memcmp(fields->names + fields->at[child], name, (size_t)size)) return child;
    return -1;
}

/* Read the value of a field: a text or a number. */
static inline const uint8_t *leaf(scan *own, const uint8_t *p, int node) {
    int64_t place = own->fields->leaf[node] * own->rows + own->n;
    const uint8_t *start = p;
    if (p < own->end && *p == '"') {
        if (!(p = plain(++start, own->end))) return NULL;
        own->kind[place] = TEXT, own->at[place] = start - own->data, own->size[place] = (int32_t)(p - start);
        return p + 1;
    }
    if (!(p = past_number(p, own->end))) return NULL;
    own->kind[place] = NUMBER, own->at[place] = start - own->data, own->size[place] = (int32_t)(p - start);
    return p;
}

/* Read an object after its opening bracket; return the position after it. Its fields are those of a node; none if < 0. */
static const uint8_t *object(scan *own, const uint8_t *p, int node, int depth) {
    const uint8_t *end = own->end;
    if (depth > DEEPEST) return NULL;
    p = blank(p, end);
    if (p < end && *p == '}') return p + 1;
    for (;;) {
        p = blank(p, end);
        if (p >= end || *p != '"') return NULL;
        const uint8_t *name = p + 1;
        if (!(p = plain(name, end))) return NULL;
        int child = child_of(own->fields, node, name, p - name);
        p = blank(p + 1, end);
        if (p >= end || *p != ':') return NULL;
        p = blank(p + 1, end);
        if (child < 0) {
            p = past_value(own, p, depth);
        } else {
            if (own->seen >> child & 1) return NULL;
            own->seen |= (uint64_t)1 << child;
            if (own->fields->leaf[child] >= 0)
                p = leaf(own, p, child);
            else
                p = p < end && *p == '{' ? object(own, p + 1, child, depth + 1) : NULL;
        }
        if (!p) return NULL;
        p = blank(p, end);
        if (p >= end) return NULL;
        if (*p == '}') return p + 1;
        if (*p++ != ',') return NULL;
    }
}

/*
 * Read events: for each column, the position and the kind of its value. ``read[n]`` is set if event n is plain, has at most
 * ``limit`` bytes and contains all nodes.
 */
PUBLIC void sotto_fields(int64_t rows, const uint8_t *data, const int64_t *at, const int32_t *size, int64_t limit,
                         int64_t nodes, const uint8_t *names, const int32_t *name_at, const int32_t *name_size,
                         const int32_t *first, const int32_t *count, const int32_t *leaves, uint8_t *read,
                         int64_t *value_at, int32_t *value_size, uint8_t *kind) {
    tree fields = {names, name_at, name_size, first, count, leaves};
    uint64_t all = nodes == 64 ? ~(uint64_t)0 : ((uint64_t)1 << nodes) - 1;
    for (int64_t n = 0; n < rows; n++) {
        read[n] = 0;
        if (size[n] < 0 || size[n] > limit) continue;
        const uint8_t *p = data + at[n], *end = p + size[n];
        scan own = {&fields, data, end, n, rows, value_at, value_size, kind, 1};
        p = blank(p, end);
        if (p >= end || *p != '{') continue;
        p = object(&own, p + 1, 0, 1);
        read[n] = p && blank(p, end) == end && own.seen == all;
    }
}

/* ---- Columns of values. Each function clears ``read`` for unsupported values, and skips rows that are not read ---- */

/* Return whether this is a whole number in canonical form: without a plus sign, leading zeros or -0. */
static inline int is_whole(const uint8_t *p, int64_t size) {
    int minus = size > 1 && *p == '-';
    p += minus, size -= minus;
    if (size < 1 || size > LONGEST_WHOLE || (*p == '0' && (size > 1 || minus))) return 0;
    for (; size > 0; p++, size--)
        if (*p < '0' || *p > '9') return 0;
    return 1;
}

PUBLIC void sotto_numbers(int64_t rows, const uint8_t *data, const int64_t *at, const int32_t *size,
                          const uint8_t *kind, uint8_t *read, double *values) {
    for (int64_t n = 0; n < rows; n++) {
        if (!read[n]) continue;
        const uint8_t *p = data + at[n];
        read[n] = kind[n] == NUMBER && number(p, p + size[n], &values[n]) == p + size[n];
    }
}

/* Find the slot of each name, or ``other`` for an unknown name; below 0 means no slot. */
PUBLIC void sotto_find(int64_t rows, const uint8_t *data, const int64_t *at, const int32_t *size, const uint8_t *kind,
                       uint8_t *read, const entry *table, int64_t entries, uint64_t seed, const uint8_t *name_data,
                       int64_t other, int64_t *slots) {
    names known = {table, (uint64_t)entries - 1, seed, name_data};
    for (int64_t n = 0; n < rows; n++) {
        if (!read[n]) continue;
        const uint8_t *p = data + at[n];
        if (kind[n] == NUMBER && !is_whole(p, size[n])) {
            read[n] = 0;
            continue;
        }
        slots[n] = slot_of(&known, p, size[n], hash_of(p, size[n], seed));
        if (slots[n] < 0) slots[n] = other;
        read[n] = slots[n] >= 0;
    }
}

static inline int64_t part_of(const uint8_t *p, int size) {
    int64_t found = 0;
    for (int i = 0; i < size; i++) {
        if (p[i] < '0' || p[i] > '9') return -1;
        found = 10 * found + (p[i] - '0');
    }
    return found;
}

/* Return the milliseconds since 1970 of 2013-01-01T05:00:00Z or 2013-01-01T05:00:00.000Z; below 0 for other forms. */
static int64_t moment(const uint8_t *p, int64_t size) {
    static const uint8_t DAYS[12] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if ((size != 20 && size != 24) || p[4] != '-' || p[7] != '-' || p[10] != 'T' || p[13] != ':' || p[16] != ':')
        return -1;
    if (p[size - 1] != 'Z' || (size == 24 && p[19] != '.')) return -1;
    int64_t year = part_of(p, 4), month = part_of(p + 5, 2), day = part_of(p + 8, 2), hour = part_of(p + 11, 2);
    int64_t minute = part_of(p + 14, 2), second = part_of(p + 17, 2), fine = size == 24 ? part_of(p + 20, 3) : 0;
    if (year < 1970 || month < 1 || month > 12 || day < 1 || hour < 0 || hour > 23) return -1;
    if (minute < 0 || minute > 59 || second < 0 || second > 59 || fine < 0) return -1;
    int leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    if (day > DAYS[month - 1] + (leap && month == 2)) return -1;
    /* Days since 1970 in the Gregorian calendar, computed with years that begin in March. */
    int64_t y = month <= 2 ? year - 1 : year, m = month <= 2 ? month + 9 : month - 3;
    int64_t days = y * 365 + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719468;
    return ((days * 24 + hour) * 60 + minute) * 60000 + second * 1000 + fine;
}

PUBLIC void sotto_moments(int64_t rows, const uint8_t *data, const int64_t *at, const int32_t *size,
                          const uint8_t *kind, uint8_t *read, int64_t end, int64_t *moments) {
    for (int64_t n = 0; n < rows; n++) {
        if (!read[n]) continue;
        const uint8_t *p = data + at[n];
        if (kind[n] == TEXT)
            moments[n] = moment(p, size[n]);
        else
            moments[n] = *p != '-' && is_whole(p, size[n]) ? part_of(p, size[n]) : -1;
        read[n] = moments[n] >= 0 && moments[n] < end;
    }
}

/* Check names of people: nonblank texts, and whole numbers. */
PUBLIC void sotto_names(int64_t rows, const uint8_t *data, const int64_t *at, const int32_t *size, const uint8_t *kind,
                        uint8_t *read) {
    for (int64_t n = 0; n < rows; n++) {
        if (!read[n]) continue;
        const uint8_t *p = data + at[n], *end = p + size[n];
        if (kind[n] == NUMBER) {
            read[n] = (uint8_t)is_whole(p, size[n]);
        } else {
            while (p < end && *p == ' ') p++;
            read[n] = p < end && size[n] <= LONGEST_NAME;
        }
    }
}

/* ---- BLAKE2b with 16 bytes of output and without a key (RFC 7693), and Kafka's murmur2 ---- */

static const uint64_t START[8] = {0x6A09E667F3BCC908ull, 0xBB67AE8584CAA73Bull, 0x3C6EF372FE94F82Bull,
                                  0xA54FF53A5F1D36F1ull, 0x510E527FADE682D1ull, 0x9B05688C2B3E6C1Full,
                                  0x1F83D9ABFB41BD6Bull, 0x5BE0CD19137E2179ull};

static const uint8_t ORDER[12][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3}};

#define TURN(x, by) (((x) >> (by)) | ((x) << (64 - (by))))
#define STIR(a, b, c, d, x, y)                                                                                         \
    do {                                                                                                               \
        v[a] += v[b] + (x);                                                                                            \
        v[d] = TURN(v[d] ^ v[a], 32);                                                                                  \
        v[c] += v[d];                                                                                                  \
        v[b] = TURN(v[b] ^ v[c], 24);                                                                                  \
        v[a] += v[b] + (y);                                                                                            \
        v[d] = TURN(v[d] ^ v[a], 16);                                                                                  \
        v[c] += v[d];                                                                                                  \
        v[b] = TURN(v[b] ^ v[c], 63);                                                                                  \
    } while (0)

static inline uint64_t long_at(const uint8_t *p) {
    uint64_t found = 0;
    for (int i = 7; i >= 0; i--) found = found << 8 | p[i];
    return found;
}

static void stir(uint64_t state[8], const uint8_t block[128], uint64_t done, int is_last) {
    uint64_t v[16], m[16];
    for (int i = 0; i < 16; i++) m[i] = long_at(block + 8 * i);
    for (int i = 0; i < 8; i++) v[i] = state[i], v[i + 8] = START[i];
    v[12] ^= done;
    if (is_last) v[14] = ~v[14];
    for (int round = 0; round < 12; round++) {
        const uint8_t *s = ORDER[round];
        STIR(0, 4, 8, 12, m[s[0]], m[s[1]]);
        STIR(1, 5, 9, 13, m[s[2]], m[s[3]]);
        STIR(2, 6, 10, 14, m[s[4]], m[s[5]]);
        STIR(3, 7, 11, 15, m[s[6]], m[s[7]]);
        STIR(0, 5, 10, 15, m[s[8]], m[s[9]]);
        STIR(1, 6, 11, 12, m[s[10]], m[s[11]]);
        STIR(2, 7, 8, 13, m[s[12]], m[s[13]]);
        STIR(3, 4, 9, 14, m[s[14]], m[s[15]]);
    }
    for (int i = 0; i < 8; i++) state[i] ^= v[i] ^ v[i + 8];
}

static void digest(const uint8_t *p, int64_t size, uint64_t out[2]) {
    uint64_t state[8], done = 0;
    uint8_t block[128];
    for (int i = 0; i < 8; i++) state[i] = START[i];
    state[0] ^= 0x01010000u ^ 16u;
    for (; size > 128; p += 128, size -= 128) stir(state, p, done += 128, 0);
    memset(block, 0, sizeof block);
    if (size > 0) memcpy(block, p, (size_t)size);
    stir(state, block, done + (uint64_t)size, 1);
    out[0] = state[0], out[1] = state[1];
}

static inline uint32_t murmur2(const uint8_t *p, int64_t size) {
    const uint32_t by = 0x5BD1E995u;
    uint32_t found = 0x9747B28Cu ^ (uint32_t)size;
    for (; size >= 4; p += 4, size -= 4) {
        uint32_t word = ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24) * by;
        word = (word ^ word >> 24) * by;
        found = found * by ^ word;
    }
    if (size >= 3) found ^= (uint32_t)p[2] << 16;
    if (size >= 2) found ^= (uint32_t)p[1] << 8;
    if (size >= 1) found = (found ^ p[0]) * by;
    found = (found ^ found >> 13) * by;
    return found ^ found >> 15;
}

/* Compute the digest of each name as two words, and its partition. */
PUBLIC void sotto_digests(int64_t rows, const uint8_t *data, const int64_t *at, const int32_t *size,
                          int64_t partitions, uint64_t *digests, int64_t *homes) {
    for (int64_t n = 0; n < rows; n++) {
        digest(data + at[n], size[n], digests + 2 * n);
        homes[n] = (int64_t)(murmur2(data + at[n], size[n]) & 0x7FFFFFFFu) % partitions;
    }
}
