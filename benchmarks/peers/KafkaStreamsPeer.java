import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/**
 * Noisy threshold answers with Kafka Streams, exactly once, until SIGTERM.
 *
 * <p>Arguments: bootstrap address, input topic, output topic, state folder, "cached" or "plain" (whether repeated
 * state changes of one stream within a commit interval are merged before they reach the changelog).
 */
public final class KafkaStreamsPeer {
    private static final String STORE = "streams";
    private static final double QUERY_SCALE = 4.0;
    private static final double THRESHOLD_SCALE = 2.0;

    /** Per stream: how many queries were answered, and the noise on its threshold. */
    private static final class Answerer implements Processor<String, byte[], String, byte[]> {
        private final ObjectMapper json = new ObjectMapper();
        private final Random random = new Random();
        private ProcessorContext<String, byte[]> context;
        private KeyValueStore<String, byte[]> store;

        @Override
        public void init(ProcessorContext<String, byte[]> given) {
            context = given;
            store = given.getStateStore(STORE);
        }

        @Override
        public void process(Record<String, byte[]> query) {
            try {
                JsonNode event = json.readTree(query.value());
                byte[] known = store.get(query.key());
                long answered = known == null ? 0 : ByteBuffer.wrap(known).getLong(0);
                double shift = known == null ? laplace(THRESHOLD_SCALE) : ByteBuffer.wrap(known).getDouble(Long.BYTES);
                double noisy = event.get("value").doubleValue() + laplace(QUERY_SCALE);
                boolean above = noisy >= event.get("threshold").doubleValue() + shift;
                store.put(query.key(), ByteBuffer.allocate(16).putLong(answered + 1).putDouble(shift).array());
                ObjectNode answer = json.createObjectNode();
                answer.put("id", event.get("id").textValue());
                answer.put("stream", event.get("stream").textValue());
                answer.put("index", answered);
                answer.put("outcome", above ? "above" : "below");
                context.forward(query.withValue(json.writeValueAsBytes(answer)));
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        private double laplace(double scale) {
            double uniform = random.nextDouble() - 0.5;
            return -scale * Math.signum(uniform) * Math.log(1 - 2 * Math.abs(uniform));
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "streams-" + arguments[2]);
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[3]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        for (String pair : System.getProperty("settings", "").split(",")) {
            if (!pair.isEmpty()) {
                settings.put(pair.split("=")[0], pair.split("=")[1]);
            }
        }

        StoreBuilder<KeyValueStore<String, byte[]>> store = Stores.keyValueStoreBuilder(
                Stores.inMemoryKeyValueStore(STORE), Serdes.String(), Serdes.ByteArray());
        Topology topology = new Topology();
        topology.addSource("queries", new StringDeserializer(), new ByteArrayDeserializer(), arguments[1]);
        topology.addProcessor("answerer", Answerer::new, "queries");
        topology.addStateStore(arguments[4].equals("cached") ? store.withCachingEnabled() : store, "answerer");
        topology.addSink("answers", arguments[2], new StringSerializer(), new ByteArraySerializer(), "answerer");

        CountDownLatch ended = new CountDownLatch(1);
        KafkaStreams streams = new KafkaStreams(topology, settings);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(Duration.ofSeconds(5));
            ended.countDown();
        }));
        streams.start();
        ended.await();
    }

    private KafkaStreamsPeer() {}
}
