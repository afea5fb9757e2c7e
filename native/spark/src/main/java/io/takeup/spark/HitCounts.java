package io.takeup.spark;

import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;

/**
 * Hits as tasks had them. Of the blocks a task needed, it made some and found the others in memory, here or on another
 * executor. To make a block for the first time is no access; to make it again, or to read it back from disk, is a miss.
 * A hit is effective if the task missed nothing.
 */
final class HitCounts {
    private static final int NUM_JOBS = 32; // reports of the last tasks come after the end of their job

    private final Map<Long, long[]> inputs = new HashMap<>();
    private final Deque<long[]> jobs = new ArrayDeque<>();
    private final Set<Long> made = new HashSet<>();
    long accesses;
    long hits;
    long effectiveHits;
    long madeAgain;

    /** The job has these tasks, which need these blocks. */
    void expect(long[] tasks, long[][] blocks) {
        for (int index = 0; index < tasks.length; index++) {
            inputs.put(tasks[index], blocks[index]);
        }
        jobs.add(tasks);
        if (jobs.size() > NUM_JOBS) {
            Arrays.stream(jobs.remove()).forEach(inputs::remove);
        }
    }

    /** A report of {@link TaskLog}: one task that succeeded. */
    void add(long[] line) {
        Set<Long> found = new HashSet<>();
        Arrays.stream(inputs.getOrDefault(line[0], new long[0])).forEach(found::add);
        Arrays.stream(line, 2, 2 + (int) line[1]).forEach(found::add);
        int numMisses = 0;
        for (int index = 2 + (int) line[1]; index < line.length; index++) {
            found.remove(line[index]);
            numMisses += made.add(line[index]) ? 0 : 1;
        }
        accesses += found.size() + numMisses;
        hits += found.size();
        effectiveHits += numMisses == 0 ? found.size() : 0;
        madeAgain += numMisses;
    }

    void forget(long[] blocks) {
        Arrays.stream(blocks).forEach(made::remove);
    }
}
