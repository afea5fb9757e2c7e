package io.takeup.spark;

import java.util.Arrays;
import java.util.concurrent.atomic.AtomicLongArray;

/** What one executor has done; travels as an array of numbers in the order of {@link #NAMES}. */
final class Counters {
    static final int PUTS = 0;
    static final int EVICTIONS = 1;
    static final int EVICTIONS_WITH_REFERENCES = 2;
    static final int EVICTED_BYTES = 3;
    static final int REFUSED = 4;
    static final int INACTIVE_BYTES = 5;
    static final int STORED_BLOCKS = 6;
    static final int GROUPS = 7;
    static final int CHOICES = 8;
    static final int CHOICE_NS = 9;
    static final int FAILURES = 10;
    static final int MESSAGES = 11;
    static final int INSTALLED = 12;
    static final int PROCESS_CPU_NS = 13;
    static final int PREFETCHES = 14;
    static final int STOCK_HITS = 15; // these as Spark's own rule would have had them, see Shadow
    static final int SAVED_NS = 16;
    static final int SAVED_READ_BYTES = 17;
    static final int GAVE_WAY = 18;
    static final String[] NAMES = {
        "puts", "evictions", "evictions_with_references", "evicted_bytes", "refused", "inactive_bytes", "stored_blocks",
        "groups", "choices", "choice_ns", "failures", "messages", "installed", "process_cpu_ns",
        "prefetches", "stock_hits", "saved_ns", "saved_read_bytes", "gave_way"
    };

    private final AtomicLongArray values = new AtomicLongArray(NAMES.length);

    void add(int counter, long amount) {
        values.addAndGet(counter, amount);
    }

    void set(int counter, long value) {
        values.set(counter, value);
    }

    long get(int counter) {
        return values.get(counter);
    }

    long[] snapshot() {
        long[] copy = new long[NAMES.length];
        Arrays.setAll(copy, values::get);
        return copy;
    }
}
