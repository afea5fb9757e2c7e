package io.takeup.bench;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerBlockUpdated;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerUnpersistRDD;
import org.apache.spark.storage.BlockUpdatedInfo;
import org.apache.spark.storage.RDDBlockId;
import scala.jdk.javaapi.CollectionConverters;

/** CPU time of tasks, and how much there was to keep in memory; measured alike with and without the plug-in. */
public final class Measures extends SparkListener {
    private final AtomicLong taskCpuNs = new AtomicLong();
    private final Map<RDDBlockId, Long> bytesOfBlock = new HashMap<>(); // as last kept, whether it is still or not
    private long persistedBytes;
    private long mostPersistedBytes;

    public static Measures start(SparkContext context) {
        Measures measures = new Measures();
        context.addSparkListener(measures);
        return measures;
    }

    @Override
    public void onTaskEnd(SparkListenerTaskEnd event) {
        if (event.taskMetrics() != null) {
            taskCpuNs.addAndGet(event.taskMetrics().executorCpuTime());
        }
    }

    @Override
    public synchronized void onBlockUpdated(SparkListenerBlockUpdated event) {
        BlockUpdatedInfo info = event.blockUpdatedInfo();
        long bytes = Math.max(info.memSize(), info.diskSize());
        if (info.blockId() instanceof RDDBlockId && bytes > 0) {
            Long before = bytesOfBlock.put((RDDBlockId) info.blockId(), bytes);
            persistedBytes += bytes - (before == null ? 0 : before);
            mostPersistedBytes = Math.max(mostPersistedBytes, persistedBytes);
        }
    }

    @Override
    public synchronized void onUnpersistRDD(SparkListenerUnpersistRDD event) {
        bytesOfBlock.keySet().removeIf(block -> block.rddId() == event.rddId());
        persistedBytes = bytesOfBlock.values().stream().mapToLong(Long::longValue).sum();
    }

    public double taskCpuS() {
        return taskCpuNs.get() / 1e9;
    }

    /** The most bytes of blocks that had been made and not been unpersisted, whether memory held them or not. */
    public synchronized long mostPersistedBytes() {
        return mostPersistedBytes;
    }

    /** What the executors have for blocks and for execution. */
    public long memoryBytes(SparkContext context) {
        String driver = SparkEnv.get().blockManager().blockManagerId().hostPort();
        return CollectionConverters.asJava(context.getExecutorMemoryStatus()).entrySet().stream()
                .filter(executor -> !executor.getKey().equals(driver))
                .mapToLong(executor -> (Long) executor.getValue()._1())
                .sum();
    }

    /** Forget everything that an application has persisted, and wait until it is gone. */
    public void unpersistAll(SparkContext context) {
        new JavaSparkContext(context).getPersistentRDDs().values().forEach(rdd -> rdd.unpersist(true));
    }
}
