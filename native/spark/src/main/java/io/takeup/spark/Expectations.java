package io.takeup.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * When an RDD will probably be read next, from the jobs so far: Spark announces no job before the one that runs, and a
 * block without a known reader is not dead for that.
 *
 * <p>An RDD that was never read is expected in the next job. One that was read by several jobs is expected again after
 * as many jobs as last time, until twice that has passed. One that was read once may be used up: nothing is expected.
 */
final class Expectations {
    private static final int PATIENCE_JOBS = 3;

    private static final class History {
        int numPartitions;
        int firstJob;
        int lastJob;
        int numReads;
        int gap = 1;
        boolean isExpected;
    }

    private final Map<Integer, History> rdds = new HashMap<>();
    private double averageJobBytes;
    private int job;

    /** A job begins that reads or makes this RDD. */
    void seen(int rdd, int numPartitions, boolean isRead) {
        History history = rdds.computeIfAbsent(rdd, unseen -> new History());
        history.numPartitions = numPartitions;
        if (history.numReads == 0 && !isRead) {
            history.firstJob = job;
            return;
        }
        if (history.numReads > 0) {
            history.gap = Math.max(1, job - history.lastJob);
        }
        history.numReads++;
        history.lastJob = job;
    }

    /** After all calls of {@link #seen} for a job of so many bytes that ends at {@code position}: what to announce. */
    List<Object[]> announce(double position, double jobBytes, int stage) {
        averageJobBytes = averageJobBytes == 0 ? jobBytes : 0.7 * averageJobBytes + 0.3 * jobBytes;
        List<Object[]> messages = new ArrayList<>();
        rdds.forEach((rdd, history) -> {
            int numJobs = jobsUntilNext(history);
            if (numJobs >= 0) {
                double start = position + numJobs * averageJobBytes;
                double step = averageJobBytes / Math.max(1, history.numPartitions);
                messages.add(Messages.expect(rdd, history.numPartitions, start, step, stage + 1 + numJobs));
            } else if (history.isExpected) {
                messages.add(Messages.expect(rdd, history.numPartitions, Double.POSITIVE_INFINITY, 0, stage));
            }
            history.isExpected = numJobs >= 0;
        });
        job++;
        return messages;
    }

    void forget(int rdd) {
        rdds.remove(rdd);
    }

    /** How many jobs lie between this one and the next reader; -1 if none is expected. */
    private int jobsUntilNext(History history) {
        if (history.numReads == 0) {
            return job - history.firstJob <= PATIENCE_JOBS ? 0 : -1;
        }
        int numIdle = job - history.lastJob;
        if (history.numReads == 1 || numIdle > 2 * history.gap) {
            return -1;
        }
        return Math.max(0, history.gap - numIdle - 1);
    }
}
