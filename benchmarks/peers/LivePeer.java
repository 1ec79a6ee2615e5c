import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/**
 * Windowed counts for many streams and groups with Kafka Streams, of each person at most so many, exactly once, until
 * SIGTERM.
 *
 * <p>Arguments: bootstrap address, input topic, output topic, state folder, streams, conditions, groups, window and
 * lateness in milliseconds, contribution. Stream s counts events with delay >= 10 * (s % conditions); streams with one
 * condition share their counters. Stores are in memory with a changelog, and cached: what changes often within a commit
 * interval is written once.
 */
public final class LivePeer {
    private static final String PEOPLE = "people";
    private static final String COUNTS = "counts";

    @JsonIgnoreProperties(ignoreUnknown = true)
    public static final class Event {
        public String user;
        public long at;
        public String group;
        public int delay;
    }

    private record Job(int streams, int conditions, int groups, long window, long lateness, int contribution) {}

    /** A byte for each person, window and condition, and a counter for each window, group and condition. */
    private static final class Counter implements Processor<byte[], byte[], byte[], byte[]> {
        private final Job job;
        private final ObjectMapper json = new ObjectMapper();
        private final ObjectReader reader = json.readerFor(Event.class);
        private final Map<String, Integer> groups = new HashMap<>();
        private final TreeSet<Long> open = new TreeSet<>();
        private ProcessorContext<byte[], byte[]> context;
        private KeyValueStore<Bytes, byte[]> people;
        private KeyValueStore<Bytes, byte[]> counts;

        Counter(Job given) {
            job = given;
            for (int number = 0; number < job.groups; number++) {
                groups.put("group " + number, number);
            }
        }

        @Override
        public void init(ProcessorContext<byte[], byte[]> given) {
            context = given;
            people = given.getStateStore(PEOPLE);
            counts = given.getStateStore(COUNTS);
            try (KeyValueIterator<Bytes, byte[]> all = counts.all()) {
                all.forEachRemaining(pair -> open.add(ByteBuffer.wrap(pair.key.get()).getLong()));
            }
            given.schedule(Duration.ofMillis(100), PunctuationType.STREAM_TIME, this::close);
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            Event event;
            try {
                event = reader.readValue(record.value());
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            long start = event.at - event.at % job.window;
            Integer group = groups.get(event.group);
            if (group == null || record.timestamp() >= start + job.window + job.lateness) {
                return;
            }
            byte[] name = event.user.getBytes(StandardCharsets.UTF_8);
            Bytes person = Bytes.wrap(ByteBuffer.allocate(8 + name.length).putLong(start).put(name).array());
            byte[] known = people.get(person);
            byte[] seen = known == null ? new byte[job.conditions] : known.clone();
            Bytes cell = Bytes.wrap(ByteBuffer.allocate(10).putLong(start).putShort(group.shortValue()).array());
            byte[] before = counts.get(cell);
            ByteBuffer after = ByteBuffer.wrap(before == null ? new byte[4 * job.conditions] : before.clone());
            boolean counted = false;
            for (int condition = 0; condition < job.conditions && event.delay >= 10 * condition; condition++) {
                if (seen[condition] < job.contribution) {
                    seen[condition]++;
                    after.putInt(4 * condition, after.getInt(4 * condition) + 1);
                    counted = true;
                }
            }
            if (counted) {
                open.add(start);
                people.put(person, seen);
                counts.put(cell, after.array());
            }
        }

        private void close(long now) {
            while (!open.isEmpty() && open.first() + job.window + job.lateness <= now) {
                long start = open.pollFirst();
                int[][] found = new int[job.conditions][job.groups];
                for (KeyValue<Bytes, byte[]> pair : of(counts, start)) {
                    int group = ByteBuffer.wrap(pair.key.get()).getShort(8);
                    ByteBuffer numbers = ByteBuffer.wrap(pair.value);
                    for (int condition = 0; condition < job.conditions; condition++) {
                        found[condition][group] = numbers.getInt(4 * condition);
                    }
                    counts.delete(pair.key);
                }
                for (KeyValue<Bytes, byte[]> pair : of(people, start)) {
                    people.delete(pair.key);
                }
                for (int stream = 0; stream < job.streams; stream++) {
                    forward(start, stream, found[stream % job.conditions], now);
                }
            }
        }

        private static List<KeyValue<Bytes, byte[]>> of(KeyValueStore<Bytes, byte[]> store, long start) {
            List<KeyValue<Bytes, byte[]>> found = new ArrayList<>();
            Bytes from = Bytes.wrap(ByteBuffer.allocate(8).putLong(start).array());
            Bytes to = Bytes.wrap(ByteBuffer.allocate(8).putLong(start + 1).array());
            try (KeyValueIterator<Bytes, byte[]> some = store.range(from, to)) {
                some.forEachRemaining(found::add);
            }
            return found;
        }

        private void forward(long start, int stream, int[] numbers, long now) {
            ObjectNode answer = json.createObjectNode();
            answer.put("stream", stream);
            answer.put("start", start);
            ArrayNode array = answer.putArray("counts");
            for (int number : numbers) {
                array.add(number);
            }
            try {
                byte[] key = ("stream-" + stream).getBytes(StandardCharsets.UTF_8);
                context.forward(new Record<>(key, json.writeValueAsBytes(answer), now));
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[2]);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[3]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 256L * 1024 * 1024);
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        settings.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 5000);
        settings.put(StreamsConfig.producerPrefix("batch.size"), 1_000_000);
        settings.put(StreamsConfig.producerPrefix("linger.ms"), 100);
        Job job = new Job(
                Integer.parseInt(arguments[4]),
                Integer.parseInt(arguments[5]),
                Integer.parseInt(arguments[6]),
                Long.parseLong(arguments[7]),
                Long.parseLong(arguments[8]),
                Integer.parseInt(arguments[9]));
        Topology topology = new Topology();
        topology.addSource("events", new ByteArrayDeserializer(), new ByteArrayDeserializer(), arguments[1]);
        topology.addProcessor("counter", () -> new Counter(job), "events");
        for (String name : List.of(PEOPLE, COUNTS)) {
            StoreBuilder<KeyValueStore<Bytes, byte[]>> store = Stores.keyValueStoreBuilder(
                    Stores.inMemoryKeyValueStore(name), Serdes.Bytes(), Serdes.ByteArray());
            topology.addStateStore(store.withCachingEnabled(), "counter");
        }
        topology.addSink("answers", arguments[2], new ByteArraySerializer(), new ByteArraySerializer(), "counter");

        CountDownLatch ended = new CountDownLatch(1);
        KafkaStreams streams = new KafkaStreams(topology, settings);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(Duration.ofSeconds(5));
            ended.countDown();
        }));
        streams.start();
        ended.await();
    }

    private LivePeer() {}
}
