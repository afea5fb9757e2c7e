package io.takeup.spark;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.TaskContext;

/** Which blocks every running task found in memory and which it had to make, until the driver is told. */
final class TaskLog {
    private static final class Record {
        final Set<Long> hits = ConcurrentHashMap.newKeySet();
        final Set<Long> makes = ConcurrentHashMap.newKeySet();
    }

    private final Map<Long, Record> running = new ConcurrentHashMap<>();
    private List<long[]> finished = new ArrayList<>();

    /**
     * The task of this thread read the block from memory; true the first time, if it did not make the block. Reads on
     * behalf of other executors have no task.
     */
    boolean hit(long block) {
        Record record = current();
        return record != null && !record.makes.contains(block) && record.hits.add(block);
    }

    /** The task of this thread makes the block, or brings it back. True the first time it does. */
    boolean makes(long block) {
        Record record = current();
        return record == null || record.makes.add(block);
    }

    /** The task of this thread is over. */
    void end(TaskContext context, boolean succeeded) {
        Record record = running.remove(context.taskAttemptId());
        if (succeeded) {
            long task = Keys.task(context.stageId(), context.partitionId());
            long[] line = line(task, record == null ? new Record() : record);
            synchronized (this) {
                finished.add(line);
            }
        }
    }

    /** What has finished since the last call: per task its key, the number of hits, the hits, the blocks it made. */
    synchronized List<long[]> take() {
        List<long[]> lines = finished;
        finished = new ArrayList<>();
        return lines;
    }

    private Record current() {
        TaskContext context = TaskContext.get();
        return context == null ? null : running.computeIfAbsent(context.taskAttemptId(), unseen -> new Record());
    }

    private static long[] line(long task, Record record) {
        Set<Long> hits = new HashSet<>(record.hits);
        hits.removeAll(record.makes);
        long[] line = new long[2 + hits.size() + record.makes.size()];
        line[0] = task;
        line[1] = hits.size();
        int at = 2;
        for (long block : hits) {
            line[at++] = block;
        }
        for (long block : record.makes) {
            line[at++] = block;
        }
        return line;
    }
}
