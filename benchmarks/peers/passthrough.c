/*
 * Exactly-once pass-through with librdkafka: each query becomes an answer of as many bytes as Sotto's, without state or noise.
 *
 * Arguments: bootstrap address, input topic, output topic, number of partitions. Runs until SIGTERM. A thread for each partition has
 * its own consumer (read_committed) and producer, and commits answers and offsets of up to 10,000 queries in one transaction.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- The part of rdkafka.h that is used here: packages of the library for Python have no header ---- */

typedef struct rd_kafka_s client;
typedef struct rd_kafka_conf_s configuration;
typedef struct rd_kafka_topic_s topic;
typedef struct rd_kafka_error_s failure;
typedef struct rd_kafka_queue_s queue;
typedef struct rd_kafka_consumer_group_metadata_s group;

typedef struct {
    int err;
    topic *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *opaque;
} message;

typedef struct {
    char *topic;
    int32_t partition;
    int64_t offset;
    void *metadata;
    size_t metadata_size;
    void *opaque;
    int err;
    void *own;
} place;

typedef struct {
    int count, size;
    place *elements;
} places;

enum { PRODUCER = 0, CONSUMER = 1 };

configuration *rd_kafka_conf_new(void);
int rd_kafka_conf_set(configuration *, const char *, const char *, char *, size_t);
client *rd_kafka_new(int, configuration *, char *, size_t);
topic *rd_kafka_topic_new(client *, const char *, void *);
places *rd_kafka_topic_partition_list_new(int);
place *rd_kafka_topic_partition_list_add(places *, const char *, int32_t);
int rd_kafka_assign(client *, const places *);
queue *rd_kafka_queue_get_consumer(client *);
ptrdiff_t rd_kafka_consume_batch_queue(queue *, int, message **, size_t);
void rd_kafka_message_destroy(message *);
int rd_kafka_produce_batch(topic *, int32_t, int, message *, int);
group *rd_kafka_consumer_group_metadata(client *);
failure *rd_kafka_init_transactions(client *, int);
failure *rd_kafka_begin_transaction(client *);
failure *rd_kafka_send_offsets_to_transaction(client *, const places *, const group *, int);
failure *rd_kafka_commit_transaction(client *, int);
const char *rd_kafka_error_string(const failure *);

/* ---- The pass-through ---- */

enum { QUERIES = 10000, ANSWER_BYTES = 256, PATIENCE_MS = 30000 };

/* The rest of one of Sotto's answers to such a query. */
static const char REST[] =
    ",\"outcome\":\"below\",\"index\":1000,\"spent\":{\"epsilon\":0.0112,\"delta\":0.0},\"tops_left\":1}";

static const char *bootstrap, *source, *sink;

static void end(const char *reason) {
    fprintf(stderr, "passthrough: %s\n", reason);
    exit(1);
}

static void check(const failure *failed) {
    if (failed) end(rd_kafka_error_string(failed));
}

/* Create a client from pairs of option and value, which end with NULL. */
static client *create(int kind, const char *const *options) {
    char reason[512];
    configuration *made = rd_kafka_conf_new();
    for (; *options; options += 2)
        if (rd_kafka_conf_set(made, options[0], options[1], reason, sizeof reason)) end(reason);
    client *created = rd_kafka_new(kind, made, reason, sizeof reason);
    if (!created) end(reason);
    return created;
}

/* Write the query's id and stream and a constant rest; the client reads the text until the transaction ends. */
static message answer_to(const message *query, char *text) {
    const char *rest = memmem(query->payload, query->len, ",\"value\"", 8);
    size_t head = rest ? (size_t)(rest - (const char *)query->payload) : 0;
    if (head + sizeof REST > ANSWER_BYTES) end("a query is too long");
    memcpy(text, query->payload, head);
    memcpy(text + head, REST, sizeof REST - 1);
    return (message){.payload = text, .len = head + sizeof REST - 1, .key = query->key, .key_len = query->key_len};
}

static void *answer_partition(void *number) {
    int32_t partition = (int32_t)(intptr_t)number;
    char id[256];
    snprintf(id, sizeof id, "%s-%d", sink, (int)partition);
    client *consumer = create(CONSUMER, (const char *const[]){"bootstrap.servers", bootstrap, "group.id", sink,
                                                              "isolation.level", "read_committed", "enable.auto.commit",
                                                              "false", "auto.offset.reset", "earliest", NULL});
    client *producer =
        create(PRODUCER, (const char *const[]){"bootstrap.servers", bootstrap, "transactional.id", id, NULL});
    topic *answers = rd_kafka_topic_new(producer, sink, NULL);
    places *reached = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(reached, source, partition);
    if (rd_kafka_assign(consumer, reached)) end("the partition cannot be assigned");
    group *member = rd_kafka_consumer_group_metadata(consumer);
    check(rd_kafka_init_transactions(producer, PATIENCE_MS));

    queue *queries = rd_kafka_queue_get_consumer(consumer);
    message **read = malloc(QUERIES * sizeof *read), *written = malloc(QUERIES * sizeof *written);
    char *texts = malloc((size_t)QUERIES * ANSWER_BYTES);
    if (!read || !written || !texts) end("no memory");
    for (;;) {
        ptrdiff_t count = rd_kafka_consume_batch_queue(queries, 20, read, QUERIES);
        if (count <= 0) continue;
        for (ptrdiff_t n = 0; n < count; n++) {
            if (read[n]->err) end(read[n]->payload ? read[n]->payload : "a query cannot be read");
            written[n] = answer_to(read[n], texts + n * ANSWER_BYTES);
        }
        check(rd_kafka_begin_transaction(producer));
        if (rd_kafka_produce_batch(answers, partition, 0, written, (int)count) != count) end("the queue is full");
        reached->elements[0].offset = read[count - 1]->offset + 1;
        check(rd_kafka_send_offsets_to_transaction(producer, reached, member, PATIENCE_MS));
        check(rd_kafka_commit_transaction(producer, PATIENCE_MS));
        for (ptrdiff_t n = 0; n < count; n++) rd_kafka_message_destroy(read[n]);
    }
    return NULL;
}

int main(int count, char **given) {
    if (count != 5) end("arguments: bootstrap address, input topic, output topic, number of partitions");
    bootstrap = given[1], source = given[2], sink = given[3];
    pthread_t thread;
    for (int partition = 0; partition < atoi(given[4]); partition++)
        if (pthread_create(&thread, NULL, answer_partition, (void *)(intptr_t)partition)) end("no thread starts");
    pause();
    return 0;
}
