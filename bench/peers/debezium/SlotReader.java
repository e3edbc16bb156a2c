import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.PrintStream;
import java.time.Instant;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * SlotReader HOST PORT DATABASE SLOT PUBLICATION EVENTS [PROPERTY=VALUE ...]
 *
 * Debezium's embedded engine on a pgoutput slot, change events as JSON without schemas, offsets in memory. It ends after
 * EVENTS change events, and says on standard error how many seconds the second half of them took: its virtual machine
 * is warm by then. With EVENTS 0 it goes on until killed: it prints READY once its task has started, and of every
 * event the key and the microseconds since 1970 at which its handler had it.
 */
public final class SlotReader {
    private static final long STOP_MS = 8000;
    private static final CountDownLatch ended = new CountDownLatch(1);
    private static volatile boolean failed;
    private static long wanted;
    private static long events;
    private static long halfAt;
    private static long halfEvents;

    private SlotReader() {
    }

    public static void main(String[] arguments) throws Exception {
        wanted = Long.parseLong(arguments[5]);
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class)
            .using(properties(arguments))
            .using(new DebeziumEngine.ConnectorCallback() {
                @Override
                public void taskStarted() {
                    if (wanted == 0) {
                        System.out.println("READY");
                    }
                }
            })
            .using((succeeded, message, error) -> {
                failed = !succeeded;
                if (failed) {
                    System.err.println(message + " " + error);
                }
                ended.countDown();
            })
            .notifying(wanted == 0 ? SlotReader::tell : SlotReader::count)
            .build();
        Executors.newSingleThreadExecutor().submit(engine);
        ended.await();
        if (!failed) {
            Thread closing = new Thread(() -> {
                try {
                    engine.close();
                } catch (Exception error) {
                    System.err.println(error);
                }
            });
            closing.start();
            closing.join(STOP_MS);
        }
        Runtime.getRuntime().halt(failed ? 1 : 0);
    }

    private static boolean isChange(ChangeEvent<String, String> event) {
        return event.value() != null && event.value().contains("\"op\":");
    }

    private static void count(
            List<ChangeEvent<String, String>> batch,
            DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer) throws InterruptedException {
        for (ChangeEvent<String, String> event : batch) {
            if (isChange(event)) {
                events++;
            }
            committer.markProcessed(event);
        }
        committer.markBatchFinished();
        if (halfAt == 0 && 2 * events >= wanted) {
            halfAt = System.nanoTime();
            halfEvents = events;
        }
        if (events >= wanted) {
            System.err.println("second part " + (events - halfEvents) + " events " + (System.nanoTime() - halfAt) + " ns");
            ended.countDown();
        }
    }

    private static void tell(
            List<ChangeEvent<String, String>> batch,
            DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer) throws InterruptedException {
        Instant now = Instant.now();
        long micros = TimeUnit.SECONDS.toMicros(now.getEpochSecond()) + now.getNano() / 1000;
        PrintStream out = System.out;
        for (ChangeEvent<String, String> event : batch) {
            if (isChange(event)) {
                out.println(event.key().replaceAll("\\D", "") + " " + micros);
            }
            committer.markProcessed(event);
        }
        committer.markBatchFinished();
    }

    private static Properties properties(String[] arguments) {
        Properties chosen = new Properties();
        chosen.setProperty("name", "bench");
        chosen.setProperty("connector.class", "io.debezium.connector.postgresql.PostgresConnector");
        chosen.setProperty("offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore");
        chosen.setProperty("offset.flush.interval.ms", "1000");
        chosen.setProperty("database.hostname", arguments[0]);
        chosen.setProperty("database.port", arguments[1]);
        chosen.setProperty("database.user", "postgres");
        chosen.setProperty("database.password", "none");
        chosen.setProperty("database.dbname", arguments[2]);
        chosen.setProperty("topic.prefix", "bench");
        chosen.setProperty("plugin.name", "pgoutput");
        chosen.setProperty("slot.name", arguments[3]);
        chosen.setProperty("slot.drop.on.stop", "false");
        chosen.setProperty("publication.name", arguments[4]);
        chosen.setProperty("publication.autocreate.mode", "disabled");
        chosen.setProperty("table.include.list", "public.orders");
        chosen.setProperty("snapshot.mode", "no_data");
        chosen.setProperty("key.converter.schemas.enable", "false");
        chosen.setProperty("value.converter.schemas.enable", "false");
        for (int at = 6; at < arguments.length; at++) {
            String[] pair = arguments[at].split("=", 2);
            chosen.setProperty(pair[0], pair[1]);
        }
        return chosen;
    }
}
