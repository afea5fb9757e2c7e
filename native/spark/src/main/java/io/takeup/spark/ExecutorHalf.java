package io.takeup.spark;

import com.codahale.metrics.Gauge;
import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.Map;
import java.util.Timer;
import java.util.TimerTask;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskFailedReason;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.memory.MemoryManager;
import org.apache.spark.rpc.RpcEndpointRef;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** What runs in every executor: installs the store, listens to the driver, tells it what tasks found in memory. */
final class ExecutorHalf implements ExecutorPlugin {
    private static final Logger LOG = LoggerFactory.getLogger(ExecutorHalf.class);
    private static final double LEAST_LOSS_S = 0.1;
    private static final double MOST_LOSS_SHARE = 0.01; // of the CPU time of the tasks so far
    private static final long REPORT_MS = 2000; // who asks for the counters gets them at once

    private final Counters counters = new Counters();
    private final TaskLog tasks = new TaskLog();
    private final Timer timer = new Timer("takeup-report", true);
    private final ThreadLocal<TaskContext> running = new ThreadLocal<>(); // Spark has cleared its own when a task ends
    private final AtomicLong taskCpuNs = new AtomicLong();
    private PluginContext context;
    private BlockRanks ranks;
    private TakeupStore store;
    private Prefetcher prefetcher; // null unless asked for

    @Override
    public void init(PluginContext context, Map<String, String> settings) {
        this.context = context;
        String policy = settings.get(Settings.POLICY);
        if (policy == null) {
            return; // the driver has said why
        }
        try {
            install(SparkEnv.get(), Policy.parse(policy), Boolean.parseBoolean(settings.get(Settings.PREFETCH)));
        } catch (Throwable error) {
            LOG.warn("takeup: executor {} keeps Spark's own eviction, because {}", context.executorID(), error, error);
            goBack(SparkEnv.get());
        }
    }

    private void install(SparkEnv env, Policy policy, boolean prefetch) throws Exception {
        MemoryManager memory = env.memoryManager();
        long capacityBytes = memory.maxOnHeapStorageMemory() + memory.maxOffHeapStorageMemory();
        ranks = policy.isStock() ? null : new BlockRanks(policy.name, policy.admission, capacityBytes);
        store = new TakeupStore(env, env.blockManager(), ranks, counters, tasks);
        if (prefetch && ranks != null) {
            prefetcher = new Prefetcher(memory, env.blockManager(), ranks, counters);
        }
        Inbox inbox = new Inbox(env.rpcEnv(), this::receive);
        RpcEndpointRef reference = env.rpcEnv().setupEndpoint("takeup-" + context.executorID(), inbox);
        Object[] messages = (Object[]) context.ask(new Object[] {Messages.HELLO, context.executorID(), reference});
        store.install(); // last, so that a driver that does not answer leaves everything as it was
        for (Object message : messages) {
            receive((Object[]) message);
        }
        counters.set(Counters.INSTALLED, env.blockManager().memoryStore() == store ? 1 : 0);
        registerMetrics();
        startReports();
        LOG.info("takeup: policy {} decides what leaves the memory of executor {}", policy, context.executorID());
    }

    /** After a late failure: Spark's own store again, with everything that ours holds. */
    private void goBack(SparkEnv env) {
        TakeupStore ours = store;
        store = null;
        if (ours != null) {
            try {
                ours.uninstall(env);
            } catch (Throwable error) {
                ours.giveUp(error);
            }
        }
    }

    private Object receive(Object[] message) {
        counters.add(Counters.MESSAGES, 1);
        if (message[0].equals(Messages.FLUSH)) {
            report((Long) message[1]);
        } else if (ranks != null && store != null && !store.isStock()) {
            guard(() -> ranks.apply(message[0].equals(Messages.PACKED) ? Wire.unpacked((byte[]) message[1]) : message));
            prefetch();
        }
        return true;
    }

    @Override
    public void onTaskSucceeded() {
        taskEnded(true);
    }

    @Override
    public void onTaskFailed(TaskFailedReason reason) {
        taskEnded(false);
    }

    @Override
    public void onTaskStart() {
        running.set(TaskContext.get());
    }

    private void taskEnded(boolean succeeded) {
        TaskContext task = running.get();
        running.remove();
        if (store == null || task == null) {
            return;
        }
        tasks.end(task, succeeded);
        if (ranks != null && !store.isStock()) {
            guard(() -> {
                store.settle(task.taskAttemptId());
                if (succeeded) {
                    ranks.taskSucceeded(Keys.task(task.stageId(), task.partitionId()));
                }
                giveWayIfWorse(taskCpuNs.addAndGet(task.taskMetrics().executorCpuTime()) / 1e9);
            });
            prefetch();
        }
    }

    /** While Spark's own rule would have cost less by more than a small share of all, it rules. */
    private void giveWayIfWorse(double cpuS) {
        store.giveWay(-ranks.savedS() > Math.max(LEAST_LOSS_S, MOST_LOSS_SHARE * cpuS));
    }

    private void prefetch() {
        if (prefetcher != null) {
            prefetcher.consider();
        }
    }

    private void guard(Runnable bookkeeping) {
        try {
            bookkeeping.run();
        } catch (RuntimeException | LinkageError | StackOverflowError error) {
            store.giveUp(error);
        }
    }

    @Override
    public void shutdown() {
        timer.cancel();
        if (store != null) {
            report(Long.MAX_VALUE); // which answers whatever will be asked
        }
    }

    // Reports to the driver ----------------------------------------------------------------------------------------

    private void startReports() {
        timer.schedule(
                new TimerTask() {
                    @Override
                    public void run() {
                        report(0);
                    }
                },
                REPORT_MS,
                REPORT_MS);
    }

    /** The counters, and what the tasks that have finished since the last report found in memory; for a request. */
    private synchronized void report(long request) {
        List<long[]> lines = tasks.take();
        refreshGauges();
        try {
            Object[] message = {
                Messages.TASKS, context.executorID(), counters.snapshot(), lines.toArray(new long[0][]), request
            };
            context.send(message);
        } catch (Exception error) {
            LOG.debug("takeup: no report to the driver", error); // it is gone or going
        }
    }

    private void refreshGauges() {
        if (ranks != null) {
            counters.set(Counters.INACTIVE_BYTES, ranks.inactiveBytes());
            counters.set(Counters.STORED_BLOCKS, ranks.numStored());
            counters.set(Counters.GROUPS, ranks.numGroups());
            counters.set(Counters.STOCK_HITS, ranks.stockHits());
            counters.set(Counters.SAVED_NS, (long) (1e9 * ranks.savedS()));
            counters.set(Counters.SAVED_READ_BYTES, ranks.savedBytes());
        }
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        counters.set(Counters.PROCESS_CPU_NS, system.getProcessCpuTime());
    }

    private void registerMetrics() {
        for (int counter = 0; counter < Counters.NAMES.length; counter++) {
            int which = counter;
            context.metricRegistry().register(Counters.NAMES[counter], (Gauge<Long>) () -> counters.get(which));
        }
    }
}
