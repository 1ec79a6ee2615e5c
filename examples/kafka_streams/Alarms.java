import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.processor.api.RecordMetadata;

/**
 * Readings become private questions, and the answers that are above a threshold become alarms; each once.
 *
 * <p>Arguments: bootstrap address, topic of readings (key: a ward, value: a number), topic of alarms, Sotto's prefix.
 */
public final class Alarms {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** Asks the ward's stream about each reading; the question's id says which reading it was. */
    private static final class Asker extends ContextualProcessor<String, String, String, String> {
        @Override
        public void process(Record<String, String> reading) {
            RecordMetadata from = context().recordMetadata().orElseThrow();
            String question = JSON.createObjectNode()
                    .put("id", from.topic() + "-" + from.partition() + "-" + from.offset())
                    .put("stream", reading.key())
                    .put("value", Double.parseDouble(reading.value()))
                    .toString();
            // The key is the stream: Java's own partitioner, murmur2, then finds the partition of its worker.
            context().forward(reading.withValue(question));
        }
    }

    static Topology topology(String readings, String alarms, String prefix) {
        StreamsBuilder builder = new StreamsBuilder();
        Consumed<String, String> read = Consumed.with(Serdes.String(), Serdes.String());
        Produced<String, String> written = Produced.with(Serdes.String(), Serdes.String());

        builder.stream(readings, read).process(Asker::new).to(prefix + ".queries", written);

        KStream<String, JsonNode> answers = builder.stream(prefix + ".answers", read)
                .mapValues(Alarms::parsed)
                .filter((stream, answer) -> answer.path("stream").asText().equals(stream));
        answers.filter((stream, answer) -> answer.path("outcome").asText().equals("above"))
                .map((stream, answer) -> KeyValue.pair(stream, answer.path("id").asText()))
                .to(alarms, written);
        answers.filter((stream, answer) -> answer.path("outcome").asText().matches("halted|rejected"))
                .foreach((stream, answer) -> System.err.println(stream + ": " + answer.path("reason").asText()));
        return builder.build();
    }

    private static JsonNode parsed(String text) {
        try {
            return JSON.readTree(text);
        } catch (JsonProcessingException error) {
            throw new IllegalArgumentException("an answer is no JSON", error);
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[3] + "-alarms");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        // A reading is asked about once, and answers are read once they are committed: not without exactly-once.
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        KafkaStreams streams = new KafkaStreams(topology(arguments[1], arguments[2], arguments[3]), settings);
        CountDownLatch ended = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(Duration.ofSeconds(10));
            ended.countDown();
        }));
        streams.start();
        ended.await();
    }

    private Alarms() {}
}
