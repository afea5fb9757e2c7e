package io.takeup.spark;

import com.codahale.metrics.Gauge;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.Timer;
import java.util.TimerTask;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.rpc.RpcEndpointRef;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** What runs in the driver: checks that this Spark is known, reads the profile, listens, and counts. */
final class DriverHalf implements DriverPlugin {
    private static final Logger LOG = LoggerFactory.getLogger(DriverHalf.class);
    private static final String KNOWN = "3\\.5\\..*|4\\..*";
    private static final String TESTED = "3\\.5\\..*|4\\.[0-3]\\..*";
    private static final long CLOSE_MS = 50;
    private static final long PATIENCE_MS = 10_000; // for executors that are there, on a machine that may be busy
    private static final long LAST_PATIENCE_MS = 1_000; // in the end executors go while they are asked
    private static final long LOOK_MS = 5;
    private static volatile DriverHalf current;

    private final Map<String, long[]> executors = new ConcurrentHashMap<>();
    private final Map<String, Long> answered = new ConcurrentHashMap<>(); // by executor: the last request
    private final AtomicLong numRequests = new AtomicLong();
    private final Timer timer = new Timer("takeup-close", true);
    private SparkConf conf;
    private Policy policy;
    private Coordinator coordinator;
    private JobListener listener;
    private String version = "";
    private boolean isFinal;

    @Override
    public Map<String, String> init(SparkContext context, PluginContext plugin) {
        current = this;
        conf = plugin.conf();
        version = conf.get(Settings.VERSION, context.version());
        try {
            return start(context);
        } catch (Throwable error) {
            LOG.warn("takeup: eviction stays Spark's own, because {}", error.toString(), error);
            return Map.of();
        }
    }

    private Map<String, String> start(SparkContext context) {
        policy = Policy.parse(conf.get(Settings.POLICY, "dag"));
        if (!version.matches(KNOWN)) {
            LOG.warn("takeup: eviction stays Spark's own, because Spark {} is not 3.5 or 4.x", version);
            return Map.of();
        }
        if (!version.matches(TESTED)) {
            LOG.warn("takeup: Spark {} is newer than the versions that the plug-in was tested with", version);
        }
        coordinator = new Coordinator(policy, readProfile(), !conf.get(Settings.PROFILE, "").isEmpty());
        listener = new JobListener(context, coordinator, this::finish);
        context.addSparkListener(listener);
        timer.schedule(
                new TimerTask() {
                    @Override
                    public void run() {
                        coordinator.sendClosed();
                    }
                },
                CLOSE_MS,
                CLOSE_MS);
        return Map.of(Settings.POLICY, policy.toString(), Settings.PREFETCH, conf.get(Settings.PREFETCH, "false"));
    }

    /** For Spark's own metrics system: what only the driver knows, and the sums over all executors. */
    @Override
    public void registerMetrics(String application, PluginContext plugin) {
        if (coordinator != null) {
            Map<String, Gauge<Long>> gauges = new TreeMap<>(Map.of(
                    "accesses", () -> coordinator.hits.accesses,
                    "hits", () -> coordinator.hits.hits,
                    "effective_hits", () -> coordinator.hits.effectiveHits,
                    "recomputed_blocks", () -> coordinator.hits.madeAgain,
                    "broadcasts", () -> coordinator.numBroadcasts));
            for (int counter = 0; counter < Counters.NAMES.length; counter++) {
                int which = counter;
                gauges.put("executors_" + Counters.NAMES[counter], () -> sumOverExecutors(which));
            }
            gauges.forEach(plugin.metricRegistry()::register);
        }
    }

    private long sumOverExecutors(int counter) {
        return executors.values().stream().mapToLong(values -> values[counter]).sum();
    }

    private Profile readProfile() {
        String path = conf.get(Settings.PROFILE, "");
        if (!path.isEmpty() && Files.exists(Path.of(path))) {
            try {
                return Profile.read(Path.of(path));
            } catch (IOException | RuntimeException error) {
                LOG.warn("takeup: the profile is ignored and will be made anew, because {}", error.toString());
            }
        }
        return new Profile();
    }

    @Override
    public Object receive(Object message) {
        Object[] fields = (Object[]) message;
        if (fields[0].equals(Messages.HELLO)) {
            return coordinator.hello((String) fields[1], (RpcEndpointRef) fields[2]);
        }
        executors.put((String) fields[1], (long[]) fields[2]);
        synchronized (coordinator) {
            for (long[] line : (long[][]) fields[3]) {
                coordinator.hits.add(line);
            }
        }
        answered.merge((String) fields[1], (Long) fields[4], Math::max);
        return null;
    }

    @Override
    public void shutdown() {
        finish();
        timer.cancel();
    }

    /** The last reports are fetched while the executors are there; then everything is written down. */
    private synchronized void finish() {
        if (coordinator == null || isFinal) {
            return;
        }
        askForReports(LAST_PATIENCE_MS);
        isFinal = true;
        LOG.warn("takeup: {}", summary()); // Spark shows warnings only, if it is not told otherwise
        write(Settings.COUNTERS, path -> Files.writeString(path, toJson()));
        if (coordinator.future.isStale() && !coordinator.future.recorded.jobs.isEmpty()) {
            write(Settings.PROFILE, coordinator.future.recorded::write);
        }
    }

    /** What the policy was worth in this application, in a sentence. */
    private String summary() {
        if (policy.isStock()) {
            return "policy lru left eviction to Spark";
        }
        if (sumOverExecutors(Counters.INSTALLED) == 0) {
            return "no executor ran the policy, Spark's own eviction stayed; the logs of the executors say why";
        }
        double savedS = sumOverExecutors(Counters.SAVED_NS) / 1e9;
        double share = savedS / Math.max(1e-9, listener.taskCpuNs.get() / 1e9 + Math.max(0, savedS));
        return String.format(
                Locale.ROOT,
                "%s %.1f s of task time (%.0f %%) and %.1f MB of reads from disk, compared with Spark's own rule"
                        + " replayed on ids; %d of %d reads found their block in memory, %d with Spark's rule",
                savedS < 0 ? "cost" : "saved",
                Math.abs(savedS),
                100 * Math.abs(share),
                Math.abs(sumOverExecutors(Counters.SAVED_READ_BYTES)) / 1e6,
                coordinator.hits.hits,
                coordinator.hits.accesses,
                sumOverExecutors(Counters.STOCK_HITS));
    }

    /** Something that writes a file. */
    private interface Writer {
        void write(Path path) throws IOException;
    }

    private void write(String setting, Writer writer) {
        String name = conf.get(setting, "");
        if (name.isEmpty()) {
            return;
        }
        Path path = Path.of(name);
        try {
            Files.createDirectories(path.toAbsolutePath().getParent());
            Path beside = path.resolveSibling("." + path.getFileName() + ".new");
            writer.write(beside);
            Files.move(beside, path, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
        } catch (IOException | RuntimeException error) {
            LOG.warn("takeup: {} could not be written to {}, because {}", setting, name, error.toString());
        }
    }

    /** Everybody reports, and is waited for; but not for longer than this, nor if it is gone. */
    private void askForReports(long patienceMs) {
        long request = numRequests.incrementAndGet();
        Map<String, RpcEndpointRef> asked = coordinator.executorReferences();
        asked.values().forEach(reference -> reference.send(new Object[] {Messages.FLUSH, request}));
        long untilNs = System.nanoTime() + 1_000_000 * patienceMs;
        try {
            while (!haveAnswered(asked.keySet(), request) && System.nanoTime() < untilNs) {
                Thread.sleep(LOOK_MS);
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private boolean haveAnswered(Set<String> asked, long request) {
        Set<String> here = coordinator.executorReferences().keySet();
        return asked.stream()
                .allMatch(executor -> !here.contains(executor) || answered.getOrDefault(executor, 0L) >= request);
    }

    static String currentCounters() {
        DriverHalf half = current;
        if (half == null) {
            return null;
        }
        if (half.coordinator != null && !half.isFinal) {
            half.listener.hearOut(PATIENCE_MS);
            half.askForReports(PATIENCE_MS);
        }
        return half.toJson();
    }

    private String toJson() {
        ObjectNode root = new ObjectMapper().createObjectNode();
        root.put("policy", policy == null ? "" : policy.toString());
        root.put("spark_version", version);
        root.put("is_active", coordinator != null);
        if (coordinator != null) {
            synchronized (coordinator) {
                addDriverCounts(root);
            }
            addExecutorCounts(root);
        }
        return root.toPrettyString();
    }

    private void addDriverCounts(ObjectNode root) {
        root.put("accesses", coordinator.hits.accesses);
        root.put("hits", coordinator.hits.hits);
        root.put("effective_hits", coordinator.hits.effectiveHits);
        root.put("recomputed_blocks", coordinator.hits.madeAgain);
        root.put("broadcasts", coordinator.numBroadcasts);
        root.put("recompletions", coordinator.numRecompletions);
        root.put("driver_messages", coordinator.numMessages());
        root.put("driver_groups", coordinator.numGroups());
        root.put("jobs_foretold", coordinator.future.numMatched);
        root.put("jobs_not_foretold", coordinator.future.numUnmatched);
        root.put("tasks", listener.tasks.get());
        root.put("task_cpu_s", listener.taskCpuNs.get() / 1e9);
        root.put("listener_s", listener.listenerNs.get() / 1e9);
        root.put("driver_failures", listener.failures.get());
    }

    private void addExecutorCounts(ObjectNode root) {
        ObjectNode each = new ObjectMapper().createObjectNode();
        new TreeMap<>(executors).forEach((executor, values) -> {
            ObjectNode counts = each.putObject(executor);
            for (int counter = 0; counter < values.length; counter++) {
                counts.put(Counters.NAMES[counter], values[counter]);
            }
        });
        for (int counter = 0; counter < Counters.NAMES.length; counter++) {
            root.put(Counters.NAMES[counter], sumOverExecutors(counter));
        }
        root.set("executors", each);
    }
}
